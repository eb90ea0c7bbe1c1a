//! The node of a level's B+-tree: 4 or 8 KiB of sorted entries, searched in place.
//!
//! ```text
//!  0        4     5      6          7      8            12        14             16         24
//!  | crc32c | ver | kind | lsn bytes | form | node bytes | entries | prefix bytes | base LSN |
//!  | u32    | u8  | u8   | u8        | u8   | u32        | u16     | u16          | u64      |
//!  24                        24 + 4 * entries
//!  | slot 0 | slot 1 | ...   | common prefix | entry 0 | entry 1 | ... | zeroes to the end |       form 0: slots
//!  24      32
//!  | shape | common prefix | body 0 | body 1 | ... | zeroes to the end |       form 1: uniform leaf
//!
//!  slot         | offset of the entry u16 | head u16: first two bytes of the suffix, big endian, zero padded |
//!  leaf entry   | varint: suffix bytes << 2 | kind | varint: value bytes (not in tombstones) | body |
//!  expiring     | varint: suffix bytes << 2 | 3 | varint: value bytes << 2 | kind | body |
//!  body         | ms since 1970 UTC, 6 bytes (expiring only) | LSN - base LSN, in `lsn bytes` bytes |
//!               | pointer u64 (in log only) | suffix | value (in place only) |
//!  shape        | suffix bytes u16 | kind u8 | expiring u8: 0 or 1 | value bytes u32 |
//!  index entry  | varint: suffix bytes | varint: blocks | pointer u64 | suffix |
//! ```
//!
//! Invariants:
//! - An index node has 8 KiB, a leaf 4 or 8 KiB. Only a leaf with a single entry may be larger (a *jumbo* leaf, for a
//!   value in place that fits no other), a multiple of 4 KiB.
//! - Keys ascend strictly. A key is the common prefix followed by its suffix. In an index node entry 0 has no pivot:
//!   it leads to everything below pivot 1, so two children fit whatever their keys are.
//! - A leaf of two entries or more whose entries have the same kind and lengths is uniform: it has no slots, and a
//!   search finds its entries by multiplication.
//! - A node is never changed after it is built, so the data directly follows the slots. The one exception is that
//!   pointers are rewritten in place ([`crate::leaf_segment::translate`]).
//! - The CRC covers everything after itself and is seeded with the node's [`Address`]: an earlier node at the same
//!   place on the device never passes for this one.
//!
//! [`Node::parse`] checks every offset and length once, so that searching needs no further error paths. Pure
//! functions; any thread may call them.

use crate::{DecodeError, MAX_KEY_BYTES, MAX_SEGMENT_BYTES, Pointer, RegionId, SegmentId};
use leaf::Shape;
use std::{cmp::Ordering, ops::Deref};

mod build;
mod leaf;
#[cfg(test)]
mod tests;

pub use build::{IndexNodeBuilder, LeafBuilder};
pub use leaf::Decoded;

/// Size of an index node, and most of a leaf with several entries, in bytes.
pub const NODE_BYTES: usize = 8 * 1024;
/// Every node is a multiple of it. Unit in which an index entry counts its child's bytes.
pub const BLOCK_BYTES: usize = 4 * 1024;
/// Version written into every node; others are refused.
pub const NODE_VERSION: u8 = 3;
const LEAF: u8 = NodeKind::Leaf as u8;
const INDEX: u8 = NodeKind::Index as u8;
/// The value that a packed leaf has in place of a node's kind.
pub(crate) const PACKED_LEAF: u8 = 2;

const WHAT: &str = "node";
const HEADER_BYTES: usize = 24;
const SLOT_BYTES: usize = 4;
const POINTER_BYTES: usize = 8;
const EXPIRY_BYTES: usize = 6;
/// Length of the shape that a uniform leaf stores once for all its entries.
const SHAPE_BYTES: usize = 8;
/// Kinds of leaf entries.
const LEAF_KINDS: u64 = 3;
/// Forms of a node.
const SLOTS: u8 = 0;
const UNIFORM: u8 = 1;

/// The place of a node, the same on every replica. It seeds the node's CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Region that the segment belongs to.
    pub region: RegionId,
    /// Identity among the segments of `region`.
    pub segment: SegmentId,
    /// Offset in the segment, in bytes.
    pub offset: u32,
}

impl Address {
    /// The same segment at another offset.
    #[must_use]
    pub fn at(self, offset: u32) -> Address {
        Address { offset, ..self }
    }

