//! A volume's manifest: the state of its regions, the edits that change it, and the parts of it that replicas exchange.
//!
//! ```text
//! zone      = frame, frame, ...              each starts at a multiple of FRAME_ALIGN bytes, zeroes between
//! frame     = header of crate::frame, kind ManifestEdit, body = Entry (postcard)
//! Entry     = sequence, durable, incarnation, body
//! body      = Checkpoint(VolumeState) | Edit([Change]) | Moved | Zone([SegmentNo]) | Identified(VolumeState, identities)
//! ```
//! A zone begins with a `Zone` entry, which names the segments that it continues in, and a checkpoint of the same
//! sequence, which was durable before `Zone` was written. Zones of volume version 8 begin with the checkpoint, and do
//! not continue. A checkpoint is `Identified`; volumes up to version 12 have `Checkpoint`, which lacks identities. An entry is atomic. Sequence numbers are dense, and `incarnation` (of the volume, when the entry was
//! written) never decreases. So the remains of an earlier use of the zone are never taken for its continuation.
//! `durable` is the last sequence that was synced when the entry was written. It tells damage (an unreadable entry that
//! was durable) from a tear (an entry that may never have been). The last FRAME_ALIGN bytes of the zone's own place
//! hold `Moved` after the manifest has moved to the other zone.
//!
//! [`Base`], [`InstallEdit`], [`Have`] and [`Shipped`] also travel in control messages, where every [`SegmentNo`] and
//! [`Pointer`] is one of the sender's volume.

use crate::cluster::{Addressing, CopyIdentity, TableOptions};
use crate::segment::LOG_HEADER_BYTES;
use crate::{DecodeError, Epoch, Incarnation, LogKind, Lsn, Pointer, RegionId, SegmentId, SegmentName, SegmentNo};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

mod base;
mod positions;
mod shared;
mod terms;

pub use base::{Base, BaseSegment, Have, Parent, Shipped};
pub use positions::{L1, L1_RUNS, MAX_LEVELS, PIECES, level_at, level_name};
pub use terms::Terms;

/// Alignment of the frames of a zone, in bytes.
pub const FRAME_ALIGN: usize = 64;

/// The kind of a segment's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SegmentKind {
    /// Records.
    Log(LogKind),
    /// Leaves, the nodes above them and their filter.
    Leaf,
    /// The nodes above leaf segments.
    Index,
}

impl SegmentKind {
    /// Whether it holds nodes, whose pointers a backup rewrites with physical addressing.
    pub fn is_index(self) -> bool {
        !matches!(self, SegmentKind::Log(_))
    }
}

impl fmt::Display for SegmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentKind::Log(LogKind::Recovery) => f.pad("recovery log"),
            SegmentKind::Log(LogKind::Large) => f.pad("large log"),
            SegmentKind::Log(LogKind::Medium) => f.pad("medium log"),
            SegmentKind::Leaf => f.pad("leaves"),
            SegmentKind::Index => f.pad("index"),
        }
    }
}

/// One live segment of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentState {
    /// Its identity among those of its origin.
    pub id: SegmentId,
    /// The region that it was made for, which seeds all checksums in it. It differs from the region that has the
    /// segment if that one was split from it, or both from a third.
    pub origin: RegionId,
    /// Where it lies.
    pub no: SegmentNo,
    /// Log, leaves, or the nodes above leaf segments.
    pub kind: SegmentKind,
    /// Bytes in use, the header of a log segment included; `None` for a log segment that was still open, whose end
    /// replay finds.
    pub bytes: Option<u32>,
    /// Bytes of a log segment that levels refer to, durable since the levels were installed. If fewer can be read, the
    /// segment is damaged.
    pub durable_bytes: u32,
    /// Last LSN of a log segment that was appended to and is sealed, otherwise 0.
    pub last_lsn: Lsn,
    /// Dead bytes of a log that leaves point to: records that no leaf points to any more, or ever will.
    pub dead_bytes: u32,
}

