//! A whole cluster on one thread and simulated time: the real engine, replication, cluster and server logic over a
//! simulated disk, fabric and coordinator, with crashes, power losses, partitions, pauses and slow devices.
//!
//! ```text
//!   clients ---ops---> Node x 3 ---jobs---> (delay) ---> Node        SimDisk: loses what was not synced, sectors torn
//!      ^                 |  ^
//!      '----answers------'  '--- SimNetwork (delays, reorders, tears, partitions), Tree with sessions ---
//! ```
//! One seed is one run, always the same. [`run`] answers what went wrong: a history that no single copy could have
//! produced, an acknowledged write that is gone, a cluster that does not heal, a broken assertion. Then
//! `cargo xtask simulate --seed N` repeats it with its log.
//!
//! - [`world`]: time, nodes, what happens next. - [`coordinator`]: sessions over [`leeward_cluster::Tree`].
//! - [`faults`]: what breaks when. - [`load`]: the clients. - [`history`]: the linearizability checker.
#![forbid(unsafe_code)]

pub mod coordinator;
pub mod faults;
pub mod history;
pub mod load;
pub mod world;

use leeward_platform::planted::{Bug, plant};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What one seed came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Operations that were answered.
    pub answered: u64,
    /// Operations whose outcome nobody knows.
    pub unknown: u64,
    /// Compactions that were installed at primaries.
    pub compactions: u64,
    /// Times that a region got a new primary after its first.
    pub promotions: u64,
    /// Faults that struck.
    pub faults: u64,
    /// What went wrong; `None` if nothing did.
    pub failure: Option<String>,
}

/// Runs `seed`, with `bug` planted if one is given.
pub fn run(seed: u64, bug: Option<Bug>) -> Report {
    plant(bug);
    let outcome = catch_unwind(AssertUnwindSafe(|| world::World::new(seed).run()));
    plant(None);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = Some(format!("panic: {}", text.unwrap_or_else(|| "without a message".into())));
        Report { seed, answered: 0, unknown: 0, compactions: 0, promotions: 0, faults: 0, failure }
    })
}
