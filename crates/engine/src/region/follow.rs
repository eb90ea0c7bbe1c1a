//! A region of a backup that inserts the records of the mirrored logs, which are on the volume already, into L0s. A region that
//! builds its own index (build-index, Anthus 3.3.3) compacts its L0s as any region does. A region that is only read drops them
//! when the primary has sent the levels that it built from the same records.
//!
//! It has no tails and assigns no LSN. An L0 is compacted once all of it is committed, as everywhere. What a change of the
//! primary may cut from the logs is in L0s, which are dropped with the region and made again by a replay.
//!
//! The L0s of a region that is only read end at other LSNs than its primary's. One may begin before and end behind what an
//! install has brought: it *straddles* the install. Its entries from before are the same as in the levels, and are found first.
//! But they may lead to log segments that later installs give up: the installer keeps these until the L0 does not straddle any
//! more.

use super::open::{Recovered, ids_from, insert, recover};
use super::{AppendError, Region, View};
use crate::compaction::SegmentIds;
use crate::error::{Error, Result};
use crate::log::{Ends, Overlays, Replayed};
use crate::tree::Level;
use crate::volume::{Owner, Segment, Volume};
use leeward_format::manifest::{LevelState, RegionState};
use leeward_format::record::{FLAG_BATCH_CONTINUES, RecordKind};
use leeward_format::{Lsn, MAX_BUILDER, SegmentId, SegmentName, ServerId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Region {
    /// Opens the copy `state`, as far as its logs are valid, to build its index on the backup of `builder`, or only to be read.
    /// Answers where the records of each log segment end that it has taken.
    pub(crate) fn follow(
        volume: Arc<Volume>,
        owner: Owner,
        state: RegionState,
        builder: Option<ServerId>,
    ) -> Result<(Arc<Region>, Ends)> {
        let ids = match builder {
            Some(builder) => built_ids(&state, builder)?,
            None => Arc::new(|| unreachable!("a region that is only read builds nothing")),
        };
        let Recovered { l0s, prefix, ends, .. } = recover(&volume, &state, &Overlays::new())?;
        Ok((Region::assemble(volume, owner, state, l0s, prefix.last, ids)?, ends))
    }

    /// Takes whole batches of records, the next ones in LSN order, into the L0. Answers how many of the records it took: fewer
    /// than there are when there is no room before a compaction. One that is `only_read` always takes all: what its primary may
    /// have in L0s, and what it may have to ship before their install, bounds how many there are.
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

    /// The copy of a region that is only read is `state` by now: shows its levels, and drops the L0s whose entries they have
    /// completely. The segments in `retired` are kept for readers of its earlier state. Answers whether an L0 straddles what the
    /// levels have; `None`: that is as it was.
    ///
    /// # Errors
    /// Those of reading; [`Error::Protocol`] if it was installed what this region has not taken yet: it must be opened anew.
    pub(crate) fn follow_install(&self, state: &RegionState, retired: Vec<Arc<Segment>>) -> Result<Option<bool>> {
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
        let mut frozen_logs = self.frozen_logs.lock();
        let view = self.view.load();
        let (version, l0s) = view.version.follow(levels, state.replay_from, retired);
        frozen_logs.drain(..l0s.len());
        let next = l0s.last().map(|last| last.last_lsn().next());
        let oldest = version.frozen().last().unwrap_or(version.active());
        let ends_there = oldest.is_empty() || next == Some(state.replay_from);
        let floor = view.floor.max(Lsn(state.replay_from.0.saturating_sub(1)));
        let straddles = (floor > view.floor).then_some(!ends_there);
        self.view.store(Arc::new(View { version: Arc::new(version), floor, ingests: view.ingests }));
        Ok(straddles)
    }

    /// The region has a new owner, so that no install begins any more: its readers may still be led to these segments.
    pub(crate) fn keep(&self, segments: Vec<Arc<Segment>>) {
        let _installing = self.installing.lock();
        self.view.load().version.keep(segments);
    }

    /// The levels of `state`: those that are open already stay so.
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

/// Ids of the segments that a backup builds by itself: those after the last one that is there.
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
