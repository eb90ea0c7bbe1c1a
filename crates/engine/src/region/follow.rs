//! A region at a backup that inserts the records of the mirrored logs into L0s; the records are on the volume already.
//! A region that builds its own index (build-index, Anthus 3.3.3) compacts its L0s like any other, or as a two-layer log
//! (DEPART 4.3). A read-only region drops them when the primary has sent the levels built from the same records.
//!
//! It has no tails and assigns no LSN. As everywhere, an L0 is compacted once all of it is committed. Records that a
//! change of the primary may cut from the logs are in L0s, which are dropped with the region and rebuilt by a replay.
//!
//! The L0s of a read-only region end at other LSNs than its primary's. One may begin before and end after the last LSN
//! of an install: it *straddles* the install. Its older entries are the same as in the levels, and are found first. But
//! they may point to log segments that later installs give up: the installer keeps these until the L0 straddles no
//! more.

use super::open::{Recovered, ids_from, insert, recover};
use super::{AppendError, Region, View};
use crate::error::{Error, Result};
use crate::log::{Ends, Overlays, Replayed};
use crate::tree::Level;
use crate::volume::{Owner, Segment, SegmentIds, Volume};
use leeward_format::manifest::{LevelState, RegionState};
use leeward_format::record::{FLAG_BATCH_CONTINUES, RecordKind};
use leeward_format::{LogKind, Lsn, MAX_BUILDER, SegmentId, SegmentName, ServerId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Region {
    /// Opens the copy `state`, as far as its logs are valid, to build its index at the backup of `builder`, or
    /// read-only. Returns, for each log segment, the end of the records that it has taken.
    pub(crate) fn follow(
        volume: Arc<Volume>,
        owner: Owner,
        state: RegionState,
        builder: Option<ServerId>,
    ) -> Result<(Arc<Region>, Ends)> {
        let ordering_degree = builder.and_then(|_| state.options.backups.ordering_degree());
        let ids = match builder {
            Some(builder) => built_ids(&state, builder)?,
            None => Arc::new(|| unreachable!("a region that is only read builds nothing")),
        };
        let Recovered { l0s, prefix, ends, .. } = recover(&volume, &state, &Overlays::new())?;
        Ok((Region::assemble(volume, owner, state, l0s, prefix.last, (ids, ordering_degree))?, ends))
    }

    /// Takes whole batches of records, the next ones in LSN order, into the L0. Returns how many records it took: fewer
    /// than given if there is no room before a compaction. With `only_read` it always takes all: their number is
    /// bounded by the primary's L0s, and by the installs that the primary still has to ship.
    pub(crate) fn apply(&self, records: &[Replayed<'_>], only_read: bool) -> Result<usize> {
        let mut writer = self.writer.lock();
        let mut taken = 0;
        for batch in records.split_inclusive(|found| found.record.flags & FLAG_BATCH_CONTINUES == 0) {
            let first = batch[0].record.stamp.lsn;
            if first != writer.next {
                return Err(Error::protocol(self.id(), format!("LSN {first} where {} comes next", writer.next)));
            }
            if !self.apply_batch(batch, only_read)? {
                break;
            }
            taken += batch.len();
            let last = batch[batch.len() - 1].record.last_lsn();
            writer.next = last.next();
            self.last.store(last.0, Ordering::Release);
        }
        Ok(taken)
    }

    fn apply_batch(&self, batch: &[Replayed<'_>], only_read: bool) -> Result<bool> {
        let bytes: usize = batch.iter().map(|found| found.record.bytes()).sum();
        let ranges = batch.iter().filter(|found| found.record.kind == RecordKind::DeleteRange).count();
        let must_freeze = match only_read {
            true => Ok(self.has_full_l0(bytes as u64, ranges)),
            false => self.must_freeze(&self.view.load(), bytes as u64, ranges),
        };
        match must_freeze {
            Ok(true) => self.freeze(),
            Ok(false) => {}
            Err(AppendError::Engine(error)) => return Err(error),
            Err(AppendError::L0Full | AppendError::TailBusy(_)) => return Ok(false),
        }
        let view = self.view.load();
        let l0 = view.version.active();
        let memory_before = l0.memory_bytes();
        batch.iter().for_each(|found| insert(l0, found, self.options.addressing));
        l0.add_log_bytes(bytes as u64);
        if only_read || self.options.reads.is_at_backups() {
            batch.iter().for_each(|found| keep_large(&view, found));
        }
        if l0.memory_bytes() > memory_before {
            self.volume.memory().relieve();
        }
        let payload: usize = batch.iter().map(|found| found.record.key.len() + found.record.value.len()).sum();
        self.user_bytes_written.fetch_add(payload as u64, Ordering::Relaxed);
        Ok(true)
    }

    fn has_full_l0(&self, bytes: u64, ranges: usize) -> bool {
        let view = self.view.load();
        let active = view.version.active();
        active.is_due_to_freeze(!active.has_room(bytes, ranges, self.options.l0_bytes))
    }

    /// The copy of a read-only region is `state` by now: shows its levels, which point to the runs `added` too, and
    /// drops the L0s whose entries they have completely. Returns whether an L0 straddles the levels; `None` if that did
    /// not change.
    ///
    /// # Errors
    /// Those of reading; [`Error::Protocol`] if the install has records that this region has not taken yet: open it
    /// anew.
    pub(crate) fn follow_install(&self, state: &RegionState, added: &[Arc<Segment>]) -> Result<Option<bool>> {
        let writer = self.writer.lock();
        if writer.next < state.replay_from {
            let detail = format!("LSN {} is in its levels, and its L0 ends before {}", state.replay_from, writer.next);
            return Err(Error::protocol(self.id(), detail));
        }
        let active = self.view.load().version.active().clone();
        if !active.is_empty() && active.last_lsn() < state.replay_from {
            self.freeze();
        }
        let levels = self.levels_of(state)?;
        let (renewed, l0s) = self.view.load().version.renew_below(state.replay_from);
        let mut frozen_logs = self.frozen_logs.lock();
        let view = self.view.load();
        let version = view.version.follow(levels, state.replay_from, renewed, added);
        frozen_logs.drain(..l0s.len());
        let next = l0s.last().map(|last| last.last_lsn().next());
        let oldest = version.frozen().last().unwrap_or(version.active());
        let ends_there = oldest.is_empty() || next == Some(state.replay_from);
        let floor = view.floor.max(Lsn(state.replay_from.0.saturating_sub(1)));
        let straddles = (floor > view.floor).then_some(!ends_there);
        self.view.store(Arc::new(View { version: Arc::new(version), floor, ingests: view.ingests }));
        Ok(straddles)
    }

    /// Its present state has no need of these segments; readers of an earlier one may.
    pub(crate) fn retire(&self, segments: Vec<Arc<Segment>>) {
        self.view.load().version.retire(segments);
    }

    /// The region has a new owner, so no further install begins. Its readers may still need these segments.
    pub(crate) fn keep(&self, segments: Vec<Arc<Segment>>) {
        let _installing = self.installing.lock();
        self.view.load().version.keep(segments);
    }

    /// The levels of `state`; those that are open already are reused.
    fn levels_of(&self, state: &RegionState) -> Result<Vec<Arc<Level>>> {
        let version = self.view.load().version.clone();
        let (reads, addressing) = (version.reads(), self.options.addressing);
        let mut by_name: Option<HashMap<SegmentName, (SegmentId, Arc<Segment>)>> = None;
        let open = |wanted: &LevelState| {
            if let Some(known) = version.levels().iter().find(|level| level.state() == wanted) {
                return Ok(known.clone());
            }
            let by_name = by_name.get_or_insert_with(|| {
                let held = self.volume.segments(self.id()).into_iter();
                held.map(|(id, segment)| (addressing.name(id, segment.no()), (id, segment))).collect()
            });
            Level::open(reads, wanted, &|name| by_name.get(&name).cloned()).map(Arc::new)
        };
        state.levels.iter().map(open).collect()
    }
}

/// Caches a value that only the log has, as the primary does: those who read the newest pairs need no device.
fn keep_large(view: &View, found: &Replayed<'_>) {
    let record = &found.record;
    if (record.kind, found.log) == (RecordKind::Put, LogKind::Large) {
        view.version.keep_written(record.key, record.stamp, record.value);
    }
}

/// Ids of the segments that a backup builds by itself, after the last one in `state`.
fn built_ids(state: &RegionState, builder: ServerId) -> Result<SegmentIds> {
    if builder.0 > MAX_BUILDER {
        let detail = format!("server {builder}: only servers up to {MAX_BUILDER} can build the index of a backup");
        return Err(Error::Invalid(detail));
    }
    let term = state.term;
    let of_mine = |id: &SegmentId| id.builder().filter(|(server, _)| id.term() == term && *server == builder);
    let last = state.needed_segments().filter_map(|segment| of_mine(&segment.id)).map(|(_, number)| number).max();
    let numbers = (last.map_or(0, |last| last + 1), SegmentId::MOST_BUILT);
    Ok(ids_from(state, numbers, move |number| SegmentId::built_by(term, builder, number)))
}
