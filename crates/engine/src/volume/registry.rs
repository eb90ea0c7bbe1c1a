//! Live state of the volume: the manifest's state in memory, the segments that it names, and the owner of each region.
//!
//! Regions that were split from one another share segments: each holds an [`Arc`] of its own, and the number is free
//! when the last one is dropped. Segments that an edit takes from a region are [`Dropped`]: free only once the edit is
//! durable.
//!
//! An edit costs as much as it changes: nothing here walks all segments of a region, unless the edit replaces or drops
//! it.

use super::device::{Device, Durable};
use super::room::measure;
use super::space::Segment;
use crate::error::{Error, Result};
use crate::memory::Reservation;
use leeward_format::manifest::{Change, RegionState, SegmentState, VolumeState};
use leeward_format::{RegionId, SegmentId, SegmentNo};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The right to change a region. The copy that was opened last has it.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) region: RegionId,
    token: u64,
    /// Memory of the region before anything is written to it.
    _reservation: Reservation,
}

impl Owner {
    /// A second holder of the same right.
    pub(super) fn share(&self, reservation: Reservation) -> Owner {
        Owner { region: self.region, token: self.token, _reservation: reservation }
    }
}

/// How a segment is shared with other regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Number of other regions that hold it.
    pub(crate) others: u64,
    /// Sum of the bytes that are live in it for those.
    pub(crate) live_bytes: u64,
}

/// Segments that a region no longer names after an edit. The manifest on the device may still name them. Until the edit
/// is known to be durable they stay in use, even if this is dropped.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Dropped(Vec<Arc<Segment>>);

impl Dropped {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.0.iter().map(|segment| &**segment)
    }

    /// The edit is durable: each segment is free once no reader uses it.
    pub(super) fn free(self, durable: &Durable) {
        self.iter().for_each(|segment| segment.unname(durable));
    }
}

/// Guarded by the volume's lock, which is never held across I/O.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) state: VolumeState,
    segments: HashMap<RegionId, HashMap<SegmentId, Arc<Segment>>>,
    /// Each segment with each region that holds it.
    holders: BTreeSet<(SegmentNo, RegionId)>,
    /// Incremented by each edit of shared segments.
    sharing: u64,
    owners: HashMap<RegionId, u64>,
    last_token: u64,
}

impl Registry {
    pub(super) fn new(state: VolumeState) -> Registry {
        Registry { state, ..Registry::default() }
    }

    /// Makes a new owner of `region`; the previous one loses its right.
    pub(super) fn take(&mut self, region: RegionId, reservation: Reservation) -> Owner {
        self.last_token += 1;
        self.owners.insert(region, self.last_token);
        Owner { region, token: self.last_token, _reservation: reservation }
    }

    /// The right of the present owner of `region`, for an edit that changes none of its data.
    pub(super) fn owner(&self, region: RegionId, reservation: Reservation) -> Option<Owner> {
        let token = *self.owners.get(&region).filter(|_| self.state.regions.contains_key(&region))?;
        Some(Owner { region, token, _reservation: reservation })
    }

    pub(super) fn check(&self, owner: &Owner) -> Result<()> {
        match self.owners.get(&owner.region) {
            Some(token) if *token == owner.token => Ok(()),
            _ => Err(Error::Superseded(owner.region)),
        }
    }

