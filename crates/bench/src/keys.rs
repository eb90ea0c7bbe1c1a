//! Records: their keys, their sizes and their values.
//!
//! A key is `user` and 20 decimal digits of a hash of the record's number, 24 bytes, as in YCSB. A value carries the
//! sequence number of the write that made it and is otherwise filled with bytes that follow from (record, sequence), so
//! that a value found later proves which write it came from and that it is whole:
//!
//! ```text
//!  0                  8
//!  | sequence (u64 LE) | filler by (record, sequence) ... |
//! ```
//! The sizes of a mix are those of the papers (Tebis 4, Anthus 4.1): a pair is key and value together.

use bytes::Bytes;
use std::fmt;
use std::str::FromStr;

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;

/// Bytes of every key.
pub const KEY_BYTES: usize = 24;
/// Bytes of a value's sequence number.
const SEQUENCE_BYTES: usize = 8;
/// Bytes of a small, medium and large pair.
const PAIR_BYTES: [usize; 3] = [33, 123, 1023];
/// Bytes of the largest pair, key and value together.
pub(crate) const LARGEST_PAIR_BYTES: usize = PAIR_BYTES[2];

/// Sizes of the pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All small: 33 B.
    S,
    /// All medium: 123 B.
    M,
    /// All large: 1023 B.
    L,
    /// Small dominated: 60 % small, 20 % medium, 20 % large.
    SD,
    /// Medium dominated: 20-60-20.
    MD,
    /// Large dominated: 20-20-60.
    LD,
    /// As small dominated, with 40 % small pairs: 40-30-30.
    S40,
    /// With 80 % small pairs: 80-10-10.
    S80,
}

impl Mix {
    /// The papers' mixes, in their order.
    pub const ALL: [Mix; 6] = [Mix::S, Mix::M, Mix::L, Mix::SD, Mix::MD, Mix::LD];

    /// Percentages of small, medium and large pairs.
    fn shares(self) -> [u64; 3] {
        match self {
            Mix::S => [100, 0, 0],
            Mix::M => [0, 100, 0],
            Mix::L => [0, 0, 100],
            Mix::SD => [60, 20, 20],
            Mix::MD => [20, 60, 20],
            Mix::LD => [20, 20, 60],
            Mix::S40 => [40, 30, 30],
            Mix::S80 => [80, 10, 10],
        }
    }

    /// Bytes of a pair, in the mean.
    pub(crate) fn mean_pair_bytes(self) -> u64 {
        self.shares().iter().zip(PAIR_BYTES).map(|(share, bytes)| share * bytes as u64).sum::<u64>() / 100
    }

    /// Bytes of the value of `record`: always the same, so that an update does not change a pair's size.
    pub fn value_bytes(self, record: u64) -> usize {
        // Another hash than the key's, so that size and place are independent.
        let draw = mix64(record ^ 0x6c65_6577_6172_6421) % 100;
        let [small, medium, _] = self.shares();
        let class = if draw < small {
            0
        } else if draw < small + medium {
            1
        } else {
            2
        };
        PAIR_BYTES[class] - KEY_BYTES
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mix::S => "s",
            Mix::M => "m",
            Mix::L => "l",
            Mix::SD => "sd",
            Mix::MD => "md",
            Mix::LD => "ld",
            Mix::S40 => "s40",
            Mix::S80 => "s80",
        })
    }
}

impl FromStr for Mix {
    type Err = String;
    fn from_str(text: &str) -> Result<Mix, String> {
        let all = Mix::ALL.into_iter().chain([Mix::S40, Mix::S80]);
        all.into_iter()
            .find(|mix| mix.to_string() == text.to_ascii_lowercase())
            .ok_or_else(|| format!("unknown mix {text:?}: it is one of s, m, l, sd, md, ld, s40, s80"))
    }
}

/// A bijective hash of 64 bits (the finaliser of SplitMix64): two records never share a key.
pub fn mix64(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of a record.
pub(crate) fn key(record: u64) -> Bytes {
    Bytes::copy_from_slice(&key_bytes(record))
}

/// The key of a record, without an allocation.
pub fn key_bytes(record: u64) -> [u8; KEY_BYTES] {
    key_at(mix64(record))
}

fn key_at(hash: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user00000000000000000000";
    let mut rest = hash;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Keys that cut the key space of the benchmark's records into `regions` parts of the same size.
///
/// ```
/// let points = leeward_bench::even_split_points(2);
/// assert_eq!(points, [&b"user09223372036854775808"[..]]);
/// ```
pub fn even_split_points(regions: u32) -> Vec<Bytes> {
    let part = (1u128 << 64) / u128::from(regions.max(1));
    (1..u128::from(regions)).map(|cut| Bytes::copy_from_slice(&key_at((part * cut) as u64))).collect()
}

/// The value that write number `sequence` gives to `record`.
pub(crate) fn value(record: u64, sequence: u64, bytes: usize) -> Bytes {
    let mut value = Vec::with_capacity(bytes.max(SEQUENCE_BYTES));
    fill_value(&mut value, record, sequence, bytes);
    value.into()
}

/// Replaces what `value` holds by the value that write number `sequence` gives to `record`.
pub fn fill_value(value: &mut Vec<u8>, record: u64, sequence: u64, bytes: usize) {
    value.clear();
    value.extend_from_slice(&sequence.to_le_bytes());
    value.resize(bytes.max(SEQUENCE_BYTES), 0);
    let (blocks, rest) = value[SEQUENCE_BYTES..].as_chunks_mut();
    let last = filler(record, sequence, blocks.len());
    blocks.iter_mut().enumerate().for_each(|(at, block)| *block = filler(record, sequence, at));
    rest.copy_from_slice(&last[..rest.len()]);
}

/// The sequence number of the write that made `value`; `None` if it is not a value of `record` of that many bytes.
pub fn sequence_of(record: u64, value: &[u8], bytes: usize) -> Option<u64> {
    let (sequence, filled) = value.split_first_chunk::<SEQUENCE_BYTES>()?;
    let sequence = u64::from_le_bytes(*sequence);
    let (blocks, rest) = filled.as_chunks();
    let last = filler(record, sequence, blocks.len());
    let whole = blocks.iter().enumerate().all(|(at, block)| *block == filler(record, sequence, at));
    (value.len() == bytes && whole && *rest == last[..rest.len()]).then_some(sequence)
}

/// Block number `at` of the bytes behind the sequence number.
#[inline]
fn filler(record: u64, sequence: u64, at: usize) -> [u8; 8] {
    let seed = mix64(record) ^ mix64(!sequence);
    seed.rotate_left((at % 63) as u32).wrapping_add(at as u64).to_le_bytes()
}
