//! The clocks of a node: what time it is, the wall time by which pairs expire, and whether to trust the boot clock.
//!
//! When the boot clock may have stopped for a while ([`leeward_replication::clock`]), all leases and ages that the node counted
//! by that clock become invalid, and the node requests them anew. The lease grants that it gave to others stay valid: a
//! stopped clock makes them last longer, never shorter.
//!
//! Belongs to the node's thread. A node that is stopped in the middle of a turn learns of it in the next turn at the earliest.
//! So does one whose answer is already on its way.

use super::NodeControl;
use leeward_format::UnixMs;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_replication::Timing;
use leeward_replication::clock::{ClockReading, ClockWatch};

/// The time of the input that is handled, and what is known of the clocks.
pub(super) struct NodeClock {
    pub(super) now: Nanos,
    /// Times from before this are invalid: the process started then, or the clock may have stopped until then.
    pub(super) since: Nanos,
    pub(super) watch: ClockWatch,
}

impl NodeClock {
    pub(super) fn new(now: Nanos) -> NodeClock {
        NodeClock { now, since: now, watch: ClockWatch::default() }
    }
}

impl NodeControl {
    /// Sets the wall time, which decides which pairs have expired. Both clocks were read at once. Answers whether leases that
    /// were requested until now, and ages that count from before, are invalid from here on.
    pub(in crate::node) fn set_wall(&mut self, now: Nanos, wall: UnixMs) -> bool {
        self.resources.wall.set(wall);
        // The shortest lease that is counted by this clock is that of those who read this node's memory.
        let shortest = self.resources.timing.lease.min(Timing::READABLE);
        let jump = self.clock.watch.look(now, wall.0, shortest);
        let Some(separated_ms) = jump.filter(|_| !planted(Bug::TrustStoppedClock)) else { return false };
        tracing::warn!(
            separated_ms,
            "the wall clock has moved against the boot clock: if this machine was stopped, its leases may have ended; they are \
             asked for again"
        );
        self.clock.since = now;
        self.lease_grants.doubt_clock(now);
        true
    }

    /// Times from before this are invalid.
    pub(in crate::node) fn valid_since(&self) -> Nanos {
        self.clock.since
    }

    /// A reading of this node's clock, which another node has sent back, if it says how old something is.
    pub(in crate::node) fn reading(&self, heard: Nanos) -> Option<ClockReading> {
        self.clock.watch.reading(heard)
    }

    /// How old something is that was so when the clock showed `heard`.
    pub(in crate::node) fn age_ms(&self, heard: ClockReading) -> u64 {
        self.clock.watch.age_ms(heard, self.now())
    }
}
