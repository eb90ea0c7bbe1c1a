//! A region's copy that serves: the primary's, or one that builds an index or is read at a backup.
//!
//! - Writes come from one thread at a time, the *writer*; reads, flushes, compactions and everything else from any.
//!   Readers never wait for writers, nor for I/O other than their own.
//! - LSNs are dense over both logs. A record is in its log's tail before it is in the L0, so that a reader that finds a
//!   pointer finds the bytes.
//! - Install order: log bytes and segments durable, then the manifest edit, then the new version, then trim.
//!
//! One file for each phase. `append` takes writes, `tails` moves them to the device, `install` does compactions, and
//! `garbage` counts the garbage of the large log. `base` is the state that a backup is brought in sync with.
//! `checkpoint` is a copy by reference. `split` makes two regions of one, and `middle`
//! finds the key for that. `open` is recovery, and `requests` has the writes with a request id that recovery finds.
//! `follow` is a backup's region, which takes records instead of writes. `digest` compares copies, range by range.

#[cfg(test)]
mod accounts_tests;
mod append;
mod base;
mod checkpoint;
mod digest;
mod follow;
mod garbage;
mod ingest;
mod install;
mod middle;
mod open;
mod requests;
#[cfg(test)]
mod scan_costs_tests;
mod split;
#[cfg(test)]
mod split_tests;
mod tails;
mod trim;
#[cfg(test)]
mod waits_tests;

pub use append::{AppendError, Appended, Write};
pub use base::PinnedBase;
pub use checkpoint::{Checkpoint, CheckpointInfo};
pub use digest::SnapshotAt;
pub use garbage::Space;
pub use install::CompactionBasis;
pub(crate) use open::{Recovered, cut, recover};
pub use requests::{MOST_REQUESTS, Requests};
pub(crate) use split::Child;
pub use trim::Piece;

use crate::compaction::{CompactionTotals, Picker};
use crate::error::Result;
use crate::log::{LogReader, OpenTail, Prepared, Tails};
use crate::memtable::MemTable;
use crate::reads::Reach;
use crate::version::{Approximation, Lookup, Now, Snapshot, Version};
use crate::volume::{Accounts, Owner, SegmentIds, Volume};
use arc_swap::{ArcSwap, Guard};
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{LevelState, LogExtent, Parent, level_at};
use leeward_format::{Epoch, LogKind, Lsn, RegionId, UnixMs};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// L0s that may be frozen at a time; then writes wait for a compaction.
const MAX_FROZEN_L0S: usize = 3;

/// Figures of an embedded store, or of one region of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Bytes of memory in the active L0.
    pub l0_bytes: u64,
    /// Frozen L0s waiting for a compaction.
    pub frozen_l0s: u32,
    /// The runs of L1, the newest first, then L2 and so on.
    pub levels: Vec<LevelState>,
    /// Live log segments, those in memory included.
    pub log_segments: u32,
    /// Bytes of keys and values written since it was opened.
    pub user_bytes_written: u64,
    /// Segments of the logs that are still in memory.
    pub tails: u32,
    /// The log of large values, except for what is not compacted yet.
    pub large_log: Accounts,
    /// Bytes of runs of medium values on the volume, in whole segments.
    pub medium_log_bytes: u64,
    /// Work of compactions since it was opened.
    pub compactions: CompactionTotals,
    /// Estimated number of keys: entries of all levels and L0s, overwrites and tombstones counted as well.
    pub estimated_keys: u64,
}

impl RegionStats {
    /// The deepest level that has entries, 1 for L1; 0 if none has.
    pub fn depth(&self) -> usize {
        self.levels.iter().rposition(|level| level.entries > 0).map_or(0, level_at)
    }
}

