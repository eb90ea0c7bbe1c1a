//! Tests of what compactions keep, drop, move and reuse. [`crate::version`] and [`crate::scan`] test that reads stay
//! right.

use super::*;
use crate::scan::ScanBounds;
use crate::version::tests::model::{SEGMENT_BYTES, Store, key};
use leeward_format::Lsn;
use leeward_format::manifest::{L1, L1_RUNS, LevelState, MAX_LEVELS, PIECES, level_at};
use leeward_platform::disk::FaultPlan;

fn fill(store: &mut Store, keys: impl Iterator<Item = u32>, bytes: usize) {
    for n in keys {
        store.write(&n.to_be_bytes(), Some(&vec![n as u8; bytes]));
    }
    store.freeze();
}

#[test]
fn an_uncommitted_l0_is_not_compacted() {
    let mut store = Store::new(0, 1 << 20);
    fill(&mut store, 0..10, 10);
    assert!(store.pick_at(Lsn(9), &[]).is_none());
    let extent = LogExtent { log: leeward_format::LogKind::Large, id: SegmentId(5), bytes: 99 };
    let compaction = store.pick_at(Lsn(10), &[vec![extent]]).expect("all of it is committed");
    let done = store.finish(compaction);
    assert_eq!((done.edit.replay_from, &done.edit.logs), (Lsn(11), &vec![extent]));
    assert!(store.version.frozen().is_empty());
}

#[test]
fn frozen_l0s_go_together_as_far_as_they_are_committed() {
    let mut store = Store::new(0, 1 << 20);
    fill(&mut store, 0..10, 10);
    fill(&mut store, 5..15, 20);
    fill(&mut store, 0..20, 30);
    let extents = |id: u64, bytes| LogExtent { log: leeward_format::LogKind::Large, id: SegmentId(id), bytes };
    let logs = [vec![extents(1, 10), extents(2, 5)], vec![extents(2, 20)], vec![extents(2, 30), extents(3, 1)]];
    let compaction = store.pick_at(Lsn(39), &logs).expect("two of them are committed");
    let done = store.finish(compaction);
    assert_eq!((done.edit.replay_from, done.edit.logs), (Lsn(21), vec![extents(1, 10), extents(2, 20)]));
    assert_eq!((done.entries_read, done.entries_written), (20, 15));
    assert_eq!(store.version.frozen().len(), 1);
    // The newer version of keys 5 to 9 won.
    assert_eq!(store.version.levels()[L1].bytes(), 5 * 14 + 10 * 24);
    assert_eq!(store.settle().len(), 1);
    assert_eq!(store.version.levels()[L1].bytes(), 20 * 34);
}

#[test]
fn only_the_newest_version_survives_and_tombstones_end_at_the_bottom() {
    let mut store = Store::new(0, 1 << 20);
    for round in 1..=5u8 {
        for n in 0..50u32 {
            store.write(&n.to_be_bytes(), (round < 5 || n % 2 == 0).then_some(&[round; 30][..]));
        }
    }
    store.freeze();
    let done = store.settle().pop().expect("the L0 was compacted");
    assert_eq!((done.entries_read, done.entries_written), (250, 25));
    assert_eq!(store.version.levels()[L1].state().entries, 25);
    for n in (0..50u32).step_by(2) {
        store.write(&n.to_be_bytes(), None);
    }
    store.freeze();
    let done = store.settle().pop().expect("the L0 was compacted");
    assert_eq!(done.edit.levels[0].1, LevelState::default());
    assert!(done.added.is_empty() && store.live.is_empty(), "nothing is left of an empty level");
}

#[test]
fn a_tombstone_stays_while_a_deeper_level_may_hold_the_key() {
    let mut store = Store::new(0, 16 << 10);
    fill(&mut store, 0..1000, 60);
    store.settle();
    assert!(store.version.levels().len() >= L1 + 2, "the first keys have moved down");
    store.write(&0u32.to_be_bytes(), None);
    store.freeze();
    store.settle();
    let found = store.snapshot().get(&0u32.to_be_bytes(), crate::reads::Reach::Device).expect("a sound disk");
    assert_eq!(found, crate::version::Lookup::Deleted { lsn: Lsn(1001) });
}

