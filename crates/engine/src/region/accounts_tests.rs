//! The bytes counted as live in the logs that leaves point to are exactly the bytes that they point to, after any
//! writes, overwrites, deletes, compactions and recoveries; and dead bytes are freed.

use super::Region;
use crate::compaction::{CompactionTotals, Lane};
use crate::memtable::Entry;
use crate::region::{AppendError, Write};
use crate::scan::ScanBounds;
use crate::tree::LevelCursor;
use crate::version::Snapshot;
use crate::volume::{Volume, VolumeOptions};
use crate::{Lookup, Reach, Replica};
use leeward_format::cluster::{Placement, TableOptions};
use leeward_format::manifest::RegionState;
use leeward_format::record::record_bytes;
use leeward_format::request::RequestId;
use leeward_format::{Expiry, LogKind, Lsn, RegionId, SegmentName, Stamp, UnixMs, VolumeId};
use leeward_platform::{Disk, Rng, SimDisk};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const REGION: RegionId = RegionId(1);
const SEGMENT_BYTES: usize = 32 << 10;

/// Values with their expiry.
pub(super) type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<Expiry>)>;

/// Each write takes a millisecond.
fn now(region: &Region) -> UnixMs {
    UnixMs(region.last_lsn().0)
}

fn snapshot(region: &Region) -> Snapshot {
    region.snapshot(region.last_lsn(), now(region))
}

/// The pairs of `model` that have not expired.
fn live(model: &Model, now: UnixMs) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let is_live = |expires: Option<Expiry>| expires.is_none_or(|expires| expires.ms() > now.0);
    let live = model.iter().filter(|(_, (_, expires))| is_live(*expires));
    live.map(|(key, (value, _))| (key.clone(), value.clone())).collect()
}

pub(super) fn options(placement: Placement) -> TableOptions {
    let (garbage_percent, max_space_percent) = (10, 140);
    let table = TableOptions { placement, l0_bytes: 24 << 10, growth_factor: 3, ..TableOptions::default() };
    TableOptions { garbage_percent, max_space_percent, ..table }
}

fn open(disk: &SimDisk, placement: Placement) -> Arc<Region> {
    open_with(disk, options(placement))
}

pub(super) fn open_with(disk: &SimDisk, options: TableOptions) -> Arc<Region> {
    let volume_options = VolumeOptions { segment_bytes: SEGMENT_BYTES, ..VolumeOptions::default() };
    open_in(disk, volume_options, options)
}

pub(super) fn open_in(disk: &SimDisk, volume_options: VolumeOptions, options: TableOptions) -> Arc<Region> {
    let file = disk.open("volume").expect("a simulated file opens");
    let (volume, replicas) = Volume::open(file, VolumeId(1), volume_options).expect("the volume opens");
    let replica = match replicas.into_iter().next() {
        Some(replica) => replica,
        None => Replica::create(&volume, REGION, options).expect("room for a region"),
    };
    let term = replica.position().0.next();
    let region = replica.serve(term).expect("it serves");
    region.set_commit(region.last_lsn());
    region
}

fn flush(region: &Region) {
    for log in LogKind::APPENDED {
        for tail in region.tails(log).iter().filter(|tail| tail.sealed()) {
            region.flush_tail(log, tail.index()).expect("a sound disk");
            region.release_tail(log, tail.index());
            region.allow_tails(log, tail.index() + 2);
        }
    }
    region.prepare_tails().expect("room");
}

pub(super) fn compact(region: &Region) -> bool {
    let Some(compaction) = region.next_compaction_at_once(now(region)) else { return false };
    region.install(&compaction.finish().expect("a sound disk")).expect("a sound disk");
    true
}

pub(super) fn write(region: &Region, key: &[u8], value: Option<&[u8]>, expires: Option<Expiry>) {
    append(region, Write { expires, ..Write::set(key, value) });
}

pub(super) fn append(region: &Region, write: Write<'_>) {
    loop {
        match region.append(&[write]) {
            Ok(appended) => return region.set_commit(appended.last),
            Err(AppendError::TailBusy(_)) => flush(region),
            Err(AppendError::L0Full) => assert!(compact(region), "a full L0 can be compacted"),
            Err(AppendError::Engine(error)) => panic!("{error}"),
        }
    }
}

