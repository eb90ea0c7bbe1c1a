//! The hash index of a region: the newest committed versions of hot keys, in memory that clients read by one-sided
//! reads (HiStore 4.1). [`leeward_format::hash_index`] has its bytes, the order of writes, and what that proves.
//!
//! ```text
//!  primary's thread -- put, remove --> HashIndex -- words --> memory <== one-sided reads == clients
//!                                        |
//!                       buckets, overflow buckets | parts, each of one size class
//! ```
//! The LSM is the truth. A key that is not in the index is looked for there, so anything may be left out or evicted.
//!
//! - **Space.** The memory is in *parts* (`parts`). A part has records of one size class for its life, and another part
//!   never has its lines again. A class evicts by clock among its own records (`classes`). A class whose records have
//!   all been evicted once takes a part from a class that evicts less.
//! - **Share.** All indexes of a volume share a quarter of its memory equally (`share`). An index with more than its part of that
//!   empties parts, a few records in each step.
//! - **Admission.** While there is space, every written pair is kept. Once there is none, a write only replaces the
//!   record of its key, and a part of the pairs that were read and not found is kept.
//!
//! Belongs to the one thread that writes the region. Clients read at any time.

mod classes;
mod parts;
mod share;
#[cfg(test)]
mod tests;

pub(crate) use share::Share;

use crate::memory::Memory;
use bytes::Bytes;
use classes::Classes;
use leeward_format::hash_index::{
    BUCKET_SLOTS, Board, Grant, GrantFields, Line, MAX_CHAIN_BUCKETS, RECORD_HEADER_BYTES, Record, RecordPlace, Slot,
    SlotPlace, clear, fingerprint, home_bucket, link, publish, record_lines, tag, written,
};
use leeward_format::partition::Partition;
use leeward_format::{Epoch, Lsn, RegionId, filter};
use leeward_platform::Rng;
use leeward_platform::planted::{Bug, most_index_bytes, planted};
use parts::IndexMemory;
use std::io;

/// One in so many of the pairs that were read and not found is kept where another must be evicted for it.
const FILL_PART: u64 = 4;
/// Least memory of an index, in bytes: with less there is none.
const LEAST_BYTES: u64 = 128 << 10;
/// The same, where tests want [tiny indexes](most_index_bytes).
const LEAST_TINY_BYTES: u64 = 1 << 10;
/// Bytes of memory for each home bucket: seven records of two lines, and the bucket.
const BYTES_PER_BUCKET: u64 = 7 * 128 + 64;
/// The share of an index may grow so many times before more home buckets are worth a new index.
const OUTGROWN: u64 = 4;
/// Records that one step clears in a part that is given up.
const STEP_RECORDS: u32 = 64;

/// Registered memory that clients read and this process writes. Zeroed when it is allocated.
pub trait HashMemory: Send {
    /// The little-endian word at `offset`, a multiple of 8.
    fn load(&self, offset: usize) -> u64;
    /// Stores the little-endian word at `offset`, a multiple of 8, after all that was stored before.
    fn store(&self, offset: usize, word: u64);
    /// Copies bytes out.
    fn read(&self, offset: usize, bytes: &mut [u8]);
    /// Names it to clients.
    fn descriptor(&self) -> Bytes;
    /// Ends remote access: reads that begin from now on are refused.
    fn revoke(&self);
}

/// Allocates [`HashMemory`].
pub trait HashMemories: Send {
    /// Registers `bytes` zeroed bytes.
    ///
    /// # Errors
    /// The system has no memory or no descriptors left.
    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn HashMemory>>;
}

/// What an index is about.
#[derive(Clone, Debug)]
pub struct HashIndexOf {
    /// Goes into the grants of the index.
    pub region: RegionId,
    /// Term of its primary.
    pub term: Epoch,
    /// How the table's keys are split among regions.
    pub partition: Partition,
    /// First key or token of the region.
    pub start: Bytes,
    /// Key or token behind its last.
    pub end: Option<Bytes>,
}

