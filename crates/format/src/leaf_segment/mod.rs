//! The leaf segment: leaves, the index nodes above them, a filter over their keys, range tombstones and a footer; and
//! the index segment, which holds the nodes above leaf segments.
//!
//! ```text
//!  0                                      tree                          filter                                       end
//!  | leaf | leaf | ...                    | index node | ... | root     | filter | ranges | zeroes | keys | trailer |
//!  | 4 or 8 KiB, jumbo ones more, or      | 8 KiB each, bottom up       |        |        |                         |
//!  | packed; zeroes up to 4 KiB           |                             |        |        |                         |
//!
//!  keys     | first key | last key |
//!  trailer  0        4     5        8            12         16         20            24             28
//!           | crc32c | ver | 0 0 0  | end        | tree at  | root at  | filter at   | filter bytes |
//!           | u32    | u8  |        | u32        | u32      | u32      | u32         | u32          |
//!           28       32        36           40                44               48        56        64      72       80       88
//!           | leaves | entries | tombstones | first key bytes | last key bytes | min LSN | max LSN | bytes | in log | medium |
//!           | u32    | u32     | u32        | u16, then u16 0 | u16, u16 open  | u64     | u64     | u64   | u64    | u64    |
//!           88       92             96
//!           | ranges | ranges bytes |
//!           | u32    | u32          |
//! ```
//! `ranges` are range tombstones ([`crate::range`] draws them), none in most segments: then there is no such section.
//! They cover keys only in the segment's part of its level. An entry that they cover is not older than they are. A
//! segment always has an entry: if it has only range tombstones, it gets a tombstone at the first one's start, with its
//! LSN. The first and the last key bound the segment's entries and range tombstones. `open` is 1 if the last key is the
//! end of a range tombstone, which is exclusive, and 2 if that range has no end.
//!
//! Everything from `tree` to `end` is a [`LeafIndex`], which a reader keeps in memory. `end` is a multiple of 4096;
//! only bytes before it are written and shipped. An entry of an index segment that leads to a leaf segment points to
//! its `tree` and counts the blocks up to its `end`. `bytes` counts keys and values in place, `in log` values in logs,
//! `medium` those of these values that are in the medium log. The trailer's CRC covers the rest of it and the keys,
//! seeded with the [`Address`] of `end`.
//!
//! Leaves begin at 0 and follow each other. In a table that compresses they are packed ([`crate::packed`]) where that
//! saves an eighth, and the last is followed by zeroes up to `tree`. An index entry that leads to a leaf counts the
//! blocks of its node; its stored bytes end where the next leaf begins.
//!
//! An index segment is index nodes of 8 KiB and nothing else. Pure functions; any thread may call them.

use crate::filter::{Filter, filter_bytes};
use crate::node::{self, Address, BLOCK_BYTES, LeafBuilder, NODE_BYTES, Node, NodeKind};
use crate::range::{self, NO_END, RangeTombstones};
use crate::{DecodeError, Lsn, MAX_KEY_BYTES, MAX_SEGMENT_BYTES, SegmentName, packed};
use bytes::Bytes;
use std::ops::Deref;
use std::sync::Arc;

mod build;
mod rewrite;
#[cfg(test)]
mod tests;

pub use build::{BuiltLeafSegment, LeafSegmentBuilder, Sink, write_index};
pub use rewrite::{readdress, translate};

/// Version written into every footer; others are refused.
pub const LEAF_SEGMENT_VERSION: u8 = 3;

const WHAT: &str = "leaf segment";
const TRAILER_BYTES: usize = 96;
/// Flags in the trailer: the last key is the end of a range tombstone; that range has no end.
const OPEN: u32 = 1 << 16;
const ENDLESS: u32 = 2 << 16;