/// Deletes a range, or ingests pairs in one.
fn random_range(region: &Region, rng: &mut Rng, model: &mut Model) {
    let name = |n: u64| format!("key{n:04}").into_bytes();
    let first = rng.below(600);
    let (start, end) = (name(first), name(first + 1 + rng.below(40)));
    if rng.one_in(2) {
        append(region, Write::delete_range(&start, Some(&end)));
        model.retain(|key, _| *key < start || *key >= end);
        return;
    }
    let pairs: BTreeMap<Vec<u8>, Vec<u8>> =
        (first..first + rng.below(60)).map(|n| (name(n), vec![7; rng.below(1500) as usize])).collect();
    let mut builder = loop {
        match region.begin_ingest() {
            Ok(builder) => break builder,
            Err(AppendError::TailBusy(_)) => flush(region),
            Err(AppendError::L0Full) => assert!(compact(region), "a full L0 can be compacted"),
            Err(AppendError::Engine(error)) => panic!("{error}"),
        }
    };
    pairs.iter().for_each(|(key, value)| builder.push(key, value).expect("they are sorted"));
    let Some(sorted) = builder.finish().expect("a sound disk") else { return };
    region.set_commit(region.last_lsn());
    let compaction = loop {
        match region.ingest(&sorted).expect("a sound disk") {
            Some(compaction) => break compaction,
            None => assert!(compact(region), "an L0 from before can be compacted"),
        }
    };
    region.install(&compaction.finish().expect("a sound disk")).expect("a sound disk");
    model.extend(pairs.into_iter().map(|(key, value)| (key, (value, None))));
}

fn random_write(region: &Region, rng: &mut Rng, model: &mut Model) {
    let key = format!("key{:04}", rng.below(600)).into_bytes();
    if rng.one_in(8) {
        write(region, &key, None, None);
        model.remove(&key);
        return;
    }
    let longest = [30, 150, 500, 4000][rng.index(4)];
    let mut value = vec![0; rng.below(longest) as usize];
    rng.fill(&mut value);
    let expires = rng.one_in(4).then(|| now(region).0 + rng.below(2000)).and_then(Expiry::from_ms);
    let request = rng.one_in(3).then_some(RequestId { client: 1, sequence: 1 });
    append(region, Write { expires, request, ..Write::put(&key, &value) });
    model.insert(key, (value, expires));
}

/// Bytes of records that the levels point to, and of those that a replay needs, by segment.
fn referenced(region: &Region) -> HashMap<SegmentName, u32> {
    let view = region.view.load_full();
    let mut found = HashMap::<SegmentName, u32>::new();
    let mut count = |key: &[u8], stamp: Stamp, entry: &Entry<'_>| {
        if let Entry::InLog { pointer, value_bytes } = entry {
            let bytes = record_bytes(key.len(), *value_bytes as usize, stamp.expires);
            *found.entry(pointer.segment()).or_default() += bytes as u32;
        }
    };
    for level in view.version.levels().iter().filter(|level| !level.is_empty()) {
        let mut cursor = LevelCursor::new(Arc::clone(view.version.reads()), Arc::clone(level));
        cursor.seek(&[]).expect("a sound disk");
        while let Some((key, stamp, entry)) = cursor.current() {
            count(key, stamp, &entry);
            cursor.step().expect("a sound disk");
        }
    }
    for l0 in std::iter::once(view.version.active()).chain(view.version.frozen()) {
        l0.overwritten(&mut |key, stamp, entry| count(key, stamp, &entry));
        let mut cursor = l0.cursor(Lsn(u64::MAX));
        cursor.seek(&[]);
        while let Some((key, stamp, entry)) = cursor.current() {
            count(key, stamp, &entry);
            cursor.step();
        }
    }
    for l0 in std::iter::once(view.version.active()).chain(view.version.frozen()) {
        l0.unreferenced(&mut |segment, bytes| *found.entry(segment).or_default() += bytes);
    }
    found
}