impl SegmentState {
    /// Its name in pointers.
    pub fn name(&self, addressing: Addressing) -> SegmentName {
        addressing.name(self.id, self.no)
    }

    /// A segment made for `origin`, whose end is not known.
    pub fn new(origin: RegionId, id: SegmentId, no: SegmentNo, kind: SegmentKind) -> SegmentState {
        SegmentState { id, origin, no, kind, bytes: None, durable_bytes: 0, last_lsn: Lsn(0), dead_bytes: 0 }
    }

    /// Whether it is a segment of a log that leaves point to.
    pub fn holds_values(&self) -> bool {
        matches!(self.kind, SegmentKind::Log(log) if log.holds_values())
    }

    /// Whether it is part of a sorted run, written by a compaction: its records are in key order, and zeroes fill its
    /// last block.
    pub fn is_run(&self) -> bool {
        self.holds_values() && self.bytes.is_some() && self.last_lsn == Lsn(0)
    }

    /// What it takes of a volume with segments of this size: of a segment that was written at once only the smallest
    /// part that has room for it.
    pub fn place(&self, segment_bytes: usize) -> SegmentNo {
        match self.bytes {
            Some(bytes) if self.kind.is_index() || self.is_run() => self.no.trimmed(bytes as usize, segment_bytes),
            _ => self.no,
        }
    }

    /// Bytes that it has for certain: if fewer can be read, it is damaged.
    pub fn certain_bytes(&self) -> u32 {
        self.durable_bytes.max(self.bytes.unwrap_or(0))
    }

    /// Bytes of records that leaves point to, or will; `None` while the segment is open.
    pub fn live_bytes(&self) -> Option<u32> {
        self.bytes.map(|bytes| bytes.saturating_sub(LOG_HEADER_BYTES as u32).saturating_sub(self.dead_bytes))
    }
}

/// One level of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelState {
    /// Topmost node; `None` for an empty level.
    pub root: Option<Pointer>,
    /// Segments of the nodes above the leaf segments, if there is more than one leaf segment.
    pub index_segments: Vec<SegmentId>,
    /// Number of leaf segments.
    pub leaf_segments: u32,
    /// Entries in the leaves, tombstones included.
    pub entries: u64,
    /// Bytes of keys and values in place in the leaves, by which the size of a level is measured.
    pub bytes: u64,
    /// Leaf segments with range tombstones.
    pub ranged: Vec<SegmentId>,
}

/// How far a log must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogExtent {
    /// [`LogKind::Large`]: levels refer to no other log with a tail.
    pub log: LogKind,
    /// The last segment with records that levels refer to.
    pub id: SegmentId,
    /// Bytes of that segment up to the end of the last such record.
    pub bytes: u32,
}

/// The result of one compaction: installed atomically, on every replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallEdit {
    /// Levels that changed: [position](L1_RUNS) and new state.
    #[serde(with = "positions::pairs")]
    pub levels: Vec<(u8, LevelState)>,
    /// New segments: leaf and index segments of the new levels, and sorted runs that leaves point to.
    pub added: Vec<(SegmentId, SegmentKind)>,
    /// Leaf and index segments that nothing needs any more.
    pub removed: Vec<SegmentId>,
    /// For a compaction of an L0, the first LSN that replay needs from now on; otherwise 0, which changes nothing.
    pub replay_from: Lsn,
    /// Log bytes that must be durable before the edit is, on every replica.
    pub logs: Vec<LogExtent>,
    /// Bytes of records that become dead, by segment; segments in `added` are possible. A segment whose records are all
    /// dead can be forgotten with the edit; see [`RegionState::trimmable`].
    pub dead: Vec<(SegmentId, u32)>,
}

