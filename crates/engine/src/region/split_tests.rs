//! A split and the accounts of the large log, which both sides share; and the key of a split.

use super::Region;
use super::accounts_tests::{Model, append, check, compact, open_with, options, write};
use crate::reads::Reach;
use crate::region::Write;
use crate::version::Lookup;
use crate::volume::Volume;
use leeward_format::cluster::{Placement, TableOptions};
use leeward_format::{RegionId, SegmentId, UnixMs};
use leeward_platform::{Rng, SimDisk};
use std::sync::Arc;

const CHILD: RegionId = RegionId(2);
const KEYS: u64 = 4000;

fn key(n: u64) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// Sets `count` of the keys from `first` up to `end` to large values, also in `model`.
fn update(region: &Region, model: &mut Model, rng: &mut Rng, (first, end): (u64, u64), count: u64) {
    for i in 0..count {
        let (key, value) = (key(first + rng.below(end - first)), vec![i as u8; 1000]);
        write(region, &key, Some(&value), None);
        model.insert(key, (value, None));
        assert!(!region.is_beyond_space(), "writers wait for space: {:?}", region.stats().large_log);
    }
    region.freeze();
    while compact(region) {}
}

/// Splits a region at a key. Each side trims the other's keys. Returns the other side, and the id above all shared
/// segments.
fn split(region: &Arc<Region>, at: &[u8]) -> (Arc<Region>, SegmentId) {
    region.set_commit(region.last_lsn());
    let (copy, below) = region.split(CHILD).expect("all is committed");
    let term = region.term().next();
    let child = copy.serve(term).expect("a sound disk");
    child.set_commit(child.last_lsn());
    region.set_inherited_below(below);
    child.set_inherited_below(SegmentId::new(term, 0));
    for (side, range) in [(region, Write::delete_range(at, None)), (&child, Write::delete_range(b"", Some(at)))] {
        assert!(!side.is_beyond_space());
        append(side, range);
        // So that the range, and all pairs that it meets on its way down, are in a level.
        side.freeze();
        while compact(side) {}
        assert!(!side.is_beyond_space());
    }
    (child, below)
}

/// The regions of a volume count all used space together, and no byte twice.
fn check_space(volume: &Volume, regions: &[&Arc<Region>]) {
    let counted: u64 = regions.iter().map(|region| region.space()).map(|space| space.bytes - space.shared_bytes).sum();
    let (used, segment_bytes) = (volume.usage().0, volume.segment_bytes() as u64);
    // Prepared tails, and those that merges have begun, count for no region.
    assert!(counted <= used && used - counted <= 12 * segment_bytes, "{counted} counted of {used}");
}

/// A region with a large log in which every segment has values from all over, compacted.
fn filled(seed: u64, placement: Placement) -> (Arc<Region>, Model) {
    let (disk, mut model) = (SimDisk::new(seed, u64::MAX), Model::new());
    let region = open_with(&disk, options(placement));
    for n in 0..KEYS {
        let (key, value) = (key(n * 1_237 % KEYS), vec![n as u8; 1000]);
        write(&region, &key, Some(&value), None);
        model.insert(key, (value, None));
    }
    region.seal_tails();
    region.freeze();
    while compact(&region) {}
    (region, model)
}

const PLACEMENTS: [Placement; 2] = [Placement { medium_from: 60, large_from: 300 }, Placement::SEPARATED];

/// Each segment has values of both sides.
#[test]
fn no_writer_waits_for_what_the_other_side_has() {
    for (seed, placement) in (1..).zip(PLACEMENTS) {
        let (mut rng, (region, mut left)) = (Rng::new(seed), filled(seed, placement));
        let (before, volume) = (region.stats().large_log, Arc::clone(&region.volume));
        let at = region.middle(b"", None).expect("a sound disk").expect("it has a middle");
        let (child, below) = split(&region, &at);
        let mut right = left.split_off(&at);
        let middle = left.len() as u64;
        assert!((KEYS * 2 / 5..KEYS * 3 / 5).contains(&middle), "{middle} of {KEYS} keys");
        check(&region, &left, "the left side");
        check(&child, &right, "the right side");
        let (mine, theirs) = (region.stats().large_log, child.stats().large_log);
        assert!(mine.space_bytes + theirs.space_bytes <= before.space_bytes * 11 / 10, "{mine:?} and {theirs:?}");
        assert!(mine.garbage_bytes() * 5 < mine.space_bytes, "{mine:?}");
        check_space(&volume, &[&region, &child]);
        region.set_inherited_below(SegmentId(0));
        assert!(region.is_beyond_space(), "as it would be if only what it has itself were live");
        region.set_inherited_below(below);

        let mut highest = 0;
        for _ in 0..30 {
            update(&region, &mut left, &mut rng, (0, middle), 200);
            update(&child, &mut right, &mut rng, (middle, KEYS), 200);
            highest = highest.max(volume.usage().0);
        }
        check(&region, &left, "the left side, updated");
        check(&child, &right, "the right side, updated");
        check_space(&volume, &[&region, &child]);
        // The sides choose the same victims, but not at the same moment.
        assert!(highest < before.space_bytes * 7 / 4, "{highest} bytes of the volume, {before:?} before");
    }
}

