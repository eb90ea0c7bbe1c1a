//! A level: a copy-on-write B+-tree. Its leaves lie in leaf segments, each a subtree of its own, under an index in
//! index segments.
//!
//! Invariants:
//! - Leaf segments are in key order and do not overlap. Segment `i` holds no key below `fence(i)` and none at or above
//!   `fence(i + 1)`, nor do its range tombstones cover any; the first fence is the empty key.
//! - An entry is not older than the range tombstones of its level that cover it.
//! - A level never changes. A compaction makes a new one, which shares unchanged segments.
//! - The nodes above the leaf segments are read once, by [`Level::open`]; from then on the fences in memory replace
//!   them. So a look-up costs at most one read of a leaf, and one of a segment's index the first time.
//!
//! Any thread may read.

use crate::error::{Error, Result};
use crate::memory::{Memory, Purpose, Reservation};
use crate::reads::{Reach, Reads};
use crate::volume::Segment;
use bytes::Bytes;
use leeward_format::manifest::LevelState;
use leeward_format::node::{Address, Child, NODE_BYTES, Node, NodeKind, common_prefix};
use leeward_format::range::{NO_END, Window};
use leeward_format::{DecodeError, Pointer, SegmentId, SegmentName, SegmentNo};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

mod cursor;
mod index;
mod leaf_segment;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use cursor::LevelCursor;
pub(crate) use index::{BuiltIndexSegment, build_index};
pub(crate) use leaf_segment::{EntryContent, IndexRef, KeyPlace, LeafSegment, Probe, Source, search};

/// An index segment of a level.
pub(crate) type IndexSegment = (SegmentId, Arc<Segment>);

/// One level.
pub(crate) struct Level {
    fences: Fences,
    segments: Vec<Arc<LeafSegment>>,
    index: Vec<IndexSegment>,
    state: LevelState,
    /// Positions of the leaf segments with range tombstones.
    ranged: Vec<usize>,
    /// See [`Level::overlap`].
    overlap: f64,
    /// For fences and segments; `None` if there are none.
    _reservation: Option<Reservation>,
}

impl Level {
    /// A level without entries.
    pub(crate) fn empty() -> Level {
        let state = LevelState::default();
        Level {
            fences: Fences::default(),
            segments: Vec::new(),
            index: Vec::new(),
            state,
            ranged: Vec::new(),
            overlap: 0.0,
            _reservation: None,
        }
    }

    /// A level of these leaf segments, each with its fence, under an index that is already built.
    pub(crate) fn new(
        memory: &Memory,
        leaves: Vec<(Vec<u8>, Arc<LeafSegment>)>,
        index: Vec<IndexSegment>,
        state: LevelState,
    ) -> Level {
        let leaf_bytes = |fence: &Vec<u8>| fence.capacity() + size_of::<(Vec<u8>, u64, LeafSegment, Segment)>();
        let bytes = leaves.iter().map(|(fence, _)| leaf_bytes(fence)).sum();
        let reservation = Some(memory.take(Purpose::Levels, bytes));
        let (fences, segments): (_, Vec<Arc<LeafSegment>>) = leaves.into_iter().unzip();
        let known: HashSet<SegmentId> = state.ranged.iter().copied().collect();
        let ranged = (0..segments.len()).filter(|i| !known.is_empty() && known.contains(&segments[*i].id())).collect();
        let overlap = overlap(&segments);
        Level { fences: Fences::new(fences), segments, index, state, ranged, overlap, _reservation: reservation }
    }

    /// Opens the level that `state` describes by walking its index. `segment` returns the live segment of a name.
    ///
    /// # Errors
    /// The device fails, or its contents do not match `state`.
    pub(crate) fn open(
        reads: &Reads,
        state: &LevelState,
        segment: &dyn Fn(SegmentName) -> Option<(SegmentId, Arc<Segment>)>,
    ) -> Result<Level> {
        let Some(root) = state.root else { return Ok(Level::empty()) };
        let walk = Walk { reads, state, segment };
        let (leaves, index) = walk.run(root)?;
        Ok(Level::new(reads.volume.memory(), leaves, index, state.clone()))
    }

    /// Its state in the manifest.
    pub(crate) fn state(&self) -> &LevelState {
        &self.state
    }

