//! The cache of a volume's levels and logs. It has as many bytes as reservations leave of the budget
//! ([`crate::memory`]).
//!
//! - *Indexes* (index nodes and filter of a leaf segment) have priority: an index stays in memory as long as its
//!   segment exists. Such indexes may take half of the cache, and a quarter of the budget; any more are objects.
//! - *Records*, pairs of key and value, hold the levels' answer for a key, or a newer one, packed (`records`). They are
//!   found by owner (one opening of a region) and key. So a compaction of levels removes none, and a compaction of an
//!   L0 replaces those that it overwrites (`Cache::replace_record`). A value that goes to the log replaces its record
//!   at once (`Cache::write_record`).
//! - *Objects*, leaves above all (`objects`): a leaf serves all of its keys, and for a large value it saves the read
//!   that finds the value's place. When memory is short, a leaf is admitted on its second miss in a while, or when a
//!   merge makes it of cached leaves. A second miss of the same key asks for its record only. A key that is found in a
//!   cached leaf gets a record too: one key in use would keep a leaf that takes the memory of a hundred records.
//!
//! Records and objects share the memory that indexes leave. Recent evictions are remembered (`ghosts`). A miss of
//! something evicted recently shows which of the two should have had more memory, and moves the bound between them a
//! little (ARC: Megiddo and Modha, FAST'03). A miss of a leaf that was refused shows nothing.
//!
//! Leaves and indexes are filed under numbers that are never reused for other bytes ([`Segment::serial`]). Hashing and
//! eviction are deterministic. Any thread may call anything. Only shards are locked, one at a time, never across I/O;
//! but the lock of an object's shard may be taken within that of a record's shard.
//!
//! [`Segment::serial`]: crate::volume::Segment::serial

mod budget;
mod ghosts;
mod objects;
mod records;

use crate::budget::MemoryAccounts;
use budget::Budget;
use bytes::Bytes;
use ghosts::Ghosts;
use leeward_format::leaf_segment::LeafIndex;
use leeward_format::node::{BLOCK_BYTES, Node};
use leeward_format::{Lsn, Stamp, filter};
use leeward_platform::Pool;
use objects::{Item, Objects};
use parking_lot::Mutex;
pub(crate) use records::Cached;
use records::{CacheParts, Fresh, Ring, Shard, hash_of, page_bytes};
use std::fmt;
use std::hash::Hasher;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

#[cfg(test)]
mod tests;

/// A leaf in memory.
pub(crate) type Leaf = Node<Bytes>;

/// Bytes of budget per shard, up to [`MAX_SHARDS`].
const SHARD_BYTES: u64 = 2 << 20;
const MAX_SHARDS: u64 = 64;
/// Bytes of budget that one shard manages at most.
const LARGEST_SHARD_BYTES: u64 = 2 << 30;
/// A miss of what was evicted less than this part of the budget ago moves the bound between records and objects.
const WINDOW_SHARE: u64 = 8;
/// Parts of the memory that indexes leave, of which objects have some and records the others.
const PARTS: u64 = 1 << 16;
/// Least number of parts that records or objects keep.
const LEAST_PARTS: u64 = PARTS / 16;
/// Part of the volume's budget that resident indexes may have.
const RESIDENT_SHARE: u64 = 4;
/// Misses within that window that move the bound by a whole window.
const WINDOW_STEPS: u64 = 64;
/// Largest batch of reads that still makes each miss in it cheaper.
const MOST_TOGETHER: usize = 4;
/// Bytes of budget per ghost of a record.
const BYTES_PER_GHOST: u64 = 512;

/// What a cache holds now, in bytes. Notes on what was evicted are in none of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheContents {
    /// Indexes and filters that stay as long as their segments.
    pub indexes: u64,
    /// Leaves, further indexes, and values too long for a record.
    pub objects: u64,
    /// Single pairs of key and value.
    pub records: u64,
}

/// The cache of one volume. Clones are the same cache.
#[derive(Clone)]
pub struct Cache(Arc<Inner>);

struct Inner {
    budget: Budget,
    records: Box<[Mutex<Shard>]>,
    /// Longer records are objects.
    page_bytes: usize,
    /// Records that were evicted.
    record_ghosts: Ghosts,
    /// Shard of records that is evicted from next.
    turn: AtomicUsize,
    objects: Objects,
    /// Objects that were evicted.
    object_ghosts: Ghosts,
    /// Leaves that were refused when they were missed.
    refused: Ghosts,
    /// Of [`PARTS`], those that objects may keep when there is not enough for all.
    objects_parts: AtomicU64,
    misses: AtomicU64,
    owners: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// Segment serial or owner, and kind.
    place: u64,
    /// Offset; or of a value, LSN and hash of the key.
    within: u64,
}

