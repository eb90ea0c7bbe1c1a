//! The write path: a batch goes into the tails and the L0, as a whole or not at all.
//!
//! Everything that can refuse the batch is checked before anything is changed. No record costs an allocation. A value
//! in place is copied twice, into its tail and into the L0's arena. Records are published before the L0 shows them; on
//! a mapped tail they survive the process from then on.

use super::{MAX_FROZEN_L0S, Moment, Region, View, Writer};
use crate::error::Error;
use crate::log::{OpenTail, Tail};
use crate::memtable::{MOST_RANGES, MemTable};
use crate::volume::TailUse;
use leeward_format::cluster::SizeClass;
use leeward_format::leaf_segment::max_pair_bytes;
use leeward_format::manifest::LogExtent;
use leeward_format::node::Entry;
use leeward_format::range::{RangeTombstone, is_range};
use leeward_format::record::{FLAG_BATCH_CONTINUES, Record, RecordKind, record_bytes};
use leeward_format::request::{REQUEST_ID_BYTES, RequestId};
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_format::{Expiry, LogKind, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_KEY_BYTES, Pointer, Stamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Frozen L0s that do not slow writers down.
const FREE_L0S: usize = 3;
/// Growth of the L0, in bytes, after which a writer may have to pause; an eighth of an L0 if that is less. So few
/// operations pause that the 99.9th percentile of latency is not a pause.
const PAUSE_BYTES: u64 = 512 << 10;
/// Pause per `PAUSE_BYTES` when writes are about to stop.
const LONGEST_PAUSE: Duration = Duration::from_millis(40);

/// One write of a batch: see [`Db::write`](crate::Db::write).
///
/// ```
/// # use leeward_engine::{Db, DbOptions, Expiry, Write};
/// # let directory = tempfile::tempdir()?;
/// # let db = Db::open(directory.path(), DbOptions::default())?;
/// let forgotten = Write { expires: Expiry::from_ms(1), ..Write::put(b"old", b"since 1970") };
/// db.write(&[forgotten, Write::put(b"new", b"for good"), Write::delete(b"other")])?;
/// assert_eq!(db.multi_get(&[b"old", b"new"])?, [None, Some("for good".into())]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The key, 1 to [`MAX_KEY_BYTES`] bytes.
    pub key: &'a [u8],
    /// Its new value, up to [`MAX_VALUE_BYTES`] bytes; `None` deletes it.
    pub value: Option<&'a [u8]>,
    /// The pair reads as absent from then on; `None`: never. No effect on a delete.
    pub expires: Option<Expiry>,
    /// Deletes every key from this one up to, but without, the value. An empty key means the first key, no value means
    /// no upper bound.
    pub is_range: bool,
    /// Writes nothing: the write with this request id was decided, and its condition did not hold. The value is the
    /// version of the pair that there was ([`RecordKind::Refused`]).
    #[doc(hidden)]
    pub is_refusal: bool,
    /// Stored in its record; the region remembers it: see [`Region::take_requests`].
    #[doc(hidden)]
    pub request: Option<RequestId>,
}

/// The least key: start of a range that has no first key.
const LEAST_KEY: &[u8] = &[0];

