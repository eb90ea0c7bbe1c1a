//! Tests of the embedded store: against a `BTreeMap`, over restarts, and where it must refuse.

use super::*;
use leeward_format::Epoch;
use leeward_format::packed::Codec;
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Rng, SimDisk};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn small(placement: Placement) -> DbOptions {
    DbOptions {
        volume: VolumeOptions { segment_bytes: 32 << 10, memory_budget: 1 << 20, ..VolumeOptions::default() },
        placement,
        l0_bytes: 64 << 10,
        growth_factor: 4,
        sync: SyncMode::Every(Duration::from_millis(10)),
        ..DbOptions::default()
    }
}

fn open(disk: &SimDisk, options: &DbOptions) -> Db {
    Db::open_on(disk, "sim", options.clone(), Arc::new(BootClock)).expect("a store that was closed can be opened")
}

fn everything(db: &Db) -> Model {
    let mut cursor = db.scan(ScanBounds::default());
    let mut all = Model::new();
    while let Some(entry) = cursor.next().expect("a sound device") {
        all.insert(entry.key.to_vec(), entry.value.to_vec());
    }
    all
}

/// One random write, to the store and to the model.
fn step(rng: &mut Rng, db: &Db, model: &mut Model) {
    let key = format!("key{:05}", rng.below(2000)).into_bytes();
    if rng.one_in(5) {
        db.delete(&key).unwrap();
        model.remove(&key);
    } else {
        let mut value = vec![0; rng.below(400) as usize];
        rng.fill(&mut value);
        db.put(&key, &value).unwrap();
        model.insert(key, value);
    }
}

#[test]
fn it_is_a_sorted_map_over_restarts_in_every_placement() {
    for (seed, placement) in
        [Placement::IN_PLACE, Placement::SEPARATED, Placement::threshold(200)].into_iter().enumerate()
    {
        let disk = SimDisk::new(seed as u64, 1 << 30);
        let options = small(placement);
        let mut rng = Rng::new(seed as u64);
        let mut model = Model::new();
        for _ in 0..3 {
            let db = open(&disk, &options);
            assert_eq!(everything(&db), model);
            for _ in 0..4000 {
                step(&mut rng, &db, &mut model);
            }
            for _ in 0..200 {
                let key = format!("key{:05}", rng.below(2100)).into_bytes();
                assert_eq!(db.get(&key).unwrap().as_deref(), model.get(&key).map(Vec::as_slice));
            }
            assert_eq!(everything(&db), model);
            let stats = db.stats().data;
            assert!(!stats.levels.is_empty() || stats.frozen_l0s > 0, "something was compacted, or will be: {stats:?}");
            db.close().unwrap();
        }
    }
}

#[test]
fn a_killed_process_loses_no_write_that_was_answered() {
    let disk = SimDisk::new(1, 1 << 30);
    let options = small(Placement::threshold(200));
    let mut rng = Rng::new(1);
    let mut model = Model::new();
    for round in 0..10 {
        let db = open(&disk, &options);
        assert_eq!(everything(&db), model, "round {round}");
        for _ in 0..rng.below(1500) {
            step(&mut rng, &db, &mut model);
        }
        disk.kill_process();
    }
}

#[test]
fn power_loss_takes_nothing_where_every_write_is_synced() {
    let disk = SimDisk::new(2, 1 << 30);
    let options = DbOptions { sync: SyncMode::Always, ..small(Placement::threshold(200)) };
    let mut rng = Rng::new(2);
    let mut model = Model::new();
    for round in 0..10 {
        let db = open(&disk, &options);
        assert_eq!(everything(&db), model, "round {round}");
        for _ in 0..rng.below(1500) {
            step(&mut rng, &db, &mut model);
        }
        disk.lose_power(&mut rng);
    }
}

