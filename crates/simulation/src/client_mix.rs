//! How the clients of a seed behave. Drawn from the seed; plain data.

use leeward_platform::{Nanos, Rng};

/// How clients behave.
#[derive(Clone, Debug)]
pub(crate) struct ClientMix {
    pub(crate) clients: usize,
    /// This many clients, the first ones, only read.
    pub(crate) readers: usize,
    /// Each client stays with one node.
    pub(crate) faithful: bool,
    /// Longest pause between two operations, in microseconds.
    pub(crate) gap_us: u64,
    /// How long a client waits for an answer.
    pub(crate) timeout: Nanos,
    /// Percentage of writes that go to keys that are written once.
    pub(crate) fills: u64,
    pub(crate) fill_bytes: (u64, u64),
    /// How stale the answer to a read of shared keys may be, in milliseconds, where any member may answer.
    pub(crate) at_most_stale_ms: Option<u32>,
    /// Shared keys that are in use at the same time.
    pub(crate) shared_keys: usize,
    /// Clients delete ranges of shared keys, beside single ones.
    pub(crate) deletes_ranges: bool,
}

impl ClientMix {
    pub(crate) fn choose(nodes: usize, rng: &mut Rng) -> ClientMix {
        let clients = rng.between(3, 10) as usize;
        ClientMix {
            clients,
            readers: rng.index(clients / 2 + 1),
            faithful: nodes > 1 && rng.one_in(2),
            gap_us: rng.between(500, 12_000),
            timeout: [Nanos::from_millis(rng.between(50, 1_000)), Nanos::from_secs(8)][rng.index(2)],
            fills: rng.between(10, 70),
            fill_bytes: [(10, 400), (10, 150), (50, 3_000), (10, 1_500)][rng.index(4)],
            at_most_stale_ms: None,
            shared_keys: 6,
            deletes_ranges: true,
        }
    }

    /// Clients that only read accept answers that are at most so stale. So does every other read of the other clients.
    pub(crate) fn read_stale(&mut self, at_most_ms: u32) {
        self.at_most_stale_ms = Some(at_most_ms);
        self.readers = self.readers.max(2);
    }

    /// Every other seed appends words too.
    pub(crate) fn appends(&self) -> bool {
        self.fills.is_multiple_of(2)
    }
}
