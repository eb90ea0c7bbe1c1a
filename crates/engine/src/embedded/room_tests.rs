//! Full stores: deletes are taken and give room, writes go on once there is some, and nothing is lost.

use super::fault_tests::{Model, everything};
use super::*;
use crate::volume::Scarcity;
use leeward_format::cluster::Placement;
use leeward_platform::{Rng, SimDisk};
use std::time::Instant;

const SEGMENT_BYTES: u64 = 64 << 10;

fn options(capacity_bytes: Option<u64>) -> DbOptions {
    DbOptions {
        volume: VolumeOptions {
            segment_bytes: SEGMENT_BYTES as usize,
            memory_budget: 4 << 20,
            capacity_bytes,
            ..VolumeOptions::default()
        },
        placement: Placement { medium_from: 60, large_from: 1000 },
        l0_bytes: 128 << 10,
        growth_factor: 4,
        sync: SyncMode::Every(Duration::from_millis(20)),
        ..DbOptions::default()
    }
}

fn open(disk: &SimDisk, options: &DbOptions) -> Db {
    Db::open_on(disk, "sim", options.clone(), Arc::new(BootClock)).expect("a store")
}

/// What there is, in short.
fn state(db: &Db) -> String {
    let stats = db.stats();
    let levels = stats.data.levels.iter().enumerate().filter(|(_, level)| level.entries > 0);
    let levels: Vec<_> = levels
        .map(|(at, l)| format!("L[{at}] {} segments {} entries {} bytes", l.leaf_segments, l.entries, l.bytes))
        .collect();
    format!(
        "{} KiB of {} used; L0 {} bytes, {} frozen; {levels:?}; {} log segments, {} tails, runs {} KiB, large {:?}; {:?}",
        stats.used_bytes >> 10,
        stats.file_bytes >> 10,
        stats.data.l0_bytes,
        stats.data.frozen_l0s,
        stats.data.log_segments,
        stats.data.tails,
        stats.data.medium_log_bytes >> 10,
        stats.data.large_log,
        db.volume.why_full()
    )
}

