//! Walks a level in key order, in either direction.
//!
//! One thread at a time. Leaves come from the cache or the device. The first two leaves of a walk are offered to the
//! cache. A longer walk reads ahead in ever larger chunks, up to 128 KiB, which bypass the cache.

use super::{LeafSegment, Level};
use crate::cache::Leaf;
use crate::error::Result;
use crate::memory::Purpose;
use crate::reads::Reads;
use bytes::Bytes;
use leeward_format::leaf_segment::{LeafIndex, LeafPlace};
use leeward_format::node::{BLOCK_BYTES, Entry};
use leeward_format::{SegmentNo, Stamp};
use std::sync::Arc;

/// Most bytes of one read.
const CHUNK_BYTES: usize = 128 << 10;

/// A position in a level: on an entry, or at the end.
pub(crate) struct LevelCursor {
    reads: Arc<Reads>,
    level: Arc<Level>,
    here: Option<Here>,
    /// Key of the current entry.
    key: Vec<u8>,
    /// A chunk: position of its segment, offset there, and bytes of consecutive leaves.
    chunk: Option<(usize, u32, Bytes)>,
    /// Leaves to read when the next one is not in memory.
    ahead: usize,
    /// The leaf of the next seek.
    found: Option<FoundLeaf>,
    /// The segments from the current to this one are skipped by the next step.
    passed: Option<usize>,
    /// Buffer for comparisons.
    edge: Vec<u8>,
}

/// A leaf that was found before the seek that needs it.
struct FoundLeaf {
    /// Position of its segment in the level.
    segment: usize,
    /// Its offset there.
    offset: u32,
    leaf: Arc<Leaf>,
    /// It was not in memory.
    was_read: bool,
}

/// A leaf that is not in memory.
pub(crate) struct Missing {
    /// Position of its segment in the level.
    segment: usize,
    place: LeafPlace,
    /// Number of the segment, and offset of the leaf there.
    pub(crate) at: (SegmentNo, u32),
}

impl Missing {
    pub(crate) fn bytes(&self) -> usize {
        self.place.bytes as usize
    }
}

struct Here {
    /// Position of the segment in the level.
    segment: usize,
    places: Places,
    /// Position of the leaf in the segment.
    place: usize,
    leaf: Arc<Leaf>,
    slot: usize,
}

/// The leaves of a segment, which its index knows.
type Places = Arc<[LeafPlace]>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Back,
}

impl LevelCursor {
    pub(crate) fn new(reads: Arc<Reads>, level: Arc<Level>) -> LevelCursor {
        LevelCursor {
            reads,
            level,
            here: None,
            key: Vec::new(),
            chunk: None,
            ahead: 1,
            found: None,
            passed: None,
            edge: Vec::new(),
        }
    }

