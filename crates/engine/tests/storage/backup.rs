//! A backup that the test itself connects to its primary.
//!
//! The test replaces the fabric (mirror buffers are plain vectors) and the messages, in replication's order. So a
//! replica's guarantees are tested without either.

use crate::support::{History, REGION, now, open_volume, table_options, volume_options};
use leeward_engine::compaction::{Compaction, Step};
use leeward_engine::{Error, Region, Replica, Segment, Tail, Volume};
use leeward_format::cluster::Addressing;
use leeward_format::manifest::SegmentKind;
use leeward_format::{LogKind, Lsn, SegmentId, SegmentNo, ServerId, wire};
use leeward_platform::{Rng, SimDisk};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) const DISK_BYTES: u64 = 256 << 20;
/// Builder id of a backup that builds its own index.
pub(crate) const BUILDER: ServerId = ServerId(7);

/// Two new disks, a primary on the first, and a backup that is in sync with it on the second. Segment numbers differ by
/// `shift`.
pub(crate) fn connected(seed: u64, disk_bytes: u64, shift: usize) -> ([SimDisk; 2], Arc<Region>, Backup) {
    let (here, there) = (SimDisk::new(seed, disk_bytes), SimDisk::new(seed + 1, disk_bytes));
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, shift);
    backup.sync(&primary).unwrap();
    ([here, there], primary, backup)
}

/// A backup as its primary sees it.
pub(crate) struct Backup {
    pub(crate) volume: Arc<Volume>,
    pub(crate) replica: Replica,
    /// Mirror buffers: two a log, as they lie in the backup's memory.
    pub(crate) buffers: Vec<Vec<u8>>,
    opened: BTreeSet<(LogKind, u64)>,
    /// Tails up to here were sealed for the base and are part of it.
    base_lsn: Lsn,
    /// Makes segment numbers here differ from the primary's.
    _shift: Vec<Arc<Segment>>,
}

impl Backup {
    /// The region that the volume has, or [`REGION`].
    pub(crate) fn new(disk: &SimDisk, shift: usize) -> Backup {
        let (volume, replicas) = open_volume(disk).expect("a sound disk");
        let shift = (0..shift).map(|_| volume.allocate(REGION).expect("room")).collect();
        let replica = replicas.into_iter().next();
        let replica = replica.unwrap_or_else(|| Replica::create(&volume, REGION, table_options()).expect("room"));
        Backup { _shift: shift, ..Backup::of(&volume, replica) }
    }

    pub(crate) fn of(volume: &Arc<Volume>, replica: Replica) -> Backup {
        let buffers = vec![vec![0; volume_options().segment_bytes]; 4];
        let (volume, opened, _shift) = (volume.clone(), BTreeSet::new(), Vec::new());
        Backup { volume, replica, buffers, opened, base_lsn: Lsn(0), _shift }
    }

    /// Brings it in sync with the primary; returns the number of shipped segments.
    pub(crate) fn sync(&mut self, primary: &Region) -> Result<usize, Error> {
        primary.seal_tails();
        let pinned = primary.base();
        let missing = self.replica.begin_base(&pinned.base)?;
        for id in &missing {
            let segment = pinned.base.segments.iter().find(|segment| segment.id == *id).expect("of the base");
            let bytes = pinned.read_segment(*id).expect("a sound device");
            self.store(primary, (*id, segment.kind, segment.primary), &bytes)?;
        }
        self.replica.install_base()?;
        assert_eq!(self.replica.position(), (primary.term(), primary.last_lsn()));
        if primary.options().backups.builds_index() {
            self.replica.follow(BUILDER)?;
            assert_eq!(self.replica.applied(), Some((primary.last_lsn(), false)));
        }
        self.buffers.iter_mut().for_each(|buffer| buffer.fill(0));
        self.opened.clear();
        self.base_lsn = primary.last_lsn();
        Ok(missing.len())
    }

    /// Stores a segment, of which all bytes are rewritten, or none.
    pub(crate) fn store(
        &mut self,
        primary: &Region,
        of: (SegmentId, SegmentKind, SegmentNo),
        bytes: &[u8],
    ) -> Result<(), Error> {
        let (shipped, packed) = wire::pack(of, bytes, primary.options().wire);
        let stored = self.replica.store(&shipped, &mut packed.unwrap_or_else(|| bytes.to_vec()))?;
        let is_rewritten = shipped.kind.is_index() && primary.options().addressing == Addressing::Physical;
        assert_eq!(stored.bytes_rewritten, if is_rewritten { bytes.len() as u64 } else { 0 });
        Ok(())
    }

    fn buffer(log: LogKind, index: u64) -> usize {
        log.index() * 2 + (index % 2) as usize
    }

    /// The primary's tails after the base.
    fn tails(&self, primary: &Region) -> Vec<Arc<Tail>> {
        let tails = LogKind::APPENDED.into_iter().flat_map(|log| primary.tails(log));
        tails.filter(|tail| tail.last_lsn() > self.base_lsn).collect()
    }