pub(super) fn check(region: &Region, model: &Model, context: &str) {
    let state = region.volume.with_region(&region.owner, RegionState::clone).expect("it is the owner");
    let found = referenced(region);
    for segment in state.segments.values().filter(|segment| segment.holds_values()) {
        if let Some(live) = segment.live_bytes() {
            assert_eq!(
                live,
                found.get(&segment.name(state.options.addressing)).copied().unwrap_or(0),
                "{context}: {segment:?}"
            );
        }
    }
    let addressing = state.options.addressing;
    let is_live = |name: &SegmentName| {
        state.segments.values().any(|segment| segment.name(addressing) == *name && segment.holds_values())
    };
    assert!(found.keys().all(is_live), "{context}: a pointer into a segment that is not live");
    let live = live(model, now(region));
    assert_eq!(contents(&snapshot(region)), live, "{context}");
    for key in model.keys().step_by(5) {
        match region.get(key, Reach::Device, &|| now(region)).expect("a sound disk") {
            Lookup::Found { value, expires, .. } => {
                assert_eq!((Some(&value[..]), expires), (live.get(key).map(Vec::as_slice), model[key].1), "{context}");
            }
            found => assert!(!live.contains_key(key), "{context}: {found:?}"),
        }
    }
}

fn contents(snapshot: &Snapshot) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut cursor = snapshot.cursor(ScanBounds::default());
    let mut all = BTreeMap::new();
    while let Some(entry) = cursor.next().expect("a sound disk") {
        all.insert(entry.key.to_vec(), entry.value.to_vec());
    }
    all
}

#[test]
fn what_is_live_is_what_leaves_point_to() {
    let placements = [Placement { medium_from: 60, large_from: 300 }, Placement::SEPARATED, Placement::threshold(200)];
    let mut relocated = 0;
    for seed in 0..12 {
        let placement = placements[seed as usize % placements.len()];
        let (disk, mut rng) = (SimDisk::new(seed, u64::MAX), Rng::new(seed));
        let mut model = Model::new();
        let mut region = open(&disk, placement);
        for round in 0..8 {
            let mut snapshots = Vec::new();
            for _ in 0..1 + rng.below(700) {
                random_write(&region, &mut rng, &mut model);
                if rng.one_in(60) {
                    random_range(&region, &mut rng, &mut model);
                }
                if rng.one_in(20) {
                    compact(&region);
                }
                if rng.one_in(150) {
                    snapshots.push((snapshot(&region), live(&model, now(&region))));
                }
            }
            let context = format!("seed {seed}, round {round}");
            check(&region, &model, &context);
            for (snapshot, expected) in snapshots {
                assert_eq!(contents(&snapshot), expected, "{context}: a snapshot");
            }
            relocated += region.stats().compactions.relocated_bytes;
            region.write_tails().expect("a sound disk");
            drop(region);
            disk.kill_process();
            region = open(&disk, placement);
            check(&region, &model, &format!("{context}, reopened"));
        }
    }
    assert!(relocated > 1 << 20, "{relocated}");
}

#[test]
fn runs_that_nothing_points_to_are_given_back() {
    let (disk, mut rng) = (SimDisk::new(1, u64::MAX), Rng::new(1));
    let region = open(&disk, Placement { medium_from: 60, large_from: 10_000 });
    let mut model = Model::new();
    let (mut used, mut most_in_runs) = (Vec::new(), 0);
    for _ in 0..6 {
        for _ in 0..2500 {
            random_write(&region, &mut rng, &mut model);
            while compact(&region) {}
            most_in_runs = most_in_runs.max(region.stats().medium_log_bytes);
        }
        used.push(region.volume.usage().0);
    }
    check(&region, &model, "at the end");
    assert!(most_in_runs > 0, "there were runs");
    assert!(used[5] <= used[2] * 3 / 2, "{used:?}");
}

/// Space of the volume besides the large log: manifest, recovery log, tails, levels of keys and pointers, and values
/// that a sweep moves before it frees anything.
const BESIDE_BYTES: u64 = (9 + 30) * SEGMENT_BYTES as u64;
/// Values that the pointers in four L0s, and in the run of L1 made of three, refer to: their overwrites are unknown
/// until they are merged with L2.
const UNCOMPACTED_BYTES: u64 = 7 * (24 << 10) / 48 * 1034;

