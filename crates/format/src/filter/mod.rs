//! The Bloom filter of a leaf segment: ten bits a key, every probe of a key in one 64-byte block.
//!
//! ```text
//!  0        4     5        8        12           16
//!  | crc32c | ver | 0 0 0  | keys   | blocks u32 | block 0 (64 bytes) | block 1 | ...
//!  | u32    | u8  |        | u32    |            |
//! ```
//! A key's XXH3 hash chooses the block by its high 32 bits and six bits of it by multiples of its low 32, so a
//! lookup touches one cache line; about 1.2 % of absent keys pass. The CRC covers everything after itself, seeded with
//! the [`Address`] of the filter. Pure functions; any thread may call them.

use crate::{DecodeError, MAX_SEGMENT_BYTES, node::Address};
use std::ops::Deref;

#[cfg(test)]
mod tests;

/// Version written into every filter; others are refused.
pub const FILTER_VERSION: u8 = 1;
/// Bits of filter a key.
pub const BITS_PER_KEY: usize = 10;

const WHAT: &str = "filter";
const HEADER_BYTES: usize = 16;
const BLOCK_BYTES: usize = 64;
const PROBES: u32 = 6;

/// The hash of a key for filters. A look-up computes it once for all levels.
#[inline]
pub fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Length of the filter over this many keys, in bytes.
pub fn filter_bytes(keys: usize) -> usize {
    HEADER_BYTES + blocks(keys) * BLOCK_BYTES
}

fn blocks(keys: usize) -> usize {
    (keys * BITS_PER_KEY).div_ceil(BLOCK_BYTES * 8)
}

/// Appends the filter over the keys with these hashes, which will live at `address`, to `out`.
pub fn write_filter(hashes: &[u64], address: Address, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + filter_bytes(hashes.len()), 0);
    let filter = &mut out[start..];
    let blocks = blocks(hashes.len());
    filter[4] = FILTER_VERSION;
    filter[8..12].copy_from_slice(&(hashes.len() as u32).to_le_bytes());
    filter[12..16].copy_from_slice(&(blocks as u32).to_le_bytes());
    for hash in hashes {
        let at = HEADER_BYTES + block_of(*hash, blocks) * BLOCK_BYTES;
        let block = &mut filter[at..at + BLOCK_BYTES];
        for bit in bits_of(*hash) {
            block[bit >> 3] |= 1 << (bit & 7);
        }
    }
    address.seal(filter);
}

#[inline]
fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// Bits of a block, 0 to 511, that a key sets.
#[inline]
fn bits_of(hash: u64) -> impl Iterator<Item = usize> {
    let mut low = hash as u32;
    (0..PROBES).map(move |_| {
        low = low.wrapping_mul(0x9e37_79b9);
        (low >> 23) as usize
    })
}

/// A checked filter over `bytes`.
#[derive(Clone, Debug)]
pub struct Filter<B> {
    bytes: B,
    blocks: usize,
}

impl<B: Deref<Target = [u8]>> Filter<B> {
    /// Checks `bytes`, which must be exactly one filter that belongs at `address`.
    ///
    /// # Errors
    /// The bytes are damaged, belong to another address, or no writer of this version produces them.
    pub fn parse(bytes: B, address: Address) -> Result<Filter<B>, DecodeError> {
        if bytes.len() < HEADER_BYTES || bytes.len() > MAX_SEGMENT_BYTES {
            return Err(DecodeError::Short { what: WHAT, needed: HEADER_BYTES, available: bytes.len() });
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (found, expected) = (word(0), address.crc(&bytes[4..]));
        if found != expected {
            return Err(DecodeError::Checksum { what: WHAT, found, expected });
        }
        if bytes[4] != FILTER_VERSION {
            return Err(DecodeError::invalid(WHAT, format!("version {} where {FILTER_VERSION} is known", bytes[4])));
        }
        let (keys, blocks_found) = (word(8) as usize, word(12) as usize);
        if bytes.len() != filter_bytes(keys) || blocks_found != blocks(keys) {
            return Err(DecodeError::invalid(WHAT, format!("{keys} keys in {} bytes", bytes.len())));
        }
        Ok(Filter { bytes, blocks: blocks_found })
    }

    /// Whether a key with this hash may be among those of the filter; `false` is certain.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        if self.blocks == 0 {
            return false;
        }
        let at = HEADER_BYTES + block_of(hash, self.blocks) * BLOCK_BYTES;
        let block = &self.bytes[at..at + BLOCK_BYTES];
        bits_of(hash).all(|bit| block[bit >> 3] & (1 << (bit & 7)) != 0)
    }
}
