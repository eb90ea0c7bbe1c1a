//! The proposals of primaries for their groups, from the proposal to its outcome. A proposal changes a configuration. Together
//! with that, it may create a region (a split) or end one (a merge): the coordinator does both or neither.

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

/// What else a proposal does.
#[derive(Clone, Debug)]
pub(super) enum Other {
    Nothing,
    /// It creates a region.
    Made(GroupConfig),
    /// It ends the region that has this configuration.
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
        let gives_up = new.released_term() == Some(old.term);
        let hands_over = (old.recovery_quorum > 0 || gives_up) && new.term == new.epoch;
        let keeps_primary = new.primary == old.primary && new.term == old.term;
        assert!(keeps_primary || hands_over, "a primary does not propose another");
        self.carry(now, old, new, Other::Nothing)
    }

    /// Proposes, as the primary of `old`, to replace it by `left`, and to create the region of `right` in the same step: see
    /// [`GroupConfig::split`]. The proposal is accepted if the region was created, whatever happened to both regions since.
    ///
    /// # Panics
    /// The configurations do not follow from `old`, or its plan names another region.
    pub fn split(&mut self, now: Nanos, old: GroupConfig, left: GroupConfig, right: GroupConfig) -> ProposalId {
        let is_planned = old.desired.plan.as_ref().and_then(Plan::child) == Some(right.region);
        assert!(is_planned && left.region == old.region, "a region is split as it is planned");
        assert!(left.epoch == old.epoch.next() && right.epoch == left.epoch, "both begin with the next epoch");
        self.carry(now, old, left, Other::Made(right))
    }

    /// Proposes, as the primary of `old` and of the merge source `source`, to replace `old` by `new`, which has the keys of both,
    /// and to end `source`: see [`GroupConfig::merged_with`]. The proposal is accepted if `source` ended, whatever happened to
    /// the merge target since.
    ///
    /// # Panics
    /// The configurations do not follow from `old`, or the plan of `source` names another region.
    pub fn merge(&mut self, now: Nanos, old: GroupConfig, new: GroupConfig, source: GroupConfig) -> ProposalId {
        let is_planned = source.desired.plan.as_ref().and_then(Plan::neighbour) == Some(old.region);
        assert!(is_planned && old.is_next_to(&source), "a merge follows the plan of its source");
        assert!(new == old.merged_with(&source) && old.primary == source.primary, "both regions have the same primary");
        self.carry(now, old, new, Other::Ended(source))
    }

    pub(super) fn carry(&mut self, now: Nanos, old: GroupConfig, new: GroupConfig, other: Other) -> ProposalId {
        let id = self.new_proposal();
        let made = if let Other::Made(child) = &other { child.term } else { new.term };
        if !(new.term.can_be_term() && made.can_be_term()) {
            // The present primary continues.
            tracing::error!(region = %new.region, epoch = %new.epoch, "no primary can begin in so high a term");
            self.outcomes.push((id, Outcome::Rejected));
            return id;
        }
        self.proposals.push_back(Proposal { id, old, new, other });
        self.advance(now);
        id
    }

    /// Sends the proposals that still fit the view, and decides the outcome of the others.
    pub(super) fn carry_proposals(&mut self) {
        for proposal in std::mem::take(&mut self.proposals) {
            let region = proposal.old.region;
            let path = ClusterPath::Region(region);
            let current = self.view.region(region);
            if !self.is_free(&path) {
                self.proposals.push_back(proposal);
            } else if current == Some(&proposal.old) && self.may_end(&proposal.other) {
                let replace = self.replace(&proposal.new);
                // In this order: a process that is shown the changes one by one sees each key in some region.
                let op = match &proposal.other {
                    Other::Made(child) => {
                        let make = create(ClusterPath::Region(child.region), encode_value(child), false);
                        CoordinatorOp::All(vec![make, replace])
                    }
                    Other::Ended(source) => CoordinatorOp::All(vec![replace, self.remove(source.region)]),
                    Other::Nothing => replace,
                };
                self.submit(path, op, Purpose::Proposal(Box::new(proposal)));
            } else {
                self.judge(&proposal);
            }
        }
    }

    /// Decides the outcome of a proposal by the view. Its answer was lost, or another process was faster, perhaps with the same
    /// change.
    pub(super) fn judge(&mut self, proposal: &Proposal) {
        let made = match &proposal.other {
            // The number of the child was taken for this split alone.
            Other::Made(child) => self.view.region(child.region).is_some(),
            // Only a merge ends a region of an existing table.
            Other::Ended(source) => self.view.region(source.region).is_none(),
            Other::Nothing => self.view.region(proposal.new.region) == Some(&proposal.new),
        };
        self.outcomes.push((proposal.id, if made { Outcome::Accepted } else { Outcome::Rejected }));
    }

    /// Whether the region that a proposal is to end, if any, is unchanged.
    fn may_end(&self, other: &Other) -> bool {
        match other {
            Other::Ended(source) => self.view.region(source.region) == Some(source),
            Other::Nothing | Other::Made(_) => true,
        }
    }

    /// The compare-and-set that replaces the configuration in the view by `config`.
    pub(super) fn replace(&self, config: &GroupConfig) -> CoordinatorOp {
        let path = ClusterPath::Region(config.region);
        let version = self.view.version_of(&path).expect("a configuration replaces one that the view holds");
        CoordinatorOp::Set { path: path.to_string(), value: encode_value(config), version }
    }
}
