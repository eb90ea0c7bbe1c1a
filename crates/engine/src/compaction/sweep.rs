//! Garbage collection of the large log: when to begin, which segments to empty, and how far it is.
//!
//! A *sweep* chooses victims, the segments with the least that is live in them. Every merge that passes moves values out of
//! them. That is all, as long as there is not much more garbage than there should be: merges read and write the leaves
//! anyway. Beyond that the sweep is *driven*: with the victims that are best by then, it rewrites, level by level from the
//! top, the pointers of leaf segments that lead there (`relocate`): values move into sorted runs, and entries keep their LSNs. A victim is given back with the edit that kills its last record, like any
//! segment; so no pointer ever leads to a segment that is gone, nothing competes with writers, and backups need to know
//! nothing of it.
//!
//! From the top: what is compacted during a sweep goes down, and is met by it or was already. The runs of L1, where there are
//! several, are merged into L2 once round, which reads that no more often than it is rewritten anyway.

use super::Swept;
use leeward_format::manifest::{L1, RegionState, SegmentState};
use leeward_format::{LogKind, SegmentId, SegmentName};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// What the complete segments of a region's large log take of the volume, and what of it is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Bytes of whole segments.
    pub space_bytes: u64,
    /// Bytes of records that leaves point to.
    pub live_bytes: u64,
}

/// Segments to be emptied: number, and bytes that are live in it.
pub(crate) type Victims = BTreeMap<SegmentId, (SegmentName, u32)>;

/// Percent of a region's live bytes that one sweep moves at most: so much space it takes before it gives any back.
const MOVED_PERCENT: u64 = 8;
/// Segments of runs that a compaction of a sweep should fill: the last of them is half empty.
const RUNS_OF_A_PART: u64 = 8;
/// Leaf segments that it rewrites, at least and at most.
const MOST_REWRITTEN: (usize, usize) = (2, 32);
/// Segments' worth of live bytes that one sweep may always move.
const MOVED_SEGMENTS: u64 = 8;

impl Accounts {
    /// Segments of garbage that are not worth a sweep; after one that gained nothing, of new garbage.
    pub(crate) const LEAST_SEGMENTS: u64 = 4;

    pub(crate) fn of(state: &RegionState, segment_bytes: usize) -> Accounts {
        let mut accounts = Accounts::default();
        for (_, live) in complete(state) {
            accounts.space_bytes += segment_bytes as u64;
            accounts.live_bytes += u64::from(live);
        }
        accounts
    }

    /// Bytes that are not live.
    pub fn garbage_bytes(&self) -> u64 {
        self.space_bytes.saturating_sub(self.live_bytes)
    }

    /// Whether more than `percent` of the space is garbage.
    pub(crate) fn is_over(&self, percent: u32) -> bool {
        self.garbage_bytes() * 100 > self.space_bytes * u64::from(percent)
    }

    /// Whether the space is more than `percent` of what is live.
    pub(crate) fn is_beyond(&self, percent: u32) -> bool {
        self.space_bytes * 100 > self.live_bytes * u64::from(percent)
    }
}

/// The segments that nothing will be added to and no L0 points to, and their live bytes. Runs of medium values need no
/// collection: they empty themselves as their levels are merged down.
fn complete(state: &RegionState) -> impl Iterator<Item = (&SegmentState, u32)> {
    let complete = state.log_segments(LogKind::Large).filter(|segment| segment.last_lsn < state.replay_from);
    complete.filter_map(|segment| Some((segment, segment.live_bytes()?)))
}

/// The segments to empty so that no more than `goal` bytes of garbage are left, or as many as one sweep takes; where only so
/// many segments are `left`, no more than some of those can hold.
pub(crate) fn choose(state: &RegionState, segment_bytes: usize, (goal, left): (u64, u32)) -> Victims {
    let accounts = Accounts::of(state, segment_bytes);
    let mut all: Vec<_> = complete(state).collect();
    all.sort_by_key(|(segment, live)| (*live, segment.id));
    let mut garbage = accounts.garbage_bytes();
    let room = (accounts.live_bytes * MOVED_PERCENT / 100).max(MOVED_SEGMENTS * segment_bytes as u64);
    let mut room = room.min(taken_of(left) * segment_bytes as u64);
    let mut victims = Victims::new();
    for (segment, live) in all {
        let gained = (segment_bytes as u64).saturating_sub(u64::from(live));
        if garbage <= goal || room < u64::from(live) || gained * 20 < segment_bytes as u64 {
            break;
        }
        (garbage, room) = (garbage - gained, room - u64::from(live));
        victims.insert(segment.id, (segment.name(state.options.addressing), live));
    }
    victims
}