    /// Moves to the first key at or above `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        let Some(at) = self.target(Some(key))? else {
            self.here = None;
            return Ok(());
        };
        let leaf = self.enter_leaf(at, Direction::Forward)?;
        let slot = leaf.search(key).unwrap_or_else(|slot| slot);
        let beyond = slot == leaf.len();
        self.settle(leaf, if beyond { slot - 1 } else { slot });
        if beyond { self.step() } else { Ok(()) }
    }

    /// Moves to the last key below `bound`; the last of all without a bound.
    pub(crate) fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        let Some(at) = self.target(bound)? else {
            self.here = None;
            return Ok(());
        };
        let leaf = self.enter_leaf(at, Direction::Back)?;
        let after = bound.map_or(leaf.len(), |bound| leaf.search(bound).unwrap_or_else(|slot| slot));
        self.settle(leaf, after.saturating_sub(1));
        if after == 0 { self.step_back() } else { Ok(()) }
    }

    /// Finds the leaf that a seek to `bound` needs, and keeps it for that seek. Returns where to read it if it is not in
    /// memory.
    pub(crate) fn find_leaf(&mut self, bound: Option<&[u8]>) -> Result<Option<Missing>> {
        let Some((segment, places, place)) = self.target(bound)? else { return Ok(None) };
        let (source, wanted) = (&self.level.segments()[segment], places[place]);
        if self.here.as_ref().is_some_and(|here| (here.segment, here.place) == (segment, place)) {
            return Ok(None);
        }
        if let Some(leaf) = source.cached_leaf(wanted) {
            self.found = Some(FoundLeaf { segment, offset: wanted.offset, leaf, was_read: false });
            return Ok(None);
        }
        let at = (source.segment().no(), wanted.offset);
        Ok(Some(Missing { segment, place: wanted, at }))
    }

    /// Gives the cursor a [`Missing`] leaf.
    pub(crate) fn supply(&mut self, Missing { segment, place, .. }: &Missing, bytes: Vec<u8>) -> Result<()> {
        let leaf = self.level.segments()[*segment].supply_leaf(&self.reads, bytes.into(), *place)?;
        self.found = Some(FoundLeaf { segment: *segment, offset: place.offset, leaf, was_read: true });
        Ok(())
    }

    /// Segment, its leaves, and the position of the one whose range contains `bound`; without a bound the last. `None`
    /// in an empty level.
    fn target(&self, bound: Option<&[u8]>) -> Result<Option<(usize, Places, usize)>> {
        if self.level.is_empty() {
            return Ok(None);
        }
        let segment = bound.map_or(self.level.segments().len() - 1, |bound| self.level.segment_of(bound));
        let choose = |index: &LeafIndex| bound.map_or(index.leaves().len() - 1, |bound| index.leaf_of(bound));
        let (places, place) = self.open(segment, choose)?;
        Ok(Some((segment, places, place)))
    }

    /// Moves into a leaf, which may be the current one.
    fn enter_leaf(&mut self, (segment, places, place): (usize, Places, usize), way: Direction) -> Result<Arc<Leaf>> {
        self.passed = None;
        let here = self.here.take().filter(|here| (here.segment, here.place) == (segment, place));
        if here.is_none() {
            self.ahead = 1;
        }
        let leaf = match here {
            Some(here) => here.leaf,
            None => self.leaf(segment, &places, place, way)?,
        };
        self.here = Some(Here { segment, places, place, leaf: Arc::clone(&leaf), slot: 0 });
        Ok(leaf)
    }

    fn settle(&mut self, leaf: Arc<Leaf>, slot: usize) {
        let here = self.here.as_mut().expect("it stands in the leaf");
        (here.leaf, here.slot) = (leaf, slot);
        self.read_key();
    }

    /// If only tombstones follow in this leaf, and in the segments after it, before `bound` (or at all without one):
    /// moves to the last entry of the leaf, so that the next step skips those segments. The caller knows that no other
    /// source has a key before `bound`. In reverse, the same in the other direction.
    pub(crate) fn pass_tombstones(&mut self, bound: Option<&[u8]>, reverse: bool) -> Result<()> {
        let is_before = |key: &[u8]| {
            bound.is_none_or(|bound| match reverse {
                false => key < bound,
                true => key > bound,
            })
        };
        self.passed = None;
        let Some(here) = &mut self.here else { return Ok(()) };
        if here.leaf.tombstones() < here.leaf.len() {
            return Ok(());
        }
        let last = if reverse { 0 } else { here.leaf.len() - 1 };
        here.leaf.key_into(last, &mut self.edge);
        if !is_before(&self.edge) {
            return Ok(());
        }
        here.slot = last;
        self.key.clone_from(&self.edge);
        if here.place != if reverse { 0 } else { here.places.len() - 1 } {
            return Ok(());
        }
        let mut segment = here.segment;
        loop {
            let next = if reverse { segment.checked_sub(1) } else { Some(segment + 1) };
            let Some(next) = next.filter(|next| *next < self.level.segments().len()) else { return Ok(()) };
            let index = self.level.segments()[next].index_from_device(&self.reads)?;
            let footer = index.footer();
            let edge = if reverse { &footer.span.first } else { &footer.span.last };
            if footer.tombstones < footer.entries || !is_before(edge) {
                return Ok(());
            }
            segment = next;
            self.passed = Some(segment);
        }
    }

    /// Moves to the next entry. Does nothing at the end.
    pub(crate) fn step(&mut self) -> Result<()> {
        let Some(here) = &mut self.here else { return Ok(()) };
        if here.slot + 1 < here.leaf.len() {
            here.slot += 1;
        } else if here.place + 1 < here.places.len() {
            let (segment, places, place) = (here.segment, Arc::clone(&here.places), here.place + 1);
            self.enter(segment, places, place, Direction::Forward)?;
        } else if self.passed.unwrap_or(here.segment) + 1 < self.level.segments().len() {
            let segment = self.passed.take().unwrap_or(here.segment) + 1;
            let (places, place) = self.open(segment, |_| 0)?;
            self.enter(segment, places, place, Direction::Forward)?;
        } else {
            self.here = None;
        }
        self.read_key();
        Ok(())
    }

    /// Moves to the previous entry. Does nothing at the end.
    pub(crate) fn step_back(&mut self) -> Result<()> {
        let Some(here) = &mut self.here else { return Ok(()) };
        if here.slot > 0 {
            here.slot -= 1;
        } else if here.place > 0 {
            let (segment, places, place) = (here.segment, Arc::clone(&here.places), here.place - 1);
            self.enter(segment, places, place, Direction::Back)?;
        } else if self.passed.unwrap_or(here.segment) > 0 {
            let segment = self.passed.take().unwrap_or(here.segment) - 1;
            let (places, place) = self.open(segment, |index| index.leaves().len() - 1)?;
            self.enter(segment, places, place, Direction::Back)?;
        } else {
            self.here = None;
        }
        self.read_key();
        Ok(())
    }

    /// The current key; `None` at the end.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.here.as_ref().map(|_| &self.key[..])
    }

    /// Current key, stamp and contents; `None` at the end.
    #[inline]
    pub(crate) fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        let here = self.here.as_ref()?;
        let (stamp, entry) = here.leaf.entry(here.slot);
        Some((&self.key, stamp, entry))
    }

    fn read_key(&mut self) {
        if let Some(here) = &self.here {
            here.leaf.key_into(here.slot, &mut self.key);
        }
    }

    /// The leaves of a segment, and the one that `choose` chooses.
    fn open(&self, segment: usize, choose: impl FnOnce(&LeafIndex) -> usize) -> Result<(Places, usize)> {
        let index = self.level.segments()[segment].index_from_device(&self.reads)?;
        Ok((Arc::clone(index.leaves()), choose(&index)))
    }

    /// Moves to the first entry of a leaf, or in reverse to the last.
    fn enter(&mut self, segment: usize, places: Places, place: usize, way: Direction) -> Result<()> {
        self.here = None;
        let leaf = self.leaf(segment, &places, place, way)?;
        let slot = if way == Direction::Forward { 0 } else { leaf.len() - 1 };
        self.here = Some(Here { segment, places, place, leaf, slot });
        Ok(())
    }

    fn leaf(&mut self, segment: usize, places: &Places, place: usize, way: Direction) -> Result<Arc<Leaf>> {
        let source = Arc::clone(&self.level.segments()[segment]);
        let wanted = places[place];
        if let Some(found) = self.found.take_if(|found| (found.segment, found.offset) == (segment, wanted.offset)) {
            if found.was_read {
                self.ahead = 2;
            }
            return Ok(found.leaf);
        }
        if let Some(leaf) = source.cached_leaf(wanted) {
            return Ok(leaf);
        }
        if let Some(bytes) = self.chunk_slice(segment, wanted) {
            return source.parse_leaf(&self.reads, &bytes, wanted).map(Arc::new);
        }
        let ahead = self.ahead;
        self.ahead = (ahead * 2).min(CHUNK_BYTES / BLOCK_BYTES);
        if ahead <= 2 || self.reads.volume.memory().is_short(Purpose::Reads) {
            return source.load_leaf(&self.reads, wanted);
        }
        // Freed first: it must not take memory beside the new one.
        self.chunk = None;
        self.chunk = Some(self.read_chunk(segment, &source, places, place, (ahead, way))?);
        let bytes = self.chunk_slice(segment, wanted).expect("the chunk was read around the leaf");
        source.parse_leaf(&self.reads, &bytes, wanted).map(Arc::new)
    }

    fn chunk_slice(&self, segment: usize, wanted: LeafPlace) -> Option<Bytes> {
        let (_, start, bytes) = self.chunk.as_ref().filter(|(of, ..)| *of == segment)?;
        let at = wanted.offset.checked_sub(*start)? as usize;
        (at + wanted.bytes as usize <= bytes.len()).then(|| bytes.slice(at..at + wanted.bytes as usize))
    }

    /// Reads up to `ahead` leaves from `place` on, in the direction of the walk, with at most [`CHUNK_BYTES`]; at least
    /// one.
    fn read_chunk(
        &self,
        segment: usize,
        source: &LeafSegment,
        places: &Places,
        place: usize,
        (ahead, way): (usize, Direction),
    ) -> Result<(usize, u32, Bytes)> {
        let end = |last: &LeafPlace| (last.offset + last.bytes) as usize;
        let (mut first, mut last) = (place, place);
        for _ in 1..ahead {
            let (low, high) = match way {
                Direction::Forward => (first, last + 1),
                Direction::Back => (first.wrapping_sub(1), last),
            };
            let (Some(low_place), Some(high_place)) = (places.get(low), places.get(high)) else { break };
            if end(high_place) - low_place.offset as usize > CHUNK_BYTES {
                break;
            }
            (first, last) = (low, high);
        }
        let start = places[first].offset;
        let memory = self.reads.volume.memory();
        let mut bytes = memory.pool().take(end(&places[last]) - start as usize);
        self.reads.volume.read(source.segment().no(), start, &mut bytes)?;
        let memory_bytes = bytes.memory_bytes();
        Ok((segment, start, memory.reserve(Purpose::Reads).hold(bytes, memory_bytes)))
    }
}
