//! The merge of the source and what overlaps it below, into leaf segments and sorted runs, one a step.

use super::input::Run;
use super::newest::{Input, Newest, compare_ends, of_l0s};
use super::output::{Built, Outbox};
use super::overlap::Sample;
use super::placing::{Move, Placing};
use super::plan::{Counters, Output, Plan, source_ranges, source_segments};
use super::ranges::Ranges;
use super::runs::Ends;
use super::{BuiltSegment, Context, Source};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Purpose};
use crate::memtable::{Entry, MemCursor, compare};
use crate::tree::LeafSegment;
use crate::volume::Segment;
use bytes::Bytes;
use leeward_format::leaf_segment::{BuiltLeafSegment, Footer, LeafIndex, LeafSegmentBuilder, readdress};
use leeward_format::manifest::SegmentKind;
use leeward_format::node::{Address, BLOCK_BYTES, Child};
use leeward_format::{Pointer, SegmentId, Stamp};
use leeward_platform::planted::{Bug, planted};
use std::cmp::Ordering;
use std::sync::Arc;

/// The source and what it is merged with; the upper one is newer throughout.
pub(super) struct Merge {
    upper: Upper,
    lower: Run,
    placing: Placing,
    /// See [`Context::drops_tombstones`].
    drop_tombstones: bool,
    out: Out,
}

struct Out {
    ranges: Ranges,
    /// Where leaf segments end: see [`super::runs`].
    guards: Vec<Bytes>,
    most_bytes: usize,
    filling: Option<Filling>,
    outbox: Outbox,
}

enum Upper {
    L0(Newest<MemCursor>),
    Runs(Newest<Run>),
}

impl Upper {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Upper::L0(l0s) => l0s.key(),
            Upper::Runs(runs) => runs.key(),
        }
    }

    #[inline]
    fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        match self {
            Upper::L0(l0s) => l0s.current(),
            Upper::Runs(runs) => runs.current(),
        }
    }

    fn step(&mut self, counters: &mut Counters) -> Result<()> {
        match self {
            Upper::L0(l0s) => l0s.step(counters),
            Upper::Runs(runs) => runs.step(counters),
        }
    }

    /// The value of the current entry, which `placing` moves.
    fn moved(&mut self, placing: &Placing, counters: &mut Counters) -> Result<Bytes> {
        match self {
            Upper::L0(_) => unreachable!("what is in a log and new stays there"),
            Upper::Runs(runs) => runs.moved(placing, counters),
        }
    }
}

/// A leaf segment that is being filled.
pub(super) struct Filling {
    id: SegmentId,
    segment: Arc<Segment>,
    pub(super) builder: LeafSegmentBuilder<Buffer>,
    /// Stays empty unless it is a segment of a new run.
    sample: Sample,
}

impl Merge {
    /// `None` if there is nothing to merge: the source's segments can move down as they are.
    pub(super) fn new(context: &Context, plan: &Plan, counters: &mut Counters) -> Result<Option<Merge>> {
        if plan.moves {
            return Ok(None);
        }
        let target = context.source.target();
        let upper = match &context.source {
            Source::L0s { .. } => {
                for l0 in &context.l0s {
                    counters.entries_read += l0.entries();
                    l0.overwritten(&mut |key, stamp, entry| counters.drop_entry(key, stamp, &entry));
                    l0.unreferenced(&mut |segment, bytes| counters.drop_bytes(segment, bytes));
                }
                Upper::L0(of_l0s(&context.l0s))
            }
            Source::Sorted { .. } | Source::Rewrite { .. } => unreachable!("nothing is merged"),
            Source::Cut { .. } => Upper::Runs(Newest::new(Vec::new())),
            Source::Segments { .. } | Source::Pieces { .. } => {
                let count = source_segments(context).count();
                let run = |leaves| Run::of_several(&context.reads, leaves, count, counters);
                let mut runs = source_segments(context).map(run).collect::<Result<Vec<_>>>()?;
                if planted(Bug::OldestPieceWins) && matches!(context.source, Source::Pieces { .. }) {
                    runs.reverse();
                }
                Upper::Runs(Newest::new(runs))
            }
        };
        let ends = match (&context.source, context.source.new_run()) {
            (Source::Cut { ends, .. }, _) => ends,
            (_, Some(run)) => &run.ends,
            _ => &Ends::FULL,
        };
        let ranges = Ranges::new(context, plan)?;
        let below = &context.levels[target].segments()[plan.below.clone()];
        let below = ranges.unless_hidden(context, below, counters)?;
        let lower = Run::new(&context.reads, &below, counters)?;
        Ok(Some(Merge {
            upper,
            lower,
            placing: Placing::new(context),
            drop_tombstones: context.drops_tombstones(),
            out: Out {
                ranges,
                guards: ends.guards.clone(),
                most_bytes: ends.most_bytes,
                filling: None,
                outbox: Outbox::default(),
            },
        }))
    }