/// A copy that serves.
pub struct Region {
    volume: Arc<Volume>,
    owner: Owner,
    term: Epoch,
    options: TableOptions,
    /// The region that it was split from, if it has been in memory since the split.
    parent: OnceLock<Parent>,
    ids: SegmentIds,
    writer: Mutex<Writer>,
    tails: Arc<Tails>,
    reader: Arc<LogReader>,
    prepared: Mutex<[Option<Prepared>; 2]>,
    /// Held while a tail is prepared.
    preparing: Mutex<()>,
    /// Highest index that a tail may have.
    allowed: [AtomicU64; 2],
    view: ArcSwap<View>,
    /// Held while a new view replaces the current one. For each frozen L0, oldest first, the extents of the logs.
    frozen_logs: Mutex<VecDeque<Vec<LogExtent>>>,
    picker: Mutex<Picker>,
    /// As of the last install, or the last change of shared segments.
    accounts: Mutex<Accounts>,
    /// See [`Region::set_inherited_below`].
    inherited_below: AtomicU64,
    /// Bytes of its segments that other regions count, as of then.
    shared_bytes: AtomicU64,
    /// [`Volume::sharing_serial`] at the last count.
    seen_sharing: AtomicU64,
    compactions: Mutex<CompactionTotals>,
    /// Held by an install from its first to its last step.
    installing: Mutex<()>,
    /// Requests that the replay found, until they are taken.
    requests: Mutex<Requests>,
    last: AtomicU64,
    commit: AtomicU64,
    synced: AtomicU64,
    user_bytes_written: AtomicU64,
    /// See [`Region::commit_written`].
    commits_written: AtomicBool,
    /// Its L0s belong to rounds.
    is_two_layer: bool,
}

/// State that only the writer uses.
#[derive(Debug)]
struct Writer {
    /// LSN of the next write.
    next: Lsn,
    current: [Option<OpenTail>; 2],
    /// Index of the next tail.
    next_index: [u64; 2],
}

/// The state that readers see.
#[derive(Clone)]
struct View {
    version: Arc<Version>,
    /// The levels hold every LSN up to this one, all committed, and only the newest version of a key: no read may ask
    /// for an earlier instant.
    floor: Lsn,
    /// Ingests that were installed since the region was opened.
    ingests: u64,
}

impl View {
    /// Whether `key` has certainly not been written since `since`.
    fn is_unchanged(&self, key: &[u8], since: Moment) -> bool {
        // The levels have writes up to the floor; newer ones are in the L0s.
        let Moment { last, ingests } = since;
        self.floor <= last && self.ingests == ingests && self.version.in_l0_since(key, last).is_none()
    }
}

/// Position of a region's writes at an instant: see [`Region::append_unchanged`].
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    last: Lsn,
    /// Counted apart, because ingested pairs have lower LSNs than the writes made while they were built.
    ingests: u64,
}

impl Moment {
    /// The position of `lsn`, if that is earlier.
    #[must_use]
    pub fn at(self, lsn: Lsn) -> Moment {
        Moment { last: self.last.min(lsn), ..self }
    }
}

impl Region {
    /// Id of the region.
    pub fn id(&self) -> RegionId {
        self.owner.region
    }

    /// The term it serves in.
    pub fn term(&self) -> Epoch {
        self.term
    }

    /// Options of its table.
    pub fn options(&self) -> &TableOptions {
        &self.options
    }

    /// Holds its segments, and those of other regions.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Raises the commit LSN to `lsn`. A lower LSN changes nothing.
    pub fn set_commit(&self, lsn: Lsn) {
        self.commit.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// From now on, [`Region::append`] commits what it appends, if that is in the page cache then. The writer has its lock
    /// and the cache lines meanwhile, so that is cheaper than [`Region::set_commit`] afterwards.
    pub(crate) fn commit_written(&self) {
        self.commits_written.store(true, Ordering::Relaxed);
    }

    /// The commit LSN.
    pub fn commit(&self) -> Lsn {
        Lsn(self.commit.load(Ordering::Acquire))
    }

    /// The writes with a request id that its replay found. Returned once.
    pub fn take_requests(&self) -> Requests {
        std::mem::take(&mut self.requests.lock())
    }

    /// The position of its writes now.
    pub fn moment(&self) -> Moment {
        let ingests = self.view.load().ingests;
        Moment { last: self.last_lsn(), ingests }
    }

    /// LSN of the last write.
    pub fn last_lsn(&self) -> Lsn {
        Lsn(self.last.load(Ordering::Acquire))
    }

    /// The newest version of `key`, committed or not, unless it has expired by `now`: for the writer, which must see
    /// its own writes once they are appended.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn get(&self, key: &[u8], reach: Reach, now: Now<'_>) -> Result<Lookup> {
        let (view, at) = self.view_as_of(Lsn(u64::MAX));
        view.version.get(key, at, reach, now)
    }

