//! A region's copy that does not serve: what a volume holds after a start, and what a backup keeps.
//!
//! A backup has no L0, merges nothing and reads no index from its device: it stores log bytes verbatim, and finished
//! segments with their pointers translated from the primary's segment numbers to its own (Tebis 3.3). With build-index a backup
//! stores the log bytes alone, and builds levels of its own from them. Every call is made by one thread at a time;
//! all of them may touch the device.
//!
//! One file for each phase: `base` brings the copy to a primary's state, with what `found` finds on the volume. `mirror`
//! follows the primary from there. `adopt` takes over the content of mirror buffers when the primary is gone. `follow` builds the
//! index, and `keep` says which part of it a new base leaves as it is.

mod adopt;
mod base;
mod follow;
mod found;
mod keep;
mod map;
mod mirror;

use crate::error::{Error, RESTORE, Result};
use crate::log::{Overlays, Prefix, find_prefix, segment_end};
use crate::volume::{Durability, Owner, Segment, Volume};
pub use adopt::Unopened;
use base::PendingBase;
use follow::Follower;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{Change, Have, Parent, RegionState, SegmentKind, SegmentState};
use leeward_format::{Epoch, LogKind, Lsn, RegionId, SegmentId};
use map::SegmentMap;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What [`Replica::store`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of leaf and index segments whose pointers were rewritten.
    pub bytes_rewritten: u64,
}

/// A copy that does not serve.
#[derive(Debug)]
pub struct Replica {
    volume: Arc<Volume>,
    owner: Owner,
    options: TableOptions,
    position: (Epoch, Lsn),
    /// Part of what was durable and committed is missing.
    is_damaged: bool,
    /// Log map and index map in one: the primary's segment numbers to those of this volume. In memory only.
    map: SegmentMap,
    /// Tails of the primary that are mirrored and not sealed here; during a base also sealed ones.
    tails: BTreeMap<SegmentId, OpenTail>,
    /// Segments that were shipped for a compaction that is not installed yet.
    shipments: HashMap<SegmentId, Shipment>,
    pending: Option<PendingBase>,
    /// What builds the index, where the primary's is not shipped.
    follower: Option<Follower>,
    /// The region that it was split from, if the copy was not used since.
    parent: Option<Parent>,
    /// The commit LSN that a primary reported.
    committed: Lsn,
    /// Bytes of tails were written and not synced.
    unsynced: bool,
}

/// A tail of the primary.
#[derive(Debug)]
struct OpenTail {
    log: LogKind,
    segment: Arc<Segment>,
    /// Bytes that were written here.
    persisted: u32,
    /// Its end, if it was sealed before the base that precedes it was installed.
    sealed: Option<(u32, Lsn)>,
}

/// A segment that was shipped.
#[derive(Debug)]
struct Shipment {
    segment: Arc<Segment>,
    kind: SegmentKind,
    bytes: u32,
}

impl Replica {
    /// Makes an empty copy of `region`; durable with the next sync, and so before anything builds on it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the volume has the region already.
    pub fn create(volume: &Arc<Volume>, region: RegionId, options: TableOptions) -> Result<Replica> {
        let state = RegionState::new(region, options);
        let options = state.options.clone();
        let owner = volume.create_region(state)?;
        Ok(Replica::new(volume, owner, options, (Epoch(0), Lsn(0))))
    }

    /// Opens the copy of `region` that the volume has, as it is there, and takes the region over from the earlier owner, if it
    /// was open. `None`: the volume has no copy.
    ///
    /// # Errors
    /// [`Error::Io`]. Damage is no error before [`Replica::serve`]: a backup with damage can be synchronised.
    pub fn open(volume: &Arc<Volume>, region: RegionId) -> Result<Option<Replica>> {
        let Some(owner) = volume.take_region(region) else { return Ok(None) };
        let state = volume.with_region(&owner, RegionState::clone)?;
        let (prefix, _) = find_prefix(volume, &state, &Overlays::new())?;
        Ok(Some(Replica::new(volume, owner, state.options, (state.term, prefix.last))))
    }

    fn new(volume: &Arc<Volume>, owner: Owner, options: TableOptions, position: (Epoch, Lsn)) -> Replica {
        Replica {
            volume: volume.clone(),
            owner,
            options,
            position,
            is_damaged: false,
            map: SegmentMap::default(),
            tails: BTreeMap::new(),
            shipments: HashMap::new(),
            pending: None,
            follower: None,
            parent: None,
            committed: Lsn(0),
            unsynced: false,
        }
    }

    /// A copy that was just split from `parent`.
    pub(crate) fn split(
        volume: &Arc<Volume>,
        owner: Owner,
        options: TableOptions,
        position: (Epoch, Lsn),
        parent: Parent,
    ) -> Replica {
        Replica { parent: Some(parent), ..Replica::new(volume, owner, options, position) }
    }

    /// The region.
    pub fn region(&self) -> RegionId {
        self.owner.region
    }

    /// Options of its table.
    pub fn options(&self) -> &TableOptions {
        &self.options
    }

    /// Term of the last primary that this copy was (in sync with), and last LSN of its valid prefix: of what was on the
    /// device when it was opened, after [`Replica::adopt_tails`] or after [`Replica::install_base`], whichever came
    /// last.
    pub fn position(&self) -> (Epoch, Lsn) {
        self.position
    }

    /// [`Replica::position`]; `None` of a copy that [`Replica::adopt_tails`] has found damaged.
    pub fn reach(&self) -> Option<(Epoch, Lsn)> {
        (!self.is_damaged).then_some(self.position)
    }

    /// Every segment it has, with the valid bytes of each.
    pub fn have(&self) -> Vec<Have> {
        let Ok(state) = self.state() else { return Vec::new() };
        let segments = state.segments.values();
        segments.map(|segment| Have { id: segment.id, bytes: self.valid_bytes(segment) }).collect()
    }

    fn state(&self) -> Result<RegionState> {
        self.volume.with_region(&self.owner, RegionState::clone)
    }

    /// Bytes of a segment that count. A log segment whose end is not recorded is read; one that cannot be read has
    /// none.
    fn valid_bytes(&self, segment: &SegmentState) -> u32 {
        let end = || segment_end(&self.volume, segment).map_or(0, |end| end.bytes);
        segment.bytes.unwrap_or_else(end)
    }

    /// Discards unfinished work: a base that was not installed, shipments that no edit has installed, and the index that is
    /// being built.
    pub fn abandon(&mut self) {
        self.unfollow();
        self.pending = None;
        self.shipments.clear();
    }

    /// Forgets the region, durably.
    ///
    /// # Errors
    /// Those of writing.
    pub fn destroy(self) -> Result<()> {
        self.volume.commit(&self.owner, vec![Change::Drop(self.region())], &[], Durability::Synced)
    }
}

/// An error if `prefix` is shorter than what was durable and committed.
fn refuse_damage(volume: &Volume, state: &RegionState, prefix: &Prefix) -> Result<()> {
    let file = volume.name().to_owned();
    let region = state.region;
    let (offset, detail) = match &prefix.damage {
        Some((offset, found)) => (*offset, format!("region {region}: bytes that were durable are gone ({found})")),
        None if prefix.last < state.commit => {
            let (offset, found) = &prefix.stopped;
            let (next, commit) = (prefix.last.next(), state.commit);
            (*offset, format!("region {region}: LSN {next} is missing and {commit} was committed ({found})"))
        }
        None => return Ok(()),
    };
    Err(Error::Damaged { file, offset, detail, advice: RESTORE })
}
