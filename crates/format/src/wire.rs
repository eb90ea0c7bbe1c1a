//! How a segment is sent to a backup: as it is, or compressed as a whole (Talos 3.5 weighs CPU time against network).
//!
//! Its leaves may be packed already ([`crate::packed`]), which leaves little to gain. If compression does not save an
//! eighth, the segment is sent as it is. The receiver knows and bounds the length beforehand, and checks the whole
//! segment by its CRC.
//!
//! Pure functions; any thread may call them.

use crate::manifest::{SegmentKind, Shipped};
use crate::packed::{Codec, compress, decompress};
use crate::{DecodeError, MAX_SEGMENT_BYTES, SegmentId, SegmentNo};

const WHAT: &str = "shipped segment";

/// The description of the segment `plain`, and the bytes to send; `None`: send `plain` itself.
pub fn pack(
    (id, kind, primary): (SegmentId, SegmentKind, SegmentNo),
    plain: &[u8],
    codec: Codec,
) -> (Shipped, Option<Vec<u8>>) {
    let mut packed = vec![0; if codec == Codec::None { 0 } else { plain.len() - plain.len() / 8 }];
    let length = compress(codec, plain, &mut packed);
    let codec = if length.is_some() { codec } else { Codec::None };
    let shipped = Shipped { id, kind, primary, crc: checksum(plain), bytes: plain.len() as u32, codec };
    packed.truncate(length.unwrap_or(0));
    (shipped, length.is_some().then_some(packed))
}

/// The checksum of a whole segment.
pub fn checksum(plain: &[u8]) -> u32 {
    crc32c::crc32c(plain)
}

/// The segment that was sent as `bytes`; `None`: it is `bytes` itself. Its content is not checked: [`check`] does that,
/// and so does a reader of all of its nodes.
///
/// # Errors
/// `bytes` do not have the length or the form that `shipped` says.
pub fn unpack(shipped: &Shipped, bytes: &[u8]) -> Result<Option<Vec<u8>>, DecodeError> {
    let wanted = shipped.bytes as usize;
    if wanted == 0 || wanted > MAX_SEGMENT_BYTES {
        return Err(DecodeError::invalid(WHAT, format!("segment {} of {wanted} bytes", shipped.id)));
    }
    match shipped.codec {
        Codec::None if bytes.len() == wanted => Ok(None),
        Codec::None => Err(DecodeError::Short { what: WHAT, needed: wanted, available: bytes.len() }),
        codec => decompress(codec, bytes, wanted).map(Some),
    }
}

/// Whether `plain` is all of the segment that `shipped` describes.
///
/// # Errors
/// It is not.
pub fn check(shipped: &Shipped, plain: &[u8]) -> Result<(), DecodeError> {
    match checksum(plain) {
        found if found == shipped.crc => Ok(()),
        found => Err(DecodeError::Checksum { what: WHAT, found, expected: shipped.crc }),
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
