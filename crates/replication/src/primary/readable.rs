//! Until when clients may read the primary's hash index, and backups its safe LSN, without asking it (rules R2 and P1 of
//! HiStore as it lives here).
//!
//! Who has the memory mapped reads it whether or not this process runs. What keeps it from old values is the
//! instant that the primary has published: until then no other member becomes primary.
//!
//! Invariants:
//! - The instant never falls, unless all that could be read has ended.
//! - It is not later than the lease grants that the primary needs, in every configuration that may be in force. Of each
//!   grant, [`Timing::READABLE`] counts at most: the granter's next process waits no longer.
//! - No configuration is proposed under which the grants that are needed end earlier.

use super::Primary;
use crate::Timing;
use leeward_format::cluster::GroupConfig;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};

impl Primary {
    /// Until when the primary's memory may be read, by this node's clock. To be published.
    pub fn readable_until(&mut self, now: Nanos) -> Nanos {
        let granted = self.configs().map(|config| self.granted_until(config)).min().unwrap_or_default();
        // Without backups no grant bounds it. But a new process waits no longer than that.
        let most = now + Timing::relied_on(self.timing.lease.min(Timing::READABLE));
        self.readable_until = self.readable_until.max(granted.min(most));
        self.readable_until
    }

    /// The index and the safe LSN are revoked: nobody reads them from now on.
    pub fn readable_ended(&mut self) {
        self.readable_until = Nanos::ZERO;
    }

    /// Whether what was published stays right if `next` comes into force.
    pub(super) fn may_be_read_under(&self, now: Nanos, next: &GroupConfig) -> bool {
        let is_over = self.readable_until <= now;
        is_over || self.granted_until(next) >= self.readable_until || planted(Bug::AdmitUngranted)
    }

    /// Until when readers may rely on the leases of as many backups of `config` as the primary needs.
    fn granted_until(&self, config: &GroupConfig) -> Nanos {
        let needed = self.options.needed_of(1 + config.backups.len()) - 1;
        let mut until: Vec<Nanos> =
            config.backups.iter().map(|backup| self.lease.readable_until(backup.server)).collect();
        until.sort_unstable_by(|one, other| other.cmp(one));
        let last = needed.checked_sub(1).map(|last| until.get(last).copied().unwrap_or_default());
        last.unwrap_or(Nanos(u64::MAX))
    }
}

#[cfg(test)]
#[path = "readable_tests.rs"]
mod tests;