#[test]
fn a_snapshot_does_not_move() {
    let disk = SimDisk::new(3, 1 << 30);
    let db = open(&disk, &small(Placement::threshold(200)));
    let mut rng = Rng::new(3);
    let mut model = Model::new();
    for _ in 0..1000 {
        step(&mut rng, &db, &mut model);
    }
    let (snapshot, then) = (db.snapshot(), model.clone());
    for _ in 0..4000 {
        step(&mut rng, &db, &mut model);
    }
    let mut cursor = snapshot.cursor(ScanBounds { reverse: true, ..ScanBounds::default() });
    let mut seen = Model::new();
    while let Some(entry) = cursor.next().unwrap() {
        assert!(seen.first_key_value().is_none_or(|(last, _)| entry.key < *last), "descending");
        seen.insert(entry.key.to_vec(), entry.value.to_vec());
    }
    assert_eq!(seen, then);
    assert_eq!(everything(&db), model);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let disk = SimDisk::new(4, 1 << 30);
    let db = Db::open_on(&disk, "sim", DbOptions::default(), Arc::new(BootClock)).unwrap();
    let refuse = |key: &[u8], value: &[u8]| db.put(key, value).unwrap_err().to_string();
    assert_eq!(refuse(b"", b""), "key of 0 bytes: must be 1 to 4096");
    assert_eq!(refuse(&[1; 4097], b""), "key of 4097 bytes: must be 1 to 4096");
    assert_eq!(refuse(b"k", &vec![0; (1 << 20) + 1]), "value of 1048577 bytes: must be at most 1048576");
    assert_eq!(db.write(&[]).unwrap_err().to_string(), "an empty batch");
    let half = vec![1; 1 << 19];
    let batch: Vec<_> = (0..4).map(|_| Write::put(b"k", &half)).collect();
    assert!(db.write(&batch).unwrap_err().to_string().starts_with("batch of 2097"));
    assert_eq!(everything(&db), Model::new());
    db.put(&[1; 4096], &vec![7; 1 << 20]).unwrap();
    assert_eq!(db.get(&[1; 4096]).unwrap().unwrap().len(), 1 << 20);
    db.put(b"empty", b"").unwrap();
    assert_eq!(db.get(b"empty").unwrap().as_deref(), Some(&b""[..]));
}

#[test]
fn small_segments_limit_values_with_a_clear_error() {
    let disk = SimDisk::new(5, 1 << 30);
    for placement in [Placement::IN_PLACE, Placement::SEPARATED] {
        disk.remove(VOLUME_NAME).unwrap();
        let db = open(&disk, &small(placement));
        let error = db.put(b"k", &vec![0; 40 << 10]).unwrap_err().to_string();
        assert!(error.ends_with("fit this volume's segments"), "{error}");
        let most = db.region.max_pair_bytes(placement == Placement::SEPARATED);
        db.put(b"k", &vec![1; most - 1]).unwrap();
        for fill in 0..200u32 {
            db.put(format!("fill{fill}").as_bytes(), &[0; 1000]).unwrap();
        }
        assert_eq!(db.get(b"k").unwrap().unwrap().len(), most - 1);
    }
}

#[test]
fn absurd_options_are_refused() {
    let refuse =
        |options| Db::open_on(&SimDisk::new(0, 1 << 30), "sim", options, Arc::new(BootClock)).unwrap_err().to_string();
    let defaults = DbOptions::default;
    assert!(refuse(DbOptions { l0_bytes: 1, ..defaults() }).contains("l0_bytes is 1: it must be from 65536"));
    assert!(refuse(DbOptions { growth_factor: 1, ..defaults() }).contains("it must be from 2 to 64"));
    assert!(refuse(DbOptions { l1_runs: 7, ..defaults() }).contains("it must be from 1 to 6"));
    assert!(refuse(DbOptions { max_space_percent: 104, ..defaults() }).contains("it must be from 105"));
    let placement = Placement { medium_from: 2, large_from: 1 };
    assert!(refuse(DbOptions { placement, ..defaults() }).contains("it must be from 0 to 1"));
    // Its thread would never sleep.
    let sync = SyncMode::Every(Duration::ZERO);
    assert!(refuse(DbOptions { sync, ..defaults() }).contains("must be at least 1ms"));
    let volume = VolumeOptions { segment_bytes: 3 << 20, ..VolumeOptions::default() };
    assert!(refuse(DbOptions { volume, ..defaults() }).contains("must be a power of two"));
    let volume = VolumeOptions { capacity_bytes: Some(1 << 20), ..VolumeOptions::default() };
    assert!(refuse(DbOptions { volume, ..defaults() }).contains("takes at least"));
}

#[test]
fn bad_options_are_told_before_anything_is_made_and_of_a_store_that_exists() {
    let disk = SimDisk::new(0, 1 << 30);
    let bad = DbOptions { l0_bytes: 1, ..DbOptions::default() };
    let refused = || Db::open_on(&disk, "sim", bad.clone(), Arc::new(BootClock)).unwrap_err();
    assert!(matches!(refused(), Error::Invalid(_)));
    assert!(!disk.exists(VOLUME_NAME).unwrap());
    open(&disk, &DbOptions::default()).close().unwrap();
    assert!(matches!(refused(), Error::Invalid(_)));
}

