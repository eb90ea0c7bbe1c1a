//! A region of a backup that builds its own index (build-index, Anthus 3.3.3): it takes the records of the mirrored logs, which
//! are on the volume already, into L0s, and compacts them as any region does.
//!
//! It has no tails and gives out no LSN. An L0 is compacted once all of it is committed, as everywhere: what a change of the
//! primary may cut from the logs is in L0s, which are thrown away with the region and made again by a replay.

use super::open::{Recovered, ids_from, insert, recover};
use super::{AppendError, Region};
use crate::compaction::SegmentIds;
use crate::error::{Error, Result};
use crate::log::{Ends, Overlays, Replayed};
use crate::volume::{Owner, Volume};
use leeward_format::manifest::RegionState;
use leeward_format::record::{FLAG_BATCH_CONTINUES, RecordKind};
use leeward_format::{MAX_BUILDER, SegmentId, ServerId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Region {
    /// Opens the copy `state` on the backup of `builder`, as far as its logs are valid. Answers where the records of each log segment
    /// end that it has taken.
    pub(crate) fn follow(
        volume: Arc<Volume>,
        owner: Owner,
        state: RegionState,
        builder: ServerId,
    ) -> Result<(Arc<Region>, Ends)> {
        let ids = built_ids(&state, builder)?;
        let Recovered { l0s, prefix, ends, .. } = recover(&volume, &state, &Overlays::new())?;
        Ok((Region::assemble(volume, owner, state, l0s, prefix.last, ids)?, ends))
    }

    /// Takes whole batches of records, the next ones in LSN order, into the L0. Answers how many of the records it took: fewer than
    /// there are when there is no room before a compaction.
    pub(crate) fn apply(&self, records: &[Replayed<'_>]) -> Result<usize> {
        let mut writer = self.writer.lock();
        let mut taken = 0;
        for batch in records.split_inclusive(|found| found.record.flags & FLAG_BATCH_CONTINUES == 0) {
            let first = batch[0].record.stamp.lsn;
            if first != writer.next {
                return Err(Error::protocol(self.id(), format!("LSN {first} where {} comes next", writer.next)));
            }
            if !self.apply_batch(batch)? {
                break;
            }
            taken += batch.len();
            let last = batch[batch.len() - 1].record.last_lsn();
            writer.next = last.next();
            self.last.store(last.0, Ordering::Release);
        }
        Ok(taken)
    }

    fn apply_batch(&self, batch: &[Replayed<'_>]) -> Result<bool> {
        let bytes: usize = batch.iter().map(|found| found.record.bytes()).sum();
        let ranges = batch.iter().filter(|found| found.record.kind == RecordKind::DeleteRange).count();
        match self.must_freeze(&self.view.load(), bytes as u64, ranges) {
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
    Ok(ids_from(state, last.map_or(0, |last| last + 1), move |number| {
        let id = SegmentId::built_by(term, builder, number);
        id.expect("a term ends before 256 TiB of index were built in it")
    }))
}
