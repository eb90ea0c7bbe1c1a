//! A part of a sweep: rewrites the pointers of leaf segments that point into victims, one segment a step.
//!
//! Only pointers change, so a segment is copied and not built anew: its keys, their order, filter and index stay, and
//! its cached leaves stay cached. Expired pairs move too; merges drop them. A step reads the pointers of a few segments
//! together, because their values lie in the same victims: more values at a time need fewer reads.

use super::merge::keep;
use super::output::{Built, Outbox};
use super::plan::{Counters, Output, Outputs, Plan, footer_of, read_index};
use super::{Context, input};
use crate::error::Result;
use crate::log::{WantedRecord, how_many};
use crate::memory::{Memory, Purpose};
use crate::memtable::Entry;
use crate::reads::Reads;
use crate::tree::LeafSegment;
use bytes::Bytes;
use leeward_format::leaf_segment::{Footer, LeafIndex, readdress};
use leeward_format::node::{Address, BLOCK_BYTES};
use leeward_format::{LogKind, Pointer};
use std::collections::VecDeque;
use std::sync::Arc;

/// Leaf segments that are read together, if there is memory.
const MOST_TOGETHER: usize = 2;
/// Leaf segments that one compaction examines, at most.
const MAX_SEARCHED: usize = 32;

/// Leaf segments of a level, some of which point into victims.
pub(super) struct Relocate {
    level: usize,
    /// Position of the next one to look at, and of the first.
    next: usize,
    first: usize,
    /// How many may still be changed.
    left: usize,
    /// Positions of those that were.
    changed: Vec<usize>,
    outbox: Outbox,
}

/// A leaf segment that points into victims.
struct PointingSegment {
    leaf: Arc<LeafSegment>,
    footer: Footer,
    bytes: Bytes,
    /// The entries that point there, in key order.
    moves: Vec<(Bytes, WantedRecord)>,
    /// Old and new place of each value.
    moved: VecDeque<(Pointer, Pointer)>,
}

/// Memory that it certainly needs, in bytes, besides values and its output. It is no more than other compactions need;
/// otherwise they would always be admitted first.
pub(super) fn memory_bytes(reads: &Reads) -> u64 {
    let segment_bytes = reads.volume.segment_bytes();
    (together(reads.volume.memory(), segment_bytes) * segment_bytes) as u64
}

fn together(memory: &Memory, segment_bytes: usize) -> usize {
    (MOST_TOGETHER * memory.piece(segment_bytes) / segment_bytes).clamp(1, MOST_TOGETHER)
}

impl Relocate {
    /// Changes up to `most` segments of `level` that point into victims, from the segment at `first` on.
    pub(super) fn new(level: usize, first: usize, most: usize) -> Relocate {
        Relocate { level, next: first, first, left: most, changed: Vec::new(), outbox: Outbox::default() }
    }

    /// Writes the next segment; `None` when all are written.
    pub(super) fn step(&mut self, context: &Context, counters: &mut Counters) -> Result<Option<Built>> {
        while self.outbox.is_empty() {
            if !self.examine_next(context, counters)? {
                self.outbox.end_runs(context, counters)?;
                break;
            }
        }
        Ok(self.outbox.pop())
    }

    /// Examines the next segments; `false` if there are no more, or enough were changed.
    fn examine_next(&mut self, context: &Context, counters: &mut Counters) -> Result<bool> {
        let segments = context.levels[self.level].segments();
        if self.left == 0 || self.next >= self.first + MAX_SEARCHED || self.next >= segments.len() {
            return Ok(false);
        }
        let volume = &context.reads.volume;
        let most = together(volume.memory(), volume.segment_bytes()).min(self.left);
        let end = (self.next + most).min(segments.len());
        let mut reading = Vec::new();
        for (position, leaf) in segments.iter().enumerate().take(end).skip(self.next) {
            let index = read_index(context, leaf, counters)?;
            if index.footer().log_bytes > 0 {
                reading.push((position, leaf, index, volume.begin_read(leaf.segment().no(), 0, leaf.end())));
            }
        }
        self.next = end;
        let mut leading = Vec::new();
        for (position, leaf, index, reading) in reading {
            let bytes = Bytes::from(reading.wait()?);
            counters.bytes_read += bytes.len() as u64;
            let moves = moves(context, (leaf, &index), &bytes, counters)?;
            if !moves.is_empty() {
                self.changed.push(position);
                self.left -= 1;
                let (leaf, footer) = (Arc::clone(leaf), index.footer().clone());
                leading.push(PointingSegment { leaf, footer, bytes, moves, moved: VecDeque::new() });
            }
        }
        self.move_values(context, counters, &mut leading)?;
        for leading in leading {
            self.copy(context, counters, leading)?;
        }
        Ok(true)
    }

