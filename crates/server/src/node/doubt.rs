//! What this node does when its boot clock may have stopped for a while ([`leeward_replication::clock`]). All leases and ages
//! that it counted by that clock become invalid, and it requests them anew. The lease grants that it gave to others stay valid: a
//! stopped clock makes them last longer, never shorter.
//!
//! Belongs to the node's thread. A node that is stopped in the middle of a turn learns of it in the next turn at the earliest. So
//! does one whose answer is already on its way.

use super::Node;
use super::stale::SafeLsns;
use leeward_format::UnixMs;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};

impl Node {
    /// Sets the wall time, which decides which pairs have expired, to `wall`. Both clocks were read at once. The caller does this
    /// in each turn, before it handles anything.
    pub fn set_wall(&mut self, now: Nanos, wall: UnixMs) {
        self.context.wall.set(wall);
        let jump = self.clock_watch.look(now, wall.0, self.context.timing.lease);
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
        self.context.clock_since = now;
        self.lease_grants.doubt_clock(now);
        for slot in self.slots.values_mut() {
            slot.safe_lsns = SafeLsns::default();
            if let Some(serving) = slot.serving() {
                serving.primary.clock_doubted(now);
            }
        }
        self.wake_all(now);
    }
}