/// Why a pair is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It was written, or is one of all pairs of the region: no other pair is evicted for it.
    Written,
    /// It was read by a request, because the index does not have it.
    Missed,
}

/// Figures of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashIndexStats {
    /// Pairs in it.
    pub records: u64,
    /// Memory, in bytes.
    pub bytes: u64,
    /// Pairs that were put so far, new and replaced ones.
    pub published: u64,
    /// Pairs that were evicted for others so far.
    pub evicted: u64,
}

/// The hash index of a region.
pub struct HashIndex {
    of: HashIndexOf,
    nonce: u64,
    buckets: u32,
    parts: IndexMemory,
    classes: Classes,
    share: Share,
    stats: HashIndexStats,
    rng: Rng,
    /// The words of a record on its way into or out of the memory.
    record: Vec<u8>,
}

/// A key's place in the index.
#[derive(Clone, Copy)]
struct IndexedKey {
    place: SlotPlace,
    line: Line,
    lsn: Lsn,
}

impl HashIndex {
    /// An empty index of `of`, in memory of `memories`, within the share of `memory`. `nonce` is random and not 0.
    /// `None` if the share is too small.
    ///
    /// # Errors
    /// There is no memory.
    pub fn open(
        of: HashIndexOf,
        nonce: u64,
        memory: &Memory,
        memories: Box<dyn HashMemories>,
    ) -> io::Result<Option<HashIndex>> {
        assert!(nonce != 0, "0 is no nonce");
        let share = Share::join(memory);
        let limit = share.limit();
        if limit < if most_index_bytes().is_some() { LEAST_TINY_BYTES } else { LEAST_BYTES } {
            return Ok(None);
        }
        let buckets = u32::try_from(limit / BYTES_PER_BUCKET).unwrap_or(u32::MAX);
        let parts = IndexMemory::new(memories, buckets, limit)?;
        share.set(parts.bytes());
        let (classes, stats, rng) = (Classes::new(), HashIndexStats::default(), Rng::new(nonce));
        let index = HashIndex { of, nonce, buckets, parts, classes, share, stats, rng, record: Vec::new() };
        index.set_readable_until(0);
        Ok(Some(index))
    }

    /// The grant from now on, and the count of its changes.
    pub fn grant(&self) -> (u32, Grant) {
        let (memories, extents, board) = self.parts.granted();
        let HashIndexOf { region, term, partition, start, end } = self.of.clone();
        let (nonce, buckets) = (self.nonce, self.buckets);
        let fields = GrantFields { region, term, nonce, partition, start, end, buckets, memories, extents, board };
        (self.parts.version(), Grant::try_from(fields).expect("the parts are disjoint and have all home buckets"))
    }

    /// What it is about.
    pub fn of(&self) -> &HashIndexOf {
        &self.of
    }

    /// Its nonce, and the count of changes of its grant.
    pub fn version(&self) -> (u64, u32) {
        (self.nonce, self.parts.version())
    }

    /// Clients may read it until `instant` by this node's clock, in nanoseconds. The caller never lets it fall.
    pub fn set_readable_until(&self, instant: u64) {
        self.parts.write_board(Board { nonce: self.nonce, readable_until: instant });
    }

    /// Ends all reads: those that begin from now on are refused.
    pub fn revoke(&self) {
        self.parts.revoke();
    }

    /// Figures.
    pub fn stats(&self) -> HashIndexStats {
        HashIndexStats { bytes: self.parts.bytes(), ..self.stats }
    }

    /// Whether there is memory for more pairs without evicting others.
    pub fn has_room(&self) -> bool {
        self.parts.has_room(self.share.limit())
    }

    /// Whether the share has grown so much that a new index, with more home buckets, would hold more.
    pub fn is_outgrown(&self) -> bool {
        self.share.limit() / BYTES_PER_BUCKET / OUTGROWN > u64::from(self.buckets)
    }

