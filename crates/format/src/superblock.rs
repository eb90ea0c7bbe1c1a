//! The first bytes of a volume: its version, id and layout.
//!
//! ```text
//!  0        8         12              16              20          28            32             508      512
//!  | magic  | version | segment bytes | zone segments | volume id | nonce bytes | reserved = 0 | crc32c |
//!  | 8 B    | u32     | u32           | u32           | u64       | u32         | 476 B        | u32    |
//! ```
//! Little endian; the CRC covers the 508 bytes before it. It is written when the volume is made and when a volume of an
//! older version is opened, at offsets 0 and [`SUPERBLOCK_COPY_OFFSET`] of segment 0. After segment 0, two zones of
//! `zone segments` segments each hold the manifest ([`crate::manifest`]), which may continue in later segments. All
//! other segments are data. On an encrypted volume a block of [nonces](crate::nonces) of `nonce bytes` is before each of
//! these. Otherwise the field is 0.
//!
//! Magic and version have the same places in every version. They are checked before the checksum, whose place another
//! version may have changed.

use crate::{DecodeError, MAX_SEGMENT_BYTES, VolumeId};

/// Bytes of the superblock.
pub const SUPERBLOCK_BYTES: usize = 512;
/// Offset of its second copy, in bytes.
pub const SUPERBLOCK_COPY_OFFSET: u64 = 4096;
/// First bytes of a volume.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"LEEWARD\n";
/// Version of everything on a volume that has no version of its own.
pub const VOLUME_VERSION: u32 = 13;
/// Oldest version that is read. Version 9 has manifests that continue in segments of data, version 10 the two-layer logs
/// of backups, version 11 tables with hash indexes or with scans at backups, version 12 encryption, version 13 what
/// copies belong to; nothing else is new in them.
pub const OLDEST_VOLUME_VERSION: u32 = 8;
/// Smallest segment, in bytes.
pub const MIN_SEGMENT_BYTES: usize = 32 * 1024;

/// The version, id and layout of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the volume: from [`OLDEST_VOLUME_VERSION`] to [`VOLUME_VERSION`].
    pub version: u32,
    /// Segment size in bytes: a power of two from [`MIN_SEGMENT_BYTES`] to [`MAX_SEGMENT_BYTES`].
    pub segment_bytes: u32,
    /// Segments of each of the two manifest zones, without data segments in which a zone continues.
    pub zone_segments: u32,
    /// Drawn at random when the volume was made.
    pub volume: VolumeId,
    /// Bytes of the block of nonces before each data segment of an encrypted volume; 0 if it is not encrypted.
    pub nonce_bytes: u32,
}

impl Superblock {
    /// Whether the volume is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.nonce_bytes > 0
    }

    /// Whether volumes may have segments of `bytes` bytes.
    pub fn is_segment_size(bytes: usize) -> bool {
        bytes.is_power_of_two() && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes)
    }

    /// Magic, fields in little endian, zeros, and a CRC-32C in the last 4 bytes.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.zone_segments.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.volume.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.nonce_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..508]);
        bytes[508..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the superblock at the start of `bytes`.
    ///
    /// # Errors
    /// There is no superblock, it has another version ([`DecodeError::Version`]), or it is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, DecodeError> {
        const WHAT: &str = "superblock";
        if !bytes.starts_with(&SUPERBLOCK_MAGIC[..bytes.len().min(8)]) {
            return Err(DecodeError::invalid(WHAT, "not a Leeward volume"));
        }
        let Some(bytes) = bytes.first_chunk::<SUPERBLOCK_BYTES>() else {
            return Err(DecodeError::Short { what: WHAT, needed: SUPERBLOCK_BYTES, available: bytes.len() });
        };
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if !(OLDEST_VOLUME_VERSION..=VOLUME_VERSION).contains(&word(8)) {
            return Err(DecodeError::Version { what: "volume", found: word(8), known: VOLUME_VERSION });
        }
        let (found, expected) = (word(508), crc32c::crc32c(&bytes[..508]));
        if found != expected {
            return Err(DecodeError::Checksum { what: WHAT, found, expected });
        }
        let volume = VolumeId(u64::from_le_bytes(bytes[20..28].try_into().expect("8 bytes")));
        let (version, segment_bytes, zone_segments, nonce_bytes) = (word(8), word(12), word(16), word(28));
        let superblock = Superblock { version, segment_bytes, zone_segments, volume, nonce_bytes };
        if !Superblock::is_segment_size(superblock.segment_bytes as usize)
            || !(1..=1024).contains(&superblock.zone_segments)
            || !matches!(superblock.nonce_bytes, 0 | 4096 | 8192)
        {
            return Err(DecodeError::invalid(WHAT, format!("sizes out of range: {superblock:?}")));
        }
        Ok(superblock)
    }
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
