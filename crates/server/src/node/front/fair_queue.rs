//! Operations that wait to be forwarded, by their callers. The caller that has used least goes first. So a client with one
//! operation does not wait behind clients with thousands. Operations of one caller stay in order.
//!
//! Belongs to the node; pure.

use crate::shares::{Line, Shares};
use leeward_region::request::{ReplyTo, Request};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Operations that wait to be forwarded, by caller.
#[derive(Default)]
pub(super) struct FairQueue {
    /// Operations by caller; no queue is empty.
    of: FxHashMap<u64, VecDeque<Request>>,
    line: Line,
    shares: Shares,
}

/// The caller: a connection, or a server. Both are numbers; a connection and a server with the same number share a queue.
fn caller(to: ReplyTo) -> u64 {
    match to {
        ReplyTo::Client(token) => token.connection(),
        ReplyTo::Peer(server, _) => server.0.into(),
    }
}

impl FairQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Adds an operation behind the others of its caller.
    pub(crate) fn push(&mut self, request: Request) {
        self.of_caller(caller(request.to)).push_back(request);
    }

    /// Puts an operation before the others of its caller.
    pub(crate) fn push_front(&mut self, request: Request) {
        self.of_caller(caller(request.to)).push_front(request);
    }

    fn of_caller(&mut self, caller: u64) -> &mut VecDeque<Request> {
        self.of.entry(caller).or_insert_with(|| {
            self.shares.join(&mut self.line, caller);
            VecDeque::new()
        })
    }

    /// Takes the next operation, and charges its caller what it `costs`.
    pub(crate) fn pop(&mut self, costs: impl Fn(&Request) -> u64) -> Option<Request> {
        while let Some(caller) = self.shares.next(&mut self.line) {
            // All of its operations were late.
            let Some(operations) = self.of.get_mut(&caller) else { continue };
            let next = operations.pop_front()?;
            self.shares.spent(caller, costs(&next));
            if operations.is_empty() {
                self.of.remove(&caller);
            } else {
                self.shares.join(&mut self.line, caller);
            }
            return Some(next);
        }
        None
    }

    /// All operations; those of one caller are in order.
    pub(super) fn into_all(self) -> impl Iterator<Item = Request> {
        self.of.into_values().flatten()
    }

    /// Takes out the operations that are late. A caller's first operation is its oldest.
    pub(crate) fn late(&mut self, is_late: impl Fn(&Request) -> bool) -> Vec<Request> {
        let mut late = Vec::new();
        self.of.retain(|_, operations| {
            while let Some(request) = operations.pop_front_if(|request| is_late(request)) {
                late.push(request);
            }
            !operations.is_empty()
        });
        late
    }
}