    /// `value` is the newest committed value of `key`, of the version `lsn`. Older versions are gone afterwards, whether
    /// or not this one is kept.
    pub fn put(&mut self, key: &[u8], lsn: Lsn, value: &[u8], offer: Offer) {
        let hash = filter::hash(key);
        let found = self.find(key, hash);
        if found.is_some_and(|found| found.lsn >= lsn) {
            return;
        }
        let Some(lines) = record_lines(key.len(), value.len()) else { return self.clear(found) };
        let may_evict = found.is_some() || offer == Offer::Missed && self.rng.one_in(FILL_PART);
        let line = self.take(lines, may_evict);
        // What was evicted for it may be its own older version, or have been in the way.
        let found = self.find(key, hash);
        let Some(line) = line else { return self.clear(found) };
        let Some(place) = found.map(|found| found.place).or_else(|| self.free_slot(hash)) else {
            return self.give_back(line);
        };
        let slot = Slot { fingerprint: fingerprint(hash), tag: tag(lsn), lines, line };
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        Record { lsn, key, value }.append_to(RecordPlace { nonce: self.nonce, line }, &mut record);
        self.publish(place, slot, &record, found.map(|found| found.line));
        self.record = record;
        let uses = found.map_or(0, |found| self.give_back_used(found.line));
        self.parts.set_uses(line, 1 + uses);
        self.stats.published += 1;
        self.stats.records += u64::from(found.is_none());
    }

    /// Writes a version, in the order of rule W2.
    fn publish(&self, place: SlotPlace, slot: Slot, record: &[u8], old: Option<Line>) {
        let old = old.filter(|_| !planted(Bug::ReuseUnpoisoned));
        let mut writes = publish(place, slot, record, old);
        let late = if planted(Bug::BytesBeforeSlot) { writes.next() } else { None };
        for write in writes.chain(late) {
            self.parts.store(write);
        }
    }

    /// `key` has no value any more, or one that is not kept.
    pub fn remove(&mut self, key: &[u8]) {
        let found = self.find(key, filter::hash(key));
        self.clear(found);
    }

    fn clear(&mut self, found: Option<IndexedKey>) {
        let Some(IndexedKey { place, line, .. }) = found else { return };
        for write in clear(place, line) {
            self.parts.store(write);
        }
        self.give_back_used(line);
        self.stats.records -= 1;
    }

    /// Clients have read the records at these lines: they are evicted later. Lines that are no record's are ignored.
    pub fn note_reads(&mut self, lines: &[Line]) {
        for line in lines {
            self.parts.note_use(*line);
        }
    }

    /// Time for upkeep: gives a part up, a few records at a time, if this index has more than its share. Returns false if
    /// there was nothing to do.
    pub fn step(&mut self) -> bool {
        if !self.parts.is_emptying() && self.parts.bytes() > self.share.limit() + self.parts.part_bytes() {
            self.begin_emptying(None);
        }
        let has_work = self.parts.is_emptying();
        self.empty_some();
        has_work
    }

    // ---- look-up ----------------------------------------------------------------------------------------------------

    /// The slot and the record of `key`.
    fn find(&mut self, key: &[u8], hash: u64) -> Option<IndexedKey> {
        let wanted = fingerprint(hash);
        for bucket in self.chain(hash) {
            let words = self.parts.bucket(bucket);
            for (index, word) in (0..).zip(words.into_iter().take(BUCKET_SLOTS)) {
                let Some(slot) = Slot::from_word(word).filter(|slot| slot.fingerprint == wanted) else { continue };
                self.parts.read(slot.line, RECORD_HEADER_BYTES + key.len(), slot.lines, &mut self.record);
                if let Some((lsn, found)) = written(&self.record)
                    && found == key
                {
                    return Some(IndexedKey { place: SlotPlace { bucket, index }, line: slot.line, lsn });
                }
            }
        }
        None
    }

