//! What primaries propose of their groups, from the proposal to its outcome: another configuration, and with it perhaps that a region is
//! made, or is no more, both or neither.

use super::{Agent, Outcome, ProposalId, Purpose};
use crate::CoordinatorOp;
use crate::bootstrap::create;
use leeward_format::cluster::{ClusterPath, GroupConfig, Plan, encode_value};
use leeward_platform::Nanos;

/// A proposal that has no outcome yet.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) id: ProposalId,
    pub(super) old: GroupConfig,
    new: GroupConfig,
    other: Other,
}

/// What else a proposal does, if it does that.
#[derive(Clone, Debug)]
pub(super) enum Other {
    Nothing,
    /// A region is made.
    Made(GroupConfig),
    /// One that has this configuration is no more.
    Ended(GroupConfig),
}

impl Agent {
    /// Proposes, as the primary of `old`, to replace it by `new`: see [`GroupConfig::without`], [`GroupConfig::with_backup`] and
    /// [`GroupConfig::handed_over`].
    ///
    /// # Panics
    /// `new` is not the next epoch of the same region, or has another primary: only a master may do that.
    pub fn propose(&mut self, now: Nanos, old: GroupConfig, new: GroupConfig) -> ProposalId {
        assert!(
            new.region == old.region && new.epoch == old.epoch.next(),
            "a proposal is the next epoch of its region"
        );
        let gives_up = new.voided() == Some(old.term);
        let hands_over = (old.must_hear > 0 || gives_up) && new.term == new.epoch;
        let keeps_office = new.primary == old.primary && new.term == old.term;
        assert!(keeps_office || hands_over, "a primary does not propose another");
        self.carry(now, old, new, Other::Nothing)
    }

    /// Proposes, as the primary of `old`, to replace it by `left`, and to make the region of `right` at once: see
    /// [`GroupConfig::divided`]. The proposal is accepted if the region was made, whatever has become of both since.
    ///
    /// # Panics
    /// These are not what follows from `old`, or its plan names another region.
    pub fn divide(&mut self, now: Nanos, old: GroupConfig, left: GroupConfig, right: GroupConfig) -> ProposalId {
        let is_planned = old.wishes.plan.as_ref().and_then(Plan::child) == Some(right.region);
        assert!(is_planned && left.region == old.region, "a region is divided as it is planned");
        assert!(left.epoch == old.epoch.next() && right.epoch == left.epoch, "both begin with the next epoch");
        self.carry(now, old, left, Other::Made(right))
    }

    /// Proposes, as the primary of `old` and of `taken`, to replace `old` by `new`, which has the keys of both, and that `taken` is no
    /// more: see [`GroupConfig::merged_with`]. The proposal is accepted if that is no more, whatever has become of the other since.
    ///
    /// # Panics
    /// These are not what follows from `old`, or the plan of `taken` names another region.
    pub fn merge(&mut self, now: Nanos, old: GroupConfig, new: GroupConfig, taken: GroupConfig) -> ProposalId {
        let is_planned = taken.wishes.plan.as_ref().and_then(Plan::neighbour) == Some(old.region);
        assert!(is_planned && old.is_next_to(&taken), "a region is taken in as it is planned");
        assert!(new == old.merged_with(&taken) && old.primary == taken.primary, "by a primary that both have");
        self.carry(now, old, new, Other::Ended(taken))
    }

    pub(super) fn carry(&mut self, now: Nanos, old: GroupConfig, new: GroupConfig, other: Other) -> ProposalId {
        let id = self.new_proposal();
        let made = if let Other::Made(child) = &other { child.term } else { new.term };
        if !(new.term.can_be_term() && made.can_be_term()) {
            // The primary that there is goes on.
            tracing::error!(region = %new.region, epoch = %new.epoch, "no primary can begin in so high a term");
            self.outcomes.push((id, Outcome::Rejected));
            return id;
        }
        self.proposals.push_back(Proposal { id, old, new, other });
        self.advance(now);
        id
    }

    /// Sends proposals that still fit the view, judges the others.
    pub(super) fn carry_proposals(&mut self) {
        for proposal in std::mem::take(&mut self.proposals) {
            let region = proposal.old.region;
            let path = ClusterPath::Region(region);
            let current = self.view.region(region);
            if !self.is_free(&path) {
                self.proposals.push_back(proposal);
            } else if current == Some(&proposal.old) && self.may_end(&proposal.other) {
                let replace = self.replace(&proposal.new);
                // In this order: who is shown the changes one by one sees each key in some region.
                let op = match &proposal.other {
                    Other::Made(child) => {
                        let make = create(ClusterPath::Region(child.region), encode_value(child), false);
                        CoordinatorOp::All(vec![make, replace])
                    }
                    Other::Ended(taken) => CoordinatorOp::All(vec![replace, self.remove(taken.region)]),
                    Other::Nothing => replace,
                };
                self.submit(path, op, Purpose::Proposal(Box::new(proposal)));
            } else {
                self.judge(&proposal);
            }
        }
    }

    /// Ends a proposal by what the view holds: its answer was lost, or someone else was faster, perhaps with the same.
    pub(super) fn judge(&mut self, proposal: &Proposal) {
        let made = match &proposal.other {
            // Its number was given for this alone.
            Other::Made(child) => self.view.region(child.region).is_some(),
            // Nothing else ends a region of a table that is there.
            Other::Ended(taken) => self.view.region(taken.region).is_none(),
            Other::Nothing => self.view.region(proposal.new.region) == Some(&proposal.new),
        };
        self.outcomes.push((proposal.id, if made { Outcome::Accepted } else { Outcome::Rejected }));
    }

    /// The region that is to end with a proposal, if one is, is as it was.
    fn may_end(&self, other: &Other) -> bool {
        match other {
            Other::Ended(taken) => self.view.region(taken.region) == Some(taken),
            Other::Nothing | Other::Made(_) => true,
        }
    }

    /// The compare-and-set that makes `config` from what the view holds.
    pub(super) fn replace(&self, config: &GroupConfig) -> CoordinatorOp {
        let path = ClusterPath::Region(config.region);
        let version = self.view.version_of(&path).expect("a configuration replaces one that the view holds");
        CoordinatorOp::Set { path: path.to_string(), value: encode_value(config), version }
    }
}
