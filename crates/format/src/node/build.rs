//! Building nodes: entries arrive in key order. They are laid out at the end, when their common prefix is known.
//!
//! A builder knows exactly whether one more entry fits. It keeps its buffers between nodes, and belongs to one thread.

use super::leaf::{EXPIRING, IN_LOG, IN_PLACE, Shape, TOMBSTONE};
use super::{
    Address, Child, EXPIRY_BYTES, Entry, HEADER_BYTES, NODE_BYTES, NODE_VERSION, NodeKind, POINTER_BYTES, SHAPE_BYTES,
    SLOT_BYTES, UNIFORM, common_prefix, head,
};
use crate::{Expiry, Stamp};

/// Collects the entries of one leaf.
///
/// A leaf takes as many units as its entries need, in [`NODE_BYTES`] at most unless it is a jumbo one. It ends within the first
/// unit if they fill seven eighths of it.
#[derive(Debug)]
pub struct LeafBuilder {
    unit: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    entries: Vec<Pending>,
    size: Size,
}

/// The figures that determine the size of a leaf.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    entries: usize,
    prefix_bytes: usize,
    /// Bytes of all keys.
    key_bytes: usize,
    /// Bytes of all entries apart from keys and LSNs, in a leaf with slots.
    fixed_bytes: usize,
    min_lsn: u64,
    max_lsn: u64,
    /// The shape of all entries, with whole keys as suffixes, if there are several entries and they have the same
    /// shape.
    uniform: Option<Shape>,
    /// Bytes of the node, before they are rounded up.
    bytes: usize,
}

impl Size {
    /// Bytes of the LSN of each entry.
    fn lsn_bytes(&self) -> usize {
        (64 - (self.max_lsn - self.min_lsn).leading_zeros() as usize).div_ceil(8)
    }

