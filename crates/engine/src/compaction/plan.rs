//! Plan and result of a compaction: the overlap with the level below, and the leaf segments of the output.

use super::newest::span;
use super::{AddedSegment, Context, Source};
use crate::error::Result;
use crate::memtable::Entry;
use crate::reads::{Reach, Reads};
use crate::tree::{IndexRef, LeafSegment, Level};
use bytes::Bytes;
use leeward_format::cluster::CompactionMode;
use leeward_format::leaf_segment::{Footer, Span};
use leeward_format::range::NO_END;
use leeward_format::record::record_bytes;
use leeward_format::{DecodeError, SegmentId, SegmentName, SegmentNo, Stamp};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Counters of one compaction; see [`super::CompactionDone`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) entries_read: u64,
    pub(super) entries_written: u64,
    pub(super) value_bytes_read: u64,
    pub(super) run_bytes_written: u64,
    pub(super) relocated_bytes: u64,
    /// Bytes of records that were dropped or moved, by segment.
    dead: BTreeMap<SegmentName, u32>,
    /// Bytes behind the last record of a run.
    pub(super) padding: Vec<(SegmentId, u32)>,
}

impl Counters {
    /// An entry does not come out as it went in: if it pointed to a record, that record is dead now.
    #[inline]
    pub(super) fn drop_entry(&mut self, key: &[u8], stamp: Stamp, entry: &Entry<'_>) {
        if let Entry::InLog { pointer, value_bytes } = entry {
            let bytes = record_bytes(key.len(), *value_bytes as usize, stamp.expires) as u32;
            self.drop_bytes(pointer.segment(), bytes);
        }
    }

    /// Counts bytes of a log segment that no entry points to any more, or that none ever did.
    pub(super) fn drop_bytes(&mut self, segment: SegmentName, bytes: u32) {
        let dead = self.dead.entry(segment).or_default();
        *dead = dead.saturating_add(bytes);
    }

    /// For the edit: see [`InstallEdit::dead`](leeward_format::manifest::InstallEdit::dead).
    pub(super) fn dead(&self, context: &Context) -> Result<Vec<(SegmentId, u32)>> {
        let (reads, mut all) = (&context.reads, BTreeMap::<SegmentId, u32>::new());
        let sorted = if let Source::Sorted { sorted, .. } = &context.source { Some(sorted) } else { None };
        for (name, bytes) in &self.dead {
            // Only the ingest itself knows the runs that hold its pairs.
            let id = sorted.and_then(|sorted| sorted.run(reads, *name)).or_else(|| reads.log.segment_id(*name));
            let id = id.ok_or_else(|| {
                let detail = format!("a pointer into {name}, which is no segment of a log that leaves point to");
                reads.damaged(SegmentNo(0), 0, &DecodeError::invalid("leaf", detail))
            })?;
            *all.entry(id).or_default() += bytes;
        }
        let padding = self.padding.iter().chain(sorted.iter().flat_map(|sorted| &sorted.padding));
        padding.for_each(|(id, bytes)| *all.entry(*id).or_default() += bytes);
        Ok(all.into_iter().collect())
    }
}

/// The leaf segments of the target level that are merged with the source.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) below: Range<usize>,
    /// Nothing is merged: the source's segments move down unchanged.
    pub(super) moves: bool,
    /// How far a rewrite has looked for victims: position of the next segment.
    pub(super) swept_to: usize,
}

impl Plan {
    pub(super) fn new(context: &Context, counters: &mut Counters) -> Result<Plan> {
        if let Source::Cut { at, .. } = context.source {
            return Ok(Plan { below: at..at + 1, moves: false, swept_to: 0 });
        }
        let span = match &context.source {
            Source::Cut { .. } | Source::Rewrite { .. } => unreachable!("nothing is merged"),
            Source::L0s { .. } => span(&context.l0s),
            Source::Sorted { sorted, .. } => sorted.span(),
            Source::Segments { .. } | Source::Pieces { .. } => span_of_source(context, counters)?,
        };
        let target = &context.levels[context.source.target()];
        let is_whole = context.mode == CompactionMode::WholeLevel;
        let mut below = match is_whole {
            true => 0..target.segments().len(),
            false => overlap(context, target, &span, counters)?,
        };
        let moves = below.is_empty()
            && match context.source {
                Source::Segments { .. } => !is_whole && may_move(context)?,
                Source::Sorted { .. } => true,
                // Pieces are small: their segments become larger ones.
                Source::L0s { .. } | Source::Pieces { .. } | Source::Rewrite { .. } | Source::Cut { .. } => false,
            };
        if !moves {
            take_small_neighbours(context, target, &mut below);
        }
        Ok(Plan { below, moves, swept_to: 0 })
    }
}

/// Span of the leaf segments that are compacted.
fn span_of_source(context: &Context, counters: &mut Counters) -> Result<Span> {
    let mut all = Span { first: Bytes::from_static(NO_END), last: Bytes::new(), is_open: false };
    for segments in source_segments(context) {
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { continue };
        all.first = all.first.min(read_index(context, first, counters)?.footer().span.first.clone());
        let span = read_index(context, last, counters)?.footer().span.clone();
        if (&span.last, !span.is_open) > (&all.last, !all.is_open) {
            all = Span { first: all.first, ..span };
        }
    }
    Ok(all)
}

