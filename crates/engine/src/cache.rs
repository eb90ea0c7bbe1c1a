//! What is kept in memory of a volume's levels and logs: one budget of bytes for all of it.
//!
//! - *Indexes* (index nodes and filter of a leaf segment) have priority: up to half of the budget they stay for as long
//!   as their segment lives, and what they take is taken from the rest; beyond it they are cached like anything else.
//! - *Leaves* are admitted when they are missed for the second time in a while: a leaf that is asked for once would drive
//!   out a hundred records that are hot.
//! - *Entries* of leaves and *values* of the log, one by one: under a skewed load a record of 33 bytes is a hundredth of
//!   its leaf.
//!
//! Everything is filed under numbers that never come back with other bytes ([`Segment::serial`], owner and LSN), so
//! nothing is ever stale. Hashing and eviction are the same in every run. Any thread may call anything; only the shards of the
//! underlying cache are locked, and never across I/O.
//!
//! [`Segment::serial`]: crate::volume::Segment::serial

use bytes::Bytes;
use leeward_format::leaf_segment::LeafIndex;
use leeward_format::node::{Entry, NODE_BYTES, Node};
use leeward_format::{Lsn, Pointer};
use parking_lot::Mutex;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

#[cfg(test)]
mod tests;

/// A leaf in memory.
pub(crate) type Leaf = Node<Bytes>;

/// Memory that a cached item takes beside its own bytes: key and links in the cache, and the allocator's share.
const ITEM_OVERHEAD_BYTES: u64 = 112;
/// Bytes of budget that deserve a lock of their own.
const SHARD_BYTES: u64 = 1 << 20;
const MAX_SHARDS: u64 = 64;

/// The cache of one volume. Clones are the same cache.
#[derive(Clone)]
pub struct Cache(Arc<Inner>);

struct Inner {
    items: quick_cache::sync::Cache<Key, Item, Weight, BuildHasherDefault<KeyHasher>>,
    budget: u64,
    /// Bytes of resident indexes.
    resident: AtomicU64,
    /// How much of `resident` the capacity of `items` was last lowered by.
    withheld: Mutex<u64>,
    /// Leaves that were missed lately, by hash.
    missed: Box<[AtomicU32]>,
    owners: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// Segment serial or owner, and kind.
    place: u64,
    /// Offset, hash of a key, or LSN.
    within: u64,
}

#[derive(Clone)]
enum Item {
    Leaf(Arc<Leaf>),
    Index(Arc<LeafIndex>),
    Entry(CachedEntry),
    Value(Bytes),
}

/// A leaf entry on its own, in one allocation:
///
/// ```text
///  | LSN u64 | key bytes u16 | kind u8 | key | value in place, or pointer u64 and value bytes u32 |
/// ```
#[derive(Clone, Debug)]
pub(crate) struct CachedEntry(Arc<[u8]>);

const ENTRY_HEADER_BYTES: usize = 11;
const IN_PLACE: u8 = 0;
const IN_LOG: u8 = 1;
const TOMBSTONE: u8 = 2;

impl CachedEntry {
    pub(crate) fn new(key: &[u8], lsn: Lsn, entry: Entry<'_>) -> CachedEntry {
        let in_log;
        let (kind, contents) = match entry {
            Entry::InPlace(value) => (IN_PLACE, value),
            Entry::InLog { pointer, value_bytes } => {
                in_log = [&pointer.0.to_le_bytes()[..], &value_bytes.to_le_bytes()].concat();
                (IN_LOG, &in_log[..])
            }
            Entry::Tombstone => (TOMBSTONE, &[][..]),
        };
        let key_bytes = (key.len() as u16).to_le_bytes();
        CachedEntry([&lsn.0.to_le_bytes()[..], &key_bytes, &[kind], key, contents].concat().into())
    }

    pub(crate) fn lsn(&self) -> Lsn {
        Lsn(u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes")))
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.0[ENTRY_HEADER_BYTES..self.contents_at()]
    }

    pub(crate) fn entry(&self) -> Entry<'_> {
        let contents = &self.0[self.contents_at()..];
        match self.0[ENTRY_HEADER_BYTES - 1] {
            IN_PLACE => Entry::InPlace(contents),
            IN_LOG => Entry::InLog {
                pointer: Pointer(u64::from_le_bytes(contents[..8].try_into().expect("eight bytes"))),
                value_bytes: u32::from_le_bytes(contents[8..].try_into().expect("four bytes")),
            },
            _ => Entry::Tombstone,
        }
    }

    fn contents_at(&self) -> usize {
        ENTRY_HEADER_BYTES + usize::from(u16::from_le_bytes([self.0[8], self.0[9]]))
    }
}

#[derive(Clone)]
struct Weight;

impl quick_cache::Weighter<Key, Item> for Weight {
    fn weight(&self, _: &Key, item: &Item) -> u64 {
        let bytes = match item {
            Item::Leaf(leaf) => leaf.bytes().len(),
            Item::Index(index) => index.memory_bytes(),
            Item::Entry(entry) => entry.0.len(),
            Item::Value(value) => value.len(),
        };
        bytes as u64 + ITEM_OVERHEAD_BYTES
    }
}

const LEAF: u64 = 0;
const INDEX: u64 = 1;
const ENTRY: u64 = 2;
const VALUE: u64 = 3;

impl Key {
    fn new(kind: u64, place: u64, within: u64) -> Key {
        Key { place: place << 2 | kind, within }
    }
}