/// It would get a term that its group does not know.
#[test]
fn the_data_of_a_node_are_no_store() {
    let disk = SimDisk::new(0, 1 << 30);
    let (volume, _) = Volume::open(disk.open(VOLUME_NAME).unwrap(), VolumeId(1), VolumeOptions::default()).unwrap();
    let made = [RegionId(3), RegionId(7)].map(|id| Replica::create(&volume, id, TableOptions::default()).unwrap());
    volume.sync().unwrap();
    drop((made, volume));
    let error = Db::open_on(&disk, "sim", DbOptions::default(), Arc::new(BootClock)).unwrap_err();
    assert_eq!(error.to_string(), "sim: holds 2 regions: this is a node's data, not a store");
}

/// Another store would write to segments that the snapshot reads.
#[test]
fn a_directory_is_in_use_until_the_last_snapshot_is_gone() {
    let disk = SimDisk::new(10, 1 << 30);
    let options = small(Placement::threshold(200));
    let db = open(&disk, &options);
    db.put(b"key", &[7; 300]).unwrap();
    let snapshot = db.snapshot();
    db.close().unwrap();
    let error = Db::open_on(&disk, "sim", options.clone(), Arc::new(BootClock)).unwrap_err();
    assert!(matches!(&error, Error::Locked(_)), "{error}");
    assert!(
        matches!(snapshot.get(b"key", Reach::Device).unwrap(), Lookup::Found { value, .. } if value == [7; 300][..])
    );
    drop(snapshot);
    open(&disk, &options);
}

#[test]
fn a_store_almost_without_memory_is_the_same_map() {
    for memory_budget in [0, 1, 64 << 10, 200 << 10] {
        let disk = SimDisk::new(11, 1 << 30);
        let mut options = small(Placement { medium_from: 60, large_from: 200 });
        options.volume.memory_budget = memory_budget;
        let (mut rng, mut model, db) = (Rng::new(11), Model::new(), open(&disk, &options));
        (0..3000).for_each(|_| step(&mut rng, &db, &mut model));
        assert_eq!(everything(&db), model, "{memory_budget} bytes");
        db.close().unwrap();
        assert_eq!(everything(&open(&disk, &options)), model, "{memory_budget} bytes");
    }
}

#[test]
fn a_locked_directory_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), DbOptions::default()).unwrap();
    let error = Db::open(directory.path(), DbOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::Locked(_)), "{error}");
    assert!(error.to_string().contains("in use by another process"));
    db.close().unwrap();
    Db::open(directory.path(), DbOptions::default()).unwrap();
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let disk = SimDisk::new(6, 2 << 20);
    let options = small(Placement::threshold(200));
    let db = open(&disk, &options);
    let mut model = Model::new();
    let error = (0..20_000u32)
        .find_map(|number| {
            let (key, value) = (number.to_be_bytes().to_vec(), vec![number as u8; 300]);
            let answer = db.put(&key, &value);
            if answer.is_ok() {
                model.insert(key, value);
            }
            answer.err()
        })
        .expect("2 MiB are full some time");
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(everything(&db), model);
    disk.set_capacity(1 << 30);
    db.put(b"more", b"room").unwrap();
    model.insert(b"more".to_vec(), b"room".to_vec());
    drop(db);
    assert_eq!(everything(&open(&disk, &options)), model);
}

