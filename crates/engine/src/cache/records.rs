//! Packed key-value records. Under a skewed load a pair of 33 bytes is a hundredth of its leaf, and the overhead of
//! each pair decides how many fit. Here the overhead is 16 bytes, and about eight in the hash table.
//!
//! ```text
//!  page     | record | record | ... | free |                            a block of 4 to 32 KiB
//!  record   | LSN u64 | owner u32 | key bytes u16 | value bytes u16 | key | value | expiry u64 | to a multiple of 8 |
//!  slot     | page: 17 bits | offset / 8: 12 bits | uses: 3 bits |      in the hash table
//! ```
//! The expiry is present only if the top bit of the key's length is set.
//!
//! Pages are filled and emptied in turn, in two rings of each shard (S3-FIFO, SOSP'23). A new record goes to the
//! *probation* ring, a tenth of the memory. A record that was used there, or was evicted recently, goes to the *main*
//! ring. When a page is emptied, the records that were used since stay, with half of their uses.
//!
//! Sizes weigh, because a miss costs the same for any size, and one large value takes the room of a dozen small ones. A
//! record `n` times as large as the others must have been used `n` times to stay, and must be missed again `n` times as
//! soon to enter the main ring at once. A use of a record that is `n` times smaller counts `n` times.
//!
//! A record that was replaced or forgotten leaves a hole in its page. A ring that consists mostly of holes is turned
//! before anything else is evicted for it.
//!
//! A key of an owner has one record at most. A shard is used under its lock, never across I/O.

use super::Budget;
use super::ghosts::Ghosts;
use bytes::Bytes;
use hashbrown::HashTable;
use leeward_format::{Expiry, Lsn, Stamp, filter};
use leeward_platform::Block;
use std::collections::VecDeque;

const MOST_PAGE_BYTES: u64 = 32 << 10;
const LEAST_PAGE_BYTES: u64 = 4 << 10;
/// A shard has room for at least this many pages, unless its pages have the smallest size already.
const PAGES: u64 = 32;
const HEADER_BYTES: usize = 16;
const UNIT: usize = 8;
const USES_BITS: u32 = 3;
const MOST_USES: u32 = (1 << USES_BITS) - 1;
const OFFSET_BITS: u32 = 12;
/// Most pages of a shard.
const MOST_PAGES: usize = 1 << 17;
/// Length of value that marks a tombstone.
const TOMBSTONE: u16 = u16::MAX;
/// Flag in the length of the key: an expiry follows the value.
const EXPIRES: u16 = 1 << 15;
const EXPIRY_BYTES: usize = 8;
/// One page in so many is in the probation ring.
const PROBATION: usize = 10;
/// Pages that are emptied for one that is free, at most: the last of these keeps no record, however often used. So a
/// thread that needs a page waits for as many, and not for all of a shard.
const MOST_EMPTIED: usize = 8;
/// Objects that are evicted for such a page, at most.
const MOST_OBJECTS: usize = 16;

/// The cached version of a key: its LSN and expiry, and its value unless it is a tombstone.
pub(crate) type Cached = (Stamp, Option<Bytes>);

/// Which ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ring {
    #[default]
    Probation,
    Main,
}

/// A key's record, not yet in a page.
#[derive(Clone, Copy)]
pub(super) struct Fresh<'a> {
    pub(super) owner: u32,
    pub(super) key: &'a [u8],
    pub(super) stamp: Stamp,
    /// `None` is a tombstone.
    pub(super) value: Option<&'a [u8]>,
}

/// A part of the records.
pub(super) struct Shard {
    page_bytes: usize,
    table: HashTable<Slot>,
    pages: Vec<Page>,
    /// Pages in no ring.
    free: Vec<usize>,
    probation: Pages,
    main: Pages,
    /// Replaces the bytes of a page while they are examined.
    spare: Block,
    /// Bytes that the budget was charged for the table.
    table_bytes: u64,
    hits: u64,
    /// Pages that were emptied so far.
    #[cfg(test)]
    turned: usize,
}

