//! Compactions: the choice of the next one, and the atomic install of its result. Invariant: levels hold only committed
//! writes.

use super::{MAX_FROZEN_L0S, Region, View};
use crate::compaction::{Compaction, CompactionDone, Lane, Logs, choose};
use crate::error::Result;
use crate::log::LogSegment;
use crate::memtable::MemTable;
use crate::volume::{Durability, Segment};
use leeward_format::manifest::{Change, InstallEdit, SegmentKind, level_at};
use leeward_format::{LogKind, Lsn, SegmentId, UnixMs};
use leeward_platform::{Bug, planted};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// What there was to choose a compaction from: the levels and the committed L0s. See [`Region::compaction_basis`].
#[derive(Debug)]
pub struct CompactionBasis {
    view: Weak<View>,
    committed: usize,
}

impl Region {
    /// What the next compaction is chosen from now. While that is the same, another choice comes with time alone: with a rate,
    /// with room or memory that others free, with scans.
    pub fn compaction_basis(&self) -> CompactionBasis {
        let view = self.view.load_full();
        CompactionBasis { committed: self.committed_l0s(&view), view: Arc::downgrade(&view) }
    }

    /// Whether that is `basis` still, and no other region [calls](Region::is_called).
    pub fn has_basis(&self, basis: &CompactionBasis) -> bool {
        let view = self.view.load();
        let is_same = Weak::as_ptr(&basis.view) == Arc::as_ptr(&view) && basis.committed == self.committed_l0s(&view);
        is_same && !self.is_called()
    }

    fn committed_l0s(&self, view: &View) -> usize {
        view.version.committed(self.commit()).count()
    }

    /// The most urgent compaction that conflicts with none under way and that memory admits. An L0 is compacted only if
    /// all of it is committed. The compaction drops pairs that have expired by `now`. Freezes the L0 first, if another
    /// region needs its memory.
    ///
    /// While the region is being written to, fewer than three frozen L0s wait, because larger runs of L1 cause fewer
    /// writes. The region is quiet when all writes are durable and no L0 was compacted lately. L0s do not
    /// wait while all L0s have more memory than their share, or while writers get no second L0 because space is short.
    pub fn next_compaction(&self, now: UnixMs) -> Option<Compaction> {
        self.next_compaction_in(Lane::Any, now)
    }

    /// [`Region::next_compaction`] of `lane` only; other lanes may run meanwhile.
    pub(crate) fn next_compaction_in(&self, lane: Lane, now: UnixMs) -> Option<Compaction> {
        let is_written_to = self.is_unsynced() || self.picker.lock().had_l0s_lately(now);
        if !is_written_to && self.has_deletes_to_merge() {
            self.view.load().version.active().ask_to_freeze();
        }
        let has_room = !self.is_beyond_space() && !self.volume.is_short_of_space(self.id());
        let may_wait = is_written_to && self.volume.memory().l0_debt() == 0.0 && has_room;
        self.pick_compaction(lane, if may_wait { MAX_FROZEN_L0S } else { 1 }, now)
    }

    /// Whether the active L0 deletes something, and the room is missed since the device was full: then it is merged as
    /// soon as the region is quiet.
    fn has_deletes_to_merge(&self) -> bool {
        self.view.load().version.active().has_deletes() && self.volume.is_room_missed()
    }

    /// Whether there may be a compaction of `lane` later without a further write: an L0 waits for others, a sweep is
    /// throttled, a compaction waits for memory that any region may free, or a region that shares segments has given
    /// some up.
    pub(crate) fn waits_for_time(&self, lane: Lane, now: UnixMs) -> bool {
        let l0s = lane != Lane::Levels && (self.has_frozen_l0s() || self.has_deletes_to_merge());
        let owner = self.view.load().version.reads().owner;
        l0s || self.volume.memory().has_waiting(owner, lane.bit())
            || lane != Lane::L0s && (self.picker_waits(now) || self.must_look_at_sharing())
    }