    /// Whether it has no leaf segment.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of keys and values in place.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.bytes
    }

    /// Part of its pairs that older levels have, approximately, if it is a run of L1; 1 if that is unknown. The mean of its
    /// leaf segments.
    pub(crate) fn overlap(&self) -> f64 {
        self.overlap
    }

    /// Leaf segments, in key order.
    pub(crate) fn segments(&self) -> &[Arc<LeafSegment>] {
        &self.segments
    }

    /// Positions of the leaf segments with range tombstones, ascending.
    pub(crate) fn ranged(&self) -> &[usize] {
        &self.ranged
    }

    /// The window of the level's range tombstones around `key`. Reads the index of a segment with range tombstones, if
    /// that is not in memory.
    pub(crate) fn window(&self, reads: &Reads, key: &[u8]) -> Result<Window> {
        let segment = self.segment_of(key);
        let fence = |i: usize| Bytes::copy_from_slice(self.fence(i));
        let end = |i: usize| if i < self.segments.len() { fence(i) } else { Bytes::from_static(NO_END) };
        let at = self.ranged.partition_point(|ranged| *ranged < segment);
        if self.ranged.get(at) != Some(&segment) {
            let start = at.checked_sub(1).map_or_else(Bytes::new, |before| fence(self.ranged[before] + 1));
            return Ok(Window { start, end: end(*self.ranged.get(at).unwrap_or(&self.segments.len())), lsn: None });
        }
        let window = self.segments[segment].index_from_device(reads)?.ranges().window(key);
        let (start, end) = (window.start.max(fence(segment)), window.end.min(end(segment + 1)));
        Ok(Window { start, end, ..window })
    }

    /// Index segments.
    pub(crate) fn index_segments(&self) -> &[IndexSegment] {
        &self.index
    }

    /// The lower bound of the keys in leaf segment `i`.
    pub(crate) fn fence(&self, i: usize) -> &[u8] {
        &self.fences.keys[i]
    }

    /// The leaf segment whose range contains `key`. The level must not be empty.
    #[inline]
    pub(crate) fn segment_of(&self, key: &[u8]) -> usize {
        self.fences.find(key)
    }

    /// Looks up `key`, which has this `hash`.
    #[inline]
    pub(crate) fn get(&self, reads: &Reads, key: &[u8], hash: u64, reach: Reach) -> Result<Probe> {
        if self.is_empty() {
            return Ok(Probe::Absent);
        }
        self.segments[self.segment_of(key)].get(reads, key, hash, reach)
    }
}

impl Level {
    /// Where the level may have `key`, which has this `hash`.
    pub(crate) fn place(&self, reads: &Reads, key: &[u8], hash: u64) -> Result<KeyPlace<'_>> {
        if self.is_empty() {
            return Ok(KeyPlace::Nowhere(None));
        }
        self.segments[self.segment_of(key)].place(reads, key, hash)
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Level({} leaf segments, {} bytes)", self.segments.len(), self.bytes())
    }
}

/// Mean [overlap](LeafSegment::overlap) of segments, each by its bytes.
fn overlap(segments: &[Arc<LeafSegment>]) -> f64 {
    let (known, bytes) = segments.iter().fold((0.0, 0.0), |(known, bytes), segment| {
        let own = segment.end() as f64;
        (known + own * f64::from(segment.overlap()), bytes + own)
    });
    if bytes == 0.0 { 0.0 } else { known / bytes }
}

/// Lower bounds of leaf segments, laid out for searching: eight bytes of each, after the prefix that all share.
#[derive(Default)]
struct Fences {
    /// The first one is empty, and does not share the prefix.
    keys: Vec<Vec<u8>>,
    prefix_bytes: usize,
    heads: Vec<u64>,
}

impl Fences {
    fn new(keys: Vec<Vec<u8>>) -> Fences {
        let prefix_bytes = match (keys.get(1), keys.last()) {
            (Some(first), Some(last)) => common_prefix(first, last),
            _ => 0,
        };
        let heads = keys.iter().map(|key| head(key.get(prefix_bytes..).unwrap_or_default())).collect();
        Fences { keys, prefix_bytes, heads }
    }

    /// Position of the last fence at or below `key`.
    #[inline]
    fn find(&self, key: &[u8]) -> usize {
        let Some(first) = self.keys.get(1) else { return 0 };
        let (prefix, last) = (&first[..self.prefix_bytes], self.keys.len() - 1);
        let Some(suffix) = key.strip_prefix(prefix) else { return if key < prefix { 0 } else { last } };
        let wanted = head(suffix);
        let (mut low, mut high) = (1, self.keys.len());
        while low < high {
            let middle = low.midpoint(high);
            let at_or_below = match self.heads[middle].cmp(&wanted) {
                std::cmp::Ordering::Equal => &self.keys[middle][self.prefix_bytes..] <= suffix,
                order => order.is_lt(),
            };
            if at_or_below { low = middle + 1 } else { high = middle }
        }
        low - 1
    }
}

