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
    let (here, there) = (REACH_BY_LINK, reach_by("tcp"));
    let (error, reply) = check_hello(ME, here, &hello(PeerId(1), ME, there, Connection::Link)).unwrap_err();
    assert_eq!(error, HelloError::OtherReach { ours: here, theirs: there });
    let other = Err(HelloError::OtherReach { ours: there, theirs: here });
    assert_eq!(check_reply(ME, there, &reply.unwrap()), other);
    assert_eq!(
        check_hello(ME, there, &hello(PeerId(1), ME, there, Connection::Link)),
        Ok((PeerId(1), Connection::Link))
    );
    assert_eq!(check_reply(ME, there, &welcome(ME, there)), Ok(()));
    assert_ne!(reach_by("shm"), there);
    // A peer that welcomes in spite of the difference is not accepted either.
    assert_eq!(check_reply(ME, there, &welcome(ME, here)), other);
}

#[test]
fn two_versions_of_libfabric_share_no_memory_and_are_named_on_both_sides() {
    let (old, new) = (reach_by_shm(0x01_11_00), reach_by_shm(0x01_12_01));
    let (error, reply) = check_hello(ME, old, &hello(PeerId(1), ME, new, Connection::Link)).unwrap_err();
    let named = "its fabric is libfabric 1.18.1 with provider shm, this process's is libfabric 1.17.0 with provider shm: \
                 all nodes need the same";
    assert_eq!(error.to_string(), named);
    let error = check_reply(ME, new, &reply.unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("its fabric is libfabric 1.17.0 ") && error.contains("process's is libfabric 1.18.1 "),
        "{error}"
    );
    assert!(check_hello(ME, new, &hello(PeerId(1), ME, new, Connection::Link)).is_ok());
}

#[test]
fn every_way_to_reach_memory_has_a_number_and_words_of_its_own() {
    let mut ways: Vec<u32> = PROVIDERS.map(reach_by).to_vec();
    ways.extend([REACH_BY_LINK, reach_by_shm(0x01_11_00), reach_by_shm(0x01_12_00), 7]);
    assert!(PROVIDERS.iter().all(|provider| reach_by(provider) >> 24 << 24 != SHM));
    let mut words: Vec<String> = ways.iter().map(|way| describe(*way)).collect();
    assert_eq!(words[1], "libfabric with provider tcp;ofi_rxm (of 1.17)");
    assert_eq!(words.last().map(String::as_str), Some("another provider of libfabric (0x00000007)"));
    ways.sort_unstable();
    ways.dedup();
    words.sort();
    words.dedup();
    assert_eq!((ways.len(), words.len()), (9, 9));
    // The providers that earlier versions knew have their numbers.
    assert_eq!(reach_by("tcp"), crc32c::crc32c(b"libfabric tcp"));
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
