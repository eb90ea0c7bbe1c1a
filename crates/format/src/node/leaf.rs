//! The entries of a leaf, read in place. Each entry has a *shape*, its kind and lengths, which determines where its
//! parts are. A leaf with slots stores the shape of each entry in front of it. A uniform leaf, whose entries all have
//! the same shape, stores it once, and its entries are found by multiplication.
//!
//! Everything here but `check_leaf_entry` and [`Shape::new`] reads what [`Node::parse`] has checked.

use super::{
    EXPIRY_BYTES, Entry, HEADER_BYTES, LEAF_KINDS, Node, NodeKind, POINTER_BYTES, SHAPE_BYTES, SLOT_BYTES, u16_at,
    u32_at, u64_at, varint,
};
use crate::{Expiry, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, Pointer, Stamp};
use std::{cmp::Ordering, ops::Deref};

pub(super) const IN_PLACE: u8 = 0;
pub(super) const IN_LOG: u8 = 1;
pub(super) const TOMBSTONE: u8 = 2;
/// In place of the kind in front of an entry: the entry has an expiry, and the second varint holds the kind beside the
/// length of the value (0 for a tombstone).
pub(super) const EXPIRING: u8 = 3;

/// The shape of an entry. In a builder the suffix is the whole key, until the common prefix is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the key after the common prefix.
    pub(super) suffix_bytes: u16,
    /// One of [`IN_PLACE`], [`IN_LOG`] and [`TOMBSTONE`].
    pub(super) kind: u8,
    /// It has an expiry.
    pub(super) expires: bool,
    /// Bytes of the value; 0 for a tombstone.
    pub(super) value_bytes: u32,
}

/// A leaf entry, decoded: its stamp, and where its parts are in the leaf.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
    stamp: Stamp,
    shape: Shape,
    suffix_at: u32,
}

impl Decoded {
    /// LSN and expiry of the entry.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl Shape {
    /// The shape with these numbers; `None` if no writer makes it after a common prefix of `prefix_bytes`.
    fn new(prefix_bytes: u16, suffix_bytes: u64, kind: u64, expires: bool, value_bytes: u64) -> Option<Shape> {
        let key_bytes = suffix_bytes.checked_add(u64::from(prefix_bytes))?;
        let is_possible = (1..=MAX_KEY_BYTES as u64).contains(&key_bytes)
            && kind < LEAF_KINDS
            && value_bytes <= MAX_VALUE_BYTES as u64
            && (kind != u64::from(TOMBSTONE) || value_bytes == 0);
        let shape =
            || Shape { suffix_bytes: suffix_bytes as u16, kind: kind as u8, expires, value_bytes: value_bytes as u32 };
        is_possible.then(shape)
    }

    /// The shape of an entry whose suffix is the whole key.
    pub(super) fn of(key: &[u8], expires: Option<Expiry>, entry: Entry<'_>) -> Shape {
        let (kind, value_bytes) = match entry {
            Entry::InPlace(value) => (IN_PLACE, value.len() as u32),
            Entry::InLog { value_bytes, .. } => (IN_LOG, value_bytes),
            Entry::Tombstone => (TOMBSTONE, 0),
        };
        Shape { suffix_bytes: key.len() as u16, kind, expires: expires.is_some(), value_bytes }
    }

    /// The same with a suffix that is shorter by `bytes`.
    pub(super) fn behind(self, bytes: usize) -> Shape {
        Shape { suffix_bytes: self.suffix_bytes - bytes as u16, ..self }
    }

    /// Offset of its LSN, from the start of the body.
    #[inline]
    fn delta_at(self) -> usize {
        if self.expires { EXPIRY_BYTES } else { 0 }
    }

    /// Offset of its suffix, from the start of the body.
    #[inline]
    fn suffix_at(self, lsn_bytes: usize) -> usize {
        self.delta_at() + lsn_bytes + if self.kind == IN_LOG { POINTER_BYTES } else { 0 }
    }

    /// Bytes of its body, from the expiry to the end of the value.
    #[inline]
    pub(super) fn body_bytes(self, lsn_bytes: usize) -> usize {
        let in_place = if self.kind == IN_PLACE { self.value_bytes as usize } else { 0 };
        self.suffix_at(lsn_bytes) + usize::from(self.suffix_bytes) + in_place
    }

    /// Its bytes in a uniform leaf.
    pub(super) fn encode(self) -> [u8; SHAPE_BYTES] {
        let mut bytes = [0; SHAPE_BYTES];
        bytes[..2].copy_from_slice(&self.suffix_bytes.to_le_bytes());
        (bytes[2], bytes[3]) = (self.kind, u8::from(self.expires));
        bytes[4..].copy_from_slice(&self.value_bytes.to_le_bytes());
        bytes
    }

