//! L1 as several sorted runs: the position of a new one, the ends of its leaf segments, and the next part to merge.
//!
//! L0s become a new run, and no other run is read for that. Where a two-layer log has deeper levels above its last one,
//! those count as runs in what follows. A run's leaf segments end at *guards*: keys at which the leaf segments of all
//! existing runs end. So between two guards all runs can be merged into L2 without cutting a segment, and each
//! compaction is bounded although runs overlap. Merges go round the key space. A run is gone after one round, the oldest
//! run first. Where there is no guard, more is merged at once.
//!
//! In a two-layer log, small L0s become *pieces* first: small runs, each of a segment or two, in positions before all
//! runs. They are merged into a run once there are enough of them. They end at no guards, and no part has any.
//!
//! Memory only: a segment whose index is not in memory makes no guard.

use super::pick::{LevelPicture, Levels};
use crate::tree::Level;
use bytes::Bytes;
use leeward_format::SegmentNo;
use leeward_format::manifest::{L1, L1_RUNS, PIECES};
use std::ops::Range;
use std::sync::Arc;

/// Fill at which leaf segments of a new run end while there are no guards: later runs may be a little larger.
const FOUNDING_FILL: f64 = 0.75;
/// Guards are skipped where segments between them would be smaller than one part in this many of a full one, or than
/// the smallest that the volume can give.
const LEAST_FILL: u64 = 16;

/// Where leaf segments end.
#[derive(Debug)]
pub(super) struct Ends {
    /// Keys that no segment has together with lower ones; descending.
    pub(super) guards: Vec<Bytes>,
    /// Size, in bytes, at which a segment ends before a guard.
    pub(super) most_bytes: usize,
}

impl Ends {
    /// Segments end only where they are full.
    pub(super) const FULL: Ends = Ends { guards: Vec::new(), most_bytes: usize::MAX };
}

/// The existing runs in these positions.
pub(super) fn runs<'a>(
    levels: &Levels<'a>,
    positions: Range<usize>,
) -> impl Iterator<Item = (usize, &'a dyn LevelPicture)> {
    levels.iter().copied().take(positions.end).enumerate().skip(positions.start).filter(|(_, run)| !run.is_empty())
}

/// The pieces, the newest first.
pub(super) fn pieces<'a>(levels: &Levels<'a>) -> impl Iterator<Item = (usize, &'a dyn LevelPicture)> {
    levels.iter().copied().take(PIECES).enumerate().filter(|(_, piece)| !piece.is_empty())
}

/// Number of runs.
pub(super) fn count(levels: &Levels<'_>) -> usize {
    runs(levels, PIECES..L1_RUNS).count()
}

/// Whether something is in L1 beside its last run: it is several runs then, whatever the table says.
pub(super) fn has_others(levels: &Levels<'_>) -> bool {
    levels.iter().take(L1).any(|run| !run.is_empty())
}

/// A run of L1 that is about to be written.
#[derive(Debug)]
pub(super) struct NewRun {
    pub(super) target: usize,
    /// Positions whose runs are moved to the last of these first; empty if there is one before them.
    pub(super) shift: Range<usize>,
    /// Where leaf segments end.
    pub(super) ends: Ends,
}

impl NewRun {
    /// The single run of L1, which L0s are merged with.
    pub(super) const SINGLE: NewRun = NewRun { target: L1, shift: 0..0, ends: Ends::FULL };

    /// A new run of about `bytes`, newer than all runs.
    pub(super) fn run(levels: &Levels<'_>, segment_bytes: u64, bytes: u64) -> Option<NewRun> {
        NewRun::within(PIECES..L1_RUNS, levels, ends(levels, segment_bytes, bytes))
    }

    /// A new piece, newer than all runs and pieces.
    pub(super) fn piece(levels: &Levels<'_>) -> Option<NewRun> {
        NewRun::within(0..PIECES, levels, Ends::FULL)
    }

    /// `None` if each position is taken.
    fn within(positions: Range<usize>, levels: &Levels<'_>, ends: Ends) -> Option<NewRun> {
        let is_taken = |position: &usize| !levels[*position].is_empty();
        let first = positions.clone().find(is_taken).unwrap_or(positions.end);
        if first > positions.start {
            return Some(NewRun { target: first - 1, shift: 0..0, ends });
        }
        let taken = positions.clone().filter(is_taken).count();
        let target = (positions.end - taken).checked_sub(1).filter(|target| *target >= positions.start)?;
        Some(NewRun { target, shift: positions, ends })
    }