    /// Initial value of the CRC of bytes stored here.
    pub(crate) fn seed(self) -> u32 {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.region.0.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.segment.0.to_le_bytes());
        bytes[12..].copy_from_slice(&self.offset.to_le_bytes());
        crc32c::crc32c(&bytes)
    }

    /// CRC32C of `bytes` stored here.
    pub(crate) fn crc(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.seed(), bytes)
    }

    /// Computes the CRC of `bytes` stored here, into their first four bytes.
    pub(crate) fn seal(self, bytes: &mut [u8]) {
        let crc = self.crc(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeKind {
    /// Pairs and tombstones.
    Leaf = 0,
    /// Pivots and pointers.
    Index = 1,
}

/// The entry of a key, in L0 or in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The value itself.
    InPlace(&'a [u8]),
    /// The value is in a record of the large or the medium log.
    InLog {
        /// Address of the record.
        pointer: Pointer,
        /// Length of the value, in bytes.
        value_bytes: u32,
    },
    /// The key was deleted. With an expiry in its stamp, it had a value until then.
    Tombstone,
}

/// Child of an index node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Where it starts.
    pub pointer: Pointer,
    /// Its length in units of [`BLOCK_BYTES`].
    pub blocks: u32,
}

impl Child {
    /// Its length in bytes.
    pub fn bytes(self) -> usize {
        self.blocks as usize * BLOCK_BYTES
    }
}

/// A checked node over `bytes`.
#[derive(Clone, Debug)]
pub struct Node<B> {
    bytes: B,
    kind: NodeKind,
    lsn_bytes: u8,
    entries: u16,
    prefix_bytes: u16,
    base_lsn: u64,
    tombstones: u16,
    /// The shape of all entries of a uniform leaf.
    uniform: Option<Shape>,
}

/// Length of the node that starts with these bytes.
///
/// # Errors
/// They are not the start of a node of at most one segment.
pub fn node_bytes(start: &[u8]) -> Result<usize, DecodeError> {
    if start.len() < HEADER_BYTES {
        return Err(DecodeError::Short { what: WHAT, needed: HEADER_BYTES, available: start.len() });
    }
    let bytes = u32_at(start, 8) as usize;
    if start[4] != NODE_VERSION {
        return Err(DecodeError::invalid(WHAT, format!("version {} where {NODE_VERSION} is known", start[4])));
    }
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) || bytes > MAX_SEGMENT_BYTES {
        return Err(DecodeError::invalid(WHAT, format!("length of {bytes} bytes")));
    }
    Ok(bytes)
}

impl<B: Deref<Target = [u8]>> Node<B> {
    /// Checks `bytes`, which must be exactly one node that belongs at `address`.
    ///
    /// # Errors
    /// The bytes are damaged, belong to another address, or no writer of this version produces them.
    pub fn parse(bytes: B, address: Address) -> Result<Node<B>, DecodeError> {
        let len = node_bytes(&bytes)?;
        if len != bytes.len() {
            return Err(DecodeError::Short { what: WHAT, needed: len, available: bytes.len() });
        }
        let (found, expected) = (u32_at(&bytes, 0), address.crc(&bytes[4..]));
        if found != expected {
            return Err(DecodeError::Checksum { what: WHAT, found, expected });
        }
        Node::parse_unsealed(bytes)
    }

    /// The same node over a copy of its bytes.
    #[must_use]
    pub fn with_bytes<C: Deref<Target = [u8]>>(&self, copy: impl FnOnce(&[u8]) -> C) -> Node<C> {
        let bytes = copy(&self.bytes);
        debug_assert!(*bytes == *self.bytes, "a copy");
        let &Node { kind, lsn_bytes, entries, prefix_bytes, base_lsn, tombstones, uniform, .. } = self;
        Node { bytes, kind, lsn_bytes, entries, prefix_bytes, base_lsn, tombstones, uniform }
    }

    /// [`Node::parse`] of bytes that were checked by another checksum.
    pub(crate) fn parse_unsealed(bytes: B) -> Result<Node<B>, DecodeError> {
        if node_bytes(&bytes)? != bytes.len() {
            return Err(DecodeError::invalid(WHAT, "a length that is not its own"));
        }
        match (bytes[5], bytes[7]) {
            (LEAF, SLOTS | UNIFORM) | (INDEX, SLOTS) => {}
            (kind, form) => return Err(DecodeError::invalid(WHAT, format!("kind {kind} in form {form}"))),
        }
        let mut node = Node::unchecked(bytes);
        node.tombstones = node.check()?;
        Ok(node)
    }

    /// Reads the header of `bytes` without checks. Their length is a multiple of [`BLOCK_BYTES`].
    fn unchecked(bytes: B) -> Node<B> {
        Node {
            kind: if bytes[5] == LEAF { NodeKind::Leaf } else { NodeKind::Index },
            lsn_bytes: bytes[6],
            entries: u16_at(&bytes, 12),
            prefix_bytes: u16_at(&bytes, 14),
            base_lsn: u64_at(&bytes, 16),
            tombstones: 0,
            uniform: (bytes[7] == UNIFORM).then(|| Shape::decode(&bytes)),
            bytes,
        }
    }

