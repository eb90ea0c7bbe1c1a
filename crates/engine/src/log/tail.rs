//! The open end of a log: a segment's bytes in memory, filled by the writer while replication reads and ships them.
//!
//! One thread appends, through the tail's [`Appender`]. Others read the published bytes without a lock. Where the disk
//! can map the segment, the memory is its page cache, and published bytes survive the process; otherwise
//! [`Tail::write_new`] must follow.

use crate::error::Result;
use crate::memory::Reservation;
use crate::volume::{Segment, TailUse, Volume};
use arc_swap::ArcSwap;
use leeward_format::record::{Record, RecordSeed};
use leeward_format::segment::{LOG_HEADER_BYTES, LogHeader};
use leeward_format::{LogKind, Lsn, RegionId, SegmentId, SegmentName, SegmentNo};
use leeward_platform::disk::DIRECT_ALIGN;
use leeward_platform::{AppendBuffer, Appender};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A log segment that is still in memory.
#[derive(Debug)]
pub struct Tail {
    log: LogKind,
    index: u64,
    id: SegmentId,
    name: SegmentName,
    seed: RecordSeed,
    /// Dropped before the segment: the mapping must be gone before another owner writes to the segment.
    bytes: Arc<AppendBuffer>,
    segment: Arc<Segment>,
    /// For the present pages of the memory.
    reservation: Reservation,
    last_lsn: AtomicU64,
    sealed: AtomicBool,
    /// If the tail is not mapped: the bytes that were written to the page cache. The lock serialises the writing.
    written: Option<Mutex<Written>>,
}

/// A segment that the manifest knows as part of a log, before it has its first record.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) id: SegmentId,
    /// Its name in pointers.
    pub(crate) name: SegmentName,
    /// Dropped before the segment: the mapping must be gone before another owner writes to the segment.
    pub(crate) appender: Appender,
    pub(crate) segment: Arc<Segment>,
    /// For the appender's memory.
    pub(crate) reservation: Reservation,
    pub(crate) of: TailUse,
}

/// A tail's writer side.
#[derive(Debug)]
pub(crate) struct OpenTail {
    appender: Appender,
    pub(crate) tail: Arc<Tail>,
    /// LSN of the last record appended.
    last_lsn: Lsn,
    /// What its segment was taken for.
    pub(crate) of: TailUse,
}

#[derive(Debug, Default)]
struct Written {
    /// Bytes of records.
    bytes: u32,
    /// Bytes including the padding behind them, whole pages. A page that is not cached is never written in part, because
    /// that would read it from the device.
    pages: u32,
}

impl OpenTail {
    /// A tail whose first record will have `first_lsn`, made of a prepared segment, whose header was reserved.
    pub(crate) fn new(region: RegionId, log: LogKind, index: u64, prepared: Prepared, first_lsn: Lsn) -> OpenTail {
        let Prepared { id, name, segment, mut appender, reservation, of } = prepared;
        reservation.set(appender.resident_bytes() as u64);
        let header = LogHeader { region, log, id, first_lsn }.encode();
        appender.append(LOG_HEADER_BYTES, |spare| spare.copy_from_slice(&header));
        let tail = Arc::new(Tail {
            log,
            index,
            id,
            name,
            segment,
            reservation,
            seed: RecordSeed::new(region, log, id),
            bytes: appender.buffer().clone(),
            last_lsn: AtomicU64::new(0),
            sealed: AtomicBool::new(false),
            written: (!appender.is_mapped()).then(Mutex::default),
        });
        OpenTail { tail, appender, last_lsn: Lsn(0), of }
    }

    /// Whether `bytes` more fit.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.appender.room()
    }

    /// Whether published bytes are in the page cache.
    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        self.appender.is_mapped()
    }

    /// Makes sure that `bytes`, for which there is room, can be appended.
    #[inline]
    pub(crate) fn reserve(&mut self, volume: &Volume, bytes: usize) -> Result<()> {
        if self.appender.is_ready(bytes) {
            return Ok(());
        }
        let reserved = volume.reserve(&mut self.appender, bytes);
        self.tail.reservation.set(self.appender.resident_bytes() as u64);
        reserved
    }

    /// Appends a record whose bytes were reserved; returns its offset. No reader sees it before [`OpenTail::publish`].
    #[inline]
    pub(crate) fn append(&mut self, record: &Record<'_>) -> u32 {
        let (bytes, seed) = (record.bytes(), self.tail.seed);
        self.last_lsn = record.last_lsn();
        self.appender.append(bytes, |spare| record.write_to(seed, spare)) as u32
    }

    /// Shows appended records to readers. Returns whether the tail became half full by them.
    #[inline]
    pub(crate) fn publish(&mut self, volume: &Volume) -> Result<bool> {
        let was_half_full = self.tail.is_half_full();
        self.tail.last_lsn.store(self.last_lsn.0, Ordering::Release);
        volume.publish(&mut self.appender)?;
        Ok(!was_half_full && self.tail.is_half_full())
    }

    /// Ends the tail: no more records follow.
    pub(crate) fn seal(self) {
        self.tail.sealed.store(true, Ordering::Release);
    }
}

