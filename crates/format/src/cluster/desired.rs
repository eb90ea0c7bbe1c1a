//! The desired state of a replica group, and of a server: which member should be primary, which should leave, and whether a
//! region should be split, or merged into its neighbour.
//!
//! The desired state is kept where every member and every later primary finds it. The master, or an operator, only records it, by
//! compare-and-set. The group's primary alone carries it out, and its successor continues where it stopped.

use super::{GroupConfig, Member};
use crate::{Epoch, RegionId, SegmentId, ServerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What was requested of a replica group and has not been reached yet.
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
        /// Number of the second region. It was given for this split alone.
        child: RegionId,
    },
    /// The region should become part of its neighbour.
    Merge {
        /// The neighbour.
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

/// What an operator, or the master, requests of a region.
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
    /// Its members are to stay as they are: requests about its members that were not carried out yet are cancelled.
    KeepMembers,
    /// It is to be split in two.
    Split {
        /// First key of the second region; `None`: a key that halves the region.
        at: Option<Bytes>,
    },
    /// Its bounds are to stay as they are: a request to split it or to merge it is cancelled, if it was not carried out yet.
    KeepBounds,
    /// It is to be merged into a neighbour.
    Merge {
        /// The neighbour.
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
    /// The next configuration, in which the backup `target` has the primary role, which the primary gave up of its own accord.
    /// All that the old primary acknowledged is durable at all members, and it answers nothing any more. No member needs to wait
    /// until the lease grants to it expire.
    #[must_use]
    pub fn handed_over(&self, target: Member) -> GroupConfig {
        let mut next = self.handed_to(target);
        next.relinquished_term = self.term;
        if next.desired.primary == Some(target.server) {
            next.desired.primary = None;
        }
        next
    }
    /// The two configurations that follow when the region is split at `key`, above its first key and below its end: of the region
    /// itself, and of `child`. The child has the keys from `key` on, the same members, and a term above all earlier ones. Its
    /// desired state is empty: what was requested of the region was not requested of the child. Segments that the region has at
    /// the split have ids below `inherited_below`. Only the region's primary may propose this, while the child is in sync at
    /// every member where the region is, with the same content.
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
    /// Whether the keys of `other` follow this region's, or the other way round: the two could be merged.
    pub fn is_next_to(&self, other: &GroupConfig) -> bool {
        let follows = |left: &GroupConfig, right: &GroupConfig| left.end.as_ref() == Some(&right.start);
        self.table == other.table && (follows(self, other) || follows(other, self))
    }
    /// The next configuration of a merge target: the region has the keys of `other`, its neighbour, too. Only its primary may
    /// propose this, together with the removal of the other region, while the other region answers nothing, and every member of
    /// this one has all of its data durably.
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
    /// The next configuration, which says that the region may hold data that is not its own: its primary searches for that data.
    #[must_use]
    pub fn holding_more(&self) -> GroupConfig {
        GroupConfig { inherited_below: self.inherited_below.max(SegmentId(1)), ..self.renewed() }
    }
    /// The next configuration, in which only the epoch changes: for a caller that needs an epoch that was not used yet.
    #[must_use]
    pub fn renewed(&self) -> GroupConfig {
        GroupConfig { epoch: self.epoch.next(), ..self.clone() }
    }
    /// The term that its primary gave up, so that the lease grants in it are released. `None`: a member must wait until those
    /// grants expire.
    pub fn released_term(&self) -> Option<Epoch> {
        Some(self.relinquished_term).filter(|term| *term > Epoch(0))
    }
}
