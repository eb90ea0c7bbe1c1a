//! The checks and replies of both ends of a handshake.

use super::*;

const ME: PeerId = PeerId(2);

#[test]
fn golden_hello() {
    let bytes = hello(PeerId(1), PeerId(2), REACH_BY_LINK, Connection::Link);
    assert_eq!(bytes[..20], *b"LWFB\x02\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0");
    assert_eq!(hello(PeerId(1), PeerId(2), 0x0102_0304, Connection::Urgent)[16..20], [4, 3, 2, 1]);
    assert_eq!(bytes[20..], crc32c::crc32c(&bytes[..20]).to_le_bytes());
}

#[test]
fn the_right_peers_find_each_other() {
    assert_eq!(check_hello(ME, 0, &hello(PeerId(1), ME, 0, Connection::Link)), Ok((PeerId(1), Connection::Link)));
    let urgent = hello(PeerId(1), ME, 0, Connection::Urgent);
    assert_eq!(urgent[6..8], [1, 0]);
    assert_eq!(check_hello(ME, 0, &urgent), Ok((PeerId(1), Connection::Urgent)));
    assert_eq!(check_reply(ME, 0, &welcome(ME, 0)), Ok(()));
}

#[test]
fn a_wrong_peer_is_named_on_both_sides() {
    let (error, reply) = check_hello(ME, 0, &hello(PeerId(1), PeerId(3), 0, Connection::Link)).unwrap_err();
    let expected = HelloError::WrongPeer { wanted: PeerId(3), found: ME };
    assert_eq!(error, expected);
    assert_eq!(check_reply(PeerId(3), 0, &reply.unwrap()), Err(expected));
    assert_eq!(error.to_string(), "peer 3 was wanted there, but it is peer 2: check the addresses");
    // A peer that welcomes every hello is not accepted either.
    assert!(check_reply(PeerId(3), 0, &welcome(ME, 0)).is_err());
}

#[test]
fn another_version_is_named_on_both_sides() {
    let mut other = hello(PeerId(1), ME, 0, Connection::Link);
    other[4] = 9;
    let (error, reply) = check_hello(ME, 0, &other).unwrap_err();
    assert_eq!(error, HelloError::Version(9));
    assert_eq!(error.to_string(), "it speaks version 9 of the fabric's protocol, this process speaks 2");
    let reply = reply.unwrap();
    assert_eq!((reply[4], reply[6]), (2, 2), "own version and the verdict");
    assert!(check_reply(ME, 0, &reply).is_err());
}

#[test]
fn another_fabric_is_named_on_both_sides() {
    let (here, there) = (REACH_BY_LINK, reach_by("libfabric tcp"));
    let (error, reply) = check_hello(ME, here, &hello(PeerId(1), ME, there, Connection::Link)).unwrap_err();
    assert_eq!(error, HelloError::OtherReach);
    assert_eq!(check_reply(ME, there, &reply.unwrap()), Err(HelloError::OtherReach));
    assert_eq!(
        check_hello(ME, there, &hello(PeerId(1), ME, there, Connection::Link)),
        Ok((PeerId(1), Connection::Link))
    );
    assert_eq!(check_reply(ME, there, &welcome(ME, there)), Ok(()));
    assert_ne!(reach_by("libfabric shm"), there);
    // A peer that welcomes in spite of the difference is not accepted either.
    assert_eq!(check_reply(ME, there, &welcome(ME, here)), Err(HelloError::OtherReach));
}

#[test]
fn strangers_and_damage_get_no_reply() {
    let http: [u8; HELLO] = *b"GET / HTTP/1.1\r\nHost: x\r";
    let (error, reply) = check_hello(ME, 0, &http).unwrap_err();
    assert_eq!((error, reply), (HelloError::Stranger(*b"GET "), None));
    for byte in 6..HELLO {
        let mut damaged = hello(PeerId(1), ME, 0, Connection::Link);
        damaged[byte] ^= 0x40;
        assert_eq!(check_hello(ME, 0, &damaged), Err((HelloError::Damaged, None)), "byte {byte}");
    }
}