    /// Writes the next segment; `None` when both inputs are at their end.
    pub(super) fn step(&mut self, context: &Context, counters: &mut Counters) -> Result<Option<Built>> {
        while self.out.outbox.is_empty() {
            if !self.take(context, counters)? {
                self.out.finish(context, counters)?;
                break;
            }
        }
        Ok(self.out.outbox.pop())
    }

    /// Takes the next key of the inputs; `false` at their end.
    fn take(&mut self, context: &Context, counters: &mut Counters) -> Result<bool> {
        let order = compare_ends(self.upper.key(), self.lower.key());
        let newest = if order.is_le() { self.upper.current() } else { self.lower.current() };
        let Some((key, stamp, entry)) = newest else { return Ok(false) };
        if order.is_eq()
            && let Some((key, stamp, older)) = self.lower.current()
        {
            counters.drop_entry(key, stamp, &older);
        }
        let from_l0 = order.is_le() && matches!(self.upper, Upper::L0(_));
        let place = self.placing.of(key.len(), stamp, &entry, from_l0);
        if self.out.ranges.hide(key, stamp.lsn)
            || (self.drop_tombstones && (entry == Entry::Tombstone || place == Move::Expire))
        {
            counters.drop_entry(key, stamp, &entry);
        } else {
            counters.entries_written += 1;
            match place {
                Move::Stay => self.out.push(context, counters, &self.placing, (key, stamp, entry))?,
                _ => self.push_moved(context, counters, order, place)?,
            }
        }
        if order.is_le() {
            self.upper.step(counters)?;
        }
        if order.is_ge() {
            self.lower.step(counters)?;
        }
        Ok(true)
    }

