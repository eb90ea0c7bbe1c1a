//! Scans: one walk over the L0s and levels of a snapshot, merged.
//!
//! - The newest visible version of each key counts. It is in the newest source that has one: the active L0, then the
//!   frozen ones from the newest, then L1, L2 and so on. Tombstones hide older versions and are not returned. A leaf or
//!   a segment of tombstones only is skipped in one step, if the other sources have no key in its range. Keys under a
//!   range tombstone are skipped by a seek of every older source (`cover`).
//! - Pairs are gathered in batches, each twice as large as the one before. The values of a batch that are in the log
//!   are read together, several in flight; so are the first leaves of all levels. A caller that knows how many pairs it
//!   needs sets [`ScanBounds::limit`], and they are gathered at once.
//! - Keys and small values are copied into memory that several pairs share (`pieces`).
//! - What scans read because of how the data lies is counted, and leads to merges (`costs`).
//!
//! One thread at a time; it reads the device as it goes.

use crate::error::Result;
use crate::log::{ValueAt, Values};
use crate::memtable::{Entry, MemCursor};
use crate::reads::Reads;
use crate::tree::LevelCursor;
use crate::version::{Pin, Snapshot, Version};
use bytes::Bytes;
use leeward_format::range::{NO_END, Window};
use leeward_format::{Expiry, Lsn, Pointer, Stamp, UnixMs};
use std::collections::VecDeque;
use std::sync::Arc;

mod cover;
mod pieces;
#[cfg(test)]
mod tests;

use cover::{Cover, covers};
use pieces::Pieces;

/// Range and options of a scan. The default is everything, in ascending order of the keys.
///
/// A bound may be any bytes, and need not be a key that exists. A scan of an empty or reversed range has no pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanBounds {
    /// First key, inclusive; empty for no bound.
    pub start: Bytes,
    /// Key after the last, exclusive; `None` for no bound.
    pub end: Option<Bytes>,
    /// From the last key down to the first.
    pub reverse: bool,
    /// Values are not needed: those in a log are not read, and every value is returned empty.
    pub keys_only: bool,
    /// Pairs after which the scan ends; `None` for no limit. A scan with a limit reads ahead at once.
    pub limit: Option<u64>,
}

/// One pair of a scan. Small keys and values share memory with those of pairs close to it: who keeps one for long should
/// copy it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanEntry {
    /// 1 to [`leeward_format::MAX_KEY_BYTES`] bytes.
    pub key: Bytes,
    /// LSN of the put: the version of the pair.
    pub lsn: Lsn,
    /// When the pair expires, if it does.
    pub expires: Option<Expiry>,
    /// The value; empty in a scan of keys only.
    pub value: Bytes,
}

/// Walks the pairs of a [`Snapshot`](crate::Snapshot) in key order, one way. One thread at a time may use it.
///
/// It is no [`Iterator`], because an error ends it. Like a snapshot, it keeps the data that it reads until it is
/// dropped.
pub struct Cursor {
    reads: Arc<Reads>,
    /// The generation of the version that it walks.
    generation: u64,
    /// Pairs that have expired by then are skipped.
    now: UnixMs,
    /// Keeps the segments that its sources point to.
    _pin: Arc<Pin>,
    bounds: ScanBounds,
    /// Newest first.
    sources: Vec<Source>,
    /// Positions of the levels among them, which come last.
    positions: Arc<[usize]>,
    /// What it reads counts as costs of scans.
    counts: bool,
    /// Range tombstones of the sources that have some.
    covers: Vec<Cover>,
    /// Sources that are not at their end, the one with the next key first; of equal keys, the newest first. `None`
    /// before the first call of [`Cursor::next`].
    order: Option<Vec<usize>>,
    /// The current key.
    key: Vec<u8>,
    /// Pairs that were gathered but not returned yet.
    ready: VecDeque<ScanEntry>,
    /// Memory for keys and values of `ready`.
    pieces: Pieces,
    /// Size of the next batch.
    ahead: usize,
    /// Pairs that may still be gathered.
    left: u64,
    /// Entries that were passed.
    steps: u64,
}

/// Most pairs, and bytes of values, of a batch; one value may exceed the bytes.
const MOST_AHEAD: usize = 128;
const MOST_AHEAD_BYTES: usize = 256 << 10;

/// Where the value of a key is.
enum FoundValue {
    Value(Bytes),
    InLog(Pointer, u32),
}

enum Source {
    L0(MemCursor),
    Level(LevelCursor),
}

