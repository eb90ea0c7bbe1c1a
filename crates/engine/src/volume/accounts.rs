//! How much of the log of large values is garbage: sums over the complete segments of a region. Pure.

use super::registry::Sharing;
use leeward_format::SegmentId;
use leeward_format::manifest::{RegionState, SegmentState};

/// Space and live bytes of the log of large values. Its newest segments count once they are complete.
///
/// Where regions of a server share a segment, each counts an equal part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Bytes of segments. One that was written at once counts as the part that it takes.
    pub space_bytes: u64,
    /// Bytes of records whose values can still be read.
    pub live_bytes: u64,
    /// Garbage in segments that existed when the server's region was last split, in bytes. 0 in an embedded store.
    pub inherited_garbage_bytes: u64,
}

/// A complete segment of the large log.
pub(crate) struct Complete<'a> {
    pub(crate) segment: &'a SegmentState,
    /// Bytes that it takes of the volume.
    pub(crate) bytes: u64,
    /// Bytes in it that are live for this region.
    pub(crate) live: u32,
    /// Bytes in it that are live for any region.
    pub(crate) live_in_all: u64,
    /// Number of regions that have it.
    pub(crate) holders: u64,
}

impl<'a> Complete<'a> {
    /// A segment of the large log of `state`, shared as `sharing` says; `None` while it is open, or an L0 may point to it.
    pub(crate) fn of(
        state: &RegionState,
        segment: &'a SegmentState,
        segment_bytes: usize,
        sharing: Sharing,
    ) -> Option<Self> {
        let live = segment.live_bytes().filter(|_| segment.last_lsn < state.replay_from)?;
        let bytes = segment.place(segment_bytes).bytes(segment_bytes) as u64;
        let live_in_all = (u64::from(live) + sharing.live_bytes).min(bytes);
        Some(Complete { segment, bytes, live, live_in_all, holders: 1 + sharing.others })
    }

    /// What it adds to the accounts of its region.
    pub(crate) fn accounts(&self, inherited_below: SegmentId) -> Accounts {
        let garbage_bytes = if self.segment.id < inherited_below { self.dead() / self.holders } else { 0 };
        Accounts {
            space_bytes: self.bytes / self.holders,
            live_bytes: self.live_in_all / self.holders,
            inherited_garbage_bytes: garbage_bytes,
        }
    }

    pub(crate) fn dead(&self) -> u64 {
        self.bytes - self.live_in_all
    }
}

impl Accounts {
    /// Garbage, in segments, that is worth a sweep; after a sweep that gained nothing, new garbage.
    pub(crate) const LEAST_SEGMENTS: u64 = 4;

    /// What one segment of the large log of `state` adds to the accounts; `None` if it does not count yet.
    pub(crate) fn of_segment(
        (state, segment): (&RegionState, &SegmentState),
        segment_bytes: usize,
        inherited_below: SegmentId,
        sharing: Sharing,
    ) -> Option<Accounts> {
        Some(Complete::of(state, segment, segment_bytes, sharing)?.accounts(inherited_below))
    }

    #[must_use]
    pub(crate) fn and(self, more: Accounts) -> Accounts {
        Accounts {
            space_bytes: self.space_bytes + more.space_bytes,
            live_bytes: self.live_bytes + more.live_bytes,
            inherited_garbage_bytes: self.inherited_garbage_bytes + more.inherited_garbage_bytes,
        }
    }

    #[must_use]
    pub(crate) fn without(self, less: Accounts) -> Accounts {
        Accounts {
            space_bytes: self.space_bytes - less.space_bytes,
            live_bytes: self.live_bytes - less.live_bytes,
            inherited_garbage_bytes: self.inherited_garbage_bytes - less.inherited_garbage_bytes,
        }
    }

    /// The accounts without the garbage in segments that existed when the region was split.
    pub(crate) fn own(&self) -> Accounts {
        let space_bytes = self.space_bytes.saturating_sub(self.inherited_garbage_bytes);
        Accounts { space_bytes, inherited_garbage_bytes: 0, ..*self }
    }

    /// Bytes that are not live.
    pub fn garbage_bytes(&self) -> u64 {
        self.space_bytes.saturating_sub(self.live_bytes)
    }

    /// Whether more than `percent` of the space is garbage.
    pub(crate) fn is_over(&self, percent: u32) -> bool {
        self.garbage_bytes() * 100 > self.space_bytes * u64::from(percent)
    }

    /// Whether the space, without the garbage of a split, is more than `percent` of the live bytes.
    pub(crate) fn is_beyond(&self, percent: u32) -> bool {
        self.own().space_bytes * 100 > self.live_bytes * u64::from(percent)
    }
}