    /// Appends the values to a run, as many at a time as there is memory for.
    fn move_values(
        &mut self,
        context: &Context,
        counters: &mut Counters,
        leading: &mut [PointingSegment],
    ) -> Result<()> {
        let most = input::ahead_bytes_of(&context.reads);
        let all: Vec<_> =
            leading.iter().enumerate().flat_map(|(i, one)| (0..one.moves.len()).map(move |j| (i, j))).collect();
        let reservation = context.reads.volume.memory().reserve(Purpose::Compactions);
        let mut rest = &all[..];
        while !rest.is_empty() {
            // A value that lies alone takes a read of a block or two.
            let bytes_of = |(i, j): &(usize, usize)| (leading[*i].moves[*j].1.value_bytes as usize).max(BLOCK_BYTES);
            let (batch, beyond) = rest.split_at(how_many(rest, most, bytes_of));
            let wanted: Vec<WantedRecord> = batch.iter().map(|(i, j)| leading[*i].moves[*j].1).collect();
            let fetched = context.reads.log.fetch(&wanted)?;
            counters.value_bytes_read += fetched.bytes_read;
            reservation.set(fetched.bytes_read);
            for ((i, j), value) in batch.iter().zip(&fetched.values) {
                let PointingSegment { moves, moved, .. } = &mut leading[*i];
                let (key, WantedRecord { pointer, stamp, value_bytes, .. }) = &moves[*j];
                counters.drop_entry(key, *stamp, &Entry::InLog { pointer: *pointer, value_bytes: *value_bytes });
                counters.relocated_bytes += value.len() as u64;
                let to = self.outbox.run(context, counters, LogKind::Large, (key, *stamp, value))?;
                let Entry::InLog { pointer: to, .. } = to else { unreachable!("a run is of a log") };
                moved.push_back((*pointer, to));
            }
            rest = beyond;
        }
        Ok(())
    }

    /// Writes a segment with its new pointers.
    fn copy(&mut self, context: &Context, counters: &mut Counters, leading: PointingSegment) -> Result<()> {
        let PointingSegment { leaf, footer, bytes, moves, mut moved } = leading;
        drop(moves);
        let (volume, region) = (&context.reads.volume, context.reads.region);
        let (segment, id) = (volume.allocate_part(region, bytes.len(), context.of_reserve())?, (context.ids)()?);
        let mut copy = volume.memory().pool().take(bytes.len());
        copy.copy_from_slice(&bytes);
        drop(bytes);
        let (own, to) = (context.reads.name(leaf.id(), leaf.segment()), context.reads.name(id, &segment));
        let mut map = |pointer: Pointer| match moved.front() {
            _ if pointer.segment() == own => Some(Pointer::new(to, pointer.offset())),
            Some((old, _)) if *old == pointer => moved.pop_front().map(|(_, new)| new),
            _ => Some(pointer),
        };
        let from = Address { region: leaf.segment().origin(), segment: leaf.id(), offset: 0 };
        let to = Address { region, segment: id, offset: 0 };
        let done = readdress((from, to), &mut copy, &mut map);
        done.map_err(|error| context.reads.damaged(leaf.segment().no(), 0, &error))?;
        assert!(moved.is_empty(), "every entry that was found is met again in its order");
        let memory_bytes = copy.memory_bytes();
        let bytes = volume.memory().reserve(Purpose::Compactions).hold(copy, memory_bytes);
        counters.entries_written += u64::from(footer.entries);
        let (output, built) = keep(context, counters, (id, segment, leaf.overlap()), (bytes, footer), |index| {
            leaf.supersede_all(index.leaves())
        })?;
        self.outbox.leaf(context, counters, output, built)
    }

    /// The result, once all segments that it changed are in `outputs`.
    pub(super) fn done(self, context: &Context, outputs: &mut Outputs) -> Result<Plan> {
        let (Some(first), Some(last)) = (self.changed.first(), self.changed.last()) else {
            return Ok(Plan { below: self.next..self.next, moves: false, swept_to: self.next });
        };
        let below = *first..*last + 1;
        let mut changed = std::mem::take(&mut outputs.leaves).into_iter();
        for position in below.clone() {
            outputs.leaves.push(if self.changed.binary_search(&position).is_ok() {
                changed.next().expect("each that was changed is there")
            } else {
                let leaf = Arc::clone(&context.levels[self.level].segments()[position]);
                Output { footer: footer_of(&context.reads, &leaf)?, leaf }
            });
        }
        Ok(Plan { below, moves: false, swept_to: self.next })
    }
}

/// The entries of a leaf segment with these `bytes` that point into victims.
fn moves(
    context: &Context,
    (leaf, index): (&LeafSegment, &LeafIndex),
    bytes: &Bytes,
    counters: &mut Counters,
) -> Result<Vec<(Bytes, WantedRecord)>> {
    let (mut moves, mut key) = (Vec::new(), Vec::new());
    for place in index.leaves().iter() {
        let (start, end) = (place.offset as usize, (place.offset + place.bytes) as usize);
        let node = leaf.parse_leaf(&context.reads, &bytes.slice(start..end), *place)?;
        counters.entries_read += node.len() as u64;
        for i in 0..node.len() {
            let (stamp, entry) = node.entry(i);
            let Entry::InLog { pointer, value_bytes } = entry else { continue };
            if context.victims.contains(&pointer.segment()) {
                node.key_into(i, &mut key);
                let wanted = WantedRecord { pointer, stamp, key_bytes: key.len() as u32, value_bytes };
                moves.push((Bytes::copy_from_slice(&key), wanted));
            }
        }
    }
    Ok(moves)
}
