//! What the versions of a region share for their reads: the volume, the logs with the values, and the cached answers of
//! the levels.
//!
//! For each key the cache is never older than the levels of any version whose L0s do not have the key: an install
//! replaces or removes records before its version is visible, and a reader of an older generation caches nothing.

use crate::cache::Cached;
use crate::error::{Error, Result};
use crate::log::{Fetched, LogReader, ValueAt, Values, WantedRecord};
use crate::memtable::{Entry, MemTable};
use crate::volume::{Segment, Volume};
use arc_swap::ArcSwap;
use bytes::Bytes;
use leeward_format::cluster::Addressing;
use leeward_format::leaf_segment::Span;
use leeward_format::range::RangeTombstones;
use leeward_format::{
    DecodeError, Expiry, Lsn, Pointer, RegionId, SegmentId, SegmentName, SegmentNo, Stamp, UnixMs, filter,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

mod costs;

pub(crate) use costs::ScanCosts;

/// Above every LSN.
pub(crate) const NEWEST: Lsn = Lsn(u64::MAX);

/// How far a read may go. A thread that must not wait for the device uses [`Reach::Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Memory only: [`Lookup::NotInMemory`](crate::Lookup::NotInMemory) for data that is neither in an L0 nor cached.
    Memory,
    /// Memory and the device.
    Device,
}

