//! Members that should leave a group, and the planned transfer of the primary role. The primary proposes both as soon
//! as they are safe.
//!
//! Invariants:
//! - A member is released only while enough members stay in sync: writes can still be acknowledged, and a member that
//!   leaves for good has been replaced first.
//! - The primary role is offered only once every counted member has all that was appended, and after the caller has
//!   quiesced the region, so that nothing is answered. So nothing relies on the leases granted to this primary any
//!   more.

use super::{Primary, PrimaryAction};
use crate::peer::PeerState;
use leeward_format::cluster::{GroupConfig, Intent, Member};
use leeward_format::{Lsn, ServerId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl Primary {
    /// Sets which members should leave, this one possibly included. The intent says whether others must replace them
    /// first.
    pub fn set_departing(&mut self, departing: BTreeMap<ServerId, Intent>) {
        self.departing = departing;
    }

    fn stays(&self, member: &Member) -> bool {
        !self.departing.contains_key(&member.server)
    }

    /// The next configuration without a backup that should leave and can be spared; `None` if there is none.
    pub(super) fn without_departing_backup(&self) -> Option<GroupConfig> {
        let staying = self.config.in_sync().filter(|member| self.stays(member)).count() as u32;
        let can_spare = |member: &&Member| match self.departing.get(&member.server) {
            None => false,
            Some(Intent::Leave) => staying >= self.options.replicas,
            Some(Intent::Restart) => staying >= self.options.min_in_sync.max(1),
        };
        let is_settled = self.config.recovery_quorum == 0 && self.is_complete();
        let member = self.config.backups.iter().find(can_spare).filter(|_| is_settled)?;
        Some(self.config.without(*member))
    }

    /// The transfer target: a backup in sync that should become primary in place of this member. It is the one that the
    /// desired state names. If this member itself should leave, it may be the backup with the longest copy.
    pub fn transfer_target(&self) -> Option<Member> {
        let me = self.config.primary?;
        let requested = self.config.desired.primary.filter(|requested| *requested != me.server);
        if requested.is_none() && self.stays(&me) {
            return None;
        }
        let is_in_no_hurry = self.departing.get(&me.server) != Some(&Intent::Restart);
        let is_built = |requested| self.config.learners.iter().any(|learner| learner.server == requested);
        if is_in_no_hurry && requested.is_some_and(is_built) {
            // The requested member is still a learner. Wait for it, so that the primary role moves only once.
            return None;
        }
        let candidates = self.config.backups.iter().filter(|backup| self.stays(backup));
        let can =
            |backup: &&Member| self.peers.get(&backup.server).is_some_and(|peer| peer.state() == PeerState::InSync);
        match requested.and_then(|requested| candidates.clone().find(|backup| backup.server == requested)) {
            Some(target) => Some(target).filter(can).copied(),
            None if self.stays(&me) => None,
            None => candidates
                .filter(can)
                .max_by_key(|backup| (self.peers[&backup.server].confirmed(), Reverse(backup.server)))
                .copied(),
        }
    }

    /// Whether `target` has little to replay if it becomes the primary now. Asks it to see to that; `anew` if an earlier
    /// answer is too old to count.
    pub fn prime(&mut self, target: Member, anew: bool) -> bool {
        let is_primed = self.with_peer(target.server, |peer, _, out| {
            if anew {
                peer.forget_priming();
            }
            peer.prime(out)
        });
        is_primed.unwrap_or(true)
    }

    /// Whether the group is in sync and settled, and no change is proposed or intended: so the primary role may be
    /// handed over.
    pub fn is_settled(&self) -> bool {
        let is_changing = self.proposing || self.intent.is_some() || !self.proposed.is_empty();
        !is_changing && self.may_open() && self.config.prior_members.is_empty()
    }

    /// Whether every backup has everything up to `last`, and it is committed.
    pub fn is_with_all(&self, last: Lsn) -> bool {
        let has_it = |backup: &Member| self.peers.get(&backup.server).is_some_and(|peer| peer.confirmed() >= last);
        self.committed >= last && self.config.backups.iter().all(has_it)
    }

    /// Proposes that `target` becomes primary. Until the outcome is known, nothing may be written, and nothing may be
    /// read without a lease grant of the target.
    pub fn hand_over(&mut self, target: Member) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(self.config.handed_over(target)));
    }
}

#[cfg(test)]
#[path = "departure_tests.rs"]
mod tests;
