//! What an operator asks of the cluster, and the errors for operations that this node cannot place.

use super::{NodeControl, Proposer};
use leeward_cluster::{Outcome, ProposalId};
use leeward_format::RegionId;
use leeward_format::cluster::Member;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::table::unknown_table;
use leeward_region::request::ReplyTo;

/// Whether control executes an operation.
pub(in crate::node) fn is_of_operator(op: &Op) -> bool {
    matches!(
        op,
        Op::AcceptLoss { .. }
            | Op::RestoreTree { .. }
            | Op::CreateTable { .. }
            | Op::AlterTable { .. }
            | Op::RequestRegion { .. }
            | Op::DropTable { .. }
            | Op::Intend { .. }
            | Op::ListUsers
            | Op::ChangeUser { .. }
            | Op::RemoveUsers { .. }
    )
}

impl NodeControl {
    /// Asks the coordinator for what an operator wants. The answer is here at once, or follows with the outcome.
    pub(in crate::node) fn operate(&mut self, to: ReplyTo, op: Op) -> Option<OpResult> {
        let now = self.now();
        let agent = &mut self.agent;
        let asked: Result<ProposalId, String> = match op {
            Op::AcceptLoss { region, server } => agent.accept_loss(now, region, server),
            Op::RestoreTree { confirms } => agent.restore_tree(now, confirms),
            Op::CreateTable { table } => agent.create_table(now, *table),
            Op::AlterTable { change } => agent.alter_table(now, *change),
            Op::RequestRegion { region, request } => agent.request_for_region(now, region, request),
            Op::DropTable { table } => agent.drop_table(now, &table),
            Op::Intend { server, intent } => agent.intend(now, server, intent),
            Op::ListUsers => return Some(OpResult::Users(self.view().users().shown())),
            Op::ChangeUser { change } => agent.change_user(now, *change),
            Op::RemoveUsers { names } => agent.remove_users(now, names),
            _ => unreachable!("an operator asks for it"),
        };
        match asked {
            Ok(proposal) => {
                self.proposals.insert(proposal, Proposer::Operator(to));
                None
            }
            Err(why) => Some(OpResult::Error(OpError::Invalid(why))),
        }
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
