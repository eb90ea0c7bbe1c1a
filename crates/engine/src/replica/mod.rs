//! A region's copy that does not serve: the volume's copy after a start, and a backup's copy.
//!
//! A backup has no L0, merges nothing and reads no index from its device: it stores log bytes verbatim, and finished
//! segments with their pointers translated from the primary's segment numbers to its own (Tebis 3.3). With build-index
//! a backup stores only the log bytes, and builds its own levels from them. One thread at a time makes all calls; all
//! of them may use the device.
//!
//! One file for each phase. `base` brings the copy in sync with a primary, with the segments that `found` finds on the
//! volume. `mirror` follows the primary from there. `adopt` takes over the content of mirror buffers after the loss of
//! the primary. `follow` builds the index, and `keep` decides which part of it survives a new base.

mod adopt;
mod base;
mod export;
mod follow;
mod found;
mod keep;
mod map;
mod mirror;
mod open;

use crate::error::{Error, RESTORE, Result};
use crate::log::{Overlays, Prefix, find_prefix, segment_end};
use crate::volume::{Durability, Owner, Segment, Volume};
pub use adopt::Unopened;
use base::PendingBase;
pub use export::Export;
use follow::Follower;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{Change, Have, Parent, RegionState, SegmentKind, SegmentState};
use leeward_format::{Epoch, LogKind, Lsn, RegionId, SegmentId};
use map::SegmentMap;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Result of [`Replica::store`].
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
    /// No tail was opened since `position` was found: the copy has nothing beyond it.
    is_at_end: bool,
    /// Some durable and committed records are missing, or cannot be read.
    is_damaged: bool,
    /// Log map and index map in one: the primary's segment numbers to those of this volume. In memory only.
    map: SegmentMap,
    /// Tails of the primary that are mirrored but not sealed here; during a base also sealed ones.
    tails: BTreeMap<SegmentId, OpenTail>,
    /// Segments shipped for a compaction that is not installed yet.
    shipments: HashMap<SegmentId, Shipment>,
    pending: Option<PendingBase>,
    /// Builds the index, or makes the copy readable; `None` if the copy does neither.
    follower: Option<Follower>,
    /// The region that it was split from, until the copy gets another base.
    parent: Option<Parent>,
    /// The highest commit LSN that a primary reported.
    committed: Lsn,
}

/// A tail of the primary.
#[derive(Debug)]
struct OpenTail {
    log: LogKind,
    segment: Arc<Segment>,
    /// Bytes written here.
    persisted: u32,
    /// Its end, if it was sealed before the base that precedes it was installed.
    sealed: Option<(u32, Lsn)>,
}

/// A shipped segment.
#[derive(Debug)]
struct Shipment {
    segment: Arc<Segment>,
    kind: SegmentKind,
    bytes: u32,
}

impl Replica {
    /// Creates an empty copy of `region`. It becomes durable with the next sync, and so before anything depends on it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the volume has the region already.
    pub fn create(volume: &Arc<Volume>, region: RegionId, options: TableOptions) -> Result<Replica> {
        let state = RegionState::new(region, options);
        let options = state.options.clone();
        let owner = volume.create_region(state)?;
        Ok(Replica::new(volume, owner, options, (Epoch(0), Lsn(0))))
    }

    /// Opens the volume's copy of `region` unchanged, and takes the region over from an earlier owner that still has it
    /// open. `None` if the volume has no copy.
    ///
    /// # Errors
    /// [`Error::Io`]. Damage is no error before [`Replica::serve`], and neither is a sector that the device cannot read:
    /// such a copy [`is_damaged`](Replica::is_damaged), and can be brought in sync.
    pub fn open(volume: &Arc<Volume>, region: RegionId) -> Result<Option<Replica>> {
        let Some(owner) = volume.take_region(region) else { return Ok(None) };
        let state = volume.copied_region(&owner)?;
        let (last, damage) = match find_prefix(volume, &state, &Overlays::new()) {
            Ok((prefix, _)) => (prefix.last, refuse_damage(volume, &state, &prefix).err()),
            Err(error) if error.is_unreadable() => (Lsn(0), Some(error)),
            Err(error) => return Err(error),
        };
        let mut replica = Replica::new(volume, owner, state.options, (state.term, last));
        replica.note_damage(damage);
        Ok(Some(replica))
    }

    /// Sets whether the copy is damaged, and tells the log how.
    fn note_damage(&mut self, damage: Option<Error>) {
        if let Some(error) = &damage {
            tracing::warn!(region = %self.region(), %error, "this copy is damaged");
        }
        self.is_damaged = damage.is_some();
    }

    fn new(volume: &Arc<Volume>, owner: Owner, options: TableOptions, position: (Epoch, Lsn)) -> Replica {
        Replica {
            volume: volume.clone(),
            owner,
            options,
            position,
            is_at_end: true,
            is_damaged: false,
            map: SegmentMap::default(),
            tails: BTreeMap::new(),
            shipments: HashMap::new(),
            pending: None,
            follower: None,
            parent: None,
            committed: Lsn(0),
        }
    }

    /// Id of the region.
    pub fn region(&self) -> RegionId {
        self.owner.region
    }

    /// The volume that it is on.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Options of its table.
    pub fn options(&self) -> &TableOptions {
        &self.options
    }

    /// Term of the last primary that this copy was, or was in sync with; and last LSN of its valid prefix. The LSN is
    /// from the open, from [`Replica::adopt_tails`] or from [`Replica::install_base`], whichever came last.
    pub fn position(&self) -> (Epoch, Lsn) {
        self.position
    }

    /// Whether records that were durable and committed are missing, or cannot be read. So it is not known how far the
    /// copy reached, and [`Replica::position`] is no more than a part of it.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// [`Replica::position`]; `None` for a damaged copy.
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
        self.volume.copied_region(&self.owner)
    }

    /// Valid bytes of a segment. A log segment whose end is not recorded is read.
    fn valid_bytes(&self, segment: &SegmentState) -> u32 {
        segment.bytes.unwrap_or_else(|| self.readable_bytes(segment))
    }

    /// Bytes of records at the start of a log segment that can be read, whatever is recorded of it.
    fn readable_bytes(&self, segment: &SegmentState) -> u32 {
        segment_end(&self.volume, segment).map_or(0, |end| end.bytes)
    }

    /// Discards unfinished work: a base that was not installed, shipments that no edit has installed, and the index
    /// that is being built.
    pub fn abandon(&mut self) {
        self.unfollow();
        self.pending = None;
        self.shipments.clear();
    }

    /// Removes the region from the volume, durably.
    ///
    /// # Errors
    /// Those of writing.
    pub fn destroy(self) -> Result<()> {
        self.volume.commit(&self.owner, vec![Change::Drop(self.region())], &[], Durability::Synced)
    }
}

/// An error if `prefix` is shorter than the durable and committed records.
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
