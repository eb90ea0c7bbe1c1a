//! The splits and merges of a node: how two regions act together. What each does by itself is in
//! [`leeward_region::serving::reshape`].
//!
//! | file | holds |
//! |---|---|
//! | `split` | a region and its child |
//! | `merge` | a merge source and its target |
//!
//! A split and a merge go the same way: a plan in the configuration, a look whether it is possible, a pause, steps, a proposal
//! to the coordinator, its answer. An attempt that fails is given up, and another one comes later.
//!
//! Invariant: a node splits or merges one region at a time. Belongs to the node's thread.

mod merge;
mod split;

use super::Shard;
use leeward_format::RegionId;
use leeward_platform::Nanos;
use leeward_region::serving::Serving;
use leeward_region::serving::reshape::quiesce::Doubt;
use merge::RegionMerge;

/// The split or merge that a node has under way.
#[derive(Default)]
pub(super) struct Reshaping {
    /// The region that last quiesced for a plan.
    region: Option<RegionId>,
    /// The merge of two regions that is under way.
    merging: Option<RegionMerge>,
}

impl Reshaping {
    /// A region quiesces for a plan.
    pub(super) fn began(&mut self, region: RegionId) {
        self.region = Some(region);
    }
}

impl Shard {
    /// Whether no other node can serve any key of a region, whatever the outcome of its primary's proposal.
    pub(in crate::node) fn is_sole_server(&mut self, now: Nanos, region: RegionId) -> bool {
        match self.serving(region).map(|serving| serving.doubt(now)) {
            Some(Doubt::None) => true,
            Some(Doubt::LeaseOf(other)) => self.serving(other).is_some_and(|other| other.primary().holds_lease(now)),
            Some(Doubt::Certain) | None => false,
        }
    }

    /// Regions here whose primary has proposed a transfer, a split or a merge, and does not know the outcome.
    pub(in crate::node) fn undecided(&self) -> impl Iterator<Item = RegionId> {
        self.served().filter(|serving| serving.is_proposed()).map(Serving::id)
    }

    /// Regions that this node serves and that have pairs of other regions. Reads the device: for tests that check a node, not
    /// for the node itself.
    pub(in crate::node) fn with_foreign(&self) -> Vec<RegionId> {
        self.served().filter(|serving| serving.is_open() && serving.has_foreign()).map(Serving::id).collect()
    }

    /// Another region of this node is quiescing for a split or a merge, or has quiesced for it.
    fn is_another_reshaped(&mut self, region: RegionId) -> bool {
        let other = self.reshaping.region.filter(|other| *other != region);
        let is_merging = self.reshaping.merging.as_ref().is_some_and(|merging| merging.attempt().0 != region);
        is_merging || other.and_then(|other| self.serving(other)).is_some_and(|other| other.is_being_reshaped())
    }
}
