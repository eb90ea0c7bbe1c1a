//! Checkpoints keep the region's contents, whatever happens to the region, the process and the machine. The space that
//! they keep is freed when they are dropped.

use crate::support::{
    History, Model, assert_holds, compact, end_process, flush, now, open_region, read_all, volume_options,
};
use leeward_engine::embedded::{Db, DbOptions, SyncMode};
use leeward_engine::{Checkpoint, Error, Region};
use leeward_format::{Lsn, UnixMs};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{BootClock, Rng, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const DISK_BYTES: u64 = 256 << 20;

/// Names of checkpoints, and the last LSN of each if it was acknowledged.
type Made = BTreeMap<String, Option<Lsn>>;

fn contents(checkpoint: &Checkpoint) -> Model {
    read_all(checkpoint.snapshot())
}

/// Works on a region, and makes and drops checkpoints, until a fault ends it.
fn work(disk: &SimDisk, rng: &mut Rng, history: &mut History, made: &mut Made, batches: u64) -> Result<(), Error> {
    let region = open_region(disk)?;
    history.cut(region.last_lsn());
    for _ in 0..batches {
        history.append(&region, rng)?;
        history.write(&region)?;
        match rng.below(40) {
            0..8 => flush(&region)?,
            8..16 => drop(compact(&region)?),
            16 => {
                let name = format!("at-{}", region.last_lsn());
                let last = region.last_lsn();
                // Until it is acknowledged it may exist or not.
                made.entry(name.clone()).or_insert(None);
                region.checkpoint(&name)?;
                history.synced = last.0;
                made.insert(name, Some(last));
            }
            17 if !made.is_empty() => {
                let name = made.keys().nth(rng.index(made.len())).expect("there are some").clone();
                made.insert(name.clone(), None);
                region.drop_checkpoint(&name)?;
                made.remove(&name);
            }
            _ => {}
        }
    }
    Ok(())
}

fn check(region: &Region, made: &Made, history: &History) {
    let there: Vec<String> = region.checkpoints().into_iter().map(|info| info.name).collect();
    for (name, last) in made {
        let Some(last) = last else { continue };
        assert!(there.contains(name), "{name} of {there:?}");
        let checkpoint = region.open_checkpoint(name, now()).expect("a sound disk");
        assert_eq!(checkpoint.snapshot().lsn(), *last);
        assert!(contents(&checkpoint) == history.model(*last), "{name}");
    }
    assert!(there.iter().all(|name| made.contains_key(name)), "{there:?}");
}

#[test]
fn checkpoints_survive_crashes_and_hold_what_was_there() {
    for seed in 0..40 {
        let (disk, mut rng) = (SimDisk::new(seed, DISK_BYTES), Rng::new(seed));
        disk.set_maps(seed % 2 == 0);
        let (mut history, mut made) = (History::default(), Made::new());
        for round in 0..6 {
            let at = 1 + rng.below(1500);
            disk.set_faults(FaultPlan { at: vec![(at, Fault::Kill)], ..FaultPlan::default() });
            let batches = rng.below(600);
            let died = work(&disk, &mut rng, &mut history, &mut made, batches).is_err();
            let guaranteed = end_process(&disk, &mut rng, &history, died);
            let region = open_region(&disk).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            let last = region.last_lsn();
            assert!(last.0 >= guaranteed, "seed {seed}, round {round}: {last} of {guaranteed}");
            assert_eq!(region.volume().verify().damaged.len(), 0);
            check(&region, &made, &history);
            // A checkpoint whose creation was not acknowledged may exist or not.
            let there: Vec<String> = region.checkpoints().into_iter().map(|info| info.name).collect();
            made.retain(|name, _| there.contains(name));
            history.cut(last);
            assert_holds(&region, &history.model(last), "the region itself");
            drop(region);
            disk.kill_process();
        }
    }
}

#[test]
fn what_a_checkpoint_keeps_comes_back_when_it_is_dropped_and_let_go() {
    let disk = SimDisk::new(1, DISK_BYTES);
    let mut rng = Rng::new(1);
    let mut history = History::default();
    let region = open_region(&disk).unwrap();
    for _ in 0..1500 {
        history.append(&region, &mut rng).unwrap();
        history.write(&region).unwrap();
    }
    region.checkpoint("early").unwrap();
    let last = region.last_lsn();
    for _ in 0..3000 {
        history.append(&region, &mut rng).unwrap();
        history.write(&region).unwrap();
    }
    region.seal_tails();
    flush(&region).unwrap();
    while compact(&region).unwrap() {}
    let info = region.checkpoints().remove(0);
    assert!(info.own_bytes > 10 * volume_options().segment_bytes as u64 && info.own_bytes <= info.bytes, "{info:?}");
    let open = region.open_checkpoint("early", now()).unwrap();
    let then = history.model(last);
    let mut cursor = open.snapshot().cursor(Default::default());
    let used = region.volume().usage().0;
    region.drop_checkpoint("early").unwrap();
    assert!(region.drop_checkpoint("early").is_err() && region.open_checkpoint("early", now()).is_err());
    assert_eq!(region.volume().usage().0, used, "it is still read");
    assert!(contents(&open) == then);
    drop(open);
    let mut left = 0;
    while cursor.next().unwrap().is_some() {
        left += 1;
    }
    assert_eq!(left, then.len(), "a cursor keeps what it needs");
    drop(cursor);
    assert_eq!(region.volume().usage().0, used - info.own_bytes);
}

#[test]
fn names_are_checked() {
    let region = open_region(&SimDisk::new(1, DISK_BYTES)).unwrap();
    for name in ["", "a b", "../x", &"n".repeat(65)] {
        assert!(matches!(region.checkpoint(name), Err(Error::Invalid(_))), "{name:?}");
    }
    region.checkpoint("empty").unwrap();
    assert_eq!(region.checkpoint("empty").unwrap_err().to_string(), "there is a checkpoint \"empty\" already");
    assert!(contents(&region.open_checkpoint("empty", UnixMs(0)).unwrap()).is_empty());
}

#[test]
fn an_exported_checkpoint_is_a_store() {
    let options = || DbOptions {
        volume: volume_options(),
        l0_bytes: 64 << 10,
        sync: SyncMode::Every(Duration::from_secs(3600)),
        ..DbOptions::default()
    };
    let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
    let db = Db::open_on(&here, "here", options(), Arc::new(BootClock)).unwrap();
    let mut expected = Model::new();
    for n in 0..4000u32 {
        let (key, value) = (format!("k{:05}", n * 7919 % 3000), vec![n as u8; 40 + n as usize % 1500]);
        db.put(key.as_bytes(), &value).unwrap();
        expected.insert(key.into_bytes(), value);
    }
    db.delete_range(b"k00100", Some(b"k00200")).unwrap();
    expected.retain(|key, _| key[..] < b"k00100"[..] || key[..] >= b"k00200"[..]);
    db.checkpoint("all").unwrap();
    db.delete_range(b"", None).unwrap();
    db.export_checkpoint_to("all", &there, "there").unwrap();
    assert!(db.export_checkpoint_to("all", &there, "there").unwrap_err().to_string().contains("a store already"));
    assert!(db.export_checkpoint_to("none", &SimDisk::new(3, DISK_BYTES), "nowhere").is_err());
    let copy = Db::open_on(&there, "there", options(), Arc::new(BootClock)).unwrap();
    assert!(copy.verify().damaged.is_empty());
    assert!(read_all(&copy.snapshot()) == expected);
    assert!(read_all(&db.snapshot()).is_empty());
    copy.put(b"k00150", b"new").unwrap();
    assert_eq!(copy.get(b"k00150").unwrap().as_deref(), Some(&b"new"[..]));
}
