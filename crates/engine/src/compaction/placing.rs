//! Placement of the values that pass through a merge (hybrid placement, Anthus 2.4).
//!
//! | pair | from an L0, not into the last level | into the last level | else |
//! |---|---|---|---|
//! | small | in place | in place | as it is |
//! | medium | into a run of the medium log | in place, fetched from its run if it is in one | as it is |
//! | large | its pointer | its pointer | as it is |
//!
//! While room is short, medium values stay in their runs, also in the last level. The next merge there, when there is room,
//! brings them into the leaves.
//!
//! A large value in a *victim*, a segment that is mostly garbage, goes into a run of the large log: that is its garbage
//! collection. An expired pair becomes a tombstone, wherever it was. An entry keeps its LSN when its value moves. So
//! placement changes neither its order relative to newer writes, nor what a snapshot shows.

use super::Context;
use crate::memtable::Entry;
use leeward_format::cluster::{Placement, SizeClass};
use leeward_format::{LogKind, SegmentName, Stamp, UnixMs};
use std::collections::HashSet;
use std::sync::Arc;

/// Decides for one merge.
#[derive(Debug)]
pub(super) struct Placing {
    placement: Placement,
    places_medium: bool,
    victims: Arc<HashSet<SegmentName>>,
    now: UnixMs,
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// It stays as and where it is.
    Stay,
    /// It comes from a log into the leaf.
    InPlace,
    /// It goes into a sorted run of this log.
    Run(LogKind),
    /// It has expired: a tombstone takes its place.
    Expire,
}

impl Placing {
    pub(super) fn new(context: &Context) -> Placing {
        let victims = Arc::clone(&context.victims);
        Placing { placement: context.placement, places_medium: context.places_medium(), victims, now: context.now }
    }

    /// Where the value of an entry goes; its key has `key_bytes` bytes.
    #[inline]
    pub(super) fn of(&self, key_bytes: usize, stamp: Stamp, entry: &Entry<'_>, from_l0: bool) -> Move {
        match entry {
            _ if stamp.is_over(self.now) => Move::Expire,
            Entry::InPlace(value) if from_l0 && !self.places_medium && self.is_medium(key_bytes, value.len()) => {
                Move::Run(LogKind::Medium)
            }
            Entry::InLog { value_bytes, .. }
                if self.places_medium && self.is_medium(key_bytes, *value_bytes as usize) =>
            {
                Move::InPlace
            }
            Entry::InLog { pointer, .. } if !from_l0 && self.victims.contains(&pointer.segment()) => {
                Move::Run(LogKind::Large)
            }
            _ => Move::Stay,
        }
    }

    #[inline]
    pub(super) fn is_medium(&self, key_bytes: usize, value_bytes: usize) -> bool {
        self.placement.class(key_bytes, value_bytes) == SizeClass::Medium
    }
}
