//! A store on a disk that fails, or is full, at any moment: acknowledged writes are there, refused ones are not, and
//! every error tells what happened. A failed sync may lose the writes after the last successful sync.

use super::*;
use leeward_platform::SimDisk;
use leeward_platform::disk::{Fault, FaultPlan};
use std::collections::BTreeMap;
use std::time::Instant;

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) fn options() -> DbOptions {
    DbOptions {
        volume: VolumeOptions { segment_bytes: 32 << 10, memory_budget: 1 << 20, ..VolumeOptions::default() },
        placement: Placement { medium_from: 60, large_from: 200 },
        l0_bytes: 64 << 10,
        growth_factor: 4,
        sync: SyncMode::Every(Duration::from_millis(5)),
        ..DbOptions::default()
    }
}

fn open(disk: &SimDisk) -> Result<Db> {
    Db::open_on(disk, "sim", options(), Arc::new(BootClock))
}

pub(super) fn everything(db: &Db) -> Result<Model> {
    let mut cursor = db.scan(ScanBounds::default());
    let mut all = Model::new();
    while let Some(entry) = cursor.next()? {
        all.insert(entry.key.to_vec(), entry.value.to_vec());
    }
    Ok(all)
}

/// Keys and their values.
type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Result of a step.
struct Done {
    changes: Changes,
    is_sync: bool,
}

/// Does one random thing to the store and, if the store acknowledges it, to the model; otherwise returns the
/// unacknowledged change.
fn step(rng: &mut Rng, db: &Db, model: &mut Model) -> Result<Done, (Error, Changes)> {
    let key = |n: u64| format!("key{n:04}").into_bytes();
    let mut changes = Changes::new();
    let number = rng.below(400);
    let done = match number {
        0 => {
            let first = rng.below(1000);
            let pairs: Model = (first..first + 300).map(|n| (key(n), vec![n as u8; 100])).collect();
            changes.extend(pairs.iter().map(|(key, value)| (key.clone(), Some(value.clone()))));
            db.ingest(pairs.iter()).map(drop)
        }
        1 => match db.checkpoints() {
            all if all.len() > 1 => all.iter().try_for_each(|checkpoint| db.drop_checkpoint(&checkpoint.name)),
            all => db.checkpoint(&format!("checkpoint-{}", all.len())),
        },
        2 => {
            let (start, end) = (key(rng.below(1000)), key(1000 + rng.below(300)));
            changes.extend(model.range(start.clone()..end.clone()).map(|(key, _)| (key.clone(), None)));
            db.delete_range(&start, Some(&end))
        }
        3 => db.sync(),
        n => {
            let (key, value) = (key(rng.below(1300)), vec![n as u8; rng.below(400) as usize]);
            changes.push((key.clone(), Some(value.clone())));
            db.put(&key, &value)
        }
    };
    if let Err(error) = done {
        return Err((error, changes));
    }
    apply(model, &changes);
    Ok(Done { changes, is_sync: number == 3 })
}

fn apply(model: &mut Model, changes: &[(Vec<u8>, Option<Vec<u8>>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(key)),
        }
    }
}

/// Changes since the last sync: a failed sync may lose the newest of them.
#[derive(Default)]
struct Unsynced {
    synced: Model,
    since: Changes,
}

impl Unsynced {
    fn note(&mut self, Done { changes, is_sync }: Done) {
        self.since.extend(changes);
        if is_sync {
            apply(&mut self.synced, &std::mem::take(&mut self.since));
        }
    }

    /// Whether `found` is the state at the sync plus some of the later changes, in order.
    fn explains(mut self, found: &Model) -> bool {
        self.synced == *found
            || self.since.iter().any(|change| {
                apply(&mut self.synced, std::slice::from_ref(change));
                self.synced == *found
            })
    }
}

#[test]
fn a_disk_that_is_full_at_any_moment_costs_nothing_that_was_answered() {
    // Deletes wait for room, so the disks fill up at the same time.
    let refused: u32 = std::thread::scope(|scope| {
        let disks: Vec<_> = (280..2000).step_by(215).map(|kib| scope.spawn(move || full_at(kib))).collect();
        disks.into_iter().map(|disk| disk.join().expect("the disk was well")).sum()
    });
    assert!(refused > 1000, "most were full some time: {refused} refused");
}