/// Whether the source's segments may move down unchanged. The last level has medium values in place, and nothing to
/// hide. So segments that point to medium runs, or have range tombstones, are rewritten on their way there. Segments
/// that overlap each other are always merged.
fn may_move(context: &Context) -> Result<bool> {
    let leaves = moved_leaves(context)?;
    let changes = |leaf: &Output| leaf.footer.medium_bytes > 0 && context.places_medium() || leaf.footer.ranges > 0;
    let overlap = |pair: &[Output]| !pair[0].footer.span.is_below(&pair[1].footer.span.first);
    let stays = leaves.windows(2).any(overlap) || context.is_into_last() && leaves.iter().any(changes);
    Ok(!stays)
}

/// The source's own segments, by their first keys.
fn moved_leaves(context: &Context) -> Result<Vec<Output>> {
    let leaves = source_segments(context).flatten();
    let output =
        |leaf: &Arc<LeafSegment>| Ok(Output { leaf: Arc::clone(leaf), footer: footer_of(&context.reads, leaf)? });
    let mut leaves = leaves.map(output).collect::<Result<Vec<_>>>()?;
    leaves.sort_by(|a, b| a.footer.span.first.cmp(&b.footer.span.first));
    Ok(leaves)
}

/// A segment's index, its bytes counted if they come from the device.
pub(super) fn read_index<'a>(
    context: &Context,
    leaf: &'a LeafSegment,
    counters: &mut Counters,
) -> Result<IndexRef<'a>> {
    match leaf.index(&context.reads, Reach::Memory)? {
        Some(index) => Ok(index),
        None => {
            counters.bytes_read += leaf.tree().bytes() as u64;
            leaf.index_from_device(&context.reads)
        }
    }
}

/// The leaf segments of `target` that share keys with `span`; otherwise the empty range where they would be.
pub(super) fn overlap(context: &Context, target: &Level, span: &Span, counters: &mut Counters) -> Result<Range<usize>> {
    if target.is_empty() {
        return Ok(0..0);
    }
    let (mut start, mut end) = (target.segment_of(&span.first), target.segment_of(&span.last) + 1);
    // The outermost two may end before the first key, or begin behind the last.
    if read_index(context, &target.segments()[start], counters)?.footer().span.is_below(&span.first) {
        start += 1;
    }
    if start < end && span.is_below(&read_index(context, &target.segments()[end - 1], counters)?.footer().span.first) {
        end -= 1;
    }
    Ok(start..end.max(start))
}

/// Includes a neighbour that is less than half full in the merge, so that a level does not fill up with small segments.
/// While room is short, both neighbours that are not full: each merge leaves one such segment.
fn take_small_neighbours(context: &Context, target: &Level, below: &mut Range<usize>) {
    let segment_bytes = context.reads.volume.segment_bytes();
    let is_short = context.shortage.is_some();
    let full = if is_short { segment_bytes / 8 * 7 } else { segment_bytes / 2 };
    let is_small = |leaf: &Arc<LeafSegment>| leaf.end() < full;
    let has_taken = target.segments().get(below.end).is_some_and(is_small);
    below.end += usize::from(has_taken);
    if (!has_taken || is_short) && below.start > 0 && is_small(&target.segments()[below.start - 1]) {
        below.start -= 1;
    }
}

/// A leaf segment that goes into the target level.
#[derive(Clone)]
pub(super) struct Output {
    pub(super) leaf: Arc<LeafSegment>,
    pub(super) footer: Footer,
}

/// All segments that go into the target level.
#[derive(Default)]
pub(super) struct Outputs {
    /// In key order.
    pub(super) leaves: Vec<Output>,
    /// Segments that the edit adds: written leaf segments, and runs.
    pub(super) added: Vec<AddedSegment>,
}

impl Outputs {
    /// The source's own segments: nothing overlaps them below.
    pub(super) fn moved(context: &Context) -> Result<Outputs> {
        if let Source::Sorted { sorted, .. } = &context.source {
            return Ok(Outputs { leaves: sorted.leaves.clone(), added: sorted.added().to_vec() });
        }
        Ok(Outputs { leaves: moved_leaves(context)?, added: Vec::new() })
    }
}

/// The leaf segments that are compacted, by level, the newest first; none for L0s and ingested pairs.
pub(super) fn source_segments(context: &Context) -> impl Iterator<Item = &[Arc<LeafSegment>]> {
    source_ranges(context).iter().map(|(position, range)| &context.levels[*position].segments()[range.clone()])
}

/// By level: its position, and the positions of the segments there.
pub(super) fn source_ranges(context: &Context) -> &[(usize, Range<usize>)] {
    match &context.source {
        Source::Segments { from, .. } | Source::Pieces { from, .. } => from,
        Source::L0s { .. } | Source::Rewrite { .. } | Source::Cut { .. } | Source::Sorted { .. } => &[],
    }
}

pub(super) fn footer_of(reads: &Reads, leaf: &LeafSegment) -> Result<Footer> {
    Ok(leaf.index_from_device(reads)?.footer().clone())
}
