//! A copy that builds its own index (build-index, Anthus 3.3.3), or is readable. The persisted records of the mirrored
//! tails go, in LSN order, into a region. That region compacts them, or gets the levels that the primary sends.
//!
//! Records wait here, in memory, for earlier records of the other log, and for room in the L0. The primary bounds their
//! number, because it knows how far this copy has come. A read-only copy has room for all.

use super::Replica;
use crate::error::Result;
use crate::log::{Replayed, log_of};
use crate::memory::{Purpose, Reservation};
use crate::region::Region;
use crate::volume::Segment;
use leeward_format::manifest::{InstallEdit, SegmentKind};
use leeward_format::record::{FLAG_BATCH_CONTINUES, read_record_unchecked};
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_format::{LogKind, Lsn, SegmentId, SegmentNo, ServerId};
use leeward_platform::cpu::{Activity, at_activity};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most records that are taken into the L0 at a time.
const MOST_AT_ONCE: usize = 256;

/// Segments that L0s of a read-only copy may keep from being freed; beyond that the region is rebuilt from the logs.
const MOST_KEPT: usize = 16;

/// The region of a copy that follows, and the records that wait for it.
#[derive(Debug)]
pub(super) struct Follower {
    region: Arc<Region>,
    /// The primary sends it the levels; it only serves reads.
    only_read: bool,
    /// An L0 has records that are in the levels, and may point to log segments that were given up since: `kept`.
    straddles: bool,
    kept: Vec<Arc<Segment>>,
    /// By log, in order.
    waiting: [VecDeque<Waiting>; 2],
    /// For the waiting bytes.
    reservation: Reservation,
}

/// Bytes of a tail that were persisted, but not taken into the L0.
#[derive(Debug)]
struct Waiting {
    id: SegmentId,
    no: SegmentNo,
    /// Where they begin in the segment.
    offset: u32,
    bytes: Vec<u8>,
    /// Bytes of these that were taken.
    taken: usize,
}

impl Waiting {
    /// The record at `at` in the bytes, and its end.
    fn record(&self, log: LogKind, at: usize) -> Option<(Replayed<'_>, usize)> {
        let record = read_record_unchecked(&self.bytes[at..]).ok().flatten()?;
        let end = at + record.bytes();
        Some((Replayed { log, id: self.id, no: self.no, offset: self.offset + at as u32, record }, end))
    }
}

/// Place of the next record of each log: index in `waiting`, and byte.
type Places = [(usize, usize); 2];

impl Follower {
    fn push(&mut self, log: LogKind, waiting: Waiting) {
        self.reservation.set(self.reservation.bytes() + waiting.bytes.len() as u64);
        self.waiting[log.index()].push_back(waiting);
    }

    /// Where the next record of each log begins.
    fn places(&self) -> Places {
        self.waiting.each_ref().map(|waiting| (0, waiting.front().map_or(0, |first| first.taken)))
    }

    /// Whole batches of records, the next in LSN order; and for each record, the places after it.
    fn next(&self) -> (Vec<Replayed<'_>>, Vec<Places>) {
        let mut places = self.places();
        let mut next = self.region.last_lsn().next();
        let (mut records, mut after, mut whole) = (Vec::new(), Vec::new(), 0);
        while records.len() < MOST_AT_ONCE || whole < records.len() {
            let found = LogKind::APPENDED.into_iter().find_map(|log| {
                let (record, place) = self.at(log, places[log.index()])?;
                (record.record.stamp.lsn == next).then_some((log, record, place))
            });
            let Some((log, record, place)) = found else { break };
            places[log.index()] = place;
            next = record.record.last_lsn().next();
            let ends_batch = record.record.flags & FLAG_BATCH_CONTINUES == 0;
            records.push(record);
            after.push(places);
            if ends_batch {
                whole = records.len();
            }
        }
        records.truncate(whole);
        (records, after)
    }

    /// The record at a place, and the next place.
    fn at(&self, log: LogKind, (mut which, mut at): (usize, usize)) -> Option<(Replayed<'_>, (usize, usize))> {
        loop {
            let waiting = self.waiting[log.index()].get(which)?;
            match waiting.record(log, at) {
                Some((record, end)) => return Some((record, (which, end))),
                None => (which, at) = (which + 1, 0),
            }
        }
    }

    /// Drops records that are in the levels already. With send-index the logs may be persisted after an install: what is
    /// not referred to need not be here before.
    fn drop_installed(&mut self) {
        let next = self.region.last_lsn().next();
        let mut places = self.places();
        for log in LogKind::APPENDED {
            while let Some((record, place)) = self.at(log, places[log.index()])
                && record.record.last_lsn() < next
            {
                places[log.index()] = place;
            }
        }
        self.drop_before(places);
    }

    /// Takes as many records as possible.
    fn apply(&mut self) -> Result<()> {
        let _at = at_activity(Activity::Engine);
        self.drop_installed();
        loop {
            let (records, after) = self.next();
            let taken = if records.is_empty() { 0 } else { self.region.apply(&records, self.only_read)? };
            let is_stuck = taken < records.len() || records.is_empty();
            if let Some(places) = taken.checked_sub(1).map(|last| after[last]) {
                self.drop_before(places);
            }
            if is_stuck {
                return Ok(());
            }
        }
    }

    fn drop_before(&mut self, places: Places) {
        for (waiting, (which, at)) in self.waiting.iter_mut().zip(places) {
            waiting.drain(..which);
            if let Some(first) = waiting.front_mut() {
                first.taken = at;
            }
            waiting.pop_front_if(|first| first.taken == first.bytes.len());
        }
        let left = self.waiting.iter().flatten().map(|waiting| waiting.bytes.len() as u64).sum();
        self.reservation.set(left);
    }

    fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }
}

