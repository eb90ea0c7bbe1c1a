//! Garbage collection of the large log, and its order: when a sweep begins, which segments it empties, and how far it
//! is.
//!
//! A *sweep* chooses victims, the segments with the least live data. Every merge that passes moves values out of them.
//! Merges read and write the leaves anyway, so that is enough while there is not much more garbage than allowed. Beyond
//! that the sweep is *driven*: with the victims that are best by then, it rewrites the pointers of leaf segments that
//! point into them (`relocate`), level by level from the top. Values move into sorted runs, and entries keep their
//! LSNs. A victim is freed, like any segment, by the edit that kills its last record. So no pointer ever leads to a
//! freed segment, nothing competes with writers, and backups need no part in it.
//!
//! Such a sweep also brings values into key order, where scans pay for their being scattered
//! ([`ScanCosts`](crate::reads::ScanCosts)). Its victims are then the oldest segments that hold values in the order of
//! their writes. The values move into sorted runs, as always.
//!
//! The sweep starts from the top: compacted data goes down, so the sweep meets it later or has met it already. If L1
//! has several runs, the sweep merges them into L2, in one round. That reads L2 no more often than it is rewritten
//! anyway.
//!
//! After a split several regions of the volume share segments, and about half of each is live in either region. Such a
//! segment is freed when all of these regions have given it up. So data that is live in any of them is not garbage, and
//! each region counts its part of the rest; then all choose the same victims. If one of these regions is on another
//! volume, or has left this one, its half becomes garbage at once. No writer has made that garbage, so no writer waits
//! for its collection, which is slow.

use super::CompactionDone;
use crate::volume::{Accounts, Complete, Sharing};
use leeward_format::manifest::{L1, RegionState, SegmentKind, SegmentState};
use leeward_format::{LogKind, SegmentId, SegmentName};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// A segment to be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    name: SegmentName,
    /// Live bytes in it, which will be moved.
    live: u32,
    /// Bytes of space that emptying it gains.
    gain: u64,
}

impl Victim {
    /// With so many live bytes; emptying it gains `gain` bytes.
    #[cfg(test)]
    pub(super) fn new(id: SegmentId, live: u32, gain: u64) -> Victim {
        Victim { name: id.name(), live, gain }
    }
}

/// Segments to be emptied.
pub(crate) type Victims = BTreeMap<SegmentId, Victim>;

/// Basis of a region's garbage accounts.
#[derive(Clone, Copy)]
pub(crate) struct Ledger<'a> {
    pub(crate) state: &'a RegionState,
    pub(crate) segment_bytes: usize,
    /// Segments with lower ids existed when the region was last split; 0: it never was.
    pub(crate) inherited_below: SegmentId,
    /// The other regions that share a segment.
    pub(crate) sharing: &'a dyn Fn(&SegmentState) -> Sharing,
}

/// Percent of a region's live bytes that one sweep moves at most: it takes this space before it gives any back.
const MOVED_PERCENT: u64 = 8;
/// Segments of runs that a compaction of a sweep should fill: the last of them is half empty on average.
const RUNS_OF_A_PART: u64 = 8;
/// Leaf segments that such a compaction rewrites, at least and at most.
const MOST_REWRITTEN: (usize, usize) = (2, 32);
/// Live bytes that one sweep may always move, in segments.
const MOVED_SEGMENTS: u64 = 8;
/// [`MOVED_PERCENT`] of a sweep that orders values: the fewer sweeps, the fewer runs a scan meets.
const ORDERED_PERCENT: u64 = 25;
/// Space that such a sweep leaves below the limit, in percent of the live bytes.
const ORDERED_MARGIN_PERCENT: u64 = 4;

/// What a sweep is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// At most so many bytes of garbage.
    Garbage(u64),
    /// Values in key order. Meanwhile the space may be this percentage of the live bytes.
    Order { max_space_percent: u32 },
}

impl<'a> Ledger<'a> {
    /// The accounts of the region.
    pub(crate) fn accounts(self) -> Accounts {
        self.complete().fold(Accounts::default(), |sum, complete| sum.and(complete.accounts(self.inherited_below)))
    }

    fn victim(&self, of: &Complete<'_>) -> Victim {
        let name = of.segment.name(self.state.options.addressing);
        Victim { name, live: of.live, gain: of.dead() / of.holders }
    }

    /// The segments that are complete and that no L0 points to. Only those that existed at the split are shared. Runs of medium values need no collection: they empty
    /// themselves as their levels are merged down.
    fn complete(self) -> impl Iterator<Item = Complete<'a>> {
        let Ledger { state, segment_bytes, inherited_below, sharing } = self;
        state.log_segments(LogKind::Large).filter_map(move |segment| {
            let sharing = if segment.id < inherited_below { sharing(segment) } else { Sharing::default() };
            Complete::of(state, segment, segment_bytes, sharing)
        })
    }
}