/// An expired pair leaves nothing in the last level; above it, it still hides older versions.
#[test]
fn what_has_expired_is_dropped_like_what_was_deleted() {
    let mut store = Store::new(0, 16 << 10);
    let until = leeward_format::Expiry::from_ms(10);
    for n in 0..50u32 {
        store.write_until(&n.to_be_bytes(), Some(&[1; 90]), until);
    }
    store.freeze();
    store.settle();
    store.now = 10;
    store.write(&7u32.to_be_bytes(), None);
    store.freeze();
    let done = store.settle().pop().expect("the L0 was compacted");
    assert_eq!(done.edit.levels[0].1, LevelState::default(), "all of it had expired");
    assert!(store.live.is_empty() && store.runs.is_empty());

    fill(&mut store, 0..1000, 60);
    store.settle();
    assert!(store.version.levels().len() >= L1 + 2, "the first keys have moved down");
    store.write_until(&0u32.to_be_bytes(), Some(&[2; 90]), leeward_format::Expiry::from_ms(20));
    store.freeze();
    store.now = 20;
    let before = store.snapshot();
    store.settle();
    for snapshot in [before, store.snapshot()] {
        let found = snapshot.get(&0u32.to_be_bytes(), crate::reads::Reach::Device).expect("a sound disk");
        assert_eq!(found, crate::version::Lookup::Deleted { lsn: Lsn(1052) });
    }
    // The clock goes back: the older version does not reappear.
    store.now = 19;
    let found = store.snapshot().get(&0u32.to_be_bytes(), crate::reads::Reach::Device).expect("a sound disk");
    assert_eq!(found, crate::version::Lookup::Deleted { lsn: Lsn(1052) });
}

#[test]
fn segments_that_nothing_overlaps_move_as_they_are() {
    let mut store = Store::new(0, 16 << 10);
    let mut moved = 0;
    for round in 0..20u32 {
        fill(&mut store, round * 1000..round * 1000 + 400, 60);
        for done in store.settle() {
            assert!(done.edit.levels.len() <= 2);
            if done.l0s.is_empty() && done.entries_read == 0 {
                assert!(done.added.iter().all(|(_, kind, ..)| *kind == SegmentKind::Index));
                moved += 1;
            }
        }
    }
    assert!(moved > 10, "{moved}");
    assert!(store.version.levels().len() >= L1 + 3);
    let mut cursor = store.snapshot().cursor(ScanBounds::default());
    for n in (0..20u32).flat_map(|round| round * 1000..round * 1000 + 400) {
        assert_eq!(cursor.next().expect("a sound disk").expect("every key is there").key[..], n.to_be_bytes());
    }
    assert!(cursor.next().expect("a sound disk").is_none());
}

#[test]
fn input_is_bounded_and_untouched_segments_are_reused() {
    let mut store = Store::new(0, 64 << 10);
    fill(&mut store, 0..30_000, 60);
    store.settle();
    let largest = store.version.levels().iter().map(|level| level.segments().len()).max();
    assert!(largest > Some(40), "{largest:?}");
    fill(&mut store, 10_000..10_010, 60);
    for done in store.settle() {
        assert!(done.bytes_read < 20 * SEGMENT_BYTES as u64, "{} bytes read", done.bytes_read);
        assert!(done.edit.removed.len() < 20);
    }
}

/// Segments of several chunks, a chunk of several leaves, a leaf of several chunks.
#[test]
fn large_segments_are_read_chunk_by_chunk() {
    let mut store = Store::with_segments(2 << 20, 1 << 20, 2 << 20);
    for round in 1..=3u8 {
        for n in 0..20_000u32 {
            store.write(&n.wrapping_mul(2_654_435_761).to_be_bytes(), Some(&[round; 150]));
        }
        store.write(&[128, 0, 0, 0, 0], Some(&vec![round; 900_000]));
        store.freeze();
        store.settle();
    }
    assert!(store.version.levels().iter().map(|level| level.segments().len()).sum::<usize>() >= 3);
    for reverse in [false, true] {
        let mut cursor = store.snapshot().cursor(ScanBounds { reverse, ..ScanBounds::default() });
        let mut entries = 0;
        while let Some(entry) = cursor.next().expect("a sound disk") {
            assert!(entry.value.iter().all(|byte| *byte == 3) && [150, 900_000].contains(&entry.value.len()));
            entries += 1;
        }
        assert_eq!(entries, 20_001);
    }
}

#[test]
fn levels_keep_their_sizes_and_every_range_gets_its_turn() {
    let mut store = Store::new(0, 32 << 10);
    for round in 0..40u32 {
        fill(&mut store, (0..400).map(|n| (n * 7919 + round * 31) % 20_000), 60);
        store.settle();
        for (position, contents) in store.version.levels().iter().enumerate() {
            let level = level_at(position);
            assert!(contents.bytes() <= (32 << 10) << (level + 6), "L{level} of {} bytes", contents.bytes());
        }
    }
    let small = |leaf: &&Arc<crate::tree::LeafSegment>| leaf.end() < SEGMENT_BYTES / 2;
    let deepest = store.version.levels().last().expect("there are levels").segments();
    assert!(deepest.iter().filter(small).count() * 4 <= deepest.len() + 4, "levels fill up with small segments");
}

