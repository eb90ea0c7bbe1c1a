//! A record: one put, delete or delete of a range, an ingest, or a request that wrote nothing. Its bytes are the same
//! in a log, in a mirror buffer and on the fabric.
//!
//! ```text
//!  0        4         6      7       8          16           20
//!  | crc32c | key len | kind | flags | LSN      | value len  | expires    | request id | key ... | value ...
//!  | u32    | u16     | u8   | u8    | u64      | u32        | u64, if it | 12, if it  |
//! ```
//! The flag [`FLAG_EXPIRES`] says whether a record has an expiry, in milliseconds since 1970 UTC; [`FLAG_REQUEST`]
//! whether it has a [request id](crate::request). Little endian, not aligned, without gaps. The CRC covers everything
//! after itself and is seeded by region, log and segment ([`RecordSeed`]), so that a stale record of an earlier use of
//! the same bytes never passes. A key length of 0 ends the records of a segment, so untouched bytes read as
//! the end. So does a header that the end of the bytes cuts off.

use crate::request::{REQUEST_ID_BYTES, RequestId};
use crate::{DecodeError, Expiry, LogKind, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, RegionId, SegmentId, Stamp};

/// Bytes that every record begins with.
pub const RECORD_HEADER_BYTES: usize = 20;
/// Those of its CRC, at its start.
const CRC_BYTES: usize = 4;
const EXPIRY_BYTES: usize = 8;
/// Bytes of the version in a refusal.
const VERSION_BYTES: usize = size_of::<Lsn>();

/// [`Record::flags`]: the next LSN belongs to the same batch. Replay takes a batch atomically.
pub const FLAG_BATCH_CONTINUES: u8 = 1;
/// In the stored flags: the record is a put that expires.
pub const FLAG_EXPIRES: u8 = 2;
/// In the stored flags: the write has a request id.
pub const FLAG_REQUEST: u8 = 4;

/// Initial value of a record's CRC, from the region, log and segment that the record was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSeed(u32);

impl RecordSeed {
    /// The seed of the records of one log segment.
    pub fn new(region: RegionId, log: LogKind, segment: SegmentId) -> RecordSeed {
        let mut place = [0; 13];
        place[..4].copy_from_slice(&region.0.to_le_bytes());
        place[4] = log as u8;
        place[5..].copy_from_slice(&segment.0.to_le_bytes());
        RecordSeed(crc32c::crc32c(&place))
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Sets the key.
    Put = 1,
    /// Removes the key.
    Delete = 2,
    /// Removes every key from this one to the value, exclusive; to the last key if the value is empty.
    DeleteRange = 3,
    /// Reserves LSNs from this one on, as many as the value says (8 bytes), for pairs that were ingested. Replay does
    /// nothing. The key is a byte 0.
    Ingest = 4,
    /// A write with this request id was decided and wrote nothing: its condition did not hold. The value is the version
    /// of the existing pair (8 bytes), or empty. The key is a byte 0.
    Refused = 5,
}

/// One record, borrowed from the bytes that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its place in the region's history, and when it expires; a delete never does.
    pub stamp: Stamp,
    /// Says what key and value mean.
    pub kind: RecordKind,
    /// [`FLAG_BATCH_CONTINUES`]; other bits are 0.
    pub flags: u8,
    /// The request id of the write, if it has one.
    pub request: Option<RequestId>,
    /// The key, 1 byte to [`MAX_KEY_BYTES`].
    pub key: &'a [u8],
    /// The value, up to [`MAX_VALUE_BYTES`]. It is empty for a delete; for other kinds see [`RecordKind`].
    pub value: &'a [u8],
}

/// Bytes of the record of a key and a value of these lengths, and of its expiry if it has one; with a request id it has
/// [`REQUEST_ID_BYTES`] more.
#[inline]
pub const fn record_bytes(key_bytes: usize, value_bytes: usize, expires: Option<Expiry>) -> usize {
    RECORD_HEADER_BYTES + if expires.is_some() { EXPIRY_BYTES } else { 0 } + key_bytes + value_bytes
}

impl Record<'_> {
    /// For a valid ingest, the LSN after the last one that it reserves.
    fn ingested(&self) -> Option<Lsn> {
        let count = u64::from_le_bytes(*self.value.first_chunk()?);
        let end = self.stamp.lsn.0.checked_add(count)?;
        (self.value.len() == size_of::<u64>() && count > 0 && end < u64::MAX).then_some(Lsn(end))
    }

    /// The last LSN that it covers: its own, except for an ingest.
    #[inline]
    pub fn last_lsn(&self) -> Lsn {
        match self.kind {
            RecordKind::Ingest => self.ingested().map_or(self.stamp.lsn, |end| Lsn(end.0 - 1)),
            _ => self.stamp.lsn,
        }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        let request_bytes = if self.request.is_some() { REQUEST_ID_BYTES } else { 0 };
        record_bytes(self.key.len(), self.value.len(), self.stamp.expires) + request_bytes
    }

    /// Writes it to `out`, which is exactly [`Record::bytes`] long.
    #[inline]
    pub fn write_to(&self, seed: RecordSeed, out: &mut [u8]) {
        debug_assert!(!self.key.is_empty() && self.key.len() <= MAX_KEY_BYTES && self.value.len() <= MAX_VALUE_BYTES);
        let expires = self.stamp.expires.map(|expires| expires.ms().to_le_bytes());
        let request = self.request.map(|request| request.to_bytes());
        let flags = self.flags
            | if expires.is_some() { FLAG_EXPIRES } else { 0 }
            | if request.is_some() { FLAG_REQUEST } else { 0 };
        let header = self.key.len() as u128
            | u128::from(self.kind as u8) << 16
            | u128::from(flags) << 24
            | u128::from(self.stamp.lsn.0) << 32
            | (self.value.len() as u128) << 96;
        let header = header.to_le_bytes();
        let expires = expires.as_ref().map_or(&[][..], |field| &field[..]);
        let request = request.as_ref().map_or(&[][..], |field| &field[..]);
        let parts = [&header[..], expires, request, self.key, self.value];
        let filled = parts.into_iter().filter(|part| !part.is_empty());
        // Of the parts, not of `out`: that is often cold, and to read it back would wait for its cache lines.
        let crc = filled.clone().fold(seed.0, crc32c::crc32c_append);
        let (first, mut rest) = out.split_at_mut(CRC_BYTES);
        first.copy_from_slice(&crc.to_le_bytes());
        for part in filled {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
    }

    /// Appends it to `out`.
    pub fn append_to(&self, seed: RecordSeed, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.bytes(), 0);
        self.write_to(seed, &mut out[start..]);
    }
}