/// The other side's half of each segment is garbage at once when the other side is dropped.
#[test]
fn no_writer_waits_for_what_the_other_side_has_left_behind() {
    for (seed, placement) in (1..).zip(PLACEMENTS) {
        let (mut rng, (region, mut left)) = (Rng::new(seed), filled(seed, placement));
        let volume = Arc::clone(&region.volume);
        let used = volume.usage().0;
        let (child, _) = split(&region, &key(KEYS / 2));
        drop(left.split_off(&key(KEYS / 2)));
        child.into_replica().expect("a sound disk").destroy().expect("a sound disk");
        region.look_at_sharing();
        let (garbage, space) = (region.stats().large_log, region.space());
        assert_eq!(space.shared_bytes, 0, "no other region has anything");
        assert!(space.inherited_bytes * 3 > garbage.space_bytes, "{space:?}");
        assert!(garbage.garbage_bytes() * 3 > garbage.space_bytes, "the other half is garbage now: {garbage:?}");
        update(&region, &mut left, &mut rng, (0, KEYS / 2), 300);
        let mut clock = 1_000_000;
        for _ in 0..3000 {
            clock += 100;
            if let Some(compaction) = region.next_compaction(UnixMs(clock)) {
                region.install(&compaction.finish().expect("a sound disk")).expect("a sound disk");
                assert!(!region.is_beyond_space());
            }
        }
        check(&region, &left, "the left side, alone");
        let (after, left_used) = (region.stats().large_log, volume.usage().0);
        assert!(after.garbage_bytes() * 5 < after.space_bytes, "{after:?}");
        assert!(left_used < used * 3 / 4, "{left_used} bytes, of {used} before");
    }
}

/// Cached leaves that both sides share stay cached for one side, whatever happens to the other.
#[test]
fn a_side_that_goes_takes_nothing_from_the_cache_of_the_other() {
    let (region, model) = filled(4, Placement::IN_PLACE);
    let (count, missed) = (model.len(), |reach| {
        let found = |key: &Vec<u8>| region.get(key, reach, &|| UnixMs(0)).expect("a sound disk");
        model.keys().filter(|key| found(key) == Lookup::NotInMemory).count()
    });
    region.volume.cache().forget_records(region.view.load().version.reads().owner, &|_, _| true);
    assert_eq!(missed(Reach::Device), 0);
    let missed_before = missed(Reach::Memory);
    assert!(missed_before < count / 10, "{missed_before} of {count} keys are not in memory");
    let (copy, _) = region.split(CHILD).expect("all is committed");
    let child = copy.serve(region.term().next()).expect("a sound disk");
    child.clone().into_replica().expect("a sound disk").destroy().expect("a sound disk");
    drop(child);
    region.volume.cache().forget_records(region.view.load().version.reads().owner, &|_, _| true);
    assert_eq!(missed(Reach::Memory), missed_before);
}

/// Garbage of a split is collected no faster than 16 MiB a second, although the table sets no limit.
#[test]
fn what_is_left_behind_is_collected_at_leisure() {
    let (region, _) = filled(3, Placement::SEPARATED);
    let (child, _) = split(&region, &key(KEYS / 2));
    child.into_replica().expect("a sound disk").destroy().expect("a sound disk");
    let (mut sweeps, mut clock) = (Vec::new(), 1_000_000);
    for _ in 0..20_000 {
        clock += 1;
        let before = region.stats().compactions;
        if let Some(compaction) = region.next_compaction(UnixMs(clock)) {
            region.install(&compaction.finish().expect("a sound disk")).expect("a sound disk");
        }
        let after = region.stats().compactions;
        if after.relocated_bytes > before.relocated_bytes {
            let bytes = |t: &crate::compaction::CompactionTotals| t.bytes_read + t.value_bytes_read + t.bytes_written;
            sweeps.push((clock, bytes(&after) - bytes(&before)));
        }
    }
    assert!(sweeps.len() > 2, "there was garbage: {sweeps:?}");
    let too_soon = |pair: &[(u64, u64)]| (pair[1].0 - pair[0].0 + 1) * (16 << 20) < pair[0].1 * 1000;
    assert!(!sweeps.windows(2).any(too_soon), "{sweeps:?}");
}

