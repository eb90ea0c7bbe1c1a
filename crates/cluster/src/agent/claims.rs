//! The copies that a server registers, how it says that one is damaged or sound again, and how it deregisters one before
//! it destroys it.
//!
//! Invariant: once regions are deregistered, the view shows everything that happened before this server asked for that:
//! the answer to an operation comes after everything that was done before it. If the view then shows that no group
//! needs a copy, and no primary has said otherwise since the server asked, then no node counts on the copy. Nor does a
//! master look for it here when it seeks the best copy of a region that the coordinator lost.

use super::{Agent, Answer, Purpose};
use crate::CoordinatorOp;
use leeward_format::cluster::{ClusterPath, CopyFound, ServerInfo, encode_value};
use leeward_format::{Epoch, Lsn, RegionId};
use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Copies that this server is about to register otherwise.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Copies that are registered as damaged.
    damaged: BTreeSet<RegionId>,
    /// The coordinator does not know yet what has changed of that.
    is_changed: bool,
    /// To be deregistered.
    wanted: BTreeSet<RegionId>,
    /// Deregistered, but not yet returned by [`Agent::take_deregistered`].
    done: BTreeSet<RegionId>,
}

impl Claims {
    /// Of a server that registers with these copies.
    pub(super) fn of(copies: &mut [CopyFound]) -> Claims {
        copies.sort_by_key(|copy| copy.region);
        let damaged = copies.iter().filter(|copy| copy.is_damaged()).map(|copy| copy.region).collect();
        Claims { damaged, ..Claims::default() }
    }
}

impl Agent {
    /// Deregisters the copy of `region` on this server. [`Agent::take_deregistered`] returns the region when that is done.
    pub fn deregister(&mut self, now: Nanos, region: RegionId) {
        self.claims.wanted.insert(region);
        self.advance(now);
    }

    /// What this server registers in a new session: the copies that it found when it started, and those of the groups that it
    /// belongs to as far as it knows. Its process has gone on since it found the former.
    pub(super) fn registration(&self) -> ServerInfo {
        let me = self.me.member;
        let mut copies: BTreeMap<RegionId, CopyFound> =
            self.me.copies.iter().map(|copy| (copy.region, *copy)).collect();
        for config in self.view.regions().filter(|config| config.has(me)) {
            let copy = copies.entry(config.region).or_insert_with(|| CopyFound::new(config.region, Epoch(0), Lsn(0)));
            (copy.epoch, copy.table_id) = (config.epoch, config.table_id);
            if !copy.is_damaged() && config.in_sync().any(|member| member == me) {
                (copy.term, copy.lsn) = (config.term, CopyFound::WHOLE);
            }
        }
        ServerInfo { copies: copies.into_values().collect(), ..self.me.clone() }
    }

    /// Keeps what this server knew of its copies before it took another tree, where only copies of a region are known there: what
    /// it found when it started is less.
    pub(super) fn keep_known(&mut self, known: ServerInfo) {
        let is_unassigned = |copy: &CopyFound| {
            let config = self.view.region(copy.region).filter(|config| !copy.is_of_other_table(config));
            config.is_some_and(|config| config.candidates().next().is_none())
        };
        let mut copies: BTreeMap<RegionId, CopyFound> =
            self.me.copies.iter().map(|copy| (copy.region, *copy)).collect();
        copies.extend(known.copies.into_iter().filter(is_unassigned).map(|copy| (copy.region, copy)));
        self.me.copies = copies.into_values().collect();
    }

    /// Registers the `copy` of this server anew: it was registered as damaged and is not, or is damaged and was not.
    pub fn update_copy(&mut self, now: Nanos, copy: CopyFound) {
        match copy.is_damaged() {
            true => self.claims.damaged.insert(copy.region),
            false => self.claims.damaged.remove(&copy.region),
        };
        self.me.copies.retain(|known| known.region != copy.region);
        self.me.copies.push(copy);
        self.me.copies.sort_by_key(|copy| copy.region);
        self.claims.is_changed = true;
        self.advance(now);
    }

    /// Whether this server registers its copy of `region` as damaged.
    pub fn says_damaged(&self, region: RegionId) -> bool {
        self.claims.damaged.contains(&region)
    }

    /// Regions that were deregistered since the last call.
    pub fn take_deregistered(&mut self) -> BTreeSet<RegionId> {
        std::mem::take(&mut self.claims.done)
    }

    /// Writes this server's path with the copies as they are, without those that are to be deregistered.
    pub(super) fn carry_claims(&mut self) {
        let path = ClusterPath::Server(self.me.member.server);
        let version = self.view.version_of(&path).filter(|_| self.is_registered());
        let is_due = self.claims.is_changed || !self.claims.wanted.is_empty();
        let Some(version) = version.filter(|_| is_due && self.is_free(&path)) else { return };
        self.claims.is_changed = false;
        let regions = std::mem::take(&mut self.claims.wanted);
        self.me.copies.retain(|copy| !regions.contains(&copy.region));
        self.claims.damaged.retain(|region| !regions.contains(region));
        let op = CoordinatorOp::Set { path: path.to_string(), value: encode_value(&self.me), version };
        self.submit(path, op, Purpose::Deregistration(regions));
    }

    /// Handles the answer to the operation; `None`: it was lost.
    pub(super) fn settle_deregistration(&mut self, regions: BTreeSet<RegionId>, answer: Option<Answer>) {
        match answer {
            Some(Answer { done: true, .. }) => self.claims.done.extend(regions),
            _ => {
                self.claims.is_changed = true;
                self.claims.wanted.extend(regions);
            }
        }
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
