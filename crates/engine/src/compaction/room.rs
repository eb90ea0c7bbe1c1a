//! How much a merge takes before it gives anything back, estimated from above; and where a leaf segment is cut in two, so
//! that the first part fits into the room that there is. Any thread.

use super::pick::LevelPicture;
use super::plan::{Counters, overlap, read_index};
use super::runs::Ends;
use super::{Context, Source};
use crate::error::Result;
use crate::tree::Level;
use bytes::Bytes;
use leeward_format::{SegmentId, SegmentNo};
use std::ops::Range;

/// Bytes of a level's index for each of its leaf segments, about.
const INDEXED_BYTES: u64 = 64;

/// What a merge of so many bytes into `target` takes: its segments are not quite full, the last one is trimmed only once
/// it is written, neighbours that are not full are merged too, and the level has a new index.
pub(super) fn written(bytes: u64, target: &dyn LevelPicture, segment_bytes: u64) -> u64 {
    let gaps = bytes * SegmentNo::LEAST_PART_BYTES as u64 / segment_bytes;
    bytes + gaps + segment_bytes * 5 / 2 + INDEXED_BYTES * target.leaf_segments() as u64
}

/// Bytes of leaf segments.
pub(super) fn bytes_of(level: &dyn LevelPicture, range: Range<usize>) -> u64 {
    range.map(|i| level.leaf_segment_bytes(i)).sum()
}

/// Bytes of leaf segments once they are merged into the last level, where medium values are in place. A segment whose
/// index is not in memory counts as the average of its level.
pub(super) fn placed_bytes(level: &dyn LevelPicture, range: &Range<usize>) -> u64 {
    let all = level.leaf_segments();
    let growth = std::cell::LazyCell::new(|| (level.bytes() as f64 / bytes_of(level, 0..all).max(1) as f64).max(1.0));
    let moved = range.clone().map(|i| match level.footer(i) {
        Some(footer) => level.leaf_segment_bytes(i) + footer.medium_bytes,
        None => (level.leaf_segment_bytes(i) as f64 * *growth) as u64,
    });
    moved.sum()
}

/// What a compaction knows of the room when it is short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shortage {
    /// Bytes that it may take.
    pub(super) bytes: u64,
    /// A leaf segment that cannot be cut.
    pub(super) uncut: Option<SegmentId>,
}

/// The cut of the only leaf segment of a merge, if there is no room for the merge, but for that of its first part. It ends
/// before the leaf segment of the next level with which it does not fit any more; or in the middle, if it overlaps only one.
///
/// # Errors
/// Those of reading the segment's index.
pub(super) fn cut_instead(context: &Context, counters: &mut Counters) -> Result<Option<Source>> {
    let (Some(shortage), Source::Segments { from, target, swept: None, is_ranged: false }) =
        (context.shortage, &context.source)
    else {
        return Ok(None);
    };
    let [(level, range)] = &from[..] else { return Ok(None) };
    let leaf = &context.levels[*level].segments()[range.start];
    if range.len() > 1 || shortage.uncut == Some(leaf.id()) {
        return Ok(None);
    }
    let span = read_index(context, leaf, counters)?.footer().span.clone();
    let target = &context.levels[*target];
    let below = overlap(context, target, &span, counters)?;
    let room = MergeRoom { target, segment_bytes: context.reads.volume.segment_bytes() as u64, bytes: shortage.bytes };
    let ends = room.ends(leaf.end(), &below);
    Ok(ends.map(|ends| Source::Cut { level: *level, at: range.start, ends }))
}

/// Room for a merge into a level.
struct MergeRoom<'a> {
    target: &'a Level,
    segment_bytes: u64,
    bytes: u64,
}

impl MergeRoom<'_> {
    fn fits(&self, bytes: u64) -> bool {
        written(bytes, self.target, self.segment_bytes) <= self.bytes
    }

    /// Where a leaf segment of `own` bytes is cut that overlaps `below`. `None`: it fits, or no part of it would.
    fn ends(&self, own: usize, below: &Range<usize>) -> Option<Ends> {
        let all = bytes_of(self.target, below.clone());
        if self.fits(own as u64 + all) {
            return None;
        }
        // The cut takes a little of the room itself.
        let after = MergeRoom { bytes: self.bytes.saturating_sub(self.segment_bytes), ..*self };
        if below.len() <= 1 {
            return after.fits(own as u64 / 2 + all).then(|| Ends { most_bytes: own / 2, ..Ends::FULL });
        }
        let share = own as u64 / below.len() as u64;
        let first = |count: usize| bytes_of(self.target, below.start..below.start + count) + share * count as u64;
        let most = (1..below.len()).take_while(|count| after.fits(first(*count))).last()?;
        let guards = vec![Bytes::copy_from_slice(self.target.fence(below.start + most))];
        Some(Ends { guards, ..Ends::FULL })
    }
}
