//! A whole cluster on one thread and simulated time: the real engine, replication, cluster and server logic over a
//! simulated disk, fabric and coordinator, with crashes, power losses, partitions, pauses, full and slow devices.
//!
//! ```text
//!   clients ---ops---> Node x 3 ---jobs---> (delay) ---> Node        SimDisk: loses what was not synced, sectors torn
//!      ^                 |  ^
//!      '----answers------'  '--- SimNetwork (delays, reorders, tears, partitions), Tree with sessions ---
//! ```
//! One seed is one run, always the same: nothing in it asks the machine for time, randomness or the order of threads.
//! [`run`] reports what went wrong: a history that no single copy could have produced, a lost acknowledged write,
//! replicas that differ, a cluster that does not heal, or a failed assertion. `cargo xtask simulate --seed N` repeats
//! a seed with its log. `docs/simulation.md` describes what is simulated and what is checked.
//!
//! | module | holds |
//! |---|---|
//! | `scenario` | the choices of a seed: options, operator, faults |
//! | `client_mix` | how the clients of a seed behave |
//! | `world` | time, machines, and what happens next |
//! | `coordinator` | sessions over [`leeward_cluster::Tree`] |
//! | `load` | the clients |
//! | `shared` | keys that many clients use at once |
//! | `ledger` | keys that are written once |
//! | `appended` | keys to which words are appended |
//! | `expiring` | keys that expire |
//! | `layout` | the region of a key, where keys are partitioned by hash |
//! | `history` | how histories are judged |
//! | `panics` | failed assertions |
//! | `queue` | events in order |
//! | `seeds` | many seeds in parallel |
//!
//! One seed runs on one thread. Different seeds may run on different threads at the same time.
#![forbid(unsafe_code)]

mod appended;
mod client_mix;
mod coordinator;
mod expiring;
mod history;
mod layout;
mod ledger;
mod load;
mod panics;
mod queue;
mod scenario;
pub mod seeds;
mod shared;
mod world;

use leeward_format::hash_index::narrow_tags;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, plant, set_most_index_bytes};
use std::cell::Cell;
use std::ops::AddAssign;

/// The result of one seed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// `cargo xtask simulate --seed` repeats the run.
    pub seed: u64,
    /// The scenario of the seed, in a few words.
    pub scenario: String,
    /// Operations that were answered.
    pub answered: u64,
    /// Operations whose outcome is unknown.
    pub unknown: u64,
    /// Repeated attempts at operations.
    pub again: u64,
    /// Reads that backups answered, and that might be stale.
    pub stale: u64,
    /// Reads that backups answered as of an instant after their call.
    pub fresh: u64,
    /// Look-ups in hash indexes.
    pub direct: DirectReads,
    /// Compactions that were installed by the primaries that lived at the end of the faults.
    pub compactions: u64,
    /// Times that a region got a new primary after its first.
    pub promotions: u64,
    /// Regions that were split off from others.
    pub splits: u64,
    /// Regions that were merged into a neighbour.
    pub merges: u64,
    /// Merges of pieces of two-layer logs into runs, and of all of their runs, by the processes that lived at the end of
    /// the faults.
    pub piece_merges: u64,
    /// See `piece_merges`.
    pub run_merges: u64,
    /// Promotions of copies that had pieces.
    pub promotions_with_pieces: u64,
    /// Splits of regions of which a backup had pieces.
    pub splits_with_pieces: u64,
    /// Backups' copies that were equal to the primary's by their digests, while clients wrote.
    pub compared: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Digest of everything that happened on the network and in the event queue: equal for equal runs.
    pub digest: u64,
    /// What went wrong; `None` if nothing did.
    pub failure: Option<String>,
}

/// What came of the look-ups of clients that read hash indexes by one-sided reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectReads {
    /// They were answered from an index.
    pub hits: u64,
    /// There was no index for the key.
    pub ungranted: u64,
    /// The key was not in the index, or changed all the time.
    pub asks: u64,
    /// The index was revoked.
    pub refused: u64,
    /// The lease was over, or might have been.
    pub too_old: u64,
    /// Pairs that were evicted from the indexes of primaries that lived at the end of the faults.
    pub evicted: u64,
}

impl AddAssign for DirectReads {
    fn add_assign(&mut self, other: DirectReads) {
        let DirectReads { hits, ungranted, asks, refused, too_old, evicted } = other;
        self.hits += hits;
        self.ungranted += ungranted;
        self.asks += asks;
        self.refused += refused;
        self.too_old += too_old;
        self.evicted += evicted;
    }
}

thread_local! {
    static CONTEXT: Cell<(Nanos, Option<usize>)> = const { Cell::new((Nanos::ZERO, None)) };
}

/// The instant that is simulated on this thread, and the node that something happens to (from 0): for a log.
pub fn here() -> (Nanos, Option<usize>) {
    CONTEXT.get()
}

/// Runs `seed`, with `bug` planted if one is given.
pub fn run(seed: u64, bug: Option<Bug>) -> Report {
    plant(bug);
    let outcome = panics::catch(|| world::World::new(seed).run());
    plant(None);
    set_most_index_bytes(None);
    narrow_tags(u32::MAX);
    CONTEXT.set((Nanos::ZERO, None));
    outcome.unwrap_or_else(|failure| Report { seed, failure: Some(failure), ..Report::default() })
}