    /// The newest committed version of `key`, unless it has expired by `now`.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn read(&self, key: &[u8], reach: Reach, now: Now<'_>) -> Result<Lookup> {
        let (view, at) = self.view_as_of(self.commit());
        view.version.get(key, at, reach, now)
    }

    /// The state for readers as of `lsn`, and the LSN as of which it may be read.
    #[inline]
    fn view_as_of(&self, lsn: Lsn) -> (Guard<Arc<View>>, Lsn) {
        // Before the view: a version sees no log segment that was opened after it was loaded.
        let last = self.last_lsn();
        let view = self.view.load();
        let at = lsn.min(last).max(view.floor);
        (view, at)
    }

    /// The region as of `lsn`, or of the last LSN if that is lower, or of the last compacted LSN (which is committed) if
    /// that is higher. Readers may see only committed writes, so `lsn` must be committed before the answer is shown. Pairs that have expired by `now`
    /// are absent.
    pub fn snapshot(&self, lsn: Lsn, now: UnixMs) -> Snapshot {
        let (view, at) = self.view_as_of(lsn);
        Snapshot::new(view.version.clone(), at, now)
    }

    /// Whether an L0 waits to be compacted.
    pub(crate) fn has_frozen_l0s(&self) -> bool {
        !self.view.load().version.frozen().is_empty()
    }

    /// What a new primary replays from the logs before it serves, in bytes of L0s of small values.
    pub fn promotion_bytes(&self) -> u64 {
        self.sum_of_l0s(MemTable::replay_bytes)
    }

    fn sum_of_l0s(&self, of: impl Fn(&MemTable) -> u64) -> u64 {
        let view = self.view.load();
        of(view.version.active()) + view.version.frozen().iter().map(|l0| of(l0)).sum::<u64>()
    }

    /// Approximate bytes of keys and values; overwritten ones that are not merged yet count as well.
    pub fn pair_bytes(&self) -> u64 {
        let in_leaves = self.view.load().version.levels().iter().map(|level| level.state().bytes).sum::<u64>();
        self.sum_of_l0s(MemTable::bytes) + in_leaves + self.accounts.lock().live_bytes
    }

    /// Approximate number and bytes of the pairs with keys from `start` up to, but without, `end`; without an end, of
    /// all from `start` on.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn approximate(&self, start: &[u8], end: Option<&[u8]>) -> Result<Approximation> {
        self.view.load_full().version.approximate(start, end)
    }

    /// Figures.
    pub fn stats(&self) -> RegionStats {
        let view = self.view.load_full();
        let version = &view.version;
        let levels: Vec<LevelState> = version.levels().iter().map(|level| level.state().clone()).collect();
        let in_memory = version.active().entries() + version.frozen().iter().map(|l0| l0.entries()).sum::<u64>();
        let log_segments = self.volume.figures(&self.owner).unwrap_or_default().log_segments;
        RegionStats {
            l0_bytes: version.active().bytes(),
            frozen_l0s: version.frozen().len() as u32,
            log_segments: LogKind::APPENDED.into_iter().map(|log| log_segments[log.index()]).sum(),
            user_bytes_written: self.user_bytes_written.load(Ordering::Relaxed),
            tails: self.tails.all().count() as u32,
            large_log: *self.accounts.lock(),
            medium_log_bytes: u64::from(log_segments[LogKind::Medium.index()]) * self.volume.segment_bytes() as u64,
            compactions: *self.compactions.lock(),
            estimated_keys: in_memory + levels.iter().map(|level| level.entries).sum::<u64>(),
            levels,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.volume.memory().leave(self.view.load().version.reads().owner, u8::MAX);
        self.volume.compacted(self.id(), Ok(()));
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("id", &self.id()).field("term", &self.term).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
