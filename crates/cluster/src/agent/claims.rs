//! The copies that a server registers, and how it deregisters one before it destroys it.
//!
//! Invariant: once regions are deregistered, the view shows everything that happened before this server asked for that:
//! the answer to an operation comes after everything that was done before it. If the view then shows that no group
//! needs a copy, and no primary has said otherwise since the server asked, then no node counts on the copy. Nor does a
//! master look for it here when it seeks the best copy of a region that the coordinator lost.

use super::{Agent, Answer, Purpose};
use crate::CoordinatorOp;
use leeward_format::RegionId;
use leeward_format::cluster::{ClusterPath, encode_value};
use leeward_platform::Nanos;
use std::collections::BTreeSet;

/// Copies that this server is about to destroy.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// To be deregistered.
    wanted: BTreeSet<RegionId>,
    /// Deregistered, but not yet returned by [`Agent::take_deregistered`].
    done: BTreeSet<RegionId>,
}

impl Agent {
    /// Deregisters the copy of `region` on this server. [`Agent::take_deregistered`] returns the region when that is done.
    pub fn deregister(&mut self, now: Nanos, region: RegionId) {
        self.claims.wanted.insert(region);
        self.advance(now);
    }

    /// Regions that were deregistered since the last call.
    pub fn take_deregistered(&mut self) -> BTreeSet<RegionId> {
        std::mem::take(&mut self.claims.done)
    }

    /// Writes this server's path without the copies that are to be deregistered.
    pub(super) fn carry_claims(&mut self) {
        let path = ClusterPath::Server(self.me.member.server);
        let version = self.view.version_of(&path).filter(|_| self.is_registered());
        let Some(version) = version.filter(|_| !self.claims.wanted.is_empty() && self.is_free(&path)) else { return };
        let regions = std::mem::take(&mut self.claims.wanted);
        self.me.copies.retain(|copy| !regions.contains(&copy.region));
        let op = CoordinatorOp::Set { path: path.to_string(), value: encode_value(&self.me), version };
        self.submit(path, op, Purpose::Deregistration(regions));
    }

    /// Handles the answer to the operation; `None`: it was lost.
    pub(super) fn settle_deregistration(&mut self, regions: BTreeSet<RegionId>, answer: Option<Answer>) {
        match answer {
            Some(Answer { done: true, .. }) => self.claims.done.extend(regions),
            _ => self.claims.wanted.extend(regions),
        }
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
