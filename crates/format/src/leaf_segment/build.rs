//! Building leaf segments and the index above them, bottom up and left to right.
//!
//! After each entry the builder knows the size of the finished segment but for a block, so it fills a segment to the last leaf
//! that fits. It belongs to one thread.

use super::{Footer, LeafBuilder, Span, end_of};
use crate::filter::{hash, write_filter};
use crate::node::{Address, BLOCK_BYTES, Child, Entry, IndexNodeBuilder, NODE_BYTES, separator};
use crate::packed::{Codec, pack};
use crate::range::{CRC_BYTES, RangeTombstone, RangeTombstones, fragment_bytes, write_section};
use crate::{Lsn, MAX_KEY_BYTES, Pointer, SegmentName, Stamp};
use bytes::Bytes;
use std::convert::Infallible;

/// The output of a segment that is being built.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A leaf segment as it will be on the device.
#[derive(Clone, Debug)]
pub struct BuiltLeafSegment<S = Vec<u8>> {
    /// Its bytes in use.
    pub bytes: S,
    /// Decoded, as it is at the end of `bytes`.
    pub footer: Footer,
}

/// Builds one leaf segment after the other.
#[derive(Debug)]
pub struct LeafSegmentBuilder<S = Vec<u8>> {
    segment_bytes: usize,
    address: Address,
    name: SegmentName,
    /// Leaves that are full.
    out: S,
    out_bytes: usize,
    codec: Codec,
    /// A leaf on its way to `out`, before and after it is packed.
    unpacked: Vec<u8>,
    packed: Vec<u8>,
    leaf: LeafBuilder,
    /// Pivot of the leaf that is being filled.
    pivot: Vec<u8>,
    children: Vec<(Vec<u8>, Child)>,
    shape: Shape,
    hashes: Vec<u64>,
    first_key: Vec<u8>,
    ranges: RangeTombstones,
    /// Most bytes that their section takes.
    ranges_bytes: usize,
    tombstones: u32,
    min_lsn: u64,
    max_lsn: u64,
    payload_bytes: u64,
    log_bytes: u64,
    medium_bytes: u64,
}

impl<S: Sink> LeafSegmentBuilder<S> {
    /// Builds a segment of at most `segment_bytes` bytes for `address`, with `name` in pointers, into the empty `out`.
    /// Its leaves are packed by `codec`.
    pub fn new(
        segment_bytes: usize,
        address: Address,
        name: SegmentName,
        codec: Codec,
        out: S,
    ) -> LeafSegmentBuilder<S> {
        LeafSegmentBuilder {
            segment_bytes,
            address: address.at(0),
            name,
            out,
            out_bytes: 0,
            codec,
            unpacked: Vec::new(),
            packed: Vec::new(),
            // Larger leaves pack better.
            leaf: LeafBuilder::new(if codec == Codec::None { BLOCK_BYTES } else { NODE_BYTES }),
            pivot: Vec::new(),
            children: Vec::new(),
            shape: Shape::default(),
            hashes: Vec::new(),
            first_key: Vec::new(),
            ranges: RangeTombstones::default(),
            ranges_bytes: 0,
            tombstones: 0,
            min_lsn: u64::MAX,
            max_lsn: 0,
            payload_bytes: 0,
            log_bytes: 0,
            medium_bytes: 0,
        }
    }

    /// Number of entries taken so far.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether no entry was taken yet.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Whether no range tombstone was taken yet.
    pub fn has_no_ranges(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of the leaves that are full.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.out_bytes
    }