    /// Holds a segment for `region`; returns the segment that had `id` before, if it was another one.
    pub(super) fn hold(&mut self, region: RegionId, id: SegmentId, segment: Arc<Segment>) -> Option<Arc<Segment>> {
        let no = segment.no();
        let before = self.segments.entry(region).or_default().insert(id, Arc::clone(&segment));
        let before = before.filter(|before| before.no() != no);
        if let Some(before) = &before {
            self.holders.remove(&(before.no(), region));
        }
        if self.holders.insert((no, region)) {
            segment.name();
        }
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

    /// How `segment` is shared with regions other than `region`.
    pub(super) fn sharing(&self, region: RegionId, segment: &SegmentState) -> Sharing {
        let mut sharing = Sharing::default();
        for other in self.holders(segment.no).filter(|other| *other != region) {
            sharing.others += 1;
            // A segment that only a checkpoint has is not live: no sweep frees it.
            let known = self.region(other).and_then(|state| state.segments.get(&segment.id));
            let used = segment.bytes.unwrap_or(0);
            sharing.live_bytes += known.map_or(0, |known| u64::from(known.live_bytes().unwrap_or(used)));
        }
        sharing
    }

    /// A number that changes whenever the result of [`Registry::sharing`] may have changed.
    pub(super) fn sharing_serial(&self) -> u64 {
        self.sharing
    }

    /// Bytes of a checkpoint of the state after `changes`; `None` if they do not fit the state.
    pub(super) fn size_after(&self, changes: &[Change]) -> Option<usize> {
        let mut state = self.state.clone();
        changes.iter().try_for_each(|change| state.apply(change)).ok()?;
        Some(measure(state))
    }

    /// Applies `changes` of `region`, holds the added segments, and returns those that the region no longer names. If
    /// the first change does not fit, none is applied; if a later one does not fit, the device takes no more writes.
    pub(super) fn apply(
        &mut self,
        device: &Device,
        (region, changes): (RegionId, &[Change]),
        added: &[(SegmentId, Arc<Segment>)],
    ) -> Result<Dropped> {
        let mut candidates = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            self.find_candidates(region, change, &mut candidates);
            if let Err(error) = self.state.apply(change) {
                if at > 0 {
                    device.fail(&format!("a part of an edit of region {region} does not fit the manifest: {error}"));
                }
                return Err(Error::protocol(region, error.to_string()));
            }
        }
        let moved = added.iter().filter_map(|(id, segment)| self.hold(region, *id, segment.clone()));
        let mut dropped: Vec<Arc<Segment>> = moved.collect();
        let held = self.segments.entry(region).or_default();
        let state = self.state.regions.get(&region);
        let is_held = |id: &SegmentId| held.contains_key(id);
        debug_assert!(changes.iter().flat_map(named).all(|id| is_held(&id)), "segments that are named are held");
        for id in candidates.into_iter().filter(|id| state.is_none_or(|state| !state.needs(*id))) {
            if let Some(segment) = held.remove(&id) {
                self.holders.remove(&(segment.no(), region));
                dropped.push(segment);
            }
        }
        if held.is_empty() {
            self.segments.remove(&region);
        }
        self.note_sharing(region, changes, added, &dropped);
        Ok(Dropped(dropped))
    }

    /// Appends the only segments that `region` may no longer need after `change`.
    fn find_candidates(&self, region: RegionId, change: &Change, candidates: &mut Vec<SegmentId>) {
        match change {
            Change::Forget { ids, .. } => candidates.extend(ids),
            Change::Install { edit, .. } => candidates.extend(&edit.removed),
            Change::DropCheckpoint { name, .. } => {
                let base = self.region(region).and_then(|state| state.checkpoints.get(name));
                candidates.extend(base.iter().flat_map(|base| &base.segments).map(|segment| segment.id));
            }
            Change::Region(_) | Change::Drop(_) => {
                candidates.extend(self.segments.get(&region).iter().flat_map(|held| held.keys()));
            }
            Change::Opened(_)
            | Change::OpenLog { .. }
            | Change::SealLog { .. }
            | Change::Checkpoint { .. }
            | Change::Identify { .. } => {}
        }
    }

    /// Notes whether changed segments belong to another region as well.
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

/// The segments that a region may name after `change`.
fn named(change: &Change) -> Vec<SegmentId> {
    match change {
        Change::OpenLog { id, .. } => vec![*id],
        Change::Install { edit, .. } => edit.added.iter().map(|(id, _)| *id).collect(),
        Change::Checkpoint { base, .. } => base.segments.iter().map(|segment| segment.id).collect(),
        Change::Region(state) => state.needed_segments().map(|segment| segment.id).collect(),
        Change::Opened(_)
        | Change::Drop(_)
        | Change::SealLog { .. }
        | Change::Forget { .. }
        | Change::DropCheckpoint { .. }
        | Change::Identify { .. } => Vec::new(),
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
