//! Scans against the model: in both directions, with every kind of bound, while the store changes.

use super::*;
use crate::compaction::Picker;
use crate::version::tests::model::{Store, any_codec, any_merging, any_ops, apply, key};
use leeward_format::SegmentId;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::L1;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn all(mut cursor: Cursor) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(ScanEntry { key, lsn, value, .. }) = cursor.next().expect("a scan on a sound disk") {
        found.push((key.to_vec(), lsn.0, value.to_vec()));
    }
    assert!(cursor.next().expect("the end is the end").is_none());
    found
}

fn any_bounds() -> impl Strategy<Value = ScanBounds> {
    let bound = any::<u8>().prop_map(|n| Bytes::from(key(n)));
    let limit = proptest::option::of(0u64..100);
    (prop_oneof![Just(Bytes::new()), bound.clone()], proptest::option::of(bound), any::<bool>(), any::<bool>(), limit)
        .prop_map(|(start, end, reverse, keys_only, limit)| ScanBounds { start, end, reverse, keys_only, limit })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn scans_are_those_of_the_model(
        ops in any_ops(),
        bounds in proptest::collection::vec(any_bounds(), 8),
        seeks in proptest::collection::vec(any::<u8>(), 3),
        memory_budget in prop_oneof![Just(0u64), Just(4 << 20)],
        (upper, last) in (any_codec(), any_codec()),
        merging in any_merging(),
    ) {
        let mut store = Store::new(memory_budget, 8 << 10);
        store.merge_as(merging);
        store.compress(upper, last);
        let (before, after) = ops.split_at(ops.len() / 2);
        before.iter().for_each(|op| apply(&mut store, op));
        let early = store.snapshot();
        // A cursor in the middle of a scan when the store changes.
        let mut open = early.cursor(ScanBounds::default());
        let first = open.next().unwrap();
        after.iter().for_each(|op| apply(&mut store, op));
        let mut rest: Vec<_> = first.into_iter().collect();
        while let Some(entry) = open.next().unwrap() {
            rest.push(entry);
        }
        prop_assert_eq!(rest.len(), store.model.live(&early).count());
        for snapshot in [early, store.snapshot()] {
            for bounds in &bounds {
                let wanted = |key: &[u8]| in_bounds(bounds, key);
                let value = |value: Vec<u8>| if bounds.keys_only { Vec::new() } else { value };
                let live = store.model.live(&snapshot).filter(|(key, ..)| wanted(key));
                let mut expected: Vec<_> = live.map(|(key, lsn, bytes)| (key, lsn, value(bytes))).collect();
                if bounds.reverse {
                    expected.reverse();
                }
                let most = bounds.limit.map_or(usize::MAX, |limit| limit as usize);
                for n in seeks.iter().copied() {
                    let mut cursor = snapshot.cursor(bounds.clone());
                    cursor.next().unwrap();
                    cursor.seek(&key(n)).unwrap();
                    let is_passed = |found: &[u8]| if bounds.reverse { found > &key(n)[..] } else { found < &key(n)[..] };
                    let rest = expected.iter().filter(|(found, ..)| !is_passed(found)).take(most).cloned();
                    prop_assert_eq!(all(cursor), rest.collect::<Vec<_>>());
                }
                expected.truncate(most);
                let log_reads = store.log.device_reads.load(Ordering::Relaxed);
                prop_assert_eq!(all(snapshot.cursor(bounds.clone())), expected);
                if bounds.keys_only {
                    prop_assert_eq!(store.log.device_reads.load(Ordering::Relaxed), log_reads, "values are not fetched");
                }
            }
        }
    }
}