    /// A new run that leaves the position after it free, which is at most `hole`; `None` if there is no such position.
    pub(super) fn above(hole: usize, levels: &Levels<'_>, segment_bytes: u64, bytes: u64) -> Option<NewRun> {
        let first = runs(levels, PIECES..hole).next().map_or(hole, |(position, _)| position);
        let target = first.checked_sub(1).filter(|target| *target >= PIECES)?;
        Some(NewRun { target, shift: 0..0, ends: ends(levels, segment_bytes, bytes) })
    }

    /// The levels before it is written.
    pub(super) fn make_room(&self, levels: &mut [Arc<Level>]) {
        levels[self.shift.clone()].sort_by_key(|run| !run.is_empty());
    }
}

/// Where the leaf segments of a new run of about `bytes` end.
fn ends(levels: &Levels<'_>, segment_bytes: u64, bytes: u64) -> Ends {
    let guards = guards(levels, &(PIECES..L1_RUNS));
    if guards.is_empty() {
        return Ends { guards: Vec::new(), most_bytes: (segment_bytes as f64 * FOUNDING_FILL) as usize };
    }
    let least = (segment_bytes / LEAST_FILL).max(SegmentNo::LEAST_PART_BYTES as u64);
    let most = (bytes / least).max(1) as usize;
    let every = guards.len().div_ceil(most);
    let mut guards: Vec<_> = guards.iter().step_by(every).map(|guard| Bytes::copy_from_slice(guard.key)).collect();
    guards.reverse();
    Ends { guards, most_bytes: segment_bytes as usize }
}

/// A key at which leaf segments of all runs end.
struct Guard<'a> {
    key: &'a [u8],
    /// For each run, the first leaf segment above the key.
    cuts: Vec<usize>,
}

/// All guards of the runs in these positions, ascending. Each run is checked once, because an index in memory may be evicted at any moment.
fn guards<'a>(levels: &Levels<'a>, positions: &Range<usize>) -> Vec<Guard<'a>> {
    let all = || runs(levels, positions.clone());
    let mut keys: Vec<&[u8]> = all().flat_map(|(_, run)| (1..run.leaf_segments()).map(move |i| run.fence(i))).collect();
    keys.sort_unstable();
    keys.dedup();
    let guard = |key| {
        let cuts = all().map(|(_, run)| cut(run, key)).collect::<Option<_>>()?;
        Some(Guard { key, cuts })
    };
    keys.into_iter().filter_map(guard).collect()
}

/// The first leaf segment of `run` above `key`; `None` if a segment is, or may be, on both sides of it.
fn cut(run: &dyn LevelPicture, key: &[u8]) -> Option<usize> {
    let at = run.segment_of(key);
    if run.fence(at) == key {
        return Some(at);
    }
    let footer = run.footer(at)?;
    let span = &footer.span;
    match span.is_below(key) {
        true => Some(at + 1),
        false => (&span.first[..] >= key).then_some(at),
    }
}

/// A part of all runs that can be merged.
pub(super) struct Part {
    /// Positions of runs, the newest first, and of leaf segments of each.
    pub(super) from: Vec<(usize, Range<usize>)>,
    /// Key at which the next part begins; empty: at the start.
    pub(super) next: Vec<u8>,
}

/// The part of the runs in these positions, from `resume` on, or from the guard before it, with at least
/// `least_segments` leaf segments if there are so many. There must be runs.
pub(super) fn part(levels: &Levels<'_>, positions: Range<usize>, resume: &[u8], least_segments: usize) -> Part {
    let guards = guards(levels, &positions);
    // For each run, the first segment behind each bound: its start, each guard, its end.
    let cuts: Vec<(usize, Vec<usize>)> = runs(levels, positions)
        .enumerate()
        .map(|(i, (position, run))| {
            let inner = guards.iter().map(|guard| guard.cuts[i]);
            (position, std::iter::once(0).chain(inner).chain([run.leaf_segments()]).collect())
        })
        .collect();
    let between =
        |first: usize, end: usize| cuts.iter().map(|(_, cuts)| cuts[end].saturating_sub(cuts[first])).sum::<usize>();
    let last = guards.len() + 1;
    let mut first = guards.partition_point(|guard| guard.key <= resume);
    if between(first, last) == 0 {
        first = 0;
    }
    let until = (first + 1..last).find(|until| between(first, *until) >= least_segments).unwrap_or(last);
    let from = cuts.iter().map(|(position, cuts)| (*position, cuts[first]..cuts[until].max(cuts[first])));
    let from = from.filter(|(_, segments)| !segments.is_empty()).collect();
    Part { from, next: guards.get(until - 1).map_or_else(Vec::new, |guard| guard.key.to_vec()) }
}
