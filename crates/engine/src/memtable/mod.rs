//! L0, the memtable: every version of every key written since the one before it was frozen, sorted by key and, within
//! a key, from the newest version to the oldest; and every range that was deleted since (`ranges`).
//!
//! One writer at a time; any number of readers in parallel, which never block and never make the writer wait. A reader
//! that knows that an LSN is written sees every entry up to it. Nothing is ever removed: the memory is freed with the
//! last [`Arc`] of the table.

use crate::memory::{L0Reservation, Memory};
use leeward_format::{Lsn, SegmentName, Stamp, filter};
use leeward_platform::Pool;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub use leeward_format::node::Entry;

#[expect(unsafe_code, reason = "memory that is added to while it is read")]
mod arena;
#[expect(unsafe_code, reason = "readers follow numbers into an arena that the writer adds to")]
mod blink;
#[expect(unsafe_code, reason = "entries are read in place")]
mod entry;
mod hint;
mod key_filter;
mod loader;
mod ranges;
#[cfg(test)]
mod tests;

use blink::{BLink, FoundEntry, Position};
pub(crate) use entry::compare;
use key_filter::KeyFilter;
use leeward_format::range::{RangeTombstone, RangeTombstones};
pub(crate) use loader::Loader;
pub(crate) use ranges::MOST_RANGES;
use ranges::Ranges;

/// Most bytes of any L0. The rest of the 32-bit numbers is for the last batch.
const MOST_BYTES: u64 = 3 << 30;

/// Most bytes of records in the logs, for each byte that an L0 may have in memory. A large value takes little of an L0, but its
/// record is read again when the L0 is replayed.
pub(crate) const LOG_BYTES_PER_BYTE: u64 = 32;

/// An L0.
pub struct MemTable {
    list: Arc<BLink>,
    /// Filter of the keys in the list.
    keys: KeyFilter,
    ranges: Ranges,
    /// Bytes in log segments that belong to its records, but that no entry refers to.
    unreferenced: Mutex<BTreeMap<SegmentName, u32>>,
    /// Bytes of its records in the logs.
    log_bytes: AtomicU64,
    has_deletes: AtomicBool,
    /// For the memory of the list and the filter.
    reservation: Option<Arc<L0Reservation>>,
}

impl MemTable {
    /// An empty one. Takes little memory until it is written to.
    pub fn new() -> MemTable {
        MemTable::of(Pool::new(0), None)
    }

    fn of(pool: Arc<Pool>, reservation: Option<Arc<L0Reservation>>) -> MemTable {
        MemTable {
            list: Arc::new(BLink::new(pool)),
            keys: KeyFilter::default(),
            ranges: Ranges::default(),
            unreferenced: Mutex::default(),
            log_bytes: AtomicU64::new(0),
            has_deletes: AtomicBool::new(false),
            reservation,
        }
    }

    /// An empty one that takes its memory from a budget.
    pub fn within(memory: &Memory) -> MemTable {
        let table = MemTable::of(Arc::clone(memory.pool()), Some(memory.l0()));
        table.account(0);
        table
    }

    /// Inserts one version of `key`; no other may have its LSN. The caller ensures that there is one writer at a time:
    /// with two, the filter could lose a key.
    pub fn insert(&self, key: &[u8], stamp: impl Into<Stamp>, entry: Entry<'_>) {
        self.note(entry);
        self.keys.add(filter::hash(key));
        self.list.insert(key, stamp.into(), entry);
        self.account(0);
    }

    #[inline]
    fn note(&self, entry: Entry<'_>) {
        if matches!(entry, Entry::Tombstone) {
            self.has_deletes.store(true, Relaxed);
        }
    }

    /// Reserves its memory, and `more` bytes.
    #[inline]
    fn account(&self, more: u64) {
        let bytes = self.memory_bytes() + more;
        if let Some(reservation) = self.reservation.as_ref().filter(|reservation| reservation.bytes() != bytes) {
            reservation.set(bytes);
        }
    }

    /// It freezes together with the others of the volume's [round](crate::memory).
    pub(crate) fn join_round(&self) {
        if let Some(reservation) = &self.reservation {
            reservation.join_round();
        }
    }

    /// No more entries follow.
    pub(crate) fn freeze(&self) {
        if let Some(reservation) = &self.reservation {
            reservation.freeze();
        }
    }

    /// Asks it to freeze, however small it is.
    pub(crate) fn ask_to_freeze(&self) {
        if let Some(reservation) = &self.reservation {
            reservation.ask();
        }
    }

