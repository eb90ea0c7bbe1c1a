//! Tests of reads against the model.

use self::model::{REGION, SEGMENT_BYTES, Store, answer, any_codec, any_merging, any_ops, apply, key, value};
use super::{Approximation, Lookup, Snapshot, Version};
use crate::error::{Error, Result};
use crate::memtable::MemTable;
use crate::reads::{Reach, Reads};
use crate::scan::ScanBounds;
use crate::tree::Level;
use leeward_format::cluster::Addressing;
use leeward_format::manifest::L1;
use leeward_format::{Lsn, SegmentName, UnixMs};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) mod model;

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn gets_are_those_of_the_model(
        ops in any_ops(),
        memory_budget in prop_oneof![Just(0u64), Just(64 << 10), Just(4 << 20)],
        (upper, last) in (any_codec(), any_codec()),
        merging in any_merging(),
    ) {
        let mut store = Store::new(memory_budget, 8 << 10);
        store.merge_as(merging);
        store.compress(upper, last);
        let free_at_start = store.volume.usage();
        let mut snapshots = Vec::new();
        for (i, op) in ops.iter().enumerate() {
            apply(&mut store, op);
            if i % 40 == 0 {
                snapshots.push(store.snapshot());
            }
            // Pairs are read, and so cached, while the store changes.
            for snapshot in [&store.snapshot(), &snapshots[i % snapshots.len()]] {
                for n in (i as u8..=255).step_by(61) {
                    let expected = store.expected(&key(n), snapshot);
                    prop_assert_eq!(answer(snapshot.get(&key(n), Reach::Device).unwrap()), expected);
                }
            }
        }
        snapshots.push(store.snapshot());
        for snapshot in &snapshots {
            let keys: Vec<Vec<u8>> = (0..=255u8).rev().map(key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for (key, found) in keys.iter().zip(snapshot.get_many(&keys).unwrap()) {
                let expected = store.expected(key, snapshot);
                prop_assert_eq!(answer(found), expected);
            }
        }
        for snapshot in &snapshots {
            for n in 0..=255u8 {
                let expected = store.expected(&key(n), snapshot);
                let before = store.volume.counters().bytes_read;
                let log_reads = store.log.device_reads.load(Ordering::Relaxed);
                let in_memory = snapshot.get(&key(n), Reach::Memory).unwrap();
                prop_assert_eq!(store.volume.counters().bytes_read, before, "memory only");
                prop_assert_eq!(store.log.device_reads.load(Ordering::Relaxed), log_reads, "memory only");
                if in_memory != Lookup::NotInMemory {
                    prop_assert_eq!(answer(in_memory), expected.clone());
                }
                prop_assert_eq!(answer(snapshot.get(&key(n), Reach::Device).unwrap()), expected);
            }
        }
        drop(snapshots);
        let held = store.live.values().map(|(_, segment)| segment.bytes());
        let live = (held.sum::<usize>() + store.runs.values().map(|run| run.segment.bytes()).sum::<usize>()) as u64;
        prop_assert_eq!(store.volume.usage().0, free_at_start.0 + live, "nothing but live segments is in use");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    /// What a compaction has dropped as expired does not come back, from memory neither.
    #[test]
    fn a_get_and_a_scan_agree_under_any_clock(ops in any_ops(), (budget, merging) in (
        prop_oneof![Just(256u64 << 10), Just(4 << 20)],
        any_merging(),
    )) {
        let mut store = Store::new(budget, 8 << 10);
        store.merge_as(merging);
        for (i, op) in ops.iter().enumerate() {
            apply(&mut store, op);
            if i % 8 != 0 && i + 1 != ops.len() {
                continue;
            }
            for back in [0, 1, 7, 40, u64::MAX] {
                let now = UnixMs(store.now.saturating_sub(back));
                let snapshot = Snapshot::new(Arc::clone(&store.version), Lsn(store.lsn), now);
                let mut cursor = snapshot.cursor(ScanBounds::default());
                let mut scanned = std::collections::BTreeMap::new();
                while let Some(entry) = cursor.next().unwrap() {
                    scanned.insert(entry.key.to_vec(), (entry.lsn.0, entry.value.to_vec()));
                }
                for n in 0..=255u8 {
                    let got = answer(snapshot.get(&key(n), Reach::Device).unwrap());
                    prop_assert_eq!(got.as_ref(), scanned.get(&key(n)), "key {}, {} ms back", n, back);
                }
            }
        }
    }
}

#[test]
fn what_was_read_once_is_in_memory() {
    let mut store = Store::new(4 << 20, 8 << 10);
    for n in 0..=255u8 {
        store.write(&key(n), Some(&value(u64::from(n), usize::from(n))));
    }
    store.freeze();
    store.settle();
    store.reopen();
    let snapshot = store.snapshot();
    assert_eq!(snapshot.get(&key(9), Reach::Memory).unwrap(), Lookup::NotInMemory);
    for n in 0..=255u8 {
        let from_device = snapshot.get(&key(n), Reach::Device).unwrap();
        assert!(matches!(from_device, Lookup::Found { .. }));
        assert_eq!(snapshot.get(&key(n), Reach::Memory).unwrap(), from_device);
    }
}

#[test]
fn damage_on_the_device_is_an_error_and_nothing_else() {
    let mut store = Store::new(0, 8 << 10);
    for n in 0..=255u8 {
        store.write(&key(n), Some(&value(u64::from(n), 100)));
    }
    store.freeze();
    store.settle();
    let segments: Vec<SegmentName> = store.live.keys().copied().collect();
    let mut errors = 0;
    for no in segments {
        for offset in (100..SEGMENT_BYTES as u32).step_by(4099) {
            store.disk.flip_bit("volume", store.volume.file_offset(no.no(), offset), 3);
            let levels: Result<Vec<_>> = store
                .version
                .levels()
                .iter()
                .map(|level| Level::open(store.version.reads(), level.state(), &|no| store.live.get(&no).cloned()))
                .collect();
            let Ok(levels) = levels else {
                errors += 1;
                store.disk.flip_bit("volume", store.volume.file_offset(no.no(), offset), 3);
                continue;
            };
            let reads =
                Reads::new(Arc::clone(&store.volume), REGION, Addressing::Physical, Arc::clone(&store.log) as _);
            let levels = levels.into_iter().map(Arc::new).collect();
            let version = Arc::new(Version::new(reads, Arc::new(MemTable::new()), Vec::new(), levels));
            for n in 0..=255u8 {
                match version.get(&key(n), Lsn(u64::MAX), Reach::Device, &UnixMs::default) {
                    Ok(found) => {
                        assert_eq!(answer(found), store.expected(&key(n), &store.snapshot()));
                    }
                    Err(Error::Damaged { .. }) => errors += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            store.disk.flip_bit("volume", store.volume.file_offset(no.no(), offset), 3);
        }
    }
    assert!(errors > 20, "{errors}");
}

/// Without overwrites: ranges of every size, in L0s and in several levels, values in place and in logs.
#[test]
fn an_approximation_is_near_and_reads_few_leaves() {
    let mut store = Store::new(0, 32 << 10);
    let key = |n: u32| (n * 3).to_be_bytes();
    for n in 0..20_000u32 {
        let n = n.wrapping_mul(7919) % 20_000;
        store.write(&key(n), Some(&vec![1; [20, 60, 250][(n % 3) as usize]]));
        if n.is_multiple_of(1500) {
            store.freeze();
            store.settle();
        }
    }
    assert!(store.version.levels().len() >= L1 + 3 && !store.version.active().is_empty());
    let (bytes_read, levels) = (|| store.volume.counters().bytes_read, store.version.levels().len() as u64);
    let mut measured = 0;
    for (from, to) in
        [(0, 20_000), (0, 1), (5, 5), (17, 18), (100, 600), (3_000, 11_000), (19_000, 20_000), (9_999, 10_900)]
    {
        let before = bytes_read();
        let found = store.version.approximate(&key(from), Some(&key(to))).expect("a sound disk");
        measured += (bytes_read() - before) / (levels * 2);
        let pairs = u64::from(to - from);
        let most_off = 3 + pairs * 15 / 100;
        assert!(found.pairs.abs_diff(pairs) <= most_off, "{from}..{to}: {found:?}");
        assert!(found.bytes.abs_diff(found.pairs * 114) <= found.pairs * 114 / 4 + 400, "{from}..{to}: {found:?}");
    }
    assert!(measured / 8 <= SEGMENT_BYTES as u64, "index nodes and a leaf: {measured}");
    let all = store.version.approximate(&[], None).expect("a sound disk");
    assert!(all.pairs.abs_diff(20_000) <= 1_000, "{all:?}");
    assert_eq!(store.version.approximate(&key(9), Some(&key(4))).expect("a sound disk"), Approximation::default());
    assert_eq!(store.version.approximate(&key(20_000), None).expect("a sound disk"), Approximation::default());
}
