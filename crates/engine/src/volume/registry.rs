//! Live state of the volume: the manifest's state in memory, the segments that it names, and the owner of each region.
//!
//! Regions that were split from one another share segments: each holds an [`Arc`] of its own, and the number is free
//! when the last one is dropped. Segments that an edit takes from a region are [`Dropped`]: free only once the edit is
//! durable.
//!
//! An edit costs as much as it changes: nothing here walks all segments of a region, unless the edit replaces or drops
//! it. What others ask about all of them is in running sums ([`super::tally`]).

use super::device::{Device, Durable};
use super::room::measure;
use super::space::Segment;
use super::tally::Tally;
use crate::error::{Error, Result};
use crate::memory::Reservation;
use leeward_format::frame::body_bytes;
use leeward_format::manifest::{Change, InstallEdit, RegionState, SegmentState, VolumeState};
use leeward_format::{RegionId, SegmentId, SegmentNo};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// How a segment is shared, in total.
#[derive(Clone, Copy, Debug, Default)]
struct Sharers {
    no: SegmentNo,
    /// Number of regions that hold it.
    all: u64,
    /// Sum of the bytes that are live in it for those that know.
    live_bytes: u64,
    /// Number of regions for which all of it is live, because they do not know its end.
    open: u64,
}

impl Sharers {
    /// How it is shared with regions other than one that has `segment`.
    fn others_of(&self, segment: &SegmentState) -> Sharing {
        let used = u64::from(segment.bytes.unwrap_or(0));
        let (own, own_open) = segment.live_bytes().map_or((0, 1), |live| (u64::from(live), 0));
        let live_bytes = self.live_bytes.saturating_sub(own) + self.open.saturating_sub(own_open) * used;
        Sharing { others: self.all.saturating_sub(1), live_bytes }
    }
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
    sharing: Arc<AtomicU64>,
    owners: HashMap<RegionId, u64>,
    last_token: u64,
    /// Sums of each region.
    tallies: HashMap<RegionId, Tally>,
    /// Regions that were split: they count their part of what others have too.
    inheriting: HashSet<RegionId>,
    /// Bytes of all regions in a checkpoint.
    encoded_bytes: usize,
    segment_bytes: usize,
}

impl Registry {
    /// Of a volume with segments of this size. Once all of its segments are held, [`Registry::tally_all`] must follow.
    pub(super) fn new(state: VolumeState, segment_bytes: usize) -> Registry {
        Registry { state, segment_bytes, ..Registry::default() }
    }

    /// Makes a new owner of `region`; the previous one loses its right.
    pub(super) fn take(&mut self, region: RegionId, reservation: Reservation) -> Owner {
        self.set_inherited_below(region, SegmentId(0));
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
        self.state.regions.get(&region).map(|state| &**state)
    }

    /// As [`Registry::region`]. An edit copies all of the region while this is held.
    pub(super) fn shared_region(&self, region: RegionId) -> Option<Arc<RegionState>> {
        self.state.regions.get(&region).map(Arc::clone)
    }

    pub(super) fn segment(&self, region: RegionId, id: SegmentId) -> Option<Arc<Segment>> {
        self.segments.get(&region)?.get(&id).cloned()
    }

    pub(super) fn segments(&self, region: RegionId) -> HashMap<SegmentId, Arc<Segment>> {
        self.segments.get(&region).cloned().unwrap_or_default()
    }

    /// How the segment of a region that has `segment` is shared with other regions.
    pub(super) fn sharing(&self, segment: &SegmentState) -> Sharing {
        self.sharers(segment).others_of(segment)
    }

    /// A number that changes whenever the result of [`Registry::sharing`] may have changed.
    pub(super) fn sharing_serial(&self) -> &Arc<AtomicU64> {
        &self.sharing
    }

    /// The sums of a region.
    pub(super) fn tally(&self, region: RegionId) -> Option<&Tally> {
        self.tallies.get(&region)
    }

    /// Sums up all regions.
    pub(super) fn tally_all(&mut self) {
        let regions: Vec<RegionId> = self.state.regions.keys().copied().collect();
        regions.into_iter().for_each(|region| self.tally_anew(region, SegmentId(0)));
    }

