//! How much one compaction takes: of the most urgent level a part that the device has room for.
//!
//! While the file grows there is always room. At a declared capacity, or on a full device, each compaction is estimated
//! from above ([`Picker::need`]), and gets smaller until it fits:
//!
//! 1. fewer L0s, which become a run of their own; fewer leaf segments, down to one; never a whole level;
//! 2. of several runs only the oldest, so that no guard is needed;
//! 3. a leaf segment that does not fit with what it overlaps is *cut* in two, so that the first part does
//!    ([`room::cut_instead`]).
//!
//! Meanwhile levels are merged from the deepest one up, one at a time, because only the last one gives room back. So a
//! level is merged into an empty one, up to the last merge, and at most one segment is cut at any time.
//!
//! If nothing fits while others are under way, it waits for what they give back. Otherwise the smallest part is tried,
//! because the estimate is an upper bound.

use super::picture::{LevelPicture, Picture};
use super::{L0s, Picker};
use crate::compaction::claims::What;
use crate::compaction::runs::{self, NewRun, Part};
use crate::compaction::{CompactionDone, CutLeaf, Source, room};
use crate::volume::{CompactionRoom, LEAST_MERGE};
use leeward_format::UnixMs;
use leeward_format::cluster::CompactionMode;
use leeward_format::manifest::{L1, L1_RUNS, MAX_LEVELS, PIECES};
use leeward_platform::planted::{Bug, planted};
use std::ops::Range;

/// Most leaf segments of a level that one compaction takes.
pub(super) const MAX_INPUT_SEGMENTS: usize = 4;
/// Leaf segments of runs that one compaction takes at least: those between two guards.
pub(super) const LEAST_RUN_SEGMENTS: usize = 1;
/// How often a part is tried that may not fit.
const TRY_EVERY_MS: u64 = 250;

/// What is known of the room for the compaction that is being picked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Segments that it may take.
    pub(super) segments: u32,
    /// Only the reserve is left.
    pub(super) is_short: bool,
    /// Others miss what the file has given up.
    pub(super) is_room_missed: bool,
    /// L0s become runs and levels are merged part by part, whatever the table says.
    pub(super) by_parts: bool,
    /// Something waits for what other compactions give back.
    pub(super) is_awaited: bool,
    /// What may not fit may be tried.
    may_try: bool,
    /// There is something to do that did not fit.
    is_too_small: bool,
    pub(super) now: UnixMs,
}

impl Default for Room {
    fn default() -> Self {
        let room = CompactionRoom { segments: u32::MAX, is_short: false, is_room_missed: false };
        Room::new(room, false, UnixMs(0))
    }
}

impl Room {
    fn new(room: CompactionRoom, is_awaited: bool, now: UnixMs) -> Room {
        let CompactionRoom { segments, is_short, is_room_missed } = room;
        let by_parts = is_short;
        Room { segments, is_short, is_room_missed, by_parts, is_awaited, may_try: true, is_too_small: false, now }
    }

    /// The deepest level that is not merged, which alone gives room back, had its turn: others leave it enough.
    pub(super) fn leave_least(&mut self) {
        if self.is_short {
            self.segments = self.segments.saturating_sub(LEAST_MERGE);
            self.may_try = false;
        }
    }
}

impl Picker {
    pub(super) fn look_at_room(&mut self, picture: &Picture<'_>) {
        let room = picture.room;
        // The other lanes' picks do not end the wait of one; an install does.
        let is_awaited = self.room.is_awaited && room.segments < u32::MAX;
        self.room = Room::new(room, is_awaited, picture.now);
    }

    /// Nothing fits into the room besides the reserve: from now on this pick may take that too. `false` if it did.
    pub(super) fn take_reserve(&mut self, picture: &Picture<'_>) -> bool {
        if self.room.is_short || !self.room.is_too_small {
            return false;
        }
        let Room { is_awaited, now, .. } = self.room;
        self.room = Room::new(picture.room_with_reserve, is_awaited, now);
        true
    }

    /// A compaction was installed: what it took is there again.
    pub(super) fn end_wait(&mut self, done: &CompactionDone) {
        self.room.is_awaited = false;
        self.tried = None;
        if let Some(CutLeaf { level, from, whole }) = &done.cut {
            // Its first part is next.
            self.resume_at(*level, from.clone());
            self.progress.uncut = *whole;
        }
    }