    /// Puts the newest of the current entries into the leaf segment, and its value where `place` says.
    fn push_moved(&mut self, context: &Context, counters: &mut Counters, order: Ordering, place: Move) -> Result<()> {
        let in_log = |entry: Option<(&[u8], Stamp, Entry<'_>)>| matches!(entry, Some((.., Entry::InLog { .. })));
        let moved = match (place, order.is_le()) {
            (Move::Expire, _) => None,
            (_, true) if in_log(self.upper.current()) => Some(self.upper.moved(&self.placing, counters)?),
            (_, false) if in_log(self.lower.current()) => Some(self.lower.moved(&self.placing, counters)?),
            _ => None,
        };
        let newest = if order.is_le() { self.upper.current() } else { self.lower.current() };
        let (key, stamp, entry) = newest.expect("the order says which one is there");
        if moved.is_some() || place == Move::Expire {
            counters.drop_entry(key, stamp, &entry);
        }
        if let (Move::Run(_), Some(value)) = (place, &moved) {
            counters.relocated_bytes += value.len() as u64;
        }
        let placed = match (place, &moved, entry) {
            (Move::Expire, ..) => Entry::Tombstone,
            (Move::InPlace, Some(value), _) => Entry::InPlace(value),
            (Move::Run(log), Some(value), _) => self.out.outbox.run(context, counters, log, (key, stamp, value))?,
            (Move::Run(log), None, Entry::InPlace(value)) => {
                self.out.outbox.run(context, counters, log, (key, stamp, value))?
            }
            _ => entry,
        };
        self.out.push(context, counters, &self.placing, (key, stamp, placed))
    }
}

impl Out {
    /// Puts an entry into the leaf segment that is being filled, or the next.
    fn push(
        &mut self,
        context: &Context,
        counters: &mut Counters,
        placing: &Placing,
        (key, stamp, entry): (&[u8], Stamp, Entry<'_>),
    ) -> Result<()> {
        while let Some(guard) = self.guards.pop_if(|guard| compare(guard, key).is_le()) {
            self.ranges.write_until(context, counters, (&mut self.filling, &mut self.outbox), Some(&guard))?;
            if let Some(mut full) = self.filling.take() {
                self.ranges.cut_at(&mut full, &guard);
                self.end(context, counters, full)?;
            }
        }
        loop {
            self.ranges.write_until(context, counters, (&mut self.filling, &mut self.outbox), Some(key))?;
            let filling = match &mut self.filling {
                Some(filling) => filling,
                None => self.filling.insert(Filling::start(context)?),
            };
            let has_room = filling.builder.is_empty() || filling.builder.bytes() < self.most_bytes;
            if has_room && filling.builder.push(key, stamp, entry) {
                if let Entry::InLog { value_bytes, .. } = entry
                    && placing.is_medium(key.len(), value_bytes as usize)
                {
                    filling.builder.count_medium(value_bytes);
                }
                filling.sample.add(context, filling.builder.len() - 1, key, entry);
                return Ok(());
            }
            if filling.builder.is_empty() && filling.builder.has_no_ranges() {
                if filling.segment.bytes() < context.reads.volume.segment_bytes() {
                    self.filling = Some(Filling::start_whole(context)?);
                    continue;
                }
                let segment_bytes = context.reads.volume.segment_bytes();
                return Err(Error::Invalid(format!("a pair is too large for segments of {segment_bytes} bytes")));
            }
            let mut full = self.filling.take().expect("it was just filled");
            self.ranges.cut(&mut full, key);
            self.end(context, counters, full)?;
        }
    }

    /// Ends the output after the last entry.
    fn finish(&mut self, context: &Context, counters: &mut Counters) -> Result<()> {
        self.ranges.write_until(context, counters, (&mut self.filling, &mut self.outbox), None)?;
        if let Some(last) = self.filling.take() {
            self.end(context, counters, last)?;
        }
        self.outbox.end_runs(context, counters)
    }

    /// Writes a leaf segment that takes no more, unless it is empty.
    fn end(&mut self, context: &Context, counters: &mut Counters, full: Filling) -> Result<()> {
        if full.builder.is_empty() && full.builder.has_no_ranges() {
            self.filling = Some(full);
            return Ok(());
        }
        let (output, built) = full.finish(context, counters)?;
        self.outbox.leaf(context, counters, output, built)
    }
}

impl Filling {
    pub(super) fn start(context: &Context) -> Result<Filling> {
        Filling::start_of(context, context.output_bytes)
    }

    /// [`Filling::start`] for a pair that no part has room for.
    fn start_whole(context: &Context) -> Result<Filling> {
        Filling::start_of(context, context.reads.volume.segment_bytes())
    }

    fn start_of(context: &Context, bytes: usize) -> Result<Filling> {
        let region = context.reads.region;
        let segment = context.reads.volume.allocate_part(region, bytes, context.of_reserve())?;
        let id = (context.ids)()?;
        let address = Address { region, segment: id, offset: 0 };
        let (out, name) = (Buffer::new(segment.bytes()), context.reads.name(id, &segment));
        let builder = LeafSegmentBuilder::new(segment.bytes(), address, name, context.codec(), out);
        Ok(Filling { id, segment, builder, sample: Sample::default() })
    }

