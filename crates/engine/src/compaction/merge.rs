//! The merge: the source and what overlaps it below, into leaf segments, one a step.

use super::input::Run;
use super::l0s::L0s;
use super::plan::{Counters, Output, Plan, source_segments};
use super::{BuiltSegment, Context, Source};
use crate::error::{Error, Result};
use crate::memtable::Entry;
use crate::tree::LeafSegment;
use crate::volume::Segment;
use bytes::Bytes;
use leeward_format::leaf_segment::{BuiltLeafSegment, LeafIndex, LeafSegmentBuilder};
use leeward_format::manifest::SegmentKind;
use leeward_format::node::{Address, BLOCK_BYTES, Child};
use leeward_format::{Lsn, Pointer, SegmentId};
use std::cmp::Ordering;
use std::sync::Arc;

/// Two sorted inputs; the upper one is newer throughout.
pub(super) struct Merge {
    upper: Upper,
    lower: Run,
    /// No level below the target holds anything that a tombstone could hide.
    drop_tombstones: bool,
}

enum Upper {
    L0(L0s),
    Segments(Run),
}

impl Upper {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Upper::L0(l0s) => l0s.key(),
            Upper::Segments(run) => run.key(),
        }
    }

    #[inline]
    fn current(&self) -> Option<(&[u8], Lsn, Entry<'_>)> {
        match self {
            Upper::L0(l0s) => l0s.current(),
            Upper::Segments(run) => run.current(),
        }
    }

    fn step(&mut self, counters: &mut Counters) -> Result<()> {
        match self {
            Upper::L0(l0s) => l0s.step(),
            Upper::Segments(run) => run.step(counters)?,
        }
        Ok(())
    }
}

/// A leaf segment that is being filled.
struct Filling {
    id: SegmentId,
    segment: Arc<Segment>,
    builder: LeafSegmentBuilder,
}

impl Merge {
    /// `None` if there is nothing to merge: the source's segments can move down as they are.
    pub(super) fn new(context: &Context, plan: &Plan, counters: &mut Counters) -> Result<Option<Merge>> {
        let target = context.source.target();
        let upper = match &context.source {
            Source::L0(l0s, _) => {
                counters.entries_read += l0s.iter().map(|l0| l0.entries()).sum::<u64>();
                Upper::L0(L0s::new(l0s))
            }
            Source::Level { .. } if plan.below.is_empty() => return Ok(None),
            Source::Level { .. } => Upper::Segments(Run::new(&context.reads, source_segments(context), counters)?),
        };
        let below = &context.levels[target].segments()[plan.below.clone()];
        let lower = Run::new(&context.reads, below, counters)?;
        let drop_tombstones = context.levels[target + 1..].iter().all(|level| level.is_empty());
        Ok(Some(Merge { upper, lower, drop_tombstones }))
    }

    /// Writes the next leaf segment; `None` when both inputs are at their end.
    pub(super) fn step(
        &mut self,
        context: &Context,
        counters: &mut Counters,
    ) -> Result<Option<(Output, BuiltSegment)>> {
        let mut filling = None;
        loop {
            let order = match (self.upper.key(), self.lower.key()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(upper), Some(lower)) => upper.cmp(lower),
            };
            let next = if order.is_le() { self.upper.current() } else { self.lower.current() };
            let (key, lsn, entry) = next.expect("it has a key");
            if !(self.drop_tombstones && entry == Entry::Tombstone) {
                let filling = match &mut filling {
                    Some(filling) => filling,
                    None => filling.insert(Filling::start(context)?),
                };
                if !filling.builder.push(key, lsn, entry) {
                    if filling.builder.is_empty() {
                        let segment_bytes = context.reads.volume.segment_bytes();
                        return Err(Error::Invalid(format!(
                            "a pair is too large for segments of {segment_bytes} bytes"
                        )));
                    }
                    break;
                }
                counters.entries_written += 1;
            }
            if order.is_le() {
                self.upper.step(counters)?;
            }
            if order.is_ge() {
                self.lower.step(counters)?;
            }
        }
        filling.map(|filling| filling.finish(context, counters)).transpose()
    }
}

impl Filling {
    fn start(context: &Context) -> Result<Filling> {
        let (volume, region) = (&context.reads.volume, context.reads.region);
        let segment = volume.allocate()?;
        let id = (context.ids)();
        let address = Address { region, segment: id, offset: 0 };
        let builder = LeafSegmentBuilder::new(volume.segment_bytes(), address, segment.no());
        Ok(Filling { id, segment, builder })
    }

    /// Writes the segment.
    fn finish(self, context: &Context, counters: &mut Counters) -> Result<(Output, BuiltSegment)> {
        let Filling { id, segment, builder } = self;
        let BuiltLeafSegment { bytes, footer } = builder.finish();
        context.reads.volume.write(segment.no(), 0, &bytes)?;
        counters.bytes_written += bytes.len() as u64;
        let tree = Child {
            pointer: Pointer::new(segment.no(), footer.tree_at),
            blocks: (footer.index_bytes() / BLOCK_BYTES) as u32,
        };
        let leaf = LeafSegment::new(&context.reads, id, Arc::clone(&segment), tree);
        // A copy: a slice would keep all of the segment in memory.
        let index = Bytes::copy_from_slice(&bytes[footer.tree_at as usize..]);
        let address = Address { region: context.reads.region, segment: id, offset: footer.tree_at };
        let index = LeafIndex::parse(&index, address, segment.no()).expect("what was built can be read");
        leaf.keep_index(Arc::new(index));
        let built = BuiltSegment { id, kind: SegmentKind::Leaf, segment, bytes: bytes.into() };
        Ok((Output { leaf: Arc::new(leaf), footer }, built))
    }
}
