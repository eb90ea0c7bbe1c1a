//! Ingest of sorted pairs among other operations: all pairs or none, newer than earlier writes and older than later
//! ones, in any level, and through crashes.

use crate::support::{
    History, Model, assert_holds, compact, contents, end_process, flush, open_region, read_all, volume_options,
};
use leeward_engine::embedded::{Db, DbOptions};
use leeward_engine::{AppendError, Error, Lookup, Reach, Region, Write};
use leeward_format::manifest::L1_RUNS;
use leeward_format::request::RequestId;
use leeward_format::{Lsn, UnixMs};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{BootClock, Rng, SimDisk};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const DISK_BYTES: u64 = 256 << 20;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Sorted pairs of a part of the keys that histories write.
fn random_pairs(rng: &mut Rng) -> Pairs {
    let (first, step) = (rng.below(2000), 1 + rng.below(5));
    let pair = |n: u64| {
        let longest = if n.is_multiple_of(17) { 3000 } else { 350 };
        (format!("key{:05}", first + n * step).into_bytes(), vec![n as u8; (n * 131 % longest) as usize])
    };
    (0..rng.below(400)).map(pair).collect()
}

/// Ingests like [`Db::ingest`], with some writes meanwhile; returns the last LSN that it took, and the error, if any.
fn ingest(region: &Region, rng: &mut Rng, history: &mut History, pairs: &Pairs, last: &mut u64) -> Result<(), Error> {
    let mut builder = loop {
        match region.begin_ingest() {
            Ok(builder) => break builder,
            Err(AppendError::TailBusy(_)) => flush(region)?,
            Err(AppendError::L0Full) => assert!(compact(region)?),
            Err(AppendError::Engine(error)) => {
                history.begin_ingest();
                return Err(error);
            }
        }
    };
    history.begin_ingest();
    assert_eq!(region.last_lsn().0, history.last());
    *last = history.last();
    for (key, value) in pairs {
        builder.push(key, value)?;
        if rng.one_in(20) {
            history.append(region, rng)?;
            if rng.one_in(4) {
                history.write(region)?;
                compact(region)?;
            }
        }
    }
    let Some(sorted) = builder.finish()? else { return Ok(()) };
    assert_eq!(sorted.pairs(), pairs.len() as u64);
    history.write(region)?;
    loop {
        if let Some(compaction) = region.ingest(&sorted)? {
            let done = compaction.finish()?;
            region.install(&done)?;
            history.synced = history.synced.max(*last);
            history.ingested(*last, pairs.clone());
            *last = 0;
            return Ok(());
        }
        assert!(compact(region)?, "an L0 from before is there to be compacted");
    }
}

