//! Merges because of range tombstones: nothing else asks for them, and what they hide takes space until they meet it.
//!
//! A tombstone that hides a whole table costs little: what it hides is not read. One that hides a few pairs rewrites the
//! leaf segments around them, in one level after the other. So these merges have a rate. What writes ask for takes
//! tombstones down as well, and needs none of it.

use super::Picker;
use super::part::{LEAST_RUN_SEGMENTS, MAX_INPUT_SEGMENTS};
use super::picture::Picture;
use crate::compaction::{Source, runs};
use leeward_format::UnixMs;
use leeward_format::manifest::PIECES;

/// Bytes that they may read and write per second.
const RATE: u64 = 4 << 20;
/// Bytes that they may have used beyond that.
const BURST: u64 = 64 << 20;

/// What they have used.
#[derive(Debug, Default)]
pub(super) struct RangedRate {
    /// Bytes beyond the rate, as of `at`.
    used: u64,
    at: UnixMs,
    is_waiting: bool,
}

impl RangedRate {
    /// Whether the next one may begin, as far as the clock can be trusted.
    fn may_begin(&mut self, now: UnixMs) -> bool {
        let since_ms = now.0.saturating_sub(self.at.0);
        self.used = self.used.saturating_sub(since_ms.saturating_mul(RATE) / 1000);
        self.at = now;
        self.is_waiting = self.used > BURST;
        !self.is_waiting
    }

    /// One was installed, which has read and written `bytes`.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// Whether one waits for its time.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting
    }
}

impl Picker {
    /// Leaf segments with range tombstones above the last level: hidden pairs take space until the tombstones reach
    /// them. In a two-layer log, that is when the runs are merged.
    pub(super) fn pick_ranged(&mut self, picture: &Picture<'_>) -> Option<Source> {
        let levels = &picture.levels[..];
        let has_ranges = levels.iter().any(|level| !level.ranged().is_empty());
        if !has_ranges || self.ordering_degree.is_some() {
            self.ranged.is_waiting = false;
            return None;
        }
        if !self.ranged.may_begin(picture.now) && !self.room.is_short {
            return None;
        }
        levels[..picture.last()].iter().enumerate().find_map(|(position, level)| {
            let ranged = level.ranged();
            let first = *ranged.first()?;
            if position < PIECES {
                return self.take_pieces(picture);
            }
            if position < self.below_runs(picture) && self.has_runs(levels) {
                let is_mergeable = position >= self.mergeable_runs();
                return if is_mergeable { self.take_from(picture, level.fence(first)) } else { None };
            }
            let next_to = |(i, at): &(usize, &usize)| **at == first + i;
            let end = first + ranged.iter().take(MAX_INPUT_SEGMENTS).enumerate().take_while(next_to).count();
            let source = Source::Segments {
                from: vec![(position, first..end)],
                target: position + 1,
                swept: None,
                is_ranged: true,
            };
            self.unless_claimed(source)
        })
    }

    /// The part of all runs that begins at `key`.
    fn take_from(&self, picture: &Picture<'_>, key: &[u8]) -> Option<Source> {
        let target = self.below_runs(picture);
        let runs::Part { from, .. } =
            runs::part(&picture.levels, self.mergeable_runs()..target, key, LEAST_RUN_SEGMENTS);
        let source = Source::Segments { from, target, swept: None, is_ranged: true };
        self.unless_claimed(source)
    }
}
