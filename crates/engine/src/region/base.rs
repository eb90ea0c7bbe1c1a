//! The base that a backup is brought in sync with: all of a region at one instant, its segments pinned.

use super::{Region, Writer};
use crate::error::{Error, Result};
use crate::log::Tail;
use crate::volume::{Segment, Volume};
use leeward_format::manifest::{Base, BaseSegment, RegionState, SegmentKind, SegmentState};
use leeward_format::{LogKind, SegmentId};
use std::collections::HashMap;
use std::sync::Arc;

/// A [`Base`] whose segments are not reused until this is dropped.
pub struct PinnedBase {
    /// Names the segments that are pinned.
    pub base: Base,
    volume: Arc<Volume>,
    segments: HashMap<SegmentId, Arc<Segment>>,
    tails: HashMap<SegmentId, Arc<Tail>>,
}

impl PinnedBase {
    /// The base of a checkpoint with these segments.
    pub(crate) fn of_checkpoint(
        base: Base,
        volume: Arc<Volume>,
        segments: HashMap<SegmentId, Arc<Segment>>,
    ) -> PinnedBase {
        PinnedBase { base, volume, segments, tails: HashMap::new() }
    }

    pub(crate) fn segments(&self) -> &HashMap<SegmentId, Arc<Segment>> {
        &self.segments
    }

    /// The segments that the base names.
    pub(super) fn named(&self) -> Vec<(SegmentId, Arc<Segment>)> {
        self.base.segments.iter().map(|segment| (segment.id, Arc::clone(&self.segments[&segment.id]))).collect()
    }

    /// The volume of the segments.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }
}

impl std::fmt::Debug for PinnedBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedBase").field("base", &self.base).finish_non_exhaustive()
    }
}

impl PinnedBase {
    /// One of its segments.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a segment that is not part of it.
    pub fn segment(&self, id: SegmentId) -> Result<&BaseSegment> {
        self.base.segment(id).ok_or_else(|| Error::Invalid(format!("segment {id} is not part of the base")))
    }

    /// Bytes in use of one of its segments, for shipping.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] for a segment that is not part of it.
    pub fn read_segment(&self, id: SegmentId) -> Result<Vec<u8>> {
        let segment = self.segment(id)?;
        if let Some(tail) = self.tails.get(&id) {
            return Ok(tail.bytes()[..segment.bytes as usize].to_vec());
        }
        let mut bytes = vec![0; segment.bytes as usize];
        self.volume.read(self.segments[&id].no(), 0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Region {
    /// The base of the region at this instant, pinned. The tails must be sealed ([`Region::seal_tails`]). For the
    /// writer.
    pub fn base(&self) -> PinnedBase {
        self.pin_base(&self.writer.lock())
    }

    /// [`Region::base`], between two appends.
    pub(super) fn pin_base(&self, writer: &Writer) -> PinnedBase {
        assert!(writer.current.iter().all(Option::is_none), "the tails are sealed");
        // The tails first: a tail that is flushed and released meanwhile is then still known as one.
        let tails: HashMap<SegmentId, Arc<Tail>> = self.tails.all().map(|tail| (tail.id(), tail)).collect();
        let last_lsn = self.last_lsn();
        let commit = self.commit();
        let describe = |state: &RegionState| Base {
            options: state.options.clone(),
            term: self.term,
            terms: state.terms.clone(),
            replay_from: state.replay_from,
            last_lsn,
            commit,
            levels: state.levels.clone(),
            segments: state.segments.values().filter_map(|segment| describe(state, segment, &tails)).collect(),
            parent: self.parent.get().copied(),
        };
        let (base, mut segments) = self.volume.pin_region(&self.owner, describe);
        for tail in tails.values() {
            segments.insert(tail.id(), tail.pin());
        }
        PinnedBase { base, volume: self.volume.clone(), segments, tails }
    }
}

/// The base's entry of a segment; `None` if it has no records, or none that a replay needs.
fn describe(state: &RegionState, segment: &SegmentState, tails: &HashMap<SegmentId, Arc<Tail>>) -> Option<BaseSegment> {
    let (bytes, last_lsn) = match tails.get(&segment.id) {
        Some(tail) => (tail.filled(), tail.last_lsn()),
        None => (segment.bytes?, segment.last_lsn),
    };
    let is_trimmable = segment.kind == SegmentKind::Log(LogKind::Recovery) && last_lsn < state.replay_from;
    let &SegmentState { id, origin, kind, no: primary, dead_bytes, .. } = segment;
    let described = BaseSegment { id, origin, kind, primary, bytes, last_lsn, dead_bytes };
    (!is_trimmable).then_some(described)
}
