//! What the engine's tests share: a region driven by hand on a simulated disk, and the history that it must agree with.

use leeward_engine::compaction::Step;
use leeward_engine::{AppendError, Error, Reach, Region, Replica, ScanBounds, Snapshot, Volume, VolumeOptions, Write};
use leeward_format::cluster::{Placement, TableOptions};
use leeward_format::{LogKind, Lsn, RegionId, UnixMs, VolumeId};
use leeward_platform::{Disk, Rng, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) const REGION: RegionId = RegionId(1);

pub(crate) fn volume_options() -> VolumeOptions {
    VolumeOptions { segment_bytes: 32 << 10, cache_bytes: 256 << 10, ..VolumeOptions::default() }
}

pub(crate) fn table_options() -> TableOptions {
    TableOptions {
        placement: Placement { medium_from: 60, large_from: 200 },
        l0_bytes: 12 << 10,
        growth_factor: 2,
        ..TableOptions::default()
    }
}

pub(crate) fn open_volume(disk: &SimDisk) -> Result<(Arc<Volume>, Vec<Replica>), Error> {
    Volume::open(disk.open("volume").expect("a simulated file opens"), VolumeId(1), volume_options())
}

/// Opens the volume and serves its region, which is made if there is none, in the next term.
pub(crate) fn open_region(disk: &SimDisk) -> Result<Arc<Region>, Error> {
    let (volume, replicas) = open_volume(disk)?;
    let replica = match replicas.into_iter().next() {
        Some(replica) => replica,
        None => Replica::create(&volume, REGION, table_options())?,
    };
    let term = replica.position().0.next();
    let region = replica.serve(term)?;
    region.set_commit(region.last_lsn());
    Ok(region)
}

/// A write, and what it does to a model.
#[derive(Clone)]
pub(crate) enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// No end: up to the last key.
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
    /// Pairs that were ingested, with the last of their LSNs; nothing with the others.
    Ingest(Vec<(Vec<u8>, Vec<u8>)>),
}

impl Change {
    /// A random one.
    fn random(rng: &mut Rng, keys: u64) -> Change {
        let name = |n: u64| format!("key{n:05}").into_bytes();
        let n = rng.below(keys);
        if rng.one_in(250) {
            let width = if rng.one_in(50) { keys } else { 40 };
            let end = n + 1 + rng.below(width);
            return Change::DeleteRange(name(n), (end < keys).then(|| name(end)));
        }
        if rng.one_in(6) {
            return Change::Delete(name(n));
        }
        let longest = if rng.one_in(20) { 3000 } else { 350 };
        let mut value = vec![0; rng.below(longest) as usize];
        rng.fill(&mut value);
        Change::Put(name(n), value)
    }

    fn write(&self) -> Write<'_> {
        match self {
            Change::Put(key, value) => Write::put(key, value),
            Change::Delete(key) => Write::delete(key),
            Change::DeleteRange(start, end) => Write::delete_range(start, end.as_deref()),
            Change::Ingest(_) => unreachable!("no write"),
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Change::Put(key, value) => drop(model.insert(key.clone(), value.clone())),
            Change::Delete(key) => drop(model.remove(key)),
            Change::DeleteRange(start, end) => {
                model.retain(|key, _| key < start || end.as_ref().is_some_and(|end| key >= end));
            }
            Change::Ingest(pairs) => model.extend(pairs.iter().cloned()),
        }
    }
}

/// Every write that a region has taken, by LSN.
#[derive(Clone, Default)]
pub(crate) struct History {
    writes: Vec<Change>,
    /// Ends of batches.
    ends: Vec<u64>,
    /// Last LSN that reached the page cache.
    pub(crate) written: u64,
    /// Last LSN that was made durable.
    pub(crate) synced: u64,
}

impl History {
    pub(crate) fn model(&self, last: Lsn) -> Model {
        let mut model = Model::new();
        self.writes[..last.0 as usize].iter().for_each(|change| change.apply(&mut model));
        model
    }

