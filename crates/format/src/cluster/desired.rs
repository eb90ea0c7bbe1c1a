//! The desired state of a replica group, and of a server: which member should be primary, which should leave, and
//! whether a region should be split, or merged into its neighbour.
//!
//! The desired state is part of the configuration, so every member and every later primary finds it. The master or an
//! operator records it by compare-and-set. Only the group's primary executes it, and its successor continues.

use super::{GroupConfig, Member};
use crate::{Epoch, RegionId, SegmentId, ServerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The requests to a replica group that are not executed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredState {
    /// The server that should be primary, as soon as it is in sync.
    pub primary: Option<ServerId>,
    /// The server that should leave, as soon as enough others are in sync.
    pub leaving: Option<ServerId>,
    /// How its keys should be split among regions.
    pub plan: Option<Plan>,
}

/// A change to how keys are split among regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plan {
    /// The region should become two.
    Split {
        /// First key of the second region; `None`: a key that halves the region at the time of the split.
        at: Option<Bytes>,
        /// Number of the second region, given for this split alone.
        child: RegionId,
    },
    /// The region should become part of its neighbour.
    Merge {
        /// Keeps its number, while the region with the plan ends.
        into: RegionId,
    },
}

impl Plan {
    /// The child region that does not exist yet.
    pub fn child(&self) -> Option<RegionId> {
        match self {
            Plan::Split { child, .. } => Some(*child),
            Plan::Merge { .. } => None,
        }
    }
    /// The merge target: the neighbour that the region is to become part of.
    pub fn neighbour(&self) -> Option<RegionId> {
        match self {
            Plan::Merge { into } => Some(*into),
            Plan::Split { .. } => None,
        }
    }
}

/// A request of an operator or of the master to a region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RegionRequest {
    /// This member is to be the primary.
    Primary(ServerId),
    /// A member's copy is to move to another server. If the member is primary, the primary role moves with the copy.
    Move {
        /// The server that has the copy.
        from: ServerId,
        /// The server that is to have it.
        to: ServerId,
    },
    /// Cancels requests about its members that were not executed yet.
    KeepMembers,
    /// It is to be split in two.
    Split {
        /// First key of the second region; `None`: a key that halves the region.
        at: Option<Bytes>,
    },
    /// Cancels a request to split or merge it that was not executed yet.
    KeepBounds,
    /// It is to be merged into a neighbour.
    Merge {
        /// Keeps its number, while the region that is asked ends.
        into: RegionId,
    },
}

/// Why a server should be a member of no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// It leaves for good: other servers replace it in its groups.
    Leave,
    /// It stops, and comes back: its groups do not replace it for a while.
    Restart,
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Intent::Leave => "leaves",
            Intent::Restart => "restarts",
        })
    }
}

impl GroupConfig {
    /// The next configuration, with another desired state.
    #[must_use]
    pub fn with_desired(&self, desired: DesiredState) -> GroupConfig {
        GroupConfig { epoch: self.epoch.next(), desired, ..self.clone() }
    }
    /// The next configuration of a planned transfer: the backup `target` becomes primary. The old primary answers
    /// nothing any more, and everything that it acknowledged is durable at all members. So no member waits until its
    /// lease grants to the old primary expire.
    #[must_use]
    pub fn handed_over(&self, target: Member) -> GroupConfig {
        let mut next = self.handed_to(target);
        next.relinquished_term = self.term;
        if next.desired.primary == Some(target.server) {
            next.desired.primary = None;
        }
        next
    }
    /// The next configurations after a split at `key`, which is above the region's first key and below its end: that of
    /// the region, and that of `child`. The child has the keys from `key` on, the same members, and a term above all
    /// earlier ones. Its desired state is empty. Segments that the region has at the split have ids below
    /// `inherited_below`. Only the region's primary may propose this, while the child is in sync with the same content
    /// at every member of the region.
    #[must_use]
    pub fn split(&self, key: Bytes, child: RegionId, inherited_below: SegmentId) -> (GroupConfig, GroupConfig) {
        let epoch = self.epoch.next();
        let mut left = GroupConfig { epoch, inherited_below, ..self.clone() };
        left.desired.plan = None;
        let inherited_below = SegmentId::first_of(epoch);
        let right = GroupConfig { region: child, start: key.clone(), term: epoch, inherited_below, ..left.clone() };
        left.end = Some(key);
        (left, GroupConfig { relinquished_term: Epoch(0), desired: DesiredState::default(), floor: None, ..right })
    }
    /// Whether the two regions are neighbours in one table, so that they could be merged.
    pub fn is_next_to(&self, other: &GroupConfig) -> bool {
        let follows = |left: &GroupConfig, right: &GroupConfig| left.end.as_ref() == Some(&right.start);
        self.table == other.table && (follows(self, other) || follows(other, self))
    }
    /// The next configuration of a merge target: the region also has the keys of `other`, its neighbour. Only its
    /// primary may propose this, together with the removal of the other region. Meanwhile the other region answers
    /// nothing, and every member of this region has all of the other's data durably.
    #[must_use]
    pub fn merged_with(&self, other: &GroupConfig) -> GroupConfig {
        let mut next = self.renewed();
        // Newer than any known configuration of either.
        next.epoch = self.epoch.max(other.epoch).next();
        match self.end.as_ref() == Some(&other.start) {
            true => next.end.clone_from(&other.end),
            false => next.start.clone_from(&other.start),
        }
        // Each may have been requested to merge into the other.
        next.desired.plan.take_if(|plan| plan.neighbour() == Some(other.region));
        next
    }
    /// The next configuration, which says that the region may hold data that is not its own. Its primary searches for
    /// such data.
    #[must_use]
    pub fn holding_more(&self) -> GroupConfig {
        GroupConfig { inherited_below: self.inherited_below.max(SegmentId(1)), ..self.renewed() }
    }
    /// The next configuration, in which only the epoch changes, for a caller that needs an unused epoch.
    #[must_use]
    pub fn renewed(&self) -> GroupConfig {
        GroupConfig { epoch: self.epoch.next(), ..self.clone() }
    }
    /// The term that its primary gave up by itself, which releases the lease grants in it. `None`: a member must wait
    /// until those grants expire.
    pub fn released_term(&self) -> Option<Epoch> {
        Some(self.relinquished_term).filter(|term| *term > Epoch(0))
    }
}