impl Replica {
    /// Begins to take the records of a copy, whose base is installed, into an index: to build it, on the server
    /// `builder`, if the backups of its table do; otherwise only for reads.
    ///
    /// # Errors
    /// Those of reading; [`crate::Error::Invalid`] if the server's number is too high to build.
    pub fn follow(&mut self, builder: ServerId) -> Result<()> {
        self.unfollow();
        let state = self.state()?;
        let owner = self.volume.share(&self.owner);
        let only_read = self.options.backups.ships_index();
        let builder = (!only_read).then_some(builder);
        let (region, ends) = Region::follow(self.volume.clone(), owner, state.clone(), builder)?;
        let last = region.last_lsn();
        region.set_commit(self.committed);
        let reservation = self.volume.memory().reserve(Purpose::Mirrors);
        let (waiting, kept) = Default::default();
        let mut follower = Follower { region, only_read, straddles: false, kept, waiting, reservation };
        for segment in state.segments.values().filter(|segment| segment.bytes.is_none() || segment.last_lsn > last) {
            let Some(log) = log_of(segment) else { continue };
            let from = ends.get(&segment.id).map_or(0, |end| end.bytes);
            let persisted = || self.tails.get(&segment.id).map_or(0, |tail| tail.persisted);
            let end = segment.bytes.unwrap_or_else(persisted).max(from);
            let mut bytes = vec![0; (end - from) as usize];
            self.volume.read(segment.no, from, &mut bytes)?;
            follower.queue(log, (segment.id, segment.no), from, &bytes);
        }
        follower.apply()?;
        self.follower = Some(follower);
        Ok(())
    }

    /// Ends [`Replica::follow`]. The result of an unfinished compaction is never installed. Records in L0s are also in
    /// the logs. A reader that still has the region may continue to read it.
    pub fn unfollow(&mut self) {
        let Some(follower) = self.follower.take() else { return };
        let segments = self.volume.segments(self.region()).into_values();
        if let Some(owner) = self.volume.take_region(self.region()) {
            self.owner = owner;
        }
        // The region no longer learns which segments are given up, but may still be read.
        follower.region.keep(segments.chain(follower.kept).collect());
    }

    /// The region that builds the index, for its compactions.
    pub fn building(&self) -> Option<Arc<Region>> {
        self.builder().map(|follower| follower.region.clone())
    }

    /// The region for reads, as far as its records were taken, whether or not it builds the index.
    pub fn reading(&self) -> Option<Arc<Region>> {
        self.follower.as_ref().map(|follower| follower.region.clone())
    }

    /// For a copy that builds its own index: the last LSN that is in the index, and whether more records wait.
    pub fn applied(&self) -> Option<(Lsn, bool)> {
        self.builder().map(|follower| (follower.region.last_lsn(), follower.is_waiting()))
    }

    fn builder(&self) -> Option<&Follower> {
        self.follower.as_ref().filter(|follower| !follower.only_read)
    }

    /// Notes that everything up to `lsn` is committed, and may be compacted.
    pub fn set_committed(&mut self, lsn: Lsn) {
        self.committed = self.committed.max(lsn);
        if let Some(follower) = &self.follower {
            follower.region.set_commit(self.committed);
        }
    }

    /// The primary's compaction was installed, and gave up the segments `retired`, which leaves may point to: a
    /// read-only region shows the new levels.
    pub(super) fn follow_install(&mut self, edit: &InstallEdit, retired: Vec<Arc<Segment>>) -> Result<()> {
        if self.follower.as_ref().is_none_or(|follower| !follower.only_read) {
            return Ok(());
        }
        let state = self.state()?;
        let follower = self.follower.as_mut().expect("just seen");
        let mut added = Vec::new();
        for (id, kind) in &edit.added {
            if let (SegmentKind::Log(log), Some(segment)) = (kind, self.volume.segment(state.region, *id)) {
                follower.region.reads_log(*log, *id, &segment, true);
                added.push(segment);
            }
        }
        follower.kept.extend(retired);
        let is_behind = follower.region.last_lsn().next() < state.replay_from;
        if is_behind || follower.kept.len() > MOST_KEPT {
            return self.follow(ServerId(0));
        }
        let straddles = follower.region.follow_install(&state, &added)?;
        follower.straddles = straddles.unwrap_or(follower.straddles);
        if !follower.straddles {
            follower.region.retire(std::mem::take(&mut follower.kept));
        }
        Ok(())
    }

    /// Adds waiting records to the index, as far as there is room.
    ///
    /// # Errors
    /// Those of [`Replica::persist_tail`].
    pub fn run_next(&mut self) -> Result<()> {
        self.follower.as_mut().map_or(Ok(()), Follower::apply)
    }
}

impl Follower {
    /// A tail begins.
    pub(super) fn open(&self, log: LogKind, id: SegmentId, segment: &Arc<Segment>) {
        if log == LogKind::Large {
            self.region.opens_log(id, segment);
        }
    }

    /// Queues bytes of a tail that were persisted at `offset`.
    pub(super) fn queue(&mut self, log: LogKind, (id, no): (SegmentId, SegmentNo), offset: u32, bytes: &[u8]) {
        let header = LOG_HEADER_BYTES.saturating_sub(offset as usize).min(bytes.len());
        let bytes = bytes[header..].to_vec();
        if !bytes.is_empty() {
            self.push(log, Waiting { id, no, offset: offset + header as u32, bytes, taken: 0 });
        }
    }

    /// [`Follower::queue`], then moves as many records as possible into the L0.
    pub(super) fn feed(&mut self, log: LogKind, of: (SegmentId, SegmentNo), offset: u32, bytes: &[u8]) -> Result<()> {
        self.queue(log, of, offset, bytes);
        self.apply()
    }
}