    /// What was recovered becomes the truth.
    pub(crate) fn cut(&mut self, last: Lsn) {
        assert!(last.0 == 0 || self.ends.contains(&last.0), "{last} is not the end of a batch");
        self.writes.truncate(last.0 as usize);
        self.ends.retain(|end| *end <= last.0);
        (self.written, self.synced) = (last.0, last.0);
    }

    /// An ingest takes LSNs; what comes of it is said when it is known.
    pub(crate) fn begin_ingest(&mut self, lsns: u64) {
        self.writes.extend((0..lsns).map(|_| Change::Ingest(Vec::new())));
        self.ends.push(self.last());
    }

    /// The ingest that took LSNs up to `last` was installed.
    pub(crate) fn ingested(&mut self, last: u64, pairs: Vec<(Vec<u8>, Vec<u8>)>) {
        self.writes[last as usize - 1] = Change::Ingest(pairs);
    }

    pub(crate) fn last(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Appends a random batch, making room for it as an upkeep would.
    pub(crate) fn append(&mut self, region: &Region, rng: &mut Rng) -> Result<(), Error> {
        let size = if rng.one_in(4) { 1 + rng.below(5) } else { 1 };
        let batch: Vec<_> = (0..size).map(|_| Change::random(rng, 2000)).collect();
        let writes: Vec<_> = batch.iter().map(Change::write).collect();
        let result = loop {
            match region.append(&writes) {
                Err(AppendError::TailBusy(_)) => flush(region)?,
                Err(AppendError::L0Full) => assert!(compact(region)?, "a full L0 can be compacted"),
                other => break other,
            }
        };
        let first = self.last() + 1;
        // A batch that failed may have been written all the same.
        self.writes.extend(batch);
        self.ends.push(self.last());
        match result {
            Ok(appended) => assert_eq!((appended.first.0, appended.last.0), (first, self.last()), "LSNs are dense"),
            Err(AppendError::Engine(error)) => return Err(error),
            Err(other) => panic!("{other}"),
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, region: &Region) -> Result<(), Error> {
        let last = region.last_lsn();
        region.write_tails()?;
        self.written = last.0;
        region.set_commit(last);
        Ok(())
    }

    pub(crate) fn sync(&mut self, region: &Region) -> Result<(), Error> {
        self.synced = region.sync_tails()?.0;
        self.written = self.written.max(self.synced);
        Ok(())
    }
}

/// Flushes and releases sealed tails, lets the next ones open.
pub(crate) fn flush(region: &Region) -> Result<(), Error> {
    for log in LogKind::APPENDED {
        for tail in region.tails(log).iter().filter(|tail| tail.sealed()) {
            region.flush_tail(log, tail.index())?;
            region.release_tail(log, tail.index());
            region.allow_tails(log, tail.index() + 2);
        }
    }
    region.prepare_tails()
}

/// Carries out one compaction, if there is one to do.
pub(crate) fn compact(region: &Region) -> Result<bool, Error> {
    let Some(mut compaction) = region.next_compaction_at_once(UnixMs(0)) else { return Ok(false) };
    loop {
        if let Step::Finished(done) = compaction.step()? {
            region.install(&done)?;
            return Ok(true);
        }
    }
}

pub(crate) fn contents(region: &Region) -> Model {
    read_all(&region.snapshot(region.last_lsn(), UnixMs(0)))
}

pub(crate) fn read_all(snapshot: &Snapshot) -> Model {
    let mut cursor = snapshot.cursor(ScanBounds::default());
    let mut all = Model::new();
    while let Some(entry) = cursor.next().expect("a sound device") {
        all.insert(entry.key.to_vec(), entry.value.to_vec());
    }
    all
}

/// The region holds exactly `model`, by scan and by look-up.
pub(crate) fn assert_holds(region: &Region, model: &Model, context: &str) {
    let found = contents(region);
    assert!(&found == model, "{context}: scan finds {} keys, {} are expected", found.len(), model.len());
    for (key, value) in model.iter().step_by(7) {
        match region.get(key, Reach::Device, &UnixMs::default).expect("a sound device") {
            leeward_engine::Lookup::Found { value: found, .. } => assert_eq!(&found[..], &value[..], "{context}"),
            other => panic!("{context}: {other:?}"),
        }
    }
}
