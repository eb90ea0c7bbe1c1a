//! The open end of a log: a segment's bytes in memory, filled by the writer while replication reads and ships them.
//!
//! One thread appends. Others read what is filled, under a lock that is held for a copy and never across I/O.

use crate::error::Result;
use crate::volume::{Segment, Volume};
use arc_swap::ArcSwap;
use leeward_format::record::{Record, RecordSeed};
use leeward_format::segment::{LOG_HEADER_BYTES, LogHeader};
use leeward_format::{LogKind, Lsn, RegionId, SegmentId, SegmentNo};
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Largest piece that is copied out for one write to the device, in bytes.
const WRITE_BYTES: usize = 256 * 1024;

/// A log segment that is still in memory.
#[derive(Debug)]
pub struct Tail {
    log: LogKind,
    index: u64,
    id: SegmentId,
    segment: Arc<Segment>,
    seed: RecordSeed,
    bytes: RwLock<Vec<u8>>,
    filled: AtomicU32,
    last_lsn: AtomicU64,
    sealed: AtomicBool,
    /// Bytes that were written to the page cache; the lock serialises the writing.
    written: Mutex<u32>,
}

impl Tail {
    /// A tail whose first record will have `first_lsn`.
    pub(crate) fn new(
        region: RegionId,
        log: LogKind,
        index: u64,
        id: SegmentId,
        segment: Arc<Segment>,
        segment_bytes: usize,
        first_lsn: Lsn,
    ) -> Tail {
        let mut bytes = Vec::with_capacity(segment_bytes);
        bytes.extend_from_slice(&LogHeader { region, log, id, first_lsn }.encode());
        Tail {
            log,
            index,
            id,
            segment,
            seed: RecordSeed::new(region, log, id),
            bytes: RwLock::new(bytes),
            filled: AtomicU32::new(LOG_HEADER_BYTES as u32),
            last_lsn: AtomicU64::new(0),
            sealed: AtomicBool::new(false),
            written: Mutex::new(0),
        }
    }

    /// Which log.
    pub fn log(&self) -> LogKind {
        self.log
    }
    /// Ordinal of the segment among those of its log in this term, from 0: decides the mirror buffer.
    pub fn index(&self) -> u64 {
        self.index
    }
    /// Identity of the segment.
    pub fn id(&self) -> SegmentId {
        self.id
    }
    /// Its number on this volume.
    pub fn segment(&self) -> SegmentNo {
        self.segment.no()
    }
    /// Bytes in it so far, header included.
    pub fn filled(&self) -> u32 {
        self.filled.load(Ordering::Acquire)
    }
    /// No more bytes will come.
    pub fn sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }
    /// LSN of its last record.
    pub fn last_lsn(&self) -> Lsn {
        Lsn(self.last_lsn.load(Ordering::Acquire))
    }

    /// Calls `with` with the bytes of `range`, which must be filled. Briefly keeps the writer out: do no I/O inside.
    pub fn with_bytes<T>(&self, range: Range<u32>, with: impl FnOnce(&[u8]) -> T) -> T {
        with(&self.bytes.read()[range.start as usize..range.end as usize])
    }

    /// Whether `bytes` more fit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let filled = self.bytes.read();
        filled.len() + bytes <= filled.capacity()
    }

    /// Appends a record, for which there must be room; answers its offset.
    pub(crate) fn append(&self, record: &Record<'_>) -> u32 {
        assert!(!self.sealed(), "a sealed tail takes no records");
        let mut bytes = self.bytes.write();
        assert!(bytes.len() + record.bytes() <= bytes.capacity(), "the writer looked for room");
        let offset = bytes.len() as u32;
        record.append_to(self.seed, &mut bytes);
        self.last_lsn.store(record.lsn.0, Ordering::Release);
        self.filled.store(bytes.len() as u32, Ordering::Release);
        offset
    }

    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    pub(crate) fn pin(&self) -> Arc<Segment> {
        self.segment.clone()
    }

    /// Writes what is new to the page cache.
    pub(crate) fn write_new(&self, volume: &Volume) -> Result<()> {
        let mut written = self.written.lock();
        while *written < self.filled() {
            let start = *written as usize;
            let piece = {
                let bytes = self.bytes.read();
                bytes[start..bytes.len().min(start + WRITE_BYTES)].to_vec()
            };
            volume.write_buffered(self.segment.no(), *written, &piece)?;
            *written += piece.len() as u32;
        }
        Ok(())
    }
}

/// The tails of one region's logs, oldest first: what the writer, the flusher, replication and readers share.
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
        LogKind::ALL.into_iter().flat_map(|log| self.of(log).iter().cloned().collect::<Vec<_>>())
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

    /// Calls `with` with the bytes of a segment from `offset` on, if it is a tail.
    pub(crate) fn with_bytes<T>(
        &self,
        log: LogKind,
        no: SegmentNo,
        offset: u32,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let tails = self.lists[log.index()].load();
        let tail = tails.iter().find(|tail| tail.segment() == no)?;
        let filled = tail.filled();
        (offset < filled).then(|| tail.with_bytes(offset..filled, with))
    }
}