    /// Checks everything that is ever read. Returns the number of tombstones.
    fn check(&self) -> Result<u16, DecodeError> {
        let bytes = &*self.bytes;
        let data = self.prefix_at() + usize::from(self.prefix_bytes);
        let has_length = match self.kind {
            NodeKind::Leaf => self.entries == 1 || bytes.len() <= NODE_BYTES,
            NodeKind::Index => bytes.len() == NODE_BYTES,
        };
        if self.entries == 0 || !has_length || data > bytes.len() {
            return Err(DecodeError::invalid(WHAT, format!("{} entries in {} bytes", self.entries, bytes.len())));
        }
        if self.lsn_bytes > 8 || usize::from(self.prefix_bytes) > MAX_KEY_BYTES {
            return Err(DecodeError::invalid(WHAT, "header out of range"));
        }
        if let Some(shape) = self.uniform {
            let tombstones = self.check_uniform(shape, data);
            return tombstones.ok_or_else(|| DecodeError::invalid(WHAT, format!("entries of {shape:?}")));
        }
        // Each entry begins where the one before it ends. So no two share bytes, and translating one does not change
        // others.
        let (mut tombstones, mut end) = (0, data);
        for i in 0..self.len() {
            let checked = match self.kind {
                _ if self.entry_at(i) != end => None,
                NodeKind::Leaf => self.check_leaf_entry(end),
                NodeKind::Index => self.check_index_entry(i, end).map(|end| (false, end)),
            };
            let Some((is_tombstone, entry_end)) = checked else {
                return Err(DecodeError::invalid(WHAT, format!("entry {i} is out of bounds")));
            };
            end = entry_end;
            tombstones += u16::from(is_tombstone);
        }
        Ok(tombstones)
    }

    /// Checks index entry `i` at `at`, and returns its end; `None` if it is invalid or not within the node.
    fn check_index_entry(&self, i: usize, at: usize) -> Option<usize> {
        let (suffix, at) = varint(&self.bytes, at)?;
        let (blocks, at) = varint(&self.bytes, at)?;
        let end = (at + POINTER_BYTES) as u64 + suffix;
        let bounded = suffix <= MAX_KEY_BYTES as u64
            && (i > 0 || suffix == 0)
            && (1..=(MAX_SEGMENT_BYTES / BLOCK_BYTES) as u64).contains(&blocks);
        (bounded && end <= self.bytes.len() as u64).then_some(end as usize)
    }

    /// Whether entries are pairs and tombstones, or pivots.
    pub fn kind(&self) -> NodeKind {
        self.kind
    }