/// Decodes the record at the start of `bytes`, which reach to the end of the segment; `None` at the end of the records.
/// Its length is [`Record::bytes`].
///
/// # Errors
/// The bytes are no record of `seed`: torn, damaged, or left by an earlier use of the same bytes.
pub fn read_record(seed: RecordSeed, bytes: &[u8]) -> Result<Option<Record<'_>>, DecodeError> {
    let record = read_record_unchecked(bytes)?;
    if let Some(record) = &record {
        let found = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let expected = crc32c::crc32c_append(seed.0, &bytes[4..record.bytes()]);
        if found != expected {
            return Err(DecodeError::Checksum { what: "record", found, expected });
        }
    }
    Ok(record)
}

/// [`read_record`] without a check of the CRC, for bytes that were checked before.
///
/// # Errors
/// A field has a value that no record has.
pub fn read_record_unchecked(bytes: &[u8]) -> Result<Option<Record<'_>>, DecodeError> {
    let Some((header, rest)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        return Ok(None);
    };
    let key_bytes = usize::from(u16::from_le_bytes([header[4], header[5]]));
    let value_bytes = u32::from_le_bytes([header[16], header[17], header[18], header[19]]) as usize;
    if key_bytes == 0 {
        return Ok(None);
    }
    if key_bytes > MAX_KEY_BYTES || value_bytes > MAX_VALUE_BYTES {
        let detail = format!("key of {key_bytes} bytes and value of {value_bytes} bytes are over the limits");
        return Err(DecodeError::invalid("record", detail));
    }
    let flags = header[7];
    let expiry_bytes = if flags & FLAG_EXPIRES == 0 { 0 } else { EXPIRY_BYTES };
    let request_bytes = if flags & FLAG_REQUEST == 0 { 0 } else { REQUEST_ID_BYTES };
    let needed = expiry_bytes + request_bytes + key_bytes + value_bytes;
    if rest.len() < needed {
        let needed = RECORD_HEADER_BYTES + needed;
        return Err(DecodeError::Short { what: "record", needed, available: bytes.len() });
    }
    let kind = match header[6] {
        1 => RecordKind::Put,
        2 if value_bytes == 0 => RecordKind::Delete,
        2 => return Err(DecodeError::invalid("record", "a delete with a value")),
        3 => RecordKind::DeleteRange,
        4 => RecordKind::Ingest,
        5 if matches!(value_bytes, 0 | VERSION_BYTES) => RecordKind::Refused,
        other => return Err(DecodeError::invalid("record", format!("kind {other} is unknown"))),
    };
    if flags & !(FLAG_BATCH_CONTINUES | FLAG_EXPIRES | FLAG_REQUEST) != 0 {
        return Err(DecodeError::invalid("record", format!("flags {flags:#04x} are unknown")));
    }
    let (expires, rest) = rest.split_at(expiry_bytes);
    let expires = match expires.first_chunk::<EXPIRY_BYTES>() {
        None => None,
        Some(_) if kind != RecordKind::Put => return Err(DecodeError::invalid("record", "a delete that expires")),
        Some(ms) => Some(Expiry::try_from(u64::from_le_bytes(*ms))?),
    };
    let (request, rest) = rest.split_at(request_bytes);
    let request = request.first_chunk().map(RequestId::from_bytes);
    let lsn = Lsn(u64::from_le_bytes(header[8..16].try_into().expect("8 bytes")));
    let (key, rest) = rest.split_at(key_bytes);
    let value = &rest[..value_bytes];
    if kind == RecordKind::DeleteRange && !crate::range::is_range(key, value) {
        return Err(DecodeError::invalid("record", "a delete of a range that is empty, reversed or over the limits"));
    }
    let (stamp, flags) = (Stamp { lsn, expires }, flags & FLAG_BATCH_CONTINUES);
    let record = Record { stamp, kind, flags, request, key, value };
    if kind == RecordKind::Refused && request.is_none() {
        return Err(DecodeError::invalid("record", "a refusal without a request id"));
    }
    if kind == RecordKind::Ingest && (request.is_some() || record.ingested().is_none()) {
        return Err(DecodeError::invalid("record", "an ingest of no LSNs, or of more than there are"));
    }
    Ok(Some(record))
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
