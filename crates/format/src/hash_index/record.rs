//! The record of a pair in the table: its newest committed version.
//!
//! ```text
//!  0     8        12          14            16
//!  | LSN | crc32c | key bytes | value bytes | key | value | zeroes up to a multiple of 8 |
//!  | u64 | u32    | u16       | u16         |
//! ```
//! The CRC covers LSN, both lengths, key and value. It is seeded with [`RecordPlace`]. So a record of another table, of
//! another place, or of two versions in part, does not pass, but for a chance of 2^-32. A first word of 0 poisons a
//! record: LSN 0 is no version's.
//!
//! Pairs that expire are not in the table, so a record has no expiry. Pure functions; any thread may call them.

use super::{LINE_BYTES, Line, MAX_CLASS_LINES, WORD_BYTES};
use crate::{Lsn, MAX_KEY_BYTES, MIN_KEY_BYTES};

/// Bytes of a record before its key.
pub const RECORD_HEADER_BYTES: usize = 16;
/// Longest record, in bytes: 16 KiB. Pairs that need more are not in the table.
pub const MAX_RECORD_BYTES: usize = MAX_CLASS_LINES as usize * LINE_BYTES;

/// The place of a record, which its CRC is seeded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// [Nonce](super::GrantFields::nonce) of the table.
    pub nonce: u64,
    /// Where the record begins.
    pub line: Line,
}

/// One version of a key, in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// LSN of the version, not 0.
    pub lsn: Lsn,
    /// 1 to [`MAX_KEY_BYTES`] bytes.
    pub key: &'a [u8],
    /// As much as fits into [`MAX_RECORD_BYTES`] with header and key.
    pub value: &'a [u8],
}

/// Lines of the record of a pair with these lengths in bytes; `None` if it is too long for the table, or there is no
/// such key.
pub fn record_lines(key: usize, value: usize) -> Option<u16> {
    if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&key) || value > MAX_RECORD_BYTES {
        return None;
    }
    let lines = (RECORD_HEADER_BYTES + key + value).div_ceil(LINE_BYTES);
    u16::try_from(lines).ok().filter(|lines| *lines <= MAX_CLASS_LINES)
}

/// The LSN and the key of a record in the writer's own memory, from its first bytes: header and key, at least. Nothing is
/// checked: the writer knows what it has written. `None` if it is poisoned, or longer than `bytes`.
pub fn written(bytes: &[u8]) -> Option<(Lsn, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let (lsn, [_, _, _, _, key_low, key_high, _, _]) = header.split_first_chunk::<8>()? else { return None };
    let lsn = Lsn(u64::from_le_bytes(*lsn));
    let key = rest.get(..usize::from(u16::from_le_bytes([*key_low, *key_high])))?;
    (lsn != Lsn(0)).then_some((lsn, key))
}

impl RecordPlace {
    fn crc(self, parts: [&[u8]; 4]) -> u32 {
        let seed = crc32c::crc32c_append(crc32c::crc32c(&self.nonce.to_le_bytes()), &self.line.0.to_le_bytes());
        parts.into_iter().fold(seed, crc32c::crc32c_append)
    }
}

impl<'a> Record<'a> {
    /// Appends its words to `out`, which becomes a multiple of 8 longer. The record must fit ([`record_lines`]).
    pub fn append_to(&self, place: RecordPlace, out: &mut Vec<u8>) {
        debug_assert!(record_lines(self.key.len(), self.value.len()).is_some(), "the caller has looked");
        debug_assert!(self.lsn != Lsn(0), "a version has an LSN");
        let start = out.len();
        let lsn = self.lsn.0.to_le_bytes();
        let [key_low, key_high] = (self.key.len() as u16).to_le_bytes();
        let [value_low, value_high] = (self.value.len() as u16).to_le_bytes();
        let lengths = [key_low, key_high, value_low, value_high];
        let crc = place.crc([&lsn, &lengths, self.key, self.value]);
        out.extend_from_slice(&lsn);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&lengths);
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.value);
        out.resize(start + (out.len() - start).next_multiple_of(WORD_BYTES), 0);
    }

    /// The record at `place`, from a copy of exactly its lines; `None` if it is poisoned, torn, or another record than
    /// the one that has these lines.
    #[inline]
    pub fn read(place: RecordPlace, bytes: &'a [u8]) -> Option<Record<'a>> {
        let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
        let (lsn, header) = header.split_first_chunk::<8>()?;
        let (crc, lengths) = header.split_first_chunk::<4>()?;
        let [key_low, key_high, value_low, value_high] = *lengths.first_chunk::<4>()?;
        if *lsn == [0; 8] {
            return None;
        }
        let (key, value) = (u16::from_le_bytes([key_low, key_high]), u16::from_le_bytes([value_low, value_high]));
        let (key, value) = (usize::from(key), usize::from(value));
        if record_lines(key, value).is_none_or(|lines| usize::from(lines) * LINE_BYTES != bytes.len()) {
            return None;
        }
        let (key, rest) = rest.split_at_checked(key)?;
        let (value, _) = rest.split_at_checked(value)?;
        let is_whole = u32::from_le_bytes(*crc) == place.crc([lsn, lengths, key, value]);
        is_whole.then_some(Record { lsn: Lsn(u64::from_le_bytes(*lsn)), key, value })
    }
}
