//! The block of nonces before each segment of an encrypted volume: which bytes of the segment are encrypted with which
//! nonce.
//!
//! ```text
//!  0       4     8     12           16       28       32
//!  | start | end | kind| generation | nonce  | crc32c |    one of 128 or 256 slots
//!  | u32   | u32 | u32 | u32        | 12 B   | u32    |
//! ```
//! Little endian; the CRC covers the 28 bytes before it. A slot that does not decode is empty. Where uses overlap, the
//! one with the highest generation counts. A slot never spans two sectors, so a power loss leaves the old use or the
//! new one.

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 32;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// What encrypts the bytes of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum UseKind {
    /// AES-256-CTR with the nonce of the use.
    Stream = 1,
    /// Their writer, the manifest. The nonce is 0.
    Sealed = 2,
}

/// One use of a range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Its first byte, from the start of the segment.
    pub start: u32,
    /// The byte after its last one.
    pub end: u32,
    /// What encrypts them.
    pub kind: UseKind,
    /// Higher than that of all earlier uses of the segment.
    pub generation: u32,
    /// The first 12 bytes of the counter block of AES-256-CTR. The other 4 are the offset in the segment, in blocks of
    /// 16 bytes, big endian.
    pub nonce: [u8; NONCE_BYTES],
}

/// Bytes of the block of nonces of volumes with segments of `segment_bytes`.
pub fn nonce_block_bytes(segment_bytes: u32) -> u32 {
    if segment_bytes < 1 << 20 { 4096 } else { 8192 }
}

impl Use {
    /// One slot of the block of nonces: little endian, a CRC-32C last.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        for (at, word) in [self.start, self.end, self.kind as u32, self.generation].into_iter().enumerate() {
            slot[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        slot[16..28].copy_from_slice(&self.nonce);
        let crc = crc32c::crc32c(&slot[..28]);
        slot[28..].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    /// Decodes a slot of a segment of `segment_bytes`; `None` if it is empty.
    pub fn decode(slot: &[u8; SLOT_BYTES], segment_bytes: u32) -> Option<Use> {
        let word = |at: usize| u32::from_le_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]);
        let nonce = *slot[16..].first_chunk()?;
        let kind = match word(8) {
            1 => UseKind::Stream,
            2 => UseKind::Sealed,
            _ => return None,
        };
        let decoded = Use { start: word(0), end: word(4), kind, generation: word(12), nonce };
        let is_valid = word(28) == crc32c::crc32c(&slot[..28]);
        (is_valid && decoded.start < decoded.end && decoded.end <= segment_bytes).then_some(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_a_flipped_bit_or_a_range_beyond_the_segment_is_empty() {
        let one = Use { start: 16, end: 4096, kind: UseKind::Stream, generation: 9, nonce: [7; NONCE_BYTES] };
        let slot = one.encode();
        assert_eq!(Use::decode(&slot, 4096), Some(one));
        assert_eq!(Use::decode(&slot, 4095), None);
        assert_eq!(Use::decode(&[0; SLOT_BYTES], 4096), None);
        assert_eq!(Use::decode(&Use { start: 4096, ..one }.encode(), 4096), None);
        for bit in 0..SLOT_BYTES * 8 {
            let mut flipped = slot;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Use::decode(&flipped, 4096), None, "bit {bit}");
        }
    }
}