#[test]
fn a_volume_stays_within_its_limit_however_often_all_is_overwritten() {
    for (seed, skewed) in [(1, false), (2, true)] {
        let (disk, mut rng) = (SimDisk::new(seed, u64::MAX), Rng::new(seed));
        let region = open(&disk, Placement { medium_from: 60, large_from: 300 });
        let mut model = Model::new();
        let mut highest = 0;
        for i in 0..20_000u64 {
            let n = if i < 2000 {
                i
            } else if skewed && !rng.one_in(5) {
                rng.below(300)
            } else {
                rng.below(2000)
            };
            let value = vec![i as u8; 1000];
            let key = format!("key{n:05}").into_bytes();
            write(&region, &key, Some(&value), None);
            model.insert(key, (value, None));
            if i >= 4000 && i % 100 == 0 {
                highest = highest.max(region.volume.usage().0);
            }
        }
        check(&region, &model, "at the end");
        let live = region.stats().large_log.live_bytes;
        let limit = live * 140 / 100 + BESIDE_BYTES + UNCOMPACTED_BYTES;
        assert!(highest <= limit, "skewed {skewed}: {highest} of {limit} bytes, {:?}", region.stats());
    }
}

/// A snapshot, or a cursor that outlives one, continues to read segments that a sweep has emptied and freed.
#[test]
fn a_snapshot_reads_segments_that_were_collected() {
    let (disk, mut rng) = (SimDisk::new(3, u64::MAX), Rng::new(3));
    let region = open(&disk, Placement::SEPARATED);
    let mut model = Model::new();
    let mut write_some = |model: &mut Model, count: u64| {
        for _ in 0..count {
            random_write(&region, &mut rng, model);
            while compact(&region) {}
        }
    };
    write_some(&mut model, 3000);
    let (snapshot, expected) = (snapshot(&region), live(&model, now(&region)));
    let mut cursor = snapshot.cursor(ScanBounds::default());
    let before = region.stats().compactions.relocated_bytes;
    write_some(&mut model, 9000);
    assert!(region.stats().compactions.relocated_bytes > before, "{:?}", region.stats());
    assert_eq!(contents(&snapshot), expected);
    for (key, value) in &expected {
        let entry = cursor.next().expect("a sound disk").expect("every key is there");
        assert!(entry.key == key && entry.value == value);
    }
    let held = region.volume.usage().0;
    drop((snapshot, cursor));
    assert!(region.volume.usage().0 < held, "what only the snapshot needed is free");
    check(&region, &model, "at the end");
}

/// Parts of sweeps are so far apart that they keep to their rate of reads and writes.
#[test]
fn garbage_is_collected_no_faster_than_it_may_be() {
    for garbage_mib_per_second in [0, 1] {
        let disk = SimDisk::new(1, u64::MAX);
        let options = TableOptions { garbage_mib_per_second, max_space_percent: 1000, ..options(Placement::SEPARATED) };
        let region = open_with(&disk, options);
        let mut rng = Rng::new(1);
        for n in 0..6000u64 {
            write(&region, format!("key{:05}", rng.below(1500)).as_bytes(), Some(&[n as u8; 1000]), None);
        }
        // No writes from here on; the clock advances by a tenth of a second a turn.
        let (mut sweeps, mut now) = (Vec::new(), 1_000_000);
        for _ in 0..400 {
            now += 100;
            let before = region.stats().compactions;
            if let Some(compaction) = region.next_compaction(UnixMs(now)) {
                region.install(&compaction.finish().expect("a sound disk")).expect("a sound disk");
            }
            let after = region.stats().compactions;
            if after.relocated_bytes > before.relocated_bytes {
                let total = |t: &CompactionTotals| t.bytes_read + t.value_bytes_read + t.bytes_written;
                sweeps.push((now, total(&after) - total(&before)));
            }
        }
        let too_soon = |pair: &[(u64, u64)]| (pair[1].0 - pair[0].0) * (1 << 20) < pair[0].1 * 1000;
        assert!(sweeps.len() > 2, "there was garbage: {sweeps:?}");
        assert_eq!(sweeps.windows(2).any(too_soon), garbage_mib_per_second == 0, "{sweeps:?}");
    }
}