impl Source {
    fn start(&mut self, bound: Option<&[u8]>, reverse: bool) -> Result<()> {
        match (self, reverse) {
            (Source::L0(cursor), false) => cursor.seek(bound.unwrap_or_default()),
            (Source::L0(cursor), true) => cursor.seek_before(bound),
            (Source::Level(cursor), false) => return cursor.seek(bound.unwrap_or_default()),
            (Source::Level(cursor), true) => return cursor.seek_before(bound),
        }
        Ok(())
    }

    fn step(&mut self, reverse: bool) -> Result<()> {
        match (self, reverse) {
            (Source::L0(cursor), false) => cursor.step(),
            (Source::L0(cursor), true) => cursor.step_back(),
            (Source::Level(cursor), false) => return cursor.step(),
            (Source::Level(cursor), true) => return cursor.step_back(),
        }
        Ok(())
    }

    /// The current key; `None` at the end.
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Source::L0(cursor) => cursor.key(),
            Source::Level(cursor) => cursor.key(),
        }
    }

    /// Current key, stamp and contents; `None` at the end.
    #[inline]
    fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        match self {
            Source::L0(cursor) => cursor.current(),
            Source::Level(cursor) => cursor.current(),
        }
    }
}

impl Snapshot {
    /// A cursor over the pairs within `bounds`, in key order. It reads the device on demand, and may outlive the
    /// snapshot.
    pub fn cursor(&self, bounds: ScanBounds) -> Cursor {
        Cursor::new(self.version(), (self.lsn(), self.now()), bounds)
    }
}

impl Cursor {
    pub(crate) fn new(version: &Version, (at, now): (Lsn, UnixMs), bounds: ScanBounds) -> Cursor {
        let l0s = std::iter::once(version.active()).chain(version.frozen()).map(|l0| Source::L0(l0.cursor(at)));
        let reads = version.reads();
        let levels =
            version.filled().iter().map(|level| Source::Level(LevelCursor::new(Arc::clone(reads), Arc::clone(level))));
        let sources = l0s.chain(levels).collect();
        let left = bounds.limit.unwrap_or(u64::MAX);
        // Without a limit it may be one over everything, an export or a comparison of copies.
        let counts = bounds.limit.is_some_and(|limit| limit > 1);
        let ahead = first_batch(&bounds);
        Cursor {
            reads: Arc::clone(reads),
            generation: version.generation(),
            now,
            _pin: version.pin(),
            bounds,
            sources,
            positions: Arc::clone(version.positions()),
            counts,
            covers: covers(version, at),
            order: None,
            key: Vec::new(),
            ready: VecDeque::new(),
            pieces: Pieces::default(),
            ahead,
            left,
            steps: 0,
        }
    }

    /// The next pair; `None` at the end.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes. The cursor is at its end then.
    #[expect(clippy::should_implement_trait, reason = "an error ends the scan; an iterator of results would go on")]
    pub fn next(&mut self) -> Result<Option<ScanEntry>> {
        if self.ready.is_empty()
            && let Err(error) = self.gather()
        {
            // The values of some pairs were not read.
            self.ready.clear();
            self.order = Some(Vec::new());
            return Err(error);
        }
        Ok(self.ready.pop_front())
    }