fn key(n: u64) -> Vec<u8> {
    format!("key{:08}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 100_000_000).into_bytes()
}

fn value(n: u64, bytes: u64) -> Vec<u8> {
    n.to_be_bytes().iter().copied().cycle().take(bytes as usize).collect()
}

/// Writes until the store has refused for a fifth of a second; returns the number of the next write.
fn fill(db: &Db, first: u64, bytes: impl Fn(u64) -> u64, model: &mut Model) -> u64 {
    let (mut n, mut refused_since) = (first, None);
    loop {
        match db.put(&key(n), &value(n, bytes(n))) {
            Ok(()) => {
                model.insert(key(n), value(n, bytes(n)));
                (n, refused_since) = (n + 1, None);
            }
            Err(Error::NoSpace { .. }) => {
                if refused_since.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(200) {
                    return n;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("write {n}: {error}"),
        }
    }
}

/// Writes until one is taken.
fn write_with_room(db: &Db, n: u64, bytes: u64, model: &mut Model) {
    let since = Instant::now();
    while let Err(error) = db.put(&key(n), &value(n, bytes)) {
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        assert!(since.elapsed() < Duration::from_secs(60), "{error}: {}", state(db));
        std::thread::sleep(Duration::from_millis(5));
    }
    model.insert(key(n), value(n, bytes));
}

fn delete_all(db: &Db, model: &mut Model) {
    let all = model.len();
    for (i, key) in std::mem::take(model).into_keys().enumerate() {
        db.delete(&key).unwrap_or_else(|error| panic!("delete {i} of {all}: {error}: {}", state(db)));
    }
}

fn mixed(n: u64) -> u64 {
    [20, 300, 5000][n as usize % 3]
}

/// Values in leaves, in runs of the medium log, in the large log, and of all kinds.
#[test]
fn a_full_store_is_emptied_by_deletes() {
    let kinds: [fn(u64) -> u64; 4] = [|_| 20, |_| 300, |_| 5000, mixed];
    for (kind, bytes) in kinds.into_iter().enumerate() {
        for is_declared in [true, false] {
            let capacity = 128 * SEGMENT_BYTES;
            let disk = SimDisk::new(1, if is_declared { 1 << 40 } else { capacity });
            let options = options(is_declared.then_some(capacity));
            let (db, mut model) = (open(&disk, &options), Model::new());
            let mut next = 0;
            for round in 0..2 {
                next = fill(&db, next, bytes, &mut model);
                println!("kind {kind}, declared {is_declared}, round {round}: {} pairs", model.len());
                assert!(db.volume.why_full().is_some());
                delete_all(&db, &mut model);
                write_with_room(&db, next, bytes(next), &mut model);
                next += 1;
            }
            assert_eq!(everything(&db).unwrap(), model);
            assert!(db.verify().damaged.is_empty());
        }
    }
}

/// A ballast takes a part of a disk while the store fills up. Without it there is room for what waits.
#[test]
fn a_disk_that_was_full_takes_writes_with_a_little_room() {
    let kinds: [fn(u64) -> u64; 3] = [|_| 300, |_| 20, mixed];
    for (kind, bytes) in kinds.into_iter().enumerate() {
        let disk = SimDisk::new(2, 256 * SEGMENT_BYTES);
        let ballast = || {
            let file = disk.open("ballast").unwrap();
            file.allocate(24 * SEGMENT_BYTES, &[SEGMENT_BYTES]).map(|()| file)
        };
        let file = ballast().unwrap();
        let (mut db, mut model) = (open(&disk, &options(None)), Model::new());
        let mut next = fill(&db, 0, bytes, &mut model);
        for round in 0..3 {
            if round == 1 {
                db.close().unwrap();
                db = open(&disk, &options(None));
            }
            println!("kind {kind}, round {round}: {} pairs", model.len());
            if round == 0 {
                drop(file.clone());
                disk.remove("ballast").unwrap();
            } else {
                for key in model.keys().take(model.len() / 3).cloned().collect::<Vec<_>>() {
                    db.delete(&key).unwrap_or_else(|error| panic!("{error}: {}", state(&db)));
                    model.remove(&key);
                }
            }
            for _ in 0..100 {
                write_with_room(&db, next, bytes(next), &mut model);
                next += 1;
            }
            next = fill(&db, next, bytes, &mut model);
        }
        assert_eq!(everything(&db).unwrap(), model);
    }
}

/// Pairs that were merged while room was short have their medium values in runs, also in the last level. Once there is
/// room, merges bring them into the leaves, and take more than the leaves had.
#[test]
fn a_full_store_whose_keys_are_overwritten_goes_on_after_deletes() {
    let kinds: [fn(u64) -> u64; 2] = [|_| 300, mixed];
    for (kind, bytes) in kinds.into_iter().enumerate() {
        let disk = SimDisk::new(3, 256 * SEGMENT_BYTES);
        let (db, mut model) = (open(&disk, &options(None)), Model::new());
        let mut next = fill(&db, 0, bytes, &mut model);
        for round in 0..3 {
            println!("kind {kind}, round {round}: {} pairs, {}", model.len(), state(&db));
            let keys: Vec<_> = model.keys().cloned().collect();
            let mut rng = Rng::new(round);
            for at in 0..keys.len() as u64 {
                let (key, value) = (&keys[rng.below(keys.len() as u64) as usize], value(at, bytes(at)));
                match db.put(key, &value) {
                    Ok(()) => drop(model.insert(key.clone(), value)),
                    Err(error) => assert!(matches!(error, Error::NoSpace { .. }), "{error}"),
                }
            }
            for key in keys.iter().filter(|_| rng.below(2) == 0) {
                db.delete(key).unwrap_or_else(|error| panic!("{error}: {}", state(&db)));
                model.remove(key);
            }
            for _ in 0..100 {
                write_with_room(&db, next, bytes(next), &mut model);
                next += 1;
            }
            next = fill(&db, next, bytes, &mut model);
        }
        assert_eq!(everything(&db).unwrap(), model);
        assert!(db.verify().damaged.is_empty());
    }
}

/// Others miss the room, so deletes do not wait for more writes.
#[test]
fn what_deletes_give_back_on_a_full_device_is_there_without_more_writes() {
    deletes_give_back(|_, db| db);
}

#[test]
fn what_deletes_give_back_on_a_full_device_is_there_after_a_start() {
    deletes_give_back(|disk, db| {
        disk.kill_process();
        drop(db);
        open(disk, &options(None))
    });
}

fn deletes_give_back(meanwhile: impl FnOnce(&SimDisk, Db) -> Db) {
    let disk = SimDisk::new(4, 256 * SEGMENT_BYTES);
    let (db, mut model) = (open(&disk, &options(None)), Model::new());
    fill(&db, 0, |_| 5000, &mut model);
    let before = db.stats().used_bytes;
    delete_all(&db, &mut model);
    let db = meanwhile(&disk, db);
    // Others miss what there is, until the file grows.
    disk.leave_room(Some(0));
    let since = Instant::now();
    while db.stats().used_bytes > before / 4 {
        assert!(since.elapsed() < Duration::from_secs(60), "{before} bytes in use before; {}", state(&db));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Others fill the device while nothing happens in the store.
#[test]
fn a_device_that_others_fill_is_noticed() {
    let disk = SimDisk::new(1, 1 << 30);
    let db = open(&disk, &options(None));
    db.put(b"key", b"value").unwrap();
    let volume = &db.volume;
    volume.look_at_device();
    assert_eq!(volume.scarcity(), Scarcity::None);
    disk.leave_room(Some(SEGMENT_BYTES / 2));
    volume.look_at_device();
    assert_eq!(volume.scarcity(), Scarcity::Missed);
}
