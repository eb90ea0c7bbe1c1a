//! Range tombstones in a merge: the pairs that they hide of its input, and their way into leaf segments.
//!
//! Tombstones of the upper input lie above those of the lower one and cut them. They go into the leaf segments in the
//! order of their starts among the entries, cut where a segment ends. None goes into the last level, because nothing is
//! left to hide. A lower segment that is covered completely, and points to no log, is dropped without reading its
//! leaves.

use super::merge::Filling;
use super::output::Outbox;
use super::plan::{Counters, Plan, source_ranges};
use super::{Context, Source};
use crate::error::Result;
use crate::tree::{LeafSegment, Level};
use leeward_format::Lsn;
use leeward_format::range::{RangeTombstone, RangeTombstones, after};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The range tombstones of a merge.
#[derive(Default)]
pub(super) struct Ranges {
    upper: RangeTombstones,
    all: RangeTombstones,
    /// Position in `all` of the first that does not end before the current key.
    at: usize,
    /// Those still to be written.
    pending: VecDeque<RangeTombstone>,
}

impl Ranges {
    pub(super) fn new(context: &Context, plan: &Plan) -> Result<Ranges> {
        let upper = match &context.source {
            Source::L0s { .. } => context
                .l0s
                .iter()
                .filter(|l0| l0.has_ranges())
                .fold(RangeTombstones::default(), |older, l0| older.under(&l0.ranges(Lsn(u64::MAX)))),
            Source::Segments { .. } | Source::Pieces { .. } => {
                let mut all = RangeTombstones::default();
                for (position, segments) in source_ranges(context).iter().rev() {
                    all = all.under(&of_segments(context, &context.levels[*position], segments)?);
                }
                all
            }
            Source::Rewrite { .. } | Source::Cut { .. } | Source::Sorted { .. } => RangeTombstones::default(),
        };
        let lower = of_segments(context, &context.levels[context.source.target()], &plan.below)?;
        let all = lower.under(&upper);
        let pending = if context.drops_tombstones() { VecDeque::new() } else { all.as_slice().to_vec().into() };
        Ok(Ranges { upper, all, at: 0, pending })
    }

    /// Whether an entry is hidden by, or only repeats, a range tombstone. Keys come in order.
    #[inline]
    pub(super) fn hide(&mut self, key: &[u8], lsn: Lsn) -> bool {
        !self.all.is_empty() && self.covers_newer(key, lsn)
    }

    fn covers_newer(&mut self, key: &[u8], lsn: Lsn) -> bool {
        let all = self.all.as_slice();
        while all.get(self.at).is_some_and(|range| &range.end[..] <= key) {
            self.at += 1;
        }
        all.get(self.at).is_some_and(|range| &range.start[..] <= key && range.lsn >= lsn)
    }

    /// The segments of `below` that must be read: all but those that are hidden completely and point to no log.
    pub(super) fn unless_hidden(
        &self,
        context: &Context,
        below: &[Arc<LeafSegment>],
        counters: &mut Counters,
    ) -> Result<Vec<Arc<LeafSegment>>> {
        if self.upper.is_empty() {
            return Ok(below.to_vec());
        }
        let mut read = Vec::new();
        for leaf in below {
            let index = leaf.index_from_device(&context.reads)?;
            let footer = index.footer();
            let span = &footer.span;
            if footer.log_bytes == 0 && self.upper.cover(&span.first, &span.last, span.is_open) {
                counters.entries_read += u64::from(footer.entries);
            } else {
                read.push(Arc::clone(leaf));
            }
        }
        Ok(read)
    }

    /// Writes those that begin at or before `key`; without a key, all that are left.
    #[inline]
    pub(super) fn write_until(
        &mut self,
        context: &Context,
        counters: &mut Counters,
        out: (&mut Option<Filling>, &mut Outbox),
        key: Option<&[u8]>,
    ) -> Result<()> {
        if self.pending.is_empty() { Ok(()) } else { self.write_pending(context, counters, out, key) }
    }

    fn write_pending(
        &mut self,
        context: &Context,
        counters: &mut Counters,
        (filling, outbox): (&mut Option<Filling>, &mut Outbox),
        key: Option<&[u8]>,
    ) -> Result<()> {
        while let Some(range) = self.pending.pop_front_if(|range| key.is_none_or(|key| &range.start[..] <= key)) {
            let open = match filling {
                Some(open) => open,
                None => filling.insert(Filling::start(context)?),
            };
            if !open.builder.push_range(&range) {
                let full = filling.take().expect("it was just filled");
                let (output, built) = full.finish(context, counters)?;
                outbox.leaf(context, counters, output, built)?;
                self.pending.push_front(range);
            }
        }
        Ok(())
    }

    /// `full` is not empty and has no room for the pair of `key`: cuts the range tombstone that continues behind it. If
    /// `full` has only range tombstones, the one that covers the key leaves a hole for it, because the pair is newer.
    pub(super) fn cut(&mut self, full: &mut Filling, key: &[u8]) {
        if !full.builder.is_empty() {
            let bound = full.builder.bound_before(key).to_vec();
            if let Some(rest) = full.builder.cut(&bound) {
                self.pending.push_front(rest);
            }
            return;
        }
        let Some(mut rest) = full.builder.cut(key) else { return };
        if let Some(start) = after(key).filter(|start| *start < rest.end) {
            rest.start = start.into();
            self.pending.push_front(rest);
        }
    }

    /// `full` has nothing at or above `bound`: a range tombstone that continues there goes into the next segment.
    pub(super) fn cut_at(&mut self, full: &mut Filling, bound: &[u8]) {
        if let Some(rest) = full.builder.cut(bound) {
            self.pending.push_front(rest);
        }
    }
}

/// The range tombstones of the segments of a level at `positions`.
fn of_segments(context: &Context, level: &Level, positions: &Range<usize>) -> Result<RangeTombstones> {
    let mut all = RangeTombstones::default();
    for i in level.ranged().iter().filter(|i| positions.contains(i)) {
        let index = level.segments()[*i].index_from_device(&context.reads)?;
        index.ranges().as_slice().iter().for_each(|range| all.push(range.clone()));
    }
    Ok(all)
}