/// The segments to empty for `goal`, or as many as one sweep takes. If only `left` segments are free, the moved values
/// must fit into a part of them.
pub(crate) fn choose(ledger: Ledger<'_>, (goal, left): (Goal, u32)) -> Victims {
    match goal {
        Goal::Garbage(goal) => choose_emptiest(ledger, (goal, left)),
        Goal::Order { max_space_percent } => choose_unordered(ledger, u64::from(max_space_percent), left),
    }
}

/// The oldest segments that hold values in the order of their writes, without those that stay when this region gives them
/// up: other regions or checkpoints have them too.
fn choose_unordered(ledger: Ledger<'_>, max_space_percent: u64, left: u32) -> Victims {
    let (accounts, segment_bytes) = (ledger.accounts(), ledger.segment_bytes as u64);
    let limit = max_space_percent.saturating_sub(100 + ORDERED_MARGIN_PERCENT);
    let within_limit = (accounts.live_bytes * limit / 100).saturating_sub(accounts.garbage_bytes());
    let room = (accounts.live_bytes * ORDERED_PERCENT / 100).min(within_limit);
    let mut room = room.min(taken_of(left) * segment_bytes);
    let mut victims = Victims::new();
    let stays = |complete: &Complete<'_>| {
        let mut checkpoints = ledger.state.checkpoints.values();
        complete.holders > 1 || checkpoints.any(|base| base.segment(complete.segment.id).is_some())
    };
    for complete in ledger.complete().filter(|complete| !complete.segment.is_run() && !stays(complete)) {
        if room < u64::from(complete.live) {
            break;
        }
        room -= u64::from(complete.live);
        victims.insert(complete.segment.id, ledger.victim(&complete));
    }
    victims
}

fn choose_emptiest(ledger: Ledger<'_>, (goal, left): (u64, u32)) -> Victims {
    let (accounts, segment_bytes) = (ledger.accounts(), ledger.segment_bytes as u64);
    let mut all: Vec<_> = ledger.complete().collect();
    // A part is full with less than a whole segment.
    all.sort_by_key(|complete| (complete.live_in_all * (segment_bytes / complete.bytes), complete.segment.id));
    let mut garbage = accounts.garbage_bytes();
    let room = (accounts.live_bytes * MOVED_PERCENT / 100).max(MOVED_SEGMENTS * segment_bytes);
    let mut room = room.min(taken_of(left) * segment_bytes);
    let mut victims = Victims::new();
    for complete in all {
        let (victim, live) = (ledger.victim(&complete), u64::from(complete.live));
        if garbage <= goal || room < live || complete.dead() * 20 < complete.bytes {
            break;
        }
        (garbage, room) = (garbage.saturating_sub(victim.gain), room - live);
        victims.insert(complete.segment.id, victim);
    }
    victims
}

/// Of `left` free segments, those that a compaction may take for moved values, or for its other output.
fn taken_of(left: u32) -> u64 {
    u64::from(left / 3).max(1)
}

fn names(victims: &Victims) -> Arc<HashSet<SegmentName>> {
    Arc::new(victims.values().map(|victim| victim.name).collect())
}

/// A sweep, or the time between two.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Number of the sweep: parts of an earlier sweep do not count for it.
    serial: u64,
    victims: Victims,
    names: Arc<HashSet<SegmentName>>,
    level: usize,
    resume: Vec<u8>,
    /// Garbage when it began, in bytes.
    began_with: u64,
    /// Bytes that it should gain.
    expected: u64,
    /// Bytes of values that it should move.
    moving: u64,
    /// Bytes of the segments that values were moved to.
    filled: u64,
    /// Garbage that the last sweep left, if it gained nothing.
    stuck: Option<u64>,
    /// It does not wait for passing merges.
    is_driven: bool,
    /// Hardly any other garbage than that of a split existed.
    is_of_split: bool,
    /// It brings values into key order.
    is_ordering: bool,
}

impl Sweep {
    /// Whether it is time to choose victims: for a sweep that merges may execute, or for one that `is_driven`.
    pub(super) fn is_due(&self, is_driven: bool, accounts: &Accounts, segment_bytes: u64) -> bool {
        let garbage = accounts.garbage_bytes();
        let worth = garbage >= self.stuck.unwrap_or(0) + Accounts::LEAST_SEGMENTS * segment_bytes;
        worth && (self.victims.is_empty() || is_driven && !self.is_driven)
    }

