//! Finds the segments of a base that the volume has: in the region's own copy, or in that of a region that it was split
//! from, and so shares segments with.
//!
//! All segments are taken from one copy. With physical addressing, pointers within a copy name places on this volume,
//! and two copies may have the same segment in two places. Another region's copy may be written to meanwhile by its
//! owner. So only complete segments are taken from it; with physical addressing none at all, if leaves may point to
//! incomplete ones. None is taken from a copy whose log records cannot all be read.

use super::{Replica, keep};
use crate::error::Result;
use crate::volume::Segment;
use leeward_format::cluster::Addressing;
use leeward_format::manifest::{Base, BaseSegment, RegionState, SegmentState};
use leeward_format::{Lsn, RegionId, SegmentId};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A copy on the volume, its segments pinned.
pub(super) struct FoundCopy {
    pub(super) state: RegionState,
    segments: HashMap<SegmentId, Arc<Segment>>,
    /// It is the region's own copy.
    pub(super) is_own: bool,
}

impl FoundCopy {
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

    /// Bytes that must be shipped to complete the base, or the logs of it that a copy that keeps `kept` needs.
    fn lacked_bytes(&self, base: &Base, kept: Option<&RegionState>) -> u64 {
        let is_taken = |wanted: &&BaseSegment| kept.is_none_or(|kept| keep::is_needed(kept, wanted));
        let lacked = base.segments.iter().filter(is_taken).filter(|wanted| {
            let known = self.get(wanted).and_then(|(known, _)| known.bytes);
            known.is_none_or(|bytes| bytes < wanted.bytes)
        });
        lacked.map(|wanted| u64::from(wanted.bytes)).sum()
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
    /// The copy to which the fewest bytes of `base` must be shipped, and what this copy keeps of its state besides
    /// (see `keep`), if it `may_keep` anything. It is the region's own, unless fewer are shipped to another, or as many
    /// to another with more of it known to be committed. So the rest of a failed attempt to split a region does not prevent the next attempt.
    ///
    /// # Errors
    /// [`crate::Error::Superseded`], [`crate::Error::Io`].
    pub(super) fn find(&self, base: &Base, may_keep: bool) -> Result<(FoundCopy, Option<RegionState>)> {
        let own = self.region();
        let origins = base.segments.iter().map(|wanted| wanted.origin).chain(base.parent.map(|parent| parent.region));
        let others: BTreeSet<RegionId> = origins.filter(|origin| *origin != own).collect();
        let worth = |found: &FoundCopy| {
            let kept = if may_keep { self.kept_beside(found, base)? } else { None };
            let lacked = found.lacked_bytes(base, kept.as_ref());
            Ok(((Reverse(lacked), found.committed(base)), kept))
        };
        let mut best = FoundCopy { state: self.state()?, segments: self.volume.segments(own), is_own: true };
        let (mut most, mut kept) = worth(&best)?;
        for region in others {
            let Some((state, segments)) = self.volume.state_and_segments(region) else { continue };
            let other = FoundCopy { state, segments, is_own: false };
            if other.state.options.addressing != base.options.addressing || !other.is_closed(base) {
                continue;
            }
            let (its, keeps) = match worth(&other) {
                Err(error) if error.is_unreadable() => continue,
                its => its?,
            };
            if its > most && self.reads_as_recorded(&other, base) {
                (best, most, kept) = (other, its, keeps);
            }
        }
        Ok((best, kept))
    }

    /// Whether all log records that the base has in segments of `found`, and that a replay reads, can be read there.
    /// Another region's copy may be damaged, and is mended by that region alone.
    fn reads_as_recorded(&self, found: &FoundCopy, base: &Base) -> bool {
        let is_replayed = |wanted: &BaseSegment, known: &SegmentState| {
            keep::is_appended(known) && (wanted.last_lsn >= base.replay_from || found.state.is_replayed(known))
        };
        base.segments.iter().all(|wanted| match found.get(wanted) {
            Some((known, _)) if is_replayed(wanted, known) => self.readable_bytes(known) >= known.certain_bytes(),
            _ => true,
        })
    }
}
