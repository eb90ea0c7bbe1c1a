//! Values in the large and the medium log, found by pointer: in a tail while it is in memory, otherwise on the device.
//!
//! Any thread may read. No lock is held across I/O.

use super::{Tails, decode_record};
use crate::error::{Error, RESTORE, Result};
use crate::volume::{Segment, Volume};
use bytes::Bytes;
use leeward_format::record::{Record, RecordSeed, record_bytes};
use leeward_format::request::REQUEST_ID_BYTES;
use leeward_format::{Expiry, LogKind, Pointer, RegionId, SegmentId, SegmentName, SegmentNo};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// A pointer to a value, and what must be there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueAt<'a> {
    pub(crate) pointer: Pointer,
    pub(crate) key: &'a [u8],
    /// Length of its value, in bytes.
    pub(crate) value_bytes: u32,
    pub(crate) expires: Option<Expiry>,
}

/// Which records of a segment are read at once.
pub(super) struct Neighbours {
    /// Gap between two of them that is read rather than skipped, in bytes.
    pub(super) gap_bytes: usize,
    /// Bytes of one read at most, except for a larger record.
    pub(super) read_bytes: usize,
}

impl Neighbours {
    /// Whether a record from `offset` to `end` is read with those before it, of which the read has `bytes` from `start`
    /// on.
    pub(super) fn are(&self, (start, bytes): (u32, usize), (offset, end): (u32, usize)) -> bool {
        offset as usize <= start as usize + bytes + self.gap_bytes && end - start as usize <= self.read_bytes
    }
}

/// For readers: a gap of a block.
const NEIGHBOURS: Neighbours = Neighbours { gap_bytes: 4 << 10, read_bytes: 128 << 10 };

/// Values that were read.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// In the order of the request.
    pub(crate) values: Vec<Bytes>,
    /// Bytes of those that took a read of their own, because they lie in the order of writes.
    pub(crate) scattered_bytes: u64,
}

/// Place of a record.
#[derive(Clone, Copy)]
pub(super) struct RecordAt {
    pub(super) no: SegmentNo,
    pub(super) offset: u32,
    pub(super) seed: RecordSeed,
    /// It is in a sorted run.
    pub(super) in_run: bool,
}

/// Reads records of one region's logs that leaves point to.
#[derive(Debug)]
pub(crate) struct LogReader {
    pub(super) volume: Arc<Volume>,
    tails: Arc<Tails>,
    /// Places of the segments, and the seeds of their records' checksums.
    segments: RwLock<LogSegments>,
}

/// A segment of a log that leaves point to.
#[derive(Clone, Debug)]
pub(crate) struct LogSegment {
    log: LogKind,
    id: SegmentId,
    no: SegmentNo,
    origin: RegionId,
    /// It is a sorted run, and no segment in the order of writes.
    is_run: bool,
    /// Dead once the segment is free: then no reader can meet a pointer to it.
    held: Weak<Segment>,
}

impl LogSegment {
    pub(crate) fn new(log: LogKind, id: SegmentId, segment: &Arc<Segment>, is_run: bool) -> LogSegment {
        LogSegment { log, id, no: segment.no(), origin: segment.origin(), is_run, held: Arc::downgrade(segment) }
    }
}

/// The log segments of a region, by name. A segment that was given up stays for readers of older versions. When there
/// are twice as many segments as were in use at the last check, the free ones are removed.
#[derive(Debug, Default)]
pub(crate) struct LogSegments {
    by_name: HashMap<SegmentName, LogSegment>,
    most: usize,
}

/// Number of segments below which there is no such check.
const FEW_SEGMENTS: usize = 64;

impl LogSegments {
    pub(crate) fn add(&mut self, name: SegmentName, segment: LogSegment) {
        self.by_name.insert(name, segment);
        if self.by_name.len() > self.most.max(FEW_SEGMENTS) {
            self.by_name.retain(|_, segment| segment.held.strong_count() > 0);
            self.most = 2 * self.by_name.len();
        }
    }
}

impl LogReader {
    pub(crate) fn new(volume: Arc<Volume>, tails: Arc<Tails>, segments: LogSegments) -> LogReader {
        LogReader { volume, tails, segments: RwLock::new(segments) }
    }

    /// A segment joins a log.
    pub(crate) fn add(&self, name: SegmentName, segment: LogSegment) {
        self.segments.write().add(name, segment);
    }

    /// Id of a segment; `None` if it is not one of a log that leaves point to.
    pub(crate) fn segment_id(&self, name: SegmentName) -> Option<SegmentId> {
        self.segments.read().by_name.get(&name).map(|segment| segment.id)
    }

    /// Place of a record, and the seed of its checksum.
    pub(super) fn at(&self, pointer: Pointer) -> Result<RecordAt> {
        let segments = self.segments.read();
        let Some(segment) = segments.by_name.get(&pointer.segment()) else {
            let detail = format!("a pointer to {pointer:?}, and no such segment is part of a log that leaves point to");
            return Err(Error::Damaged { file: self.volume.name().to_owned(), offset: 0, detail, advice: RESTORE });
        };
        let seed = RecordSeed::new(segment.origin, segment.log, segment.id);
        Ok(RecordAt { no: segment.no, offset: pointer.offset(), seed, in_run: segment.is_run })
    }

