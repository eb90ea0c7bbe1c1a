//! Building nodes: entries are taken in key order and laid out at the end, when their common prefix is known.
//!
//! A builder answers exactly whether one more entry fits, keeps its buffers between nodes, and belongs to one thread.

use super::{
    Address, Child, EXPIRING, EXPIRY_BYTES, Entry, HEADER_BYTES, IN_LOG, IN_PLACE, NODE_BYTES, NODE_VERSION, NodeKind,
    POINTER_BYTES, SLOT_BYTES, TOMBSTONE, common_prefix, head,
};
use crate::{Expiry, Stamp};

/// Collects the entries of one leaf.
#[derive(Debug, Default)]
pub struct LeafBuilder {
    keys: Vec<u8>,
    values: Vec<u8>,
    entries: Vec<Pending>,
    prefix_bytes: usize,
    /// Bytes of all entries apart from keys and LSNs.
    fixed_bytes: usize,
    min_lsn: u64,
    max_lsn: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    key: (usize, usize),
    lsn: u64,
    expires: Option<Expiry>,
    kind: u64,
    /// Length of the value; where it is in place, it starts at `value_at` of `values`.
    value_bytes: usize,
    /// Start in `values` of a value in place; the pointer of one in the log.
    value_at: u64,
}

impl LeafBuilder {
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

    /// Bytes of a leaf with this entry alone.
    pub fn single_bytes(key: &[u8], stamp: impl Into<Stamp>, entry: Entry<'_>) -> usize {
        let bytes = HEADER_BYTES + SLOT_BYTES + key.len() + fixed_bytes(key, stamp.into().expires, entry);
        bytes.next_multiple_of(NODE_BYTES)
    }

    /// Bytes of the node as it stands.
    pub fn node_bytes(&self) -> usize {
        self.bytes_with(
            self.entries.len(),
            self.prefix_bytes,
            self.keys.len(),
            self.fixed_bytes,
            self.min_lsn..=self.max_lsn,
        )
        .next_multiple_of(NODE_BYTES)
    }

    /// Takes an entry, unless it does not fit beside those already taken: then answers `false`. An empty leaf takes
    /// any entry and grows to what it needs.
    ///
    /// # Panics
    /// In tests, if `key` is not above the last one.
    pub fn push(&mut self, key: &[u8], stamp: impl Into<Stamp>, entry: Entry<'_>) -> bool {
        let Stamp { lsn, expires } = stamp.into();
        debug_assert!(self.is_empty() || self.last_key() < key, "keys out of order");
        let (prefix_bytes, lsns) = match self.entries.first() {
            None => (key.len(), lsn.0..=lsn.0),
            Some(first) => {
                let prefix = &self.keys[first.key.0..first.key.0 + self.prefix_bytes];
                let shared = if key.starts_with(prefix) { prefix.len() } else { common_prefix(prefix, key) };
                (shared, self.min_lsn.min(lsn.0)..=self.max_lsn.max(lsn.0))
            }
        };
        let fixed = self.fixed_bytes + fixed_bytes(key, expires, entry);
        let bytes =
            self.bytes_with(self.entries.len() + 1, prefix_bytes, self.keys.len() + key.len(), fixed, lsns.clone());
        if !self.is_empty() && bytes > NODE_BYTES {
            return false;
        }
        let key_at = self.keys.len();
        self.keys.extend_from_slice(key);
        let (kind, value_bytes, value_at) = match entry {
            Entry::InPlace(value) => {
                self.values.extend_from_slice(value);
                (IN_PLACE, value.len(), (self.values.len() - value.len()) as u64)
            }
            Entry::InLog { pointer, value_bytes } => (IN_LOG, value_bytes as usize, pointer.0),
            Entry::Tombstone => (TOMBSTONE, 0, 0),
        };
        let key = (key_at, self.keys.len());
        self.entries.push(Pending { key, lsn: lsn.0, expires, kind, value_bytes, value_at });
        self.prefix_bytes = prefix_bytes;
        self.fixed_bytes = fixed;
        (self.min_lsn, self.max_lsn) = (*lsns.start(), *lsns.end());
        true
    }

    fn bytes_with(
        &self,
        entries: usize,
        prefix: usize,
        keys: usize,
        fixed: usize,
        lsns: std::ops::RangeInclusive<u64>,
    ) -> usize {
        let per_entry = SLOT_BYTES + lsn_bytes(lsns.end() - lsns.start());
        HEADER_BYTES + prefix + entries * per_entry + keys - entries * prefix + fixed
    }