    /// The shape in the uniform leaf `bytes`, unchecked.
    pub(super) fn decode(bytes: &[u8]) -> Shape {
        Shape {
            suffix_bytes: u16_at(bytes, HEADER_BYTES),
            kind: bytes[HEADER_BYTES + 2],
            expires: bytes[HEADER_BYTES + 3] != 0,
            value_bytes: u32_at(bytes, HEADER_BYTES + 4),
        }
    }
}

impl<B: Deref<Target = [u8]>> Node<B> {
    /// Checks a uniform leaf of this shape, whose entries begin at `data`. Returns how many are tombstones; `None` if
    /// an entry is invalid or not within the node.
    pub(super) fn check_uniform(&self, shape: Shape, data: usize) -> Option<u16> {
        let expires = match self.bytes[HEADER_BYTES + 3] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (suffix, value) = (u64::from(shape.suffix_bytes), u64::from(shape.value_bytes));
        let shape = Shape::new(self.prefix_bytes, suffix, u64::from(shape.kind), expires, value)?;
        let end = data as u64 + self.len() as u64 * shape.body_bytes(usize::from(self.lsn_bytes)) as u64;
        // Different keys have at least a byte after their common prefix.
        let is_whole = (shape.suffix_bytes > 0 || self.len() == 1) && end <= self.bytes.len() as u64;
        let valid = is_whole && (!expires || (0..self.len()).all(|i| self.expiry_at(self.leaf_entry(i).1).is_some()));
        valid.then_some(if shape.kind == TOMBSTONE { self.entries } else { 0 })
    }

    /// Checks the leaf entry at `at`. Returns whether it is a tombstone, and its end; `None` if it is invalid or not
    /// within the node.
    pub(super) fn check_leaf_entry(&self, at: usize) -> Option<(bool, usize)> {
        let (first, at) = varint(&self.bytes, at)?;
        let mut kind = first & 3;
        let (mut value, at) = if kind == u64::from(TOMBSTONE) { (0, at) } else { varint(&self.bytes, at)? };
        let expires = kind == u64::from(EXPIRING);
        if expires {
            (value, kind) = (value >> 2, value & 3);
            self.expiry_at(at)?;
        }
        let shape = Shape::new(self.prefix_bytes, first >> 2, kind, expires, value)?;
        let end = at + shape.body_bytes(usize::from(self.lsn_bytes));
        (end <= self.bytes.len()).then_some((shape.kind == TOMBSTONE, end))
    }

    /// The shape of leaf entry `i`, and the offset of its body.
    #[inline]
    fn leaf_entry(&self, i: usize) -> (Shape, usize) {
        debug_assert!(self.kind == NodeKind::Leaf && i < self.len());
        if let Some(shape) = self.uniform {
            return (shape, self.data_at() + i * shape.body_bytes(usize::from(self.lsn_bytes)));
        }
        let (first, at) = self.checked_varint(self.entry_at(i));
        let (suffix_bytes, kind) = ((first >> 2) as u16, first as u8 & 3);
        if kind == TOMBSTONE {
            return (Shape { suffix_bytes, kind, expires: false, value_bytes: 0 }, at);
        }
        let (value, at) = self.checked_varint(at);
        let shape = match kind {
            EXPIRING => Shape { suffix_bytes, kind: value as u8 & 3, expires: true, value_bytes: (value >> 2) as u32 },
            _ => Shape { suffix_bytes, kind, expires: false, value_bytes: value as u32 },
        };
        (shape, at)
    }

