//! Walking a level in key order, either way.
//!
//! One thread at a time. Leaves come from the cache or the device; a cursor that keeps going reads ahead in ever larger
//! chunks, up to 128 KiB, which do not enter the cache.

use super::{LeafSegment, Level};
use crate::cache::Leaf;
use crate::error::Result;
use crate::version::Reads;
use bytes::Bytes;
use leeward_format::Lsn;
use leeward_format::leaf_segment::{LeafIndex, LeafPlace};
use leeward_format::node::Entry;
use std::sync::Arc;

/// Most bytes that are read at once.
const CHUNK_BYTES: usize = 128 << 10;

/// A place in a level, between its first and last entry or at the end.
pub(crate) struct LevelCursor {
    reads: Arc<Reads>,
    level: Arc<Level>,
    here: Option<Here>,
    /// Key of the current entry.
    key: Vec<u8>,
    /// Bytes of consecutive leaves of one segment, and which.
    chunk: Option<(usize, u32, Bytes)>,
    /// Leaves to be read when the next one is not in memory.
    ahead: usize,
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
enum Way {
    Forward,
    Back,
}

impl LevelCursor {
    pub(crate) fn new(reads: Arc<Reads>, level: Arc<Level>) -> LevelCursor {
        LevelCursor { reads, level, here: None, key: Vec::new(), chunk: None, ahead: 1 }
    }

    /// Moves to the first key at or above `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.here = None;
        self.ahead = 1;
        if self.level.is_empty() {
            return Ok(());
        }
        let segment = self.level.segment_of(key);
        let (places, place) = self.open(segment, |index| index.leaf_of(key))?;
        let leaf = self.leaf(segment, &places, place, Way::Forward)?;
        let slot = leaf.search(key).unwrap_or_else(|slot| slot);
        let beyond = slot == leaf.len();
        self.here = Some(Here { segment, places, place, leaf, slot: if beyond { slot - 1 } else { slot } });
        self.read_key();
        if beyond { self.step() } else { Ok(()) }
    }

    /// Moves to the last key below `bound`; the last of all without a bound.
    pub(crate) fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.here = None;
        self.ahead = 1;
        if self.level.is_empty() {
            return Ok(());
        }
        let segment = bound.map_or(self.level.segments().len() - 1, |bound| self.level.segment_of(bound));
        let (places, place) =
            self.open(segment, |index| bound.map_or(index.leaves().len() - 1, |bound| index.leaf_of(bound)))?;
        let leaf = self.leaf(segment, &places, place, Way::Back)?;
        let after = bound.map_or(leaf.len(), |bound| leaf.search(bound).unwrap_or_else(|slot| slot));
        self.here = Some(Here { segment, places, place, leaf, slot: after.saturating_sub(1) });
        self.read_key();
        if after == 0 { self.step_back() } else { Ok(()) }
    }

    /// Moves to the next entry. Does nothing at the end.
    pub(crate) fn step(&mut self) -> Result<()> {
        let Some(here) = &mut self.here else { return Ok(()) };
        if here.slot + 1 < here.leaf.len() {
            here.slot += 1;
        } else if here.place + 1 < here.places.len() {
            let (segment, places, place) = (here.segment, Arc::clone(&here.places), here.place + 1);
            self.enter(segment, places, place, Way::Forward)?;
        } else if here.segment + 1 < self.level.segments().len() {
            let segment = here.segment + 1;
            let (places, place) = self.open(segment, |_| 0)?;
            self.enter(segment, places, place, Way::Forward)?;
        } else {
            self.here = None;
        }
        self.read_key();
        Ok(())
    }

    /// Moves to the entry before. Does nothing at the end.
    pub(crate) fn step_back(&mut self) -> Result<()> {
        let Some(here) = &mut self.here else { return Ok(()) };
        if here.slot > 0 {
            here.slot -= 1;
        } else if here.place > 0 {
            let (segment, places, place) = (here.segment, Arc::clone(&here.places), here.place - 1);
            self.enter(segment, places, place, Way::Back)?;
        } else if here.segment > 0 {
            let segment = here.segment - 1;
            let (places, place) = self.open(segment, |index| index.leaves().len() - 1)?;
            self.enter(segment, places, place, Way::Back)?;
        } else {
            self.here = None;
        }
        self.read_key();
        Ok(())
    }

    /// Key, LSN and contents of where it is; `None` at the end.
    #[inline]
    pub(crate) fn current(&self) -> Option<(&[u8], Lsn, Entry<'_>)> {
        let here = self.here.as_ref()?;
        let (lsn, entry) = here.leaf.entry(here.slot);
        Some((&self.key, lsn, entry))
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

    /// Stands on the first entry of a leaf, or going back on the last.
    fn enter(&mut self, segment: usize, places: Places, place: usize, way: Way) -> Result<()> {
        self.here = None;
        let leaf = self.leaf(segment, &places, place, way)?;
        let slot = if way == Way::Forward { 0 } else { leaf.len() - 1 };
        self.here = Some(Here { segment, places, place, leaf, slot });
        Ok(())
    }

    fn leaf(&mut self, segment: usize, places: &Places, place: usize, way: Way) -> Result<Arc<Leaf>> {
        let source = Arc::clone(&self.level.segments()[segment]);
        let wanted = places[place];
        if let Some(leaf) = source.cached_leaf(wanted) {
            return Ok(leaf);
        }
        if let Some(bytes) = self.chunk_slice(segment, wanted) {
            return source.parse_leaf(&self.reads, bytes, wanted).map(Arc::new);
        }
        let ahead = self.ahead;
        self.ahead = (ahead * 2).min(CHUNK_BYTES / leeward_format::node::NODE_BYTES);
        if ahead == 1 {
            return source.load_leaf(&self.reads, wanted);
        }
        self.chunk = Some(self.read_chunk(segment, &source, places, place, (ahead, way))?);
        let bytes = self.chunk_slice(segment, wanted).expect("the chunk was read around the leaf");
        source.parse_leaf(&self.reads, bytes, wanted).map(Arc::new)
    }

    fn chunk_slice(&self, segment: usize, wanted: LeafPlace) -> Option<Bytes> {
        let (_, start, bytes) = self.chunk.as_ref().filter(|(of, ..)| *of == segment)?;
        let at = wanted.offset.checked_sub(*start)? as usize;
        (at + wanted.bytes as usize <= bytes.len()).then(|| bytes.slice(at..at + wanted.bytes as usize))
    }

    /// Up to `ahead` leaves from `place` on, in the direction of the walk, that make at most [`CHUNK_BYTES`]; one at
    /// least.
    fn read_chunk(
        &self,
        segment: usize,
        source: &LeafSegment,
        places: &Places,
        place: usize,
        (ahead, way): (usize, Way),
    ) -> Result<(usize, u32, Bytes)> {
        let end = |last: &LeafPlace| (last.offset + last.bytes) as usize;
        let (mut first, mut last) = (place, place);
        for _ in 1..ahead {
            let (low, high) = match way {
                Way::Forward => (first, last + 1),
                Way::Back => (first.wrapping_sub(1), last),
            };
            let (Some(low_place), Some(high_place)) = (places.get(low), places.get(high)) else { break };
            if end(high_place) - low_place.offset as usize > CHUNK_BYTES {
                break;
            }
            (first, last) = (low, high);
        }
        let start = places[first].offset;
        let mut bytes = vec![0; end(&places[last]) - start as usize];
        self.reads.volume.read(source.segment().no(), start, &mut bytes)?;
        Ok((segment, start, bytes.into()))
    }
}