fn work(
    disk: &SimDisk,
    rng: &mut Rng,
    history: &mut History,
    open: &mut (u64, Pairs),
    batches: u64,
) -> Result<(), Error> {
    let region = open_region(disk)?;
    history.cut(region.last_lsn());
    for _ in 0..batches {
        history.append(&region, rng)?;
        history.write(&region)?;
        match rng.below(60) {
            0..10 => flush(&region)?,
            10..20 => drop(compact(&region)?),
            20 => {
                open.1 = random_pairs(rng);
                ingest(&region, rng, history, &open.1, &mut open.0)?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn ingests_are_atomic_and_in_order_through_crashes() {
    let mut taken = [0, 0];
    for seed in 0..60 {
        let (disk, mut rng) = (SimDisk::new(seed, DISK_BYTES), Rng::new(seed));
        disk.set_maps(seed % 2 == 0);
        let mut history = History::default();
        for round in 0..5 {
            let context = format!("seed {seed}, round {round}");
            let at = 1 + rng.below(1500);
            disk.set_faults(FaultPlan { at: vec![(at, Fault::Kill)], ..FaultPlan::default() });
            let (batches, mut open) = (rng.below(600), (0, Pairs::new()));
            let died = work(&disk, &mut rng, &mut history, &mut open, batches).is_err();
            let guaranteed = end_process(&disk, &mut rng, &history, died);
            let region = open_region(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
            let last = region.last_lsn();
            assert!(last.0 >= guaranteed && last.0 <= history.last(), "{context}: {last} of {guaranteed}");
            history.cut(last);
            // An ingest that was not acknowledged may have been installed.
            if open.0 > 0 && open.0 <= last.0 {
                let is_taken = contents(&region) != history.model(last);
                taken[usize::from(is_taken)] += 1;
                if is_taken {
                    history.ingested(open.0, open.1);
                }
            }
            assert_holds(&region, &history.model(last), &context);
            assert!(region.volume().verify().damaged.is_empty(), "{context}");
            drop(region);
            disk.kill_process();
        }
    }
    assert!(taken[0] > 0, "some were given up: {taken:?}");
}

#[test]
fn pairs_land_in_the_deepest_level_that_has_room_for_them() {
    let region = open_region(&SimDisk::new(1, DISK_BYTES)).unwrap();
    let (mut rng, mut history) = (Rng::new(1), History::default());
    while region.stats().levels.len() <= L1_RUNS || region.stats().levels[L1_RUNS].entries == 0 {
        history.append(&region, &mut rng).unwrap();
        history.write(&region).unwrap();
        flush(&region).unwrap();
        while compact(&region).unwrap() {}
    }
    let before = region.stats().levels;
    let read = region.volume().counters().bytes_read;
    let above: Pairs = (0..2000).map(|n| (format!("later{n:05}").into_bytes(), vec![7; 100])).collect();
    ingest(&region, &mut Rng::new(0), &mut history, &above, &mut 0).unwrap();
    let after = region.stats().levels;
    let deepest = before.iter().rposition(|level| level.entries > 0).unwrap();
    assert_eq!(after[deepest].entries, before[deepest].entries + 2000);
    assert!(region.volume().counters().bytes_read < read + (1 << 20), "nothing was merged");
    assert_holds(&region, &history.model(region.last_lsn()), "above all keys");
    // Overlapping pairs become a run, and the newer ones win.
    let over: Pairs = (0..2000).map(|n| (format!("key{n:05}").into_bytes(), vec![8; 10])).collect();
    ingest(&region, &mut Rng::new(0), &mut history, &over, &mut 0).unwrap();
    assert_holds(&region, &history.model(region.last_lsn()), "over all keys");
    while compact(&region).unwrap() {}
    assert_holds(&region, &history.model(region.last_lsn()), "compacted");
}

/// A region whose levels have all of `key00000` and so on, up to 9999.
fn loaded() -> (Arc<Region>, Model) {
    let region = open_region(&SimDisk::new(1, DISK_BYTES)).unwrap();
    let mut model = Model::new();
    for n in 0..10_000 {
        write(&region, &mut model, &Write::put(format!("key{n:05}").as_bytes(), &[1; 100]));
    }
    while compact(&region).unwrap() {}
    (region, model)
}

fn write(region: &Region, model: &mut Model, write: &Write<'_>) {
    loop {
        match region.append(std::slice::from_ref(write)) {
            Ok(_) => break,
            Err(AppendError::TailBusy(_)) => flush(region).unwrap(),
            Err(AppendError::L0Full) => assert!(compact(region).unwrap()),
            Err(AppendError::Engine(error)) => panic!("{error}"),
        }
    }
    region.write_tails().unwrap();
    region.set_commit(region.last_lsn());
    match write.value {
        Some(value) => drop(model.insert(write.key.to_vec(), value.to_vec())),
        None => drop(model.remove(write.key)),
    }
}

/// However late it is, and however much it overlaps: what it writes is an index.
#[test]
fn a_late_ingest_merges_nothing() {
    let (region, mut model) = loaded();
    let mut builder = region.begin_ingest().unwrap();
    let pairs: Pairs = (0..5000).map(|n| (format!("key{:05}", 2 * n).into_bytes(), vec![2; 90])).collect();
    let mut newer = Model::new();
    for (n, (key, value)) in pairs.iter().enumerate() {
        builder.push(key, value).unwrap();
        if n % 2 == 0 {
            // Meanwhile L0s are compacted, with newer versions and tombstones of the same keys.
            let value = [3; 100];
            let one = if n % 4 == 0 { Write::put(key, &value) } else { Write::delete(key) };
            write(&region, &mut newer, &one);
            model.remove(key);
        }
    }
    let all = region.next_compaction_of_all(UnixMs(0)).expect("an L0 is compacted beside the ingest");
    region.install(&all.finish().unwrap()).unwrap();
    let sorted = builder.finish().unwrap().unwrap();
    let taken: Vec<_> = pairs.iter().filter(|(key, _)| model.contains_key(key)).cloned().collect();
    model.extend(taken);
    model.extend(newer);
    let compaction = loop {
        match region.ingest(&sorted).unwrap() {
            Some(compaction) => break compaction,
            None => assert!(compact(&region).unwrap()),
        }
    };
    let done = compaction.finish().unwrap();
    assert_eq!((done.entries_read, done.entries_written), (0, 0), "nothing is merged");
    assert!(done.bytes_written <= 64 << 10, "{} bytes", done.bytes_written);
    region.install(&done).unwrap();
    assert_holds(&region, &model, "installed");
    while compact(&region).unwrap() {}
    assert_holds(&region, &model, "merged");
    assert_eq!(region.volume().verify().damaged.len(), 0);
}

/// While an ingest is built, and between its choice and its install, writers fill L0s, and those are compacted.
#[test]
fn writes_and_compactions_go_on_while_an_ingest_is_installed() {
    let (region, mut model) = loaded();
    let mut builder = region.begin_ingest().unwrap();
    let fill = |model: &mut Model, value: u8, round: u32| {
        for n in 0..6000 {
            let key = format!("key{:05}", (n * 7 + round) % 10_000);
            write(&region, model, &Write::put(key.as_bytes(), &[value; 100]));
            if n % 1000 == 0 {
                while compact(&region).unwrap() {}
            }
        }
    };
    let mut newer = Model::new();
    // So many L0s that their runs are merged, though not into L2.
    (0..6).for_each(|round| fill(&mut newer, 3, round));
    for n in 0..10_000 {
        builder.push(format!("key{n:05}").as_bytes(), &[2; 50]).unwrap();
        model.insert(format!("key{n:05}").into_bytes(), vec![2; 50]);
    }
    let sorted = builder.finish().unwrap().unwrap();
    let ingest = loop {
        match region.ingest(&sorted).unwrap() {
            Some(ingest) => break ingest,
            None => assert!(compact(&region).unwrap()),
        }
    };
    let before = region.stats().compactions.installed;
    fill(&mut newer, 4, 3);
    assert!(region.stats().compactions.installed > before, "compactions go on");
    region.install(&ingest.finish().unwrap()).unwrap();
    model.extend(newer);
    assert_holds(&region, &model, "installed");
    while compact(&region).unwrap() {}
    assert_holds(&region, &model, "merged");
}

#[test]
fn what_is_not_sorted_changes_nothing() {
    let options = || DbOptions { volume: volume_options(), l0_bytes: 64 << 10, ..DbOptions::default() };
    let disk = SimDisk::new(1, DISK_BYTES);
    let db = Db::open_on(&disk, "db", options(), Arc::new(BootClock)).unwrap();
    db.put(b"m", b"there").unwrap();
    let used = db.stats().used_bytes;
    let many = (0..5000u32).map(|n| (n.to_be_bytes().to_vec(), vec![1; 300]));
    let wrong = [(b"z".to_vec(), Vec::new()), (b"y".to_vec(), Vec::new())];
    let error = db.ingest(many.clone().chain(wrong)).unwrap_err().to_string();
    assert_eq!(error, "key \"y\" does not come after \"z\": ingest takes sorted keys, each once");
    let error = db.ingest([("a", "1"), ("a", "2")]).unwrap_err().to_string();
    assert!(error.starts_with("key \"a\" does not come after \"a\""), "{error}");
    assert!(db.ingest([("", "")]).unwrap_err().to_string().contains("over the limits"));
    assert_eq!(db.ingest(Pairs::new()).unwrap(), 0);
    let expected = Model::from([(b"m".to_vec(), b"there".to_vec())]);
    assert_eq!(read_all(&db.snapshot()), expected);
    assert!(db.stats().used_bytes <= used + 4 * volume_options().segment_bytes as u64, "what was built is free again");
    // Twice, with an unknown number of pairs, and recovered.
    for round in 1..3 {
        let mut left = many.clone();
        assert_eq!(db.ingest(std::iter::from_fn(|| left.next())).unwrap(), 5000, "round {round}");
        db.put(&77u32.to_be_bytes(), &[round]).unwrap();
    }
    db.close().unwrap();
    let db = Db::open_on(&disk, "db", options(), Arc::new(BootClock)).unwrap();
    assert_eq!(read_all(&db.snapshot()).len(), 5001);
    assert_eq!(db.get(&77u32.to_be_bytes()).unwrap().as_deref(), Some(&[2][..]));
    assert!(db.verify().damaged.is_empty());
}

#[test]
fn writers_and_readers_go_on_beside_an_ingest() {
    let options = DbOptions { volume: volume_options(), l0_bytes: 64 << 10, ..DbOptions::default() };
    let db = Db::open_on(&SimDisk::new(1, DISK_BYTES), "db", options, Arc::new(BootClock)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut newest = 0u32;
            while !done.load(Ordering::Acquire) {
                newest += 1;
                db.put(b"k00500", &newest.to_be_bytes()).unwrap();
                assert_eq!(db.get(b"k00500").unwrap().as_deref(), Some(&newest.to_be_bytes()[..]));
            }
            newest
        });
        for round in 0..10u8 {
            let pairs = (0..1000).map(|n| (format!("k{n:05}"), vec![round; 200]));
            db.ingest(pairs.filter(|(key, _)| key != "k00500")).unwrap();
            assert_eq!(db.get(b"k00499").unwrap().as_deref(), Some(&[round; 200][..]));
        }
        done.store(true, Ordering::Release);
        let newest = writer.join().expect("the writer");
        assert_eq!(db.get(b"k00500").unwrap().as_deref(), Some(&newest.to_be_bytes()[..]));
    });
    assert_eq!(read_all(&db.snapshot()).len(), 1000);
}

/// Story of a bug: writes made during an ingest could be compacted before the ingest was installed, and then lay below
/// it; of deleted keys nothing was left.
#[test]
fn what_is_written_beside_an_ingest_is_newer_although_it_is_compacted_first() {
    let key = |n: u32| format!("k{n:05}").into_bytes();
    for l1_runs in [1, 4] {
        let options = DbOptions { volume: volume_options(), l0_bytes: 64 << 10, l1_runs, ..DbOptions::default() };
        let db = Db::open_on(&SimDisk::new(1, DISK_BYTES), "db", options, Arc::new(BootClock)).unwrap();
        let pairs = (0..1000).map(|n| {
            if n == 500 {
                (0..100).for_each(|n| db.put(&key(n), b"newer").unwrap());
                (200..300).for_each(|n| db.delete(&key(n)).unwrap());
                db.delete_range(&key(400), Some(&key(600))).unwrap();
                // Many L0s, so that the first ones are compacted.
                (2000..8000).for_each(|other| db.put(&key(other), &[0; 200]).unwrap());
            }
            (key(n), vec![7; if n % 7 == 0 { 3000 } else { 9 }])
        });
        assert_eq!(db.ingest(pairs).unwrap(), 1000);
        let is_newer = |n: u32| db.get(&key(n)).unwrap().is_some_and(|value| value == "newer");
        let is_older = |n: u32| db.get(&key(n)).unwrap().is_some_and(|value| value[0] == 7);
        assert!((0..100).all(is_newer) && (100..200).chain(300..400).chain(600..1000).all(is_older));
        assert!((200..300).chain(400..600).all(|n| db.get(&key(n)).unwrap().is_none()));
        assert_eq!(read_all(&db.snapshot()).len(), 6700);
        assert!(db.verify().damaged.is_empty());
    }
}

/// An ingest takes its LSNs when it begins: they are lower than that of a snapshot that does not see the pairs.
#[test]
fn a_snapshot_from_before_an_ingest_does_not_know_it_from_the_cache() {
    let options = DbOptions { volume: volume_options(), l0_bytes: 64 << 10, ..DbOptions::default() };
    let db = Db::open_on(&SimDisk::new(1, DISK_BYTES), "db", options, Arc::new(BootClock)).unwrap();
    let mut written = 0u32;
    while db.stats().data.depth() == 0 {
        db.put(&written.to_be_bytes(), &[1; 100]).unwrap();
        written += 1;
    }
    let key = |n: u32| format!("k{n:05}").into_bytes();
    let mut before = None;
    let pairs = (0..50).map(|n| {
        if n == 49 {
            db.put(b"beside", b"it").unwrap();
            before = Some(db.snapshot());
        }
        (key(n), vec![7; 2000])
    });
    assert_eq!(db.ingest(pairs).unwrap(), 50);
    let before = before.expect("it was taken");
    for n in 0..50 {
        // A read caches it.
        assert!(db.get(&key(n)).unwrap().is_some());
        assert_eq!(before.get(&key(n), Reach::Device).unwrap(), Lookup::Absent, "pair {n}");
    }
    assert!(matches!(before.get(b"beside", Reach::Device).unwrap(), Lookup::Found { .. }));
}

/// A region that copies pairs from elsewhere skips LSNs: later writes are newer than all writes made there. A node that
/// opens the region knows that earlier requests may have been executed there.
#[test]
fn lsns_that_are_skipped_stay_so_and_requests_from_before_are_forgotten() {
    let disk = SimDisk::new(1, DISK_BYTES);
    let request = |sequence| RequestId { client: 7, sequence };
    let put = |key, sequence| Write { request: Some(request(sequence)), ..Write::put(key, b"1") };
    let region = open_region(&disk).unwrap();
    assert_eq!(region.append(&[put(b"a", 1)]).unwrap().last, Lsn(1));
    assert_eq!(region.skip_lsns(Lsn(500)).unwrap(), Lsn(500));
    assert_eq!(region.append(&[put(b"b", 2)]).unwrap().last, Lsn(501));
    assert_eq!(region.skip_lsns(Lsn(3)).unwrap(), Lsn(502), "one at least");
    region.append(&[put(b"c", 3), Write::delete(b"a")]).unwrap();
    region.sync_tails().unwrap();
    let model = contents(&region);
    drop(region);
    disk.kill_process();
    let region = open_region(&disk).unwrap();
    assert_eq!((region.last_lsn(), contents(&region)), (Lsn(504), model.clone()));
    let found = region.take_requests();
    assert_eq!(found.forgotten, Lsn(502));
    assert!(found.found.iter().map(|(id, lsn, _)| (*id, lsn.0)).eq([
        (request(1), 1),
        (request(2), 501),
        (request(3), 503)
    ]));
    // Only later records are left to replay.
    flush(&region).unwrap();
    while compact(&region).unwrap() {}
    assert_eq!(region.skip_lsns(Lsn(900)).unwrap(), Lsn(900));
    region.seal_tails();
    flush(&region).unwrap();
    drop(region);
    disk.lose_power(&mut Rng::new(1));
    let region = open_region(&disk).unwrap();
    assert_eq!((region.last_lsn(), contents(&region)), (Lsn(900), model));
    assert_eq!(region.take_requests().forgotten, Lsn(900));
}
