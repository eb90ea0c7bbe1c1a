//! Finds the segments of a base that the volume has: in the region's own copy, or in that of a region that it was split
//! from, and so shares segments with.
//!
//! All segments are taken from one copy. With physical addressing, pointers within a copy name places on this volume,
//! and two copies may have the same segment in two places. Another region's copy may be written to meanwhile by its
//! owner. So only complete segments are taken from it; with physical addressing none at all, if leaves may point to
//! incomplete ones.

use super::Replica;
use crate::error::Result;
use crate::volume::Segment;
use leeward_format::cluster::Addressing;
use leeward_format::manifest::{Base, BaseSegment, RegionState, SegmentState};
use leeward_format::{Lsn, RegionId, SegmentId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A copy on the volume, its segments pinned.
pub(super) struct Found {
    pub(super) state: RegionState,
    segments: HashMap<SegmentId, Arc<Segment>>,
    /// It is the region's own copy.
    pub(super) is_own: bool,
}

impl Found {
    /// The local segment of one that the base names, if this copy has it.
    pub(super) fn get(&self, wanted: &BaseSegment) -> Option<(&SegmentState, &Arc<Segment>)> {
        let is_it = |known: &&SegmentState| (known.origin, known.kind) == (wanted.origin, wanted.kind);
        let known = self.state.segments.get(&wanted.id).filter(is_it)?;
        let is_whole = known.bytes.is_some_and(|bytes| bytes >= wanted.bytes);
        let segment = self.segments.get(&wanted.id)?;
        (self.is_own || is_whole).then_some((known, segment))
    }

    /// One of its segments.
    pub(super) fn segment(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.segments.get(&id)
    }

    /// Bytes of the base that need not be shipped.
    fn bytes_of(&self, base: &Base) -> u64 {
        let whole = base.segments.iter().filter(|wanted| {
            let known = self.get(wanted).and_then(|(known, _)| known.bytes);
            known.is_some_and(|bytes| bytes >= wanted.bytes)
        });
        whole.map(|wanted| u64::from(wanted.bytes)).sum()
    }

    /// Whether all segments that the base's leaves point to are taken from this copy, so that pointers stay valid.
    fn is_closed(&self, base: &Base) -> bool {
        if self.state.options.addressing == Addressing::Logical {
            return true;
        }
        let is_part = |wanted: &BaseSegment| {
            let known = self.state.segments.get(&wanted.id);
            known.is_some_and(|known| known.origin == wanted.origin && known.holds_values())
                && self.get(wanted).is_none()
        };
        !base.segments.iter().any(is_part)
    }

    /// Highest LSN up to which everything that it has is committed, and part of the base's history.
    pub(super) fn committed(&self, base: &Base) -> Option<Lsn> {
        if self.is_own {
            return Some(self.state.commit);
        }
        let parent =
            base.parent.filter(|parent| (parent.region, parent.term) == (self.state.region, self.state.term))?;
        let is_before = |segment: &SegmentState| segment.bytes.is_some() && segment.last_lsn <= parent.last_lsn;
        let goes_no_further = self.state.replay_from <= parent.last_lsn.next();
        let is_prefix = goes_no_further && self.state.segments.values().all(is_before);
        is_prefix.then_some(parent.last_lsn)
    }
}

impl Replica {
    /// The copy that has most of `base`: the region's own, unless another has more, or has as much with more of it
    /// known to be committed. So the rest of a failed attempt to split a region does not prevent the next attempt.
    ///
    /// # Errors
    /// [`crate::Error::Superseded`].
    pub(super) fn find(&self, base: &Base) -> Result<Found> {
        let own = self.region();
        let origins = base.segments.iter().map(|wanted| wanted.origin).chain(base.parent.map(|parent| parent.region));
        let others: BTreeSet<RegionId> = origins.filter(|origin| *origin != own).collect();
        let copy = |region| {
            let (state, segments) = self.volume.state_and_segments(region)?;
            Some(Found { state, segments, is_own: false })
        };
        let is_like =
            |found: &Found| found.state.options.addressing == base.options.addressing && found.is_closed(base);
        let others = others.into_iter().filter_map(copy).filter(is_like);
        let worth = |found: &Found| (found.bytes_of(base), found.committed(base));
        let best = others.max_by_key(worth);
        let mine = Found { state: self.state()?, segments: self.volume.segments(own), is_own: true };
        Ok(best.filter(|found| worth(found) > worth(&mine)).unwrap_or(mine))
    }
}