    /// Whether it should freeze: memory is short and this is one of the largest L0s, or space is short.
    pub(crate) fn is_asked_to_freeze(&self) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| reservation.is_asked())
    }

    /// Whether it is not empty, and full or asked to freeze.
    #[inline]
    pub(crate) fn is_due_to_freeze(&self, is_full: bool) -> bool {
        !self.is_empty() && (is_full || self.is_asked_to_freeze())
    }

    /// Hides every version of a key of `range` with a lower LSN. Range tombstones come in order of their LSNs. One
    /// writer at a time.
    pub(crate) fn insert_range(&self, range: RangeTombstone) {
        self.has_deletes.store(true, Relaxed);
        self.ranges.insert(range);
    }

    /// A record has `bytes` more than its entry says: the request id, which is dropped at the compaction.
    pub(crate) fn add_unreferenced(&self, segment: SegmentName, bytes: u32) {
        *self.unreferenced.lock().entry(segment).or_default() += bytes;
    }

    /// Calls `each` with the bytes of [`MemTable::add_unreferenced`], by segment.
    pub(crate) fn unreferenced(&self, each: &mut dyn FnMut(SegmentName, u32)) {
        self.unreferenced.lock().iter().for_each(|(segment, bytes)| each(*segment, *bytes));
    }

    /// The newest version of `key` with an LSN of at most `at`; a tombstone where a range tombstone is newer. Allocates
    /// nothing.
    #[inline]
    pub fn get(&self, key: &[u8], at: Lsn) -> Option<(Stamp, Entry<'_>)> {
        self.get_hashed(key, filter::hash(key), at)
    }

    /// [`MemTable::get`] of a key whose [`filter::hash`] is `hash`.
    #[inline]
    pub(crate) fn get_hashed(&self, key: &[u8], hash: u64, at: Lsn) -> Option<(Stamp, Entry<'_>)> {
        let seek = || self.list.seek(key, at).filter(|found| found.key() == key);
        let found = if self.keys.may_contain(hash) { seek() } else { None };
        let found = found.map(|found| (found.stamp(), found.entry()));
        if self.has_ranges() { self.unless_hidden(key, at, found) } else { found }
    }

    #[cold]
    fn unless_hidden<'a>(&self, key: &[u8], at: Lsn, found: Option<(Stamp, Entry<'a>)>) -> Option<(Stamp, Entry<'a>)> {
        let hidden = self.ranges.covering(key, at);
        match (hidden, found) {
            (Some(hidden), found) if found.is_none_or(|(stamp, _)| stamp.lsn < hidden) => {
                Some((hidden.into(), Entry::Tombstone))
            }
            (_, found) => found,
        }
    }

    /// Memory in use by entries and range tombstones, in bytes.
    pub fn bytes(&self) -> u64 {
        self.list.bytes() + self.ranges.bytes()
    }

    /// Adds the bytes of records in the logs. One writer at a time.
    #[inline]
    pub(crate) fn add_log_bytes(&self, bytes: u64) {
        self.log_bytes.store(self.log_bytes.load(Relaxed) + bytes, Relaxed);
    }

    /// Whether it deletes something.
    pub(crate) fn has_deletes(&self) -> bool {
        self.has_deletes.load(Relaxed)
    }

    /// Whether its compaction may free segments of this size: its logs have some, or it deletes what others have.
    pub(crate) fn may_free(&self, segment_bytes: u64) -> bool {
        self.has_deletes() || self.log_bytes() >= segment_bytes / 2
    }

    /// Bytes of its records in the logs: a replay reads them all.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Relaxed)
    }

    /// What a replay of its records costs, in bytes of an L0 of small values. As many bytes of the logs as fill an L0 cost
    /// as much as the L0.
    pub(crate) fn replay_bytes(&self) -> u64 {
        self.bytes().max(self.log_bytes() / LOG_BYTES_PER_BYTE)
    }

    /// Whether another `bytes` and `ranges` range tombstones fit: within `most`, the arena's limit, and the limits of
    /// tombstones and of the logs.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64, ranges: usize, most: u64) -> bool {
        let has_room_for_ranges = ranges == 0 || self.ranges.len() + ranges <= MOST_RANGES;
        let has_room_in_logs = self.log_bytes() + bytes <= most.saturating_mul(LOG_BYTES_PER_BYTE);
        self.bytes() + bytes <= most.min(MOST_BYTES) && has_room_in_logs && has_room_for_ranges
    }

    /// Memory that it has, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.list.memory_bytes() + self.keys.memory_bytes() as u64
    }

    /// Number of entries, all versions, and of range tombstones.
    pub fn entries(&self) -> u64 {
        self.list.len() + self.ranges.len() as u64
    }

    /// About how many entries have keys from `start` up to, and without, `end`, and the bytes of their keys and values.
    pub(crate) fn estimate(&self, start: &[u8], end: Option<&[u8]>) -> (u64, u64) {
        self.list.estimate(start, end)
    }

    /// Highest LSN of an entry or range tombstone; 0 while there is none.
    pub fn last_lsn(&self) -> Lsn {
        self.list.last_lsn().max(self.ranges.last_lsn())
    }

    /// Whether nothing was inserted yet.
    pub fn is_empty(&self) -> bool {
        self.last_lsn() == Lsn(0)
    }

    /// Whether there is a range tombstone.
    #[inline]
    pub(crate) fn has_ranges(&self) -> bool {
        self.ranges.last_lsn() != Lsn(0)
    }

    /// Its range tombstones as of `at`.
    pub fn ranges(&self, at: Lsn) -> Arc<RangeTombstones> {
        self.ranges.as_of(at)
    }

    /// Calls `each` with every version that is not the newest of its key.
    pub fn overwritten(&self, each: &mut dyn FnMut(&[u8], Stamp, Entry<'_>)) {
        if !self.list.has_versions() {
            return;
        }
        let mut here = self.list.seek(&[], NEWEST);
        while let Some(newer) = here {
            here = newer.next();
            if let Some(older) = here.filter(|older| older.key() == newer.key()) {
                each(older.key(), older.stamp(), older.entry());
            }
        }
    }

    /// A cursor over the versions that a reader at `at` sees: of each key the newest with an LSN of at most `at`.
    pub fn cursor(&self, at: Lsn) -> MemCursor {
        MemCursor { position: Position::new(Arc::clone(&self.list)), at, _reservation: self.reservation.clone() }
    }
}