#[test]
fn the_level_in_the_last_position_grows_without_limit() {
    // L1 should have a few bytes, and the last level 256 KiB.
    let mut store = Store::new(0, 2);
    fill(&mut store, 0..10_000, 60);
    store.settle();
    let levels = store.version.levels();
    assert_eq!(levels.len(), MAX_LEVELS);
    assert!(levels[MAX_LEVELS - 1].bytes() > 256 << 10, "{} bytes", levels[MAX_LEVELS - 1].bytes());
    fill(&mut store, 5000..5010, 60);
    store.settle();
    let mut cursor = store.snapshot().cursor(ScanBounds::default());
    for n in 0..10_000u32 {
        assert_eq!(cursor.next().expect("a sound disk").expect("every key is there").key[..], n.to_be_bytes());
    }
}

/// Runs that are not empty, and what they say of older levels, the newest first.
fn overlaps(store: &Store) -> Vec<f64> {
    let levels = &store.version.levels()[PIECES..L1_RUNS];
    levels.iter().filter(|run| !run.is_empty()).map(|run| run.overlap()).collect()
}

#[test]
fn runs_are_merged_for_what_they_hide_and_not_for_new_keys() {
    let mut store = Store::new(64 << 20, 4 << 20);
    store.merge_as((4, CompactionMode::Partial));
    for round in 0..7u32 {
        fill(&mut store, (0..4000).map(|n| (n * 7 + round) * 4), 60);
        store.settle();
    }
    assert!(overlaps(&store).is_empty() && !store.version.levels()[L1_RUNS].is_empty(), "so many runs are merged");
    for part in 1..3 {
        fill(&mut store, (0..7000).map(|n| n * 16 + part), 60);
        store.settle();
    }
    let new = overlaps(&store);
    assert!(new.len() == 2 && new.iter().all(|overlap| *overlap < 0.1), "half as many new keys hide nothing: {new:?}");
    let before = store.version.levels()[L1_RUNS].state().entries;
    fill(&mut store, (0..3000).map(|n| n * 36), 60);
    store.settle();
    let mixed = overlaps(&store);
    assert!(mixed.len() == 3 && mixed[0] > 0.9, "a ninth of the keys was overwritten: {mixed:?}");
    fill(&mut store, (0..7000).map(|n| n * 16), 60);
    store.settle();
    let merged = store.version.levels()[L1_RUNS].state().entries;
    assert!(merged > before, "more than a quarter was overwritten, and takes new keys with it");
    store.reopen();
    let reopened = overlaps(&store);
    assert!(!reopened.is_empty() && reopened.iter().all(|overlap| *overlap == 1.0), "unknown: {reopened:?}");
}

#[test]
fn what_the_one_run_of_l1_hides_is_not_looked_up() {
    let mut store = Store::new(64 << 20, 4 << 20);
    for part in 0..2 {
        fill(&mut store, (0..4000).map(|n| n * 2 + part), 60);
        assert_eq!(store.settle().len(), 1);
    }
    assert_eq!(store.version.levels()[L1].overlap(), 1.0, "unknown");
}