/// The first eight bytes, big endian, zero padded.
#[inline]
fn head(suffix: &[u8]) -> u64 {
    match suffix.first_chunk() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; 8];
            chunk[..suffix.len()].copy_from_slice(suffix);
            u64::from_be_bytes(chunk)
        }
    }
}

/// The parts of a level: leaf segments with their fences, and index segments.
type BuiltTree = (Vec<(Vec<u8>, Arc<LeafSegment>)>, Vec<IndexSegment>);

/// Reads a level's index.
struct Walk<'a> {
    reads: &'a Reads,
    state: &'a LevelState,
    segment: &'a dyn Fn(SegmentName) -> Option<(SegmentId, Arc<Segment>)>,
}

impl Walk<'_> {
    /// Goes down level by level. An index of `n` segments has less than `2n` nodes, so a cycle ends.
    fn run(&self, root: Pointer) -> Result<BuiltTree> {
        let (mut leaves, mut index) = (Vec::new(), Vec::<IndexSegment>::new());
        let mut nodes = vec![(Vec::new(), root)];
        let mut budget = 2 * self.state.leaf_segments as usize + 2;
        while !nodes.is_empty() {
            let mut below = Vec::new();
            for (lower_bound, pointer) in nodes {
                budget = budget.checked_sub(1).ok_or_else(|| self.damaged(pointer, "too many index nodes"))?;
                let (id, segment) = self.live(pointer)?;
                let node = self.read(pointer, id, &segment)?;
                if !index.iter().any(|(known, _)| *known == id) {
                    index.push((id, segment));
                }
                for i in 0..node.len() {
                    let mut fence = Vec::new();
                    node.pivot_into(i, &mut fence);
                    if i == 0 {
                        fence.clone_from(&lower_bound);
                    }
                    self.child(fence, node.child(i), &mut below, &mut leaves)?;
                }
            }
            nodes = below;
        }
        let counted = leaves.len() == self.state.leaf_segments as usize;
        if !counted || !leaves.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err(self.damaged(root, "leaf segments are missing or out of order"));
        }
        // In the order of the manifest.
        index.sort_by_key(|(id, _)| self.state.index_segments.iter().position(|known| known == id));
        if !index.iter().map(|(id, _)| id).eq(&self.state.index_segments) {
            return Err(self.damaged(root, "index segments that the manifest does not know"));
        }
        Ok((leaves, index))
    }

    /// Adds an index node to `below`, a leaf segment to `leaves`.
    fn child(
        &self,
        fence: Vec<u8>,
        child: Child,
        below: &mut Vec<(Vec<u8>, Pointer)>,
        leaves: &mut Vec<(Vec<u8>, Arc<LeafSegment>)>,
    ) -> Result<()> {
        let (id, segment) = self.live(child.pointer)?;
        if self.state.index_segments.contains(&id) {
            below.push((fence, child.pointer));
            return Ok(());
        }
        if child.pointer.offset() as usize + child.bytes() > segment.bytes() {
            return Err(self.damaged(child.pointer, "a leaf segment longer than a segment"));
        }
        leaves.push((fence, Arc::new(LeafSegment::new(self.reads, id, segment, child))));
        Ok(())
    }

    fn live(&self, pointer: Pointer) -> Result<(SegmentId, Arc<Segment>)> {
        (self.segment)(pointer.segment())
            .ok_or_else(|| self.damaged(pointer, "a pointer into a segment that is not live"))
    }

    fn read(&self, pointer: Pointer, id: SegmentId, segment: &Segment) -> Result<Node<Vec<u8>>> {
        let mut bytes = vec![0; NODE_BYTES];
        if pointer.offset() as usize + NODE_BYTES > segment.bytes() {
            return Err(self.damaged(pointer, "a pointer beyond its segment"));
        }
        let no = segment.no();
        self.reads.volume.read(no, pointer.offset(), &mut bytes)?;
        let address = Address { region: segment.origin(), segment: id, offset: pointer.offset() };
        let node = Node::parse(bytes, address).map_err(|error| self.reads.damaged(no, pointer.offset(), &error))?;
        if node.kind() != NodeKind::Index {
            return Err(self.damaged(pointer, "a leaf where an index node should be"));
        }
        Ok(node)
    }

    fn damaged(&self, pointer: Pointer, detail: &str) -> Error {
        let no = (self.segment)(pointer.segment()).map_or(SegmentNo(0), |(_, segment)| segment.no());
        let detail = format!("{detail} ({pointer:?})");
        self.reads.damaged(no, pointer.offset(), &DecodeError::invalid("level", detail))
    }
}