    /// Writes the segment.
    pub(super) fn finish(self, context: &Context, counters: &mut Counters) -> Result<(Output, BuiltSegment)> {
        let Filling { id, segment, builder, sample } = self;
        let BuiltLeafSegment { mut bytes, footer } = builder.finish();
        let segment =
            if context.shortage.is_some() { into_part(context, id, segment, bytes.filled())? } else { segment };
        let bytes = bytes.hold(context.reads.volume.memory().reserve(Purpose::Compactions));
        let overlap = sample.overlap();
        keep(context, counters, (id, segment, overlap), (bytes, footer), |index| were_kept(context, index))
    }
}

/// Moves a small segment into a part of one that is in use already, if there is such a part: its own stays whole.
fn into_part(context: &Context, id: SegmentId, whole: Arc<Segment>, bytes: &mut [u8]) -> Result<Arc<Segment>> {
    let Some(part) = context.reads.volume.spare_part(context.reads.region, bytes.len(), &whole) else {
        return Ok(whole);
    };
    let (own, to) = (context.reads.name(id, &whole), context.reads.name(id, &part));
    let address = Address { region: context.reads.region, segment: id, offset: 0 };
    let mut map = |pointer: Pointer| match pointer.segment() == own {
        true => Some(Pointer::new(to, pointer.offset())),
        false => Some(pointer),
    };
    readdress((address, address), bytes, &mut map).expect("what was built can be read");
    Ok(part)
}

/// Writes a built leaf segment; older levels have a part of its pairs. Its leaves that `were_kept` before are kept in
/// memory.
pub(super) fn keep(
    context: &Context,
    counters: &mut Counters,
    (id, segment, overlap): (SegmentId, Arc<Segment>, f32),
    (bytes, footer): (Bytes, Footer),
    were_kept: impl FnOnce(&LeafIndex) -> Vec<bool>,
) -> Result<(Output, BuiltSegment)> {
    segment.trim(bytes.len());
    context.write(&segment, &bytes, counters)?;
    let name = context.reads.name(id, &segment);
    let tree =
        Child { pointer: Pointer::new(name, footer.tree_at), blocks: (footer.index_bytes() / BLOCK_BYTES) as u32 };
    let leaf = LeafSegment::new(&context.reads, id, Arc::clone(&segment), tree).with_overlap(overlap);
    // A copy: a slice would keep all of the segment in memory.
    let index = context.reads.volume.memory().pool().copy(&bytes[footer.tree_at as usize..]);
    let address = Address { region: context.reads.region, segment: id, offset: footer.tree_at };
    let index = LeafIndex::parse(&index, address, name).expect("what was built can be read");
    leaf.keep_leaves(&index, &bytes, &were_kept(&index));
    leaf.keep_index(Arc::new(index));
    let built = BuiltSegment { id, kind: SegmentKind::Leaf, segment, bytes };
    Ok((Output { leaf: Arc::new(leaf), footer }, built))
}

/// For each leaf of a new segment: whether the cache has a leaf that it replaces, of the source or of the target.
fn were_kept(context: &Context, index: &LeafIndex) -> Vec<bool> {
    let mut were_kept = vec![false; index.leaves().len()];
    let span = &index.footer().span;
    let target = context.source.target();
    let all = 0..context.levels[target].segments().len();
    for (position, merged) in source_ranges(context).iter().cloned().chain([(target, all)]) {
        let level = &context.levels[position];
        if merged.is_empty() {
            continue;
        }
        let first = level.segment_of(&span.first).max(merged.start);
        let end = (level.segment_of(&span.last) + 1).min(merged.end);
        for segment in level.segments().get(first..end).unwrap_or_default() {
            segment.supersede_leaves(&mut |first, last| {
                if *last >= span.first[..] && !span.is_below(first) {
                    were_kept[index.leaf_of(first)..=index.leaf_of(last)].fill(true);
                }
            });
        }
    }
    were_kept
}
