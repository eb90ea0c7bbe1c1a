//! The space that old readers take: what they see, however much is written meanwhile.

use super::*;
use leeward_platform::SimDisk;

const CAPACITY: u64 = 8 << 20;

fn options() -> DbOptions {
    DbOptions {
        volume: VolumeOptions {
            segment_bytes: 64 << 10,
            memory_budget: 4 << 20,
            capacity_bytes: Some(CAPACITY),
            ..VolumeOptions::default()
        },
        l0_bytes: 64 << 10,
        sync: SyncMode::Every(Duration::from_millis(20)),
        ..DbOptions::default()
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key{:03}", n % 100).into_bytes()
}

fn value(n: u64, bytes: usize) -> Vec<u8> {
    n.to_be_bytes().iter().copied().cycle().take(bytes).collect()
}

/// Overwrites a hundred keys with so many bytes, from the write `first` on; returns the number of writes, and the most
/// bytes that were in use.
fn overwrite(db: &Db, first: u64, value_bytes: usize, bytes: u64) -> (u64, u64) {
    let (writes, mut most) = (bytes / value_bytes as u64, 0);
    for n in first..first + writes {
        db.put(&key(n), &value(n, value_bytes)).unwrap_or_else(|error| panic!("write {n}: {error}"));
        if n % 50 == 0 {
            most = most.max(db.stats().used_bytes);
        }
    }
    (writes, most)
}

/// The pairs of a store after `writes` writes.
fn check(cursor: &mut Cursor, writes: u64, value_bytes: usize) {
    let mut last: Vec<u64> = (writes - 100..writes).collect();
    last.sort_by_key(|n| n % 100);
    for n in last {
        let entry = cursor.next().expect("a sound device").expect("a hundred keys");
        assert_eq!((&entry.key[..], &entry.value[..]), (&key(n)[..], &value(n, value_bytes)[..]));
    }
    assert_eq!(cursor.next().expect("a sound device"), None);
}

/// A snapshot and a cursor while a hundred keys are overwritten with so many bytes.
fn read_beside(options: &DbOptions, value_bytes: usize, bytes: u64) {
    let disk = SimDisk::new(1, 1 << 40);
    let db = Db::open_on(&disk, "sim", options.clone(), Arc::new(BootClock)).unwrap();
    let (writes, before) = overwrite(&db, 0, value_bytes, bytes / 4);
    let snapshot = db.snapshot();
    let mut open = db.scan(ScanBounds::default());
    let first = open.next().unwrap().expect("a pair");
    let (more, after) = overwrite(&db, writes, value_bytes, bytes);
    assert!(after <= before + before / 2, "{value_bytes}: {before} bytes in use before, {after} under a snapshot");
    check(&mut snapshot.cursor(ScanBounds::default()), writes, value_bytes);
    let mut rest = 1;
    while let Some(entry) = open.next().unwrap() {
        assert!(entry.key > first.key);
        rest += 1;
    }
    assert_eq!(rest, 100);
    check(&mut db.scan(ScanBounds::default()), writes + more, value_bytes);
    println!("values of {value_bytes} bytes: {before} bytes in use before, {after} under a snapshot");
}

/// Values in the large log, in runs of the medium log, and in leaves.
#[test]
fn a_snapshot_and_a_cursor_keep_nothing_that_is_written_after_them() {
    for (value_bytes, bytes) in [(4000, 8 * CAPACITY), (300, 2 * CAPACITY), (70, CAPACITY)] {
        read_beside(&options(), value_bytes, bytes);
    }
}

#[test]
#[ignore = "writes 7.5 GiB: cargo test -p leeward-engine --lib -- --ignored --nocapture space_tests"]
fn the_same_at_full_size() {
    let volume = VolumeOptions { capacity_bytes: Some(256 << 20), ..VolumeOptions::default() };
    for value_bytes in [20_000, 2_000, 500] {
        read_beside(&DbOptions { volume: volume.clone(), ..DbOptions::default() }, value_bytes, 2 << 30);
    }
}
