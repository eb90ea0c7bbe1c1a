//! What each end concludes from the other's hello, and what it says about it.

use super::*;

const ME: PeerId = PeerId(2);

#[test]
fn golden_hello() {
    let bytes = hello(PeerId(1), PeerId(2));
    assert_eq!(bytes[..20], *b"LWFB\x01\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0");
    assert_eq!(bytes[20..], crc32c::crc32c(&bytes[..20]).to_le_bytes());
}

#[test]
fn the_right_peers_find_each_other() {
    assert_eq!(check_hello(ME, &hello(PeerId(1), ME)), Ok(PeerId(1)));
    assert_eq!(check_reply(ME, &welcome(ME)), Ok(()));
}

#[test]
fn a_wrong_peer_is_named_on_both_sides() {
    let (error, reply) = check_hello(ME, &hello(PeerId(1), PeerId(3))).unwrap_err();
    let expected = HelloError::WrongPeer { wanted: PeerId(3), found: ME };
    assert_eq!(error, expected);
    assert_eq!(check_reply(PeerId(3), &reply.unwrap()), Err(expected));
    assert_eq!(error.to_string(), "peer 3 was wanted there, but it is peer 2: check the addresses");
    // One that welcomes everybody is not believed either.
    assert!(check_reply(PeerId(3), &welcome(ME)).is_err());
}

#[test]
fn another_version_is_named_on_both_sides() {
    let mut other = hello(PeerId(1), ME);
    other[4] = 9;
    let (error, reply) = check_hello(ME, &other).unwrap_err();
    assert_eq!(error, HelloError::Version(9));
    assert_eq!(error.to_string(), "it speaks version 9 of the fabric's protocol, this process speaks 1");
    let reply = reply.unwrap();
    assert_eq!((reply[4], reply[6]), (1, 2), "own version and the verdict");
    assert!(check_reply(ME, &reply).is_err());
}

#[test]
fn strangers_and_damage_get_no_reply() {
    let http: [u8; HELLO] = *b"GET / HTTP/1.1\r\nHost: x\r";
    let (error, reply) = check_hello(ME, &http).unwrap_err();
    assert_eq!((error, reply), (HelloError::Stranger(*b"GET "), None));
    for byte in 6..HELLO {
        let mut damaged = hello(PeerId(1), ME);
        damaged[byte] ^= 0x40;
        assert_eq!(check_hello(ME, &damaged), Err((HelloError::Damaged, None)), "byte {byte}");
    }
}