const LEAF: u64 = 0;
const INDEX: u64 = 1;
const VALUE: u64 = 2;

impl Key {
    fn new(kind: u64, place: u64, within: u64) -> Key {
        Key { place: (place << 2) | kind, within }
    }

    /// Of a value of a key of `owner`. Other keys may have the same.
    fn of_value(owner: u32, key: &[u8], lsn: Lsn) -> Key {
        Key::new(VALUE, u64::from(owner), lsn.0 ^ filter::hash(key))
    }

    fn hash(self) -> u64 {
        let mut hasher = KeyHasher::default();
        hasher.write_u64(self.place);
        hasher.write_u64(self.within);
        hasher.finish()
    }
}

/// Memory of an index whose bytes are in a block, in bytes.
pub(crate) fn index_memory_bytes(index: &LeafIndex) -> usize {
    let bytes = index.footer().index_bytes();
    index.memory_bytes() - bytes + Pool::memory_bytes(bytes)
}

impl Cache {
    /// A cache of what reservations leave of a budget.
    pub(crate) fn within(accounts: Arc<MemoryAccounts>) -> Cache {
        let bytes = accounts.budget();
        let shards = (bytes / SHARD_BYTES).clamp(1, MAX_SHARDS).max(bytes / LARGEST_SHARD_BYTES) as usize;
        let record_ghosts = Ghosts::new((bytes / BYTES_PER_GHOST).clamp(64, 1 << 24), bytes);
        let for_objects = || Ghosts::new((bytes / BLOCK_BYTES as u64).clamp(64, 1 << 24), bytes);
        let (object_ghosts, refused) = (for_objects(), for_objects());
        let budget = Budget { accounts, used: AtomicU64::new(0), resident: AtomicU64::new(0) };
        let page_bytes = page_bytes(bytes / shards as u64);
        let inner = Inner {
            budget,
            records: (0..shards).map(|_| Mutex::new(Shard::new(page_bytes))).collect(),
            page_bytes,
            record_ghosts,
            turn: AtomicUsize::new(0),
            objects: Objects::new(shards),
            object_ghosts,
            refused,
            objects_parts: AtomicU64::new(PARTS / 2),
            misses: AtomicU64::new(0),
            owners: AtomicU64::new(0),
        };
        inner.budget.take(inner.notes_bytes());
        Cache(Arc::new(inner))
    }

    /// A new number to file records under.
    pub(crate) fn new_owner(&self) -> u32 {
        u32::try_from(self.0.owners.fetch_add(1, Relaxed)).expect("a volume opens regions less than 2^32 times")
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.budget.used.load(Relaxed)
    }

    /// What the memory in use holds.
    pub fn contents(&self) -> CacheContents {
        let (indexes, objects) = (self.0.budget.resident.load(Relaxed), self.0.objects.bytes());
        let others = indexes + objects + self.0.notes_bytes();
        CacheContents { indexes, objects, records: self.bytes().saturating_sub(others) }
    }

    /// Look-ups that the cache has answered so far.
    pub fn hits(&self) -> u64 {
        self.0.objects.hits() + self.0.records.iter().map(|shard| shard.lock().hits()).sum::<u64>()
    }

    /// Reads of leaves, indexes and values so far that went to the device.
    pub fn misses(&self) -> u64 {
        self.0.misses.load(Relaxed)
    }

    /// Counts a read from the device.
    pub(crate) fn count_miss(&self) {
        self.0.misses.fetch_add(1, Relaxed);
    }