    /// Takes an entry, whose key must be above the last one. Returns `false` if the segment has no room for it: then
    /// finish the segment. An empty segment has room for any pair of at most [`max_pair_bytes`](super::max_pair_bytes).
    #[must_use]
    pub fn push(&mut self, key: &[u8], stamp: impl Into<Stamp>, entry: Entry<'_>) -> bool {
        let stamp = stamp.into();
        let leaves_end = self.out_bytes + if self.leaf.is_empty() { 0 } else { self.leaf.most_bytes() };
        if self.leaf.is_empty() {
            if !self.has_room(self.leaf.single_bytes(key, stamp, entry), 1, key) {
                return false;
            }
            self.begin_at(key);
            self.shape.push(&[]);
            self.leaf.push(key, stamp, entry);
        } else if !self.has_room(leaves_end, self.shape.nodes(), key) {
            return false;
        } else if !self.leaf.push(key, stamp, entry) {
            let pivot = separator(self.leaf.last_key(), key);
            let with_leaf = leaves_end + self.leaf.single_bytes(key, stamp, entry);
            if !self.has_room(with_leaf, self.shape.nodes_with(pivot), key) {
                return false;
            }
            self.close_leaf(pivot);
            self.leaf.push(key, stamp, entry);
        }
        self.count(key, stamp.lsn, entry);
        true
    }

    /// Notes that the value of the last entry, of `value_bytes` bytes, is in the medium log.
    pub fn count_medium(&mut self, value_bytes: u32) {
        self.medium_bytes += u64::from(value_bytes);
    }

    /// Takes a range tombstone. It must start above all others and above the last entry, and no entry that follows may
    /// be older. Returns `false` if there is no room: then finish the segment. An empty segment has room for any.
    #[must_use]
    pub fn push_range(&mut self, range: &RangeTombstone) -> bool {
        let (leaves_end, nodes) = match self.leaf.is_empty() {
            true => (self.leaf.single_bytes(&range.start, range.lsn, Entry::Tombstone), 1),
            false => (self.out_bytes + self.leaf.most_bytes(), self.shape.nodes()),
        };
        let bytes = self.ranges_bytes + fragment_bytes(range);
        let is_first = self.is_empty() && self.ranges.is_empty();
        if !is_first && !self.has_room_with(leaves_end, nodes, &range.start, bytes) {
            return false;
        }
        self.begin_at(&range.start);
        self.ranges_bytes = bytes;
        self.ranges.push(range.clone());
        true
    }

    fn begin_at(&mut self, key: &[u8]) {
        if self.first_key.is_empty() {
            self.first_key.extend_from_slice(key);
        }
    }

    #[inline]
    fn has_room(&self, leaves_end: usize, index_nodes: usize, last_key: &[u8]) -> bool {
        self.has_room_with(leaves_end, index_nodes, last_key, self.ranges_bytes)
    }

    fn has_room_with(&self, leaves_end: usize, index_nodes: usize, last_key: &[u8], ranges_bytes: usize) -> bool {
        let first_bytes = if self.first_key.is_empty() { last_key.len() } else { self.first_key.len() };
        let (last_bytes, ranges_bytes) = match ranges_bytes {
            0 => (last_key.len(), 0),
            // Where the last range tombstone will be cut is not known yet, so its end is assumed to be the longest key.
            _ => (MAX_KEY_BYTES, CRC_BYTES + ranges_bytes),
        };
        let filter_at = leaves_end.next_multiple_of(BLOCK_BYTES) + index_nodes * NODE_BYTES;
        end_of(filter_at, self.hashes.len() + 1, ranges_bytes, first_bytes + last_bytes) <= self.segment_bytes
    }

    fn count(&mut self, key: &[u8], lsn: Lsn, entry: Entry<'_>) {
        self.hashes.push(hash(key));
        self.min_lsn = self.min_lsn.min(lsn.0);
        self.max_lsn = self.max_lsn.max(lsn.0);
        self.payload_bytes += key.len() as u64;
        match entry {
            Entry::InPlace(value) => self.payload_bytes += value.len() as u64,
            Entry::InLog { value_bytes, .. } => self.log_bytes += u64::from(value_bytes),
            Entry::Tombstone => self.tombstones += 1,
        }
    }

    /// Lays out the leaf; the next one will have `pivot`.
    fn close_leaf(&mut self, pivot: &[u8]) {
        self.write_leaf();
        self.shape.push(pivot);
        self.pivot.extend_from_slice(pivot);
    }

