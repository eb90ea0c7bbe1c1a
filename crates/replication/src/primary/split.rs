//! Splits and merges of a region, as its primary sees them: whether one is possible now, and the proposals for it.
//!
//! Invariants:
//! - A region is split, or merged into its neighbour, only while its group is settled: it has no learner, and every
//!   member is in sync. All of them will be members of both regions.
//! - A pending child belongs to no configuration: its primary brings its peers in sync, and proposes nothing.

use super::{Ops, Primary, PrimaryAction};
use crate::Timing;
use crate::peer::Peer;
use leeward_format::cluster::{GroupConfig, TableOptions};
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;

impl Primary {
    /// The primary of a pending child. `config` is the configuration that the child will have: see [`Primary::new`].
    pub fn pending_child(
        now: Nanos,
        config: GroupConfig,
        options: TableOptions,
        of_node: (Timing, Ops),
        linked: &[ServerId],
    ) -> Primary {
        // Its own configuration is still a proposal. Until that is decided it proposes no other.
        Primary { proposing: true, ..Primary::new(now, config, options, of_node, linked) }
    }

    /// The child was activated: its region exists now.
    pub fn activated(&mut self) {
        self.proposing = false;
    }

    /// The child of a requested split, and the reason if the split is not possible now; `None` if none is requested.
    pub fn planned(&self) -> Option<(RegionId, Option<&'static str>)> {
        Some((self.config.desired.plan.as_ref()?.child()?, self.waits_for()))
    }

    /// The neighbour that this region should be merged into, and the reason if the merge is not possible now; `None` if
    /// none is requested.
    pub fn merging(&self) -> Option<(RegionId, Option<&'static str>)> {
        Some((self.config.desired.plan.as_ref()?.neighbour()?, self.waits_for()))
    }

    /// The reason why a requested split or merge must wait; `None` if it need not.
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

    /// Whether every peer has installed the compactions that were shipped to it. Until then its copy lacks segments of
    /// this one, and a child of this one would be shipped to it.
    pub fn is_installed(&self) -> bool {
        self.peers().all(Peer::has_installed)
    }

    /// Proposes that the region may hold data beyond its own from now on: see [`GroupConfig::holding_more`].
    pub fn hold_more(&mut self) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(self.config.holding_more()));
    }

    /// Proposes that this region, the merge target, takes over the keys of `source`, and that the source ends: see
    /// [`GroupConfig::merged_with`]. The target serves meanwhile: it has the same members in both configurations. Until
    /// the outcome is known, each of the two regions has its own keys only.
    pub fn propose_merge(&mut self, source: GroupConfig) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        let wider = Box::new(self.config.merged_with(&source));
        self.actions.push(PrimaryAction::Merge { wider, source: Box::new(source) });
    }

    /// The merge target proposes that this region, the source, ends. Until the outcome is known, this primary proposes
    /// nothing itself.
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

    /// Proposes that this region becomes `left`, and that the region of `right` is created: see [`GroupConfig::split`].
    /// Nothing may be answered until the outcome is known.
    pub fn split(&mut self, left: GroupConfig, right: GroupConfig) {
        assert!(!self.proposing, "one proposal at a time");
        self.proposing = true;
        self.actions.push(PrimaryAction::Split { left: Box::new(left), right: Box::new(right) });
    }
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
