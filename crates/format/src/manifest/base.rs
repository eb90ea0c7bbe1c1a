//! What replicas tell each other of a region's segments: what one has, what another is to have, and what is shipped.
//!
//! Every [`SegmentNo`] and [`Pointer`](crate::Pointer) is one of the sender's volume. A [`Base`] is also what the manifest keeps
//! of a checkpoint, with those of its own volume.

use super::{LevelState, RegionState, SegmentKind, SegmentState, Terms};
use crate::cluster::TableOptions;
use crate::packed::Codec;
use crate::{Epoch, Lsn, RegionId, SegmentId, SegmentNo};
use serde::{Deserialize, Serialize};

/// All of a region at one instant, tails sealed: what a backup is brought to before mirroring continues from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Options of the region's table.
    pub options: TableOptions,
    /// Term of the primary.
    pub term: Epoch,
    /// See [`RegionState::terms`].
    pub terms: Terms,
    /// First LSN that the levels do not hold.
    pub replay_from: Lsn,
    /// Last LSN in the logs; mirrored tails continue from the next.
    pub last_lsn: Lsn,
    /// Commit LSN at that instant.
    pub commit: Lsn,
    /// Levels, with pointers of the primary's volume.
    pub levels: Vec<LevelState>,
    /// Every segment, by id.
    pub segments: Vec<BaseSegment>,
    /// What it was split from, if its primary knows.
    pub parent: Option<Parent>,
}

/// One segment of a [`Base`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseSegment {
    /// Its identity among those of its origin.
    pub id: SegmentId,
    /// See [`SegmentState::origin`].
    pub origin: RegionId,
    /// What it holds.
    pub kind: SegmentKind,
    /// Its number on the primary's volume.
    pub primary: SegmentNo,
    /// Bytes of it that count.
    pub bytes: u32,
    /// Last LSN of a log segment that was appended to, otherwise 0.
    pub last_lsn: Lsn,
    /// See [`SegmentState::dead_bytes`].
    pub dead_bytes: u32,
}

/// The region that another was split from, as it was then: everything up to there was committed, and is the other's as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The region.
    pub region: RegionId,
    /// Term of its primary.
    pub term: Epoch,
    /// Its last LSN.
    pub last_lsn: Lsn,
}

impl Base {
    /// One of its segments.
    pub fn segment(&self, id: SegmentId) -> Option<&BaseSegment> {
        let found = self.segments.binary_search_by_key(&id, |segment| segment.id);
        found.ok().map(|at| &self.segments[at])
    }

    /// A region that consists of it, on the volume where it lies.
    pub fn region_state(&self, region: RegionId) -> RegionState {
        RegionState {
            term: self.term,
            terms: self.terms.clone(),
            replay_from: self.replay_from,
            commit: self.last_lsn,
            levels: self.levels.clone(),
            segments: self.segments.iter().map(|segment| (segment.id, segment.state())).collect(),
            ..RegionState::new(region, self.options.clone())
        }
    }
}

impl BaseSegment {
    /// What the volume that it lies on knows of it.
    pub fn state(&self) -> SegmentState {
        let &BaseSegment { id, origin, kind, primary, bytes, last_lsn, dead_bytes } = self;
        let durable_bytes = if kind.is_index() { 0 } else { bytes };
        SegmentState { id, origin, no: primary, kind, bytes: Some(bytes), durable_bytes, last_lsn, dead_bytes }
    }
}

/// A segment that a replica has, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    /// The segment.
    pub id: SegmentId,
    /// Valid bytes.
    pub bytes: u32,
}

/// A segment that a primary ships, made by [`crate::wire::pack`]; the bytes travel apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shipped {
    /// Its identity.
    pub id: SegmentId,
    /// What it holds.
    pub kind: SegmentKind,
    /// Its number on the primary's volume: what pointers into it say, if addressing is physical.
    pub primary: SegmentNo,
    /// CRC-32C of its bytes at the primary.
    pub crc: u32,
    /// How many they are.
    pub bytes: u32,
    /// How they are compressed on their way: see [`crate::wire`].
    pub codec: Codec,
}
