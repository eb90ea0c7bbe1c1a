//! The floor of a group: what its primary's volume holds durably, as the configuration says.
//!
//! A volume is known by its id, but a copy of the volume from last night has the same id. When no process of a group is left, a
//! volume whose copy of the region does not reach the floor is not accepted as the one that was there. The floor is raised with
//! changes of the configuration that take place anyway, and from time to time. So a copy that is older than
//! [`Timing::floor_interval`](crate::Timing) is not accepted.
//!
//! Invariant: what a floor says is durable on the primary's volume, under its term, before it is proposed.

use super::Primary;
use leeward_format::Lsn;
use leeward_format::cluster::GroupConfig;
use leeward_platform::Nanos;

/// How high the floor may be raised, and when it was raised last.
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
    /// A floor of which nothing is known to be durable yet.
    pub(super) fn new(now: Nanos) -> FloorDue {
        FloorDue { durable: Lsn(0), raised: now, may_raise: false, is_raising: false }
    }

    /// The configuration with what is durable now. A term that begins with an empty copy is durable with its first record.
    pub(super) fn raise(&self, config: GroupConfig) -> GroupConfig {
        if self.durable == Lsn(0) { config } else { config.with_floor(self.durable) }
    }
}

impl Primary {
    /// Everything up to `lsn` is committed, and durable on this node's volume. The caller says so before each [`Primary::tick`]
    /// that may raise the floor. It does not while a change of the region's bounds is under way, which a new configuration would
    /// end.
    pub fn durable(&mut self, lsn: Lsn) {
        (self.floor.may_raise, self.floor.is_raising) = (true, false);
        self.floor.durable = self.floor.durable.max(lsn);
    }

    /// The configuration with a higher floor, if it is time to and more is durable than it says.
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

    /// The last tick has raised the floor. That is the one thing that a tick does for an idle region.
    pub fn raises_floor(&self) -> bool {
        self.floor.is_raising
    }
}

#[cfg(test)]
#[path = "floor_tests.rs"]
mod tests;
