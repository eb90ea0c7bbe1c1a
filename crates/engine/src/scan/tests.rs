//! Scans against the model: both ways, every kind of bound, while the store goes on.

use super::*;
use crate::version::tests::{Store, any_ops, apply, key};
use proptest::prelude::*;
use std::sync::atomic::Ordering;

fn all(mut cursor: Cursor) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(ScanEntry { key, lsn, value }) = cursor.next().expect("a scan on a sound disk") {
        found.push((key.to_vec(), lsn.0, value.to_vec()));
    }
    assert!(cursor.next().expect("the end is the end").is_none());
    found
}

fn any_bounds() -> impl Strategy<Value = ScanBounds> {
    let bound = any::<u8>().prop_map(|n| Bytes::from(key(n)));
    (prop_oneof![Just(Bytes::new()), bound.clone()], proptest::option::of(bound), any::<bool>(), any::<bool>())
        .prop_map(|(start, end, reverse, keys_only)| ScanBounds { start, end, reverse, keys_only })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn scans_are_those_of_the_model(
        ops in any_ops(),
        bounds in proptest::collection::vec(any_bounds(), 8),
        cache_bytes in prop_oneof![Just(0u64), Just(4 << 20)],
    ) {
        let mut store = Store::new(cache_bytes, 8 << 10);
        let (before, after) = ops.split_at(ops.len() / 2);
        before.iter().for_each(|op| apply(&mut store, op));
        let early = store.snapshot();
        // A cursor that is half way when the store goes on.
        let mut open = early.cursor(ScanBounds::default());
        let first = open.next().unwrap();
        after.iter().for_each(|op| apply(&mut store, op));
        let mut rest: Vec<_> = first.into_iter().collect();
        while let Some(entry) = open.next().unwrap() {
            rest.push(entry);
        }
        prop_assert_eq!(rest.len(), store.model.live(early.lsn()).count());
        for snapshot in [early, store.snapshot()] {
            for bounds in &bounds {
                let wanted = |key: &[u8]| in_bounds(bounds, key);
                let value = |value: Vec<u8>| if bounds.keys_only { Vec::new() } else { value };
                let live = store.model.live(snapshot.lsn()).filter(|(key, ..)| wanted(key));
                let mut expected: Vec<_> = live.map(|(key, lsn, bytes)| (key, lsn, value(bytes))).collect();
                if bounds.reverse {
                    expected.reverse();
                }
                let log_reads = store.log.device_reads.load(Ordering::Relaxed);
                prop_assert_eq!(all(snapshot.cursor(bounds.clone())), expected);
                if bounds.keys_only {
                    prop_assert_eq!(store.log.device_reads.load(Ordering::Relaxed), log_reads, "values are not fetched");
                }
            }
        }
    }
}

#[test]
fn an_error_ends_a_scan() {
    let mut store = Store::new(0, 8 << 10);
    for n in 0..=255u8 {
        store.write(&key(n), Some(&[n; 100]));
    }
    store.freeze();
    store.settle();
    let last = *store.live.keys().next_back().expect("segments are live");
    for offset in (0..crate::version::tests::SEGMENT_BYTES as u32).step_by(4096) {
        store.disk.flip_bit("volume", store.volume.file_offset(last, offset + 9), 0);
    }
    for reverse in [false, true] {
        let mut cursor = store.snapshot().cursor(ScanBounds { reverse, ..ScanBounds::default() });
        let error = loop {
            match cursor.next() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if error.is_some() {
            assert!(cursor.next().expect("it is over").is_none());
        }
    }
}