    /// Begins with `victims`; empty if there is nothing to gain.
    pub(super) fn begin(&mut self, victims: Victims, is_driven: bool, is_of_split: bool, accounts: &Accounts) {
        let began_with = accounts.garbage_bytes();
        *self = Sweep {
            serial: self.serial + 1,
            names: names(&victims),
            level: L1,
            resume: Vec::new(),
            began_with,
            expected: victims.values().map(|victim| victim.gain).sum(),
            moving: Sweep::bytes_of(&victims),
            filled: 0,
            stuck: victims.is_empty().then_some(began_with),
            victims,
            is_driven,
            is_of_split,
            is_ordering: false,
        };
    }

    /// Begins to bring the values in `victims` into key order. There is no driven sweep.
    pub(super) fn begin_ordering(&mut self, victims: Victims, accounts: &Accounts) {
        let stuck = self.stuck;
        self.begin(victims, true, false, accounts);
        (self.stuck, self.is_ordering) = (stuck, true);
    }

    /// Leaf segments that one compaction should rewrite of a level with `leaf_segments`, so that it fills several
    /// segments of runs. `left` segments are free.
    pub(super) fn part(&self, leaf_segments: usize, segment_bytes: u64, left: u32) -> usize {
        let wanted = RUNS_OF_A_PART * segment_bytes * leaf_segments as u64 / self.moving.max(1);
        let most = MOST_REWRITTEN.1.min(taken_of(left) as usize);
        (wanted as usize).clamp(MOST_REWRITTEN.0.min(most), most)
    }

    /// Whether it brings values into key order.
    pub(super) fn is_ordering(&self) -> bool {
        self.is_ordering
    }

    /// Ends it, whatever it has gained.
    pub(super) fn give_up(&mut self) {
        *self = Sweep { serial: self.serial, stuck: self.stuck, ..Sweep::default() };
    }

    /// Bytes of values that it should move.
    pub(super) fn bytes_of(victims: &Victims) -> u64 {
        victims.values().map(|victim| u64::from(victim.live)).sum()
    }

    /// Names of the remaining victims.
    pub(super) fn names(&self) -> &Arc<HashSet<SegmentName>> {
        &self.names
    }

    /// Whether there was hardly any garbage except that of a split.
    pub(super) fn is_of_split(&self) -> bool {
        self.is_of_split
    }

    /// Number of the sweep.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Level and key at which it continues, if it is driven.
    pub(super) fn place(&self) -> Option<(usize, &[u8])> {
        (self.is_driven && !self.victims.is_empty()).then_some((self.level, &self.resume[..]))
    }

    /// The level is swept: continues with the next.
    pub(super) fn next_level(&mut self) {
        (self.level, self.resume) = (self.level + 1, Vec::new());
    }

    /// A compaction was installed, and the segments `gone` were freed with it.
    pub(super) fn installed(&mut self, done: &CompactionDone, gone: &[SegmentId]) {
        if done.relocated_bytes > 0 {
            let large = done.added.iter().filter(|(_, kind, ..)| *kind == SegmentKind::Log(LogKind::Large));
            self.filled += large.map(|(_, _, segment, _)| segment.bytes() as u64).sum::<u64>();
        }
        if gone.iter().any(|id| self.victims.contains_key(id)) {
            // Their names may be used again.
            self.victims.retain(|id, _| !gone.contains(id));
            self.names = names(&self.victims);
        }
        let swept = done.swept.as_ref().filter(|swept| (swept.sweep, swept.level) == (self.serial, self.level));
        match swept.map(|swept| &swept.next) {
            Some(Some(next)) => self.resume.clone_from(next),
            Some(None) => self.next_level(),
            None => {}
        }
    }

    /// Ends it if no victim is left. It has gained nothing if the segments that it filled take as much space: large values
    /// leave the end of a segment unused, so that another sweep would choose the same values.
    pub(super) fn end_if_complete(&mut self, accounts: &Accounts, segment_bytes: u64) {
        if (self.expected > 0 || self.is_ordering) && self.victims.is_empty() {
            let gained = (self.expected + self.moving).saturating_sub(self.filled);
            self.end_with(gained, accounts.garbage_bytes(), segment_bytes);
        }
    }

    /// Ends it: every level was swept.
    pub(super) fn end(&mut self, accounts: &Accounts, segment_bytes: u64) {
        let garbage = accounts.garbage_bytes();
        self.end_with(self.began_with.saturating_sub(garbage), garbage, segment_bytes);
    }

    fn end_with(&mut self, gained: u64, garbage: u64, segment_bytes: u64) {
        if self.is_ordering {
            return self.give_up();
        }
        let is_poor = gained < segment_bytes.min(self.expected / 2).max(1) || gained < self.expected / 4;
        *self = Sweep { serial: self.serial, stuck: is_poor.then_some(garbage), ..Sweep::default() };
    }
}
