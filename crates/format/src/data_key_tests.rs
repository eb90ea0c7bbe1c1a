//! Tests of encrypted keys and entries.

use super::*;

fn key() -> WrappedKey {
    let (nonce, sealed) = ([1; SEAL_NONCE_BYTES], vec![2; DATA_KEY_BYTES + 16]);
    WrappedKey { generation: 5, wrapped_with: "2026-11".into(), nonce, sealed }
}

#[test]
fn a_key_is_what_was_encoded_and_the_longest_has_room() {
    assert_eq!(WrappedKey::decode(&key().encode()), Ok(key()));
    let longest = WrappedKey { generation: u64::MAX, wrapped_with: "n".repeat(64), ..key() };
    assert_eq!(WrappedKey::decode(&longest.encode()), Ok(longest));
}

#[test]
fn damage_is_noticed() {
    let bytes = key().encode();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(WrappedKey::decode(&damaged).is_err(), "byte {at}");
        assert!(WrappedKey::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
    assert!(WrappedKey::decode(&[0; WRAPPED_KEY_BYTES]).is_err());
}

#[test]
fn sealing_adds_no_more_than_it_may() {
    let plain = vec![0; 100_000];
    let sealed = SealedEntry { nonce: [9; SEAL_NONCE_BYTES], sealed: [plain.clone(), vec![0; 16]].concat() };
    let mut frame = Vec::new();
    write_frame(FrameKind::SealedManifestEdit, &sealed, &mut frame);
    assert!(frame.len() <= plain.len() + SEALING_BYTES);
}
