//! Whose turn it is: connections share the event loop's time, and who has had least goes first.
//!
//! Each connection has a *used* time: what was spent on it. One that comes back after a pause begins where the others are, at the
//! used time of the one that was served last, so it has no claim to what it left to others, and no debt from long ago either.
//! So a client with one short command goes before those that have a backlog, and clients with a backlog take turns
//! (start-time fair queueing). No clock: the event loop says what was spent. Belongs to its thread.

use leeward_platform::Nanos;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;

/// What was spent on each connection.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Of those that have used more than the one that was served last.
    used: HashMap<u64, Nanos>,
    /// The used time of the connection that was served last.
    reached: Nanos,
}

/// Connections that are to be served.
#[derive(Debug)]
pub(super) struct Line(BinaryHeap<Reverse<(Nanos, u64)>>);

impl Shares {
    /// These are to be served.
    pub(super) fn line_up(&self, ids: BTreeSet<u64>) -> Line {
        Line(ids.into_iter().map(|id| Reverse((self.start(id), id))).collect())
    }

    fn start(&self, id: u64) -> Nanos {
        self.used.get(&id).map_or(self.reached, |used| self.reached.max(*used))
    }

    /// Who is served next.
    pub(super) fn next(&mut self, line: &mut Line) -> Option<u64> {
        let Reverse((start, id)) = line.0.pop()?;
        self.reached = self.reached.max(start);
        Some(id)
    }

    /// So much was spent on `id`, which was served last.
    pub(super) fn spent(&mut self, id: u64, time: Nanos) {
        let used = self.start(id) + time;
        self.used.insert(id, used);
    }

    /// `id` is to be served again.
    pub(super) fn line_up_again(&self, line: &mut Line, id: u64) {
        line.0.push(Reverse((self.start(id), id)));
    }

    /// `id` is gone.
    pub(super) fn remove(&mut self, id: u64) {
        self.used.remove(&id);
    }
}

impl Line {
    /// Those that are still to be served.
    pub(super) fn left(self) -> impl Iterator<Item = u64> {
        self.0.into_iter().map(|Reverse((_, id))| id)
    }
}
