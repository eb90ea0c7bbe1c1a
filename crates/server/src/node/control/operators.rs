//! What an operator asks of the cluster, and the errors for operations that this node cannot place.

use super::{NodeControl, Proposer};
use leeward_cluster::{Agent, Outcome, ProposalId};
use leeward_format::RegionId;
use leeward_format::cluster::Member;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::table::unknown_table;
use leeward_platform::Nanos;
use leeward_region::request::ReplyTo;

impl NodeControl {
    /// Asks the coordinator for what an operator wants. The answer follows with the outcome.
    ///
    /// # Errors
    /// It is not asked, for this reason.
    pub(in crate::node) fn ask(
        &mut self,
        to: ReplyTo,
        ask: impl FnOnce(&mut Agent, Nanos) -> Result<ProposalId, String>,
    ) -> Result<(), String> {
        let proposal = ask(&mut self.agent, self.clock.now)?;
        self.proposals.insert(proposal, Proposer::Operator(to));
        Ok(())
    }

    /// The error for an operation of `region` that this node cannot execute.
    pub(in crate::node) fn not_serving(&self, region: RegionId) -> OpError {
        match self.duplicate_id() {
            Some(why) => OpError::Unavailable(why.clone()),
            None => OpError::Recovering(region),
        }
    }

    /// The error for an operation on `table` that finds no region. A node that does not hear the coordinator cannot know that
    /// the table or region does not exist.
    pub(in crate::node) fn no_region(&self, table: &str, op: &Op) -> OpError {
        let (view, routes) = (self.view(), self.routes());
        let knows_all = view.is_synced() && routes.tables().next().is_some();
        match op {
            Op::Count { region } | Op::Checkpoint { region, .. } if view.is_gone(*region) => OpError::Invalid(format!(
                "region {region} no longer exists: it was merged into a neighbour, or its table was dropped; list the \
                 regions again"
            )),
            _ if knows_all && routes.table(table).is_none() => OpError::Invalid(unknown_table(table)),
            _ => self.not_serving(RegionId(0)),
        }
    }

    /// Whether the nodes that stay can take over no more of what this node has.
    pub(in crate::node) fn has_departed(&self) -> bool {
        let (view, me) = (self.view(), self.me());
        view.is_synced()
            && view.intent(me.server).is_some()
            && view.regions().all(|config| {
                let stays =
                    |member: &Member| *member != me && view.is_live(*member) && view.departs(config, *member).is_none();
                let staying = config.in_sync().filter(stays).count() as u32;
                let needed = view.table(&config.table).map_or(1, |table| table.min_in_sync.max(1));
                match config.primary == Some(me) {
                    true => staying == 0,
                    false => staying < needed || !config.backups.contains(&me),
                }
            })
    }
}

/// The answer to an operator whose request has this outcome.
pub(in crate::node) fn accepted(outcome: Outcome) -> OpResult {
    match outcome {
        Outcome::Accepted => OpResult::Done,
        Outcome::Refused(reason) => OpResult::Error(OpError::Invalid(reason)),
        Outcome::Rejected => OpResult::Error(OpError::Invalid(
            "the region's configuration changed meanwhile, and nothing was given up: look at `leeward status` again"
                .into(),
        )),
    }
}
