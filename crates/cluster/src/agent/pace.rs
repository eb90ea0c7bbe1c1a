//! How often operators may have the same thing changed. Each change of a region's group takes an epoch, and those in which primaries can
//! begin are not without end ([`Epoch::LAST_TERM`]): failovers must find some, whatever was asked for before.
//!
//! Invariants: a burst is carried out at once, what goes on and on is slowed down, the more the nearer the end is; half of all epochs are
//! for changes that nobody asks for. One agent, one thread; what it remembers is bounded by what has been changed lately.

use leeward_format::Epoch;
use leeward_format::cluster::ClusterPath;
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// From this epoch on a region's group is changed by failovers only, and whatever else servers do by themselves.
pub(crate) const LAST_ASKED_FOR: Epoch = Epoch(Epoch::LAST_TERM.0 / 2);

/// Changes of one path that are carried out at once.
const BURST: u64 = 60;

/// When something may be changed again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// By path: the instant at which it would be as if nothing had been asked for.
    paid_at: BTreeMap<ClusterPath, Nanos>,
}

/// How long one change takes to be forgotten, of what is in such an epoch: 2^23 of them come about in nine years.
fn price(epoch: Epoch) -> Nanos {
    match epoch.0 {
        0..0x10_0000 => Nanos::from_secs(1),
        0x10_0000..0x40_0000 => Nanos::from_secs(10),
        _ => Nanos::from_secs(60),
    }
}

impl Pace {
    /// Takes note of a change of what is in this epoch.
    ///
    /// # Errors
    /// It was changed too often of late; says when to ask again.
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