    /// The value of the record at `pointer` if a tail in memory has it, its CRC checked. `None` also if the check
    /// fails: the copy in the file then shows whether the record is damaged. Never reads the device.
    pub(crate) fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes> {
        let value = |seed: RecordSeed, bytes: &[u8]| {
            let record = decode_record(seed, bytes).ok()??;
            is_wanted(&record, key, value_bytes).then(|| Bytes::copy_from_slice(record.value))
        };
        self.tails.with_bytes(LogKind::Large, pointer.segment(), pointer.offset(), value)?
    }

    /// The values of the records at these pointers, CRCs checked: from memory as far as they are there, the rest from
    /// the device, several at a time, and neighbours with one read. Not cached here.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the record is not there, or is another one; [`Error::Io`].
    pub(crate) fn values(&self, wanted: &[ValueAt<'_>]) -> Result<Values> {
        let mut values: Vec<Option<Bytes>> =
            wanted.iter().map(|at| self.value_in_memory(at.pointer, at.key, at.value_bytes)).collect();
        let mut missing: Vec<usize> = (0..wanted.len()).filter(|i| values[*i].is_none()).collect();
        missing.sort_unstable_by_key(|i| wanted[*i].pointer);
        let (mut reads, mut read_by) = (Vec::<((SegmentNo, u32), Vec<u8>)>::new(), Vec::with_capacity(missing.len()));
        for i in missing {
            let at = self.at(wanted[i].pointer)?;
            let end = at.offset as usize + self.record_bytes(&wanted[i], at)?;
            match reads.last_mut() {
                Some(((no, start), bytes))
                    if *no == at.no && NEIGHBOURS.are((*start, bytes.len()), (at.offset, end)) =>
                {
                    bytes.resize(bytes.len().max(end - *start as usize), 0);
                }
                _ => reads.push(((at.no, at.offset), vec![0; end - at.offset as usize])),
            }
            read_by.push((i, at, reads.len() - 1));
        }
        self.volume.read_many(&mut reads)?;
        let mut scattered_bytes = 0;
        for same in read_by.chunk_by(|a, b| a.2 == b.2) {
            let ((_, start), bytes) = &mut reads[same[0].2];
            for (i, at, _) in same {
                let ValueAt { key, value_bytes, .. } = wanted[*i];
                let place = self.value_place(*at, (bytes, *start), value_bytes, |record| record.key == key)?;
                values[*i] = Some(match same.len() {
                    1 => Bytes::from(std::mem::take(bytes)).slice(place),
                    // A slice would keep its neighbours in memory.
                    _ => Bytes::copy_from_slice(&bytes[place]),
                });
            }
            if let [(i, at, _)] = same {
                scattered_bytes += scattered(at, wanted[*i].value_bytes as usize);
            }
        }
        let values = values.into_iter().map(|value| value.expect("each was found or read")).collect();
        Ok(Values { values, scattered_bytes })
    }

    /// Bytes to read for a record, within its segment. Whether it has a request id is known only after the read.
    fn record_bytes(&self, wanted: &ValueAt<'_>, at: RecordAt) -> Result<usize> {
        let bytes = record_bytes(wanted.key.len(), wanted.value_bytes as usize, wanted.expires);
        let Some(room) = self.volume.bytes_of(at.no).checked_sub(at.offset as usize + bytes) else {
            return Err(self.damaged(at, "the record would reach beyond its segment".into()));
        };
        Ok(bytes + room.min(REQUEST_ID_BYTES))
    }

    /// Where the value of the record at `at` is in `bytes`, which begin at the offset `start` of its segment. It must be
    /// the wanted one, with a value of `value_bytes`; its CRC is checked.
    pub(super) fn value_place(
        &self,
        at: RecordAt,
        (bytes, start): (&[u8], u32),
        value_bytes: u32,
        is_wanted: impl FnOnce(&Record<'_>) -> bool,
    ) -> Result<Range<usize>> {
        let (start, value_bytes) = ((at.offset - start) as usize, value_bytes as usize);
        let record =
            self.record(at, &bytes[start..], |record| is_wanted(record) && record.value.len() == value_bytes)?;
        let end = start + record.bytes();
        Ok(end - value_bytes..end)
    }

    /// The record at `at`, which `bytes` begin with and which must be the wanted one; its CRC checked.
    fn record<'b>(
        &self,
        at: RecordAt,
        bytes: &'b [u8],
        is_wanted: impl FnOnce(&Record<'_>) -> bool,
    ) -> Result<Record<'b>> {
        match decode_record(at.seed, bytes) {
            Ok(Some(record)) if is_wanted(&record) => Ok(record),
            Ok(_) => Err(self.damaged(at, "the record is not the one that the pointer was made for".into())),
            Err(error) => Err(self.damaged(at, error.to_string())),
        }
    }

    pub(super) fn damaged(&self, at: RecordAt, detail: String) -> Error {
        let offset = self.volume.file_offset(at.no, at.offset);
        Error::Damaged { file: self.volume.name().to_owned(), offset, detail, advice: RESTORE }
    }
}

/// What a value of `bytes` that took a read of its own counts. Two large ones take two reads in any order.
fn scattered(at: &RecordAt, bytes: usize) -> u64 {
    if at.in_run || bytes > NEIGHBOURS.read_bytes / 2 { 0 } else { bytes as u64 }
}

fn is_wanted(record: &Record<'_>, key: &[u8], value_bytes: u32) -> bool {
    record.key == key && record.value.len() == value_bytes as usize
}