/// Its leaf is cached in the newest run only, and nothing else has room in the cache.
#[test]
fn a_merge_of_runs_keeps_what_is_in_use_of_any_run() {
    let mut store = Store::new(4 << 20, 4 << 20);
    store.merge_as((4, CompactionMode::Partial));
    for round in 0..7u32 {
        fill(&mut store, (0..1000).map(|n| n * 8 + round), 60);
        let compaction = store.pick().expect("an L0 is frozen");
        store.finish(compaction);
    }
    let (cache, reads) = (store.volume.cache().clone(), Arc::clone(store.version.reads()));
    let place = |leaf: &crate::tree::LeafSegment, key: &[u8]| {
        let index = leaf.index_from_device(&reads).expect("a sound disk");
        index.leaves()[index.leaf_of(key)]
    };
    let hot = 86u32.to_be_bytes();
    let newest = store.version.levels().iter().find(|level| !level.is_empty()).expect("there are seven runs");
    let leaf = Arc::clone(&newest.segments()[newest.segment_of(&hot)]);
    let wanted = place(&leaf, &hot);
    let bytes = leaf.load_leaf(&reads, wanted).expect("a sound disk");
    for run in &store.version.levels()[PIECES..L1_RUNS] {
        for leaf in run.segments() {
            let index = leaf.index_from_device(&reads).expect("a sound disk");
            cache.forget(leaf.segment().serial(), index.leaves().iter().map(|leaf| leaf.offset));
        }
    }
    for n in 0..1000 {
        cache.insert_leaf(u64::MAX >> 2, n * 4096, &bytes);
    }
    cache.insert_leaf(leaf.segment().serial(), wanted.offset, &bytes);
    assert!((0..2).all(|_| leaf.cached_leaf(wanted).is_some()) && !cache.has_room_to_spare());
    let compaction = store.pick().expect("seven runs are merged");
    let done = store.finish(compaction);
    let below = &store.version.levels()[L1_RUNS];
    assert!(done.l0s.is_empty() && below.segments().len() > 2, "a part of all runs was merged");
    let merged = &below.segments()[below.segment_of(&hot)];
    assert!(merged.cached_leaf(place(merged, &hot)).is_some(), "it was in use before the merge");
    let last = below.segments().last().expect("there are some");
    let index = last.index_from_device(&reads).expect("a sound disk");
    assert!(index.leaves().iter().all(|leaf| last.cached_leaf(*leaf).is_none()), "these were not");
}

#[test]
fn a_few_large_pairs_that_are_overwritten_count_by_their_bytes() {
    let mut store = Store::new(64 << 20, 4 << 20);
    store.merge_as((4, CompactionMode::Partial));
    fill(&mut store, (0..500).map(|n| n * 10), 10);
    store.settle();
    for n in 0..5000u32 {
        let bytes = if n.is_multiple_of(10) { 600 } else { 10 };
        store.write(&n.to_be_bytes(), Some(&vec![n as u8; bytes]));
    }
    store.freeze();
    store.settle();
    let found = overlaps(&store);
    assert!(found.len() == 2 && (0.6..0.95).contains(&found[0]), "a tenth of the keys, 0.82 of the bytes: {found:?}");
}

#[test]
fn what_an_unfinished_compaction_wrote_is_freed() {
    let mut store = Store::new(1 << 20, 16 << 10);
    fill(&mut store, 0..3000, 60);
    let used = store.volume.usage().0;
    for steps in 0..4 {
        let mut compaction = store.pick().expect("an L0 is frozen");
        for _ in 0..steps {
            assert!(matches!(compaction.step().expect("a sound disk"), Step::Segment(_)));
        }
        drop(compaction);
        assert_eq!(store.volume.usage().0, used);
    }
}

#[test]
fn a_full_volume_fails_a_compaction_and_loses_nothing() {
    let mut store = Store::new(0, 16 << 10);
    for n in 0..=255u8 {
        store.write(&key(n), Some(&[n; 100]));
    }
    store.freeze();
    let used = store.volume.usage().0;
    store.disk.set_capacity(0);
    let mut compaction = store.pick().expect("an L0 is frozen");
    let error = loop {
        match compaction.step() {
            Ok(Step::Segment(_)) => {}
            Ok(Step::Finished(_)) => break None,
            Err(error) => break Some(error),
        }
    };
    if let Some(error) = error {
        assert!(matches!(error, crate::Error::NoSpace { .. }), "{error}");
    }
    drop(compaction);
    assert_eq!(store.volume.usage().0, used);
    store.disk.set_capacity(u64::MAX);
    store.settle();
    assert_eq!(store.version.levels().iter().map(|level| level.state().entries).sum::<u64>(), 256);
}

#[test]
fn a_failed_read_fails_the_compaction() {
    let mut store = Store::new(0, 64 << 10);
    fill(&mut store, 0..500, 60);
    store.settle();
    fill(&mut store, 0..500, 60);
    store.reopen();
    store.disk.set_faults(FaultPlan { read_errors_one_in: 1, ..FaultPlan::default() });
    let mut compaction = store.pick().expect("an L0 is frozen");
    let error = compaction.step().expect_err("every read fails");
    assert!(matches!(error, crate::Error::Io { .. }), "{error}");
    store.disk.set_faults(FaultPlan::default());
    drop(compaction);
    assert_eq!(store.settle().len(), 1);
}