    /// Continues at `key`: the next pair is that of `key`, or else the following one in the direction of the scan. The
    /// limit counts from here; the bounds stay. Cheap if the key is near. Without a limit it reads ahead no further than
    /// a new cursor.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions, ScanBounds};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// # for key in [b"a", b"b", b"d"] { db.put(key, b"")?; }
    /// let mut cursor = db.scan(ScanBounds::default());
    /// cursor.seek(b"c")?;
    /// assert_eq!(cursor.next()?.expect("d is after c").key, "d");
    /// let mut back = db.scan(ScanBounds { reverse: true, ..ScanBounds::default() });
    /// back.seek(b"c")?;
    /// assert_eq!(back.next()?.expect("b is before c").key, "b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.ready.clear();
        self.left = self.bounds.limit.unwrap_or(u64::MAX);
        self.ahead = first_batch(&self.bounds);
        let started = if self.bounds.reverse {
            // The exclusive end above `key`: everything up to it is below the next possible key.
            let above = [key, &[0]].concat();
            let end = self.bounds.end.as_deref().filter(|end| *end < &above[..]).unwrap_or(&above).to_vec();
            self.start(Some(&end))
        } else {
            let start = key.max(&self.bounds.start[..]).to_vec();
            self.start(Some(&start))
        };
        if started.is_err() {
            self.order = Some(Vec::new());
        }
        started
    }

    /// Gathers the next batch, if there is one.
    fn gather(&mut self) -> Result<()> {
        if self.left > 0 && self.order.is_none() {
            let bounds = self.bounds.clone();
            self.start(if bounds.reverse { bounds.end.as_deref() } else { Some(&bounds.start) })?;
        }
        let most = self.ahead.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.ahead = (self.ahead * 2).min(MOST_AHEAD);
        let (mut in_log, mut ahead_bytes) = (Vec::new(), 0);
        while self.ready.len() < most && ahead_bytes < MOST_AHEAD_BYTES {
            let Some((Stamp { lsn, expires }, found)) = self.next_live()? else { break };
            let value = match found {
                FoundValue::Value(value) => {
                    ahead_bytes += value.len();
                    value
                }
                FoundValue::InLog(pointer, value_bytes) => {
                    in_log.push((self.ready.len(), pointer, value_bytes));
                    ahead_bytes += value_bytes as usize;
                    Bytes::new()
                }
            };
            self.ready.push_back(ScanEntry { key: self.pieces.copy(&self.key), lsn, expires, value });
        }
        self.left -= self.ready.len() as u64;
        if in_log.is_empty() {
            return Ok(());
        }
        let at = |(i, pointer, value_bytes): &(usize, Pointer, u32)| {
            let entry = &self.ready[*i];
            let (value_bytes, expires) = (*value_bytes, entry.expires);
            (ValueAt { pointer: *pointer, key: &entry.key, value_bytes, expires }, entry.lsn)
        };
        let places: Vec<_> = in_log.iter().map(at).collect();
        let Values { values, scattered_bytes } = self.reads.values(&places, self.generation)?;
        if self.counts && in_log.len() > 1 {
            self.reads.scan_costs.read_values(scattered_bytes);
        }
        for ((i, ..), value) in in_log.iter().zip(values) {
            self.ready[*i].value = value;
        }
        Ok(())
    }

    /// Moves past the next live key, which is in `key` then, and returns its stamp and value.
    fn next_live(&mut self) -> Result<Option<(Stamp, FoundValue)>> {
        loop {
            let order = self.order.as_deref().unwrap_or_default();
            let Some((key, stamp, entry)) = order.first().and_then(|first| self.sources[*first].current()) else {
                return Ok(None);
            };
            if !in_bounds(&self.bounds, key) {
                self.order = Some(Vec::new());
                return Ok(None);
            }
            self.key.clear();
            self.key.extend_from_slice(key);
            if !self.covers.is_empty()
                && let Some(hidden) = hidden(&mut self.covers, &self.reads, &self.key, (order[0], stamp.lsn))?
            {
                self.pass_hidden(hidden)?;
                continue;
            }
            let found = match entry {
                Entry::Tombstone => None,
                _ if stamp.is_over(self.now) => None,
                _ if self.bounds.keys_only => Some(FoundValue::Value(Bytes::new())),
                Entry::InPlace(value) => Some(FoundValue::Value(self.pieces.copy(value))),
                Entry::InLog { pointer, value_bytes } => Some(FoundValue::InLog(pointer, value_bytes)),
            };
            if entry == Entry::Tombstone {
                self.pass_tombstones()?;
            }
            self.pass_key()?;
            if let Some(found) = found {
                return Ok(Some((stamp, found)));
            }
        }
    }

    /// A range tombstone of the source `by` hides the key: moves every older source out of the window, and the source
    /// `by`, if the key is its own, beyond the key.
    fn pass_hidden(&mut self, Hidden { by, window }: Hidden) -> Result<()> {
        let reverse = self.bounds.reverse;
        let bound = if reverse { &window.start } else { &window.end };
        let is_over = match reverse {
            true => *bound <= self.bounds.start,
            false => bound == NO_END || self.bounds.end.as_ref().is_some_and(|end| end <= bound),
        };
        let mut order = self.order.take().expect("the cursor has started");
        let first = order[0];
        for &source in &order {
            let is_inside = self.sources[source].key().is_some_and(|key| window.has(key));
            if is_inside && source > by && !is_over {
                self.sources[source].start(Some(bound), reverse)?;
                self.steps += 1;
            } else if source == by && source == first {
                self.sources[source].step(reverse)?;
                self.steps += 1;
            }
        }
        order.retain(|source| {
            let key = self.sources[*source].key();
            key.is_some_and(|key| *source <= by || !is_over || !window.has(key))
        });
        order.sort_by(|a, b| self.compare(*a, *b));
        self.order = Some(order);
        Ok(())
    }

    /// The first source is at a tombstone. If it has only tombstones for a while, and no other source has a key there,
    /// moves it to the last of them, and sets the current key.
    fn pass_tombstones(&mut self) -> Result<()> {
        let order = self.order.as_deref().unwrap_or_default();
        let (first, next) = (order[0], order.get(1).copied());
        let bound = next.and_then(|next| self.sources[next].key()).map(<[u8]>::to_vec);
        if let Source::Level(cursor) = &mut self.sources[first] {
            cursor.pass_tombstones(bound.as_deref(), self.bounds.reverse)?;
            if let Some(key) = cursor.key() {
                self.key.clear();
                self.key.extend_from_slice(key);
            }
        }
        Ok(())
    }

    /// Number of entries, over all sources, that it has passed so far.
    #[cfg(test)]
    fn steps(&self) -> u64 {
        self.steps
    }

    /// Places all sources at `bound`: at the first key at or above it, or in reverse at the last below it.
    fn start(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.read_first_leaves(bound)?;
        for source in &mut self.sources {
            source.start(bound, self.bounds.reverse)?;
        }
        let mut order: Vec<usize> = (0..self.sources.len()).filter(|i| self.sources[*i].key().is_some()).collect();
        order.sort_by(|a, b| self.compare(*a, *b));
        self.order = Some(order);
        Ok(())
    }

    /// Reads the first leaves of all levels, those that are not in memory in parallel.
    fn read_first_leaves(&mut self, bound: Option<&[u8]>) -> Result<()> {
        let mut missing = Vec::new();
        for (i, source) in self.sources.iter_mut().enumerate() {
            if let Source::Level(cursor) = source
                && let Some(leaf) = cursor.find_leaf(bound)?
            {
                missing.push((i, leaf));
            }
        }
        let l0s = self.sources.len() - self.positions.len();
        for (i, leaf) in missing.iter().filter(|(i, _)| self.counts && i + 1 < self.sources.len()) {
            self.reads.scan_costs.read_leaf(self.positions[i - l0s], leaf.bytes() as u64);
        }
        if missing.len() < 2 {
            return Ok(());
        }
        let mut reads: Vec<_> = missing.iter().map(|(_, leaf)| (leaf.at, vec![0; leaf.bytes()])).collect();
        self.reads.volume.read_many(&mut reads)?;
        for ((i, leaf), (_, bytes)) in missing.iter().zip(reads) {
            if let Source::Level(cursor) = &mut self.sources[*i] {
                cursor.supply(leaf, bytes)?;
            }
        }
        Ok(())
    }

    /// Moves every source beyond the current key: its newest version has been seen, and hides the others.
    fn pass_key(&mut self) -> Result<()> {
        let mut order = self.order.take().expect("the cursor has started");
        while let Some(&first) = order.first() {
            if self.sources[first].key().is_none_or(|key| key != self.key) {
                break;
            }
            self.steps += 1;
            self.sources[first].step(self.bounds.reverse)?;
            if self.sources[first].key().is_none() {
                order.remove(0);
                continue;
            }
            // Usually the source stays first, after one comparison.
            let mut at = 0;
            while at + 1 < order.len() && self.compare(order[at], order[at + 1]).is_gt() {
                order.swap(at, at + 1);
                at += 1;
            }
        }
        self.order = Some(order);
        Ok(())
    }

    /// Order of two sources.
    fn compare(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let key = |source: usize| self.sources[source].key();
        let keys = if self.bounds.reverse { key(b).cmp(&key(a)) } else { key(a).cmp(&key(b)) };
        keys.then(a.cmp(&b))
    }
}

/// The range tombstone that hides a key.
struct Hidden {
    /// Position of the source that has it.
    by: usize,
    window: Window,
}

/// The range tombstone that hides `key`, if any. The newest version of the key is in `source` and has this LSN.
fn hidden(covers: &mut [Cover], reads: &Reads, key: &[u8], (source, lsn): (usize, Lsn)) -> Result<Option<Hidden>> {
    for cover in covers.iter_mut().take_while(|cover| cover.source <= source) {
        let by = cover.source;
        let window = cover.window(reads, key)?;
        if window.lsn.is_some_and(|deleted| deleted > lsn) {
            return Ok(Some(Hidden { by, window: window.clone() }));
        }
    }
    Ok(None)
}

/// Size of the first batch. Without a limit, one pair: the caller may want only one.
fn first_batch(bounds: &ScanBounds) -> usize {
    if bounds.limit.is_some() { MOST_AHEAD } else { 1 }
}

fn in_bounds(bounds: &ScanBounds, key: &[u8]) -> bool {
    key >= &bounds.start[..] && bounds.end.as_ref().is_none_or(|end| key < &end[..])
}
