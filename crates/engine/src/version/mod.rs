//! A region's data at one instant: the active L0, the frozen ones, the levels. Immutable, except that the active L0
//! grows. A change makes a new version; readers keep the one they began with.
//!
//! Any thread may read. With [`Reach::Memory`] no read here uses the device.

use crate::cache::Cached;
use crate::error::Result;
use crate::log::ValueAt;
use crate::memtable::{Entry, MemTable};
use crate::reads::{NEWEST, Reach, Reads};
use crate::tree::{EntryContent, Level, Probe, Source};
use crate::volume::Segment;
use bytes::Bytes;
use leeward_format::leaf_segment::Span;
use leeward_format::{Expiry, Lsn, Stamp, UnixMs, filter};
use std::sync::{Arc, Weak};

mod approximate;
mod many;
mod retired;
#[cfg(test)]
pub(crate) mod tests;

pub use approximate::Approximation;
pub use many::SMALL_VALUE_BYTES;
pub(crate) use retired::Pin;

/// Answer of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key has a value.
    Found {
        /// LSN of the put.
        lsn: Lsn,
        /// When the pair expires, if it does.
        expires: Option<Expiry>,
        /// 0 to [`leeward_format::MAX_VALUE_BYTES`] bytes.
        value: Bytes,
    },
    /// The key was deleted, or its pair has expired.
    Deleted {
        /// LSN of the delete, or of the put that expired.
        lsn: Lsn,
    },
    /// The key never existed, or its tombstone has been dropped.
    Absent,
    /// The answer is on the device. Only a read with [`Reach::Memory`] returns this.
    NotInMemory,
}

impl Lookup {
    /// The value, if the key has one.
    pub fn into_value(self) -> Option<Bytes> {
        match self {
            Lookup::Found { value, .. } => Some(value),
            Lookup::Deleted { .. } | Lookup::Absent | Lookup::NotInMemory => None,
        }
    }
}

/// Returns the present instant; called only for pairs with an expiry.
pub type Now<'a> = &'a dyn Fn() -> UnixMs;

/// The levels of a version.
struct Levels {
    /// By position.
    all: Vec<Arc<Level>>,
    /// Those with data, newest first: what a read passes. Most positions are empty.
    filled: Vec<Arc<Level>>,
    /// The position of each of these.
    positions: Arc<[usize]>,
}

impl Levels {
    fn new(all: Vec<Arc<Level>>) -> Arc<Levels> {
        let is_filled = |(_, level): &(usize, &Arc<Level>)| !level.is_empty();
        let filled = all.iter().enumerate().filter(is_filled).map(|(position, level)| (position, Arc::clone(level)));
        let (positions, filled): (Vec<_>, Vec<_>) = filled.unzip();
        Arc::new(Levels { all, filled, positions: positions.into() })
    }
}

/// What a compaction changes in a version.
pub(crate) struct LevelChange<'a> {
    /// The frozen L0s that are part of levels from now on, oldest first.
    pub(crate) l0s: &'a [Arc<MemTable>],
    /// The keys of ingested pairs.
    pub(crate) ingested: Option<&'a Span>,
    /// Position, the level before (weak, so that it can go), and the level from now on.
    pub(crate) levels: &'a [(usize, Weak<Level>, Arc<Level>)],
    /// Log segments that the levels point to from now on.
    pub(crate) logs: Vec<&'a Arc<Segment>>,
    /// Pairs that had expired by then were dropped.
    pub(crate) expired_by: UnixMs,
}

/// The generation that the cache has been updated for, if the answers of the levels change.
pub(crate) struct Renewed(Option<u64>);

/// A region's data at one instant.
#[derive(Clone)]
pub struct Version {
    reads: Arc<Reads>,
    active: Arc<MemTable>,
    frozen: Vec<Arc<MemTable>>,
    levels: Arc<Levels>,
    /// The levels' answer for a key may be cached while this is the generation of [`Reads`]. So for each key the cache
    /// is never older than the levels of any version whose L0s do not have the key.
    generation: u64,
    pin: Arc<Pin>,
}

