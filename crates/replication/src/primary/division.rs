//! A region that should become two, as its primary sees it: whether it can be divided now, and what is proposed then.
//!
//! Invariants:
//! - It is divided only while nothing of the group is unsettled: every member counts and is in sync, and will be a member of both.
//! - A child that is not born yet belongs to no configuration: its primary brings its peers in sync, and proposes nothing.

use super::{Primary, PrimaryAction};
use crate::Timing;
use leeward_format::cluster::{GroupConfig, Plan, TableOptions};
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
        let Plan::Split { child, .. } = self.config.wishes.plan.as_ref()?;
        let is_kept_otherwise = self.peers().any(|peer| !peer.keeps_copy_as(self.options.backups));
        let departs = self.config.primary.is_some_and(|me| self.departing.contains_key(&me.server));
        let why = if !self.config.learners.is_empty() {
            Some("a copy is being built")
        } else if !self.is_settled() {
            Some("a member is not in sync, or its group is changing")
        } else if is_kept_otherwise {
            Some("a backup does not keep its copy as the table says yet")
        } else if departs || self.heir().is_some() {
            Some("its primary is to be another first")
        } else {
            None
        };
        Some((*child, why))
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
