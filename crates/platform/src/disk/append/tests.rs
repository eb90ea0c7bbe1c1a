//! Tests of appending: on the heap, on a real file, on a simulated one.

use super::super::{Disk, Fault, FaultPlan, File, RealDisk, SimDisk};
use super::*;

const RANGE: usize = 256 << 10;

fn append(appender: &mut Appender, bytes: &[u8]) -> usize {
    appender.reserve(bytes.len()).unwrap();
    appender.append(bytes.len(), |spare| spare.copy_from_slice(bytes))
}

fn old_bytes(file: &dyn File, bytes: usize) {
    file.allocate(bytes as u64, &[4096]).unwrap();
    file.write_at(&vec![7; bytes], 0).unwrap();
    file.sync().unwrap();
}

#[test]
fn readers_see_what_was_published_and_nothing_else() {
    let mut appender = Appender::in_memory(64);
    let buffer = appender.buffer().clone();
    assert_eq!(append(&mut appender, b"lee"), 0);
    assert_eq!(buffer.bytes(), b"");
    appender.publish().unwrap();
    assert_eq!(append(&mut appender, b"ward"), 3);
    assert_eq!((buffer.bytes(), appender.room()), (&b"lee"[..], 57));
    appender.publish().unwrap();
    drop(appender);
    assert_eq!(buffer.bytes(), b"leeward");
}

#[test]
fn readers_beside_the_writer_see_whole_prefixes() {
    let mut appender = Appender::in_memory(if cfg!(miri) { 512 } else { 64 << 10 });
    let buffer = appender.buffer().clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while appender.room() > 0 {
                let next = appender.buffer().capacity() - appender.room();
                append(&mut appender, &[next as u8]);
                appender.publish().unwrap();
            }
        });
        while buffer.filled() < buffer.capacity() {
            assert!(buffer.bytes().iter().enumerate().all(|(at, byte)| *byte == at as u8));
        }
    });
}

#[test]
#[should_panic = "were not reserved"]
fn what_was_not_reserved_is_not_handed_out() {
    let disk = SimDisk::new(1, 1 << 20);
    let file = disk.open("f").unwrap();
    file.allocate(4096, &[4096]).unwrap();
    let mut appender = file.map(0, 4096).unwrap().unwrap();
    appender.append(4097, |_| {});
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_mapped_range_is_the_files_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk::open(dir.path()).unwrap().open("f").unwrap();
    old_bytes(&*file, 2 * RANGE);
    let before = file.counters();
    // Not every file system maps; without that there is nothing to test.
    let Some(mut appender) = file.map(RANGE as u64, RANGE).unwrap() else { return };
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8 + 1).collect();
    for piece in bytes.chunks(777) {
        append(&mut appender, piece);
    }
    appender.publish().unwrap();
    let mut back = vec![0; 2 * RANGE];
    file.read_at(&mut back, 0).unwrap();
    assert!(back[..RANGE].iter().all(|byte| *byte == 7), "nothing before the range changes");
    assert_eq!(back[RANGE..][..bytes.len()], bytes);
    let ready = bytes.len().next_multiple_of(READY_BYTES);
    assert!(back[RANGE + bytes.len()..RANGE + ready].iter().all(|byte| *byte == 0), "what is ready is zero");
    assert!(back[RANGE + ready..].iter().all(|byte| *byte == 7), "nothing beyond was touched");
    file.sync().unwrap();
    append(&mut appender, b"after a sync");
    appender.publish().unwrap();
    drop(appender);
    assert_eq!(file.counters().bytes_written - before.bytes_written, ready as u64);
    file.read_at(&mut back[..12], (RANGE + bytes.len()) as u64).unwrap();
    assert_eq!(&back[..12], b"after a sync");
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_log_takes_no_more_than_it_needs_and_overwrites_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk::open(dir.path()).unwrap().open("f").unwrap();
    old_bytes(&*file, RANGE);
    let Some(mut appender) = file.map(0, RANGE).unwrap() else { return };
    append(&mut appender, &[1; READY_BYTES]);
    assert_eq!(appender.resident_bytes(), READY_BYTES);
    append(&mut appender, &[1]);
    assert_eq!(appender.resident_bytes(), 2 * READY_BYTES);
    append(&mut appender, &[1; RANGE - READY_BYTES - 1]);
    assert_eq!((appender.ready, appender.room()), (RANGE, 0));
    appender.publish().unwrap();
    let mut back = vec![0; RANGE];
    file.read_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 1), "no zero is written over what was appended");
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_range_beyond_the_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let files: [Arc<dyn File>; 2] =
        [RealDisk::open(dir.path()).unwrap().open("f").unwrap(), SimDisk::new(1, 1 << 20).open("f").unwrap()];
    for file in files {
        old_bytes(&*file, RANGE);
        assert!(file.map(4096, RANGE).is_err());
        assert!(file.map(u64::MAX - 4095, 4096).is_err());
    }
}