    fn tally_anew(&mut self, region: RegionId, inherited_below: SegmentId) {
        let before = self.encoded_bytes_of(region);
        let Some(state) = self.region(region) else { return };
        let sharing = |segment: &SegmentState| self.sharing(segment);
        let mut tally = Tally::of(state, inherited_below, self.segment_bytes, &sharing);
        tally.measure_identity(region, self.state.identities.get(&region));
        self.tallies.insert(region, tally);
        match inherited_below {
            SegmentId(0) => self.inheriting.remove(&region),
            _ => self.inheriting.insert(region),
        };
        self.encoded_bytes = self.encoded_bytes - before + self.encoded_bytes_of(region);
    }

    /// See [`crate::Region::set_inherited_below`]. Walks all segments of the region, if it changes.
    pub(super) fn set_inherited_below(&mut self, region: RegionId, id: SegmentId) {
        if self.tallies.get(&region).is_some_and(|tally| tally.inherited_below != id) {
            self.tally_anew(region, id);
        }
    }

    /// See [`RegionState::trimmable`].
    pub(super) fn trimmable(&self, region: RegionId, edit: &InstallEdit) -> Option<Vec<SegmentId>> {
        let (state, tally) = (self.region(region)?, self.tallies.get(&region)?);
        Some(state.trimmable_of(edit, tally.trim_candidates()))
    }

    /// Bytes that a region takes in a checkpoint.
    fn encoded_bytes_of(&self, region: RegionId) -> usize {
        let (Some(state), Some(tally)) = (self.region(region), self.tallies.get(&region)) else { return 0 };
        tally.encoded_bytes(state.segments.len())
    }

    /// Bytes of a checkpoint of the state.
    pub(super) fn size(&self) -> usize {
        let VolumeState { incarnation, regions, identities } = &self.state;
        let rest = measure(VolumeState { incarnation: *incarnation, ..VolumeState::default() });
        // An empty map is one byte: its number of entries.
        rest - 2 + body_bytes(&regions.len()) + body_bytes(&identities.len()) + self.encoded_bytes
    }

    /// Bytes of a checkpoint of the state after `changes`; `None` if they do not fit the state. Copies the regions that
    /// they change.
    pub(super) fn size_after(&self, changes: &[Change]) -> Option<usize> {
        let mut changed = VolumeState::default();
        for region in changes.iter().filter_map(region_of) {
            changed.regions.extend(self.shared_region(region).map(|state| (region, state)));
            changed.identities.extend(self.state.identities.get(&region).map(|identity| (region, identity.clone())));
        }
        let before = measure(changed.clone());
        changes.iter().try_for_each(|change| changed.apply(change)).ok()?;
        Some(self.size() + measure(changed) - before)
    }

    /// Applies `changes` of `region`, holds the added segments, and returns those that the region no longer names. If
    /// the first change does not fit, none is applied; if a later one does not fit, the device takes no more writes.
    pub(super) fn apply(
        &mut self,
        device: &Device,
        (region, changes): (RegionId, &[Change]),
        added: &[(SegmentId, Arc<Segment>)],
    ) -> Result<Dropped> {
        let touched = self.touched(region, changes, added);
        let before = self.encoded_bytes_of(region);
        self.count(&touched, false);
        let dropped = self.apply_uncounted(device, (region, changes), added);
        self.count(&touched, true);
        self.measure_changed(region, changes);
        self.encoded_bytes = self.encoded_bytes - before + self.encoded_bytes_of(region);
        dropped
    }