impl Version {
    /// A version of these parts; `frozen` newest first, `levels` from L1.
    pub(crate) fn new(
        reads: Arc<Reads>,
        active: Arc<MemTable>,
        frozen: Vec<Arc<MemTable>>,
        levels: Vec<Arc<Level>>,
    ) -> Version {
        let generation = reads.generation();
        Version { reads, active, frozen, levels: Levels::new(levels), generation, pin: Pin::first() }
    }
    /// The L0 that takes writes.
    pub(crate) fn active(&self) -> &Arc<MemTable> {
        &self.active
    }
    /// L0s that take no more writes, newest first.
    pub(crate) fn frozen(&self) -> &[Arc<MemTable>] {
        &self.frozen
    }
    /// The frozen L0s whose records are committed up to `commit`, oldest first.
    pub(crate) fn committed(&self, commit: Lsn) -> impl Iterator<Item = &Arc<MemTable>> {
        self.frozen.iter().rev().take_while(move |l0| l0.last_lsn() <= commit)
    }
    /// The levels by [position](leeward_format::manifest::L1_RUNS).
    pub(crate) fn levels(&self) -> &[Arc<Level>] {
        &self.levels.all
    }
    /// The levels that have data, newest first.
    pub(crate) fn filled(&self) -> &[Arc<Level>] {
        &self.levels.filled
    }
    /// The position of each of [`Version::filled`].
    pub(crate) fn positions(&self) -> &Arc<[usize]> {
        &self.levels.positions
    }
    /// The version after the active L0 froze and `active` replaced it.
    #[must_use]
    pub(crate) fn freeze(&self, active: Arc<MemTable>) -> Version {
        self.active.freeze();
        let frozen = std::iter::once(&self.active).chain(&self.frozen).cloned().collect();
        Version { active, frozen, ..self.clone() }
    }
    /// Updates the cache for the version after `done`, which walks every key of the L0s that it compacted: before the caller
    /// takes any lock that a writer needs. Until that version is shown, readers cache nothing.
    pub(crate) fn renew(&self, done: &LevelChange<'_>) -> Renewed {
        let of_l0s = (!done.l0s.is_empty()).then(|| self.reads.renew(done.l0s));
        let of_ingest = done.ingested.map(|span| self.reads.renew_span(span));
        Renewed(of_ingest.or(of_l0s))
    }

    /// The version after a compaction. The compaction must have begun at a version with the same levels, as far as it
    /// changes them, and be `renewed`. The new version must become the current one: the cache has the answers of its
    /// levels already. Keeps the log segments in `retired`, which it no longer sees, for readers of the versions that do.
    #[must_use]
    pub(crate) fn install(&self, done: &LevelChange<'_>, renewed: Renewed, retired: Vec<Arc<Segment>>) -> Version {
        let mut levels = self.levels.all.clone();
        for (position, before, after) in done.levels {
            if levels.len() <= *position {
                levels.resize_with(position + 1, || Arc::new(Level::empty()));
            }
            let is_as_before = match before.upgrade() {
                Some(before) => {
                    Arc::ptr_eq(&levels[*position], &before) || levels[*position].is_empty() && before.is_empty()
                }
                // It was an empty level of the compaction alone; this version would keep its own.
                None => levels[*position].is_empty(),
            };
            assert!(is_as_before, "two compactions have changed the level at position {position}");
            levels[*position] = Arc::clone(after);
        }
        self.reads.drop_expired(done.expired_by);
        let compacted = |l0: &Arc<MemTable>| done.l0s.iter().any(|compacted| Arc::ptr_eq(l0, compacted));
        let frozen = self.frozen.iter().filter(|l0| !compacted(l0)).cloned().collect();
        let generation = renewed.0.unwrap_or(self.generation);
        let pin = self.pin.next(done.logs.iter().copied());
        pin.retire(retired);
        Version { frozen, levels: Levels::new(levels), generation, pin, ..self.clone() }
    }

    /// The version from which on the L0 that takes writes may point to the log segment `opened`.
    #[must_use]
    pub(crate) fn open_log(&self, opened: &Arc<Segment>) -> Version {
        Version { pin: self.pin.next(std::iter::once(opened)), ..self.clone() }
    }

    /// The frozen L0s whose entries levels that have everything below `from` have completely, oldest first; and the
    /// update of the cache for [`Version::follow`], as [`Version::renew`].
    pub(crate) fn renew_below(&self, from: Lsn) -> (Renewed, Vec<Arc<MemTable>>) {
        let l0s: Vec<_> = self.frozen.iter().rev().filter(|l0| l0.last_lsn() < from).cloned().collect();
        (Renewed((!l0s.is_empty()).then(|| self.reads.renew(&l0s))), l0s)
    }