#[test]
fn new_indexes_are_in_memory_although_resident_ones_have_no_room() {
    let mut store = Store::new(4 << 20, 1 << 20);
    let cache = store.volume.cache().clone();
    let taken: Vec<_> = std::iter::from_fn(|| cache.reserve(1024)).collect();
    assert!(taken.len() > 100);
    fill(&mut store, 0..3000, 60);
    store.settle();
    let reads = store.version.reads();
    let segments = store.version.levels()[L1].segments();
    assert!(segments.len() > 2);
    for leaf in segments {
        let index = leaf.index(reads, crate::reads::Reach::Memory).expect("a sound disk").expect("it was just built");
        assert!(matches!(index, crate::tree::IndexRef::Cached(_)));
    }
    assert_eq!(cache.misses(), 0);
}

/// Levels of 5,000 small pairs, two deep at least.
fn two_levels() -> Store {
    let mut store = Store::new(0, 16 << 10);
    fill(&mut store, 0..5000, 60);
    store.settle();
    assert!(store.version.levels().iter().filter(|level| !level.is_empty()).count() >= 2);
    store
}

#[test]
fn lower_segments_that_a_range_tombstone_covers_are_dropped_unread() {
    let mut store = two_levels();
    let before = store.live.len();
    store.delete_range(&10u32.to_be_bytes(), &4990u32.to_be_bytes());
    store.freeze();
    let (mut read, mut entries) = (0, 0);
    for done in store.settle() {
        read += done.bytes_read;
        entries += done.entries_read;
    }
    assert!(entries > 4900, "{entries}");
    assert!(read < 20 * SEGMENT_BYTES as u64, "{read} bytes read of {before} segments");
    let levels = store.version.levels();
    assert!(levels.iter().all(|level| level.ranged().is_empty()), "they have met all that they hide");
    assert_eq!(levels.iter().map(|level| level.state().entries).sum::<u64>(), 20);
    assert!(store.live.len() < 6, "{} segments of {before} are left", store.live.len());
}

#[test]
fn a_range_tombstone_is_cut_at_segments_and_moves_with_them() {
    let mut store = Store::new(0, 1 << 20);
    fill(&mut store, 0..3000, 60);
    store.settle();
    // From here on no level is too large, so newer data stays above.
    store.delete_range(b"", &2000u32.to_be_bytes());
    for n in (0..3000u32).step_by(3) {
        store.write(&n.to_be_bytes(), Some(&[7; 200]));
    }
    store.freeze();
    let compaction = store.pick().expect("an L0");
    store.finish(compaction);
    let level = &store.version.levels()[L1];
    assert!(level.ranged().is_empty(), "L1 is the last level");
    let mut cursor = store.snapshot().cursor(ScanBounds::default());
    for n in (0..3000u32).filter(|n| n % 3 == 0 || *n >= 2000) {
        assert_eq!(cursor.next().expect("a sound disk").expect("every key is there").key[..], n.to_be_bytes());
    }
    assert!(cursor.next().expect("a sound disk").is_none());
}

/// The pair and a range with bounds as long take more than the smallest segment together. The pair is newer, so the
/// range leaves a hole for it.
#[test]
fn a_pair_that_has_no_room_beside_a_range_is_written_in_a_hole_of_it() {
    const LONGEST: usize = leeward_format::MAX_KEY_BYTES;
    let mut store = two_levels();
    let long = |byte: u8, tail: &[u8]| [&vec![byte; LONGEST - tail.len()][..], tail].concat();
    let old = [long(b'b', b"n"), long(b'b', b"p"), b"|".to_vec()];
    for key in &old {
        store.write(key, Some(b"old"));
    }
    store.freeze();
    store.settle();
    store.delete_range(&long(b'a', b"a"), &long(b'z', b"z"));
    let pairs: Vec<_> = (b'a'..=b'y').map(|byte| long(b'b', &[byte])).collect();
    for key in pairs.iter().filter(|key| !old.contains(key)) {
        store.write(key, Some(&[1; 3000]));
    }
    store.freeze();
    let compaction = store.pick().expect("an L0");
    store.finish(compaction);
    assert!(!store.version.levels()[L1].ranged().is_empty());
    for _ in 0..2 {
        let snapshot = store.snapshot();
        let mut cursor = snapshot.cursor(ScanBounds { start: "a".into(), ..ScanBounds::default() });
        for key in pairs.iter().filter(|key| !old.contains(key)) {
            assert_eq!(cursor.next().expect("a sound disk").expect("it was written").key[..], key[..]);
        }
        assert_eq!(cursor.next().expect("a sound disk").expect("beyond the range").key, "|");
        for key in &old[..2] {
            let found = snapshot.get(key, crate::reads::Reach::Device).expect("a sound disk");
            assert!(!matches!(found, crate::version::Lookup::Found { .. }), "{found:?}");
        }
        store.settle();
    }
}