/// The store is overwritten many times: segments full of garbage are emptied into segments kept for that.
#[test]
fn a_volume_that_is_full_of_garbage_takes_writes_again() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut options = small(Placement::threshold(200));
    options.volume.capacity_bytes = Some(5 << 20);
    let db = open(&disk, &options);
    let (mut model, mut rng, mut refused) = (Model::new(), Rng::new(1), 0);
    for number in 0..60_000u32 {
        let (key, value) = (rng.below(3000).to_be_bytes().to_vec(), vec![number as u8; 300]);
        while let Err(error) = db.put(&key, &value) {
            assert!(matches!(error, Error::NoSpace { .. }), "{error}");
            refused += 1;
            assert!(refused < 5000, "{error}: {:?}", db.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
        model.insert(key, value);
    }
    assert!(db.stats().used_bytes <= 5 << 20);
    assert_eq!(everything(&db), model);
}

#[test]
fn a_failed_write_ends_all_writing_and_says_so() {
    let disk = SimDisk::new(7, 1 << 30);
    let options = small(Placement::threshold(200));
    let db = open(&disk, &options);
    db.put(b"before", b"1").unwrap();
    db.sync().unwrap();
    db.put(b"unsynced", b"2").unwrap();
    disk.set_faults(FaultPlan { at: vec![(1, Fault::Fail)], ..FaultPlan::default() });
    assert!(db.sync().is_err());
    let error = db.put(b"after", b"3").unwrap_err();
    assert!(matches!(error, Error::VolumeFailed { .. }), "{error}");
    assert_eq!(db.get(b"before").unwrap().as_deref(), Some(&b"1"[..]), "reads go on");
    drop(db);
    let db = open(&disk, &options);
    assert_eq!(db.get(b"before").unwrap().as_deref(), Some(&b"1"[..]));
    db.put(b"after", b"3").unwrap();
}

#[test]
fn it_works_on_a_real_directory() {
    let directory = tempfile::tempdir().unwrap();
    let options = DbOptions { l0_bytes: 1 << 20, ..DbOptions::default() };
    let mut model = Model::new();
    let mut rng = Rng::new(8);
    for _ in 0..2 {
        let db = Db::open(directory.path(), options.clone()).unwrap();
        assert_eq!(everything(&db), model);
        for _ in 0..20_000 {
            step(&mut rng, &db, &mut model);
        }
        assert_eq!(everything(&db), model);
        assert!(db.stats().device.bytes_written > 0);
    }
}

#[test]
fn readers_beside_the_writer_see_whole_batches_and_never_the_past() {
    let disk = SimDisk::new(9, 1 << 30);
    let db = open(&disk, &small(Placement::threshold(200)));
    let done = std::sync::atomic::AtomicBool::new(false);
    let number = |snapshot: &Snapshot, key: &[u8]| match snapshot.get(key, Reach::Device).unwrap() {
        Lookup::Found { value, .. } => u64::from_be_bytes(value[..8].try_into().unwrap()),
        _ => 0,
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot();
                    let (first, second) = (number(&snapshot, b"first"), number(&snapshot, b"second"));
                    assert_eq!(first, second, "half a batch");
                    assert!(first >= last, "{first} after {last}");
                    last = first;
                }
            });
        }
        for round in 1..3000u64 {
            let (small, large) = (round.to_be_bytes(), round.to_be_bytes().repeat(40));
            let fill = format!("fill{}", round % 500);
            db.write(&[
                Write::put(b"first", &small),
                Write::put(fill.as_bytes(), &large[..150]),
                Write::put(b"second", &large),
            ])
            .unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!db.stats().data.levels.is_empty(), "something was compacted meanwhile");
}

/// A wall clock that tests set.
#[derive(Default)]
struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> leeward_platform::Nanos {
        leeward_platform::Nanos::ZERO
    }
    fn unix_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Pairs with and without expiry, of every size, over restarts, while time passes.
#[test]
fn what_has_expired_is_absent_from_everything() {
    let (disk, clock) = (SimDisk::new(5, 1 << 30), Arc::new(SetClock(AtomicU64::new(1_000))));
    let options = small(Placement { medium_from: 60, large_from: 200 });
    let mut rng = Rng::new(5);
    let mut model = BTreeMap::<Vec<u8>, (Vec<u8>, Option<Expiry>)>::new();
    for _ in 0..3 {
        let db = Db::open_on(&disk, "sim", options.clone(), clock.clone()).unwrap();
        for _ in 0..3000 {
            let key = format!("key{:05}", rng.below(2000)).into_bytes();
            let value = vec![rng.below(256) as u8; rng.below(400) as usize];
            let ms = rng.below(2000);
            let lifetime = if rng.one_in(3) { Lifetime::Forever } else { Lifetime::For(ms) };
            let written = db.put_with(&key, &value, &PutOptions { when: Condition::Always, lifetime }).unwrap();
            assert!(written.done);
            model.insert(key, (value, lifetime.expiry(None, UnixMs(clock.unix_ms()))));
            clock.0.fetch_add(rng.below(4), Ordering::Relaxed);
        }
        let now = UnixMs(clock.unix_ms());
        let live = |(value, expires): &(Vec<u8>, Option<Expiry>)| {
            expires.is_none_or(|expires| !expires.is_over(now)).then(|| value.clone())
        };
        let expected: Model =
            model.iter().filter_map(|(key, pair)| live(pair).map(|value| (key.clone(), value))).collect();
        assert!(expected.len() * 5 < model.len() * 4, "some have expired");
        assert_eq!(everything(&db), expected);
        let keys: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
        for ((key, pair), found) in model.iter().zip(db.multi_get(&keys).unwrap()) {
            assert_eq!(found.map(|value| value.to_vec()), live(pair));
            let found = db.get_pair(key).unwrap();
            assert_eq!(
                found.map(|found| (found.value.to_vec(), found.expires)),
                live(pair).map(|value| (value, pair.1))
            );
        }
        db.close().unwrap();
    }
}