    fn write_leaf(&mut self) {
        let offset = self.out_bytes as u32;
        let address = self.address.at(offset);
        let blocks = self.leaf.node_bytes() / BLOCK_BYTES;
        self.unpacked.clear();
        self.leaf.finish(address, &mut self.unpacked);
        let stored = if self.codec == Codec::None {
            &self.unpacked
        } else {
            self.packed.clear();
            pack(self.codec, &mut self.unpacked, address, &mut self.packed);
            &self.packed
        };
        self.out.put(stored);
        self.out_bytes += stored.len();
        let child = Child { pointer: Pointer::new(self.name, offset), blocks: blocks as u32 };
        self.children.push((std::mem::take(&mut self.pivot), child));
    }

    /// The shortest bound above everything that was taken and not above `next`, the next key. Only the last range
    /// tombstone may reach beyond the bound.
    pub fn bound_before<'n>(&self, next: &'n [u8]) -> &'n [u8] {
        let last_key = self.leaf.last_key();
        match self.ranges.as_slice().last() {
            Some(range) if range.end == next => next,
            Some(range) if &range.end[..] < next => separator(last_key.max(&range.end), next),
            Some(range) if &range.start[..] < next => separator(last_key.max(&range.start), next),
            _ => separator(last_key, next),
        }
    }

    /// Cuts the last range tombstone at `bound`, which is above everything else that was taken. Returns the part from
    /// there on.
    pub fn cut(&mut self, bound: &[u8]) -> Option<RangeTombstone> {
        let rest = self.ranges.cut(bound);
        if self.ranges.is_empty() {
            self.ranges_bytes = 0;
            if self.is_empty() {
                self.first_key.clear();
            }
        }
        rest
    }

    /// The finished segment.
    ///
    /// # Panics
    /// If it is empty, which is a bug of the caller.
    pub fn finish(mut self) -> BuiltLeafSegment<S> {
        if self.is_empty() {
            let RangeTombstone { start, lsn, .. } = self.ranges.as_slice()[0].clone();
            self.shape.push(&[]);
            self.leaf.push(&start, lsn, Entry::Tombstone);
            self.count(&start, lsn, Entry::Tombstone);
        }
        let span = self.span();
        self.write_leaf();
        let tree_at = self.out_bytes.next_multiple_of(BLOCK_BYTES);
        // The rest after the leaves, from `leaves_end` on.
        let (leaves_end, mut rest) = (self.out_bytes, vec![0; tree_at - self.out_bytes]);
        let (address, name, out) = (self.address, self.name, &mut rest);
        let Ok(_) = write_index::<Infallible>(&self.children, &mut |node| {
            let offset = (leaves_end + out.len()) as u32;
            node.finish(address.at(offset), out);
            Ok(Pointer::new(name, offset))
        });
        let filter_at = leaves_end + out.len();
        debug_assert_eq!(filter_at, tree_at + self.shape.nodes() * NODE_BYTES);
        write_filter(&self.hashes, address.at(filter_at as u32), out);
        let ranges_at = leaves_end + out.len();
        let lsns = |lsn: fn(u64, u64) -> u64, of_entries| {
            self.ranges.as_slice().iter().fold(of_entries, |found, range| lsn(found, range.lsn.0))
        };
        if !self.ranges.is_empty() {
            write_section(&self.ranges, (&span.first, &span.last), address.at(ranges_at as u32), out);
        }
        let mut footer = Footer {
            end: 0,
            tree_at: tree_at as u32,
            root_at: (filter_at - NODE_BYTES) as u32,
            filter_at: filter_at as u32,
            filter_bytes: (ranges_at - filter_at) as u32,
            leaves: self.children.len() as u32,
            entries: self.hashes.len() as u32,
            tombstones: self.tombstones,
            ranges: self.ranges.len() as u32,
            ranges_bytes: (leaves_end + out.len() - ranges_at) as u32,
            min_lsn: Lsn(lsns(u64::min, self.min_lsn)),
            max_lsn: Lsn(lsns(u64::max, self.max_lsn)),
            payload_bytes: self.payload_bytes,
            log_bytes: self.log_bytes,
            medium_bytes: self.medium_bytes,
            span,
        };
        let keys = footer.key_bytes();
        footer.end = end_of(filter_at, self.hashes.len(), footer.ranges_bytes as usize, keys) as u32;
        debug_assert!(footer.end as usize <= self.segment_bytes, "room was looked for before anything was taken");
        let trailer = footer.trailer(address);
        out.resize(footer.end as usize - trailer.len() - keys - leaves_end, 0);
        out.extend_from_slice(&footer.span.first);
        out.extend_from_slice(footer.stored_last());
        out.extend_from_slice(&trailer);
        self.out.put(&rest);
        BuiltLeafSegment { bytes: self.out, footer }
    }

    fn span(&self) -> Span {
        let (first, last_key) = (Bytes::copy_from_slice(&self.first_key), self.leaf.last_key());
        match self.ranges.as_slice().last() {
            Some(range) if &range.end[..] > last_key => Span { first, last: range.end.clone(), is_open: true },
            _ => Span { first, last: Bytes::copy_from_slice(last_key), is_open: false },
        }
    }
}