    /// The version after an install by another replica, whose `levels` have everything below `from`, `renewed` for
    /// that, and point to the log segments `added`. Otherwise as [`Version::install`].
    #[must_use]
    pub(crate) fn follow(
        &self,
        levels: Vec<Arc<Level>>,
        from: Lsn,
        renewed: Renewed,
        added: &[Arc<Segment>],
    ) -> Version {
        let frozen = self.frozen.iter().filter(|l0| l0.last_lsn() >= from).cloned().collect();
        // The other replica does not say by which time it has dropped what had expired.
        self.reads.drop_expired(UnixMs(u64::MAX));
        let generation = renewed.0.unwrap_or(self.generation);
        let (levels, pin) = (Levels::new(levels), self.pin.next(added.iter()));
        Version { frozen, levels, generation, pin, ..self.clone() }
    }

    /// The newest version of `key` with an LSN of at most `at`, unless it has expired by `now`. `at` must not be below
    /// the highest LSN in the levels; every LSN that was committed when this version was current satisfies that. If it
    /// is higher, it must have been appended before this version was loaded: see [`Pin`]. Allocates only the value.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn get(&self, key: &[u8], at: Lsn, reach: Reach, now: Now<'_>) -> Result<Lookup> {
        let hash = filter::hash(key);
        if let Some((Stamp { lsn, expires }, entry)) = self.in_l0(key, hash, at) {
            return match entry {
                _ if is_over(expires, now) => Ok(Lookup::Deleted { lsn }),
                Entry::InPlace(value) => Ok(Lookup::Found { lsn, expires, value: Bytes::copy_from_slice(value) }),
                Entry::InLog { pointer, value_bytes } => {
                    self.in_log(&ValueAt { pointer, key, value_bytes, expires }, lsn, reach)
                }
                Entry::Tombstone => Ok(Lookup::Deleted { lsn }),
            };
        }
        if self.filled().is_empty() {
            return Ok(Lookup::Absent);
        }
        // A compaction took a pair for expired that a reader of an earlier instant still sees, and that a reader whose
        // clock is behind must not see again: the levels of the version decide.
        let is_known = |(stamp, value): &Cached| match stamp.expires {
            Some(expires) => expires.is_over(now()) || value.is_some() && !self.reads.may_lack(expires),
            None => true,
        };
        let cached = self.reads.cached(key, hash, at).filter(is_known);
        if let Some((stamp, value)) = cached.filter(|_| !self.reads.has_ingested_since(self.generation)) {
            return Ok(answer(stamp, value, now));
        }
        for level in self.filled() {
            match level.get(&self.reads, key, hash, reach)? {
                Probe::Absent => {}
                Probe::NotInMemory => return Ok(Lookup::NotInMemory),
                Probe::Found { stamp, found, from } => {
                    return match self.found(key, hash, stamp, (found, from), now) {
                        Ok(answer) => Ok(answer),
                        Err(at) => self.in_log(&at, stamp.lsn, reach),
                    };
                }
            }
        }
        Ok(Lookup::Absent)
    }

    /// The version as of `at` in the newest L0 that has `key`, which has this `hash`.
    #[inline]
    fn in_l0(&self, key: &[u8], hash: u64, at: Lsn) -> Option<(Stamp, Entry<'_>)> {
        std::iter::once(&self.active).chain(&self.frozen).find_map(|l0| l0.get_hashed(key, hash, at))
    }

    /// LSN of the newest version of `key` in an L0, if it is above `since`.
    pub(crate) fn in_l0_since(&self, key: &[u8], since: Lsn) -> Option<Lsn> {
        self.in_l0(key, filter::hash(key), NEWEST).map(|(stamp, _)| stamp.lsn).filter(|lsn| *lsn > since)
    }

    /// The answer for a level's entry, or the place of its value. Caches a record of it.
    fn found<'k>(
        &self,
        key: &'k [u8],
        hash: u64,
        stamp: Stamp,
        (found, from): (EntryContent, Source),
        now: Now<'_>,
    ) -> std::result::Result<Lookup, ValueAt<'k>> {
        let value = match found {
            EntryContent::InLog(..) if is_over(stamp.expires, now) => return Ok(Lookup::Deleted { lsn: stamp.lsn }),
            EntryContent::InLog(pointer, value_bytes) => {
                return Err(ValueAt { pointer, key, value_bytes, expires: stamp.expires });
            }
            EntryContent::InPlace(value) => Some(value),
            EntryContent::Tombstone => None,
        };
        // Also where the cache has the leaf: that may be evicted before the record.
        if from != Source::Range {
            let reads = usize::from(from == Source::Device);
            self.reads.keep(key, hash, (stamp, value.as_deref()), reads, self.generation);
        }
        Ok(answer(stamp, value, now))
    }

    /// The value of a record in the log.
    fn in_log(&self, at: &ValueAt<'_>, lsn: Lsn, reach: Reach) -> Result<Lookup> {
        let value = match self.reads.value_in_memory(at, lsn) {
            Some(value) => value,
            None if reach == Reach::Memory => return Ok(Lookup::NotInMemory),
            None => self.reads.load_values(&[(*at, lsn)], self.generation)?.values.remove(0),
        };
        Ok(Lookup::Found { lsn, expires: at.expires, value })
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Caches a pair that was appended to the active L0 of this version, and whose value is in the large log, unless that
    /// L0 may be a part of the levels by now.
    pub(crate) fn keep_written(&self, key: &[u8], stamp: Stamp, value: &[u8]) {
        self.reads.written(key, stamp, value, self.generation);
    }

    pub(crate) fn reads(&self) -> &Arc<Reads> {
        &self.reads
    }

    /// Keeps `segments`, which this version no longer sees, for readers of the versions that do.
    pub(crate) fn retire(&self, segments: Vec<Arc<Segment>>) {
        self.pin.retire(segments);
    }

    /// Keeps `segments` as long as this version or an older one is read. No install follows it.
    pub(crate) fn keep(&self, segments: Vec<Arc<Segment>>) {
        self.pin.keep(segments);
    }

    /// Keeps the log segments that this version sees.
    pub(crate) fn pin(&self) -> Arc<Pin> {
        Arc::clone(&self.pin)
    }
}

