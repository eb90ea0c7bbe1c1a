//! The header of a log segment. (Leaf and index segments: [`crate::leaf_segment`].)
//!
//! ```text
//!  0        8         10    11         12       16           24          32              60      64
//!  | magic  | version | log | reserved | region | segment id | first LSN | reserved = 0  | crc32c | records ...
//!  | 8 B    | u16     | u8  | u8 = 0   | u32    | u64        | u64       | 28 B          | u32    |
//! ```
//! Little endian. The CRC covers the 60 bytes before it. The header is written together with the segment's first
//! record. It is the same on every replica and in every mirror buffer, so a buffer shows which segment it holds.

use crate::{DecodeError, LogKind, Lsn, RegionId, SegmentId};

/// Bytes of a log segment before its first record.
pub const LOG_HEADER_BYTES: usize = 64;
/// First bytes of a log segment.
pub const LOG_MAGIC: [u8; 8] = *b"LWDLOG\r\n";
/// Version of the log segment format.
pub const LOG_VERSION: u16 = 4;

/// Header of a log segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// Region that the segment was made for.
    pub region: RegionId,
    /// Seeds the CRC of each record, with region and id.
    pub log: LogKind,
    /// Identity of the segment.
    pub id: SegmentId,
    /// LSN of the first record. In a sorted run, which a compaction wrote, others may have lower ones.
    pub first_lsn: Lsn,
}

impl LogHeader {
    /// Magic, version and fields in little endian, and a CRC-32C in the last 4 bytes.
    pub fn encode(&self) -> [u8; LOG_HEADER_BYTES] {
        let mut bytes = [0; LOG_HEADER_BYTES];
        bytes[..8].copy_from_slice(&LOG_MAGIC);
        bytes[8..10].copy_from_slice(&LOG_VERSION.to_le_bytes());
        bytes[10] = self.log as u8;
        bytes[12..16].copy_from_slice(&self.region.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_lsn.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at the start of `bytes`.
    ///
    /// # Errors
    /// There is no header of this version.
    pub fn decode(bytes: &[u8]) -> Result<LogHeader, DecodeError> {
        const WHAT: &str = "log segment header";
        let Some(bytes) = bytes.first_chunk::<LOG_HEADER_BYTES>() else {
            return Err(DecodeError::Short { what: WHAT, needed: LOG_HEADER_BYTES, available: bytes.len() });
        };
        if bytes[..8] != LOG_MAGIC {
            return Err(DecodeError::invalid(WHAT, "no log segment starts here"));
        }
        let found = u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]);
        let expected = crc32c::crc32c(&bytes[..60]);
        if found != expected {
            return Err(DecodeError::Checksum { what: WHAT, found, expected });
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != LOG_VERSION {
            return Err(DecodeError::invalid(WHAT, format!("version {version} where {LOG_VERSION} is spoken")));
        }
        let log = match bytes[10] {
            0 => LogKind::Recovery,
            1 => LogKind::Large,
            2 => LogKind::Medium,
            other => return Err(DecodeError::invalid(WHAT, format!("log {other} is unknown"))),
        };
        Ok(LogHeader {
            region: RegionId(u32::from_le_bytes(bytes[12..16].try_into().expect("4 bytes"))),
            log,
            id: SegmentId(u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes"))),
            first_lsn: Lsn(u64::from_le_bytes(bytes[24..32].try_into().expect("8 bytes"))),
        })
    }
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
