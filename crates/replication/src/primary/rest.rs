//! A primary at rest: nothing is under way, nothing is wished for, and every peer has all there is. Until something comes from outside,
//! time alone can change only two things: a peer may stop to renew its promise, which its node sees for all of its regions together; and
//! the floor is raised, which may be late.

use super::Primary;
use crate::lease::Attention;
use crate::peer::Peer;
use leeward_format::Lsn;
use leeward_format::cluster::Wishes;
use leeward_platform::Nanos;

impl Primary {
    /// Whether it is at rest, if `last` is the region's last LSN: then [`Primary::tick`] would do nothing but
    /// raise the floor.
    pub fn is_at_rest(&self, now: Nanos, last: Lsn) -> bool {
        let renews =
            |peer: &Peer| self.last_sign(peer).is_some_and(|sign| now - sign <= self.timing.renewal_patience());
        let is_quiet = |peer: &Peer| renews(peer) && peer.is_at_rest(last) && peer.keeps_copy_as(self.options.backups);
        let is_wished_for = self.config.wishes != Wishes::default() || !self.departing.is_empty();
        self.is_settled()
            && !is_wished_for
            && self.config.learners.is_empty()
            && self.actions.is_empty()
            && self.is_with_all(last)
            && self.peers.values().all(is_quiet)
    }

    /// It has been at rest until now, while its node paid attention so. To be called before anything is done with it.
    pub fn rested(&mut self, now: Nanos, attention: Attention) {
        self.attention.follow(attention);
        for peer in self.peers.values_mut() {
            // It owed nothing.
            peer.silence(now);
        }
    }
}

#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;
