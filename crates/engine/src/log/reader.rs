//! Values that live in the large and the medium log, found by pointer: from a tail while it is in memory, otherwise from
//! the device.
//!
//! Any thread may read. No lock is held across I/O.

use super::{Tails, decode_record};
use crate::error::{Error, RESTORE, Result};
use crate::volume::Volume;
use bytes::Bytes;
use leeward_format::record::{Record, RecordSeed, read_record_unchecked, record_bytes};
use leeward_format::{Expiry, LogKind, Pointer, RegionId, SegmentId, SegmentNo};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Where a value is, and what must be there.
#[derive(Clone, Copy, Debug)]
pub struct ValueAt<'a> {
    /// The record.
    pub pointer: Pointer,
    /// Its key.
    pub key: &'a [u8],
    /// Length of its value.
    pub value_bytes: u32,
    /// Its expiry.
    pub expires: Option<Expiry>,
}

/// Reads records of one region's logs that leaves point to.
#[derive(Debug)]
pub struct LogReader {
    pub(super) volume: Arc<Volume>,
    pub(super) region: RegionId,
    tails: Arc<Tails>,
    /// What the records' checksums are seeded by. A segment that was given up stays until its number is used again: no
    /// reader that can still meet a pointer to it lets that happen.
    segments: RwLock<HashMap<SegmentNo, (LogKind, SegmentId)>>,
}

impl LogReader {
    pub(crate) fn new(
        volume: Arc<Volume>,
        region: RegionId,
        tails: Arc<Tails>,
        segments: HashMap<SegmentNo, (LogKind, SegmentId)>,
    ) -> LogReader {
        LogReader { volume, region, tails, segments: RwLock::new(segments) }
    }

    /// A segment joins a log.
    pub(crate) fn add(&self, no: SegmentNo, log: LogKind, id: SegmentId) {
        self.segments.write().insert(no, (log, id));
    }

    /// The log and the identity of a segment. `None`: it was never one of a log that leaves point to.
    pub fn segment(&self, no: SegmentNo) -> Option<(LogKind, SegmentId)> {
        self.segments.read().get(&no).copied()
    }

    /// The value of the record at `pointer` if a tail in memory holds it. Never touches the device.
    pub fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes> {
        let value = |bytes: &[u8]| {
            let record = read_record_unchecked(bytes).ok()??;
            is_wanted(&record, key, value_bytes).then(|| Bytes::copy_from_slice(record.value))
        };
        self.tails.with_bytes(LogKind::Large, pointer.segment(), pointer.offset(), value)?
    }

    /// The values of records, each the one of its key that its pointer leads to; from memory what is there, the rest from
    /// the device, several at a time, CRCs checked. Not cached here.
    ///
    /// # Errors
    /// [`Error::Damaged`] if another record or none is there; [`Error::Io`].
    pub fn values(&self, wanted: &[ValueAt<'_>]) -> Result<Vec<Bytes>> {
        let mut values: Vec<Option<Bytes>> =
            wanted.iter().map(|at| self.value_in_memory(at.pointer, at.key, at.value_bytes)).collect();
        let missing: Vec<usize> = (0..wanted.len()).filter(|i| values[*i].is_none()).collect();
        let mut reads = Vec::with_capacity(missing.len());
        for i in &missing {
            reads.push((wanted[*i].pointer, vec![0; self.record_bytes(&wanted[*i])?]));
        }
        self.volume.read_many(&mut reads)?;
        for (i, (_, bytes)) in missing.into_iter().zip(reads) {
            values[i] = Some(self.decode(&wanted[i], bytes)?);
        }
        Ok(values.into_iter().map(|value| value.expect("each was found or read")).collect())
    }

    /// Length of a record, which ends in its segment.
    fn record_bytes(&self, at: &ValueAt<'_>) -> Result<usize> {
        let bytes = record_bytes(at.key.len(), at.value_bytes as usize, at.expires);
        if at.pointer.offset() as usize + bytes > self.volume.segment_bytes() {
            return Err(self.damaged(at.pointer, "the record would reach beyond its segment".into()));
        }
        Ok(bytes)
    }

    /// The value of the record that `bytes` are.
    fn decode(&self, at: &ValueAt<'_>, bytes: Vec<u8>) -> Result<Bytes> {
        self.record(at.pointer, &bytes, |record| is_wanted(record, at.key, at.value_bytes))?;
        let start = bytes.len() - at.value_bytes as usize;
        Ok(Bytes::from(bytes).slice(start..))
    }

    /// The record at `pointer`, which `bytes` begin with and which must be the wanted one; its CRC checked.
    pub(super) fn record<'b>(
        &self,
        pointer: Pointer,
        bytes: &'b [u8],
        is_wanted: impl FnOnce(&Record<'_>) -> bool,
    ) -> Result<Record<'b>> {
        let Some((log, id)) = self.segment(pointer.segment()) else {
            let detail = format!("segment {} is not part of a log that leaves point to", pointer.segment());
            return Err(self.damaged(pointer, detail));
        };
        match decode_record(RecordSeed::new(self.region, log, id), bytes) {
            Ok(Some(record)) if is_wanted(&record) => Ok(record),
            Ok(_) => Err(self.damaged(pointer, "the record is not the one that the pointer was made for".into())),
            Err(error) => Err(self.damaged(pointer, error.to_string())),
        }
    }

    pub(super) fn damaged(&self, pointer: Pointer, detail: String) -> Error {
        let offset = self.volume.file_offset(pointer.segment(), pointer.offset());
        Error::Damaged { file: self.volume.name().to_owned(), offset, detail, advice: RESTORE }
    }
}

fn is_wanted(record: &Record<'_>, key: &[u8], value_bytes: u32) -> bool {
    record.key == key && record.value.len() == value_bytes as usize
}
