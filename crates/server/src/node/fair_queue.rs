//! Operations that wait to be forwarded, by who asked for them: who has had least goes first, so that a client with one operation does
//! not wait behind those of clients that have thousands. Those of one asker stay in order.
//!
//! Belongs to the node; pure.

use super::forward::Unrouted;
use super::serving::ReplyTo;
use crate::shares::{Line, Shares};
use std::collections::{HashMap, VecDeque};

/// See the module.
#[derive(Default)]
pub(super) struct FairQueue {
    /// None is empty.
    of: HashMap<u64, VecDeque<Unrouted>>,
    line: Line,
    shares: Shares,
}

/// Who asked: a connection, or a server. Both are numbers; where one of each is the same they share.
fn asker(to: ReplyTo) -> u64 {
    match to {
        ReplyTo::Client(token) => token.connection(),
        ReplyTo::Peer(server, _) => server.0.into(),
    }
}

impl FairQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// One more, behind those of its asker.
    pub(super) fn push(&mut self, unrouted: Unrouted) {
        self.of_asker(asker(unrouted.to)).push_back(unrouted);
    }

    /// One that was the first of its asker before.
    pub(super) fn push_front(&mut self, unrouted: Unrouted) {
        self.of_asker(asker(unrouted.to)).push_front(unrouted);
    }

    fn of_asker(&mut self, asker: u64) -> &mut VecDeque<Unrouted> {
        self.of.entry(asker).or_insert_with(|| {
            self.shares.join(&mut self.line, asker);
            VecDeque::new()
        })
    }

    /// The next, whose asker has had what it `costs` then.
    pub(super) fn pop(&mut self, costs: impl Fn(&Unrouted) -> u64) -> Option<Unrouted> {
        while let Some(asker) = self.shares.next(&mut self.line) {
            // All of its operations were late.
            let Some(operations) = self.of.get_mut(&asker) else { continue };
            let next = operations.pop_front()?;
            self.shares.spent(asker, costs(&next));
            if operations.is_empty() {
                self.of.remove(&asker);
            } else {
                self.shares.join(&mut self.line, asker);
            }
            return Some(next);
        }
        None
    }

    /// All of them, those of one asker in order.
    pub(super) fn into_all(self) -> impl Iterator<Item = Unrouted> {
        self.of.into_values().flatten()
    }

    /// Takes those out that are late; an asker's first is its oldest.
    pub(super) fn late(&mut self, is_late: impl Fn(&Unrouted) -> bool) -> Vec<Unrouted> {
        let mut late = Vec::new();
        self.of.retain(|_, operations| {
            while let Some(unrouted) = operations.pop_front_if(|unrouted| is_late(unrouted)) {
                late.push(unrouted);
            }
            !operations.is_empty()
        });
        late
    }
}
