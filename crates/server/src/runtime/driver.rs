//! The node, and what its turn needs: the state that all sessions share, the pool for its jobs, its outbox.

use super::pool::Pool;
use crate::metrics::Metrics;
use crate::node::{Input, Node, Outbox, Token};
use crate::quota::Quota;
use crate::session_context::{Context, SharedBySessions};
use leeward_format::op::OpResult;
use leeward_platform::Nanos;

/// The part of the event loop that takes operations and gives answers.
pub(super) struct Driver {
    pub(super) node: Node,
    pub(super) shared: SharedBySessions,
    pool: Pool,
    outbox: Outbox,
}

impl Driver {
    pub(super) fn new(node: Node, shared: SharedBySessions, pool: Pool) -> Driver {
        Driver { node, shared, pool, outbox: Outbox::default() }
    }

    /// The context of a session's next step.
    #[inline]
    pub(super) fn context(&mut self, now: Nanos, quota: Quota) -> Context<'_> {
        let (routes, is_synced, users) = (self.node.routes(), self.node.is_synced(), self.node.users());
        let peer_settings = self.node.peer_settings();
        Context { now, routes, is_synced, peer_settings, users, node: &self.node, shared: &mut self.shared, quota }
    }

    /// The counters of the process.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    #[inline]
    pub(super) fn handle(&mut self, now: Nanos, input: Input) {
        self.node.handle(now, input);
    }

    /// Ends the node's batch, and hands its jobs to the pool.
    pub(super) fn finish_batch(&mut self, now: Nanos) {
        self.node.finish_batch(now, &mut self.outbox);
        self.pool.run(std::mem::take(&mut self.outbox.jobs).into_iter());
    }

    /// The next answer of the node.
    #[inline]
    pub(super) fn next_reply(&mut self) -> Option<(Token, OpResult)> {
        self.outbox.replies.pop_front()
    }

    /// The node has answered, and the answers were not all taken.
    pub(super) fn has_replies(&self) -> bool {
        !self.outbox.replies.is_empty()
    }
}