/// For any sizes, and while L0s freeze and compactions run, no increment is lost, by version or by value.
#[test]
fn threads_that_compare_and_set_lose_nothing() {
    const THREADS: u64 = 4;
    const INCREMENTS: u64 = 400;
    for sync in [SyncMode::Always, SyncMode::Every(Duration::from_millis(5))] {
        let options = DbOptions { sync, ..small(Placement { medium_from: 60, large_from: 200 }) };
        let db = open(&SimDisk::new(8, 1 << 30), &options);
        let increment = |thread: u64, i: u64| loop {
            let key = format!("counter{}", i % 3);
            let before = db.get_pair(key.as_bytes()).unwrap();
            let count = before.as_ref().map_or(0, |pair| u64::from_be_bytes(pair.value[..8].try_into().unwrap()));
            let mut after = vec![0; 8 + [10, 100, 300][(count % 3) as usize]];
            after[..8].copy_from_slice(&(count + 1).to_be_bytes());
            let when = match before {
                None => Condition::Absent,
                Some(pair) if i.is_multiple_of(2) => Condition::Version(pair.version),
                Some(pair) => Condition::Value(pair.value),
            };
            db.put(format!("other{thread}-{}", i % 50).as_bytes(), &[0; 150]).unwrap();
            let written = db.put_with(key.as_bytes(), &after, &PutOptions { when, ..PutOptions::default() }).unwrap();
            if written.done {
                break;
            }
            assert!(written.version.is_some(), "a key that was put is there");
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let increment = &increment;
                scope.spawn(move || (0..INCREMENTS).for_each(|i| increment(thread, i)));
            }
        });
        let count = |n: u64| {
            let value = db.get(format!("counter{n}").as_bytes()).unwrap().expect("it was put");
            u64::from_be_bytes(value[..8].try_into().unwrap())
        };
        assert_eq!((0..3).map(count).sum::<u64>(), THREADS * INCREMENTS);
    }
}

#[test]
fn conditions_hold_or_name_the_version_that_is_there() {
    let clock = Arc::new(SetClock(AtomicU64::new(1_000)));
    let db = Db::open_on(&SimDisk::new(9, 1 << 30), "sim", DbOptions::default(), clock.clone()).unwrap();
    let put = |value: &[u8], when, lifetime| db.put_with(b"k", value, &PutOptions { when, lifetime }).unwrap();
    let Written { done: true, version: Some(first) } = put(b"1", Condition::Absent, Lifetime::For(10)) else {
        panic!("there was none")
    };
    assert_eq!(put(b"2", Condition::Absent, Lifetime::Forever), Written { done: false, version: Some(first) });
    assert_eq!(
        put(b"2", Condition::Value("2".into()), Lifetime::Forever),
        Written { done: false, version: Some(first) }
    );
    let second = put(b"2", Condition::Version(first), Lifetime::AsBefore);
    assert!(second.done && second.version > Some(first));
    let pair = db.get_pair(b"k").unwrap().expect("it was put");
    assert_eq!((&pair.value[..], Some(pair.version), pair.expires), (&b"2"[..], second.version, Expiry::from_ms(1010)));
    assert!(!db.delete_if(b"k", &Condition::Version(first)).unwrap().done);
    clock.0.store(1010, Ordering::Relaxed);
    let none = Written { done: false, version: None };
    assert_eq!(db.delete_if(b"k", &Condition::Always).unwrap(), none, "it has expired");
    assert_eq!(put(b"3", Condition::Version(second.version.unwrap()), Lifetime::Forever), none);
    assert!(put(b"3", Condition::NotValue("2".into()), Lifetime::AsBefore).done);
    assert_eq!(db.get_pair(b"k").unwrap().expect("it was put").expires, None, "nothing was there before");
    assert_eq!(db.delete_if(b"k", &Condition::Value("3".into())).unwrap(), Written { done: true, version: None });
    assert_eq!(db.get(b"k").unwrap(), None);
}

