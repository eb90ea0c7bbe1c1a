//! What is live on the volume: the manifest's state in memory, the segments it names, and the owner of each region.
//!
//! Regions that were split from one another share segments: each holds an [`Arc`] of its own, and the number is free when the
//! last one is dropped. What an edit takes from a region is [`Dropped`]: free only once the edit is durable.
//!
//! The cost of an edit is that of what it changes: nothing here walks all segments of a region, unless the edit replaces or drops
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

/// The right to change a region: the copy that was opened last has it.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) region: RegionId,
    token: u64,
    /// For what the region has in memory before anything is written to it.
    _reservation: Reservation,
}

impl Owner {
    /// The same right.
    pub(super) fn share(&self, reservation: Reservation) -> Owner {
        Owner { region: self.region, token: self.token, _reservation: reservation }
    }
}

/// Which other regions have a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// How many other regions.
    pub(crate) others: u64,
    /// Bytes of it that are live for those, together.
    pub(crate) live_bytes: u64,
}

/// Segments that a region no longer names since an edit. The manifest on the device may still name them. Without the proof that
/// it does not they stay in use, even if this is dropped.
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

    /// The edit is durable: each segment is free when it is not read any more.
    pub(super) fn free(self, durable: &Durable) {
        self.iter().for_each(|segment| segment.unname(durable));
    }
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
    pub(super) fn take(&mut self, region: RegionId, reservation: Reservation) -> Owner {
        self.last_token += 1;
        self.owners.insert(region, self.last_token);
        Owner { region, token: self.last_token, _reservation: reservation }
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

    /// Which regions beside `region` have a segment.
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

    /// Bytes of a checkpoint of the state after `changes`; `None` if they do not fit it.
    pub(super) fn size_after(&self, changes: &[Change]) -> Option<usize> {
        let mut state = self.state.clone();
        changes.iter().try_for_each(|change| state.apply(change)).ok()?;
        Some(measure(state))
    }

    /// Carries out `changes` of `region` and holds what they add; answers the segments that it names no more. Of `changes` that
    /// do not fit it carries out none; if only the first ones fit, the device takes no more writes.
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

    /// Appends what `region` may need no more after `change`: no other segment can be.
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
            Change::Opened(_) | Change::OpenLog { .. } | Change::SealLog { .. } | Change::Checkpoint { .. } => {}
        }
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

/// The segments that a region may name since `change`.
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
        | Change::DropCheckpoint { .. } => Vec::new(),
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