impl<'a> Write<'a> {
    /// Sets `key` to `value`, without expiry.
    pub fn put(key: &'a [u8], value: &'a [u8]) -> Write<'a> {
        Write::set(key, Some(value))
    }

    /// Removes `key`.
    pub fn delete(key: &'a [u8]) -> Write<'a> {
        Write::set(key, None)
    }

    /// Sets `key` to a value without expiry; without a value removes it.
    pub fn set(key: &'a [u8], value: Option<&'a [u8]>) -> Write<'a> {
        Write { key, value, expires: None, is_range: false, is_refusal: false, request: None }
    }

    /// Remembers that a request wrote nothing, because its condition did not hold on a pair with this version: 8 bytes,
    /// or none.
    #[doc(hidden)]
    pub fn refusal(request: RequestId, version: &'a [u8]) -> Write<'a> {
        Write { is_refusal: true, request: Some(request), ..Write::set(LEAST_KEY, Some(version)) }
    }

    /// Removes every key from `start` up to, but without, `end`; an empty start and no end are no bounds. A batch may
    /// have 1024 of these.
    pub fn delete_range(start: &'a [u8], end: Option<&'a [u8]>) -> Write<'a> {
        Write { is_range: true, ..Write::set(start, end) }
    }

    /// Whether it needs no room in the long run: it deletes, or only remembers a request.
    pub fn makes_room(&self) -> bool {
        self.is_range || self.value.is_none() || self.is_refusal
    }

    /// The stamp of its record with `lsn`.
    fn stamp(&self, lsn: Lsn) -> Stamp {
        Stamp { lsn, expires: self.expires.filter(|_| self.value.is_some() && !self.is_range) }
    }

    /// Kind, key and value of its record.
    #[inline]
    fn record(&self) -> (RecordKind, &'a [u8], &'a [u8]) {
        if self.is_refusal {
            return (RecordKind::Refused, LEAST_KEY, self.value.unwrap_or_default());
        }
        match (self.is_range, self.value) {
            (false, Some(value)) => (RecordKind::Put, self.key, value),
            (false, None) => (RecordKind::Delete, self.key, &[]),
            (true, end) => {
                let start = if self.key.is_empty() { LEAST_KEY } else { self.key };
                (RecordKind::DeleteRange, start, end.unwrap_or_default())
            }
        }
    }

    /// Bytes of its record.
    fn record_bytes(&self) -> usize {
        let (_, key, value) = self.record();
        let request_bytes = if self.request.is_some() { REQUEST_ID_BYTES } else { 0 };
        record_bytes(key.len(), value.len(), self.stamp(Lsn(0)).expires) + request_bytes
    }

    fn check(&self) -> Result<(), Error> {
        let (kind, key, value) = self.record();
        if kind == RecordKind::DeleteRange {
            let shown = |bound: &[u8]| bound.escape_ascii().to_string();
            return match self.value {
                Some(end) if end <= key => {
                    let detail = format!("empty or reversed range: from {:?} to {:?}", shown(self.key), shown(end));
                    Err(Error::Invalid(detail))
                }
                _ if is_range(key, value) => Ok(()),
                _ => Err(Error::Invalid(format!("bound of a range: must be at most {MAX_KEY_BYTES} bytes"))),
            };
        }
        if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&key.len()) {
            let detail = format!("key of {} bytes: must be {MIN_KEY_BYTES} to {MAX_KEY_BYTES}", key.len());
            return Err(Error::Invalid(detail));
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(Error::Invalid(format!("value of {} bytes: must be at most {MAX_VALUE_BYTES}", value.len())));
        }
        Ok(())
    }
}

/// LSNs of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// LSN of its first write.
    pub first: Lsn,
    /// LSN of its last write.
    pub last: Lsn,
    /// The batch is in the page cache, and survives the process. Otherwise [`Region::write_tails`] must follow.
    pub is_written: bool,
    /// It is committed already: a region of a [`Db`](crate::Db) commits what is in the page cache.
    pub is_committed: bool,
    /// How long its writer should pause before the next append, so that compactions keep up; usually zero.
    pub pause: Duration,
    /// It opened a tail, filled one to the half, or froze an L0: there is upkeep to do.
    pub wants_upkeep: bool,
}

/// Why a batch was not appended. No part of it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The log's next tail may not open yet: an earlier one is not flushed everywhere. Retry after the flush.
    #[error("the {0:?} log waits for a flush")]
    TailBusy(LogKind),
    /// The L0 is full, and no more L0s may be frozen. Retry after a compaction was installed.
    #[error("the L0 waits for a compaction")]
    L0Full,
    /// Any other reason, such as a failed device.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// Number of ranges that `writes` delete.