    /// Number of entries; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a node is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.entries)
    }

    /// How many entries are tombstones.
    pub fn tombstones(&self) -> usize {
        usize::from(self.tombstones)
    }

    /// The bytes it was parsed from.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Bytes that every key of the node starts with (in an index node: every pivot but the first).
    pub fn prefix(&self) -> &[u8] {
        let at = self.prefix_at();
        &self.bytes[at..at + usize::from(self.prefix_bytes)]
    }

    /// Position of the child whose range holds `key`.
    pub fn child_of(&self, key: &[u8]) -> usize {
        debug_assert_eq!(self.kind, NodeKind::Index);
        match self.suffix_of(key) {
            Ok(suffix) => match self.search_suffix(suffix, 1, |node, i| node.pivot_suffix(i)) {
                Ok(i) => i,
                Err(i) => i - 1,
            },
            Err(Ordering::Less) => 0,
            Err(_) => self.len() - 1,
        }
    }

    /// The part of `key` after the common prefix. An error says on which side of all keys of the node `key` is.
    fn suffix_of<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Ordering> {
        let prefix = self.prefix();
        let shared = prefix.len().min(key.len());
        match key[..shared].cmp(&prefix[..shared]) {
            Ordering::Equal if key.len() >= prefix.len() => Ok(&key[prefix.len()..]),
            Ordering::Equal => Err(Ordering::Less),
            side => Err(side),
        }
    }

    #[inline]
    fn search_suffix<'s>(
        &'s self,
        suffix: &[u8],
        first: usize,
        suffix_at: impl Fn(&'s Self, usize) -> &'s [u8],
    ) -> Result<usize, usize> {
        let wanted = head(suffix);
        let (mut low, mut high) = (first, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let order = match self.head_at(middle).cmp(&wanted) {
                Ordering::Equal => suffix_at(self, middle).cmp(suffix),
                order => order,
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Child `i` of an index node.
    pub fn child(&self, i: usize) -> Child {
        debug_assert_eq!(self.kind, NodeKind::Index);
        let (_, at) = self.checked_varint(self.entry_at(i));
        let (blocks, at) = self.checked_varint(at);
        Child { pointer: Pointer(u64_at(&self.bytes, at)), blocks: blocks as u32 }
    }

    /// Replaces the contents of `pivot` with the pivot of index entry `i`; entry 0 has the empty one.
    pub fn pivot_into(&self, i: usize, pivot: &mut Vec<u8>) {
        pivot.clear();
        if i > 0 {
            pivot.extend_from_slice(self.prefix());
            pivot.extend_from_slice(self.pivot_suffix(i));
        }
    }

    fn pivot_suffix(&self, i: usize) -> &[u8] {
        let (suffix, at) = self.checked_varint(self.entry_at(i));
        let (_, at) = self.checked_varint(at);
        &self.bytes[at + POINTER_BYTES..at + POINTER_BYTES + suffix as usize]
    }

    /// Offset of the pointer of entry `i`, if it has one.
    fn pointer_at(&self, i: usize) -> Option<usize> {
        match self.kind {
            NodeKind::Leaf => self.leaf_pointer_at(i),
            NodeKind::Index => {
                let (_, at) = self.checked_varint(self.entry_at(i));
                Some(self.checked_varint(at).1)
            }
        }
    }

    #[inline]
    fn checked_varint(&self, at: usize) -> (u64, usize) {
        varint(&self.bytes, at).expect("parse checked every entry")
    }

    fn prefix_at(&self) -> usize {
        HEADER_BYTES + self.slots_bytes()
    }

    #[inline]
    fn entry_at(&self, i: usize) -> usize {
        usize::from(u16_at(&self.bytes, HEADER_BYTES + i * SLOT_BYTES))
    }

    #[inline]
    fn head_at(&self, i: usize) -> u16 {
        u16_at(&self.bytes, HEADER_BYTES + i * SLOT_BYTES + 2)
    }
}

/// Rewrites every pointer of the node `bytes` at the address `from` by `map` (Tebis 3.3). Then computes the CRC for the
/// address `to`. On an error `bytes` may be half rewritten and must not be used.
///
/// # Errors
/// The bytes are not a valid node of that address, or `map` does not know a pointer.
pub(crate) fn rewrite(
    bytes: &mut [u8],
    (from, to): (Address, Address),
    map: &mut dyn FnMut(Pointer) -> Option<Pointer>,
) -> Result<(), DecodeError> {
    let entries = Node::parse(&*bytes, from)?.len();
    for i in 0..entries {
        // The header is read anew for each pointer, because the node cannot be borrowed while it is written to.
        if let Some(at) = Node::trusted(bytes).pointer_at(i) {
            rewrite_pointer(&mut bytes[at..at + POINTER_BYTES], map)?;
        }
    }
    to.seal(bytes);
    Ok(())
}

/// Rewrites the pointer at `place`.
pub(crate) fn rewrite_pointer(
    place: &mut [u8],
    map: &mut dyn FnMut(Pointer) -> Option<Pointer>,
) -> Result<(), DecodeError> {
    let old = Pointer(u64_at(place, 0));
    let new = map(old).ok_or_else(|| DecodeError::invalid(WHAT, format!("pointer {old:?} into an unknown segment")))?;
    place.copy_from_slice(&new.0.to_le_bytes());
    Ok(())
}

impl<'a> Node<&'a [u8]> {
    /// A node over bytes that are known to be a valid one, except for the CRC. Tombstones are not counted.
    pub(crate) fn trusted(bytes: &'a [u8]) -> Node<&'a [u8]> {
        Node::unchecked(bytes)
    }

    /// Offsets of the pointers of its entries, in the order of the entries.
    pub(crate) fn pointer_places(&self) -> Vec<usize> {
        (0..self.len()).filter_map(|i| self.pointer_at(i)).collect()
    }
}

/// The shortest key `k` with `low < k <= high`: the pivot between two neighbours.
///
/// # Panics
/// If `low` is not below `high`: that is a bug of the caller.
pub fn separator<'h>(low: &[u8], high: &'h [u8]) -> &'h [u8] {
    assert!(low < high, "keys out of order");
    &high[..common_prefix(low, high) + 1]
}

/// Number of bytes that `a` and `b` share at their start.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn head(suffix: &[u8]) -> u16 {
    match suffix {
        [] => 0,
        [only] => u16::from_be_bytes([*only, 0]),
        [first, second, ..] => u16::from_be_bytes([*first, *second]),
    }
}

/// Little-endian base-128 number at `at`, at most 32 bits, and where it ends.
#[inline]
fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 {
        return Some((u64::from(first), at + 1));
    }
    let mut value = u64::from(first & 0x7f);
    for i in 1..5 {
        let byte = *bytes.get(at + i)?;
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Some((value, at + i + 1));
        }
    }
    None
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
