//! An idle primary: nothing is under way, no change is desired, and every peer has everything. Until an event comes
//! from outside, time alone can change only two things. A peer may stop renewing its lease grant, which its node sees
//! for all of its regions together. And the floor may become due, whose raise may be late.

use super::Primary;
use crate::lease::SchedulingGap;
use crate::peer::Peer;
use leeward_format::Lsn;
use leeward_format::cluster::DesiredState;
use leeward_platform::Nanos;

impl Primary {
    /// Whether the primary is idle, if `last` is the region's last LSN. Then [`Primary::tick`] would do nothing but
    /// raise the floor.
    pub fn is_idle(&self, now: Nanos, last: Lsn) -> bool {
        let renews = |peer: &Peer| self.last_sign(peer).is_some_and(|sign| now - sign <= self.timing.renewal_timeout());
        let is_quiet = |peer: &Peer| renews(peer) && peer.is_idle(last) && peer.keeps_copy_as(self.options.backups);
        let is_change_desired = self.config.desired != DesiredState::default() || !self.departing.is_empty();
        self.is_settled()
            && !is_change_desired
            && self.config.learners.is_empty()
            && self.rebuilding.is_none()
            && self.actions.is_empty()
            && self.is_with_all(last)
            && self.peers.values().all(is_quiet)
    }

    /// The primary has been idle until `now`; `scheduling_gap` tells of pauses of its node meanwhile. The node calls
    /// this before anything else of this primary.
    pub fn note_idle(&mut self, now: Nanos, scheduling_gap: SchedulingGap) {
        self.scheduling_gap.follow(scheduling_gap);
        for peer in self.peers.values_mut() {
            // An idle peer owes no answer.
            peer.silence(now);
        }
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
