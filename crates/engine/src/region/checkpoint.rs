//! Checkpoints: durable, named copies of a region by reference. The manifest keeps the region's state of an instant.
//! Its segments are neither freed nor reused while the checkpoint exists, whatever happens to the region.
//!
//! A checkpoint has its L0s in the form of log records. The tails are sealed and made durable, and opening the
//! checkpoint replays them. So making one costs a sync, not a compaction, and keeps only the log segments that a replay
//! needs. Opening one costs as much as a restart.
//!
//! Any thread. A checkpoint belongs to its volume: other replicas do not know of it.

use super::open::{Recovered, open_view, recover, value_reader};
use super::tails::seal;
use super::{PinnedBase, Region};
use crate::error::{Error, RESTORE, Result};
use crate::log::{Overlays, Tails};
use crate::version::Snapshot;
use crate::volume::Durability;
use leeward_format::manifest::{Base, BaseSegment, Change, RegionState};
use leeward_format::{Lsn, RegionId, SegmentId, UnixMs};
use std::collections::HashMap;
use std::sync::Arc;

/// Longest name of a checkpoint, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Data about a checkpoint, available without opening it. See [`Db::checkpoints`](crate::Db::checkpoints).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// 1 to 64 letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// LSN of the last write in it.
    pub last_lsn: Lsn,
    /// Bytes of its segments.
    pub bytes: u64,
    /// Bytes of the segments that neither the store nor another checkpoint needs: dropping it frees them.
    pub own_bytes: u64,
}

/// An open checkpoint: the content of the store when it was made. It stays readable if it is dropped meanwhile. See
/// [`Db::open_checkpoint`](crate::Db::open_checkpoint).
pub struct Checkpoint {
    region: RegionId,
    pinned: Arc<PinnedBase>,
    snapshot: Snapshot,
}

impl Region {
    /// Makes a checkpoint of all writes appended so far, committed or not. It is durable when this returns. Seals the
    /// tails. For a region without other replicas.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a checkpoint has that name already, or the name is not 1 to 64 letters, digits and `-`,
    /// `_` or `.`; [`Error::NoSpace`] if the manifest has no room for another; those of writing.
    pub fn checkpoint(&self, name: &str) -> Result<()> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_letter) {
            let detail = format!("checkpoint {name:?}: a name has 1 to {MAX_NAME_BYTES} letters, digits, -, _ and .");
            return Err(Error::Invalid(detail));
        }
        let pinned = {
            let mut writer = self.writer.lock();
            seal(&mut writer);
            self.pin_base(&writer)
        };
        self.sync_tails()?;
        // One at a time, so that the next one sees the name.
        let _installing = self.installing.lock();
        let is_known = self.volume.with_region(&self.owner, |state| state.checkpoints.contains_key(name))?;
        if is_known {
            return Err(Error::Invalid(format!("there is a checkpoint {name:?} already")));
        }
        let (region, name) = (self.id(), name.to_owned());
        let made = Change::Checkpoint { region, name, base: Box::new(pinned.base.clone()) };
        self.volume.check_room(&made)?;
        self.volume.commit(&self.owner, vec![made], &pinned.named(), Durability::Synced)
    }

    /// Its checkpoints, by name.
    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        let segment_bytes = self.volume.segment_bytes();
        self.volume.with_region(&self.owner, |state| infos(state, segment_bytes)).unwrap_or_default()
    }

    /// Opens a checkpoint: replays the end of its logs. Pairs that have expired by `now` are absent from it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of that name; [`Error::Damaged`], [`Error::Io`].
    pub fn open_checkpoint(&self, name: &str, now: UnixMs) -> Result<Checkpoint> {
        let (base, mut segments) =
            self.volume.pin_region(&self.owner, |state: &RegionState| state.checkpoints.get(name).cloned());
        let base = base.ok_or_else(|| unknown(name))?;
        segments.retain(|id, _| base.segment(*id).is_some());
        Checkpoint::open(self.id(), PinnedBase::of_checkpoint(base, Arc::clone(&self.volume), segments), now)
    }

    /// Drops a checkpoint, durably. Space that only it needed is freed once no reader uses it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of that name; those of writing.
    pub fn drop_checkpoint(&self, name: &str) -> Result<()> {
        let _installing = self.installing.lock();
        if !self.volume.with_region(&self.owner, |state| state.checkpoints.contains_key(name))? {
            return Err(unknown(name));
        }
        let dropped = Change::DropCheckpoint { region: self.id(), name: name.to_owned() };
        self.volume.commit(&self.owner, vec![dropped], &[], Durability::Synced)
    }
}

fn unknown(name: &str) -> Error {
    Error::Invalid(format!("there is no checkpoint {name:?}"))
}

/// The checkpoints of a region. The volume has segments of `segment_bytes` bytes.
pub(crate) fn infos(state: &RegionState, segment_bytes: usize) -> Vec<CheckpointInfo> {
    let mut users = HashMap::<SegmentId, u32>::new();
    for id in state.checkpoints.values().flat_map(|base| &base.segments).map(|segment| segment.id) {
        *users.entry(id).or_default() += 1;
    }
    let info = |(name, base): (&String, &Base)| {
        let is_own = |id: SegmentId| users[&id] == 1 && !state.segments.contains_key(&id);
        let bytes = |segment: &BaseSegment| segment.state().place(segment_bytes).bytes(segment_bytes) as u64;
        CheckpointInfo {
            name: name.clone(),
            last_lsn: base.last_lsn,
            bytes: base.segments.iter().map(bytes).sum(),
            own_bytes: base.segments.iter().filter(|segment| is_own(segment.id)).map(bytes).sum(),
        }
    };
    state.checkpoints.iter().map(info).collect()
}

impl Checkpoint {
    fn open(region: RegionId, pinned: PinnedBase, now: UnixMs) -> Result<Checkpoint> {
        let (volume, state) = (pinned.volume(), pinned.base.region_state(region));
        let last = pinned.base.last_lsn;
        let Recovered { l0s, ends, .. } = recover(volume, &state, &Overlays::new())?;
        if let Some(found) = state.segments.values().find(|segment| {
            state.is_replayed(segment) && ends.get(&segment.id).is_none_or(|end| Some(end.bytes) != segment.bytes)
        }) {
            let offset = volume.file_offset(found.no, ends.get(&found.id).map_or(0, |end| end.bytes));
            let detail = "records of the checkpoint are gone".to_owned();
            return Err(Error::Damaged { file: volume.name().to_owned(), offset, detail, advice: RESTORE });
        }
        let reader = value_reader(volume, &state, pinned.segments(), &Arc::new(Tails::new()));
        let view = open_view(volume, pinned.segments().clone(), &state, reader, l0s)?;
        // Its readers hold the log segments, like those of levels.
        view.version.keep(pinned.segments().values().cloned().collect());
        let snapshot = Snapshot::new(view.version, last, now);
        Ok(Checkpoint { region, pinned: Arc::new(pinned), snapshot })
    }

    /// A snapshot of all of it.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Its region, and what it pins.
    pub(crate) fn pinned(&self) -> (RegionId, &Arc<PinnedBase>) {
        (self.region, &self.pinned)
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint").field("last_lsn", &self.pinned.base.last_lsn).finish_non_exhaustive()
    }
}
