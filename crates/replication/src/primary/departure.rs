//! Who should leave a group, and who should have its office: wishes that the primary brings about when nothing speaks against it.
//!
//! Invariants:
//! - A member is let go only while so many stay in sync that every write can still be acknowledged, and that none is missing which
//!   should be replaced first.
//! - The office is offered only once every member that counts has all that was appended, and while nothing is answered any more
//!   (its caller stands still): so the promises that this primary was given are of no use to anybody.

use super::{Primary, PrimaryAction};
use crate::peer::PeerState;
use leeward_format::cluster::{GroupConfig, Intent, Member};
use leeward_format::{Lsn, ServerId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl Primary {
    /// Members that should leave, itself included, and whether others are to take their places first.
    pub fn set_departing(&mut self, departing: BTreeMap<ServerId, Intent>) {
        self.departing = departing;
    }

    fn stays(&self, member: &Member) -> bool {
        !self.departing.contains_key(&member.server)
    }

    /// The configuration without a backup that should leave and can be spared.
    pub(super) fn let_go(&self) -> Option<GroupConfig> {
        let staying = self.config.in_sync().filter(|member| self.stays(member)).count() as u32;
        let can_spare = |member: &&Member| match self.departing.get(&member.server) {
            None => false,
            Some(Intent::Leave) => staying >= self.options.replicas,
            Some(Intent::Restart) => staying >= self.options.min_in_sync.max(1),
        };
        let is_settled = self.config.must_hear == 0 && self.is_complete();
        let member = self.config.backups.iter().find(can_spare).filter(|_| is_settled)?;
        Some(self.config.without(*member))
    }

    /// Who should have the office in its place, and can: the member that is wished for; or, if it should leave itself, the one that
    /// has the most.
    pub fn heir(&self) -> Option<Member> {
        let me = self.config.primary?;
        let wished = self.config.wishes.primary.filter(|wished| *wished != me.server);
        if wished.is_none() && self.stays(&me) {
            return None;
        }
        let is_in_no_hurry = self.departing.get(&me.server) != Some(&Intent::Restart);
        let is_built = |wished| self.config.learners.iter().any(|learner| learner.server == wished);
        if is_in_no_hurry && wished.is_some_and(is_built) {
            // Its copy moves, and the office with it: once, and not to somebody else first.
            return None;
        }
        let heirs = self.config.backups.iter().filter(|backup| self.stays(backup));
        let can =
            |backup: &&Member| self.peers.get(&backup.server).is_some_and(|peer| peer.state() == PeerState::InSync);
        match wished.and_then(|wished| heirs.clone().find(|heir| heir.server == wished)) {
            Some(heir) => Some(heir).filter(can).copied(),
            None if self.stays(&me) => None,
            None => heirs
                .filter(can)
                .max_by_key(|heir| (self.peers[&heir.server].confirmed(), Reverse(heir.server)))
                .copied(),
        }
    }

    /// Nothing of the group is unsettled or about to change, so that the office may be handed over.
    pub fn is_settled(&self) -> bool {
        let is_changing = self.proposing || self.intent.is_some() || !self.proposed.is_empty();
        !is_changing && self.may_open() && self.config.former.is_empty()
    }

    /// Everything up to `last` is with every member that counts, and committed.
    pub fn is_with_all(&self, last: Lsn) -> bool {
        let has_it = |backup: &Member| self.peers.get(&backup.server).is_some_and(|peer| peer.confirmed() >= last);
        self.committed >= last && self.config.backups.iter().all(has_it)
    }

    /// Proposes that `heir` takes the office. From here on nothing may be written until it is known what came of it, and nothing be read
    /// without a lease of the heir.
    pub fn hand_over(&mut self, heir: Member) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(self.config.handed_over(heir)));
    }
}

#[cfg(test)]
#[path = "departure_tests.rs"]
mod tests;
