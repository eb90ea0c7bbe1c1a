//! What is wished of a replica group, and of a server: who should be primary, who should leave.
//!
//! Wishes stand where every member and every later primary finds them. Whoever wishes (the master, an operator) only writes them
//! down, by compare-and-set; the group's primary alone brings them about, and its successor goes on where it stopped.

use super::{GroupConfig, Member};
use crate::{Epoch, ServerId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is wished of a replica group and not yet so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wishes {
    /// Who should be primary, as soon as it is in sync.
    pub primary: Option<ServerId>,
    /// Who should leave, as soon as enough others are in sync.
    pub leaving: Option<ServerId>,
}

/// What an operator, or the master, wishes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// All is to stay as it is: what was wished and has not come about is forgotten.
    Nothing,
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
    /// The term whose primary gave it up, so that promises to it are void; `None`: those promises must be waited out.
    pub fn voided(&self) -> Option<Epoch> {
        Some(self.yielded).filter(|term| *term > Epoch(0))
    }
}
