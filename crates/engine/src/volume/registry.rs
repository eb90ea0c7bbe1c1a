//! What is live on the volume: the manifest's state in memory, the segments it names, and who owns each region.
//!
//! Regions that were divided from one another share segments: each holds an [`Arc`] of its own, and the number is free when the last
//! one is dropped.

use super::space::Segment;
use crate::error::{Error, Result};
use crate::memory::Lease;
use leeward_format::manifest::{Change, RegionState, SegmentState, VolumeState};
use leeward_format::{RegionId, SegmentId, SegmentNo};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// The right to change a region: whoever opened it last has it.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) region: RegionId,
    token: u64,
    /// For what the region has in memory before anything is written to it.
    _lease: Lease,
}

impl Owner {
    /// The same right.
    pub(super) fn share(&self, lease: Lease) -> Owner {
        Owner { region: self.region, token: self.token, _lease: lease }
    }
}

/// Who else has a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// How many other regions.
    pub(crate) others: u64,
    /// Bytes of it that are live for those, together.
    pub(crate) live_bytes: u64,
}

/// Guarded by the volume's lock, which is never held across I/O.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) state: VolumeState,
    segments: HashMap<RegionId, HashMap<SegmentId, Arc<Segment>>>,
    /// Of each segment that a region holds.
    holders: BTreeSet<(SegmentNo, RegionId)>,
    /// Raised by each edit of segments that are shared.
    sharing: u64,
    owners: HashMap<RegionId, u64>,
    last_token: u64,
}

impl Registry {
    pub(super) fn new(state: VolumeState) -> Registry {
        Registry { state, ..Registry::default() }
    }

    /// Makes a new owner of `region`; the one before has no rights any more.
    pub(super) fn take(&mut self, region: RegionId, lease: Lease) -> Owner {
        self.last_token += 1;
        self.owners.insert(region, self.last_token);
        Owner { region, token: self.last_token, _lease: lease }
    }

    pub(super) fn check(&self, owner: &Owner) -> Result<()> {
        match self.owners.get(&owner.region) {
            Some(token) if *token == owner.token => Ok(()),
            _ => Err(Error::Superseded(owner.region)),
        }
    }

    /// Holds a segment for `region`; answers the other one that stood for `id` before, if one did.
    pub(super) fn hold(&mut self, region: RegionId, id: SegmentId, segment: Arc<Segment>) -> Option<Arc<Segment>> {
        let no = segment.no();
        let before = self.segments.entry(region).or_default().insert(id, segment).filter(|before| before.no() != no);
        if let Some(before) = &before {
            self.holders.remove(&(before.no(), region));
        }
        self.holders.insert((no, region));
        before
    }

    /// The regions that hold a segment, in order of their ids.
    pub(super) fn holders(&self, no: SegmentNo) -> impl Iterator<Item = RegionId> {
        self.holders.range((no, RegionId(0))..=(no, RegionId(u32::MAX))).map(|(_, region)| *region)
    }

    pub(super) fn region(&self, region: RegionId) -> Option<&RegionState> {
        self.state.regions.get(&region)
    }

    pub(super) fn segment(&self, region: RegionId, id: SegmentId) -> Option<Arc<Segment>> {
        self.segments.get(&region)?.get(&id).cloned()
    }

    pub(super) fn segments(&self, region: RegionId) -> HashMap<SegmentId, Arc<Segment>> {
        self.segments.get(&region).cloned().unwrap_or_default()
    }

    /// Who has a segment beside `region`.
    pub(super) fn sharing(&self, region: RegionId, segment: &SegmentState) -> Sharing {
        let mut sharing = Sharing::default();
        for other in self.holders(segment.no).filter(|other| *other != region) {
            sharing.others += 1;
            // One that only a checkpoint has is not live: no sweep frees it.
            let known = self.region(other).and_then(|state| state.segments.get(&segment.id));
            let used = segment.bytes.unwrap_or(0);
            sharing.live_bytes += known.map_or(0, |known| u64::from(known.live_bytes().unwrap_or(used)));
        }
        sharing
    }

    /// A number that is another whenever something of what [`Registry::sharing`] says may be.
    pub(super) fn sharing_serial(&self) -> u64 {
        self.sharing
    }

    /// Carries out `changes` of `region` and holds what they add; answers the segments that it names no more, to be dropped once
    /// the edit is durable.
    pub(super) fn apply(
        &mut self,
        region: RegionId,
        changes: &[Change],
        added: &[(SegmentId, Arc<Segment>)],
    ) -> Result<Vec<Arc<Segment>>> {
        for change in changes {
            self.state.apply(change).map_err(|error| Error::protocol(region, error.to_string()))?;
        }
        let moved = added.iter().filter_map(|(id, segment)| self.hold(region, *id, segment.clone()));
        let mut dropped: Vec<Arc<Segment>> = moved.collect();
        let held = self.segments.entry(region).or_default();
        let state = self.state.regions.get(&region);
        let kept: HashSet<SegmentId> = state
            .into_iter()
            .flat_map(|state| state.checkpoints.values())
            .flat_map(|base| base.segments.iter().map(|segment| segment.id))
            .collect();
        let is_live = |id: &SegmentId| state.is_some_and(|state| state.segments.contains_key(id)) || kept.contains(id);
        let dead: Vec<SegmentId> = held.keys().filter(|id| !is_live(id)).copied().collect();
        let is_held = |segment: SegmentState| held.contains_key(&segment.id);
        debug_assert!(state.is_none_or(|state| state.needed_segments().all(is_held)), "live segments are held");
        for segment in dead.into_iter().filter_map(|id| held.remove(&id)) {
            self.holders.remove(&(segment.no(), region));
            dropped.push(segment);
        }
        if held.is_empty() {
            self.segments.remove(&region);
        }
        self.note_sharing(region, changes, added, &dropped);
        Ok(dropped)
    }

    /// Notes whether what was changed is another region's as well.
    fn note_sharing(
        &mut self,
        region: RegionId,
        changes: &[Change],
        added: &[(SegmentId, Arc<Segment>)],
        dropped: &[Arc<Segment>],
    ) {
        let has_others = |no| self.holders(no).any(|holder| holder != region);
        let killed = changes.iter().flat_map(|change| match change {
            Change::Install { edit, .. } => &edit.dead[..],
            _ => &[],
        });
        let mut killed = killed.filter_map(|(id, _)| self.region(region)?.segments.get(id));
        let mut held = added.iter().map(|(_, segment)| segment).chain(dropped);
        if killed.any(|segment| has_others(segment.no)) || held.any(|segment| has_others(segment.no())) {
            self.sharing += 1;
        }
    }
}