#[test]
#[cfg_attr(miri, ignore = "a simulated disk is slow there")]
fn what_was_published_survives_the_simulated_process_and_what_was_synced_the_power() {
    let disk = SimDisk::new(3, 1 << 20);
    let file = disk.open("f").unwrap();
    old_bytes(&*file, RANGE);
    let mut appender = file.map(0, RANGE).unwrap().unwrap();
    append(&mut appender, &[1; 1000]);
    appender.publish().unwrap();
    file.sync().unwrap();
    append(&mut appender, &[2; 1000]);
    appender.publish().unwrap();
    append(&mut appender, &[3; 1000]);
    disk.kill_process();
    assert!(appender.publish().is_err(), "the dead publish nothing");
    let bytes = disk.contents("f");
    assert_eq!(
        (&bytes[..1000], &bytes[1000..2000], &bytes[2000..3000]),
        (&[1; 1000][..], &[2; 1000][..], &[7; 1000][..])
    );
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimDisk::new(seed, 1 << 20);
        let file = disk.open("f").unwrap();
        old_bytes(&*file, RANGE);
        let mut appender = file.map(0, RANGE).unwrap().unwrap();
        append(&mut appender, &[1; 1024]);
        appender.publish().unwrap();
        file.sync().unwrap();
        append(&mut appender, &[2; 1024]);
        appender.publish().unwrap();
        disk.lose_power(&mut crate::Rng::new(seed));
        let bytes = disk.contents("f");
        assert_eq!(bytes[..1024], [1; 1024]);
        lost += usize::from(bytes[1024..2048] != [2; 1024]);
    }
    assert!(lost > 5, "{lost}");
}

/// A refused write must not be found later: everything that can fail, fails before a byte is stored.
#[test]
#[cfg_attr(miri, ignore = "a simulated disk is slow there")]
fn making_room_can_fail_and_publishing_cannot() {
    let disk = SimDisk::new(3, 1 << 20);
    let file = disk.open("f").unwrap();
    old_bytes(&*file, RANGE);
    let mut appender = file.map(0, RANGE).unwrap().unwrap();
    disk.set_faults(FaultPlan { write_errors_one_in: 1, ..FaultPlan::default() });
    assert!(appender.reserve(1).is_err());
    disk.set_faults(FaultPlan::default());
    append(&mut appender, &[1]);
    disk.set_faults(FaultPlan { write_errors_one_in: 1, ..FaultPlan::default() });
    appender.publish().unwrap();
    assert_eq!(disk.contents("f")[0], 1);
}

#[test]
#[cfg_attr(miri, ignore = "a simulated disk is slow there")]
fn a_simulated_process_that_dies_in_a_publish_leaves_whole_sectors() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let disk = SimDisk::new(seed, 1 << 20);
        let file = disk.open("f").unwrap();
        old_bytes(&*file, RANGE);
        let mut appender = file.map(0, RANGE).unwrap().unwrap();
        disk.set_faults(FaultPlan { at: vec![(2, Fault::Kill)], ..FaultPlan::default() });
        append(&mut appender, &[1; 2000]);
        assert!(appender.publish().is_err());
        assert_eq!(appender.buffer().bytes(), b"");
        lengths.insert(disk.contents("f").iter().filter(|byte| **byte == 1).count());
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [0, 512, 1024, 1536]);
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_mapped_range_lets_go_of_what_is_filled_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk::open(dir.path()).unwrap().open("f").unwrap();
    old_bytes(&*file, RANGE);
    let Some(mut appender) = file.map(0, RANGE).unwrap() else { return };
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 253) as u8).collect();
    for piece in bytes.chunks(999) {
        if !appender.is_ready(piece.len()) {
            appender.shed();
            appender.make_ready(piece.len(), 4096).unwrap();
        }
        appender.append(piece.len(), |spare| spare.copy_from_slice(piece));
        appender.publish().unwrap();
        assert!(appender.resident_bytes() <= 2 * 4096 + piece.len());
    }
    assert_eq!(appender.buffer().bytes(), bytes, "what is read is present again");
    let mut back = vec![0; bytes.len()];
    file.read_at(&mut back, 0).unwrap();
    assert_eq!(back, bytes);
}