/// Two values fill two thirds of a segment. A sweep moves them to other segments, which they fill no better.
#[test]
fn garbage_that_no_sweep_can_collect_is_left_alone() {
    let region = open(&SimDisk::new(1, u64::MAX), Placement::SEPARATED);
    let mut model = Model::new();
    for n in 0..60 {
        let (key, value) = (format!("key{n:04}").into_bytes(), vec![n as u8; 11_000]);
        write(&region, &key, Some(&value), None);
        model.insert(key, (value, None));
    }
    region.freeze();
    let compactions = (0..200).take_while(|_| compact(&region)).count();
    assert!(compactions < 50, "{compactions} compactions of 60 values, and no end: {:?}", region.stats().large_log);
    check(&region, &model, "after them");
    // New garbage is collected.
    let space = region.stats().large_log.space_bytes;
    for (key, (value, _)) in &mut model {
        value.fill(100);
        write(&region, key, Some(&*value), None);
    }
    region.freeze();
    while compact(&region) {}
    assert!(region.stats().large_log.space_bytes < space * 3 / 2);
    check(&region, &model, "at the end");
}

/// One pair in a hundred keeps a large value, so what a sweep moves from a few leaf segments fills a part of a segment.
/// The rest of that segment is free: the next sweep does not choose the same values.
#[test]
fn values_in_parts_of_segments_are_not_swept_without_end() {
    let region = open(&SimDisk::new(1, u64::MAX), Placement { medium_from: 60, large_from: 300 });
    let mut model = Model::new();
    for round in 0..3 {
        for n in (0..12_000).filter(|n| round == 0 || n % 100 != 0) {
            let bytes = if round == 0 && n % 25 == 0 { 800 } else { 50 };
            let (key, value) = (format!("key{n:05}").into_bytes(), vec![round; bytes]);
            write(&region, &key, Some(&value), None);
            model.insert(key, (value, None));
        }
    }
    region.freeze();
    let compactions = (0..500).take_while(|_| compact(&region)).count();
    let stats = region.stats();
    assert!(compactions < 500, "there is no end: {:?}", stats.large_log);
    assert!(stats.compactions.relocated_bytes > 0, "there was garbage: {:?}", stats.large_log);
    check(&region, &model, "at the end");
}

/// Each thread takes the next compaction, whatever the others have installed meanwhile.
#[test]
fn compactions_go_on_side_by_side() {
    for placement in [TableOptions::default().placement, Placement::SEPARATED] {
        let (disk, mut rng) = (SimDisk::new(5, u64::MAX), Rng::new(5));
        let region = open(&disk, placement);
        let (mut model, is_over) = (Model::new(), AtomicBool::new(false));
        let compact_in = |lane| {
            while !is_over.load(Ordering::Relaxed) {
                match region.next_compaction_in(lane, UnixMs(0)).map(|compaction| compaction.finish()) {
                    Some(done) => region.install(&done.expect("a sound disk")).expect("what it takes is there"),
                    None => thread::yield_now(),
                }
            }
        };
        thread::scope(|scope| {
            let compact_in = &compact_in;
            let compactors = [Lane::L0s, Lane::Levels, Lane::Levels].map(|lane| scope.spawn(move || compact_in(lane)));
            'writes: for n in 0..15_000u64 {
                let (key, value) = (format!("key{:04}", rng.below(900)).into_bytes(), vec![n as u8; rng.index(900)]);
                loop {
                    match region.append(&[Write::put(&key, &value)]) {
                        Ok(appended) => break region.set_commit(appended.last),
                        // A thread that has panicked panics here, after the others have ended.
                        Err(_) if compactors.iter().any(|compactor| compactor.is_finished()) => break 'writes,
                        Err(AppendError::TailBusy(_)) => flush(&region),
                        Err(AppendError::L0Full) => thread::yield_now(),
                        Err(AppendError::Engine(error)) => panic!("{error}"),
                    }
                }
                model.insert(key, (value, None));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while compact(&region) {}
        check(&region, &model, "at the end");
    }
}
