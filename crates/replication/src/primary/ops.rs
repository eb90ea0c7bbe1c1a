//! Names of one-sided writes, by which their completions find the peer that waits for them.
//!
//! Invariant: no two writes under way on a node have one name. Any thread.

use leeward_format::RegionId;
use leeward_format::cluster::TableOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names one-sided writes: the region in the high 32 bits, so that completions find their way, then a counter that all
/// primaries of a node share. The counter wraps after 2^32 writes. By then the write that had a name has long ended: a
/// peer that owes an answer for [`Timing::answer_timeout`](crate::Timing::answer_timeout) loses its session, and with it all of its writes.
#[derive(Clone, Debug, Default)]
pub struct Ops {
    last: Arc<AtomicU32>,
}

impl Ops {
    /// Names that follow `last`.
    pub fn after(last: u32) -> Ops {
        Ops { last: Arc::new(last.into()) }
    }
    /// The next name, for a write of `region`.
    pub fn next(&self, region: RegionId) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        u64::from(region.0) << u32::BITS | u64::from(number)
    }
    /// The region that a completion belongs to.
    pub fn region_of(op: u64) -> RegionId {
        RegionId((op >> u32::BITS) as u32)
    }
}

/// What a peer needs of its group to act.
pub(super) struct OfGroup<'a> {
    pub(super) region: RegionId,
    pub(super) options: &'a TableOptions,
    pub(super) ops: &'a Ops,
}

impl OfGroup<'_> {
    /// A name for the next one-sided write.
    pub(super) fn op(&self) -> u64 {
        self.ops.next(self.region)
    }
}
