//! Values that live in the large log, found by pointer: from a tail while it is in memory, otherwise from the device.
//!
//! Any thread may read. No lock is held across I/O.

use super::{Tails, decode_record};
use crate::error::{Error, RESTORE, Result};
use crate::volume::Volume;
use bytes::Bytes;
use leeward_format::record::{Record, RecordSeed, read_record_unchecked, record_bytes};
use leeward_format::{LogKind, Pointer, RegionId, SegmentId, SegmentNo};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Reads records of one region's large log.
#[derive(Debug)]
pub struct LogReader {
    volume: Arc<Volume>,
    region: RegionId,
    tails: Arc<Tails>,
    /// Identities of the large log's segments, which the records' checksums are seeded by.
    ids: RwLock<HashMap<SegmentNo, SegmentId>>,
}

impl LogReader {
    pub(crate) fn new(
        volume: Arc<Volume>,
        region: RegionId,
        tails: Arc<Tails>,
        ids: HashMap<SegmentNo, SegmentId>,
    ) -> LogReader {
        LogReader { volume, region, tails, ids: RwLock::new(ids) }
    }

    /// A segment joins the large log.
    pub(crate) fn add(&self, no: SegmentNo, id: SegmentId) {
        self.ids.write().insert(no, id);
    }

    /// The value of the record at `pointer` if a tail in memory holds it. Never touches the device.
    pub fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes> {
        let value = |bytes: &[u8]| {
            let record = read_record_unchecked(bytes).ok()??;
            is_wanted(&record, key, value_bytes).then(|| Bytes::copy_from_slice(record.value))
        };
        self.tails.with_bytes(LogKind::Large, pointer.segment(), pointer.offset(), value)?
    }

    /// The value of the record at `pointer`, which must be one of `key` with `value_bytes` bytes of value; from memory
    /// if it is there, otherwise from the device, its CRC checked. Not cached here.
    ///
    /// # Errors
    /// [`Error::Damaged`] if another record or none is there; [`Error::Io`].
    pub fn value(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Result<Bytes> {
        if let Some(value) = self.value_in_memory(pointer, key, value_bytes) {
            return Ok(value);
        }
        let Some(id) = self.segment_id(pointer) else {
            return Err(self.damaged(pointer, format!("segment {} is not part of the large log", pointer.segment())));
        };
        let wanted = record_bytes(key.len(), value_bytes as usize);
        if pointer.offset() as usize + wanted > self.volume.segment_bytes() {
            return Err(self.damaged(pointer, "the record would reach beyond its segment".into()));
        }
        let mut bytes = vec![0; wanted];
        self.volume.read(pointer.segment(), pointer.offset(), &mut bytes)?;
        match decode_record(RecordSeed::new(self.region, LogKind::Large, id), &bytes) {
            Ok(Some(record)) if is_wanted(&record, key, value_bytes) => {
                Ok(Bytes::from(bytes).slice(wanted - value_bytes as usize..))
            }
            Ok(_) => Err(self.damaged(pointer, "the record is not of the key that points to it".into())),
            Err(error) => Err(self.damaged(pointer, error.to_string())),
        }
    }

    /// Identity of the log segment that `pointer` points into. `None`: no live segment of the large log.
    pub fn segment_id(&self, pointer: Pointer) -> Option<SegmentId> {
        self.ids.read().get(&pointer.segment()).copied()
    }

    fn damaged(&self, pointer: Pointer, detail: String) -> Error {
        let offset = self.volume.file_offset(pointer.segment(), pointer.offset());
        Error::Damaged { file: self.volume.name().to_owned(), offset, detail, advice: RESTORE }
    }
}

fn is_wanted(record: &Record<'_>, key: &[u8], value_bytes: u32) -> bool {
    record.key == key && record.value.len() == value_bytes as usize
}
