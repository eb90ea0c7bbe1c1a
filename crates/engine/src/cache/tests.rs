//! The budget is kept, and what is filed is found again.

use super::*;
use leeward_format::node::{Address, LeafBuilder};
use leeward_format::{RegionId, SegmentId};

fn leaf() -> Arc<Leaf> {
    let mut builder = LeafBuilder::default();
    builder.push(b"key", Lsn(1), Entry::InPlace(b"value"));
    let mut bytes = Vec::new();
    let address = Address { region: RegionId(1), segment: SegmentId(1), offset: 0 };
    builder.finish(address, &mut bytes);
    Arc::new(Node::parse(bytes.into(), address).expect("it was just built"))
}

#[test]
fn a_leaf_is_kept_when_it_is_missed_again() {
    let cache = Cache::new(1 << 20);
    let leaf = leaf();
    assert!(!cache.offer_leaf(1, 0, &leaf));
    assert!(cache.leaf(1, 0).is_none());
    assert!(cache.offer_leaf(1, 0, &leaf));
    assert!(cache.leaf(1, 0).is_some());
    assert!(cache.leaf(1, 8192).is_none() && cache.leaf(2, 0).is_none());
    cache.forget(1, [0].into_iter());
    assert!(cache.leaf(1, 0).is_none());
}

#[test]
fn entries_and_values_are_found_again() {
    let cache = Cache::new(1 << 20);
    let pointer = Pointer(5);
    for (hash, entry) in
        [(1, Entry::InPlace(b"value")), (2, Entry::InLog { pointer, value_bytes: 9 }), (3, Entry::Tombstone)]
    {
        cache.insert_entry(4, hash, CachedEntry::new(b"key", Lsn(8), entry));
        let found = cache.entry(4, hash).expect("it was inserted");
        assert_eq!((found.key(), found.lsn(), found.entry()), (&b"key"[..], Lsn(8), entry));
    }
    let (a, b) = (cache.new_owner(), cache.new_owner());
    cache.insert_value(a, Lsn(8), Bytes::from_static(b"value"));
    assert_eq!(cache.value(a, Lsn(8)).as_deref(), Some(&b"value"[..]));
    assert!(cache.value(b, Lsn(8)).is_none());
}

#[test]
fn the_budget_is_kept() {
    let cache = Cache::new(1 << 20);
    let leaf = leaf();
    let mut reservations = Vec::new();
    for i in 0..4000u32 {
        cache.offer_leaf(1, i * 8192, &leaf);
        cache.offer_leaf(1, i * 8192, &leaf);
        cache.insert_value(0, Lsn(u64::from(i)), vec![0; 500].into());
        reservations.extend(cache.reserve(10_000));
        // Resident bytes may be ahead of what the rest gave up by a 64th.
        assert!(cache.bytes() <= (1 << 20) + (1 << 14), "{cache:?}");
    }
    assert_eq!(reservations.len(), (1 << 19) / 10_000, "half of the budget may be resident");
    drop(reservations);
    assert!(cache.reserve(10_000).is_some());
}

#[test]
fn a_cache_without_budget_keeps_nothing() {
    let cache = Cache::new(0);
    cache.insert_value(0, Lsn(1), Bytes::from_static(b"value"));
    assert!(cache.value(0, Lsn(1)).is_none() && cache.reserve(1).is_none());
}