impl Tail {
    /// Recovery or large: the medium log has no tail.
    pub fn log(&self) -> LogKind {
        self.log
    }
    /// Ordinal of the segment among those of its log in this term, from 0. It determines the mirror buffer.
    pub fn index(&self) -> u64 {
        self.index
    }
    /// Id of the segment.
    pub fn id(&self) -> SegmentId {
        self.id
    }
    /// Name of the segment in pointers.
    pub fn name(&self) -> SegmentName {
        self.name
    }
    /// Its number on this volume.
    pub fn segment(&self) -> SegmentNo {
        self.segment.no()
    }
    /// Bytes in it so far, header included.
    pub fn filled(&self) -> u32 {
        self.bytes.filled() as u32
    }
    /// Whether it is so full that the next tail should be prepared.
    pub(crate) fn is_half_full(&self) -> bool {
        self.bytes.filled() >= self.bytes.capacity() / 2
    }
    /// Whether no more records follow.
    pub fn sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }
    /// LSN of its last record.
    pub fn last_lsn(&self) -> Lsn {
        Lsn(self.last_lsn.load(Ordering::Acquire))
    }

    /// Its bytes so far, header included.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.bytes()
    }

    pub(crate) fn pin(&self) -> Arc<Segment> {
        self.segment.clone()
    }

    /// Makes sure that everything published is in the page cache.
    pub(crate) fn write_new(&self, volume: &Volume) -> Result<()> {
        let Some(written) = &self.written else { return volume.check() };
        let mut written = written.lock();
        let bytes = self.bytes();
        let end = bytes.len() as u32;
        if end <= written.bytes {
            return Ok(());
        }
        let new = &bytes[written.bytes as usize..];
        if end <= written.pages {
            volume.write_buffered(self.segment.no(), written.bytes, new)?;
        } else {
            let pages = end.next_multiple_of(DIRECT_ALIGN as u32);
            volume.write_padded(self.segment.no(), written.bytes, new, (pages - end) as usize)?;
            written.pages = pages;
        }
        written.bytes = end;
        Ok(())
    }
}

/// The tails of one region's logs, oldest first. The writer, the flusher, replication and readers share them.
#[derive(Debug)]
pub(crate) struct Tails {
    lists: [ArcSwap<Vec<Arc<Tail>>>; 2],
}

impl Tails {
    pub(crate) fn new() -> Tails {
        Tails { lists: [ArcSwap::default(), ArcSwap::default()] }
    }

    pub(crate) fn of(&self, log: LogKind) -> Arc<Vec<Arc<Tail>>> {
        self.lists[log.index()].load_full()
    }

    /// All tails, of both logs.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Tail>> {
        LogKind::APPENDED.into_iter().flat_map(|log| self.of(log).iter().cloned().collect::<Vec<_>>())
    }

    pub(crate) fn newest(&self, log: LogKind) -> Option<Arc<Tail>> {
        self.lists[log.index()].load().last().cloned()
    }

    pub(crate) fn find(&self, log: LogKind, index: u64) -> Option<Arc<Tail>> {
        self.lists[log.index()].load().iter().find(|tail| tail.index() == index).cloned()
    }

    pub(crate) fn push(&self, tail: &Arc<Tail>) {
        self.lists[tail.log().index()].rcu(|list| {
            let mut list = Vec::clone(list);
            list.push(tail.clone());
            list
        });
    }

    pub(crate) fn remove(&self, log: LogKind, index: u64) {
        self.lists[log.index()].rcu(|list| {
            let mut list = Vec::clone(list);
            list.retain(|tail| tail.index() != index);
            list
        });
    }

    /// If the segment is a tail: calls `with` with its bytes from `offset` on, and the seed of its records' checksums.
    /// In a mapped tail the file system may have lost bytes, so the caller must check the CRC.
    pub(crate) fn with_bytes<T>(
        &self,
        log: LogKind,
        name: SegmentName,
        offset: u32,
        with: impl FnOnce(RecordSeed, &[u8]) -> T,
    ) -> Option<T> {
        let tails = self.lists[log.index()].load();
        let tail = tails.iter().find(|tail| tail.name() == name)?;
        let bytes = tail.bytes().get(offset as usize..)?;
        (!bytes.is_empty()).then(|| with(tail.seed, bytes))
    }
}
