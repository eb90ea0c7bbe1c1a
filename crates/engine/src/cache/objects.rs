//! Whole objects that many keys share: leaves, indexes beyond the resident ones; and values too long for a record.
//!
//! Each shard is a clock (Corbató 1968): the hand passes over objects that were used since its last turn. Any thread
//! may call; a shard's lock is held for a look-up or a sweep of the hand.

use super::{Key, Leaf, index_memory_bytes};
use bytes::Bytes;
use leeward_format::leaf_segment::LeafIndex;
use leeward_platform::Pool;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What an object is.
#[derive(Clone)]
pub(super) enum Item {
    Leaf(Arc<Leaf>),
    Index(Arc<LeafIndex>),
    /// Of this key.
    Value(Box<[u8]>, Bytes),
}

impl Item {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Item::Leaf(leaf) => Pool::memory_bytes(leaf.bytes().len()) as u64,
            Item::Index(index) => index_memory_bytes(index) as u64,
            Item::Value(key, value) => (key.len() + Pool::memory_bytes(value.len())) as u64,
        }
    }
}

/// Memory that an object takes beside its own bytes: its place in the shard, the `Arc`, the allocator's share.
const OVERHEAD_BYTES: u64 = 128;
/// Turns of the hand that an object survives at most without being used.
const MOST_CHANCES: u8 = 3;
/// Objects that the hand passes for one that goes, at most.
const MOST_PASSED: usize = 256;

pub(super) struct Objects {
    shards: Box<[Mutex<Shard>]>,
    /// Memory that all of them take.
    bytes: AtomicU64,
    /// Shard that the next eviction begins with.
    turn: AtomicUsize,
    hits: AtomicU64,
}

#[derive(Default)]
struct Shard {
    places: HashMap<Key, usize, BuildHasherDefault<super::KeyHasher>>,
    objects: Vec<Object>,
    hand: usize,
    /// Objects that the hand has passed so far.
    #[cfg(test)]
    passed: u64,
}

struct Object {
    key: Key,
    item: Item,
    bytes: u64,
    chances: u8,
}

impl Objects {
    pub(super) fn new(shards: usize) -> Objects {
        Objects {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            bytes: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Item> {
        let item = self.find(key, |chances| (chances + 1).min(MOST_CHANCES))?;
        self.hits.fetch_add(1, Relaxed);
        Some(item)
    }

    /// The object under `key`, which is not used.
    pub(super) fn peek(&self, key: &Key) -> Option<Item> {
        self.find(key, |chances| chances)
    }

    /// The object under `key`, which others are about to replace: it is evicted before all objects that are still used.
    pub(super) fn supersede(&self, key: &Key) -> Option<Item> {
        self.find(key, |_| 0)
    }

    /// The object under `key`. Changes its chances.
    #[inline]
    fn find(&self, key: &Key, chances: impl FnOnce(u8) -> u8) -> Option<Item> {
        if self.bytes() == 0 {
            return None;
        }
        let mut shard = self.shard(key).lock();
        let place = *shard.places.get(key)?;
        let object = &mut shard.objects[place];
        object.chances = chances(object.chances);
        Some(object.item.clone())
    }

    /// Keeps `item`, if nothing is kept under `key`; returns the memory that it takes, in bytes.
    pub(super) fn insert(&self, key: Key, item: Item) -> u64 {
        let mut shard = self.shard(&key).lock();
        if shard.places.contains_key(&key) {
            return 0;
        }
        let bytes = item.bytes() + OVERHEAD_BYTES;
        let place = shard.objects.len();
        shard.places.insert(key, place);
        shard.objects.push(Object { key, item, bytes, chances: 1 });
        self.bytes.fetch_add(bytes, Relaxed);
        bytes
    }

    /// Removes the object under `key`; returns the memory that it took, in bytes.
    pub(super) fn remove(&self, key: &Key) -> u64 {
        let mut shard = self.shard(key).lock();
        shard.places.get(key).copied().map_or(0, |place| self.take(&mut shard, place).bytes)
    }

    /// Objects that the hands have passed so far.
    #[cfg(test)]
    pub(super) fn passed(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().passed).sum()
    }

    /// Evicts an object; returns its key and the memory that it took, in bytes. `None` if there is none.
    pub(super) fn evict(&self) -> Option<(Key, u64)> {
        let first = self.turn.fetch_add(1, Relaxed);
        (0..self.shards.len()).find_map(|i| {
            let mut shard = self.shards[(first + i) % self.shards.len()].lock();
            let place = shard.sweep()?;
            let object = self.take(&mut shard, place);
            Some((object.key, object.bytes))
        })
    }

    fn take(&self, shard: &mut Shard, place: usize) -> Object {
        let object = shard.objects.swap_remove(place);
        shard.places.remove(&object.key);
        if let Some(moved) = shard.objects.get(place) {
            shard.places.insert(moved.key, place);
        }
        self.bytes.fetch_sub(object.bytes, Relaxed);
        object
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[(key.hash() >> 40) as usize % self.shards.len()]
    }
}

impl Shard {
    /// Moves the hand to the next object without a chance left. Where the next [`MOST_PASSED`] have some, that is the one
    /// of them with the fewest: no thread waits for a turn of the hand over all of a shard.
    fn sweep(&mut self) -> Option<usize> {
        let mut least: Option<(u8, usize)> = None;
        for _ in 0..MOST_PASSED.min(self.objects.len() * usize::from(MOST_CHANCES + 1)) {
            self.hand = if self.hand + 1 < self.objects.len() { self.hand + 1 } else { 0 };
            #[cfg(test)]
            {
                self.passed += 1;
            }
            let object = &mut self.objects[self.hand];
            if object.chances == 0 {
                return Some(self.hand);
            }
            object.chances -= 1;
            if least.is_none_or(|(chances, _)| object.chances < chances) {
                least = Some((object.chances, self.hand));
            }
        }
        least.map(|(_, place)| place)
    }
}
