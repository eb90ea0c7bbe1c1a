//! Which connection is served next: the one that has used least of what the connections share.
//!
//! Connections share the event loop's time, and the bytes in flight to another node. Each has a *used* amount, in
//! nanoseconds or bytes. A connection that comes back after a pause begins at the used amount of the one that was
//! served last. So it can neither claim what it left to others, nor does it owe anything from long ago. A client with
//! one short command goes before those that have a backlog, and clients with a backlog take turns (start-time fair
//! queueing). No clock: the caller says what was spent. Belongs to the event loop's thread.

use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;

/// Least number of noted connections before those are forgotten that have used no more than the one served last.
const LEAST_NOTED: usize = 256;

/// The used amount of each connection.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The used amounts of those that may have used more than the one served last.
    used: FxHashMap<u64, u64>,
    /// The used amount of the connection that was served last.
    reached: u64,
    /// How many may be noted.
    most: usize,
}

/// The connections that are to be served.
#[derive(Debug, Default)]
pub(crate) struct Line(BinaryHeap<Reverse<(u64, u64)>>);

impl Shares {
    /// A line of these connections.
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

    /// Notes that `amount` was spent on `id`, which was served last.
    pub(crate) fn spent(&mut self, id: u64, amount: u64) {
        let used = self.start(id) + amount;
        self.used.insert(id, used);
        if self.used.len() > self.most {
            self.used.retain(|_, used| *used > self.reached);
            self.most = (self.used.len() * 2).max(LEAST_NOTED);
        }
    }

    /// Puts `id` into the line once more.
    pub(crate) fn join(&self, line: &mut Line, id: u64) {
        line.0.push(Reverse((self.start(id), id)));
    }
}

impl Line {
    /// The connections that are still to be served.
    pub(crate) fn left(self) -> impl Iterator<Item = u64> {
        self.0.into_iter().map(|Reverse((_, id))| id)
    }
}