impl Cache {
    /// A cache of at most `bytes`.
    pub fn new(bytes: u64) -> Cache {
        let options = quick_cache::OptionsBuilder::new()
            .shards((bytes / SHARD_BYTES).clamp(1, MAX_SHARDS) as usize)
            .estimated_items_capacity((bytes / 1024).clamp(32, 1 << 24) as usize)
            .weight_capacity(bytes)
            .build()
            .expect("capacity and items are set");
        let items =
            quick_cache::sync::Cache::with_options(options, Weight, BuildHasherDefault::default(), Default::default());
        let missed = (bytes / NODE_BYTES as u64).clamp(64, 1 << 20) as usize;
        Cache(Arc::new(Inner {
            items,
            budget: bytes,
            resident: AtomicU64::new(0),
            withheld: Mutex::new(0),
            missed: (0..missed).map(|_| AtomicU32::new(0)).collect(),
            owners: AtomicU64::new(0),
        }))
    }

    /// A number that no one else files values of the log under.
    pub fn new_owner(&self) -> u64 {
        self.0.owners.fetch_add(1, Relaxed)
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.items.weight() + self.0.resident.load(Relaxed)
    }

    /// Look-ups answered so far.
    pub fn hits(&self) -> u64 {
        self.0.items.hits()
    }

    /// Look-ups so far that found nothing.
    pub fn misses(&self) -> u64 {
        self.0.items.misses()
    }

    pub(crate) fn leaf(&self, serial: u64, offset: u32) -> Option<Arc<Leaf>> {
        match self.0.items.get(&Key::new(LEAF, serial, u64::from(offset)))? {
            Item::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// Keeps a leaf if it was missed before; answers whether it did.
    pub(crate) fn offer_leaf(&self, serial: u64, offset: u32, leaf: &Arc<Leaf>) -> bool {
        let key = Key::new(LEAF, serial, u64::from(offset));
        let hash = key.hash();
        let slot = &self.0.missed[(hash as u32 as usize) % self.0.missed.len()];
        let seen = (hash >> 32) as u32;
        let again = slot.swap(seen, Relaxed) == seen;
        if again {
            self.0.items.insert(key, Item::Leaf(Arc::clone(leaf)));
        }
        again
    }

    pub(crate) fn index(&self, serial: u64) -> Option<Arc<LeafIndex>> {
        match self.0.items.get(&Key::new(INDEX, serial, 0))? {
            Item::Index(index) => Some(index),
            _ => None,
        }
    }

    pub(crate) fn insert_index(&self, serial: u64, index: Arc<LeafIndex>) {
        self.0.items.insert(Key::new(INDEX, serial, 0), Item::Index(index));
    }

    /// The entry of the key with this hash in a leaf segment; the caller compares the key.
    pub(crate) fn entry(&self, serial: u64, hash: u64) -> Option<CachedEntry> {
        match self.0.items.get(&Key::new(ENTRY, serial, hash))? {
            Item::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    pub(crate) fn insert_entry(&self, serial: u64, hash: u64, entry: CachedEntry) {
        self.0.items.insert(Key::new(ENTRY, serial, hash), Item::Entry(entry));
    }

    /// The value that was written to the log with this LSN.
    pub(crate) fn value(&self, owner: u64, lsn: Lsn) -> Option<Bytes> {
        match self.0.items.get(&Key::new(VALUE, owner, lsn.0))? {
            Item::Value(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn insert_value(&self, owner: u64, lsn: Lsn, value: Bytes) {
        self.0.items.insert(Key::new(VALUE, owner, lsn.0), Item::Value(value));
    }

    /// A segment is gone: so is what was kept of its leaves and index.
    pub(crate) fn forget(&self, serial: u64, leaf_offsets: impl Iterator<Item = u32>) {
        self.0.items.remove(&Key::new(INDEX, serial, 0));
        for offset in leaf_offsets {
            self.0.items.remove(&Key::new(LEAF, serial, u64::from(offset)));
        }
    }

    /// Takes `bytes` of the budget for something that stays; `None` when half of the budget is taken so.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Reservation> {
        let bytes = bytes as u64;
        let taken = |resident: u64| (resident + bytes <= self.0.budget / 2).then_some(resident + bytes);
        self.0.resident.fetch_update(Relaxed, Relaxed, taken).ok()?;
        self.withhold();
        Some(Reservation { cache: self.clone(), bytes })
    }

    /// Lets the rest of the cache have what the resident indexes do not take. Not for every small change: it locks all
    /// shards.
    fn withhold(&self) {
        let mut withheld = self.0.withheld.lock();
        let resident = self.0.resident.load(Relaxed);
        if resident.abs_diff(*withheld) > self.0.budget / 64 {
            *withheld = resident;
            self.0.items.set_capacity(self.0.budget - resident);
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({} of {} bytes)", self.bytes(), self.0.budget)
    }
}

/// A part of the budget that is in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    cache: Cache,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.cache.0.resident.fetch_sub(self.bytes, Relaxed);
        self.cache.withhold();
    }
}

impl Key {
    fn hash(self) -> u64 {
        let mut hasher = KeyHasher::default();
        hasher.write_u64(self.place);
        hasher.write_u64(self.within);
        hasher.finish()
    }
}

/// Folded multiplication: enough for keys that are two numbers, and the same in every process.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * u128::from(0xd6e8_feb8_6659_fd93_u64);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