impl Default for MemTable {
    fn default() -> Self {
        MemTable::new()
    }
}

impl fmt::Debug for MemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemTable({} entries, {} bytes, to LSN {})", self.entries(), self.bytes(), self.last_lsn())
    }
}

/// Walks the visible versions of an L0, tombstones included, in either direction. Entries inserted meanwhile are newer
/// than its LSN and are skipped.
pub struct MemCursor {
    position: Position,
    at: Lsn,
    /// Keeps the list's memory reserved.
    _reservation: Option<Arc<L0Reservation>>,
}

/// Newer than every entry: the versions of a key begin here.
const NEWEST: Lsn = Lsn(u64::MAX);
/// Older than every entry: the versions of a key end before it.
const OLDEST: Lsn = Lsn(0);
/// Versions of a key that a cursor walks over before it searches for the end of them.
const MOST_WALKED: usize = 8;

#[cfg(test)]
std::thread_local! {
    /// Versions that cursors of this thread have walked over.
    static WALKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl MemCursor {
    /// Moves to the first key at or above `key`.
    pub fn seek(&mut self, key: &[u8]) {
        let at = self.at;
        self.position.set(|list, _| visible_from(list, list.seek(key, NEWEST), at));
    }

    /// Moves to the last key below `bound`; the last of all without a bound.
    pub(crate) fn seek_before(&mut self, bound: Option<&[u8]>) {
        let at = self.at;
        self.position.set(|list, _| {
            let last = bound.map_or_else(|| list.last(), |key| list.before(key, NEWEST));
            visible_back_from(list, last, at)
        });
    }

    /// Moves to the next key. Does nothing at the end.
    pub fn step(&mut self) {
        let at = self.at;
        self.position.set(|list, here| {
            let next = here?.next();
            let key = here?.key();
            let is_older = |found: FoundEntry<'_>| found.key() == key;
            let next = if list.has_versions() { skip(list, next, (key, OLDEST), is_older) } else { next };
            visible_from(list, next, at)
        });
    }

    /// Moves to the previous key. Does nothing at the end.
    pub(crate) fn step_back(&mut self) {
        let at = self.at;
        self.position.set(|list, here| visible_back_from(list, list.before(here?.key(), NEWEST), at));
    }

    /// The current key; `None` at the end.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        self.position.get().map(|found| found.key())
    }

    /// Current key, stamp and contents; `None` at the end.
    #[inline]
    pub fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        let node = self.position.get()?;
        Some((node.key(), node.stamp(), node.entry()))
    }
}

/// The first version at or after `node` that a reader at `at` sees: the newest visible one of its key.
#[inline]
fn visible_from<'a>(list: &'a BLink, mut node: Option<FoundEntry<'a>>, at: Lsn) -> Option<FoundEntry<'a>> {
    if at == NEWEST {
        return node;
    }
    while let Some(newer) = node.filter(|node| node.lsn() > at) {
        let key = newer.key();
        let is_newer = |found: FoundEntry<'_>| found.lsn() > at && found.key() == key;
        node = skip(list, newer.next(), (key, at), is_newer);
    }
    node
}

/// The first entry from `node` on that is none of those that `is_skipped`, versions of the key of `target`, before which
/// all of them are. Few are walked over; for many the tree is searched: a key may have millions.
#[inline]
fn skip<'a>(
    list: &'a BLink,
    mut node: Option<FoundEntry<'a>>,
    target: (&[u8], Lsn),
    is_skipped: impl Fn(FoundEntry<'_>) -> bool,
) -> Option<FoundEntry<'a>> {
    let mut walked = 0;
    while let Some(skipped) = node.filter(|node| is_skipped(*node)) {
        #[cfg(test)]
        WALKED.with(|all| all.set(all.get() + 1));
        walked += 1;
        node = if walked == MOST_WALKED { list.seek(target.0, target.1) } else { skipped.next() };
    }
    node
}

/// The newest version that a reader at `at` sees of the last key with one, among the key of `node` and those before.
fn visible_back_from<'a>(list: &'a BLink, mut node: Option<FoundEntry<'a>>, at: Lsn) -> Option<FoundEntry<'a>> {
    while let Some(oldest) = node {
        let visible = list.seek(oldest.key(), at).filter(|found| found.key() == oldest.key());
        if visible.is_some() {
            return visible;
        }
        node = list.before(oldest.key(), NEWEST);
    }
    None
}