    /// One-sided writes of everything new.
    pub(crate) fn mirror(&mut self, primary: &Region) -> Result<(), Error> {
        for tail in self.tails(primary) {
            if self.opened.insert((tail.log(), tail.index())) {
                self.replica.open_tail(tail.log(), tail.id(), tail.segment())?;
            }
            let buffer = &mut self.buffers[Backup::buffer(tail.log(), tail.index())];
            buffer[..tail.bytes().len()].copy_from_slice(tail.bytes());
        }
        Ok(())
    }

    /// Persists the contents of the buffers of open tails.
    pub(crate) fn save(&mut self, primary: &Region) -> Result<(), Error> {
        for tail in self.tails(primary) {
            let buffer = &self.buffers[Backup::buffer(tail.log(), tail.index())][..tail.filled() as usize];
            self.replica.persist_tail(tail.log(), tail.id(), 0, buffer)?;
        }
        self.volume.sync()
    }

    /// Flushes sealed tails at both ends and releases them.
    pub(crate) fn flush(&mut self, primary: &Region) -> Result<(), Error> {
        self.mirror(primary)?;
        for log in LogKind::APPENDED {
            for tail in primary.tails(log).iter().filter(|tail| tail.sealed()) {
                primary.flush_tail(log, tail.index()).expect("a sound disk");
                if tail.last_lsn() > self.base_lsn {
                    let buffer = &self.buffers[Backup::buffer(log, tail.index())][..tail.filled() as usize];
                    self.replica.persist_tail(log, tail.id(), 0, buffer)?;
                    let last_lsn = tail.last_lsn();
                    self.replica.seal_tail(log, tail.id(), tail.filled(), last_lsn)?;
                }
                primary.release_tail(log, tail.index());
                primary.allow_tails(log, tail.index() + 2);
            }
        }
        primary.prepare_tails().expect("room");
        Ok(())
    }

    /// Compacts at the primary; also at a backup that builds its own index.
    fn compact_each(&mut self, primary: &Region) -> Result<bool, Error> {
        self.save(primary)?;
        self.replica.set_committed(primary.commit());
        let there = self.replica.building().expect("it follows");
        let done = step_to_the_end(primary).expect("a sound disk") | step_to_the_end(&there)?;
        self.replica.run_next()?;
        Ok(done)
    }

    /// Compacts at the primary and ships the result.
    pub(crate) fn compact(&mut self, primary: &Region) -> Result<bool, Error> {
        if primary.options().backups.builds_index() {
            self.mirror(primary)?;
            return self.compact_each(primary);
        }
        let Some(compaction) = primary.next_compaction_at_once(now()) else { return Ok(false) };
        self.mirror(primary)?;
        self.ship(primary, compaction, true).map(|()| true)
    }

    /// Executes a compaction at the primary and ships the result; with `saves`, after what is mirrored was persisted.
    pub(crate) fn ship(&mut self, primary: &Region, mut compaction: Compaction, saves: bool) -> Result<(), Error> {
        loop {
            match compaction.step().expect("a sound disk") {
                Step::Segment(built) => {
                    self.store(primary, (built.id, built.kind, built.segment.no()), &built.bytes)?;
                }
                Step::Finished(done) => {
                    primary.install(&done).expect("a sound disk");
                    if saves {
                        self.save(primary)?;
                    }
                    return self.replica.install(&done.edit);
                }
            }
        }
    }
}

/// Executes a compaction, if one is due.
pub(crate) fn step_to_the_end(region: &Region) -> Result<bool, Error> {
    let Some(mut compaction) = region.next_compaction_at_once(now()) else { return Ok(false) };
    finish(region, &mut compaction).map(|()| true)
}

/// Executes a compaction.
pub(crate) fn finish(region: &Region, compaction: &mut Compaction) -> Result<(), Error> {
    loop {
        if let Step::Finished(done) = compaction.step()? {
            return region.install(&done);
        }
    }
}

/// Appends `batches`, with upkeep; all of them are mirrored. An error is the backup's.
pub(crate) fn try_work(
    primary: &Region,
    backup: &mut Backup,
    history: &mut History,
    rng: &mut Rng,
    batches: u64,
) -> Result<(), Error> {
    for _ in 0..batches {
        backup.flush(primary)?;
        while backup.compact(primary)? {}
        history.append(primary, rng).expect("a sound disk");
        history.write(primary).expect("a sound disk");
        backup.mirror(primary)?;
        if rng.one_in(20) {
            backup.save(primary)?;
        }
    }
    Ok(())
}

pub(crate) fn work(primary: &Region, backup: &mut Backup, history: &mut History, rng: &mut Rng, batches: u64) {
    try_work(primary, backup, history, rng, batches).expect("a sound disk");
}

pub(crate) fn serve(replica: Replica) -> Arc<Region> {
    let term = replica.position().0.next();
    let region = replica.serve(term).expect("a sound copy");
    region.set_commit(region.last_lsn());
    region
}
