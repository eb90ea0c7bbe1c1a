//! A whole cluster on one thread and simulated time: the real engine, replication, cluster and server logic over a
//! simulated disk, fabric and coordinator, with crashes, power losses, partitions, pauses, full and slow devices.
//!
//! ```text
//!   clients ---ops---> Node x 3 ---jobs---> (delay) ---> Node        SimDisk: loses what was not synced, sectors torn
//!      ^                 |  ^
//!      '----answers------'  '--- SimNetwork (delays, reorders, tears, partitions), Tree with sessions ---
//! ```
//! One seed is one run, always the same: nothing in it asks the machine for time, randomness or the order of threads.
//! [`run`] answers what went wrong: a history that no single copy could have produced, an acknowledged write that is
//! gone, replicas that differ, a cluster that does not heal, a broken assertion. `cargo xtask simulate --seed N` repeats
//! a seed with its log. What is simulated and checked is described in `docs/simulation.md`.
//!
//! - `character`: what a seed is like. - `world`: time, machines, and what happens next. - `coordinator`: sessions
//!   over [`leeward_cluster::Tree`]. - `load`: the clients. - `shared`: keys that many use at once. - `ledger`: keys that are written once. - `appended`: keys to
//!   which words are appended. - `expiring`: keys that expire. - `history`: how histories are judged. - `panics`: assertions that break. - `queue`: events in order. -
//!   `seeds`: many seeds beside each other.
//!
//! Every call on one thread; seeds may run on many threads beside each other.
#![forbid(unsafe_code)]

mod appended;
mod character;
mod coordinator;
mod expiring;
mod habits;
mod history;
mod ledger;
mod load;
mod panics;
mod places;
mod queue;
pub mod seeds;
mod shared;
mod world;

use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, plant};
use std::cell::Cell;

/// What one seed came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What the seed is like, in a few words.
    pub character: String,
    /// Operations that were answered.
    pub answered: u64,
    /// Operations whose outcome nobody knows.
    pub unknown: u64,
    /// Attempts at operations after the first.
    pub again: u64,
    /// Reads that backups answered.
    pub stale: u64,
    /// Compactions that were installed by the primaries that lived at the end of the faults.
    pub compactions: u64,
    /// Times that a region got a new primary after its first.
    pub promotions: u64,
    /// Regions that were made of others.
    pub divisions: u64,
    /// Regions that became part of a neighbour.
    pub merges: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Digest of everything that happened on the network and in the event queue: equal for equal runs.
    pub digest: u64,
    /// What went wrong; `None` if nothing did.
    pub failure: Option<String>,
}

thread_local! {
    static HERE: Cell<(Nanos, Option<usize>)> = const { Cell::new((Nanos::ZERO, None)) };
}

/// The instant that is simulated on this thread, and the node that something happens to (from 0): for a log.
pub fn here() -> (Nanos, Option<usize>) {
    HERE.get()
}

/// Runs `seed`, with `bug` planted if one is given.
pub fn run(seed: u64, bug: Option<Bug>) -> Report {
    plant(bug);
    let outcome = panics::catch(|| world::World::new(seed).run());
    plant(None);
    HERE.set((Nanos::ZERO, None));
    outcome.unwrap_or_else(|failure| Report { seed, failure: Some(failure), ..Report::default() })
}
