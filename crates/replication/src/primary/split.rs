//! Splits and merges of a region, as its primary sees them: whether one is possible now, and what is proposed then.
//!
//! Invariants:
//! - A region is split, or merged into its neighbour, only while its group is settled: every member counts and is in sync, and
//!   will be a member of both.
//! - A pending child belongs to no configuration: its primary brings its peers in sync, and proposes nothing.

use super::{Primary, PrimaryAction};
use crate::Timing;
use leeward_format::cluster::{GroupConfig, TableOptions};
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;

impl Primary {
    /// The primary of a pending child, in the configuration that the child will have: see [`Primary::new`].
    pub fn pending_child(
        now: Nanos,
        config: GroupConfig,
        options: TableOptions,
        timing: Timing,
        linked: &[ServerId],
    ) -> Primary {
        // Its own configuration is still a proposal. Until that has an outcome it proposes no other.
        Primary { proposing: true, ..Primary::new(now, config, options, timing, linked) }
    }

    /// The child was activated: its region exists now.
    pub fn activated(&mut self) {
        self.proposing = false;
    }

    /// The region that this one should give half of its keys to, and the reason if that is not possible now.
    pub fn planned(&self) -> Option<(RegionId, Option<&'static str>)> {
        Some((self.config.desired.plan.as_ref()?.child()?, self.waits_for()))
    }

    /// The neighbour that this region should be merged into, and the reason if that is not possible now.
    pub fn merging(&self) -> Option<(RegionId, Option<&'static str>)> {
        Some((self.config.desired.plan.as_ref()?.neighbour()?, self.waits_for()))
    }

    /// What a planned split or merge of the region waits for.
    fn waits_for(&self) -> Option<&'static str> {
        let is_kept_otherwise = self.peers().any(|peer| !peer.keeps_copy_as(self.options.backups));
        let departs = self.config.primary.is_some_and(|me| self.departing.contains_key(&me.server));
        if !self.config.learners.is_empty() {
            Some("a copy is being built")
        } else if !self.is_settled() {
            Some("a member is not in sync, or its group is changing")
        } else if is_kept_otherwise {
            Some("a backup does not keep its copy as the table says yet")
        } else if departs || self.transfer_target().is_some() {
            Some("its primary is to be another first")
        } else {
            None
        }
    }

    /// Proposes that the region may hold more than its own data from now on: see [`GroupConfig::holding_more`].
    pub fn hold_more(&mut self) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(self.config.holding_more()));
    }

    /// Proposes that this region, the merge target, has the keys of `source`, the merge source, too, and that the source ends: see
    /// [`GroupConfig::merged_with`]. The target goes on meanwhile: it has the same members in both configurations. Until the
    /// outcome is known, each of the two regions has its own keys only.
    pub fn propose_merge(&mut self, source: GroupConfig) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        let wider = Box::new(self.config.merged_with(&source));
        self.actions.push(PrimaryAction::Merge { wider, source: Box::new(source) });
    }

    /// The merge target proposes that this region ends. Until the outcome is known, this primary proposes nothing itself.
    pub fn be_merged(&mut self) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
    }

    /// Proposes the same configuration under an unused epoch.
    pub fn renew(&mut self) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(self.config.renewed()));
    }

    /// Proposes that this region becomes `left`, and that the region of `right` is created: see [`GroupConfig::split`]. From here
    /// on nothing may be answered until the outcome is known.
    pub fn split(&mut self, left: GroupConfig, right: GroupConfig) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Split { left: Box::new(left), right: Box::new(right) });
    }
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
