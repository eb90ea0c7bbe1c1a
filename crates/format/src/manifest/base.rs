//! Messages about a region's segments between replicas: which ones a replica has, which ones it must get, and one that
//! is shipped.
//!
//! Every [`SegmentNo`] and [`Pointer`](crate::Pointer) is one of the sender's volume. The manifest also keeps a
//! [`Base`] for each checkpoint, with those of its own volume.

use super::{LevelState, RegionState, SegmentKind, SegmentState, Terms};
use crate::cluster::TableOptions;
use crate::packed::Codec;
use crate::{Epoch, Lsn, RegionId, SegmentId, SegmentNo};
use serde::{Deserialize, Serialize};

/// A region at one instant, with its tails sealed. A backup is brought to this state, and mirroring continues from
/// there.
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
    /// Levels by [position](super::L1_RUNS), with pointers of the primary's volume.
    #[serde(with = "super::positions::list")]
    pub levels: Vec<LevelState>,
    /// Every segment, by id.
    pub segments: Vec<BaseSegment>,
    /// The region that it was split from, if its primary knows.
    pub parent: Option<Parent>,
}

/// One segment of a [`Base`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseSegment {
    /// Its identity among those of its origin.
    pub id: SegmentId,
    /// See [`SegmentState::origin`].
    pub origin: RegionId,
    /// Log, leaves, or the nodes above leaf segments.
    pub kind: SegmentKind,
    /// Its number on the primary's volume.
    pub primary: SegmentNo,
    /// Bytes in use.
    pub bytes: u32,
    /// Last LSN of a log segment that was appended to, otherwise 0.
    pub last_lsn: Lsn,
    /// See [`SegmentState::dead_bytes`].
    pub dead_bytes: u32,
}

/// The region that another was split from, at the split. Everything up to `last_lsn` was committed, and is part of the
/// other region as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// It kept the keys below the split.
    pub region: RegionId,
    /// Term of its primary.
    pub term: Epoch,
    /// Its last LSN.
    pub last_lsn: Lsn,
}

impl Base {
    /// Its segment with this id.
    pub fn segment(&self, id: SegmentId) -> Option<&BaseSegment> {
        let found = self.segments.binary_search_by_key(&id, |segment| segment.id);
        found.ok().map(|at| &self.segments[at])
    }

    /// The state of a region that consists of it, on the volume that its numbers refer to.
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
    /// Its state on the volume that its number refers to.
    pub fn state(&self) -> SegmentState {
        let &BaseSegment { id, origin, kind, primary, bytes, last_lsn, dead_bytes } = self;
        let durable_bytes = if kind.is_index() { 0 } else { bytes };
        SegmentState { id, origin, no: primary, kind, bytes: Some(bytes), durable_bytes, last_lsn, dead_bytes }
    }
}

/// A segment that a replica has, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    /// As in [`BaseSegment::id`].
    pub id: SegmentId,
    /// Valid bytes.
    pub bytes: u32,
}

/// The description of a segment that a primary ships, made by [`crate::wire::pack`]. The bytes are written one-sided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shipped {
    /// The backup stores the segment under the same id.
    pub id: SegmentId,
    /// [`SegmentKind::is_index`] says whether the backup may have to rewrite pointers in it.
    pub kind: SegmentKind,
    /// Its number on the primary's volume, by which pointers refer to it with physical addressing.
    pub primary: SegmentNo,
    /// CRC-32C of its bytes at the primary.
    pub crc: u32,
    /// Length of those bytes, before compression.
    pub bytes: u32,
    /// How they are compressed for shipping: see [`crate::wire`].
    pub codec: Codec,
}