/// Some pairs of the batch that fails wait for values in the log.
#[test]
fn an_error_ends_a_scan() {
    let mut store = Store::new(0, 1 << 20);
    let value = |n: u32| vec![n as u8; if n.is_multiple_of(2) { 250 } else { 10 }];
    for n in 0..4000u32 {
        store.write(&n.to_be_bytes(), Some(&value(n)));
    }
    store.freeze();
    store.settle();
    let segments = store.version.levels()[L1].segments();
    let damaged = &segments[segments.len() / 2];
    for offset in (0..damaged.tree().pointer.offset()).step_by(4096) {
        store.disk.flip_bit("volume", store.volume.file_offset(damaged.segment().no(), offset + 9), 0);
    }
    for (reverse, limit) in [(false, None), (true, None), (false, Some(3000)), (true, Some(3000))] {
        let mut cursor = store.snapshot().cursor(ScanBounds { reverse, limit, ..ScanBounds::default() });
        let mut found = 0;
        let error = loop {
            match cursor.next() {
                Ok(Some(ScanEntry { key, value: read, .. })) => {
                    let n = u32::from_be_bytes(key[..].try_into().expect("four bytes"));
                    assert!(read == value(n), "key {n} in reverse: {reverse}");
                    found += 1;
                }
                Ok(None) => panic!("a damaged leaf was passed"),
                Err(error) => break error,
            }
        };
        assert!(found > 100 && matches!(error, crate::Error::Damaged { .. }), "{error} after {found} pairs");
        assert_eq!(cursor.next().expect("it is over"), None);
    }
}

/// A loop that seeks, takes a pair and seeks again, as a join or a skip over prefixes does.
#[test]
fn a_seek_reads_no_more_after_a_long_scan_than_at_first() {
    let mut store = Store::new(0, 64 << 10);
    for n in 0..6000u32 {
        let n = n.wrapping_mul(4799) % 6000;
        // Half of the values are in the log, and of these half are not in memory.
        store.write(&n.to_be_bytes(), Some(&[n as u8; 250][..if n.is_multiple_of(2) { 250 } else { 90 }]));
        if n.is_multiple_of(1000) {
            store.freeze();
            store.settle();
        }
    }
    let reads = || (store.volume.counters().bytes_read, store.log.device_reads.load(Ordering::Relaxed));
    let since = |before: (u64, u64)| (reads().0 - before.0, reads().1 - before.1);
    for reverse in [false, true] {
        let bounds = ScanBounds { reverse, ..ScanBounds::default() };
        let mut cursor = store.snapshot().cursor(bounds.clone());
        let mut most = (0, 0);
        for n in (0..6000u32).step_by(97) {
            for _ in 0..300 {
                cursor.next().expect("a sound disk");
            }
            let before = reads();
            cursor.seek(&n.to_be_bytes()).expect("a sound disk");
            let found = cursor.next().expect("a sound disk");
            let again = since(before);
            let before = reads();
            let mut first = store.snapshot().cursor(bounds.clone());
            first.seek(&n.to_be_bytes()).expect("a sound disk");
            assert_eq!(first.next().expect("a sound disk"), found);
            let once = since(before);
            assert!(again.0 <= once.0 && again.1 <= once.1, "{again:?} bytes and values, {once:?} by a new cursor");
            most = (most.0.max(again.0), most.1.max(again.1));
        }
        assert!(most.0 > 0 && most.1 == 1, "{most:?}");
    }
}

/// In place in the L0 and in a level, and in the log.
#[test]
fn a_batch_ends_after_a_number_of_bytes_wherever_values_are() {
    const VALUE_BYTES: usize = 50_000;
    let mut store = Store::with_segments(1 << 20, 0, 64 << 20);
    for n in 0..90u32 {
        match n % 3 {
            0 => store.write_to_log(&n.to_be_bytes(), &[n as u8; VALUE_BYTES]),
            _ => store.write(&n.to_be_bytes(), Some(&[n as u8; VALUE_BYTES])),
        }
        if n == 45 {
            store.freeze();
            store.settle();
        }
    }
    for reverse in [false, true] {
        let mut cursor = store.snapshot().cursor(ScanBounds { reverse, limit: Some(90), ..ScanBounds::default() });
        let mut pairs = 0;
        while let Some(entry) = cursor.next().expect("a sound disk") {
            assert_eq!(entry.value.len(), VALUE_BYTES);
            let ahead = cursor.ready.iter().map(|entry| entry.value.len()).sum::<usize>();
            assert!(ahead <= MOST_AHEAD_BYTES, "{ahead} bytes are ahead");
            pairs += 1;
        }
        assert_eq!(pairs, 90);
    }
}