    /// Whether something is to be merged that has a rate.
    fn picker_waits(&self, now: UnixMs) -> bool {
        let picker = self.picker.lock();
        picker.sweep_is_throttled(now) || picker.ranges_wait() || picker.waits_for_room()
    }

    /// Whether there is nothing to sync, prepare or merge until something is appended or the region
    /// [is called](Region::is_called).
    pub fn is_idle(&self, now: UnixMs) -> bool {
        !self.is_unsynced() && !self.wants_tails() && !self.waits_for_time(Lane::Any, now) && !self.is_called()
    }

    /// Whether scans have read so much that there may be a compaction, although nothing was written.
    pub(crate) fn scans_call(&self) -> bool {
        self.view.load().version.reads().scan_costs.call()
    }

    /// Whether other regions need something of it: the memory of its L0, or a new count of shared segments. See
    /// [`Volume::calls`](crate::Volume::calls).
    pub fn is_called(&self) -> bool {
        let view = self.view.load();
        let active = view.version.active();
        active.is_due_to_freeze(false) || self.must_look_at_sharing()
    }

    /// [`Region::next_compaction`] without any wait for further L0s.
    pub fn next_compaction_at_once(&self, now: UnixMs) -> Option<Compaction> {
        self.pick_compaction(Lane::Any, 1, now)
    }

    /// [`Region::next_compaction_at_once`], of the active L0 too unless it is empty: little is left to replay
    /// afterwards.
    pub fn next_compaction_of_all(&self, now: UnixMs) -> Option<Compaction> {
        self.view.load().version.active().ask_to_freeze();
        self.next_compaction_at_once(now)
    }

    fn pick_compaction(&self, lane: Lane, least: usize, now: UnixMs) -> Option<Compaction> {
        self.freeze_if_asked();
        // The picker's lock first: a claim is released under it, after the new version is shown.
        let mut picker = self.picker.lock();
        let version = self.view.load().version.clone();
        let extents: Vec<_> = self.frozen_logs.lock().iter().cloned().collect();
        self.look_at_sharing();
        let choose = |goal, left| self.with_ledger(|ledger| choose(ledger, (goal, left))).unwrap_or_default();
        let logs = Logs { accounts: *self.accounts.lock(), choose: &choose };
        let mark = picker.mark();
        let commit = if planted(Bug::CompactUncommitted) { Lsn(u64::MAX) } else { self.commit() };
        let picked = picker.pick(&version, commit, &extents, &logs, (lane, least, now));
        let (memory, owner) = (self.volume.memory(), version.reads().owner);
        let Some(mut compaction) = picked else {
            memory.leave(owner, lane.bit());
            return None;
        };
        match memory.admit((owner, lane.bit()), compaction.memory_bytes()) {
            Some(reservation) => {
                compaction.admitted(reservation);
                Some(compaction)
            }
            None => {
                picker.reset(mark);
                None
            }
        }
    }

    /// Installs the result of a compaction. First log bytes and segments become durable, then the edit is written, then
    /// the new version is shown, then logs are trimmed.
    ///
    /// # Errors
    /// Those of writing. Nothing is changed then.
    pub fn install(&self, done: &CompactionDone) -> Result<()> {
        let _installing = self.installing.lock();
        let result = self.volume.in_doubt(|| self.install_now(done));
        self.volume.compacted(self.id(), result.as_ref().copied());
        result
    }

