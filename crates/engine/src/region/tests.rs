//! Tests of the write path: what refuses a batch, what a batch changes, and what snapshots see.

use super::*;
use crate::compaction::Lane;
use crate::error::Error;
use crate::memory::Purpose;
use crate::memtable::{LOG_BYTES_PER_BYTE, MOST_RANGES};
use crate::replica::Replica;
use crate::scan::ScanBounds;
use crate::volume::VolumeOptions;
use leeward_format::cluster::Placement;
use leeward_format::record::{FLAG_BATCH_CONTINUES, RecordSeed, read_record};
use leeward_format::segment::{LOG_HEADER_BYTES, LogHeader};
use leeward_format::{SegmentId, ServerId, VolumeId};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Disk, RealDisk, SimDisk};
use std::thread;
use std::time::Duration;

fn region(segment_bytes: usize, l0_bytes: u64) -> Arc<Region> {
    let file = SimDisk::new(1, 1 << 30).open("volume").unwrap();
    let options = VolumeOptions { segment_bytes, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(file, VolumeId(1), options).unwrap();
    let options = TableOptions { placement: Placement::threshold(200), l0_bytes, ..TableOptions::default() };
    Replica::create(&volume, RegionId(1), options).unwrap().serve(Epoch(1)).unwrap()
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Write<'a> {
    Write::put(key, value)
}

#[test]
fn a_batch_goes_to_the_logs_by_size_and_is_marked_as_one() {
    let region = region(32 << 10, 1 << 20);
    let large = [9; 300];
    let batch = [put(b"a", b"1"), put(b"b", &large), Write::delete(b"a")];
    let appended = Appended {
        first: Lsn(1),
        last: Lsn(3),
        is_written: true,
        is_committed: false,
        pause: Duration::ZERO,
        wants_upkeep: true,
    };
    assert_eq!(region.append(&batch).unwrap(), appended);
    let read = |log: LogKind| {
        let tail = &region.tails(log)[0];
        assert_eq!((tail.index(), tail.sealed()), (0, false));
        let bytes = tail.bytes();
        let header = LogHeader::decode(bytes).unwrap();
        assert_eq!((header.region, header.log, header.id), (RegionId(1), log, tail.id()));
        let mut at = LOG_HEADER_BYTES;
        let mut found = Vec::new();
        let seed = RecordSeed::new(RegionId(1), log, tail.id());
        while let Some(record) = read_record(seed, &bytes[at..]).unwrap() {
            found.push((record.stamp.lsn.0, record.flags & FLAG_BATCH_CONTINUES != 0));
            at += record.bytes();
        }
        assert_eq!((at, tail.last_lsn().0), (bytes.len(), found.last().unwrap().0));
        (header.first_lsn.0, found)
    };
    assert_eq!(read(LogKind::Recovery), (1, vec![(1, true), (3, false)]));
    assert_eq!(read(LogKind::Large), (2, vec![(2, true)]));
    assert_eq!(region.stats().user_bytes_written, 1 + 1 + 1 + 300 + 1);
}

#[test]
fn a_batch_that_is_refused_leaves_no_trace() {
    let region = region(32 << 10, 1 << 20);
    let value = [1; 199];
    let large = vec![2; 10_000];
    // Two tails of the large log, and no third until one is flushed.
    while region.append(&[put(b"large", &large)]).is_ok() {}
    let last = region.last_lsn();
    let filled = |log| region.tails(log).iter().map(|tail| tail.filled()).sum::<u32>();
    let before = (filled(LogKind::Recovery), filled(LogKind::Large));
    let refused = region.append(&[put(b"small", &value[..9]), put(b"large", &large)]);
    assert!(matches!(refused, Err(AppendError::TailBusy(LogKind::Large))), "{refused:?}");
    assert_eq!(region.last_lsn(), last);
    assert_eq!((filled(LogKind::Recovery), filled(LogKind::Large)), before);
    assert_eq!(region.get(b"small", Reach::Device, &UnixMs::default).unwrap(), Lookup::Absent);
    let first = region.tails(LogKind::Large)[0].clone();
    assert!(first.sealed());
    region.flush_tail(LogKind::Large, first.index()).unwrap();
    region.release_tail(LogKind::Large, first.index());
    region.allow_tails(LogKind::Large, 2);
    region.append(&[put(b"small", &value[..9]), put(b"large", &large)]).unwrap();
    assert!(matches!(region.flush_tail(LogKind::Large, 2), Err(Error::Invalid(_))), "it is not sealed");
}

#[test]
fn a_full_l0_refuses_until_a_compaction_of_what_is_committed() {
    let region = region(32 << 10, 64 << 10);
    let fill = || loop {
        for log in LogKind::APPENDED {
            for tail in region.tails(log).iter().filter(|tail| tail.sealed()) {
                region.flush_tail(log, tail.index()).unwrap();
                region.release_tail(log, tail.index());
                region.allow_tails(log, tail.index() + 2);
            }
        }
        let lsn = region.last_lsn().0.to_be_bytes();
        if let Err(AppendError::L0Full) = region.append(&[put(&lsn, &[3; 100])]) {
            break;
        }
    };
    fill();
    assert_eq!(region.stats().frozen_l0s as usize, MAX_FROZEN_L0S);
    assert!(region.next_compaction_at_once(UnixMs(0)).is_none(), "nothing is committed");
    region.set_commit(region.last_lsn());
    let done = region.next_compaction_at_once(UnixMs(0)).unwrap().finish().unwrap();
    region.install(&done).unwrap();
    assert_eq!(region.stats().frozen_l0s, 0);
    region.append(&[put(b"again", b"1")]).unwrap();
    // For an instant that the levels no longer have, the oldest available one is used.
    assert_eq!(region.snapshot(Lsn(1), UnixMs(0)).lsn(), Lsn(done.edit.replay_from.0 - 1));
}

/// Story of a bug: a thread read a version, and then waited for the picker. Meanwhile another thread installed its
/// compaction and released its claim. The first thread then compacted the same inputs once more.
#[test]
fn what_is_compacted_is_of_the_version_that_claims_are_about() {
    let region = region(32 << 10, 1 << 20);
    region.append(&[put(b"a", b"1")]).unwrap();
    region.set_commit(region.last_lsn());
    region.freeze();
    let done = region.next_compaction_at_once(UnixMs(0)).unwrap().finish().unwrap();
    let picked = thread::scope(|scope| {
        let picker = region.picker.lock();
        let pick = scope.spawn(|| region.next_compaction_at_once(UnixMs(0)));
        // It is at the lock by now; if it is late, the test passes all the same.
        thread::sleep(Duration::from_millis(50));
        let install = scope.spawn(|| region.install(&done));
        while region.has_frozen_l0s() {
            thread::yield_now();
        }
        done.claim.release();
        drop(picker);
        install.join().unwrap().unwrap();
        pick.join().unwrap()
    });
    assert!(picked.is_none(), "the L0 is compacted");
}

/// An install walks every key of the L0s that it compacted, to renew the cache. A writer freezes an L0 meanwhile.
#[test]
fn no_writer_waits_while_an_install_renews_the_cache() {
    let region = region(32 << 10, 1 << 20);
    region.append(&[put(b"a", b"1")]).unwrap();
    region.set_commit(region.last_lsn());
    region.freeze();
    let done = region.next_compaction_at_once(UnixMs(0)).unwrap().finish().unwrap();
    let reads = Arc::clone(region.view.load().version.reads());
    let before = reads.generation();
    thread::scope(|scope| {
        let records = region.volume.cache().hold_records();
        let install = scope.spawn(|| region.install(&done));
        while reads.generation() == before {
            thread::yield_now();
        }
        let is_free = region.frozen_logs.try_lock().is_some();
        if is_free {
            region.append(&[put(b"b", b"2")]).unwrap();
            region.freeze();
            assert_eq!(region.stats().frozen_l0s, 2, "the install is not done");
        }
        drop(records);
        install.join().unwrap().unwrap();
        assert!(is_free, "a writer would have waited");
    });
    assert_eq!(region.stats().frozen_l0s, 1);
    let found = |key: &[u8]| region.get(key, Reach::Device, &UnixMs::default).unwrap().into_value();
    assert_eq!((found(b"a"), found(b"b")), (Some("1".into()), Some("2".into())));
}

#[test]
fn snapshots_see_one_instant() {
    let region = region(32 << 10, 1 << 20);
    region.append(&[put(b"k", b"old"), put(b"gone", b"x")]).unwrap();
    let then = region.snapshot(region.last_lsn(), UnixMs(0));
    region.append(&[put(b"k", b"new"), Write::delete(b"gone"), put(b"later", b"y")]).unwrap();
    let found = |snapshot: &Snapshot, key: &[u8]| match snapshot.get(key, Reach::Device).unwrap() {
        Lookup::Found { value, .. } => Some(value.to_vec()),
        _ => None,
    };
    assert_eq!(found(&then, b"k"), Some(b"old".to_vec()));
    assert_eq!(found(&then, b"gone"), Some(b"x".to_vec()));
    let mut cursor = then.cursor(ScanBounds::default());
    let mut keys = Vec::new();
    while let Some(entry) = cursor.next().unwrap() {
        keys.push(entry.key.to_vec());
    }
    assert_eq!(keys, [b"gone".to_vec(), b"k".to_vec()]);
    let now = region.snapshot(region.last_lsn(), UnixMs(0));
    assert_eq!((found(&now, b"k"), found(&now, b"gone")), (Some(b"new".to_vec()), None));
}

#[test]
fn writers_pause_the_longer_the_more_l0s_wait() {
    let region = region(1 << 20, 256 << 10);
    let (mut pauses, mut lsn) = ([Vec::new(), Vec::new(), Vec::new(), Vec::new()], 0u64);
    loop {
        lsn += 1;
        let frozen = region.stats().frozen_l0s as usize;
        match region.append(&[put(&lsn.to_be_bytes(), &[3; 100])]) {
            Ok(appended) if appended.pause > Duration::ZERO => pauses[frozen].push(appended.pause),
            Ok(_) => {}
            Err(AppendError::L0Full) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(pauses[..3].iter().all(Vec::is_empty), "no writer waits while L0s are free");
    assert!(pauses[3].len() >= 6 && pauses[3].is_sorted_by(|a, b| a < b), "smoothly: {pauses:?}");
    let last = pauses[3].last().unwrap();
    assert!(*last <= Duration::from_micros(2500) && *last > Duration::from_micros(1800), "{last:?}");
}

#[test]
fn prepared_tails_spare_the_writer_the_device() {
    prepared_tails(false);
    prepared_tails(true);
}

fn prepared_tails(maps: bool) {
    let disk = SimDisk::new(1, 1 << 30);
    disk.set_maps(maps);
    let options = VolumeOptions { segment_bytes: 32 << 10, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(disk.open("volume").unwrap(), VolumeId(1), options).unwrap();
    let options = TableOptions { placement: Placement::IN_PLACE, ..TableOptions::default() };
    let region = Replica::create(&volume, RegionId(1), options).unwrap().serve(Epoch(1)).unwrap();
    assert!(!region.wants_tails(), "a region without writes takes no space");
    assert!(region.append(&[put(b"first", b"1")]).unwrap().wants_upkeep);
    assert!(!region.wants_tails(), "nor does one that has hardly begun take a second segment");
    let half = (0..).find(|_| region.append(&[put(b"fill", &[0; 1000])]).unwrap().wants_upkeep).unwrap();
    assert!((12..=16).contains(&half), "{half} KiB of 32");
    assert!(region.wants_tails());
    region.prepare_tails().unwrap();
    assert!(!region.wants_tails());
    disk.set_faults(FaultPlan::default());
    let mut appended = 0;
    while region.tails(LogKind::Recovery).len() < 2 {
        region.append(&[put(b"fill", &[0; 1000])]).unwrap();
        appended += 1;
    }
    // A store to a simulated mapping counts as an operation, and so does making the second tail ready for it.
    assert_eq!(disk.ops(), if maps { appended + 1 } else { 0 });
    assert!(region.is_unsynced());
    assert_eq!(region.sync_tails().unwrap(), region.last_lsn());
    assert!(!region.is_unsynced());
}

#[test]
fn the_regions_of_a_volume_are_synced_together() {
    let disk = SimDisk::new(1, 1 << 30);
    let options = VolumeOptions { segment_bytes: 32 << 10, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(disk.open("volume").unwrap(), VolumeId(1), options).unwrap();
    let serve = |id| Replica::create(&volume, RegionId(id), TableOptions::default()).unwrap().serve(Epoch(1)).unwrap();
    let regions: Vec<Arc<Region>> = (1..=20).map(serve).collect();
    let append = || regions.iter().all(|region| region.append(&[put(b"key", b"value")]).is_ok());
    assert!(append());
    let before = disk.syncs();
    let synced = Region::sync_tails_of(&volume, &regions);
    assert_eq!(disk.syncs(), before + 1);
    for (region, last) in regions.iter().zip(synced) {
        assert_eq!((last.unwrap(), region.is_unsynced()), (region.last_lsn(), false));
    }
    assert!(append());
    disk.set_faults(FaultPlan { at: vec![(1, Fault::Fail)], ..FaultPlan::default() });
    let failed = Region::sync_tails_of(&volume, &regions);
    assert!(failed.iter().all(Result::is_err) && regions.iter().all(|region| region.is_unsynced()));
}

/// Also if the writer overtakes the thread that prepares tails ahead: a replay reads the segments of a log by their
/// ids.
#[test]
fn a_log_fills_its_segments_in_the_order_of_their_ids() {
    let region = region(32 << 10, 1 << 30);
    let mut ids = Vec::new();
    thread::scope(|scope| {
        let writer = region.clone();
        scope.spawn(|| {
            while Arc::strong_count(&region) > 1 {
                region.prepare_tails().unwrap();
            }
        });
        for index in 0..2000 {
            writer.append(&[put(b"most of a tail", &[0; 30 << 10])]).unwrap();
            ids.push(writer.tails(LogKind::Large)[0].id());
            writer.release_tail(LogKind::Large, index);
            writer.allow_tails(LogKind::Large, index + 2);
        }
    });
    assert!(ids.is_sorted_by(|before, id| before < id));
}

#[test]
fn ranges_are_checked_before_anything_is_written() {
    let region = region(32 << 10, 1 << 20);
    let long = [b'x'; leeward_format::MAX_KEY_BYTES + 1];
    let refused = [
        (Write::delete_range(b"b", Some(b"a")), "empty or reversed range: from \"b\" to \"a\""),
        (Write::delete_range(b"b", Some(b"b")), "empty or reversed range: from \"b\" to \"b\""),
        (Write::delete_range(b"", Some(b"")), "empty or reversed range: from \"\" to \"\""),
        (Write::delete_range(b"a", Some(&long)), "bound of a range: must be at most 4096 bytes"),
        (Write::delete_range(&long, None), "bound of a range: must be at most 4096 bytes"),
    ];
    for (write, message) in refused {
        let error = region.append(&[put(b"k", b"v"), write]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    assert_eq!(region.last_lsn(), Lsn(0));
    assert!(region.append(&vec![Write::delete_range(b"a", None); MOST_RANGES + 1]).is_err());
}

/// A range that hides one pair rewrites the leaf segments around it in every level, to the last one.
#[test]
fn small_range_deletes_are_merged_down_at_a_rate() {
    let region = region(32 << 10, 64 << 10);
    let key = |n: u64| format!("key{n:06}").into_bytes();
    let append = |write: Write<'_>| {
        region.append(&[write]).unwrap();
        region.set_commit(region.last_lsn());
        for log in LogKind::APPENDED {
            for tail in region.tails(log).iter().filter(|tail| tail.sealed()) {
                region.flush_tail(log, tail.index()).unwrap();
                region.release_tail(log, tail.index());
                region.allow_tails(log, tail.index() + 2);
            }
        }
    };
    // Executes all compactions at a time; returns the bytes of those that only range tombstones ask for.
    let settle = |now: u64| {
        let mut bytes = 0;
        while let Some(compaction) = region.next_compaction_of_all(UnixMs(now)) {
            let done = compaction.finish().unwrap();
            region.install(&done).unwrap();
            bytes += if done.is_ranged { done.bytes_read + done.bytes_written } else { 0 };
        }
        bytes
    };
    for n in 0..20_000 {
        append(put(&key(n), &[1; 100]));
        if n % 1000 == 0 {
            settle(1);
        }
    }
    assert_eq!(settle(1), 0);
    let mut bytes = 0;
    let mut deleted = 0;
    while deleted < 20_000 && !region.picker.lock().ranges_wait() {
        let (start, end) = (key(deleted), key(deleted + 1));
        append(Write::delete_range(&start, Some(&end)));
        bytes += settle(1);
        deleted += 13;
    }
    assert!((64 << 20..66 << 20).contains(&bytes), "{bytes} bytes for {} deletes", deleted / 13);
    assert!(region.waits_for_time(Lane::Any, UnixMs(1)), "it is called again");
    for n in 0..500 {
        let (start, end) = (key(7 + 37 * n), key(8 + 37 * n));
        append(Write::delete_range(&start, Some(&end)));
        assert_eq!(settle(1), 0);
    }
    // A second later there is room for another 4 MiB; and in the end all of it is gone.
    let later = settle(1001);
    assert!((4 << 20..6 << 20).contains(&later), "{later} bytes");
    (2..200).for_each(|second| assert!(settle(second * 1000) < 6 << 20));
    assert!(region.has_collected(region.last_lsn()) && !region.picker.lock().ranges_wait());
}

#[test]
fn an_l0_freezes_before_its_records_take_much_of_the_logs() {
    let region = region(2 << 20, 64 << 10);
    let value = vec![1; 10_000];
    for number in 0..300_u64 {
        region.append(&[put(&number.to_be_bytes(), &value)]).unwrap();
    }
    let view = region.view.load();
    let [frozen] = view.version.frozen() else { panic!("one has room for two thirds of them") };
    assert!(frozen.bytes() < 32 << 10 && frozen.log_bytes() <= 2 << 20);
    assert!(frozen.log_bytes() > (2 << 20) - 20_000 && view.version.active().log_bytes() < 1 << 20);
    let log_bytes = frozen.log_bytes() + view.version.active().log_bytes();
    assert!(region.promotion_bytes().abs_diff(log_bytes / LOG_BYTES_PER_BYTE) < 2, "what is replayed are large values");
}

#[test]
fn an_l0_takes_so_many_ranges_and_freezes() {
    let region = region(256 << 10, 1 << 30);
    for n in 0..2 * MOST_RANGES as u32 + 1 {
        region.append(&[put(&n.to_be_bytes(), b"v"), Write::delete_range(&n.to_be_bytes(), Some(&[9; 9]))]).unwrap();
    }
    assert_eq!(region.stats().frozen_l0s, 2);
    region.set_commit(region.last_lsn());
    let mut cursor = region.snapshot(region.last_lsn(), UnixMs(0)).cursor(ScanBounds::default());
    assert_eq!(cursor.next().unwrap(), None);
}

/// A compaction without memory was not executed: nothing waits as if it had been.
#[test]
fn l0s_without_memory_for_their_compaction_have_it_at_once_when_there_is_some() {
    let region = region(32 << 10, 1 << 20);
    region.append(&[put(b"key", b"value")]).unwrap();
    region.set_commit(region.sync_tails().unwrap());
    region.freeze();
    let memory = region.volume().memory();
    let taken = memory.take(Purpose::Compactions, memory.status().budget as usize);
    assert!(region.next_compaction_at_once(UnixMs(5000)).is_none());
    drop(taken);
    assert!(region.next_compaction(UnixMs(5001)).is_some());
}

/// The page cache is not the engine's: after a failed writeback, or from a lying device, a page of it has other bytes.
#[test]
fn a_wrong_byte_in_a_mapped_tail_is_damage_and_no_value() {
    let directory = tempfile::tempdir().unwrap();
    let file = RealDisk::open(directory.path()).unwrap().open("volume").unwrap();
    // A cached record is too small for such a value: it is read from the tail.
    let options = VolumeOptions { segment_bytes: 1 << 20, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(file.clone(), VolumeId(1), options).unwrap();
    let options = TableOptions { placement: Placement::threshold(200), ..TableOptions::default() };
    let region = Replica::create(&volume, RegionId(1), options).unwrap().serve(Epoch(1)).unwrap();
    let (first, second) = (vec![1; 300_000], vec![2; 300_000]);
    let both = [put(b"first", &first), put(b"second", &second)];
    region.append(&both).unwrap();
    region.set_commit(region.last_lsn());
    region.write_tails().unwrap();
    let get = |key: &[u8]| region.read(key, Reach::Device, &|| UnixMs(0));
    assert!(matches!(get(b"first").unwrap(), Lookup::Found { value, .. } if value == first));
    let tail = &region.tails(LogKind::Large)[0];
    let place = volume.file_offset(tail.segment(), 0) + tail.bytes().iter().position(|byte| *byte == 2).unwrap() as u64;
    file.write_buffered_at(&[7], place + 200_000).unwrap();
    assert!(matches!(get(b"first").unwrap(), Lookup::Found { value, .. } if value == first));
    match get(b"second") {
        Err(Error::Damaged { file, offset, .. }) => {
            assert!(file.ends_with("volume") && offset < place, "{file} {offset}")
        }
        other => panic!("a value that was never written: {other:?}"),
    }
    let memory = region.read(b"second", Reach::Memory, &|| UnixMs(0));
    assert!(matches!(memory, Ok(Lookup::NotInMemory)), "{memory:?}");
}

#[test]
fn a_copy_serves_in_no_term_beyond_the_last() {
    let file = SimDisk::new(1, 1 << 30).open("volume").unwrap();
    let (volume, _) = Volume::open(file, VolumeId(1), VolumeOptions::default()).unwrap();
    let replica = Replica::create(&volume, RegionId(1), TableOptions::default()).unwrap();
    let refused = replica.serve(Epoch::LAST_TERM.next()).unwrap_err().to_string();
    assert_eq!(refused, "region 1: term 16777216 cannot begin, the last of all is 16777215");
    let replica = Replica::create(&volume, RegionId(2), TableOptions::default()).unwrap();
    let region = replica.serve(Epoch::LAST_TERM).unwrap();
    region.append(&[put(b"key", b"value")]).unwrap();
}

#[test]
fn a_term_whose_ids_are_used_up_is_an_error_that_says_what_to_do() {
    let region = region(32 << 10, 1 << 20);
    let state = region.volume.with_region(&region.owner, |state| state.clone()).unwrap();
    let (first, most) = (SegmentId::MOST_OF_TERM - 2, SegmentId::MOST_OF_TERM);
    let ids = open::ids_from(&state, (first, most), |number| SegmentId::made_by(Epoch(7), number));
    assert_eq!([ids().unwrap(), ids().unwrap()].map(|id| id.counter()), [first, first + 1]);
    let refused = ids().unwrap_err().to_string();
    assert!(refused.ends_with("give the region another primary, or restart the server of its primary"), "{refused}");
    let built = |number| SegmentId::built_by(Epoch(7), ServerId(3), number);
    let ids = open::ids_from(&state, (SegmentId::MOST_BUILT - 1, SegmentId::MOST_BUILT), built);
    assert!(ids().is_ok() && ids().is_err() && ids().is_err());
}
