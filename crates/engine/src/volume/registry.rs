//! What is live on the volume: the manifest's state in memory, the segments it names, and who owns each region.

use super::space::Segment;
use crate::error::{Error, Result};
use crate::memory::Lease;
use leeward_format::manifest::{Change, RegionState, SegmentState, VolumeState};
use leeward_format::{RegionId, SegmentId};
use std::collections::{HashMap, HashSet};
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

/// Guarded by the volume's lock, which is never held across I/O.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) state: VolumeState,
    segments: HashMap<RegionId, HashMap<SegmentId, Arc<Segment>>>,
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

    pub(super) fn hold(&mut self, region: RegionId, id: SegmentId, segment: Arc<Segment>) {
        self.segments.entry(region).or_default().insert(id, segment);
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

    /// Carries out `changes` of `region` and holds what they add; answers the segments that nothing names any more, to
    /// be dropped once the edit is durable.
    pub(super) fn apply(
        &mut self,
        region: RegionId,
        changes: &[Change],
        added: &[(SegmentId, Arc<Segment>)],
    ) -> Result<Vec<Arc<Segment>>> {
        for change in changes {
            self.state.apply(change).map_err(|error| Error::protocol(region, error.to_string()))?;
        }
        let held = self.segments.entry(region).or_default();
        held.extend(added.iter().cloned());
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
        Ok(dead.into_iter().filter_map(|id| held.remove(&id)).collect())
    }
}