    /// The buckets of the chain of a key with this hash.
    fn chain(&self, hash: u64) -> Chain {
        let mut chain = Chain { buckets: [Line(0); MAX_CHAIN_BUCKETS as usize], count: 0, next: 0 };
        let mut bucket = Some(home_bucket(hash, self.buckets));
        while let Some(line) = bucket.filter(|_| chain.count < MAX_CHAIN_BUCKETS) {
            chain.buckets[usize::from(chain.count)] = line;
            chain.count += 1;
            let next = self.parts.load(line.word_at(BUCKET_SLOTS));
            bucket = Some(Line(next as u32)).filter(|line| line.0 != 0);
        }
        chain
    }

    /// An empty slot for a key with this hash, in a new overflow bucket if need be.
    fn free_slot(&mut self, hash: u64) -> Option<SlotPlace> {
        let chain = self.chain(hash);
        let (count, mut last) = (chain.count, Line(0));
        for bucket in chain {
            let words = self.parts.bucket(bucket);
            let free = words.iter().take(BUCKET_SLOTS).position(|word| Slot::from_word(*word).is_none());
            if let Some(index) = free {
                return Some(SlotPlace { bucket, index: index as u8 });
            }
            last = bucket;
        }
        if count == MAX_CHAIN_BUCKETS {
            return None;
        }
        let bucket = self.parts.new_bucket(self.share.limit())?;
        self.share.set(self.parts.bytes());
        self.parts.store(link(last, bucket));
        Some(SlotPlace { bucket, index: 0 })
    }

    // ---- space ------------------------------------------------------------------------------------------------------

    /// Space for a record of so many lines.
    fn take(&mut self, lines: u16, may_evict: bool) -> Option<Line> {
        let class = Classes::of(lines);
        if let Some(line) = self.classes.take_free(class) {
            return Some(line);
        }
        let has_room = self.parts.has_room(self.share.limit());
        if has_room && let Some(part) = self.parts.add(Classes::lines(class)) {
            self.share.set(self.parts.bytes());
            self.classes.add_part(class, part);
            return self.classes.take_free(class);
        }
        if !may_evict {
            return None;
        }
        if !has_room && self.classes.is_short(class) && !self.parts.is_emptying() {
            self.begin_emptying(Some(class));
        }
        self.empty_some();
        let victim = self.classes.victim(class, &mut self.parts)?;
        self.evict(victim);
        self.classes.take_free(class)
    }

    /// Clears the record that begins at `line`.
    fn evict(&mut self, line: Line) {
        self.parts.read_record(line, &mut self.record);
        let key = written(&self.record).map(|(_, key)| key.to_vec());
        let found = key.and_then(|key| self.find(&key, filter::hash(&key)));
        debug_assert!(found.is_some_and(|found| found.line == line), "a record in use has a slot");
        self.clear(found);
        self.stats.evicted += 1;
    }

    /// Begins to give up a part, for `class` if there is one.
    fn begin_emptying(&mut self, class: Option<usize>) {
        if let Some(part) = self.classes.part_to_spare(class) {
            self.parts.begin_emptying(part);
        }
    }

    /// Goes on to give a part up.
    fn empty_some(&mut self) {
        for _ in 0..STEP_RECORDS {
            match self.parts.next_to_empty() {
                Some(line) => self.evict(line),
                None => break,
            }
        }
        if self.parts.end_emptying() {
            self.share.set(self.parts.bytes());
        }
    }

    /// Gives space back that was never used for a record.
    fn give_back(&mut self, line: Line) {
        if let Some(class) = self.parts.class_at(line) {
            self.classes.give(Classes::of(class), line);
        }
    }

    /// Gives back the space of a record that is poisoned; returns its uses.
    fn give_back_used(&mut self, line: Line) -> u8 {
        let uses = self.parts.clear_uses(line);
        self.give_back(line);
        uses.saturating_sub(1)
    }
}

/// Buckets of a chain, in their order.
struct Chain {
    buckets: [Line; MAX_CHAIN_BUCKETS as usize],
    count: u8,
    next: u8,
}

impl Iterator for Chain {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        let at = self.next;
        self.next += 1;
        (at < self.count).then(|| self.buckets[usize::from(at)])
    }
}