/// Bytes of a model's pairs below a key, and from the key on.
fn halves(model: &Model, at: &[u8]) -> (usize, usize) {
    let bytes = |(key, (value, _)): (&Vec<u8>, &(Vec<u8>, _))| key.len() + value.len();
    let below = model.iter().filter(|(key, _)| &key[..] < at).map(bytes).sum();
    (below, model.iter().map(bytes).sum::<usize>() - below)
}

#[test]
fn the_middle_halves_the_bytes() {
    for seed in 0..8 {
        let (disk, mut rng, mut model) = (SimDisk::new(seed, u64::MAX), Rng::new(seed), Model::new());
        let table = TableOptions { l0_bytes: 24 << 10, ..options(Placement { medium_from: 60, large_from: 300 }) };
        let region = open_with(&disk, table);
        assert_eq!(region.middle(b"", None).expect("a sound disk"), None, "it is empty");
        let mut looked_at = 0;
        for n in 0..3000u64 {
            // Values of the last keys are ten times as large.
            let number = rng.below(4000);
            let value = vec![n as u8; if number < 3000 { 100 } else { 1000 }];
            write(&region, &key(number), Some(&value), None);
            model.insert(key(number), (value, None));
            let is_first = [1, 2, 50, 400].contains(&n);
            if !is_first && n % 700 != 699 {
                continue;
            }
            while compact(&region) {}
            let (first, end) = (rng.below(1000), 3200 + rng.below(800));
            for (start, end) in [(Vec::new(), None), (key(first), Some(key(end)))] {
                let inside = |at: &[u8]| at >= &start[..] && end.as_ref().is_none_or(|end| at < &end[..]);
                let found = region.middle(&start, end.as_deref()).expect("a sound disk");
                let part: Model =
                    model.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
                let Some(found) = found else {
                    assert!(part.len() < 3 || n < 50, "seed {seed}, {n}: {} keys without a middle", part.len());
                    continue;
                };
                assert!(found > start && inside(&found));
                let (below, above) = halves(&part, &found);
                let most = [20, 4, 2][usize::from(n > 2) + usize::from(n > 600)];
                assert!(below < most * above && above < most * below, "seed {seed}, {n}: {below} and {above} bytes");
                looked_at += 1;
            }
        }
        assert!(looked_at > 8, "{looked_at}");
        assert_eq!(region.middle(&key(0), Some(&key(1))).expect("a sound disk"), None, "one key");
    }
}

#[test]
fn few_keys_that_are_written_often_have_a_middle() {
    let region =
        open_with(&SimDisk::new(1, u64::MAX), TableOptions { l0_bytes: 4 << 20, ..options(Placement::HYBRID) });
    for n in 0..4_000 {
        write(&region, &key(n % 4), Some(b"counted up"), None);
    }
    let found = region.middle(b"", None).expect("a sound disk");
    assert_eq!(found, Some(key(2)), "two keys on either side");
}

/// The pieces of the other side's keys are all of these keys and no others.
#[test]
fn what_is_not_ones_own_is_found_piece_by_piece() {
    let (region, mut left) = filled(4, PLACEMENTS[0]);
    region.set_commit(region.last_lsn());
    let at = key(KEYS / 3);
    let (copy, _) = region.split(CHILD).expect("all is committed");
    let child = copy.serve(region.term().next()).expect("a sound disk");
    child.set_commit(child.last_lsn());
    let right = left.split_off(&at);
    let at: bytes::Bytes = at.into();
    for (side, start, end) in [(&region, at.clone(), None), (&child, bytes::Bytes::new(), Some(&at))] {
        let mut pieces = 0;
        while let Some((first, last)) = side.first_piece(&start, end, UnixMs(1)).expect("a sound disk") {
            assert!(
                first >= start && end.is_none_or(|end| first < *end && last.as_ref().is_some_and(|last| last <= end))
            );
            append(side, Write::delete_range(&first, last.as_deref()));
            let lsn = side.last_lsn();
            assert!(!side.levels_hold(lsn) && !side.has_collected(lsn));
            side.freeze();
            while compact(side) {}
            assert!(side.levels_hold(lsn) && side.has_collected(lsn));
            pieces += 1;
        }
        assert!(pieces >= 1, "there was something");
    }
    check(&region, &left, "the left side");
    check(&child, &right, "the right side");
}