#[inline]
fn is_over(expires: Option<Expiry>, now: Now<'_>) -> bool {
    expires.is_some_and(|expires| expires.is_over(now()))
}

/// The answer for a version with this value; a tombstone if there is none.
#[inline]
fn answer(Stamp { lsn, expires }: Stamp, value: Option<Bytes>, now: Now<'_>) -> Lookup {
    match value {
        Some(value) if !is_over(expires, now) => Lookup::Found { lsn, expires, value },
        _ => Lookup::Deleted { lsn },
    }
}

/// A store as of one LSN and one instant: later writes do not change its answers. Any thread may use it.
///
/// A snapshot is cheap to make and to clone. While it lives, it keeps the memory and the segments that it needs, even
/// when the store would otherwise free them, and even when the store is closed. It ends with the process. Use a
/// [`Checkpoint`](crate::Checkpoint) for data that must stay.
///
/// ```
/// # use leeward_engine::{Db, DbOptions, Reach, ScanBounds};
/// # let directory = tempfile::tempdir()?;
/// # let db = Db::open(directory.path(), DbOptions::default())?;
/// db.put(b"key", b"then")?;
/// let snapshot = db.snapshot();
/// db.put(b"key", b"now")?;
/// assert_eq!(snapshot.get(b"key", Reach::Device)?.into_value().as_deref(), Some(&b"then"[..]));
/// assert_eq!(snapshot.cursor(ScanBounds::default()).next()?.expect("one pair").value, "then");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Snapshot {
    version: Arc<Version>,
    lsn: Lsn,
    now: UnixMs,
}

impl Snapshot {
    /// `version` as of `lsn`: the commit LSN, or an earlier one that was committed when `version` was current. Pairs
    /// that have expired by `now` are absent; others stay as long as the snapshot is read.
    pub(crate) fn new(version: Arc<Version>, lsn: Lsn, now: UnixMs) -> Snapshot {
        Snapshot { version, lsn, now }
    }

    /// The LSN of the last write that it sees.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Its instant by the wall clock, in milliseconds since 1970 UTC. Pairs that have expired by then are absent.
    pub fn now(&self) -> UnixMs {
        self.now
    }

    /// The value of `key` at that LSN. With [`Reach::Memory`] it may be [`Lookup::NotInMemory`].
    ///
    /// # Errors
    /// As [`Db::get`](crate::Db::get): the device fails or holds damaged bytes.
    pub fn get(&self, key: &[u8], reach: Reach) -> Result<Lookup> {
        self.version.get(key, self.lsn, reach, &|| self.now)
    }

    /// The values of `keys` at that LSN, in their order. Pairs that are not in memory are read from the device several
    /// at a time.
    ///
    /// # Errors
    /// As [`Snapshot::get`], for any of the keys.
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Lookup>> {
        let keys: Vec<(&[u8], Lsn)> = keys.iter().map(|key| (*key, self.lsn)).collect();
        self.version.get_many(&keys, &|| self.now)
    }

    /// The version that it pins. Used by Leeward's server.
    #[doc(hidden)]
    pub fn version(&self) -> &Arc<Version> {
        &self.version
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("lsn", &self.lsn).field("now", &self.now).finish_non_exhaustive()
    }
}
