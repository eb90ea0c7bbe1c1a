//! Restores a coordinator's tree that was lost, or put back to an older state, from what this server knows: an operator asks each
//! server in turn to add that, and then each in turn to confirm, which it does if it refuses the tree still, or a region waits for
//! that. The operations are those of the [view](crate::View); here they are sent, as many at once as a coordinator accepts, until
//! the tree has everything.
//!
//! While its tree is refused a server registers all the same, with its copies: so a server that knows less, and takes the tree
//! for the newest, does not decide about regions of which this one has newer copies.
//!
//! Invariant: at most one restoration of this agent is under way.

use super::{Agent, Answer, Outcome, ProposalId, Purpose};
use crate::CoordinatorOp;
use crate::coordinator::chunk;
use leeward_format::cluster::ClusterPath;
use leeward_platform::Nanos;

/// Operations that may fail because other servers changed the tree meanwhile.
const MOST_ATTEMPTS: u32 = 16;

/// A request of an operator to restore the tree.
#[derive(Debug)]
pub(super) struct Restoration {
    id: ProposalId,
    /// Once this server has added what it knows, the tree is complete: it confirms that, if it refuses the tree or a region waits
    /// for it.
    confirms: bool,
    /// The operation under way is the confirmation.
    is_last: bool,
    failed: u32,
    /// Why the coordinator refuses it.
    pub(super) refusal: Option<String>,
}

impl Agent {
    /// Adds to the coordinator's tree what this server knows and the tree lacks. `confirms`: if this server refuses the tree, or a
    /// region waits for it, every server is to compare it anew with what it knows, and to take part in the cluster again if it
    /// lacks nothing.
    ///
    /// # Errors
    /// The coordinator cannot be reached.
    pub fn restore_tree(&mut self, now: Nanos, confirms: bool) -> Result<ProposalId, String> {
        if !self.view.is_synced() && self.view.refusal().is_none() {
            return Err("the coordinator cannot be reached: start it, and repeat the command".into());
        }
        let id = self.requests.new_id();
        tracing::warn!(confirms, "an operator has the coordinator's tree restored from what this server knows");
        let restoration = Restoration { id, confirms, is_last: false, failed: 0, refusal: None };
        self.requests.restorations.push_back(restoration);
        self.advance(now);
        Ok(id)
    }

    /// Sends the next operation of the next restoration, if none is under way.
    pub(super) fn carry_restorations(&mut self) {
        let path = ClusterPath::Cluster;
        while self.is_free(&path)
            && let Some(mut restoration) = self.requests.restorations.pop_front()
        {
            match self.next_restoring(&restoration) {
                Ok((is_last, op)) => {
                    restoration.is_last = is_last;
                    self.submit(path.clone(), op, Purpose::Restoration(Box::new(restoration)));
                }
                Err(reason) => self.requests.end(restoration.id, Outcome::Refused(reason)),
            }
        }
    }

    fn next_restoring(&self, restoration: &Restoration) -> Result<(bool, CoordinatorOp), String> {
        let mut ops = self.view.restore_ops()?;
        if ops.is_empty() {
            let is_wanted = self.view.refusal().is_some() || self.view.has_unconfirmed();
            let confirms = restoration.confirms && is_wanted;
            return Ok((true, if confirms { self.view.confirm_op()? } else { self.register_again()? }));
        }
        ops.truncate(chunk(&ops));
        Ok((false, CoordinatorOp::All(ops)))
    }

    /// The operation that shows that the tree which lacks nothing is the coordinator's present one: a server that has not noticed
    /// yet that its connection is lost gets no answer.
    fn register_again(&self) -> Result<CoordinatorOp, String> {
        let registered = self.view.register_op(&self.registration(), true);
        registered.ok_or_else(|| "another process is registered with this server's number: repeat the command".into())
    }

    /// Handles the answer to an operation of a restoration; `None`: it was lost.
    pub(super) fn settle_restoration(&mut self, mut restoration: Restoration, answer: Option<Answer>) {
        match answer {
            Some(Answer { done: true, .. }) if restoration.is_last => {
                if restoration.confirms {
                    tracing::warn!("the coordinator's tree is restored");
                }
                self.requests.end(restoration.id, Outcome::Accepted);
            }
            Some(Answer { done: true, .. }) => self.requests.restorations.push_front(restoration),
            _ => {
                restoration.failed += 1;
                match restoration.refusal.take() {
                    Some(reason) => self.requests.end(restoration.id, Outcome::Refused(reason)),
                    None if restoration.failed >= MOST_ATTEMPTS => {
                        let reason = "other servers change the tree all the time: repeat the command".to_owned();
                        self.requests.end(restoration.id, Outcome::Refused(reason));
                    }
                    None => self.requests.restorations.push_front(restoration),
                }
            }
        }
    }

    /// Registers this server in a tree that it refuses.
    pub(super) fn register_in_refused(&mut self) {
        let path = ClusterPath::Server(self.me.member.server);
        if self.has_stepped_aside || !self.is_free(&path) {
            return;
        }
        let Some(op) = self.view.register_op(&self.registration(), false) else { return };
        self.submit(path, op, Purpose::Plain);
    }
}

#[cfg(test)]
#[path = "restoration_tests.rs"]
mod tests;