/// The footer of a leaf segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Bytes in use, a multiple of 4096.
    pub end: u32,
    /// Offset of the index nodes: the end of the leaves.
    pub tree_at: u32,
    /// Offset of the topmost index node.
    pub root_at: u32,
    /// Offset of the filter.
    pub filter_at: u32,
    /// Length of the filter.
    pub filter_bytes: u32,
    /// Number of leaves.
    pub leaves: u32,
    /// Number of entries, tombstones included.
    pub entries: u32,
    /// Number of tombstones.
    pub tombstones: u32,
    /// Number of range tombstones.
    pub ranges: u32,
    /// Length of their section; 0 without any.
    pub ranges_bytes: u32,
    /// Lowest LSN of an entry or range tombstone.
    pub min_lsn: Lsn,
    /// Highest LSN of an entry or range tombstone.
    pub max_lsn: Lsn,
    /// Bytes of keys and of values in place.
    pub payload_bytes: u64,
    /// Bytes of values in logs.
    pub log_bytes: u64,
    /// Bytes of those values that are in the medium log.
    pub medium_bytes: u64,
    /// The part of the key space that its entries and range tombstones cover.
    pub span: Span,
}

/// A part of the key space that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// First key.
    pub first: Bytes,
    /// Last key, or, if it `is_open`, the exclusive end; [`NO_END`] for none.
    pub last: Bytes,
    /// `last` itself is excluded.
    pub is_open: bool,
}

impl Span {
    /// Whether all of it is below `key`.
    pub fn is_below(&self, key: &[u8]) -> bool {
        if self.is_open { &self.last[..] <= key } else { &self.last[..] < key }
    }

    /// The shortest bound between this span and a span above it that begins at `next`.
    pub fn separator<'n>(&self, next: &'n [u8]) -> &'n [u8] {
        if self.last == next { next } else { node::separator(&self.last, next) }
    }
}