/// A queue with a consumed head: 100,000 deleted keys before the first live one. They are in levels with nothing live
/// below, so they cost a step per leaf or segment, not one per key.
#[test]
fn a_run_of_tombstones_is_passed_in_few_steps() {
    let mut store = Store::with_segments(1 << 20, 64 << 20, 4 << 10);
    let deleted = |n: u32| [b"b".as_slice(), &n.to_be_bytes()].concat();
    for n in 0..1000u32 {
        store.write(&[b"a".as_slice(), &n.to_be_bytes()].concat(), Some(b"below"));
    }
    store.write(b"c", Some(b"above"));
    store.freeze();
    store.settle();
    assert!(store.version.levels().len() > L1 + 1 && store.version.levels()[L1].is_empty());
    // From here on levels are large, so that the tombstones stay above the others.
    let options = TableOptions { l0_bytes: 1 << 30, growth_factor: 2, ..TableOptions::default() };
    store.picker = Picker::new(&options, None, {
        let next = AtomicU64::new(1 << 20);
        Arc::new(move || Ok(SegmentId(next.fetch_add(1, Ordering::Relaxed))))
    });
    for n in 0..100_000 {
        store.write(&deleted(n), None);
        if n == 77_777 {
            store.write(&[&deleted(n)[..], b"!"].concat(), Some(b"between"));
        }
    }
    store.freeze();
    store.settle();
    assert_eq!(store.version.levels()[L1].state().entries, 100_001);
    for reverse in [false, true] {
        let mut cursor = store.snapshot().cursor(ScanBounds { reverse, ..ScanBounds::default() });
        let mut found = Vec::new();
        while let Some(entry) = cursor.next().expect("a sound disk") {
            found.push(entry.value);
        }
        if reverse {
            found.reverse();
        }
        assert_eq!(found[998..], ["below", "below", "between", "above"]);
        // The leaf with the live key has hundreds of tombstones; the others take a step each.
        assert!(cursor.steps() < 3_000, "{}", cursor.steps());
    }
}

/// 100,000 keys in several levels, deleted with one range: a scan seeks over them, whether the range is in the L0 or
/// below.
#[test]
fn a_deleted_range_is_passed_in_few_steps() {
    let mut store = Store::with_segments(1 << 20, 64 << 20, 4 << 10);
    let name = |n: u32| [b"b".as_slice(), &n.to_be_bytes()].concat();
    for round in 0..4u32 {
        for n in (round..100_000).step_by(4) {
            store.write(&name(n), Some(b"old"));
        }
        store.freeze();
        store.settle();
    }
    store.write(b"a", Some(b"below"));
    store.delete_range(&name(10), &name(99_990));
    store.write(&name(55_555), Some(b"newer"));
    for settled in [false, true] {
        if settled {
            let options = TableOptions { l0_bytes: 1 << 30, growth_factor: 2, ..TableOptions::default() };
            store.picker = Picker::new(&options, None, Arc::new(|| Ok(SegmentId(1 << 20))));
            store.freeze();
            let compaction = store.pick().expect("an L0");
            store.finish(compaction);
        }
        for reverse in [false, true] {
            let mut cursor = store.snapshot().cursor(ScanBounds { reverse, ..ScanBounds::default() });
            let mut found = 0;
            while cursor.next().expect("a sound disk").is_some() {
                found += 1;
            }
            assert_eq!(found, 22);
            assert!(cursor.steps() < 60, "{} steps, settled: {settled}", cursor.steps());
            let within =
                ScanBounds { start: name(20).into(), end: Some(name(40_000).into()), reverse, ..ScanBounds::default() };
            let mut cursor = store.snapshot().cursor(within);
            assert_eq!(cursor.next().expect("a sound disk"), None);
            assert!(cursor.steps() < 10, "{} steps, settled: {settled}", cursor.steps());
        }
    }
}