    fn install_now(&self, done: &CompactionDone) -> Result<()> {
        if !planted(Bug::InstallBeforeLogDurable) {
            self.sync_tails()?;
        }
        let is_committed = |l0: &Arc<MemTable>| l0.last_lsn() <= self.commit();
        assert!(
            done.l0s.iter().all(is_committed),
            "what is not committed may never have been, and is no part of a level"
        );
        let commit = self.commit().min(Lsn(self.synced.load(Ordering::Acquire)));
        let region = self.id();
        let places = done.added.iter().map(|(_, _, segment, bytes)| (segment.no(), *bytes)).collect();
        let trimmed = self.trimmable(&done.edit)?;
        let values: Vec<SegmentId> =
            self.volume.with_region(&self.owner, |state| state.with_values(&trimmed).collect())?;
        // Readers of older versions may still follow pointers to them.
        let retired = values.iter().filter_map(|id| self.volume.segment(region, *id)).collect();
        let mut changes = vec![Change::Install { region, edit: done.edit.clone(), places, commit }];
        if !trimmed.is_empty() {
            changes.push(Change::Forget { region, ids: trimmed.clone() });
        }
        let added: Vec<_> = done.added.iter().map(|(id, _, segment, _)| (*id, segment.clone())).collect();
        self.volume.commit(&self.owner, changes, &added, Durability::Synced)?;
        for (id, kind, segment, _) in &done.added {
            if let SegmentKind::Log(log) = kind {
                self.reads_log(*log, *id, segment, true);
            }
        }
        self.show(done, retired);
        self.count_merge(done);
        self.compactions.lock().add(done);
        self.count_garbage()?;
        let mut picker = self.picker.lock();
        picker.installed(done, &trimmed);
        done.claim.release();
        drop(picker);
        self.volume.release_space();
        Ok(())
    }

    /// Subtracts a merge of levels from what scans have paid for their number.
    fn count_merge(&self, done: &CompactionDone) {
        let Some(position) = done.merged else { return };
        let view = self.view.load();
        let is_over = !view.version.positions().iter().any(|filled| level_at(*filled) == level_at(position));
        let costs = &view.version.reads().scan_costs;
        match is_over {
            true => costs.forget_level(position),
            false => costs.merged(position, done.bytes_read + done.value_bytes_read + done.bytes_written),
        }
    }

    /// Segments that nothing needs once `edit` is installed, except tails that are still in memory.
    fn trimmable(&self, edit: &InstallEdit) -> Result<Vec<SegmentId>> {
        // The tails first: a tail that is flushed and released meanwhile is then still known as one.
        let tails: Vec<SegmentId> = self.tails.all().map(|tail| tail.id()).collect();
        Ok(self.volume.trimmable(&self.owner, edit)?.into_iter().filter(|id| !tails.contains(id)).collect())
    }

    /// Allows leaves to point to a segment of this log from now on. It may be a sorted run.
    pub(crate) fn reads_log(&self, log: LogKind, id: SegmentId, segment: &Arc<Segment>, is_run: bool) {
        let name = self.options.addressing.name(id, segment.no());
        self.reader.add(name, LogSegment::new(log, id, segment, is_run));
    }

    /// From now on L0s may point to a segment of the large log, which holds nothing yet.
    pub(crate) fn opens_log(&self, id: SegmentId, segment: &Arc<Segment>) {
        self.reads_log(LogKind::Large, id, segment, false);
        let _frozen_logs = self.frozen_logs.lock();
        let view = self.view.load();
        let version = Arc::new(view.version.open_log(segment));
        self.view.store(Arc::new(View { version, floor: view.floor, ingests: view.ingests }));
    }

    /// Shows the new version to new readers.
    fn show(&self, done: &CompactionDone, retired: Vec<Arc<Segment>>) {
        let change = done.change();
        let renewed = self.view.load().version.renew(&change);
        // A writer that freezes an L0 waits for this lock.
        let mut frozen_logs = self.frozen_logs.lock();
        let view = self.view.load();
        let version = Arc::new(view.version.install(&change, renewed, retired));
        let floor = match done.edit.replay_from {
            Lsn(0) => view.floor,
            from => {
                frozen_logs.drain(..done.l0s.len());
                view.floor.max(Lsn(from.0.saturating_sub(1)))
            }
        };
        let ingests = view.ingests + u64::from(done.ingested.is_some());
        let floor = done.ingested.as_ref().map_or(floor, |ingested| floor.max(ingested.lsn));
        self.view.store(Arc::new(View { version, floor, ingests }));
    }
}