    pub(crate) fn leaf(&self, serial: u64, offset: u32) -> Option<Arc<Leaf>> {
        match self.0.objects.get(&Key::new(LEAF, serial, u64::from(offset)))? {
            Item::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// A leaf, if it is cached, that a merge is about to replace. It becomes one of the first to be evicted: the new
    /// leaves take its memory, and not that of leaves that the merge reaches later.
    pub(crate) fn supersede_leaf(&self, serial: u64, offset: u32) -> Option<Arc<Leaf>> {
        match self.0.objects.supersede(&Key::new(LEAF, serial, u64::from(offset)))? {
            Item::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// Whether a missed leaf is worth keeping: there is room to spare, or its last miss is not longer ago than objects
    /// stay. If it is not, notes the miss.
    pub(crate) fn wants_leaf(&self, serial: u64, offset: u32, bytes: u32) -> bool {
        if self.0.budget.accounts.budget() == 0 {
            return false;
        }
        let hash = Key::new(LEAF, serial, u64::from(offset)).hash();
        let evicted = self.0.object_ghosts.age(hash);
        // A larger share would not have kept one that was refused.
        if evicted.is_some_and(|age| age < self.0.budget.bytes() / WINDOW_SHARE) {
            self.0.lean_to_objects();
        }
        let stays = self.0.objects.bytes().max(self.0.objects_share());
        let is_recent = |age: Option<u64>| age.is_some_and(|age| age < stays);
        let is_wanted = !self.0.budget.is_tight() || is_recent(evicted) || is_recent(self.0.refused.age(hash));
        if !is_wanted {
            self.0.refused.note(hash, u64::from(bytes));
        }
        is_wanted
    }

    /// Whether there is room that nothing needs at the moment.
    pub(crate) fn has_room_to_spare(&self) -> bool {
        !self.0.budget.is_tight()
    }

    /// Keeps a copy of a leaf. The copy's bytes are a block of their own, and keep no segment in memory.
    pub(crate) fn insert_leaf<B: Deref<Target = [u8]>>(&self, serial: u64, offset: u32, leaf: &Node<B>) {
        let copy = leaf.with_bytes(|bytes| self.0.budget.pool().copy(bytes));
        self.insert_object(Key::new(LEAF, serial, u64::from(offset)), Item::Leaf(Arc::new(copy)));
    }

    pub(crate) fn index(&self, serial: u64) -> Option<Arc<LeafIndex>> {
        match self.0.objects.get(&Key::new(INDEX, serial, 0))? {
            Item::Index(index) => Some(index),
            _ => None,
        }
    }

    /// [`Cache::index`] that is no hit, and does not keep the index in memory for longer.
    pub(crate) fn peek_index(&self, serial: u64) -> Option<Arc<LeafIndex>> {
        match self.0.objects.peek(&Key::new(INDEX, serial, 0))? {
            Item::Index(index) => Some(index),
            _ => None,
        }
    }

    pub(crate) fn insert_index(&self, serial: u64, index: Arc<LeafIndex>) {
        self.insert_object(Key::new(INDEX, serial, 0), Item::Index(index));
    }

    fn insert_object(&self, key: Key, item: Item) {
        if self.0.budget.bytes() > 0 {
            let bytes = self.0.objects.insert(key, item);
            self.0.budget.take(bytes);
            self.0.make_room(bytes);
        }
    }

    /// The cached record of an owner's key, unless it is newer than `at`. `key_hash` is the hash of the key.
    #[inline]
    pub(crate) fn record(&self, owner: u32, key: &[u8], key_hash: u64, at: Lsn) -> Option<Cached> {
        let hash = hash_of(owner, key_hash);
        self.0.shard(hash).lock().get(hash, owner, key, at)
    }

    /// Whether records would have the key with this hash if they had the whole cache: its record was evicted lately.
    pub(crate) fn misses_record(&self, owner: u32, key_hash: u64) -> bool {
        let age = self.0.record_ghosts.age(hash_of(owner, key_hash));
        age.is_some_and(|age| age < self.0.budget.bytes())
    }

    /// Keeps what the levels know of an owner's key. `is_current` says whether the levels know nothing newer yet; it
    /// runs under the lock that `Cache::replace_record` takes. `reads`: how many reads of the device were in flight at
    /// a time, this one included. Where they are many, a miss costs little beside that of a leaf, which others wait for.
    /// Where there was none, the leaf is in the cache: nothing was missed, and as long as there is room it stays.
    pub(crate) fn insert_record(
        &self,
        owner: u32,
        key: &[u8],
        key_hash: u64,
        (stamp, value): (Stamp, Option<&[u8]>),
        reads: usize,
        is_current: impl FnOnce() -> bool,
    ) {
        let fresh = Fresh { owner, key, stamp, value };
        if self.0.budget.accounts.budget() == 0 || reads == 0 && self.has_room_to_spare() {
            return;
        }
        if fresh.bytes() > self.0.page_bytes {
            return;
        }
        let hash = hash_of(owner, key_hash);
        let mut shard = self.0.shard(hash).lock();
        let age = self.0.record_ghosts.age(hash);
        let age = age.map(|age| age * shard.times_as_large(fresh.bytes()));
        if reads > 0 && age.is_some_and(|age| age < self.0.budget.bytes() / WINDOW_SHARE) {
            self.0.lean_to_records(reads);
        }
        if is_current() && shard.find(hash, owner, key).is_none() {
            let ring = if age.is_some_and(|age| age < self.0.budget.bytes()) { Ring::Main } else { Ring::Probation };
            self.0.with_shared(|shared| shard.insert(hash, fresh, (ring, 0), shared));
        }
        drop(shard);
        self.0.make_room(0);
    }

    /// Keeps a value that was read from the log, if it is too long for a record: see [`Cache::long_value`].
    pub(crate) fn insert_long_value(&self, owner: u32, key: &[u8], stamp: Stamp, value: &[u8]) {
        let fresh = Fresh { owner, key, stamp, value: Some(value) };
        if fresh.bytes() > self.0.page_bytes {
            let item = Item::Value(key.into(), self.0.budget.pool().copy(value));
            self.insert_object(Key::of_value(owner, key, stamp.lsn), item);
        }
    }

    /// A pair was written whose value only the log has. It replaces an older record of its key; a key without a record
    /// gets one, on probation, if the levels know nothing newer yet: see [`Cache::insert_record`].
    pub(crate) fn write_record(
        &self,
        owner: u32,
        key: &[u8],
        key_hash: u64,
        (stamp, value): (Stamp, &[u8]),
        is_current: impl FnOnce() -> bool,
    ) {
        let fresh = Fresh { owner, key, stamp, value: Some(value) };
        if fresh.bytes() <= self.0.page_bytes {
            self.0.renew((owner, key), hash_of(owner, key_hash), stamp.lsn, Some(fresh), is_current);
        }
    }

    /// Keeps all others from the records until the guards are dropped.
    #[cfg(test)]
    pub(crate) fn hold_records(&self) -> Vec<impl Sized + '_> {
        self.0.records.iter().map(Mutex::lock).collect()
    }

    /// Whether there are any records.
    pub(crate) fn has_records(&self) -> bool {
        self.0.records.iter().any(|shard| !shard.lock().is_empty())
    }

    /// The levels know a newer version of an owner's key from now on. It replaces an older record of the key; without
    /// `value` the older record is removed. A key without a record gets none.
    pub(crate) fn replace_record(
        &self,
        owner: u32,
        key: &[u8],
        key_hash: u64,
        stamp: Stamp,
        value: Option<Option<&[u8]>>,
    ) {
        let fresh =
            value.map(|value| Fresh { owner, key, stamp, value }).filter(|fresh| fresh.bytes() <= self.0.page_bytes);
        self.0.renew((owner, key), hash_of(owner, key_hash), stamp.lsn, fresh, || false);
    }

    /// Removes an owner's records for which `is_stale` (key, LSN) is true. Visits every record.
    pub(crate) fn forget_records(&self, owner: u32, is_stale: &dyn Fn(&[u8], Lsn) -> bool) {
        self.0.records.iter().for_each(|shard| shard.lock().forget(owner, is_stale));
    }

    /// A cached value, too long for a record, that was written to the key with this LSN. Pairs that were ingested
    /// together have one LSN.
    pub(crate) fn long_value(&self, owner: u32, key: &[u8], lsn: Lsn) -> Option<Bytes> {
        match self.0.objects.get(&Key::of_value(owner, key, lsn))? {
            Item::Value(of, value) if of[..] == *key => Some(value),
            _ => None,
        }
    }

    /// Removes the leaves and the index of a segment that is gone.
    pub(crate) fn forget(&self, serial: u64, leaf_offsets: impl Iterator<Item = u32>) {
        if self.0.objects.bytes() == 0 {
            return;
        }
        let leaves = leaf_offsets.map(|offset| Key::new(LEAF, serial, u64::from(offset)));
        for key in leaves.chain([Key::new(INDEX, serial, 0)]) {
            self.0.budget.give(self.0.objects.remove(&key));
        }
    }

    /// `taken` bytes were reserved: evicts as much as that is beyond the budget.
    pub(crate) fn make_room(&self, taken: u64) {
        self.0.make_room(taken);
    }

    /// Reserves `bytes` of the cache for a resident index; `None` if resident indexes may not have so much.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<CacheReservation> {
        let (bytes, budget) = (bytes as u64, &self.0.budget);
        let most = (budget.bytes() / 2).min(budget.accounts.budget() / RESIDENT_SHARE);
        let more = |resident: u64| (resident + bytes <= most).then_some(resident + bytes);
        budget.resident.fetch_update(Relaxed, Relaxed, more).ok()?;
        budget.take(bytes);
        self.0.make_room(bytes);
        Some(CacheReservation { cache: self.clone(), bytes })
    }
}

impl Inner {
    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.records[(hash >> 32) as u32 as usize % self.records.len()]
    }

    /// Memory of what is noted of evicted and refused entries, in bytes.
    fn notes_bytes(&self) -> u64 {
        let notes = self.record_ghosts.bytes() + self.object_ghosts.bytes() + self.refused.bytes();
        notes.min(self.budget.accounts.budget() / 32)
    }

    fn with_shared(&self, with: impl FnOnce(&CacheParts<'_>)) {
        let make_room = || self.objects_exceed_share() && self.evict_object().is_some();
        with(&CacheParts { budget: &self.budget, gone: &self.record_ghosts, make_room: &make_room });
    }

    /// Replaces an older record of the key by `fresh`, or removes it if there is none. If the key has no record, it
    /// gets one if it `is_wanted`. A record that is not older stays.
    fn renew(
        &self,
        (owner, key): (u32, &[u8]),
        hash: u64,
        lsn: Lsn,
        fresh: Option<Fresh<'_>>,
        is_wanted: impl FnOnce() -> bool,
    ) {
        let mut shard = self.shard(hash).lock();
        let (ring, uses) = match shard.find(hash, owner, key) {
            Some((ring, known)) if known < lsn => (ring, shard.remove(hash, owner, key)),
            None if is_wanted() => (Ring::Probation, 0),
            _ => return,
        };
        if let Some(fresh) = fresh {
            self.with_shared(|shared| shard.insert(hash, fresh, (ring, uses), shared));
        }
        drop(shard);
        self.make_room(0);
    }

    /// Bytes that objects may keep when there is not enough for all.
    fn objects_share(&self) -> u64 {
        let shared = self.budget.bytes().saturating_sub(self.budget.resident.load(Relaxed));
        (u128::from(shared) * u128::from(self.objects_parts.load(Relaxed)) / u128::from(PARTS)) as u64
    }

    fn objects_exceed_share(&self) -> bool {
        self.objects.bytes() > self.objects_share()
    }

    /// Returns the bytes that an object has given up.
    fn evict_object(&self) -> Option<u64> {
        let (key, bytes) = self.objects.evict()?;
        self.budget.give(bytes);
        self.object_ghosts.note(key.hash(), bytes);
        Some(bytes)
    }

    /// A thread has taken `taken` bytes: evicts until the budget is not exceeded. It evicts twice as much as it has taken
    /// and a page at most, so that no thread that takes little waits for what others take. The caller holds no lock.
    fn make_room(&self, taken: u64) {
        let mut due = 2 * taken + self.page_bytes as u64;
        while due > 0 && self.budget.is_exceeded() {
            let evicted = match self.objects_exceed_share() {
                true => self.evict_object(),
                false => self.shed_records().or_else(|| self.evict_object()),
            };
            let Some(evicted) = evicted else { return };
            due = due.saturating_sub(evicted);
        }
    }

    /// Returns the bytes that records have given up.
    fn shed_records(&self) -> Option<u64> {
        let first = self.turn.fetch_add(1, Relaxed);
        let shed = (0..self.records.len()).any(|i| {
            let mut shard = self.records[(first + i) % self.records.len()].lock();
            let mut done = false;
            self.with_shared(|shared| done = shard.shed(shared));
            done
        });
        shed.then_some(self.page_bytes as u64)
    }

    /// A leaf was missed that objects would still have with a larger share.
    fn lean_to_objects(&self) {
        self.move_bound(|parts, step| (parts + step).min(PARTS - LEAST_PARTS));
    }

    /// A record was missed that records would still have with a larger share. `reads` were in flight.
    fn lean_to_records(&self, reads: usize) {
        let divisor = reads.min(MOST_TOGETHER) as u64;
        self.move_bound(|parts, step| parts.saturating_sub(step / divisor).max(LEAST_PARTS));
    }

    fn move_bound(&self, to: impl Fn(u64, u64) -> u64) {
        if self.budget.is_tight() {
            // A lost race loses one step of thousands.
            let parts = to(self.objects_parts.load(Relaxed), PARTS / WINDOW_SHARE / WINDOW_STEPS);
            self.objects_parts.store(parts, Relaxed);
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (objects, budget) = (self.0.objects.bytes(), self.0.budget.bytes());
        write!(f, "Cache({} of {budget} bytes, {objects} of them in objects)", self.bytes())
    }
}

/// A part of the cache that is in use until this is dropped.
#[derive(Debug)]
pub(crate) struct CacheReservation {
    cache: Cache,
    bytes: u64,
}

impl Drop for CacheReservation {
    fn drop(&mut self) {
        let budget = &self.cache.0.budget;
        budget.resident.fetch_sub(self.bytes, Relaxed);
        budget.give(self.bytes);
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