/// The state of a region on a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionState {
    /// Also the key in [`VolumeState::regions`].
    pub region: RegionId,
    /// Options of its table.
    pub options: TableOptions,
    /// The last term in which this copy was that of the primary, or in sync with it.
    pub term: Epoch,
    /// Terms in which the records were given their LSNs.
    pub terms: Terms,
    /// First LSN that the levels do not hold.
    pub replay_from: Lsn,
    /// LSN up to which both logs are known to be committed and durable here: damage up to it is an error, not a tear.
    pub commit: Lsn,
    /// By [position](L1_RUNS).
    #[serde(with = "positions::list")]
    pub levels: Vec<LevelState>,
    /// Every live segment.
    pub segments: BTreeMap<SegmentId, SegmentState>,
    /// Its checkpoints by name. Each is the region at an instant, and shares segments with it. No other replica has
    /// them.
    pub checkpoints: BTreeMap<String, Base>,
}

/// The state of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    /// Raised each time the volume is opened.
    pub incarnation: Incarnation,
    /// Its regions. A clone of the whole shares them, and costs next to nothing.
    #[serde(with = "shared")]
    pub regions: BTreeMap<RegionId, Arc<RegionState>>,
    /// What the copies of these regions belong to, as far as that is known. Not a part of the encoded state:
    /// [`EntryBody::Identified`] has both.
    #[serde(skip)]
    pub identities: BTreeMap<RegionId, CopyIdentity>,
}

/// One change of a [`VolumeState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The volume was opened.
    Opened(Incarnation),
    /// A region's state is replaced, or created.
    Region(Box<RegionState>),
    /// A region is forgotten.
    Drop(RegionId),
    /// A log segment may hold records from now on.
    OpenLog {
        /// The volume must have a state of it.
        region: RegionId,
        /// A log that is appended to: recovery or large.
        log: LogKind,
        /// Identity of the segment.
        id: SegmentId,
        /// Where it lies.
        no: SegmentNo,
    },
    /// A log segment ends here. Bytes beyond are no records.
    SealLog {
        /// The volume must have a state of it.
        region: RegionId,
        /// Must be that of a log segment of the region.
        id: SegmentId,
        /// Header and records, in bytes.
        bytes: u32,
        /// Last LSN in it.
        last_lsn: Lsn,
    },
    /// Segments are not needed any more.
    Forget {
        /// The volume must have a state of it.
        region: RegionId,
        /// All must be among the region's segments.
        ids: Vec<SegmentId>,
    },
    /// A compaction's result, with the numbers and pointers of this volume.
    Install {
        /// The volume must have a state of it.
        region: RegionId,
        /// Checked by [`RegionState::check_install`] first.
        edit: InstallEdit,
        /// Where the added segments lie and how many bytes of each are in use, in the order of `edit.added`.
        places: Vec<(SegmentNo, u32)>,
        /// See [`RegionState::commit`].
        commit: Lsn,
    },
    /// A checkpoint is made. All of it is durable.
    Checkpoint {
        /// The volume must have a state of it.
        region: RegionId,
        /// Its name among those of the region.
        name: String,
        /// Its content, with the numbers and pointers of this volume.
        base: Box<Base>,
    },
    /// A checkpoint is not needed any more.
    DropCheckpoint {
        /// The volume must have a state of it.
        region: RegionId,
        /// A checkpoint of the region must have it.
        name: String,
    },
    /// It is known now what the copy of a region belongs to.
    Identify {
        /// The volume must have a state of it.
        region: RegionId,
        /// What it belongs to.
        identity: Box<CopyIdentity>,
    },
}

/// One entry of the manifest, in a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number: one more than that of the entry before.
    pub sequence: u64,
    /// Last entry that was durable when this one was written.
    pub durable: u64,
    /// Incarnation of the volume that wrote it.
    pub incarnation: Incarnation,
    /// Changes, a whole state, or where the manifest continues.
    pub body: EntryBody,
}

/// The body of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryBody {
    /// The whole state, without identities: of volumes up to version 12. It is read, and not written any more.
    Checkpoint(VolumeState),
    /// Changes that are applied atomically.
    Edit(Vec<Change>),
    /// The manifest continues in the other zone.
    Moved,
    /// The zone continues in these segments, in order, and a checkpoint comes next. All of it is durable.
    Zone(Vec<SegmentNo>),
    /// The whole state, and what its copies belong to.
    Identified(VolumeState, BTreeMap<RegionId, CopyIdentity>),
}

