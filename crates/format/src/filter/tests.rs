//! Filters: no false negatives, few false positives, hostile bytes refused.

use super::*;
use crate::{RegionId, SegmentId};
use proptest::collection::vec;
use proptest::prelude::*;

const HERE: Address = Address { region: RegionId(1), segment: SegmentId(2), offset: 8192 };

fn build(keys: &[Vec<u8>]) -> Vec<u8> {
    let hashes: Vec<u64> = keys.iter().map(|key| hash(key)).collect();
    let mut bytes = Vec::new();
    write_filter(&hashes, HERE, &mut bytes);
    assert_eq!(bytes.len(), filter_bytes(keys.len()));
    bytes
}

proptest! {
    #[test]
    fn every_key_passes(keys in vec(vec(any::<u8>(), 1..30), 0..500)) {
        let bytes = build(&keys);
        let filter = Filter::parse(&bytes[..], HERE).unwrap();
        for key in &keys {
            prop_assert!(filter.may_contain(hash(key)));
        }
    }

    #[test]
    fn damage_is_found(keys in vec(vec(any::<u8>(), 1..30), 0..100), at in any::<prop::sample::Index>(), bit in 0..8) {
        let mut bytes = build(&keys);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(Filter::parse(&bytes[..], HERE).is_err());
        let crc = HERE.crc(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        if let Ok(filter) = Filter::parse(&bytes[..], HERE) {
            filter.may_contain(hash(b"x"));
        }
    }

    #[test]
    fn random_bytes_are_an_error(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(Filter::parse(&bytes[..], HERE).is_err());
    }
}

#[test]
fn few_absent_keys_pass() {
    let keys: Vec<Vec<u8>> = (0..50_000u32).map(|i| format!("user{i:010}").into_bytes()).collect();
    let bytes = build(&keys);
    let filter = Filter::parse(&bytes[..], HERE).unwrap();
    let passed = (0..50_000u32).filter(|i| filter.may_contain(hash(format!("none{i:010}").as_bytes()))).count();
    assert!(passed < 750, "{passed} of 50000 absent keys passed");
}

#[test]
fn an_empty_filter_lets_nothing_pass() {
    let bytes = build(&[]);
    assert!(!Filter::parse(&bytes[..], HERE).unwrap().may_contain(hash(b"")));
}
