//! The proposals of primaries for their groups, from the proposal to its outcome. A proposal changes a configuration. Together
//! with that, it may create a region (a split) or end one (a merge): the coordinator does both or neither.

use super::{Agent, Outcome, ProposalId, Purpose};
use crate::CoordinatorOp;
use crate::master::missing_in;
use crate::view::create;
use leeward_format::cluster::{ClusterPath, GroupConfig, Member, Plan, encode_value};
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;

/// A proposal that has no outcome yet.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) id: ProposalId,
    old: GroupConfig,
    new: GroupConfig,
    other: Other,
}

/// What else a proposal does.
#[derive(Clone, Debug)]
enum Other {
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

    /// Proposes, for the operator, that `region` waits no more for volumes of `server`. Data that only they hold is lost.
    ///
    /// # Errors
    /// The region does not wait for that server. The text says what it waits for.
    pub fn accept_loss(&mut self, now: Nanos, region: RegionId, server: ServerId) -> Result<ProposalId, String> {
        self.can_change()?;
        let Some(old) = self.view.region(region).cloned() else { return Err(format!("there is no region {region}")) };
        let missing_volumes = missing_in(&self.view, &old);
        let lost: Vec<Member> =
            missing_volumes.iter().map(|one| one.member).filter(|member| member.server == server).collect();
        if lost.is_empty() {
            let others: Vec<String> = missing_volumes.iter().map(|one| one.member.server.to_string()).collect();
            let waits = match others.is_empty() {
                true => "it waits for no server".to_owned(),
                false => format!("it waits for server {}", others.join(", ")),
            };
            return Err(format!("region {region} does not wait for server {server}: {waits}"));
        }
        let new = lost.iter().fold(old.clone(), |config, member| config.without_volume(member));
        let mut new = GroupConfig { epoch: old.epoch.next(), ..new };
        let is_last_resort = new.candidates().next().is_none();
        if is_last_resort {
            // Most of the region may be on learners that were in sync, and left the group because they did not answer. One whose
            // copy is damaged must be mended, or given up as well.
            new.backups = std::mem::take(&mut new.learners);
        }
        let has_quorum = self.view.table(&old.table).is_some_and(|table| table.quorum.is_some());
        if is_last_resort || has_quorum || old.recovery_quorum > 0 {
            // Any one of those that are left may be the only one that has a write.
            new.recovery_quorum = new.candidate_servers();
        }
        tracing::warn!(%region, %server, ?lost, "an operator gives up the data that only these volumes hold");
        Ok(self.carry(now, old, new, Other::Nothing))
    }

    fn carry(&mut self, now: Nanos, old: GroupConfig, new: GroupConfig, other: Other) -> ProposalId {
        let id = self.requests.new_id();
        let made = if let Other::Made(child) = &other { child.term } else { new.term };
        if !(new.term.can_be_term() && made.can_be_term()) {
            // The present primary continues.
            tracing::error!(region = %new.region, epoch = %new.epoch, "no primary can begin in so high a term");
            self.requests.end(id, Outcome::Rejected);
            return id;
        }
        self.requests.proposals.push_back(Proposal { id, old, new, other });
        self.advance(now);
        id
    }

    /// Sends the proposals that still fit the view, and decides the outcome of the others.
    pub(super) fn carry_proposals(&mut self) {
        for proposal in std::mem::take(&mut self.requests.proposals) {
            let region = proposal.old.region;
            let path = ClusterPath::Region(region);
            let current = self.view.region(region);
            if !self.is_free(&path) {
                self.requests.proposals.push_back(proposal);
            } else if current == Some(&proposal.old) && self.may_end(&proposal.other) {
                let replace = self.view.replace_op(&proposal.new);
                // In this order: a process that is shown the changes one by one sees each key in some region.
                let op = match &proposal.other {
                    Other::Made(child) => {
                        let make = create(ClusterPath::Region(child.region), encode_value(child), false);
                        CoordinatorOp::All(vec![make, replace])
                    }
                    Other::Ended(source) => {
                        CoordinatorOp::All(vec![replace, self.view.remove_op(&ClusterPath::Region(source.region))])
                    }
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
        self.requests.end(proposal.id, if made { Outcome::Accepted } else { Outcome::Rejected });
    }

    /// Whether the region that a proposal is to end, if any, is unchanged.
    fn may_end(&self, other: &Other) -> bool {
        match other {
            Other::Ended(source) => self.view.region(source.region) == Some(source),
            Other::Nothing | Other::Made(_) => true,
        }
    }
}