impl EntryBody {
    /// A checkpoint of `state`.
    pub fn checkpoint(mut state: VolumeState) -> EntryBody {
        let identities = std::mem::take(&mut state.identities);
        EntryBody::Identified(state, identities)
    }
    /// Whether it is a checkpoint.
    pub fn is_checkpoint(&self) -> bool {
        matches!(self, EntryBody::Checkpoint(_) | EntryBody::Identified(..))
    }
    /// The state of a checkpoint; `None` if it is none.
    pub fn into_state(self) -> Option<VolumeState> {
        match self {
            EntryBody::Checkpoint(state) => Some(state),
            EntryBody::Identified(state, identities) => Some(VolumeState { identities, ..state }),
            EntryBody::Edit(_) | EntryBody::Moved | EntryBody::Zone(_) => None,
        }
    }
}

impl VolumeState {
    /// Executes `change`. On an error nothing is changed.
    ///
    /// # Errors
    /// The change does not fit the state: the manifest is damaged, or a peer sent a wrong edit.
    pub fn apply(&mut self, change: &Change) -> Result<(), DecodeError> {
        match change {
            Change::Opened(incarnation) => self.incarnation = *incarnation,
            Change::Region(state) => {
                self.regions.insert(state.region, Arc::new((**state).clone()));
            }
            Change::Drop(region) => {
                self.region(*region)?;
                self.regions.remove(region);
                self.identities.remove(region);
            }
            Change::Identify { region, identity } => {
                self.region(*region)?;
                self.identities.insert(*region, (**identity).clone());
            }
            Change::OpenLog { region, log, id, no } => self.region(*region)?.open_log(*log, *id, *no)?,
            Change::SealLog { region, id, bytes, last_lsn } => {
                self.region(*region)?.seal_log(*id, *bytes, *last_lsn)?;
            }
            Change::Forget { region, ids } => self.region(*region)?.forget(ids)?,
            Change::Install { region, edit, places, commit } => {
                self.region(*region)?.install(edit, places, *commit)?;
            }
            Change::Checkpoint { region, name, base } => self.region(*region)?.checkpoint(name, base)?,
            Change::DropCheckpoint { region, name } => {
                let known = self.region(*region)?.checkpoints.remove(name);
                known.ok_or_else(|| invalid(format!("there is no checkpoint {name:?}")))?;
            }
        }
        Ok(())
    }

    fn region(&mut self, id: RegionId) -> Result<&mut RegionState, DecodeError> {
        let region = self.regions.get_mut(&id).ok_or_else(|| invalid(format!("there is no region {id}")))?;
        Ok(Arc::make_mut(region))
    }
}

fn invalid(detail: String) -> DecodeError {
    DecodeError::invalid("manifest edit", detail)
}

impl RegionState {
    /// Whether it has a segment that `known` lacks, or knows another place or end of one. If not, and the segments of
    /// `known` are durable, so are those of this state.
    pub fn says_more_than(&self, known: &RegionState) -> bool {
        let place = |segment: &SegmentState| (segment.no, segment.bytes, segment.last_lsn);
        self.segments.iter().any(|(id, segment)| known.segments.get(id).map(place) != Some(place(segment)))
    }

    /// A region without data.
    pub fn new(region: RegionId, options: TableOptions) -> RegionState {
        RegionState {
            region,
            options,
            term: Epoch(0),
            terms: Terms::default(),
            replay_from: Lsn(1),
            commit: Lsn(0),
            levels: Vec::new(),
            segments: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
        }
    }

    fn checkpoint(&mut self, name: &str, base: &Base) -> Result<(), DecodeError> {
        if self.checkpoints.contains_key(name) {
            return Err(invalid(format!("checkpoint {name:?} is made twice")));
        }
        if !base.segments.is_sorted_by(|one, next| one.id < next.id) {
            return Err(invalid(format!("the segments of checkpoint {name:?} are not in order")));
        }
        self.checkpoints.insert(name.to_owned(), base.clone());
        Ok(())
    }