/// How many writes a disk of this size refuses.
fn full_at(kib: u64) -> u32 {
    let mut refused = 0;
    let disk = SimDisk::new(kib, kib << 10);
    let (mut rng, mut model) = (Rng::new(kib), Model::new());
    let db = match open(&disk) {
        Err(error) => {
            assert!(kib < 300 && matches!(error, Error::NoSpace { .. }), "{kib} KiB: {error}");
            disk.set_capacity(1 << 30);
            open(&disk).expect("there is room now")
        }
        Ok(db) => db,
    };
    for _ in 0..6000 {
        if let Err((error, _)) = step(&mut rng, &db, &mut model) {
            assert!(matches!(error, Error::NoSpace { .. }), "{kib} KiB: {error}");
            refused += 1;
        }
    }
    assert_eq!(everything(&db).unwrap(), model, "{kib} KiB");
    assert!(db.verify().damaged.is_empty());
    disk.set_capacity(1 << 30);
    // Until the workers have tried again they return the same error.
    let since = Instant::now();
    while let Err(error) = db.put(b"more", b"room") {
        assert!(since.elapsed() < Duration::from_secs(30), "{kib} KiB: {error}");
    }
    model.insert(b"more".to_vec(), b"room".to_vec());
    (0..500).for_each(|_| while step(&mut rng, &db, &mut model).is_err() {});
    db.close().unwrap();
    let db = open(&disk).unwrap();
    assert_eq!(everything(&db).unwrap(), model, "{kib} KiB, opened again");
    assert!(db.verify().damaged.is_empty());
    refused
}

#[test]
fn no_term_begins_twice_after_a_power_loss() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed, 1 << 30);
        let options = || DbOptions { sync: SyncMode::Every(Duration::from_secs(3600)), ..options() };
        let open = || Db::open_on(&disk, "sim", options(), Arc::new(BootClock)).unwrap();
        let first = open();
        first.put(b"key", b"value").unwrap();
        let term = first.region.term();
        disk.lose_power(&mut Rng::new(seed));
        drop(first);
        assert!(open().region.term() > term, "seed {seed}");
    }
}

#[test]
fn an_operation_of_the_disk_that_fails_costs_nothing_that_was_answered() {
    let mut failed = 0;
    for op in (1..900).step_by(13) {
        let disk = SimDisk::new(op, 1 << 30);
        let (mut rng, mut model) = (Rng::new(op), Model::new());
        // A store to mapped memory is an operation that cannot fail.
        disk.set_maps(op % 2 == 0);
        disk.set_faults(FaultPlan { at: vec![(op, Fault::Fail)], ..FaultPlan::default() });
        let mut unsynced = Unsynced::default();
        let stopped = open(&disk)
            .map_err(|error| (error, Changes::new()))
            .and_then(|db| (0..2500).try_for_each(|_| step(&mut rng, &db, &mut model).map(|done| unsynced.note(done))));
        failed += u32::from(stopped.is_err());
        let is_failed_sync = match &stopped {
            Err((Error::Io { action, .. }, _)) => *action == "sync",
            Err((Error::VolumeFailed { reason, .. }, _)) => reason.contains("sync"),
            _ => false,
        };
        // It is unknown whether the last of them was executed.
        let doubtful: BTreeMap<_, _> = match stopped {
            Err((Error::Io { .. } | Error::VolumeFailed { .. }, changes)) => changes.into_iter().collect(),
            Err((error, _)) => panic!("operation {op}: {error}"),
            Ok(()) => BTreeMap::new(),
        };
        disk.set_faults(FaultPlan::default());
        let db = open(&disk).unwrap_or_else(|error| panic!("operation {op}: {error}"));
        let found = everything(&db).unwrap();
        if is_failed_sync {
            // The next process does not read data that only the page cache has.
            unsynced.since.extend(doubtful);
            assert!(unsynced.explains(&found), "operation {op}: not a part of what was done, from its beginning");
            assert!(db.verify().damaged.is_empty());
            continue;
        }
        for key in found.keys().chain(model.keys()) {
            let is_right = found.get(key) == model.get(key) || doubtful.get(key) == Some(&found.get(key).cloned());
            assert!(is_right, "operation {op}: {:?}", key.escape_ascii().to_string());
        }
        assert!(db.verify().damaged.is_empty());
    }
    assert!(failed > 20, "{failed} were told");
}
