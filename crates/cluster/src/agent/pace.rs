//! How often operators may change the same thing. Each change of a region's group takes an epoch, and the number of epochs in
//! which a primary can begin is limited ([`Epoch::LAST_TERM`]). Some must be left for failovers, whatever operators ask for.
//!
//! Invariants: a burst of changes is executed at once. A steady stream of changes is slowed down, the more the fewer epochs
//! are left. Half of all epochs are reserved for changes that no operator asks for. One agent, one thread. The memory in use is
//! bounded by the number of recent changes.

use leeward_format::Epoch;
use leeward_format::cluster::ClusterPath;
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// Changes of one path that are executed at once.
const BURST: u64 = 60;

/// When each path may be changed again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// By path: the instant at which all earlier changes are forgotten.
    paid_at: BTreeMap<ClusterPath, Nanos>,
}

/// How long it takes to forget one change of a group in this epoch. Altogether, 2^23 changes take nine years.
fn price(epoch: Epoch) -> Nanos {
    match epoch.0 {
        0..0x10_0000 => Nanos::from_secs(1),
        0x10_0000..0x40_0000 => Nanos::from_secs(10),
        _ => Nanos::from_secs(60),
    }
}

impl Pace {
    /// Takes note of a change of `path`, which is in this epoch.
    ///
    /// # Errors
    /// The path was changed too often lately. The text says when to ask again.
    pub(super) fn admit(&mut self, now: Nanos, path: &ClusterPath, epoch: Epoch) -> Result<(), String> {
        let price = price(epoch);
        let paid_at = self.paid_at.get(path).map_or(now, |paid_at| *paid_at.max(&now)) + price;
        if paid_at.since(now) > Nanos(price.0 * BURST) {
            let seconds = (paid_at.since(now).0 - price.0 * BURST).div_ceil(Nanos::from_secs(1).0);
            return Err(format!("{path} was changed {BURST} times of late: ask again in {seconds} s"));
        }
        self.paid_at.retain(|_, paid_at| *paid_at > now);
        self.paid_at.insert(path.clone(), paid_at);
        Ok(())
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
