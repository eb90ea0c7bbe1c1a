//! What a server says that it has copies of, and how it stops to say so before it destroys one.
//!
//! Invariant: once regions are disclaimed, the view shows everything that happened before this server asked for that: an operation's
//! answer comes after whatever was done before it. So whoever finds by the view, then, that nobody needs a copy, and was not told
//! otherwise by a primary since it asked, knows that nobody counts on it; and who looks for the best copy of a region that the
//! coordinator lost does not look here.

use super::{Agent, Answer, Purpose};
use crate::CoordinatorOp;
use leeward_format::RegionId;
use leeward_format::cluster::{ClusterPath, encode_value};
use leeward_platform::Nanos;
use std::collections::BTreeSet;

/// Copies that this server is about to destroy.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Not said yet.
    wanted: BTreeSet<RegionId>,
    /// Said, and not taken.
    done: BTreeSet<RegionId>,
}

impl Agent {
    /// Has this server say no more that it has a copy of `region`; [`Agent::take_disclaimed`] tells when it has.
    pub fn disclaim(&mut self, now: Nanos, region: RegionId) {
        self.claims.wanted.insert(region);
        self.advance(now);
    }

    /// Regions that were disclaimed since the last call.
    pub fn take_disclaimed(&mut self) -> BTreeSet<RegionId> {
        std::mem::take(&mut self.claims.done)
    }

    /// Changes this server's path as is wanted.
    pub(super) fn carry_claims(&mut self) {
        let path = ClusterPath::Server(self.me.member.server);
        let version = self.view.version_of(&path).filter(|_| self.is_registered());
        let Some(version) = version.filter(|_| !self.claims.wanted.is_empty() && self.is_free(&path)) else { return };
        let regions = std::mem::take(&mut self.claims.wanted);
        self.me.copies.retain(|copy| !regions.contains(&copy.region));
        let op = CoordinatorOp::Set { path: path.to_string(), value: encode_value(&self.me), version };
        self.submit(path, op, Purpose::Disclaimer(regions));
    }

    /// It was said, or not, or nobody knows.
    pub(super) fn settle_disclaimer(&mut self, regions: BTreeSet<RegionId>, answer: Option<Answer>) {
        match answer {
            Some(Answer { done: true, .. }) => self.claims.done.extend(regions),
            _ => self.claims.wanted.extend(regions),
        }
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