/// The pages of a ring.
#[derive(Default)]
struct Pages {
    order: VecDeque<usize>,
    /// Bytes of records in them that the table knows.
    live_bytes: usize,
}

#[derive(Default)]
struct Page {
    bytes: Block,
    used: usize,
    ring: Ring,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(u32);

impl Slot {
    fn new(page: usize, offset: usize, uses: u32) -> Slot {
        Slot(((page as u32) << (OFFSET_BITS + USES_BITS)) | (((offset / UNIT) as u32) << USES_BITS) | uses)
    }
    fn page(self) -> usize {
        (self.0 >> (OFFSET_BITS + USES_BITS)) as usize
    }
    fn offset(self) -> usize {
        (self.0 >> USES_BITS) as usize % (1 << OFFSET_BITS) * UNIT
    }
    fn uses(self) -> u32 {
        self.0 & MOST_USES
    }
    fn is_at(self, page: usize, offset: usize) -> bool {
        self.page() == page && self.offset() == offset
    }
}

/// A record in its page.
#[derive(Clone, Copy)]
struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    fn at(pages: &'a [Page], slot: Slot) -> Record<'a> {
        Record(&pages[slot.page()].bytes[slot.offset()..])
    }
    fn lsn(self) -> Lsn {
        Lsn(u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes")))
    }
    fn owner(self) -> u32 {
        u32::from_le_bytes(self.0[8..12].try_into().expect("four bytes"))
    }
    fn key_bytes(self) -> usize {
        usize::from(self.key_field() & !EXPIRES)
    }
    fn key_field(self) -> u16 {
        u16::from_le_bytes([self.0[12], self.0[13]])
    }
    fn stamp(self) -> Stamp {
        let expires = if self.key_field() & EXPIRES == 0 { None } else { self.expiry() };
        Stamp { lsn: self.lsn(), expires }
    }
    /// Only for a record that has one.
    fn expiry(self) -> Option<Expiry> {
        let at = HEADER_BYTES + self.key_bytes() + self.value().map_or(0, <[u8]>::len);
        Expiry::from_ms(u64::from_le_bytes(self.0[at..at + EXPIRY_BYTES].try_into().expect("eight bytes")))
    }
    fn value_bytes(self) -> u16 {
        u16::from_le_bytes([self.0[14], self.0[15]])
    }
    fn key(self) -> &'a [u8] {
        &self.0[HEADER_BYTES..HEADER_BYTES + self.key_bytes()]
    }
    fn value(self) -> Option<&'a [u8]> {
        let start = HEADER_BYTES + self.key_bytes();
        let bytes = self.value_bytes();
        (bytes != TOMBSTONE).then(|| &self.0[start..start + usize::from(bytes)])
    }
    fn bytes(self) -> usize {
        record_bytes(self.key_bytes(), self.value().map_or(0, <[u8]>::len), self.key_field() & EXPIRES != 0)
    }
    fn is_of(self, owner: u32, key: &[u8]) -> bool {
        self.owner() == owner && self.key() == key
    }
    fn hash(self) -> u64 {
        hash_of(self.owner(), filter::hash(self.key()))
    }
}

/// Page size of a shard of `shard_bytes` bytes, in bytes.
pub(super) fn page_bytes(shard_bytes: u64) -> usize {
    1 << (shard_bytes / PAGES).clamp(LEAST_PAGE_BYTES, MOST_PAGE_BYTES).ilog2()
}

fn record_bytes(key: usize, value: usize, expires: bool) -> usize {
    (HEADER_BYTES + key + value + if expires { EXPIRY_BYTES } else { 0 }).next_multiple_of(UNIT)
}

/// `b / a`, rounded; at least 1.
fn times(a: usize, b: usize) -> usize {
    ((b + a / 2) / a.max(1)).max(1)
}

/// As [`times`], at most [`MOST_USES`].
fn uses(a: usize, b: usize) -> u32 {
    times(a, b).min(MOST_USES as usize) as u32
}