    /// Position of `key`, or where it would be inserted.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        debug_assert_eq!(self.kind, NodeKind::Leaf);
        match (self.suffix_of(key), self.uniform) {
            (Ok(suffix), None) => self.search_suffix(suffix, 0, |node, i| node.suffix(i)),
            (Ok(suffix), Some(shape)) => self.search_uniform(suffix, shape),
            (Err(Ordering::Less), _) => Err(0),
            (Err(_), _) => Err(self.len()),
        }
    }

    fn search_uniform(&self, suffix: &[u8], shape: Shape) -> Result<usize, usize> {
        let lsn_bytes = usize::from(self.lsn_bytes);
        let (first, stride) = (self.data_at() + shape.suffix_at(lsn_bytes), shape.body_bytes(lsn_bytes));
        let wanted = long_head(suffix);
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let at = first + middle * stride;
            let found = &self.bytes[at..at + usize::from(shape.suffix_bytes)];
            match long_head(found).cmp(&wanted).then_with(|| found.cmp(suffix)) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Suffix of the key of leaf entry `i`.
    #[inline]
    pub fn suffix(&self, i: usize) -> &[u8] {
        let (shape, at) = self.leaf_entry(i);
        let at = at + shape.suffix_at(usize::from(self.lsn_bytes));
        &self.bytes[at..at + usize::from(shape.suffix_bytes)]
    }

    /// Replaces the contents of `key` with the key of leaf entry `i`.
    pub fn key_into(&self, i: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(i));
    }

    /// The expiry at `at`, if there is a valid one.
    fn expiry_at(&self, at: usize) -> Option<Expiry> {
        let bytes = self.bytes.get(at..at + EXPIRY_BYTES)?;
        let mut ms = [0; 8];
        ms[..EXPIRY_BYTES].copy_from_slice(bytes);
        Expiry::from_ms(u64::from_le_bytes(ms))
    }

    /// LSN, expiry and contents of leaf entry `i`.
    #[inline]
    pub fn entry(&self, i: usize) -> (Stamp, Entry<'_>) {
        let decoded = self.decode(i);
        (decoded.stamp, self.decoded_contents(&decoded))
    }

    /// Leaf entry `i`, for [`Node::decoded_suffix`] and [`Node::decoded_contents`].
    #[inline]
    pub fn decode(&self, i: usize) -> Decoded {
        let (shape, at) = self.leaf_entry(i);
        let lsn_bytes = usize::from(self.lsn_bytes);
        let lsn = Lsn(self.base_lsn.wrapping_add(self.delta(at + shape.delta_at(), lsn_bytes)));
        let stamp = Stamp { lsn, expires: if shape.expires { self.expiry_at(at) } else { None } };
        Decoded { stamp, shape, suffix_at: (at + shape.suffix_at(lsn_bytes)) as u32 }
    }

    /// A number of `bytes` bytes, eight at most.
    #[inline]
    fn delta(&self, at: usize, bytes: usize) -> u64 {
        match self.bytes.get(at..at + 8).and_then(|word| word.first_chunk()) {
            Some(word) if bytes < 8 => u64::from_le_bytes(*word) & ((1 << (8 * bytes)) - 1),
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                word[..bytes].copy_from_slice(&self.bytes[at..at + bytes]);
                u64::from_le_bytes(word)
            }
        }
    }

    /// Suffix of the key of an entry that this leaf has decoded.
    #[inline]
    pub fn decoded_suffix(&self, decoded: &Decoded) -> &[u8] {
        let at = decoded.suffix_at as usize;
        &self.bytes[at..at + usize::from(decoded.shape.suffix_bytes)]
    }

    /// Contents of an entry that this leaf has decoded.
    #[inline]
    pub fn decoded_contents(&self, decoded: &Decoded) -> Entry<'_> {
        let (shape, at) = (decoded.shape, decoded.suffix_at as usize);
        match shape.kind {
            IN_PLACE => {
                let value_at = at + usize::from(shape.suffix_bytes);
                Entry::InPlace(&self.bytes[value_at..value_at + shape.value_bytes as usize])
            }
            IN_LOG => Entry::InLog {
                pointer: Pointer(u64_at(&self.bytes, at - POINTER_BYTES)),
                value_bytes: shape.value_bytes,
            },
            _ => Entry::Tombstone,
        }
    }

    /// Offset of the pointer of leaf entry `i`, if it has one.
    pub(super) fn leaf_pointer_at(&self, i: usize) -> Option<usize> {
        let (shape, at) = self.leaf_entry(i);
        (shape.kind == IN_LOG).then(|| at + shape.delta_at() + usize::from(self.lsn_bytes))
    }

    /// Offset of the first entry of a uniform leaf.
    #[inline]
    fn data_at(&self) -> usize {
        self.prefix_at() + usize::from(self.prefix_bytes)
    }

    /// Bytes between the header and the common prefix.
    #[inline]
    pub(super) fn slots_bytes(&self) -> usize {
        if self.uniform.is_some() { SHAPE_BYTES } else { self.len() * SLOT_BYTES }
    }
}

/// First eight bytes of a suffix, big endian, zero padded. If two differ, their order is that of the suffixes.
#[inline]
fn long_head(suffix: &[u8]) -> u64 {
    let head = match suffix.first_chunk() {
        Some(first) => *first,
        None => std::array::from_fn(|i| suffix.get(i).copied().unwrap_or(0)),
    };
    u64::from_be_bytes(head)
}
