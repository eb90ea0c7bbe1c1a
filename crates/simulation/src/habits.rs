//! What the clients of a seed do, and how.

use leeward_platform::{Nanos, Rng};

/// What clients do, and how.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) clients: usize,
    /// The first so many only read.
    pub(crate) readers: usize,
    /// Each stays with one node.
    pub(crate) faithful: bool,
    /// Longest rest between two operations, in microseconds.
    pub(crate) gap_us: u64,
    /// How long they wait for an answer.
    pub(crate) patience: Nanos,
    /// Share of writes that go to keys that are written once, in percent.
    pub(crate) fills: u64,
    pub(crate) fill_bytes: (u64, u64),
    /// Reads of shared keys that any member may answer say how stale the answer may be, in milliseconds.
    pub(crate) at_most_stale_ms: Option<u32>,
}

impl Habits {
    pub(crate) fn choose(nodes: usize, rng: &mut Rng) -> Habits {
        let clients = rng.between(3, 10) as usize;
        Habits {
            clients,
            readers: rng.index(clients / 2 + 1),
            faithful: nodes > 1 && rng.one_in(2),
            gap_us: rng.between(500, 12_000),
            patience: [Nanos::from_millis(rng.between(50, 1_000)), Nanos::from_secs(8)][rng.index(2)],
            fills: rng.between(10, 70),
            fill_bytes: [(10, 400), (10, 150), (50, 3_000), (10, 1_500)][rng.index(4)],
            at_most_stale_ms: None,
        }
    }

    /// Those who only read put up with what is at most so stale, and so does every other read of the rest.
    pub(crate) fn read_stale(&mut self, at_most_ms: u32) {
        self.at_most_stale_ms = Some(at_most_ms);
        self.readers = self.readers.max(2);
    }

    /// In every other seed words are appended too.
    pub(crate) fn appends(&self) -> bool {
        self.fills.is_multiple_of(2)
    }
}