fn ranges(writes: &[Write<'_>]) -> usize {
    writes.iter().filter(|write| write.is_range).count()
}

/// Room that a batch needs in one log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub(super) bytes: usize,
    /// Position in the batch of its first record in this log.
    pub(super) first: Option<u64>,
}

impl Region {
    /// Appends a batch to the tails and the L0, as a whole or not at all; a replay does the same. The records of a
    /// batch in one log lie in one segment, which limits its size. Seals and opens tails and freezes the L0 as needed.
    /// Allocates space on the device only if [`Region::prepare_tails`] was not called ahead. For the writer; other
    /// writers wait.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(&self, writes: &[Write<'_>]) -> Result<Appended, AppendError> {
        Ok(self.append_if(writes, |_| true)?.expect("nothing stops it"))
    }

    /// [`Region::append`] of a single write, unless its key may have been written after `since`: then returns `None`. A
    /// caller takes `since` from [`Region::moment`], then decides on the answer of [`Region::get`]. So the write
    /// follows that answer immediately; after `None` the caller decides anew.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append_unchanged(&self, write: &Write<'_>, since: Moment) -> Result<Option<Appended>, AppendError> {
        self.append_if(std::slice::from_ref(write), |view| view.is_unchanged(write.key, since))
    }

    /// Whether `key` has certainly not been written since `since`.
    pub fn is_unchanged(&self, key: &[u8], since: Moment) -> bool {
        self.view.load().is_unchanged(key, since)
    }

    /// Appends a batch if `may` allows it, given the region's state. No other writer comes between.
    fn append_if(
        &self,
        writes: &[Write<'_>],
        may: impl FnOnce(&View) -> bool,
    ) -> Result<Option<Appended>, AppendError> {
        let needs = self.check_batch(writes)?;
        let mut writer = self.writer.lock();
        // An earlier holder of the lock may have failed in the middle of a write: then no other write may follow.
        self.volume.check()?;
        let appended = self.volume.in_doubt(|| self.append_now(&mut writer, writes, needs, may))?;
        let view = needs[LogKind::Large.index()].first.is_some().then(|| self.view.load());
        drop(writer);
        if let (Some(appended), Some(view)) = (&appended, view) {
            self.keep_large(&view, writes, appended.first);
        }
        Ok(appended)
    }

    fn append_now(
        &self,
        writer: &mut Writer,
        writes: &[Write<'_>],
        needs: [Need; 2],
        may: impl FnOnce(&View) -> bool,
    ) -> Result<Option<Appended>, AppendError> {
        let mut view = self.view.load();
        if !may(&view) {
            return Ok(None);
        }
        let of = if writes.iter().all(Write::makes_room) { TailUse::Deletes } else { TailUse::Writes };
        let freeze = self.must_freeze(&view, (needs[0].bytes + needs[1].bytes) as u64, ranges(writes))?;
        for log in LogKind::APPENDED {
            self.check_tail(writer, log, needs[log.index()].bytes, of)?;
        }
        if freeze {
            self.freeze();
            view = self.view.load();
        }
        let mut wants_upkeep = freeze;
        for log in LogKind::APPENDED {
            wants_upkeep |= self.make_room(writer, log, needs[log.index()]);
        }
        let first = writer.next;
        let last = Lsn(first.0 + writes.len() as u64 - 1);
        let large_at = self.log_batch(writer, writes);
        for log in LogKind::APPENDED.into_iter().filter(|log| needs[log.index()].first.is_some()) {
            let open = writer.current[log.index()].as_mut().expect("room was made in this log");
            wants_upkeep |= open.publish(&self.volume)?;
        }
        let is_written = writer.current.iter().flatten().all(|open| open.is_mapped());
        let l0 = view.version.active();
        let (l0_before, memory_before) = (l0.bytes(), l0.memory_bytes());
        self.show_batch(writer, l0, writes, large_at);
        l0.add_log_bytes((needs[0].bytes + needs[1].bytes) as u64);
        if l0.memory_bytes() > memory_before {
            self.volume.memory().relieve();
        }
        let pause = self.pause(&view, l0_before);
        writer.next = last.next();
        self.last.store(last.0, Ordering::Release);
        let is_committed = is_written && self.commits_written.load(Ordering::Relaxed);
        if is_committed {
            // No LSN that anyone commits is higher, so this lowers nothing.
            self.commit.store(last.0, Ordering::Release);
        }
        let user_bytes: usize = writes.iter().map(Write::record).map(|(_, key, value)| key.len() + value.len()).sum();
        self.user_bytes_written.fetch_add(user_bytes as u64, Ordering::Relaxed);
        Ok(Some(Appended { first, last, is_written, is_committed, pause, wants_upkeep }))
    }

    /// Largest sum of key and value of a write on this volume, in bytes: below the general limits only where segments
    /// are small.
    pub(crate) fn max_pair_bytes(&self, is_large: bool) -> usize {
        let segment_bytes = self.volume.segment_bytes();
        let in_log = segment_bytes - LOG_HEADER_BYTES - record_bytes(0, 0, Expiry::from_ms(1)) - REQUEST_ID_BYTES;
        if is_large { in_log } else { in_log.min(max_pair_bytes(segment_bytes)) }
    }

    fn log_of(&self, write: &Write<'_>) -> LogKind {
        match write.record() {
            (RecordKind::Put, key, value)
                if self.options.placement.class(key.len(), value.len()) == SizeClass::Large =>
            {
                LogKind::Large
            }
            _ => LogKind::Recovery,
        }
    }

    fn check_batch(&self, writes: &[Write<'_>]) -> Result<[Need; 2], Error> {
        let mut needs = [Need::default(); 2];
        for (position, write) in writes.iter().enumerate() {
            write.check()?;
            let (_, key, value) = write.record();
            let (key, value) = (key.len(), value.len());
            let log = self.log_of(write);
            let most = self.max_pair_bytes(log == LogKind::Large);
            if key + value > most {
                let detail =
                    format!("key and value of {} bytes: at most {most} fit this volume's segments", key + value);
                return Err(Error::Invalid(detail));
            }
            let need = &mut needs[log.index()];
            need.bytes += write.record_bytes();
            need.first.get_or_insert(position as u64);
        }
        let most = self.volume.segment_bytes() - LOG_HEADER_BYTES;
        if ranges(writes) > MOST_RANGES {
            let detail = format!("batch that deletes {} ranges: must be at most {MOST_RANGES}", ranges(writes));
            return Err(Error::Invalid(detail));
        }
        match needs.iter().map(|need| need.bytes).max() {
            _ if writes.is_empty() => Err(Error::Invalid("an empty batch".into())),
            Some(bytes) if bytes > most => {
                Err(Error::Invalid(format!("batch of {bytes} bytes in one log: must be at most {most}")))
            }
            _ => Ok(needs),
        }
    }

    /// Whether the L0 must freeze before it takes another `bytes`, and `ranges` range tombstones.
    pub(super) fn must_freeze(&self, view: &View, bytes: u64, ranges: usize) -> Result<bool, AppendError> {
        let (active, memory) = (view.version.active(), self.volume.memory());
        let has_no_memory = memory.l0_debt() >= 1.0 && active.memory_bytes() >= memory.least_l0_bytes();
        let has_room_in_logs = active.log_bytes() + bytes <= self.volume.l0_log_bytes();
        let is_full = has_no_memory || !has_room_in_logs || !active.has_room(bytes, ranges, self.options.l0_bytes);
        if !active.is_due_to_freeze(is_full) {
            return Ok(false);
        }
        let most = if has_no_memory || self.is_beyond_space() { 1 } else { MAX_FROZEN_L0S };
        let may_freeze = view.version.frozen().len() < most;
        if is_full && !may_freeze { Err(AppendError::L0Full) } else { Ok(may_freeze) }
    }

    /// Freezes the L0 if memory is short and it is one of the largest: for regions without writes at the moment.
    pub(super) fn freeze_if_asked(&self) {
        if !self.view.load().version.active().is_asked_to_freeze() {
            return;
        }
        let _writer = self.writer.lock();
        let view = self.view.load();
        let active = view.version.active();
        if active.is_due_to_freeze(false) && view.version.frozen().len() < MAX_FROZEN_L0S {
            self.freeze();
        }
    }

    /// Flow control. Once three L0s are frozen, a writer pauses whenever the active one has grown by a piece, for the
    /// square of the debt times [`LONGEST_PAUSE`]. The debt is the filled part of the remaining room, of this region's
    /// L0s or of the memory for all: from 0 to 1, where writes stop.
    fn pause(&self, view: &View, l0_before: u64) -> Duration {
        let frozen = view.version.frozen().len();
        let of_memory = if frozen > 0 { self.volume.memory().l0_debt() } else { 0.0 };
        if frozen < FREE_L0S && of_memory == 0.0 {
            return Duration::ZERO;
        }
        let (l0_bytes, l0_after) = (self.options.l0_bytes.max(1), view.version.active().bytes());
        let most = if of_memory > 0.0 { self.volume.memory().least_l0_bytes() } else { PAUSE_BYTES };
        let piece = (l0_bytes / 8).clamp(1, PAUSE_BYTES.min(most));
        if l0_before / piece == l0_after / piece {
            return Duration::ZERO;
        }
        let fill = (l0_after as f64 / l0_bytes as f64).min(1.0);
        let own = ((frozen as f64 - FREE_L0S as f64) + fill) / (MAX_FROZEN_L0S + 1 - FREE_L0S) as f64;
        let debt = own.max(of_memory);
        LONGEST_PAUSE.mul_f64((debt * debt).min(1.0) * piece as f64 / PAUSE_BYTES as f64)
    }

    pub(super) fn freeze(&self) {
        let mut frozen_logs = self.frozen_logs.lock();
        let view = self.view.load();
        // Levels refer to the large log only. This L0 refers to those of its tails with records since the previous L0.
        let before = view.version.frozen().first().map_or(view.floor, |l0| l0.last_lsn());
        let tails = self.tails.of(LogKind::Large);
        let referenced = tails.iter().filter(|tail| tail.last_lsn() > before);
        let extent = |tail: &Arc<Tail>| LogExtent { log: tail.log(), id: tail.id(), bytes: tail.filled() };
        frozen_logs.push_back(referenced.map(extent).collect());
        let next = MemTable::within(self.volume.memory());
        if self.is_two_layer {
            next.join_round();
        }
        let version = Arc::new(view.version.freeze(Arc::new(next)));
        self.view.store(Arc::new(View { version, floor: view.floor, ingests: view.ingests }));
    }

    /// An error if `log` cannot take `bytes` more of such records now. Afterwards [`Region::make_room`] cannot fail.
    pub(super) fn check_tail(
        &self,
        writer: &mut Writer,
        log: LogKind,
        bytes: usize,
        of: TailUse,
    ) -> Result<(), AppendError> {
        if bytes == 0 {
            return Ok(());
        }
        let index = log.index();
        let may_use = |tail: TailUse| match tail == of || of == TailUse::Deletes {
            true => Ok(()),
            false => self.volume.restore_reserve(),
        };
        match &mut writer.current[index] {
            Some(open) if open.has_room(bytes) => {
                may_use(open.of)?;
                return Ok(open.reserve(&self.volume, bytes)?);
            }
            _ => {}
        }
        if writer.next_index[index] > self.allowed[index].load(Ordering::Acquire) {
            return Err(AppendError::TailBusy(log));
        }
        self.prepare_tail(log, of)?;
        let mut prepared = self.prepared.lock();
        let prepared = prepared[index].as_mut().expect("only the writer takes it");
        may_use(prepared.of)?;
        Ok(self.volume.reserve(&mut prepared.appender, LOG_HEADER_BYTES + bytes)?)
    }

    /// Opens the next tail of `log` if the current one has no room; returns whether it did.
    pub(super) fn make_room(&self, writer: &mut Writer, log: LogKind, need: Need) -> bool {
        let Some(first) = need.first else { return false };
        let index = log.index();
        if writer.current[index].as_ref().is_some_and(|open| open.has_room(need.bytes)) {
            return false;
        }
        if let Some(full) = writer.current[index].take() {
            full.seal();
        }
        let prepared = self.prepared.lock()[index].take().expect("the caller prepared a tail");
        let first = Lsn(writer.next.0 + first);
        let open = OpenTail::new(self.id(), log, writer.next_index[index], prepared, first);
        self.tails.push(&open.tail);
        writer.next_index[index] += 1;
        writer.current[index] = Some(open);
        true
    }

    /// Writes the batch's records to the tails, which have room; returns the offset of the first one in the large log.
    fn log_batch(&self, writer: &mut Writer, writes: &[Write<'_>]) -> u32 {
        let mut large_at = None;
        let first = writer.next.0;
        for (position, write) in writes.iter().enumerate() {
            let log = self.log_of(write);
            let open = writer.current[log.index()].as_mut().expect("room was made in this log");
            let (kind, key, value) = write.record();
            let flags = if position + 1 < writes.len() { FLAG_BATCH_CONTINUES } else { 0 };
            let stamp = write.stamp(Lsn(first + position as u64));
            let record = Record { stamp, kind, flags, request: write.request, key, value };
            let offset = open.append(&record);
            if log == LogKind::Large {
                large_at.get_or_insert(offset);
            }
        }
        large_at.unwrap_or(0)
    }

    /// Caches those values of the batch that only the log has, if the cache wants them. `view` was current while the
    /// batch was in the active L0, so that the cache can tell whether the levels may know newer ones since.
    fn keep_large(&self, view: &View, writes: &[Write<'_>], first: Lsn) {
        for (lsn, write) in (first.0..).zip(writes) {
            if let (RecordKind::Put, key, value) = write.record()
                && self.log_of(write) == LogKind::Large
            {
                view.version.keep_written(key, write.stamp(Lsn(lsn)), value);
            }
        }
    }

    /// Inserts the batch into `l0`. Its records in the large log are consecutive from `large_at` on.
    fn show_batch(&self, writer: &Writer, l0: &MemTable, writes: &[Write<'_>], mut large_at: u32) {
        for (position, write) in writes.iter().enumerate() {
            let lsn = Lsn(writer.next.0 + position as u64);
            let (kind, key, value) = write.record();
            let entry = match kind {
                RecordKind::DeleteRange => {
                    l0.insert_range(RangeTombstone::new(key, value, lsn));
                    continue;
                }
                RecordKind::Refused => continue,
                RecordKind::Ingest => unreachable!("no write is an ingest"),
                RecordKind::Delete => Entry::Tombstone,
                RecordKind::Put if self.log_of(write) == LogKind::Large => {
                    let open = writer.current[LogKind::Large.index()].as_ref().expect("the record is in it");
                    let pointer = Pointer::new(open.tail.name(), large_at);
                    large_at += write.record_bytes() as u32;
                    if write.request.is_some() {
                        l0.add_unreferenced(open.tail.name(), REQUEST_ID_BYTES as u32);
                    }
                    Entry::InLog { pointer, value_bytes: value.len() as u32 }
                }
                RecordKind::Put => Entry::InPlace(value),
            };
            l0.insert(key, write.stamp(lsn), entry);
        }
    }
}