/// Lays out the index nodes above `children` (each with its pivot; the first one's is ignored), level by level up to
/// the root. `place` finishes a node and returns its place. The last node placed is the root.
///
/// # Errors
/// Those of `place`.
///
/// # Panics
/// If there are no children, which is a bug of the caller.
pub fn write_index<E>(
    children: &[(Vec<u8>, Child)],
    place: &mut dyn FnMut(&mut IndexNodeBuilder) -> Result<Pointer, E>,
) -> Result<Child, E> {
    const NODE_BLOCKS: u32 = (NODE_BYTES / BLOCK_BYTES) as u32;
    let mut node = IndexNodeBuilder::default();
    let mut below: Vec<(&[u8], Child)> = children.iter().map(|(pivot, child)| (&pivot[..], *child)).collect();
    loop {
        let mut level = Vec::new();
        let mut first_pivot = below[0].0;
        for (pivot, child) in below {
            if !node.push(pivot, child) {
                level.push((first_pivot, Child { pointer: place(&mut node)?, blocks: NODE_BLOCKS }));
                first_pivot = pivot;
                node.push(pivot, child);
            }
        }
        level.push((first_pivot, Child { pointer: place(&mut node)?, blocks: NODE_BLOCKS }));
        if let [(_, root)] = level[..] {
            return Ok(root);
        }
        below = level;
    }
}

/// How many nodes [`write_index`] will need, kept up to date child by child.
#[derive(Debug, Default)]
struct Shape {
    /// From the bottom: full nodes, and the one that is being filled.
    levels: Vec<(usize, IndexNodeBuilder)>,
}

impl Shape {
    const ANY: Child = Child { pointer: Pointer(0), blocks: 1 };

    fn nodes(&self) -> usize {
        self.levels.iter().map(|(full, _)| full + 1).sum()
    }

    /// [`Shape::nodes`] after one more child.
    fn nodes_with(&self, pivot: &[u8]) -> usize {
        let split = self.levels.iter().take_while(|(_, node)| !node.fits(pivot)).count();
        let new_root = usize::from(split == self.levels.len());
        self.nodes() + split + new_root
    }

    fn push(&mut self, pivot: &[u8]) {
        let mut splits = false;
        for (full, node) in &mut self.levels {
            splits = !node.push(pivot, Self::ANY);
            if !splits {
                break;
            }
            *full += 1;
            *node = IndexNodeBuilder::default();
            node.push(pivot, Self::ANY);
        }
        if splits || self.levels.is_empty() {
            let mut root = IndexNodeBuilder::default();
            if splits {
                root.push(&[], Self::ANY);
            }
            root.push(pivot, Self::ANY);
            self.levels.push((0, root));
        }
    }
}