/// Reader of values in logs: [`LogReader`], or a model in tests.
pub(crate) trait ValueLog: Send + Sync {
    /// The value of the record at `pointer` if it is in memory. Never touches the device.
    fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes>;
    /// The values of the records at these places, in their order.
    ///
    /// # Errors
    /// The device fails, or holds no such record.
    fn values(&self, wanted: &[ValueAt<'_>]) -> Result<Values>;
    /// Values of many records, for a merge that moves them.
    ///
    /// # Errors
    /// As [`ValueLog::values`].
    fn fetch(&self, wanted: &[WantedRecord]) -> Result<Fetched>;
    /// Id of a segment that leaves point to.
    fn segment_id(&self, name: SegmentName) -> Option<SegmentId>;
}

impl ValueLog for LogReader {
    fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes> {
        LogReader::value_in_memory(self, pointer, key, value_bytes)
    }
    fn values(&self, wanted: &[ValueAt<'_>]) -> Result<Values> {
        LogReader::values(self, wanted)
    }
    fn fetch(&self, wanted: &[WantedRecord]) -> Result<Fetched> {
        LogReader::fetch(self, wanted)
    }
    fn segment_id(&self, name: SegmentName) -> Option<SegmentId> {
        LogReader::segment_id(self, name)
    }
}

/// Shared state of all versions of a region, which reads need.
pub(crate) struct Reads {
    pub(crate) volume: Arc<Volume>,
    pub(crate) region: RegionId,
    addressing: Addressing,
    pub(crate) log: Arc<dyn ValueLog>,
    /// The number that cached records are filed under.
    pub(crate) owner: u32,
    /// Incremented by each install that changes what the levels know of some key: see [`crate::version::Version`].
    generation: AtomicU64,
    /// The generation of the last ingest. Ingested records have lower LSNs than some records that became visible before
    /// them. So the LSN of a cached record does not tell whether an older version may see the record.
    ingested: AtomicU64,
    /// Ranges deleted since hidden records were last removed from the cache: a cached record older than its range does
    /// not count.
    deleted: ArcSwap<RangeTombstones>,
    /// Whether `deleted` is not empty.
    has_deleted: AtomicBool,
    /// Compactions may have dropped pairs that had expired by this time, in milliseconds since 1970 UTC.
    expired_by: AtomicU64,
    /// What scans pay for how the data lies.
    pub(crate) scan_costs: ScanCosts,
}

/// Most deleted ranges to check for each cached record; beyond that all hidden records are removed from the cache.
const MOST_DELETED: usize = 1024;

impl Reads {
    /// For `region` on `volume`, with its values in `log`.
    pub(crate) fn new(
        volume: Arc<Volume>,
        region: RegionId,
        addressing: Addressing,
        log: Arc<dyn ValueLog>,
    ) -> Arc<Reads> {
        let owner = volume.cache().new_owner();
        Arc::new(Reads {
            volume,
            region,
            addressing,
            log,
            owner,
            generation: AtomicU64::new(0),
            ingested: AtomicU64::new(0),
            deleted: ArcSwap::default(),
            has_deleted: AtomicBool::new(false),
            expired_by: AtomicU64::new(0),
            scan_costs: ScanCosts::default(),
        })
    }

    /// What a version that begins now may cache answers for.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether pairs were ingested after a version of `generation` was made.
    #[inline]
    pub(crate) fn has_ingested_since(&self, generation: u64) -> bool {
        generation < self.ingested.load(Ordering::Acquire)
    }

    /// The levels of the versions that begin from now on may lack pairs that had expired by `time`.
    pub(crate) fn drop_expired(&self, time: UnixMs) {
        self.expired_by.fetch_max(time.0, Ordering::AcqRel);
    }

    /// Whether the levels may have dropped a pair with this expiry. Then they alone know what there is, whatever a
    /// clock says that went back since.
    #[inline]
    pub(crate) fn may_lack(&self, expires: Expiry) -> bool {
        expires.is_over(UnixMs(self.expired_by.load(Ordering::Acquire)))
    }

    /// The name of the segment `id` in pointers.
    #[inline]
    pub(crate) fn name(&self, id: SegmentId, segment: &Segment) -> SegmentName {
        self.addressing.name(id, segment.no())
    }

    /// The error for bytes at `offset` of the segment `no` that cannot be decoded.
    pub(crate) fn damaged(&self, no: SegmentNo, offset: u32, error: &DecodeError) -> Error {
        let offset = self.volume.file_offset(no, offset);
        Error::damaged(self.volume.name(), offset, error)
    }

    /// The cached answer of the levels for `key`, which has this `hash`, as of `at`.
    #[inline]
    pub(crate) fn cached(&self, key: &[u8], hash: u64, at: Lsn) -> Option<Cached> {
        // Loaded before the record: hidden records are removed before their ranges are.
        let deleted = self.has_deleted.load(Ordering::Acquire).then(|| self.deleted.load());
        let cached = self.volume.cache().record(self.owner, key, hash, at)?;
        match deleted {
            Some(deleted) => self.unless_deleted(&deleted, key, hash, at, cached),
            None => Some(cached),
        }
    }

    /// A cached record in view of deleted ranges: a hidden one is replaced by a tombstone.
    #[cold]
    fn unless_deleted(
        &self,
        deleted: &RangeTombstones,
        key: &[u8],
        hash: u64,
        at: Lsn,
        cached: Cached,
    ) -> Option<Cached> {
        let newer = deleted.covering(key).map(|range| range.lsn).filter(|lsn| *lsn > cached.0.lsn);
        let Some(lsn) = newer else { return Some(cached) };
        self.volume.cache().replace_record(self.owner, key, hash, lsn.into(), Some(None));
        (lsn <= at).then_some((lsn.into(), None))
    }

    /// Caches the answer of the levels of a version of `generation` for `key`, unless a newer generation has begun. `reads`:
    /// see [`Cache::insert_record`].
    ///
    /// [`Cache::insert_record`]: crate::cache::Cache::insert_record
    pub(crate) fn keep(&self, key: &[u8], hash: u64, answer: (Stamp, Option<&[u8]>), reads: usize, generation: u64) {
        let is_current = || self.generation() == generation;
        self.volume.cache().insert_record(self.owner, key, hash, answer, reads, is_current);
    }

    /// Caches an appended pair whose value is in the large log, unless the generation is newer than `generation`.
    pub(crate) fn written(&self, key: &[u8], stamp: Stamp, value: &[u8], generation: u64) {
        let is_current = || self.generation() == generation;
        self.volume.cache().write_record(self.owner, key, filter::hash(key), (stamp, value), is_current);
    }

    /// The value of a record in the log, if it is in memory.
    pub(crate) fn value_in_memory(&self, at: &ValueAt<'_>, lsn: Lsn) -> Option<Bytes> {
        let cached = self.cached(at.key, filter::hash(at.key), lsn).filter(|(found, _)| found.lsn == lsn);
        cached
            .and_then(|(_, value)| value)
            .or_else(|| self.log.value_in_memory(at.pointer, at.key, at.value_bytes))
            .or_else(|| self.volume.cache().long_value(self.owner, at.key, lsn))
    }

    /// Values in the log, with the LSNs of their records, for a version of `generation`: reads them from the device,
    /// several at a time, and caches them.
    pub(crate) fn load_values(&self, wanted: &[(ValueAt<'_>, Lsn)], generation: u64) -> Result<Values> {
        let places: Vec<ValueAt<'_>> = wanted.iter().map(|(at, _)| *at).collect();
        let values = self.log.values(&places)?;
        for ((at, lsn), value) in wanted.iter().zip(&values.values) {
            self.volume.cache().count_miss();
            let stamp = Stamp { lsn: *lsn, expires: at.expires };
            self.keep(at.key, filter::hash(at.key), (stamp, Some(value)), wanted.len(), generation);
            self.volume.cache().insert_long_value(self.owner, at.key, stamp, value);
        }
        Ok(values)
    }

    /// [`Reads::load_values`] for the values that are not in memory; the others come from there.
    pub(crate) fn values(&self, wanted: &[(ValueAt<'_>, Lsn)], generation: u64) -> Result<Values> {
        let mut values: Vec<Option<Bytes>> = wanted.iter().map(|(at, lsn)| self.value_in_memory(at, *lsn)).collect();
        let missing: Vec<usize> = (0..wanted.len()).filter(|i| values[*i].is_none()).collect();
        let mut scattered_bytes = 0;
        if !missing.is_empty() {
            let places: Vec<_> = missing.iter().map(|i| wanted[*i]).collect();
            let loaded = self.load_values(&places, generation)?;
            scattered_bytes = loaded.scattered_bytes;
            for (i, value) in missing.into_iter().zip(loaded.values) {
                values[i] = Some(value);
            }
        }
        let values = values.into_iter().map(|value| value.expect("each was found or read")).collect();
        Ok(Values { values, scattered_bytes })
    }

    /// The entries of `l0s`, oldest first, are about to become part of the levels: updates the cache, and returns the
    /// generation of the version that shows them there. Readers of versions that have the L0s do not look below them
    /// for their keys.
    pub(crate) fn renew(&self, l0s: &[Arc<MemTable>]) -> u64 {
        let generation = 1 + self.generation.fetch_add(1, Ordering::AcqRel);
        let cache = self.volume.cache();
        // Records for older generations were cached before this point.
        let l0s = if cache.has_records() { l0s } else { &[] };
        self.delete(l0s);
        for l0 in l0s {
            let mut cursor = l0.cursor(NEWEST);
            cursor.seek(&[]);
            while let Some((key, stamp, entry)) = cursor.current() {
                let value = match entry {
                    Entry::InPlace(value) => Some(Some(value)),
                    Entry::Tombstone => Some(None),
                    Entry::InLog { .. } => None,
                };
                cache.replace_record(self.owner, key, filter::hash(key), stamp, value);
                cursor.step();
            }
        }
        generation
    }

    /// Pairs within `span` are about to be in the levels: returns the generation of the version that shows them.
    pub(crate) fn renew_span(&self, span: &Span) -> u64 {
        let generation = 1 + self.generation.fetch_add(1, Ordering::AcqRel);
        // A reader that caches an ingested record has seen the version, and so this.
        self.ingested.store(generation, Ordering::Release);
        let is_inside = |key: &[u8], _| key >= &span.first[..] && !span.is_below(key);
        self.volume.cache().forget_records(self.owner, &is_inside);
        generation
    }

    /// Hides cached records in ranges that `l0s`, oldest first, have deleted.
    fn delete(&self, l0s: &[Arc<MemTable>]) {
        let newer = l0s.iter().filter(|l0| l0.has_ranges()).map(|l0| l0.ranges(NEWEST));
        let deleted = newer.fold(None, |deleted: Option<RangeTombstones>, newer| {
            let before = deleted.unwrap_or_else(|| RangeTombstones::clone(&self.deleted.load()));
            Some(before.under(&newer))
        });
        let Some(mut deleted) = deleted else { return };
        if deleted.len() > MOST_DELETED {
            let hides = |key: &[u8], lsn| deleted.covering(key).is_some_and(|range| range.lsn > lsn);
            self.volume.cache().forget_records(self.owner, &hides);
            deleted = RangeTombstones::default();
        }
        self.has_deleted.store(!deleted.is_empty(), Ordering::Release);
        self.deleted.store(Arc::new(deleted));
    }
}