    /// With [`Size::bytes`], which follow from the others.
    #[inline]
    fn counted(self) -> Size {
        let entries = match self.uniform {
            Some(shape) => SHAPE_BYTES + self.entries * shape.behind(self.prefix_bytes).body_bytes(self.lsn_bytes()),
            None => {
                let suffixes = self.key_bytes - self.entries * self.prefix_bytes;
                self.entries * (SLOT_BYTES + self.lsn_bytes()) + suffixes + self.fixed_bytes
            }
        };
        Size { bytes: HEADER_BYTES + self.prefix_bytes + entries, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    key: (usize, usize),
    lsn: u64,
    expires: Option<Expiry>,
    /// With the whole key as suffix.
    shape: Shape,
    /// Start in `values` of a value in place; the pointer of one in the log.
    value_at: u64,
}

impl LeafBuilder {
    /// Leaves that are a multiple of `unit` bytes, [`BLOCK_BYTES`](super::BLOCK_BYTES) or [`NODE_BYTES`].
    pub fn new(unit: usize) -> LeafBuilder {
        assert!(unit.is_power_of_two(), "nodes are made of blocks");
        LeafBuilder { unit, keys: Vec::new(), values: Vec::new(), entries: Vec::new(), size: Size::default() }
    }

    /// Number of entries taken so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing was taken yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Key of the last entry taken; empty while there is none.
    pub fn last_key(&self) -> &[u8] {
        self.entries.last().map_or(&[], |last| &self.keys[last.key.0..last.key.1])
    }

    /// Bytes of a leaf with only this entry.
    pub fn single_bytes(&self, key: &[u8], stamp: impl Into<Stamp>, entry: Entry<'_>) -> usize {
        let shape = Shape::of(key, stamp.into().expires, entry);
        self.rounded(HEADER_BYTES + SLOT_BYTES + key.len() + fixed_bytes(shape))
    }

    /// The next multiple of the unit. The unit is a power of two.
    #[inline]
    fn rounded(&self, bytes: usize) -> usize {
        (bytes + self.unit - 1) & !(self.unit - 1)
    }

    /// Bytes of the node with the entries so far.
    pub fn node_bytes(&self) -> usize {
        self.rounded(self.size.bytes)
    }

    /// Most bytes that the node may have with further entries.
    pub fn most_bytes(&self) -> usize {
        self.node_bytes().max(NODE_BYTES)
    }

    /// Whether the leaf ends before an entry that makes it so large.
    fn ends_before(&self, size: Size) -> bool {
        let (bytes, with_entry) = (self.size.bytes, size.bytes);
        let fills_unit = self.unit - self.unit / 8 <= bytes && bytes <= self.unit;
        with_entry > NODE_BYTES || fills_unit && with_entry > self.unit
    }

    /// Takes an entry. Returns `false` if it does not fit beside those already taken. An empty leaf takes any entry,
    /// and grows as needed.
    ///
    /// # Panics
    /// In tests, if `key` is not above the last one.
    pub fn push(&mut self, key: &[u8], stamp: impl Into<Stamp>, entry: Entry<'_>) -> bool {
        let Stamp { lsn, expires } = stamp.into();
        debug_assert!(self.is_empty() || self.last_key() < key, "keys out of order");
        let shape = Shape::of(key, expires, entry);
        let size = self.size_with(key, lsn.0, shape);
        if !self.is_empty() && self.ends_before(size) {
            return false;
        }
        let key_at = self.keys.len();
        self.keys.extend_from_slice(key);
        let value_at = match entry {
            Entry::InPlace(value) => {
                self.values.extend_from_slice(value);
                (self.values.len() - value.len()) as u64
            }
            Entry::InLog { pointer, .. } => pointer.0,
            Entry::Tombstone => 0,
        };
        self.entries.push(Pending { key: (key_at, self.keys.len()), lsn: lsn.0, expires, shape, value_at });
        self.size = size;
        true
    }

    /// The size with one more entry.
    fn size_with(&self, key: &[u8], lsn: u64, shape: Shape) -> Size {
        let (prefix_bytes, lsns, uniform) = match &self.entries[..] {
            [] => (key.len(), (lsn, lsn), None),
            [first, more @ ..] => {
                let prefix = &self.keys[first.key.0..first.key.0 + self.size.prefix_bytes];
                let shared = if key.starts_with(prefix) { prefix.len() } else { common_prefix(prefix, key) };
                let is_same = first.shape == shape && (more.is_empty() || self.size.uniform.is_some());
                let lsns = (self.size.min_lsn.min(lsn), self.size.max_lsn.max(lsn));
                (shared, lsns, is_same.then_some(shape))
            }
        };
        Size {
            entries: self.size.entries + 1,
            prefix_bytes,
            key_bytes: self.size.key_bytes + key.len(),
            fixed_bytes: self.size.fixed_bytes + fixed_bytes(shape),
            min_lsn: lsns.0,
            max_lsn: lsns.1,
            uniform,
            bytes: 0,
        }
        .counted()
    }

    /// Appends the node, which will live at `address`, to `out` and starts over with an empty leaf.
    ///
    /// # Panics
    /// If nothing was taken: that is a bug of the caller.
    pub fn finish(&mut self, address: Address, out: &mut Vec<u8>) {
        let prefix_bytes = self.size.prefix_bytes;
        let prefix = &self.keys[..prefix_bytes];
        let lsn_bytes = self.size.lsn_bytes();
        let mut node = Layout::start(out, self.node_bytes(), NodeKind::Leaf, self.entries.len());
        node.header(lsn_bytes as u8, self.size.min_lsn);
        match self.size.uniform {
            Some(shape) => node.uniform(shape.behind(prefix_bytes), prefix),
            None => node.slots(prefix),
        }
        for (i, entry) in self.entries.iter().enumerate() {
            let suffix = &self.keys[entry.key.0 + prefix_bytes..entry.key.1];
            if self.size.uniform.is_none() {
                node.slot(i, suffix);
                node.lengths(entry.shape.behind(prefix_bytes));
            }
            if let Some(expires) = entry.expires {
                node.put(&expires.ms().to_le_bytes()[..EXPIRY_BYTES]);
            }
            node.put(&(entry.lsn - self.size.min_lsn).to_le_bytes()[..lsn_bytes]);
            if entry.shape.kind == IN_LOG {
                node.put(&entry.value_at.to_le_bytes());
            }
            node.put(suffix);
            if entry.shape.kind == IN_PLACE {
                let at = entry.value_at as usize;
                node.put(&self.values[at..at + entry.shape.value_bytes as usize]);
            }
        }
        node.finish(address);
        self.keys.clear();
        self.values.clear();
        self.entries.clear();
        self.size = Size::default();
    }
}

/// Collects the entries of one index node.
#[derive(Debug, Default)]
pub struct IndexNodeBuilder {
    pivots: Vec<u8>,
    entries: Vec<((usize, usize), Child)>,
    prefix_bytes: usize,
    fixed_bytes: usize,
}

impl IndexNodeBuilder {
    /// Number of children taken so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing was taken yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes a child whose keys are all at or above `pivot`. Returns `false` if it does not fit. The first child's
    /// pivot is not kept: an empty builder takes any child, and a second one always fits.
    pub fn push(&mut self, pivot: &[u8], child: Child) -> bool {
        let (prefix_bytes, bytes) = self.bytes_with(pivot);
        if bytes > NODE_BYTES {
            return false;
        }
        let kept = if self.is_empty() { &[] } else { pivot };
        self.entries.push(((self.pivots.len(), self.pivots.len() + kept.len()), child));
        self.pivots.extend_from_slice(kept);
        self.prefix_bytes = prefix_bytes;
        self.fixed_bytes += INDEX_FIXED_BYTES;
        true
    }

    /// Whether a child with this pivot still fits.
    pub fn fits(&self, pivot: &[u8]) -> bool {
        self.bytes_with(pivot).1 <= NODE_BYTES
    }

    /// Length of the common prefix and of the node with one more pivot.
    fn bytes_with(&self, pivot: &[u8]) -> (usize, usize) {
        let (prefix, pivots) = match self.entries.get(1) {
            None if self.is_empty() => (0, 0),
            None => (pivot.len(), pivot.len()),
            Some(_) => (common_prefix(&self.pivots[..self.prefix_bytes], pivot), self.pivots.len() + pivot.len()),
        };
        let with_pivot = self.entries.len();
        let fixed = self.fixed_bytes + INDEX_FIXED_BYTES + (self.entries.len() + 1) * SLOT_BYTES;
        (prefix, HEADER_BYTES + prefix + fixed + pivots - with_pivot * prefix)
    }

    /// Appends the node, which will live at `address`, to `out` and starts over with an empty one.
    ///
    /// # Panics
    /// If nothing was taken: that is a bug of the caller.
    pub fn finish(&mut self, address: Address, out: &mut Vec<u8>) {
        let prefix = &self.pivots[..self.prefix_bytes];
        let mut node = Layout::start(out, NODE_BYTES, NodeKind::Index, self.entries.len());
        node.header(0, 0);
        node.slots(prefix);
        for (i, (pivot, child)) in self.entries.iter().enumerate() {
            let suffix = if i == 0 { &[][..] } else { &self.pivots[pivot.0 + prefix.len()..pivot.1] };
            node.slot(i, suffix);
            node.varint(suffix.len() as u64);
            node.varint(u64::from(child.blocks));
            node.put(&child.pointer.0.to_le_bytes());
            node.put(suffix);
        }
        node.finish(address);
        self.pivots.clear();
        self.entries.clear();
        self.prefix_bytes = 0;
        self.fixed_bytes = 0;
    }
}

/// Most bytes of an index entry beside its slot and suffix: two for the length of the suffix, two for the blocks, and
/// the pointer.
const INDEX_FIXED_BYTES: usize = 2 + 2 + POINTER_BYTES;

/// Most bytes of a leaf entry beside its slot, LSN and suffix: computed with the whole key as suffix.
fn fixed_bytes(shape: Shape) -> usize {
    let (first, second) = lengths(shape);
    let body = shape.body_bytes(0) - usize::from(shape.suffix_bytes);
    varint_bytes(first) + second.map_or(0, varint_bytes) + body
}

/// The numbers in front of an entry that encode its shape.
fn lengths(shape: Shape) -> (u64, Option<u64>) {
    let (suffix_bytes, value_bytes) = (u64::from(shape.suffix_bytes) << 2, u64::from(shape.value_bytes));
    match shape.kind {
        kind if shape.expires => (suffix_bytes | u64::from(EXPIRING), Some(value_bytes << 2 | u64::from(kind))),
        TOMBSTONE => (suffix_bytes | u64::from(TOMBSTONE), None),
        kind => (suffix_bytes | u64::from(kind), Some(value_bytes)),
    }
}

fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Writes one node at the end of a buffer.
struct Layout<'a> {
    node: &'a mut [u8],
    entries: usize,
    at: usize,
}

impl<'a> Layout<'a> {
    fn start(out: &'a mut Vec<u8>, bytes: usize, kind: NodeKind, entries: usize) -> Layout<'a> {
        assert!(entries > 0, "a node is never empty");
        let start = out.len();
        out.resize(start + bytes, 0);
        let node = &mut out[start..];
        node[4] = NODE_VERSION;
        node[5] = kind as u8;
        node[8..12].copy_from_slice(&(bytes as u32).to_le_bytes());
        node[12..14].copy_from_slice(&(entries as u16).to_le_bytes());
        Layout { node, entries, at: HEADER_BYTES }
    }

    fn header(&mut self, lsn_bytes: u8, base_lsn: u64) {
        self.node[6] = lsn_bytes;
        self.node[16..24].copy_from_slice(&base_lsn.to_le_bytes());
    }

    /// Leaves room for the slots, and writes the common prefix after them.
    fn slots(&mut self, prefix: &[u8]) {
        self.at += self.entries * SLOT_BYTES;
        self.prefix(prefix);
    }

    /// Writes the shape of all entries, and the common prefix after it.
    fn uniform(&mut self, shape: Shape, prefix: &[u8]) {
        self.node[7] = UNIFORM;
        self.put(&shape.encode());
        self.prefix(prefix);
    }

    fn prefix(&mut self, prefix: &[u8]) {
        self.node[14..16].copy_from_slice(&(prefix.len() as u16).to_le_bytes());
        self.put(prefix);
    }

    fn slot(&mut self, i: usize, suffix: &[u8]) {
        let slot = HEADER_BYTES + i * SLOT_BYTES;
        let offset = u16::try_from(self.at).expect("entries start in the first 8 KiB");
        self.node[slot..slot + 2].copy_from_slice(&offset.to_le_bytes());
        self.node[slot + 2..slot + 4].copy_from_slice(&head(suffix).to_le_bytes());
    }

    /// Writes the shape in front of an entry, in a leaf with slots.
    fn lengths(&mut self, shape: Shape) {
        let (first, second) = lengths(shape);
        self.varint(first);
        second.into_iter().for_each(|second| self.varint(second));
    }

    fn put(&mut self, bytes: &[u8]) {
        self.node[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.put(&[value as u8]);
    }

    fn finish(self, address: Address) {
        address.seal(self.node);
    }
}