/// Of so many segments that are left, those that a compaction may take for what it moves, or for what it writes beside that.
fn taken_of(left: u32) -> u64 {
    u64::from(left / 3).max(1)
}

fn names(victims: &Victims) -> Arc<HashSet<SegmentName>> {
    Arc::new(victims.values().map(|(name, _)| *name).collect())
}

/// A sweep, or the time between two.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Which one it is: a part of an earlier one says nothing of it.
    serial: u64,
    victims: Victims,
    names: Arc<HashSet<SegmentName>>,
    level: usize,
    resume: Vec<u8>,
    /// Garbage that there was when it began.
    began_with: u64,
    /// Bytes that it is to gain.
    expected: u64,
    /// Bytes of values that it is to move.
    moving: u64,
    /// Garbage that the last sweep left, if it gained nothing.
    stuck: Option<u64>,
    /// It does not wait for merges that pass.
    is_driven: bool,
}

impl Sweep {
    /// Whether it is time to choose victims: for a sweep that merges may carry out, or for one that `is_driven`.
    pub(super) fn is_due(&self, is_driven: bool, accounts: &Accounts, segment_bytes: u64) -> bool {
        let garbage = accounts.garbage_bytes();
        let worth = garbage >= self.stuck.unwrap_or(0) + Accounts::LEAST_SEGMENTS * segment_bytes;
        worth && (self.victims.is_empty() || is_driven && !self.is_driven)
    }

    /// Begins with `victims`, which are none if there is nothing to gain.
    pub(super) fn begin(&mut self, victims: Victims, is_driven: bool, accounts: &Accounts, segment_bytes: u64) {
        let began_with = accounts.garbage_bytes();
        let stuck = victims.is_empty().then_some(began_with);
        let moving = victims.values().map(|(_, live)| u64::from(*live)).sum();
        let expected = (victims.len() as u64 * segment_bytes).saturating_sub(moving);
        let (names, serial) = (names(&victims), self.serial + 1);
        let (level, resume) = (L1, Vec::new());
        *self = Sweep { serial, victims, names, level, resume, began_with, expected, moving, stuck, is_driven };
    }

    /// Leaf segments that one compaction should rewrite of a level with so many, so that it fills several segments of runs,
    /// where so many segments are `left`.
    pub(super) fn part(&self, leaf_segments: usize, segment_bytes: u64, left: u32) -> usize {
        let wanted = RUNS_OF_A_PART * segment_bytes * leaf_segments as u64 / self.moving.max(1);
        let most = MOST_REWRITTEN.1.min(taken_of(left) as usize);
        (wanted as usize).clamp(MOST_REWRITTEN.0.min(most), most)
    }

    /// Numbers of the victims that are live.
    pub(super) fn names(&self) -> &Arc<HashSet<SegmentName>> {
        &self.names
    }

    /// Which one it is.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Where it goes on, if one is driven: level and key.
    pub(super) fn place(&self) -> Option<(usize, &[u8])> {
        (self.is_driven && !self.victims.is_empty()).then_some((self.level, &self.resume[..]))
    }

    /// Nothing is left of a level from its place on.
    pub(super) fn next_level(&mut self) {
        (self.level, self.resume) = (self.level + 1, Vec::new());
    }

    /// A compaction was installed, and `gone` were given back with it.
    pub(super) fn installed(&mut self, swept: Option<&Swept>, gone: &[SegmentId]) {
        if gone.iter().any(|id| self.victims.contains_key(id)) {
            // Their names may be used again.
            self.victims.retain(|id, _| !gone.contains(id));
            self.names = names(&self.victims);
        }
        let swept = swept.filter(|swept| (swept.sweep, swept.level) == (self.serial, self.level));
        match swept.map(|swept| &swept.next) {
            Some(Some(next)) => self.resume.clone_from(next),
            Some(None) => self.next_level(),
            None => {}
        }
    }

    /// Ends it: every level was swept, or no victim is left.
    pub(super) fn end(&mut self, accounts: &Accounts, segment_bytes: u64) {
        let garbage = accounts.garbage_bytes();
        let gained = self.began_with.saturating_sub(garbage);
        let is_poor = gained < segment_bytes.min(self.expected / 2).max(1) || gained < self.expected / 4;
        *self = Sweep { serial: self.serial, stuck: is_poor.then_some(garbage), ..Sweep::default() };
    }
}
