//! The clocks of a node: what time it is, the wall time by which pairs expire, and whether to trust the boot clock.
//!
//! When the boot clock may have stopped for a while ([`leeward_replication::clock`]), all leases and ages that the node counted
//! by that clock become invalid, and the node requests them anew. The lease grants that it gave to others stay valid: a
//! stopped clock makes them last longer, never shorter.
//!
//! Belongs to the node's thread. A node that is stopped in the middle of a turn learns of it in the next turn at the earliest.
//! So does one whose answer is already on its way.

use crate::node::Node;
use leeward_format::UnixMs;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_region::effects::Wall;
use leeward_region::input::Input as RegionInput;
use leeward_replication::Timing;
use leeward_replication::clock::ClockWatch;

/// The time of the input that is handled, and what is known of the clocks.
pub(super) struct NodeClock {
    pub(super) now: Nanos,
    /// Times from before this are invalid: the process started then, or the clock may have stopped until then.
    pub(super) since: Nanos,
    pub(super) wall: Wall,
    pub(super) watch: ClockWatch,
}

impl NodeClock {
    pub(super) fn new(now: Nanos) -> NodeClock {
        NodeClock { now, since: now, wall: Wall::default(), watch: ClockWatch::default() }
    }
}

impl Node {
    /// Sets the wall time, which decides which pairs have expired, to `wall`. Both clocks were read at once. The caller does
    /// this in each turn, before it handles anything.
    pub fn set_wall(&mut self, now: Nanos, wall: UnixMs) {
        self.context.clock.wall.set(wall);
        // The shortest lease that is counted by this clock is that of those who read this node's memory.
        let shortest = self.context.timing.lease.min(Timing::READABLE);
        let jump = self.context.clock.watch.look(now, wall.0, shortest);
        if let Some(separated_ms) = jump.filter(|_| !planted(Bug::TrustStoppedClock)) {
            tracing::warn!(
                separated_ms,
                "the wall clock has moved against the boot clock: if this machine was stopped, its leases may have ended; \
                 they are asked for again"
            );
            self.doubt_clock(now);
        }
    }

    /// Leases that were requested until now, and ages that count from before, become invalid.
    fn doubt_clock(&mut self, now: Nanos) {
        self.context.clock.since = now;
        self.lease_grants.doubt_clock(now);
        self.fresh.doubt_clock();
        self.give_each(|| RegionInput::ClockDoubted);
        self.wake_all(now);
    }
}
