//! What is wished of a replica group, and of a server: who should be primary, who should leave, whether a region should be two, or
//! one with its neighbour.
//!
//! Wishes stand where every member and every later primary finds them. Whoever wishes (the master, an operator) only writes them
//! down, by compare-and-set; the group's primary alone brings them about, and its successor goes on where it stopped.

use super::{GroupConfig, Member};
use crate::{Epoch, RegionId, SegmentId, ServerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is wished of a replica group and not yet so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wishes {
    /// Who should be primary, as soon as it is in sync.
    pub primary: Option<ServerId>,
    /// Who should leave, as soon as enough others are in sync.
    pub leaving: Option<ServerId>,
    /// How its keys should be divided among regions.
    pub plan: Option<Plan>,
}

/// How keys should be divided among regions otherwise than they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plan {
    /// The region should become two.
    Split {
        /// First key of the second one; `None`: whatever halves the region when it comes to that.
        at: Option<Bytes>,
        /// Number of the second one. It was given for this alone.
        child: RegionId,
    },
    /// The region should become part of its neighbour.
    Merge {
        /// The neighbour.
        into: RegionId,
    },
}

impl Plan {
    /// The region that there is to be, and is not yet.
    pub fn child(&self) -> Option<RegionId> {
        match self {
            Plan::Split { child, .. } => Some(*child),
            Plan::Merge { .. } => None,
        }
    }
    /// The neighbour that the region is to be part of.
    pub fn neighbour(&self) -> Option<RegionId> {
        match self {
            Plan::Merge { into } => Some(*into),
            Plan::Split { .. } => None,
        }
    }
}

/// What an operator, or the master, wishes of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionWish {
    /// This member is to be the primary.
    Primary(ServerId),
    /// The copy of a member is to be on another server instead; with it goes the office, if it has it.
    Move {
        /// Whose copy.
        from: ServerId,
        /// Where it is to be.
        to: ServerId,
    },
    /// Its members are to stay as they are: what was wished of them and has not come about is forgotten.
    Nothing,
    /// It is to become two.
    Split {
        /// First key of the second one; `None`: one that halves it.
        at: Option<Bytes>,
    },
    /// Its keys are to stay as they are: that it should become two, or part of another, is forgotten, if it has not come about.
    Whole,
    /// It is to become part of a neighbour.
    Merge {
        /// The neighbour.
        into: RegionId,
    },
}

/// Why a server should be a member of no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// For good: others take its places.
    Leave,
    /// It stops, and comes back: its places stay empty for a while.
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
    /// The next configuration, with other wishes.
    #[must_use]
    pub fn wishing(&self, wishes: Wishes) -> GroupConfig {
        GroupConfig { epoch: self.epoch.next(), wishes, ..self.clone() }
    }
    /// The next configuration, in which the backup `heir` has the office that the primary gave up of its own accord: everything that it
    /// acknowledged is durable at all members, it answers nothing any more, and nobody need wait for promises that it was given.
    #[must_use]
    pub fn handed_over(&self, heir: Member) -> GroupConfig {
        let mut next = self.handed_to(heir);
        next.yielded = self.term;
        if next.wishes.primary == Some(heir.server) {
            next.wishes.primary = None;
        }
        next
    }
    /// The two configurations that follow when the region is divided at `key`, above its first key and below its end: of the region
    /// itself, and of `child`, which has the keys from there on, the same members, a term above all that there was, and no wishes:
    /// what was wished of the region was not wished of it. Segments that the region had then have ids below `inherited_below`. Only its
    /// primary may propose this, while the child is in sync wherever the region is, with the same content.
    #[must_use]
    pub fn divided(&self, key: Bytes, child: RegionId, inherited_below: SegmentId) -> (GroupConfig, GroupConfig) {
        let epoch = self.epoch.next();
        let mut left = GroupConfig { epoch, inherited_below, ..self.clone() };
        left.wishes.plan = None;
        let inherited_below = SegmentId::first_of(epoch);
        let right = GroupConfig { region: child, start: key.clone(), term: epoch, inherited_below, ..left.clone() };
        left.end = Some(key);
        (left, GroupConfig { yielded: Epoch(0), wishes: Wishes::default(), floor: None, ..right })
    }
    /// Whether the keys of `other` follow on this region's, or the other way round: the two could be one.
    pub fn is_next_to(&self, other: &GroupConfig) -> bool {
        let follows = |left: &GroupConfig, right: &GroupConfig| left.end.as_ref() == Some(&right.start);
        self.table == other.table && (follows(self, other) || follows(other, self))
    }
    /// The next configuration, in which the region has the keys of `other`, its neighbour, too. Only its primary may propose this,
    /// together with the other region's end: while that answers nothing, and every member of this one has all of it durably.
    #[must_use]
    pub fn merged_with(&self, other: &GroupConfig) -> GroupConfig {
        let mut next = self.renewed();
        // Newer than what anybody knows of either.
        next.epoch = self.epoch.max(other.epoch).next();
        match self.end.as_ref() == Some(&other.start) {
            true => next.end.clone_from(&other.end),
            false => next.start.clone_from(&other.start),
        }
        // Both may have been meant to become part of the other.
        next.wishes.plan.take_if(|plan| plan.neighbour() == Some(other.region));
        next
    }
    /// The next configuration, from which on what is not the region's own may be found in it: whoever is its primary looks for that.
    #[must_use]
    pub fn holding_more(&self) -> GroupConfig {
        GroupConfig { inherited_below: self.inherited_below.max(SegmentId(1)), ..self.renewed() }
    }
    /// The next configuration, with nothing changed but that: for who needs an epoch that was not used yet.
    #[must_use]
    pub fn renewed(&self) -> GroupConfig {
        GroupConfig { epoch: self.epoch.next(), ..self.clone() }
    }
    /// The term whose primary gave it up, so that promises to it are void; `None`: those promises must be waited out.
    pub fn voided(&self) -> Option<Epoch> {
        Some(self.yielded).filter(|term| *term > Epoch(0))
    }
}