#[test]
fn a_compressed_store_is_the_same_map_in_fewer_bytes() {
    let mut written = Vec::new();
    for (upper, last) in [(Codec::None, Codec::None), (Codec::Lz4, Codec::Lz4), (Codec::Lz4, Codec::Zstd)] {
        let disk = SimDisk::new(1, 1 << 30);
        let volume = VolumeOptions { segment_bytes: 64 << 10, ..VolumeOptions::default() };
        let options = DbOptions {
            volume,
            compression: Compression { upper, last },
            ..small(Placement { medium_from: 60, large_from: 300 })
        };
        let mut rng = Rng::new(7);
        let mut model = Model::new();
        let db = open(&disk, &options);
        for _ in 0..20_000 {
            let key = format!("key{:05}", rng.below(5000)).into_bytes();
            let value = vec![b'a' + rng.below(3) as u8; rng.below(400) as usize];
            db.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        assert_eq!(everything(&db), model);
        for n in 0..500u64 {
            let key = format!("key{:05}", rng.below(5100 + n)).into_bytes();
            assert_eq!(db.get(&key).unwrap().as_deref(), model.get(&key).map(Vec::as_slice));
        }
        assert!(db.verify().damaged.is_empty());
        db.close().unwrap();
        let db = open(&disk, &options);
        assert_eq!(everything(&db), model);
        written.push(db.stats().data.levels.iter().map(|level| u64::from(level.leaf_segments)).sum::<u64>());
    }
    // The number of levels depends on when compactions ran.
    assert!(written[1..].iter().all(|packed| *packed < written[0]), "leaf segments: {written:?}");
}

/// The first openings have the numbers of terms, later ones parts of these.
#[test]
fn a_store_can_be_opened_after_any_number_of_openings() {
    let options = small(Placement::threshold(200));
    for (before, openings) in [(Epoch(1), 3), (Epoch((1 << 17) - 2), 140), (Epoch::LAST_TERM, 3)] {
        let disk = SimDisk::new(1, 1 << 30);
        let (volume, _) = open_volume(&disk, "sim", options.volume.clone()).unwrap();
        let table = table_options(&options).unwrap();
        let region = Replica::create(&volume, REGION, table).unwrap().serve(before).unwrap();
        region.append(&[Write::put(b"first", &[0; 300])]).unwrap();
        region.sync_tails().unwrap();
        drop((region, volume));
        for n in 0..openings {
            let db = open(&disk, &options);
            assert!(db.region.term() > before);
            assert_eq!(everything(&db).len(), 1 + n as usize, "after {before:?}");
            db.put(&[n], &[n; 300]).unwrap();
            match n % 3 {
                0 => db.close().unwrap(),
                1 => disk.kill_process(),
                _ => drop(db),
            }
        }
    }
    let (volume, _) = open_volume(&SimDisk::new(1, 1 << 30), "sim", options.volume.clone()).unwrap();
    let last = Replica::create(&volume, REGION, table_options(&options).unwrap()).unwrap();
    assert!(last.serve(Epoch(u32::MAX >> 1)).is_ok());
}

#[test]
fn an_ingest_takes_one_lsn_whatever_it_is_told_of_its_pairs() {
    /// Knows nothing of its end, or something wrong.
    struct Liar<I>(I, Option<usize>);
    impl<I: Iterator> Iterator for Liar<I> {
        type Item = I::Item;
        fn next(&mut self) -> Option<I::Item> {
            self.0.next()
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (0, self.1)
        }
    }
    let disk = SimDisk::new(1, 1 << 30);
    let db = open(&disk, &small(Placement::threshold(200)));
    let version = |db: &Db| db.put_with(b"zz", b"", &PutOptions::default()).unwrap().version.unwrap();
    for (round, said) in (0u64..).zip([None, Some(0), Some(1), Some(usize::MAX), Some(usize::MAX), Some(usize::MAX)]) {
        let before = version(&db);
        let pairs = (0..500u32).map(|n| (n.to_be_bytes(), vec![n as u8; if n % 50 == 0 { 20_000 } else { 30 }]));
        assert_eq!(db.ingest(Liar(pairs.clone(), said)).unwrap(), 500, "round {round}");
        assert_eq!(version(&db), Lsn(before.0 + 2));
        for _ in 0..2 {
            for (key, value) in pairs.clone() {
                let pair = db.get_pair(&key).unwrap().expect("it was ingested");
                assert!(pair.value == value && pair.version == before.next());
            }
        }
    }
}