/// Hash of an owner's key, from that of the key.
pub(super) fn hash_of(owner: u32, key_hash: u64) -> u64 {
    key_hash ^ u64::from(owner).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Fresh<'_> {
    /// Bytes of a page that it takes.
    pub(super) fn bytes(&self) -> usize {
        record_bytes(self.key.len(), self.value.map_or(0, <[u8]>::len), self.stamp.expires.is_some())
    }

    fn write_to(&self, page: &mut [u8]) {
        let value = self.value.unwrap_or_default();
        let value_bytes = if self.value.is_some() { value.len() as u16 } else { TOMBSTONE };
        page[..8].copy_from_slice(&self.stamp.lsn.0.to_le_bytes());
        page[8..12].copy_from_slice(&self.owner.to_le_bytes());
        let key_field = self.key.len() as u16 | if self.stamp.expires.is_some() { EXPIRES } else { 0 };
        page[12..14].copy_from_slice(&key_field.to_le_bytes());
        page[14..16].copy_from_slice(&value_bytes.to_le_bytes());
        page[HEADER_BYTES..HEADER_BYTES + self.key.len()].copy_from_slice(self.key);
        let rest = &mut page[HEADER_BYTES + self.key.len()..];
        rest[..value.len()].copy_from_slice(value);
        if let Some(expires) = self.stamp.expires {
            rest[value.len()..value.len() + EXPIRY_BYTES].copy_from_slice(&expires.ms().to_le_bytes());
        }
    }
}

/// Parts of the cache that the shards share.
pub(super) struct CacheParts<'a> {
    pub(super) budget: &'a Budget,
    pub(super) gone: &'a Ghosts,
    /// Makes room outside the records; `false` if the records must make room themselves.
    pub(super) make_room: &'a dyn Fn() -> bool,
}

impl Shard {
    pub(super) fn new(page_bytes: usize) -> Shard {
        Shard {
            page_bytes,
            table: HashTable::new(),
            pages: Vec::new(),
            free: Vec::new(),
            probation: Pages::default(),
            main: Pages::default(),
            spare: Block::default(),
            table_bytes: 0,
            hits: 0,
            #[cfg(test)]
            turned: 0,
        }
    }

