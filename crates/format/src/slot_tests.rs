//! Slots are those of Redis Cluster: vectors of its specification, and of `CLUSTER KEYSLOT` of Redis 7.

use super::*;

#[test]
fn the_checksum_is_that_of_the_specification() {
    assert_eq!(CRC16.checksum(b"123456789"), 0x31c3);
    assert_eq!(slot_of(b"123456789"), 0x31c3);
    assert_eq!(CRC16.checksum(b""), 0);
}

#[test]
fn keys_have_the_slots_that_redis_gives_them() {
    let known: [(&[u8], u16); 5] =
        [(b"foo", 12_182), (b"bar", 5_061), (b"hello", 866), (b"somekey", 11_058), (b"foo{hash_tag}", 2_515)];
    for (key, slot) in known {
        assert_eq!(slot_of(key), slot, "{}", key.escape_ascii());
    }
}

/// The examples of Redis Cluster's specification.
#[test]
fn a_hash_tag_is_hashed_in_place_of_the_key() {
    let hashed: [(&[u8], &[u8]); 8] = [
        (b"{user1000}.following", b"user1000"),
        (b"{user1000}.followers", b"user1000"),
        (b"foo{}{bar}", b"foo{}{bar}"),
        (b"foo{{bar}}zap", b"{bar"),
        (b"foo{bar}{zap}", b"bar"),
        (b"foo}bar{zap", b"foo}bar{zap"),
        (b"foo{", b"foo{"),
        (b"{", b"{"),
    ];
    for (key, tag) in hashed {
        assert_eq!(tag_of(key), tag, "{}", key.escape_ascii());
        assert_eq!(slot_of(key), slot_of(tag));
    }
}