/// The end of a segment whose filter over `entries` entries begins at `filter_at`. Its first and last key have
/// `key_bytes`, its range tombstones `ranges_bytes`.
fn end_of(filter_at: usize, entries: usize, ranges_bytes: usize, key_bytes: usize) -> usize {
    (filter_at + filter_bytes(entries) + ranges_bytes + key_bytes + TRAILER_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// Most bytes of key and value that can be kept in place in segments of this size.
pub fn max_pair_bytes(segment_bytes: usize) -> usize {
    const ENTRY_OVERHEAD_BYTES: usize = 64;
    let leaves = segment_bytes.saturating_sub(NODE_BYTES + end_of(0, 1, 0, 2 * MAX_KEY_BYTES));
    (leaves / NODE_BYTES * NODE_BYTES).saturating_sub(ENTRY_OVERHEAD_BYTES)
}

impl Footer {
    /// Decodes the footer of the segment at `address` from `bytes`, the last bytes of the segment.
    ///
    /// # Errors
    /// They do not end with a footer of this version, or its keys or filter begin before them.
    pub fn parse(bytes: &Bytes, address: Address) -> Result<Footer, DecodeError> {
        let Some(trailer) = bytes.last_chunk::<TRAILER_BYTES>() else {
            return Err(DecodeError::Short { what: WHAT, needed: TRAILER_BYTES, available: bytes.len() });
        };
        let word = |at: usize| u32::from_le_bytes(trailer[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().expect("eight bytes"));
        if trailer[4] != LEAF_SEGMENT_VERSION {
            return Err(DecodeError::invalid(
                WHAT,
                format!("version {} where {LEAF_SEGMENT_VERSION} is known", trailer[4]),
            ));
        }
        let (first_bytes, last_bytes) = (word(40) as usize, (word(44) & 0xffff) as usize);
        let keys_end = bytes.len() - TRAILER_BYTES;
        if first_bytes > MAX_KEY_BYTES || last_bytes > MAX_KEY_BYTES || first_bytes + last_bytes > keys_end {
            return Err(DecodeError::invalid(WHAT, "keys out of bounds"));
        }
        let keys = bytes.slice(keys_end - first_bytes - last_bytes..keys_end);
        let (found, expected) = (word(0), crc32c::crc32c_append(address.at(word(8)).crc(&trailer[4..]), &keys));
        if found != expected {
            return Err(DecodeError::Checksum { what: WHAT, found, expected });
        }
        let footer = Footer {
            end: word(8),
            tree_at: word(12),
            root_at: word(16),
            filter_at: word(20),
            filter_bytes: word(24),
            leaves: word(28),
            entries: word(32),
            tombstones: word(36),
            ranges: word(88),
            ranges_bytes: word(92),
            min_lsn: Lsn(long(48)),
            max_lsn: Lsn(long(56)),
            payload_bytes: long(64),
            log_bytes: long(72),
            medium_bytes: long(80),
            span: span(&keys, first_bytes, word(44) & !0xffff)?,
        };
        footer.check()?;
        Ok(footer)
    }

    fn check(&self) -> Result<(), DecodeError> {
        let [end, tree, root, filter] = [self.end, self.tree_at, self.root_at, self.filter_at].map(|at| at as usize);
        let ordered = 0 < tree && tree <= root && root + NODE_BYTES == filter && end <= MAX_SEGMENT_BYTES;
        let aligned = || tree.is_multiple_of(BLOCK_BYTES) && (root - tree).is_multiple_of(NODE_BYTES);
        let counted = self.entries > 0
            && (self.ranges == 0) == (self.ranges_bytes == 0)
            && self.ranges_bytes <= self.end
            && filter_bytes(self.entries as usize) == self.filter_bytes as usize
            && end == end_of(filter, self.entries as usize, self.ranges_bytes as usize, self.key_bytes());
        if !(ordered && counted && aligned()) {
            return Err(DecodeError::invalid(WHAT, "footer out of range"));
        }
        Ok(())
    }

    /// Bytes of first and last key, as they are stored.
    fn key_bytes(&self) -> usize {
        self.span.first.len() + self.stored_last().len()
    }

    fn stored_last(&self) -> &[u8] {
        if self.span.last == NO_END { &[] } else { &self.span.last }
    }

    /// Where the range tombstones are, in bytes from the start of the segment.
    fn ranges_at(&self) -> usize {
        (self.filter_at + self.filter_bytes) as usize
    }

    /// Length of a segment's bytes from its tree on.
    pub fn index_bytes(&self) -> usize {
        (self.end - self.tree_at) as usize
    }

    fn trailer(&self, address: Address) -> [u8; TRAILER_BYTES] {
        let mut trailer = [0; TRAILER_BYTES];
        trailer[4] = LEAF_SEGMENT_VERSION;
        let open = match (self.span.is_open, self.span.last == NO_END) {
            (false, _) => 0,
            (true, false) => OPEN,
            (true, true) => ENDLESS,
        };
        let words = [
            self.end,
            self.tree_at,
            self.root_at,
            self.filter_at,
            self.filter_bytes,
            self.leaves,
            self.entries,
            self.tombstones,
            self.span.first.len() as u32,
            self.stored_last().len() as u32 | open,
        ];
        for (i, word) in words.into_iter().enumerate() {
            trailer[8 + 4 * i..12 + 4 * i].copy_from_slice(&word.to_le_bytes());
        }
        let longs = [self.min_lsn.0, self.max_lsn.0, self.payload_bytes, self.log_bytes, self.medium_bytes];
        for (i, long) in longs.into_iter().enumerate() {
            trailer[48 + 8 * i..56 + 8 * i].copy_from_slice(&long.to_le_bytes());
        }
        trailer[88..92].copy_from_slice(&self.ranges.to_le_bytes());
        trailer[92..].copy_from_slice(&self.ranges_bytes.to_le_bytes());
        let crc = address.at(self.end).crc(&trailer[4..]);
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &self.span.first), self.stored_last());
        trailer[..4].copy_from_slice(&crc.to_le_bytes());
        trailer
    }
}

/// The span of a trailer. `keys` are its first key, of `first_bytes` bytes, and its last; `open` are its flags.
fn span(keys: &Bytes, first_bytes: usize, open: u32) -> Result<Span, DecodeError> {
    let (first, last) = (keys.slice(..first_bytes), keys.slice(first_bytes..));
    let last = match open {
        0 | OPEN => last,
        ENDLESS if last.is_empty() => Bytes::from_static(NO_END),
        _ => return Err(DecodeError::invalid(WHAT, "flags of the last key are unknown")),
    };
    Ok(Span { first, last, is_open: open != 0 })
}

/// The place of a leaf in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafPlace {
    /// Offset in the segment, in bytes.
    pub offset: u32,
    /// Stored length in bytes; for the last leaf, with the zeroes after it.
    pub bytes: u32,
}