    /// Pages in its rings.
    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.probation.order.len() + self.main.order.len()
    }

    /// Pages that were emptied so far.
    #[cfg(test)]
    pub(super) fn turned(&self) -> usize {
        self.turned
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits
    }

    /// The size of a record of `bytes` bytes as a multiple of the mean; 1 where there is none to compare it with.
    pub(super) fn times_as_large(&self, bytes: usize) -> u64 {
        if self.is_empty() { 1 } else { times(self.mean_bytes(), bytes) as u64 }
    }

    /// Mean size of a record, in bytes.
    fn mean_bytes(&self) -> usize {
        (self.probation.live_bytes + self.main.live_bytes) / self.table.len().max(1)
    }

    fn ring(&mut self, ring: Ring) -> &mut Pages {
        match ring {
            Ring::Probation => &mut self.probation,
            Ring::Main => &mut self.main,
        }
    }

    /// Subtracts a record that left the table from the bytes of its ring.
    fn count_out(&mut self, slot: Slot) {
        let bytes = Record::at(&self.pages, slot).bytes();
        let ring = self.pages[slot.page()].ring;
        self.ring(ring).live_bytes -= bytes;
    }

    /// The record of a key, unless it is newer than `at`. Counts a use.
    pub(super) fn get(&mut self, hash: u64, owner: u32, key: &[u8], at: Lsn) -> Option<Cached> {
        let mean_bytes = self.mean_bytes();
        let pages = &self.pages;
        let slot = self.table.find_mut(hash, |slot| Record::at(pages, *slot).is_of(owner, key))?;
        let record = Record::at(pages, *slot);
        if record.lsn() > at {
            return None;
        }
        slot.0 += uses(record.bytes(), mean_bytes).min(MOST_USES - slot.uses());
        self.hits += 1;
        Some((record.stamp(), record.value().map(Bytes::copy_from_slice)))
    }

    /// The ring that a key's record is in, and its LSN.
    pub(super) fn find(&self, hash: u64, owner: u32, key: &[u8]) -> Option<(Ring, Lsn)> {
        let slot = self.table.find(hash, |slot| Record::at(&self.pages, *slot).is_of(owner, key))?;
        Some((self.pages[slot.page()].ring, Record::at(&self.pages, *slot).lsn()))
    }

    /// Removes a key's record; returns its uses.
    pub(super) fn remove(&mut self, hash: u64, owner: u32, key: &[u8]) -> u32 {
        let pages = &self.pages;
        let found = self.table.find_entry(hash, |slot| Record::at(pages, *slot).is_of(owner, key));
        let Ok(found) = found else { return 0 };
        let slot = found.remove().0;
        self.count_out(slot);
        slot.uses()
    }

    /// Removes an owner's records for which `is_stale` is true.
    pub(super) fn forget(&mut self, owner: u32, is_stale: &dyn Fn(&[u8], Lsn) -> bool) {
        let pages = &self.pages;
        let is_gone = |slot: &mut Slot| {
            let record = Record::at(pages, *slot);
            record.owner() == owner && is_stale(record.key(), record.lsn())
        };
        let gone: Vec<_> = self.table.extract_if(is_gone).collect();
        gone.into_iter().for_each(|slot| self.count_out(slot));
    }

    /// Keeps a record of a key that has none, if there is any room at all.
    pub(super) fn insert(&mut self, hash: u64, fresh: Fresh<'_>, (ring, uses): (Ring, u32), shared: &CacheParts<'_>) {
        if let Some((page, offset)) = self.room(fresh.bytes(), ring, shared) {
            fresh.write_to(&mut self.pages[page].bytes[offset..]);
            self.link(hash, Slot::new(page, offset, uses), shared);
        }
    }

    fn link(&mut self, hash: u64, slot: Slot, shared: &CacheParts<'_>) {
        let pages = &self.pages;
        self.table.insert_unique(hash, slot, |slot| Record::at(pages, *slot).hash());
        let (ring, bytes) = (pages[slot.page()].ring, Record::at(pages, slot).bytes());
        self.ring(ring).live_bytes += bytes;
        let table_bytes = self.table.allocation_size() as u64;
        if table_bytes != self.table_bytes {
            shared.budget.give(self.table_bytes);
            shared.budget.take(table_bytes);
            self.table_bytes = table_bytes;
        }
    }

    /// Room for `bytes` at the end of a ring: page and offset.
    fn room(&mut self, bytes: usize, ring: Ring, shared: &CacheParts<'_>) -> Option<(usize, usize)> {
        let last = self.ring(ring).order.back().copied();
        let page = match last.filter(|page| self.pages[*page].used + bytes <= self.page_bytes) {
            Some(page) => page,
            None => {
                let page = self.take_page(shared)?;
                (self.pages[page].used, self.pages[page].ring) = (0, ring);
                self.ring(ring).order.push_back(page);
                page
            }
        };
        let offset = self.pages[page].used;
        self.pages[page].used += bytes;
        Some((page, offset))
    }

    /// Takes a page that is in no ring; evicts until there is one.
    fn take_page(&mut self, shared: &CacheParts<'_>) -> Option<usize> {
        let (mut emptied, mut objects) = (0, 0);
        loop {
            if let Some(page) = self.free.pop() {
                return Some(page);
            }
            if let Some(ring) = self.mostly_holes() {
                self.evict(ring, shared, &mut emptied);
                continue;
            }
            if self.pages.len() < MOST_PAGES
                && (shared.budget.try_take(self.page_bytes as u64) || self.is_starved(shared))
            {
                let page = self.pages.iter().position(|page| page.bytes.is_empty()).unwrap_or(self.pages.len());
                if page == self.pages.len() {
                    self.pages.push(Page::default());
                }
                self.pages[page].bytes = shared.budget.pool().take(self.page_bytes);
                return Some(page);
            }
            let by_objects = objects < MOST_OBJECTS && (shared.make_room)();
            objects += usize::from(by_objects);
            if !by_objects && !self.evict_next(shared, &mut emptied) {
                return None;
            }
        }
    }

    /// A ring with records in less than half of its bytes: evicting from it gains pages.
    fn mostly_holes(&self) -> Option<Ring> {
        let is_so = |pages: &Pages| pages.order.len() > 2 && pages.live_bytes * 2 < pages.order.len() * self.page_bytes;
        let rings = [(Ring::Probation, &self.probation), (Ring::Main, &self.main)];
        rings.into_iter().find(|(_, pages)| is_so(pages)).map(|(ring, _)| ring)
    }

    /// Takes a page beyond the budget for a shard that has none; another shard will give one back.
    fn is_starved(&self, shared: &CacheParts<'_>) -> bool {
        let is_starved = self.probation.order.is_empty() && self.main.order.is_empty();
        if is_starved {
            shared.budget.take(self.page_bytes as u64);
        }
        is_starved
    }

    /// Empties the page whose turn it is; `false` if there is none. `emptied`: see [`Shard::evict`].
    fn evict_next(&mut self, shared: &CacheParts<'_>, emptied: &mut usize) -> bool {
        let (probation, main) = (self.probation.order.len(), self.main.order.len());
        let from_probation = main == 0 || probation * PROBATION > probation + main;
        self.evict(if from_probation { Ring::Probation } else { Ring::Main }, shared, emptied)
    }

    /// Empties the first page of a ring; `false` if it has none. Used records stay, so there may be no more room
    /// afterwards, but each time they keep at most half of their uses. `emptied` counts the pages that were emptied for the
    /// same purpose: none stays of the last.
    fn evict(&mut self, from: Ring, shared: &CacheParts<'_>, emptied: &mut usize) -> bool {
        let mean_bytes = self.mean_bytes();
        let Some(page) = self.ring(from).order.pop_front() else { return false };
        *emptied += 1;
        #[cfg(test)]
        {
            self.turned += 1;
        }
        let is_last = *emptied >= MOST_EMPTIED;
        if self.spare.is_empty() {
            shared.budget.take(self.page_bytes as u64);
            self.spare = shared.budget.pool().take(self.page_bytes);
        }
        let bytes = std::mem::replace(&mut self.pages[page].bytes, std::mem::take(&mut self.spare));
        let mut staying = Vec::new();
        let (mut offset, mut live_bytes) = (0, 0);
        while offset < self.pages[page].used {
            let record = Record(&bytes[offset..]);
            let (hash, end) = (record.hash(), offset + record.bytes());
            // A record that was replaced or forgotten has no slot.
            if let Ok(entry) = self.table.find_entry(hash, |slot| slot.is_at(page, offset)) {
                let used = entry.remove().0.uses();
                live_bytes += end - offset;
                if is_last || used < uses(mean_bytes, end - offset) {
                    shared.gone.note(hash, (end - offset) as u64);
                } else {
                    staying.push((hash, offset..end, if from == Ring::Main { used / 2 } else { 0 }));
                }
            }
            offset = end;
        }
        self.ring(from).live_bytes -= live_bytes;
        self.free.push(page);
        for (hash, range, uses) in staying {
            let (page, offset) = self.room(range.len(), Ring::Main, shared).expect("the page just emptied is free");
            self.pages[page].bytes[offset..offset + range.len()].copy_from_slice(&bytes[range]);
            self.link(hash, Slot::new(page, offset, uses), shared);
        }
        self.spare = bytes;
        true
    }

    /// Returns a page to the budget; `false` if it has none.
    pub(super) fn shed(&mut self, shared: &CacheParts<'_>) -> bool {
        let mut emptied = 0;
        while self.free.is_empty() {
            if !self.evict_next(shared, &mut emptied) {
                return false;
            }
        }
        let page = self.free.pop().expect("just seen");
        self.pages[page] = Page::default();
        shared.budget.give(self.page_bytes as u64);
        true
    }
}