    /// Whether something waits for what other compactions give back.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.room.is_awaited
    }

    /// How levels are merged now.
    pub(super) fn mode(&self) -> CompactionMode {
        if self.room.by_parts { CompactionMode::Partial } else { self.mode }
    }

    /// Segments that a compaction takes before it gives any back, estimated from above. Memory only.
    pub(super) fn need(&self, picture: &Picture<'_>, source: &Source) -> u32 {
        let (segment_bytes, target) = (picture.segment_bytes, picture.level(source.target()));
        // What the last level has was perhaps merged while room was short, and has medium values in runs as well.
        let ends = |range: Range<usize>| self.moved_bytes(target, &range);
        let own = |from: &[(usize, Range<usize>)]| {
            from.iter().map(|(at, range)| self.moved_bytes(picture.level(*at), range)).sum::<u64>()
        };
        let bytes = match source {
            Source::L0s { count, .. } => {
                picture.l0s[..*count].iter().map(|l0| l0.bytes).sum::<u64>() + ends(0..target.leaf_segments())
            }
            Source::Pieces { from, .. } => own(from),
            Source::Segments { from, .. } => own(from) + ends(self.overlap(picture, from, target)),
            Source::Cut { .. } => unreachable!("no pick asks for it"),
            // Its share of the room was taken into account when it was chosen.
            Source::Rewrite { most, .. } => return (2 * *most as u32).min(self.room.segments),
            Source::Sorted { .. } => 0,
        };
        u32::try_from(room::written(bytes, target, segment_bytes).div_ceil(segment_bytes)).unwrap_or(u32::MAX)
    }

    /// Bytes of leaf segments once they are merged.
    fn moved_bytes(&self, level: &dyn LevelPicture, range: &Range<usize>) -> u64 {
        match self.room.is_short {
            true => room::bytes_of(level, range.clone()),
            false => room::placed_bytes(level, range),
        }
    }

    /// The leaf segments of `target` that these may overlap, as far as their keys are in memory.
    fn overlap(
        &self,
        picture: &Picture<'_>,
        from: &[(usize, Range<usize>)],
        target: &dyn LevelPicture,
    ) -> Range<usize> {
        let all = target.leaf_segments();
        if target.is_empty() || self.mode() == CompactionMode::WholeLevel {
            return 0..all;
        }
        let mut overlap = all..0;
        for (at, range) in from {
            let level = picture.level(*at);
            let start = match level.footer(range.start) {
                Some(footer) => target.segment_of(&footer.span.first),
                None => target.segment_of(level.fence(range.start)),
            };
            let end = match level.footer(range.end - 1) {
                Some(footer) => target.segment_of(&footer.span.last) + 1,
                None if range.end < level.leaf_segments() => target.segment_of(level.fence(range.end)) + 1,
                None => all,
            };
            overlap = overlap.start.min(start)..overlap.end.max(end);
        }
        overlap.start.min(overlap.end)..overlap.end
    }

    /// Whether there is room for it, as far as that is known.
    pub(super) fn fits(&self, picture: &Picture<'_>, source: &Source) -> bool {
        self.fits_in(self.room.segments, picture, source)
    }

    /// Whether it takes at most so many segments; `u32::MAX` is any number.
    fn fits_in(&self, segments: u32, picture: &Picture<'_>, source: &Source) -> bool {
        segments == u32::MAX || planted(Bug::MergeWithoutRoom) || self.need(picture, source) <= segments
    }

    /// The smallest part does not fit: `None` if others will give room back, or it was tried a moment ago.
    fn unless_awaited(&mut self, picture: &Picture<'_>, source: Source) -> Option<Source> {
        let Room { segments, now, may_try, .. } = self.room;
        let was_tried = |(most, at): (u32, UnixMs)| segments <= most && now.0.wrapping_sub(at.0) < TRY_EVERY_MS;
        self.room.is_too_small = true;
        if !self.room.is_short || !may_try || picture.is_room_planned || self.tried.is_some_and(was_tried) {
            self.room.is_awaited = true;
            return None;
        }
        let source = self.unless_claimed(source)?;
        self.tried = Some((segments, now));
        Some(source)
    }

    /// L0s into a new run of L1, or merged with its only run: as many as there is room for.
    pub(super) fn pick_l0s(&mut self, picture: &Picture<'_>, l0s: L0s<'_>) -> Option<Source> {
        let all = self.all_l0s(picture, l0s)?;
        // Levels give back what they take; a run of L0s may not. So it leaves enough for a merge.
        let most = match self.room.segments {
            u32::MAX => u32::MAX,
            segments if self.room.is_short => segments.saturating_sub(LEAST_MERGE).min(segments / 2),
            segments => segments,
        };
        if self.fits_in(most, picture, &all) {
            return Some(all);
        }
        self.room.by_parts = true;
        let mut fewer = L0s { least: 1, ..l0s };
        loop {
            let source = self.all_l0s(picture, fewer)?;
            if self.fits_in(most, picture, &source) {
                return Some(source);
            }
            if fewer.all.len() == 1 {
                // Other compactions give back more than they take.
                return if self.can_make_room(picture) { None } else { self.unless_awaited(picture, source) };
            }
            fewer.all = &fewer.all[..fewer.all.len() / 2];
        }
    }

    /// All pieces, into a new run.
    pub(super) fn take_pieces(&self, picture: &Picture<'_>) -> Option<Source> {
        let levels = &picture.levels;
        let from: Vec<_> = runs::pieces(levels).map(|(at, piece)| (at, 0..piece.leaf_segments())).collect();
        let bytes = runs::pieces(levels).map(|(_, piece)| piece.bytes()).sum();
        let run = NewRun::run(levels, picture.segment_bytes, bytes)?;
        self.unless_claimed(Source::Pieces { from, run })
    }

    /// The next part of a level, into the one below; `None` if another compaction has claimed it.
    pub(super) fn take(&mut self, picture: &Picture<'_>, position: usize) -> Option<Source> {
        if position < PIECES {
            return self.take_pieces(picture);
        }
        if self.room.is_short && !self.claims.is_free(What::levels(L1_RUNS..MAX_LEVELS)) {
            // One at a time: what is cut is merged before more is cut.
            return None;
        }
        let (source, next) = if position == L1 && self.has_runs(&picture.levels) {
            let (first, target) = (self.mergeable_runs(), self.below_runs(picture));
            if runs::runs(&picture.levels, first..target).next().is_none() {
                return self.take_newer_runs(picture);
            }
            self.part_of_runs(picture, (first, target))
        } else {
            self.part_of_level(picture, (position, position + 1))
        };
        if !self.fits(picture, &source) {
            return self.unless_awaited(picture, source);
        }
        let source = self.unless_claimed(source)?;
        match &source {
            // The oldest run alone.
            Source::Segments { from, .. } if self.room.by_parts && from.len() == 1 => self.resume_at(from[0].0, next),
            _ => self.resume_at(position, next),
        }
        Some(source)
    }

    /// Key at which the next part of this level begins.
    fn resume_of(&self, position: usize) -> &[u8] {
        self.progress.resume.get(position).map_or(&[], Vec::as_slice)
    }

    fn resume_at(&mut self, position: usize, key: Vec<u8>) {
        if self.progress.resume.len() <= position {
            self.progress.resume.resize(position + 1, Vec::new());
        }
        self.progress.resume[position] = key;
    }

    /// Leaf segments of one level that fit, from where the last part ended; and the key of the next part. Nothing is
    /// between the level and the target.
    fn part_of_level(&mut self, picture: &Picture<'_>, (position, target): (usize, usize)) -> (Source, Vec<u8>) {
        let level = picture.level(position);
        let part = |first: usize, most: usize| {
            let end = first.saturating_add(most).min(level.leaf_segments());
            let next = if end < level.leaf_segments() { level.fence(end).to_vec() } else { Vec::new() };
            let from = vec![(position, first..end)];
            (Source::Segments { from, target, swept: None, is_ranged: false }, next)
        };
        if self.mode() == CompactionMode::WholeLevel {
            let all = part(0, usize::MAX);
            if self.fits(picture, &all.0) {
                return all;
            }
            self.room.by_parts = true;
        }
        let (first, mut most) = (level.segment_of(self.resume_of(position)), MAX_INPUT_SEGMENTS);
        let mut found = part(first, most);
        while !self.fits(picture, &found.0) && most > 1 {
            most /= 2;
            found = part(first, most);
        }
        found
    }

    /// A part of all runs at these positions that fits; otherwise of the oldest, into the target. And the key of the next
    /// part.
    fn part_of_runs(&mut self, picture: &Picture<'_>, (first, target): (usize, usize)) -> (Source, Vec<u8>) {
        let least = if self.mode() == CompactionMode::Partial { LEAST_RUN_SEGMENTS } else { usize::MAX };
        for least in [least, LEAST_RUN_SEGMENTS] {
            let Part { from, next } = runs::part(&picture.levels, first..target, self.resume_of(L1), least);
            let source = Source::Segments { from, target, swept: None, is_ranged: false };
            if self.fits(picture, &source) {
                return (source, next);
            }
        }
        self.room.by_parts = true;
        let oldest = runs::runs(&picture.levels, first..target).last();
        let (oldest, _) = oldest.expect("the caller has found runs");
        self.part_of_level(picture, (oldest, target))
    }
}