/// Reads the leaf at the start of `stored`, packed or not, which belongs at `address`.
///
/// # Errors
/// The bytes are damaged, belong to another address or to an index node, or no writer of this version produces them.
pub fn read_leaf(stored: &Bytes, address: Address) -> Result<Node<Bytes>, DecodeError> {
    if packed::is_packed(stored) {
        return packed::read_leaf(stored, address);
    }
    read_plain_leaf(stored, address, |len| stored.slice(..len))
}

/// [`read_leaf`] of one that is not packed. `slice` returns the given number of its bytes.
///
/// # Errors
/// As [`read_leaf`].
pub fn read_plain_leaf<B: Deref<Target = [u8]>>(
    stored: &[u8],
    address: Address,
    slice: impl FnOnce(usize) -> B,
) -> Result<Node<B>, DecodeError> {
    let bytes = node::node_bytes(stored)?;
    if bytes > stored.len() {
        return Err(DecodeError::Short { what: WHAT, needed: bytes, available: stored.len() });
    }
    let leaf = Node::parse(slice(bytes), address)?;
    match leaf.kind() {
        NodeKind::Leaf => Ok(leaf),
        NodeKind::Index => Err(DecodeError::invalid(WHAT, "an index node where a leaf should be")),
    }
}

/// A leaf segment without its leaves, checked.
#[derive(Clone, Debug)]
pub struct LeafIndex {
    nodes: Vec<Node<Bytes>>,
    filter: Filter<Bytes>,
    footer: Footer,
    leaves: Arc<[LeafPlace]>,
    ranges: RangeTombstones,
}

impl LeafIndex {
    /// Checks the bytes of a segment from its tree, at the offset of `address`, to its end. Pointers refer to the
    /// segment by `name`.
    ///
    /// # Errors
    /// The bytes are damaged, belong to another segment, or no writer of this version produces them.
    pub fn parse(bytes: &Bytes, address: Address, name: SegmentName) -> Result<LeafIndex, DecodeError> {
        let footer = Footer::parse(bytes, address)?;
        if footer.tree_at != address.offset || footer.index_bytes() != bytes.len() {
            return Err(DecodeError::invalid(WHAT, "the footer is of other bytes"));
        }
        let at = |offset: u32| (offset - footer.tree_at) as usize;
        let mut nodes = Vec::new();
        for offset in (footer.tree_at..footer.filter_at).step_by(NODE_BYTES) {
            let node = Node::parse(bytes.slice(at(offset)..at(offset) + NODE_BYTES), address.at(offset))?;
            if node.kind() != NodeKind::Index {
                return Err(DecodeError::invalid(WHAT, "a leaf among the index nodes"));
            }
            nodes.push(node);
        }
        let filter = bytes.slice(at(footer.filter_at)..at(footer.filter_at) + footer.filter_bytes as usize);
        let filter = Filter::parse(filter, address.at(footer.filter_at))?;
        let leaves = leaves_below(&nodes, &footer, name)?.into();
        let ranges = match footer.ranges_bytes as usize {
            0 => RangeTombstones::default(),
            len => {
                let start = footer.ranges_at() - footer.tree_at as usize;
                let section = address.at(footer.ranges_at() as u32);
                let keys = (&footer.span.first, &footer.span.last);
                range::read_section(&bytes.slice(start..start + len), section, keys)?
            }
        };
        if ranges.len() != footer.ranges as usize {
            return Err(DecodeError::invalid(WHAT, "range tombstones are missing"));
        }
        Ok(LeafIndex { nodes, filter, footer, leaves, ranges })
    }