/// As after a failure of the device: the kernel cannot provide the pages any more.
#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_page_that_is_lost_is_an_error_of_the_next_publish() {
    catch_bus_errors().unwrap();
    catch_bus_errors().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk::open(dir.path()).unwrap().open("f").unwrap();
    old_bytes(&*file, 2 * RANGE);
    let Some(mut appender) = file.map(0, RANGE).unwrap() else { return };
    let Some(mut other) = file.map(RANGE as u64, RANGE).unwrap() else { return };
    append(&mut appender, &[1; 5000]);
    appender.publish().unwrap();
    append(&mut other, &[1; 10]);
    other.publish().unwrap();
    std::fs::OpenOptions::new().write(true).open(dir.path().join("f")).unwrap().set_len(0).unwrap();
    // Within the part that was made ready before.
    append(&mut appender, &[2; 1000]);
    assert!(appender.publish().is_err(), "what was stored is in no file");
    assert_eq!(appender.buffer().filled(), 5000);
    assert_eq!(appender.buffer().bytes()[..4096], [0; 4096], "zeroes are read, and no signal ends the process");
    assert!(appender.publish().is_err(), "and so it stays");
    assert_eq!(other.buffer().bytes(), [0; 10], "a load that fails is noticed as well");
    append(&mut other, &[3; 10]);
    assert!(other.publish().is_err());
    drop((appender, other));
    let fresh = RealDisk::open(dir.path()).unwrap().open("fresh").unwrap();
    old_bytes(&*fresh, RANGE);
    let mut next = fresh.map(0, RANGE).unwrap().unwrap();
    append(&mut next, &[4; 10]);
    next.publish().unwrap();
    assert_eq!(next.buffer().bytes(), [4; 10], "what watches the next mapping knows nothing of the one before");
}

/// Flips every bit.
#[derive(Debug)]
struct Flip;

impl Transform for Flip {
    fn apply(&mut self, bytes: &[u8], out: &mut [u8]) {
        bytes.iter().zip(out).for_each(|(byte, out)| *out = !byte);
    }
}

#[test]
fn only_transformed_bytes_reach_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (real, sim) = (RealDisk::open(directory.path()).unwrap(), SimDisk::new(1, 1 << 20));
    for disk in [&real as &dyn Disk, &sim] {
        let file = disk.open("f").unwrap();
        file.allocate(RANGE as u64, &[4096]).unwrap();
        let Some(inner) = file.map(0, RANGE).unwrap() else { continue };
        let mut appender = Appender::through(inner, Box::new(Flip));
        for at in 0..1000_usize {
            append(&mut appender, &[at as u8; 130]);
            if at % 3 == 0 {
                appender.publish().unwrap();
            }
        }
        appender.publish().unwrap();
        assert_eq!((appender.buffer().filled(), appender.is_mapped()), (130_000, true));
        assert!(appender.resident_bytes() >= 2 * 130_000, "in memory twice");
        let mut found = vec![0; 130_000];
        file.read_at(&mut found, 0).unwrap();
        assert!(appender.buffer().bytes().iter().zip(&found).all(|(plain, found)| *plain == !found));
        appender.shed();
        assert_eq!(appender.buffer().bytes()[129_999], 999_usize as u8);
    }
}

#[test]
fn a_failed_publish_transforms_nothing_twice() {
    let disk = SimDisk::new(1, 1 << 20);
    let file = disk.open("f").unwrap();
    file.allocate(RANGE as u64, &[4096]).unwrap();
    let mut appender = Appender::through(file.map(0, RANGE).unwrap().unwrap(), Box::new(Flip));
    append(&mut appender, b"one");
    disk.set_faults(FaultPlan { at: vec![(1, Fault::Kill)], ..FaultPlan::default() });
    appender.publish().unwrap_err();
    append(&mut appender, b"two");
    appender.publish().unwrap_err();
    assert_eq!(appender.buffer().filled(), 0);
}