    fn apply_uncounted(
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

    /// The segments whose parts of the sums an edit may change, with each region that has them.
    fn touched(
        &self,
        region: RegionId,
        changes: &[Change],
        added: &[(SegmentId, Arc<Segment>)],
    ) -> BTreeSet<(SegmentId, RegionId)> {
        let mut ids: Vec<SegmentId> = changes.iter().flat_map(named).collect();
        for change in changes {
            self.find_candidates(region, change, &mut ids);
            match change {
                Change::SealLog { id, .. } => ids.push(*id),
                Change::Install { edit, .. } => {
                    ids.extend(edit.dead.iter().map(|(id, _)| *id).chain(edit.logs.iter().map(|extent| extent.id)));
                    let raises = self.region(region).is_some_and(|state| state.replay_from < edit.replay_from);
                    ids.extend(self.tallies.get(&region).filter(|_| raises).into_iter().flat_map(Tally::pending));
                }
                _ => {}
            }
        }
        let mut touched = BTreeSet::new();
        let held = self.segments.get(&region);
        let nos = ids.iter().filter_map(|id| Some((*id, held?.get(id)?.no())));
        for (id, no) in nos.chain(added.iter().map(|(id, segment)| (*id, segment.no()))) {
            // Others count their part only of what existed when they were split.
            let holders = (!self.inheriting.is_empty()).then(|| self.holders(no)).into_iter().flatten();
            touched.extend(holders.filter(|holder| self.inheriting.contains(holder)).map(|holder| (id, holder)));
        }
        touched.extend(ids.iter().chain(added.iter().map(|(id, _)| id)).map(|id| (*id, region)));
        touched
    }

    /// How a segment is shared among all that hold it, in terms of one that has `segment`.
    fn sharers(&self, segment: &SegmentState) -> Sharers {
        let mut sharers = Sharers { no: segment.no, ..Sharers::default() };
        for holder in self.holders(segment.no) {
            sharers.all += 1;
            // A segment that only a checkpoint has is not live: no sweep frees it.
            if let Some(known) = self.region(holder).and_then(|state| state.segments.get(&segment.id)) {
                match known.live_bytes() {
                    Some(live) => sharers.live_bytes += u64::from(live),
                    None => sharers.open += 1,
                }
            }
        }
        sharers
    }

    /// Adds to the sums, or subtracts from them, what these segments add.
    fn count(&mut self, touched: &BTreeSet<(SegmentId, RegionId)>, adds: bool) {
        let mut last: Option<(SegmentId, Sharers)> = None;
        for (id, region) in touched {
            let mut tally = self.tallies.remove(region).unwrap_or_default();
            if let Some(state) = self.region(*region)
                && let Some(segment) = state.segments.get(id)
            {
                // Those that share a segment come one after another.
                let sharers = match last {
                    Some((of, sharers)) if of == *id && sharers.no == segment.no => sharers,
                    _ if *id < tally.inherited_below => self.sharers(segment),
                    _ => Sharers::default(),
                };
                last = (sharers.all > 0).then_some((*id, sharers));
                tally.count(state, segment, self.segment_bytes, &|segment| sharers.others_of(segment), adds);
            }
            self.tallies.insert(*region, tally);
        }
    }

    /// Measures what `changes` of `region` have changed beside segments.
    fn measure_changed(&mut self, region: RegionId, changes: &[Change]) {
        let Some(state) = self.state.regions.get(&region) else {
            self.tallies.remove(&region);
            self.inheriting.remove(&region);
            return;
        };
        let tally = self.tallies.entry(region).or_default();
        for change in changes {
            match change {
                Change::Region(_) => {
                    tally.measure_rest(state);
                    tally.measure_checkpoints(state);
                }
                Change::Install { .. } => tally.measure_rest(state),
                Change::Checkpoint { .. } | Change::DropCheckpoint { .. } => tally.measure_checkpoints(state),
                Change::Identify { .. } => tally.measure_identity(region, self.state.identities.get(&region)),
                Change::Opened(_)
                | Change::Drop(_)
                | Change::OpenLog { .. }
                | Change::SealLog { .. }
                | Change::Forget { .. } => {}
            }
        }
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
            self.sharing.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// The region that `change` changes.
fn region_of(change: &Change) -> Option<RegionId> {
    match change {
        Change::Opened(_) => None,
        Change::Region(state) => Some(state.region),
        Change::Drop(region)
        | Change::OpenLog { region, .. }
        | Change::SealLog { region, .. }
        | Change::Forget { region, .. }
        | Change::Install { region, .. }
        | Change::Checkpoint { region, .. }
        | Change::DropCheckpoint { region, .. }
        | Change::Identify { region, .. } => Some(*region),
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
