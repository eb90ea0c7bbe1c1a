//! The number of members that have an acknowledged write. A primary acknowledges no write while its group has fewer members in
//! sync than the table requires, however long the write waited.
//!
//! The check covers writes that a client sends to the primary itself. It uses the primary's own view of its group at the moment
//! when the answer leaves. Called by the world, on its thread.

use super::{NodeId, World};
use leeward_format::op::{Op, OpResult};
use leeward_format::table::DEFAULT_TABLE;
use leeward_format::{Epoch, RegionId};
use leeward_server::node::{Node, Token};
use std::collections::BTreeMap;

/// The writes that were sent to a primary, and the first that too few members had.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// Writes that were sent to the primary of their region: the operation, the region and the term.
    asked: BTreeMap<Token, (Op, RegionId, Epoch)>,
    /// The first write that too few members had when it was acknowledged.
    pub(super) failure: Option<String>,
}

/// Whether an answer acknowledges a write.
fn is_acknowledged(result: &OpResult) -> bool {
    match result {
        OpResult::Put { done, .. } | OpResult::Deleted { done, .. } => *done,
        OpResult::Error(_) => false,
        _ => true,
    }
}

/// The region of an operation, and the term in which `node` serves it.
fn served_by(node: &Node, op: &Op) -> Option<(RegionId, Epoch)> {
    let region = op.region_in(node.routes(), DEFAULT_TABLE)?.region;
    Some((region, node.in_sync(region)?.term))
}

impl World {
    /// A client sends a write to a node.
    pub(super) fn note_asked(&mut self, node: NodeId, token: Token, op: &Op) {
        let running = self.machines[node].node.as_ref().filter(|_| op.writes_data());
        if let Some((region, term)) = running.and_then(|running| served_by(running, op)) {
            self.answering.asked.insert(token, (op.clone(), region, term));
        }
    }

    /// A node answers a client.
    pub(super) fn look_at_answer(&mut self, node: NodeId, token: Token, result: &OpResult) {
        let Some((op, region, term)) = self.answering.asked.remove(&token) else { return };
        let running = self.machines[node].node.as_ref().filter(|_| is_acknowledged(result));
        let Some(running) = running.filter(|running| served_by(running, &op) == Some((region, term))) else { return };
        let Some(group) = running.in_sync(region).filter(|group| group.in_sync < group.needed) else { return };
        let when = self.now.as_millis();
        let failure = format!("at {when} ms node {node} acknowledged {op:?} to token {}: {group:?}", token.0);
        self.answering.failure.get_or_insert(failure);
    }
}
