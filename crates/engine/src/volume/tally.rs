//! Running sums over the segments of each region: what a walk over all of them would find, ready at any time. The event
//! loop waits for the registry's lock, so nothing under it may cost more than what an edit changes.
//!
//! [`Registry::apply`](super::registry::Registry) subtracts what the segments that an edit touches have added, executes
//! the edit, and adds what they add then. A segment of several regions is touched in each of them, because each counts its
//! part. So a sum is what [`Tally::of`] finds, after each edit.
//!
//! Guarded by the registry's lock.

use super::registry::Sharing;
use super::{Accounts, Owner, Volume};
use crate::error::{Error, Result};
use leeward_format::cluster::CopyIdentity;
use leeward_format::frame::body_bytes;
use leeward_format::manifest::{RegionState, SegmentKind, SegmentState};
use leeward_format::{LogKind, RegionId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};

/// Sums over the segments of a region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) segments: u64,
    /// Their number in each log, by [`LogKind::index`](leeward_format::LogKind::index).
    pub(crate) log_segments: [u32; 3],
    /// Space and live bytes of the large log.
    pub(crate) accounts: Accounts,
    /// Bytes that other regions count.
    pub(crate) shared_bytes: u64,
}

impl Volume {
    /// The sums over the segments of the owner's region.
    pub(crate) fn figures(&self, owner: &Owner) -> Result<Figures> {
        let registry = self.registry.lock();
        registry.check(owner)?;
        let (state, tally) = (registry.region(owner.region), registry.tally(owner.region));
        let (Some(state), Some(tally)) = (state, tally) else { return Err(Error::Superseded(owner.region)) };
        Ok(Figures {
            segments: state.segments.len() as u64,
            log_segments: tally.log_segments,
            accounts: tally.accounts,
            shared_bytes: tally.shared_bytes,
        })
    }
}

/// Sums of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// See [`crate::Region::set_inherited_below`].
    pub(super) inherited_below: SegmentId,
    /// Of the large log.
    pub(super) accounts: Accounts,
    /// Bytes of its segments that other regions count.
    pub(super) shared_bytes: u64,
    /// Number of segments of each log.
    pub(super) log_segments: [u32; 3],
    /// Segments of the recovery log: an install gives them up as soon as it can.
    recovery: BTreeSet<SegmentId>,
    /// Complete segments of logs that leaves point to, without a live record.
    dead: BTreeSet<SegmentId>,
    /// Segments of the large log that may have records in an L0: they do not count yet.
    pending: BTreeSet<SegmentId>,
    /// Bytes of the segments in an encoded state.
    segments_bytes: usize,
    /// Bytes of its checkpoints in it.
    checkpoints_bytes: usize,
    /// Bytes of the rest of it, and of the region's id before it.
    rest_bytes: usize,
    /// Bytes of its identity and of the id before it.
    identity_bytes: usize,
}

/// Bytes of a map's entry in an encoded state.
fn entry_bytes(id: SegmentId, segment: &SegmentState) -> usize {
    body_bytes(&(id, segment))
}

impl Tally {
    /// The sums of `state`, from a walk over all of it.
    pub(super) fn of(
        state: &RegionState,
        inherited_below: SegmentId,
        segment_bytes: usize,
        sharing: &dyn Fn(&SegmentState) -> Sharing,
    ) -> Tally {
        let mut tally = Tally { inherited_below, ..Tally::default() };
        for segment in state.segments.values() {
            tally.count(state, segment, segment_bytes, sharing, true);
        }
        tally.measure_checkpoints(state);
        tally.measure_rest(state);
        tally
    }

    /// Adds or subtracts what `segment` of `state` adds.
    pub(super) fn count(
        &mut self,
        state: &RegionState,
        segment: &SegmentState,
        segment_bytes: usize,
        sharing: &dyn Fn(&SegmentState) -> Sharing,
        adds: bool,
    ) {
        let note = |set: &mut BTreeSet<SegmentId>, is_one: bool| match is_one && adds {
            true => drop(set.insert(segment.id)),
            false => drop(set.remove(&segment.id)),
        };
        let of_segment = entry_bytes(segment.id, segment);
        self.segments_bytes = if adds { self.segments_bytes + of_segment } else { self.segments_bytes - of_segment };
        let is_inherited = segment.id < self.inherited_below;
        let sharing = if is_inherited { sharing(segment) } else { Sharing::default() };
        let of_others = segment_bytes as u64 - segment_bytes as u64 / (1 + sharing.others);
        self.shared_bytes = if adds { self.shared_bytes + of_others } else { self.shared_bytes - of_others };
        let SegmentKind::Log(log) = segment.kind else { return };
        let count = &mut self.log_segments[log.index()];
        *count = if adds { *count + 1 } else { *count - 1 };
        note(&mut self.recovery, log == LogKind::Recovery);
        note(&mut self.dead, log.holds_values() && segment.live_bytes() == Some(0));
        if log != LogKind::Large {
            return;
        }
        let part = Accounts::of_segment((state, segment), segment_bytes, self.inherited_below, sharing);
        note(&mut self.pending, part.is_none());
        let part = part.unwrap_or_default();
        self.accounts = if adds { self.accounts.and(part) } else { self.accounts.without(part) };
    }

    /// Measures the checkpoints in the encoded state.
    pub(super) fn measure_checkpoints(&mut self, state: &RegionState) {
        self.checkpoints_bytes = body_bytes(&state.checkpoints);
    }

    /// Measures what is neither a segment nor a checkpoint in the encoded state.
    pub(super) fn measure_rest(&mut self, state: &RegionState) {
        let rest = RegionState {
            region: state.region,
            options: state.options.clone(),
            term: state.term,
            terms: state.terms.clone(),
            replay_from: state.replay_from,
            commit: state.commit,
            levels: state.levels.clone(),
            segments: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
        };
        // Each of the two empty maps is one byte: its number of entries.
        self.rest_bytes = body_bytes(&state.region) + body_bytes(&rest) - 2;
    }

    /// Measures what the copy belongs to.
    pub(super) fn measure_identity(&mut self, region: RegionId, identity: Option<&CopyIdentity>) {
        self.identity_bytes = identity.map_or(0, |identity| body_bytes(&(region, identity)));
    }

    /// Bytes that the region takes in a checkpoint of the volume, if it has `segments` segments.
    pub(super) fn encoded_bytes(&self, segments: usize) -> usize {
        body_bytes(&segments) + self.segments_bytes + self.checkpoints_bytes + self.rest_bytes + self.identity_bytes
    }

    /// Segments that change when the first LSN that replay needs does.
    pub(super) fn pending(&self) -> &BTreeSet<SegmentId> {
        &self.pending
    }

    /// The only segments that an install may give up, beside those whose records die with it.
    pub(super) fn trim_candidates(&self) -> impl Iterator<Item = SegmentId> {
        self.recovery.iter().chain(&self.dead).copied()
    }
}
