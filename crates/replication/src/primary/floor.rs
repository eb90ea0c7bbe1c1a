//! The floor of a group: an LSN in the configuration up to which the primary's volume is durable.
//!
//! A volume is known by its id, but last night's backup of the volume has the same id. If no process of the group
//! survives, a volume whose copy of the region does not reach the floor is not accepted. The floor is raised with other
//! changes of the configuration, and about every [`Timing::floor_interval`](crate::Timing). So a backup of the volume
//! that is older than this is not accepted.
//!
//! Invariant: everything up to the floor is durable on the primary's volume, under its term, before it is proposed.

use super::Primary;
use leeward_format::Lsn;
use leeward_format::cluster::GroupConfig;
use leeward_platform::Nanos;

/// How high the floor may be raised, and when it was last raised.
#[derive(Debug)]
pub(super) struct FloorDue {
    durable: Lsn,
    raised: Nanos,
    /// The next tick may raise it.
    may_raise: bool,
    /// The last tick did.
    is_raising: bool,
}

impl FloorDue {
    /// Nothing is known to be durable yet.
    pub(super) fn new(now: Nanos) -> FloorDue {
        FloorDue { durable: Lsn(0), raised: now, may_raise: false, is_raising: false }
    }

    /// `config` with the floor at the durable LSN. A term that begins with an empty copy has a floor from its first
    /// record on.
    pub(super) fn raise(&self, config: GroupConfig) -> GroupConfig {
        if self.durable == Lsn(0) { config } else { config.with_floor(self.durable) }
    }
}

impl Primary {
    /// Notes that everything up to `lsn` is committed, and durable on this node's volume. The caller calls this before
    /// each [`Primary::tick`] that may raise the floor. It does not while the region's bounds are changing, which a new
    /// configuration would abort.
    pub fn durable(&mut self, lsn: Lsn) {
        (self.floor.may_raise, self.floor.is_raising) = (true, false);
        self.floor.durable = self.floor.durable.max(lsn);
    }

    /// The configuration with a higher floor, if a raise is due and the durable LSN is beyond the floor.
    pub(super) fn raise_floor(&mut self, now: Nanos) -> Option<GroupConfig> {
        self.floor.is_raising = false;
        let may_raise = std::mem::take(&mut self.floor.may_raise);
        let is_due = now - self.floor.raised >= self.timing.floor_interval;
        if !may_raise || !is_due || self.proposing || !self.is_settled() {
            return None;
        }
        self.floor.raised = now;
        let next = self.floor.raise(self.config.renewed());
        self.floor.is_raising = next.floor != self.config.floor;
        self.floor.is_raising.then_some(next)
    }

    /// Whether the last tick has raised the floor, which is all that a tick does for an idle region.
    pub fn raises_floor(&self) -> bool {
        self.floor.is_raising
    }
}

#[cfg(test)]
#[path = "floor_tests.rs"]
mod tests;
