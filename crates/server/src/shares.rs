//! Which connection is served next: of those that share something, the one that has had least of it goes first.
//!
//! Connections share the event loop's time, and what may be in flight to another node. Each has a *used* amount, in
//! nanoseconds or bytes: what was spent on it. A connection that comes back after a pause begins where the others are, at the
//! used amount of the one that was served last. So it has no claim to what it left to others, and no debt from long ago
//! either. A client with one short command goes before those that have a backlog, and clients with a backlog take turns
//! (start-time fair queueing). No clock: the caller says what was spent. Belongs to the event loop's thread.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;

/// So many are noted before those are forgotten that have used no more than the one that was served last.
const LEAST_NOTED: usize = 256;

/// What was spent on each.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Of those that may have used more than the one that was served last.
    used: HashMap<u64, u64>,
    /// The used amount of the one that was served last.
    reached: u64,
    /// How many may be noted.
    most: usize,
}

/// Those that are to be served.
#[derive(Debug, Default)]
pub(crate) struct Line(BinaryHeap<Reverse<(u64, u64)>>);

impl Shares {
    /// These are to be served.
    pub(crate) fn line_up(&self, ids: BTreeSet<u64>) -> Line {
        Line(ids.into_iter().map(|id| Reverse((self.start(id), id))).collect())
    }

    fn start(&self, id: u64) -> u64 {
        self.used.get(&id).map_or(self.reached, |used| self.reached.max(*used))
    }

    /// The connection that is served next.
    pub(crate) fn next(&mut self, line: &mut Line) -> Option<u64> {
        let Reverse((start, id)) = line.0.pop()?;
        self.reached = self.reached.max(start);
        Some(id)
    }

    /// So much was spent on `id`, which was served last.
    pub(crate) fn spent(&mut self, id: u64, amount: u64) {
        let used = self.start(id) + amount;
        self.used.insert(id, used);
        if self.used.len() > self.most {
            self.used.retain(|_, used| *used > self.reached);
            self.most = (self.used.len() * 2).max(LEAST_NOTED);
        }
    }

    /// `id` is to be served, once more.
    pub(crate) fn join(&self, line: &mut Line, id: u64) {
        line.0.push(Reverse((self.start(id), id)));
    }
}

impl Line {
    /// Those that are still to be served.
    pub(crate) fn left(self) -> impl Iterator<Item = u64> {
        self.0.into_iter().map(|Reverse((_, id))| id)
    }
}