    /// Range tombstones: none in most segments.
    #[inline]
    pub fn ranges(&self) -> &RangeTombstones {
        &self.ranges
    }

    /// Sizes and places of the parts of the segment.
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// The nodes above the leaves, in order of their offsets, the topmost last.
    pub fn nodes(&self) -> &[Node<Bytes>] {
        &self.nodes
    }

    /// Leaves, in key order.
    pub fn leaves(&self) -> &Arc<[LeafPlace]> {
        &self.leaves
    }

    /// Whether a key with this [`hash`](crate::filter::hash) may be in the segment; `false` is certain.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.filter.may_contain(hash)
    }

    /// The leaf whose range holds `key`: its position among [`LeafIndex::leaves`].
    pub fn leaf_of(&self, key: &[u8]) -> usize {
        let mut node = self.nodes.last().expect("a leaf segment has a root");
        loop {
            let offset = node.child(node.child_of(key)).pointer.offset();
            if offset < self.footer.tree_at {
                return self.leaves.partition_point(|leaf| leaf.offset < offset);
            }
            node = &self.nodes[(offset - self.footer.tree_at) as usize / NODE_BYTES];
        }
    }

    /// Memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.footer.index_bytes()
            + size_of_val(&*self.leaves)
            + size_of_val(self.nodes.as_slice())
            + size_of_val(self.ranges.as_slice())
            + size_of::<LeafIndex>()
    }
}

/// Walks the tree level by level down to the leaves, which must follow each other without a gap.
fn leaves_below(nodes: &[Node<Bytes>], footer: &Footer, name: SegmentName) -> Result<Vec<LeafPlace>, DecodeError> {
    let mut level = vec![nodes.len() - 1];
    let mut visited = 1;
    let mut leaves = Vec::<LeafPlace>::new();
    // How far the last leaf may reach.
    let mut room = 0;
    while !level.is_empty() {
        let mut below = Vec::new();
        for &parent in &level {
            for i in 0..nodes[parent].len() {
                let child = nodes[parent].child(i);
                let offset = child.pointer.offset();
                if child.pointer.segment() != name {
                    return Err(DecodeError::invalid(WHAT, "a pointer out of the segment"));
                }
                if offset < footer.tree_at {
                    if !place_leaf(&mut leaves, offset, room) {
                        return Err(DecodeError::invalid(WHAT, "leaves out of order"));
                    }
                    room = offset as usize + child.bytes();
                    continue;
                }
                let position = (offset - footer.tree_at) as usize / NODE_BYTES;
                visited += 1;
                if position >= parent || visited > nodes.len() || child.bytes() != NODE_BYTES {
                    return Err(DecodeError::invalid(WHAT, "index nodes out of order"));
                }
                below.push(position);
            }
        }
        level = below;
    }
    let is_complete = leaves.len() == footer.leaves as usize
        && place_leaf(&mut leaves, footer.tree_at, room.next_multiple_of(NODE_BYTES));
    if !is_complete {
        return Err(DecodeError::invalid(WHAT, "leaves are missing"));
    }
    leaves.pop();
    Ok(leaves)
}

/// Adds the leaf at `offset`, which ends the leaf before it. Returns `false` if `offset` is not above that leaf's, or
/// beyond `room`, the most that the leaf before may reach.
fn place_leaf(leaves: &mut Vec<LeafPlace>, offset: u32, room: usize) -> bool {
    let follows = match leaves.last_mut() {
        None => offset == 0,
        Some(last) => {
            last.bytes = offset.saturating_sub(last.offset);
            last.bytes > 0 && offset as usize <= room
        }
    };
    leaves.push(LeafPlace { offset, bytes: 0 });
    follows
}