    /// Every segment that it needs, each once; last those that only checkpoints need.
    pub fn needed_segments(&self) -> impl Iterator<Item = SegmentState> {
        let kept: BTreeMap<SegmentId, SegmentState> = self
            .checkpoints
            .values()
            .flat_map(|base| &base.segments)
            .filter(|segment| !self.segments.contains_key(&segment.id))
            .map(|segment| (segment.id, segment.state()))
            .collect();
        self.segments.values().copied().chain(kept.into_values())
    }

    /// Whether the region or one of its checkpoints needs a segment.
    pub fn needs(&self, id: SegmentId) -> bool {
        self.segments.contains_key(&id) || self.checkpoints.values().any(|base| base.segment(id).is_some())
    }

    /// Whether a replay of its logs reads one of its segments.
    pub fn is_replayed(&self, segment: &SegmentState) -> bool {
        let is_appended = matches!(segment.kind, SegmentKind::Log(log) if LogKind::APPENDED.contains(&log));
        is_appended && (segment.bytes.is_none() || segment.last_lsn >= self.replay_from)
    }

    /// Its log segments of `log`, oldest first.
    pub fn log_segments(&self, log: LogKind) -> impl DoubleEndedIterator<Item = &SegmentState> {
        self.segments.values().filter(move |segment| segment.kind == SegmentKind::Log(log))
    }

    fn open_log(&mut self, log: LogKind, id: SegmentId, no: SegmentNo) -> Result<(), DecodeError> {
        if self.segments.contains_key(&id) {
            return Err(invalid(format!("segment {id} is opened twice")));
        }
        self.segments.insert(id, SegmentState::new(self.region, id, no, SegmentKind::Log(log)));
        Ok(())
    }

    fn seal_log(&mut self, id: SegmentId, bytes: u32, last_lsn: Lsn) -> Result<(), DecodeError> {
        match self.segments.get_mut(&id) {
            Some(segment) if !segment.kind.is_index() => {
                (segment.bytes, segment.last_lsn) = (Some(bytes), last_lsn);
                Ok(())
            }
            _ => Err(invalid(format!("segment {id} is sealed and is no log segment"))),
        }
    }

    fn forget(&mut self, ids: &[SegmentId]) -> Result<(), DecodeError> {
        if let Some(unknown) = ids.iter().find(|id| !self.segments.contains_key(id)) {
            return Err(invalid(format!("segment {unknown} is forgotten and unknown")));
        }
        for id in ids {
            self.segments.remove(id);
        }
        Ok(())
    }

    /// Whether `edit` can be installed on this state.
    ///
    /// # Errors
    /// The part of the edit that does not fit.
    pub fn check_install(&self, edit: &InstallEdit) -> Result<(), DecodeError> {
        if let Some((level, _)) = edit.levels.iter().find(|(level, _)| usize::from(*level) >= MAX_LEVELS) {
            return Err(invalid(format!("level {level} is out of range")));
        }
        let is_appended = |kind| kind == SegmentKind::Log(LogKind::Recovery);
        let mut added = edit.added.iter();
        if let Some((id, _)) = added.find(|(id, kind)| self.segments.contains_key(id) || is_appended(*kind)) {
            return Err(invalid(format!("segment {id} cannot be added")));
        }
        let is_live = |id: &SegmentId| self.segments.get(id).is_some_and(|segment| segment.kind.is_index());
        if let Some(id) = edit.removed.iter().find(|id| !is_live(id)) {
            return Err(invalid(format!("segment {id} cannot be removed")));
        }
        // An edit of a whole level names thousands of segments.
        let added: BTreeMap<SegmentId, SegmentKind> = edit.added.iter().copied().collect();
        let removed: BTreeSet<SegmentId> = edit.removed.iter().copied().collect();
        let is_kept = |id: &SegmentId| is_live(id) && !removed.contains(id);
        let mut index_segments = edit.levels.iter().flat_map(|(_, level)| &level.index_segments);
        if let Some(id) = index_segments.find(|id| !added.contains_key(id) && !is_kept(id)) {
            return Err(invalid(format!("index segment {id} is not there")));
        }
        for (id, dead) in &edit.dead {
            let known = match (added.get(id).copied(), self.segments.get(id)) {
                (Some(kind), _) => SegmentState::new(self.region, *id, SegmentNo(0), kind),
                (None, Some(segment)) => *segment,
                (None, None) => return Err(invalid(format!("records die in segment {id}, which is not there"))),
            };
            if !known.holds_values() || known.live_bytes().is_some_and(|live| *dead > live) {
                return Err(invalid(format!("{dead} bytes cannot die in segment {id}")));
            }
        }
        Ok(())
    }