    /// Appends the node, which will live at `address`, to `out` and starts over with an empty leaf.
    ///
    /// # Panics
    /// If nothing was taken: that is a bug of the caller.
    pub fn finish(&mut self, address: Address, out: &mut Vec<u8>) {
        let prefix_bytes = self.prefix_bytes;
        let prefix = &self.keys[..prefix_bytes];
        let lsn_bytes = lsn_bytes(self.max_lsn - self.min_lsn);
        let mut node = Layout::start(out, self.node_bytes(), NodeKind::Leaf, self.entries.len(), prefix);
        node.header(lsn_bytes as u8, self.min_lsn);
        for (i, entry) in self.entries.iter().enumerate() {
            let suffix = &self.keys[entry.key.0 + prefix_bytes..entry.key.1];
            node.slot(i, suffix);
            node.lengths(suffix.len(), entry);
            node.put(&(entry.lsn - self.min_lsn).to_le_bytes()[..lsn_bytes]);
            if entry.kind == IN_LOG {
                node.put(&entry.value_at.to_le_bytes());
            }
            node.put(suffix);
            if entry.kind == IN_PLACE {
                let at = entry.value_at as usize;
                node.put(&self.values[at..at + entry.value_bytes]);
            }
        }
        node.finish(address);
        self.keys.clear();
        self.values.clear();
        self.entries.clear();
        self.fixed_bytes = 0;
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

    /// Takes a child whose keys are all at or above `pivot`, unless it does not fit: then answers `false`. The first
    /// child's pivot is not kept: an empty builder takes any child, and a second one always fits.
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
        let mut node = Layout::start(out, NODE_BYTES, NodeKind::Index, self.entries.len(), prefix);
        node.header(0, 0);
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

/// Bytes of an index entry beside its slot and suffix, at most: a suffix takes two bytes of length, blocks two.
const INDEX_FIXED_BYTES: usize = 2 + 2 + POINTER_BYTES;

/// Bytes of a leaf entry beside its slot, LSN and suffix, at most: as if the suffix were the whole key.
fn fixed_bytes(key: &[u8], expires: Option<Expiry>, entry: Entry<'_>) -> usize {
    let lengths = varint_bytes((key.len() as u64) << 2);
    let value_length = |bytes: u64| match expires {
        None => varint_bytes(bytes),
        Some(_) => varint_bytes(bytes << 2) + EXPIRY_BYTES,
    };
    match entry {
        Entry::Tombstone if expires.is_some() => lengths + value_length(0),
        Entry::InPlace(value) => lengths + value_length(value.len() as u64) + value.len(),
        Entry::InLog { value_bytes, .. } => lengths + value_length(u64::from(value_bytes)) + POINTER_BYTES,
        Entry::Tombstone => lengths,
    }
}

fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Bytes that hold `delta`.
fn lsn_bytes(delta: u64) -> usize {
    (64 - delta.leading_zeros() as usize).div_ceil(8)
}

/// Writes one node at the end of a buffer.
struct Layout<'a> {
    node: &'a mut [u8],
    at: usize,
}

impl<'a> Layout<'a> {
    fn start(out: &'a mut Vec<u8>, bytes: usize, kind: NodeKind, entries: usize, prefix: &[u8]) -> Layout<'a> {
        assert!(entries > 0, "a node is never empty");
        let start = out.len();
        out.resize(start + bytes, 0);
        let node = &mut out[start..];
        node[4] = NODE_VERSION;
        node[5] = kind as u8;
        node[8..12].copy_from_slice(&(bytes as u32).to_le_bytes());
        node[12..14].copy_from_slice(&(entries as u16).to_le_bytes());
        node[14..16].copy_from_slice(&(prefix.len() as u16).to_le_bytes());
        let mut layout = Layout { node, at: HEADER_BYTES + entries * SLOT_BYTES };
        layout.put(prefix);
        layout
    }

    fn header(&mut self, lsn_bytes: u8, base_lsn: u64) {
        self.node[6] = lsn_bytes;
        self.node[16..24].copy_from_slice(&base_lsn.to_le_bytes());
    }

    fn slot(&mut self, i: usize, suffix: &[u8]) {
        let slot = HEADER_BYTES + i * SLOT_BYTES;
        let offset = u16::try_from(self.at).expect("entries start in the first 8 KiB");
        self.node[slot..slot + 2].copy_from_slice(&offset.to_le_bytes());
        self.node[slot + 2..slot + 4].copy_from_slice(&head(suffix).to_le_bytes());
    }

    /// What a leaf entry begins with.
    fn lengths(&mut self, suffix_bytes: usize, entry: &Pending) {
        let (suffix_bytes, value_bytes) = ((suffix_bytes as u64) << 2, entry.value_bytes as u64);
        if let Some(expires) = entry.expires {
            self.varint(suffix_bytes | EXPIRING);
            self.varint(value_bytes << 2 | entry.kind);
            self.put(&expires.ms().to_le_bytes()[..EXPIRY_BYTES]);
            return;
        }
        self.varint(suffix_bytes | entry.kind);
        if entry.kind != TOMBSTONE {
            self.varint(value_bytes);
        }
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
