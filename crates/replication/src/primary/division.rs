//! A region that should become two, or part of another, as its primary sees it: whether that can be now, and what is proposed then.
//!
//! Invariants:
//! - It is divided, or taken in, only while nothing of the group is unsettled: every member counts and is in sync, and will be a member of both.
//! - A child that is not born yet belongs to no configuration: its primary brings its peers in sync, and proposes nothing.

use super::{Primary, PrimaryAction};
use crate::Timing;
use leeward_format::cluster::{GroupConfig, TableOptions};
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;

impl Primary {
    /// The primary of a region that is about to be made of another, in the configuration that it will have: see [`Primary::new`].
    pub fn unborn(
        now: Nanos,
        config: GroupConfig,
        options: TableOptions,
        timing: Timing,
        linked: &[ServerId],
    ) -> Primary {
        // As long as its own configuration is what is proposed, it proposes no other.
        Primary { proposing: true, ..Primary::new(now, config, options, timing, linked) }
    }

    /// The region was made.
    pub fn born(&mut self) {
        self.proposing = false;
    }

    /// The region that this one should give half of its keys to, and why that cannot be now, if it cannot.
    pub fn planned(&self) -> Option<(RegionId, Option<&'static str>)> {
        Some((self.config.wishes.plan.as_ref()?.child()?, self.waits_for()))
    }

    /// The neighbour that this region should be part of, and why that cannot be now, if it cannot.
    pub fn merging(&self) -> Option<(RegionId, Option<&'static str>)> {
        Some((self.config.wishes.plan.as_ref()?.neighbour()?, self.waits_for()))
    }

    /// What a plan of the region waits for.
    fn waits_for(&self) -> Option<&'static str> {
        let is_kept_otherwise = self.peers().any(|peer| !peer.keeps_copy_as(self.options.backups));
        let departs = self.config.primary.is_some_and(|me| self.departing.contains_key(&me.server));
        if !self.config.learners.is_empty() {
            Some("a copy is being built")
        } else if !self.is_settled() {
            Some("a member is not in sync, or its group is changing")
        } else if is_kept_otherwise {
            Some("a backup does not keep its copy as the table says yet")
        } else if departs || self.heir().is_some() {
            Some("its primary is to be another first")
        } else {
            None
        }
    }

    /// Proposes that more than its own may be found in the region from now on: see [`GroupConfig::holding_more`].
    pub fn hold_more(&mut self) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(self.config.holding_more()));
    }

    /// Proposes that this region has the keys of `taken` too, and that that one is no more: see [`GroupConfig::merged_with`]. This one
    /// goes on meanwhile: it has the same members in both configurations, and of the keys of both nobody has any but its own until it
    /// is known what came of it.
    pub fn take_in(&mut self, taken: GroupConfig) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        let wider = Box::new(self.config.merged_with(&taken));
        self.actions.push(PrimaryAction::Merge { wider, taken: Box::new(taken) });
    }

    /// Another proposes that this region is no more: until it is known what came of that, it proposes nothing itself.
    pub fn be_taken_in(&mut self) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
    }

    /// Proposes the same configuration under an epoch that was not used yet.
    pub fn renew(&mut self) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(self.config.renewed()));
    }

    /// Proposes that this region becomes `left`, and that the one of `right` is made: see [`GroupConfig::divided`]. From here on
    /// nothing may be answered until it is known what came of it.
    pub fn divide(&mut self, left: GroupConfig, right: GroupConfig) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Divide { left: Box::new(left), right: Box::new(right) });
    }
}

#[cfg(test)]
#[path = "division_tests.rs"]
mod tests;