    /// Those of `ids` that name segments with values, which leaves point to.
    pub fn with_values<'a>(&'a self, ids: &'a [SegmentId]) -> impl Iterator<Item = SegmentId> + 'a {
        let holds_values = |id: &SegmentId| self.segments.get(id).is_some_and(SegmentState::holds_values);
        ids.iter().copied().filter(holds_values)
    }

    /// Log segments that nothing needs any more once `edit` is installed. They are complete, their records precede the
    /// first that replay needs, and in a log that leaves point to, all records are dead.
    pub fn trimmable(&self, edit: &InstallEdit) -> Vec<SegmentId> {
        self.trimmable_of(edit, self.segments.keys().copied())
    }

    /// [`RegionState::trimmable`] among `candidates` and the segments in which records die, in order.
    pub fn trimmable_of(&self, edit: &InstallEdit, candidates: impl Iterator<Item = SegmentId>) -> Vec<SegmentId> {
        let replay_from = self.replay_from.max(edit.replay_from);
        let dying: BTreeMap<SegmentId, u32> = edit.dead.iter().copied().collect();
        let is_dead = |segment: &SegmentState| {
            !segment.holds_values() || segment.live_bytes() == Some(dying.get(&segment.id).copied().unwrap_or(0))
        };
        let candidates: BTreeSet<SegmentId> = candidates.chain(dying.keys().copied()).collect();
        let segments = candidates.iter().filter_map(|id| self.segments.get(id));
        let logs = segments.filter(|segment| !segment.kind.is_index());
        let complete = logs.filter(|segment| segment.bytes.is_some() && segment.last_lsn < replay_from);
        complete.filter(|segment| is_dead(segment)).map(|segment| segment.id).collect()
    }

    fn install(&mut self, edit: &InstallEdit, places: &[(SegmentNo, u32)], commit: Lsn) -> Result<(), DecodeError> {
        self.check_install(edit)?;
        if places.len() != edit.added.len() {
            return Err(invalid(format!("{} places for {} segments", places.len(), edit.added.len())));
        }
        for id in &edit.removed {
            self.segments.remove(id);
        }
        for ((id, kind), (no, bytes)) in edit.added.iter().zip(places) {
            let durable_bytes = if kind.is_index() { 0 } else { *bytes };
            let added = SegmentState::new(self.region, *id, *no, *kind);
            self.segments.insert(*id, SegmentState { bytes: Some(*bytes), durable_bytes, ..added });
        }
        for (id, dead) in &edit.dead {
            if let Some(segment) = self.segments.get_mut(id) {
                segment.dead_bytes = segment.dead_bytes.saturating_add(*dead);
            }
        }
        for extent in &edit.logs {
            if let Some(segment) = self.segments.get_mut(&extent.id) {
                segment.durable_bytes = segment.durable_bytes.max(extent.bytes);
            }
        }
        for (level, state) in &edit.levels {
            let level = usize::from(*level);
            if self.levels.len() <= level {
                self.levels.resize_with(level + 1, LevelState::default);
            }
            self.levels[level] = state.clone();
        }
        positions::trim(&mut self.levels);
        self.replay_from = self.replay_from.max(edit.replay_from);
        self.commit = self.commit.max(commit);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
