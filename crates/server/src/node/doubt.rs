//! What this node does when its boot clock may have stood still ([`leeward_replication::clock`]): whatever it counted by that clock is
//! void, and asked for anew. What it promised to others is not: that lasts longer then, never shorter.
//!
//! Belongs to the node's thread. A node that is stopped anywhere in a turn is told of it in the next one at the earliest, as one is whose
//! answer is on its way.

use super::Node;
use super::stale::Attestations;
use leeward_format::UnixMs;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};

impl Node {
    /// From now on it is `wall` by the wall clock, which decides what has expired; both clocks were read at once. To be called at each
    /// turn, before anything is handled in it.
    pub fn set_wall(&mut self, now: Nanos, wall: UnixMs) {
        self.context.wall.set(wall);
        let apart = self.clock_watch.look(now, wall.0, self.context.timing.lease);
        if let Some(apart_ms) = apart.filter(|_| !planted(Bug::TrustStoppedClock)) {
            tracing::warn!(
                apart_ms,
                "the wall clock has moved against the boot clock: if this machine was stopped, its leases may have ended; \
                 they are asked for again"
            );
            self.doubt_clock(now);
        }
    }

    /// Leases that were asked for until now, and ages that count from before, are void.
    fn doubt_clock(&mut self, now: Nanos) {
        self.context.clock_since = now;
        self.promises.doubt_clock(now);
        for slot in self.slots.values_mut() {
            slot.attested = Attestations::default();
            if let Some(serving) = slot.serving() {
                serving.primary.clock_doubted(now);
            }
        }
        self.wake_all(now);
    }
}
