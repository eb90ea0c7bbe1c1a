//! The entries of a scan, packed into one block. The node that finds them writes the block once. It is sent and kept as
//! it is, and decoded only by a reader that wants a key or a value.
//!
//! ```text
//!  0              2                6
//!  | key bytes u16 | value bytes u32 | key | value |   and so on, without a gap
//! ```
//! Numbers are little-endian. In a message the number of entries precedes the block, see `docs/formats/op.md`. An
//! [`Entries`] always holds whole entries: the block of a peer is checked once when it is decoded. Pure functions; any
//! thread may call them.

use crate::{DecodeError, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

const WHAT: &str = "entries";
const HEADER_BYTES: usize = 6;

/// Keys with values, in the order of a scan. Clones share the block.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Entries {
    count: u32,
    block: Bytes,
}

/// A block from a peer, not checked yet.
#[derive(Deserialize)]
struct Unchecked {
    count: u32,
    block: Bytes,
}

impl TryFrom<Unchecked> for Entries {
    type Error = DecodeError;

    fn try_from(Unchecked { count, block }: Unchecked) -> Result<Entries, DecodeError> {
        let (mut at, mut found) = (0, 0);
        while at < block.len() {
            let next = Lengths::read(&block, at).and_then(|lengths| lengths.end(at).filter(|end| *end <= block.len()));
            at = next.ok_or_else(|| DecodeError::invalid(WHAT, format!("entry {found} is out of bounds")))?;
            found += 1;
        }
        if found != count {
            return Err(DecodeError::invalid(WHAT, format!("{found} entries where {count} are announced")));
        }
        Ok(Entries { count, block })
    }
}

impl Entries {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of keys and values.
    pub fn payload_bytes(&self) -> usize {
        self.block.len() - self.len() * HEADER_BYTES
    }

    /// Bytes of the block, headers included: the room that the entries need in a message.
    pub fn block_bytes(&self) -> usize {
        self.block.len()
    }

    /// Keys and values, in place.
    pub fn iter(&self) -> Iter<'_> {
        Iter { block: &self.block, at: 0 }
    }

    /// Keys and values that share the block, which stays in memory as long as any of them.
    pub fn shared(&self) -> impl Iterator<Item = (Bytes, Bytes)> + '_ {
        self.iter().map(|(key, value)| (self.block.slice_ref(key), self.block.slice_ref(value)))
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(K, V)> for Entries {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Entries {
        let mut builder = EntriesBuilder::default();
        for (key, value) in entries {
            builder.push(key.as_ref(), value.as_ref());
        }
        builder.finish()
    }
}

impl<'a> IntoIterator for &'a Entries {
    type Item = (&'a [u8], &'a [u8]);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.shared()).finish()
    }
}

/// Keys and values of [`Entries`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let lengths = Lengths::read(self.block, self.at)?;
        let entry = &self.block[self.at + HEADER_BYTES..][..lengths.key + lengths.value];
        self.at += HEADER_BYTES + entry.len();
        Some(entry.split_at(lengths.key))
    }
}

/// The header of an entry.
struct Lengths {
    key: usize,
    value: usize,
}

impl Lengths {
    #[inline]
    fn read(block: &[u8], at: usize) -> Option<Lengths> {
        let header = block.get(at..)?.first_chunk::<HEADER_BYTES>()?;
        let key = u16::from_le_bytes([header[0], header[1]]);
        let value = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
        Some(Lengths { key: key.into(), value: value as usize })
    }

    fn end(&self, at: usize) -> Option<usize> {
        at.checked_add(HEADER_BYTES + self.key)?.checked_add(self.value)
    }
}

/// The place of a value that is filled in after its entry was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    key_at: u32,
    value_at: u32,
    value_bytes: u32,
}

/// Packs entries.
#[derive(Debug, Default)]
pub struct EntriesBuilder {
    count: u32,
    block: Vec<u8>,
}

impl EntriesBuilder {
    /// Appends an entry.
    ///
    /// # Panics
    /// If the key or the value is longer than a record takes: that is a bug of the caller.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.begin(key, value.len());
        self.block.extend_from_slice(value);
    }

    /// Appends an entry whose value of `value_bytes` is still missing: zeroes stand for it until it is filled in.
    ///
    /// # Panics
    /// As [`EntriesBuilder::push`].
    pub fn push_gap(&mut self, key: &[u8], value_bytes: u32) -> Gap {
        self.begin(key, value_bytes as usize);
        let value_at = self.block.len();
        self.block.resize(value_at + value_bytes as usize, 0);
        Gap { key_at: (value_at - key.len()) as u32, value_at: value_at as u32, value_bytes }
    }

    #[inline]
    fn begin(&mut self, key: &[u8], value_bytes: usize) {
        assert!(key.len() <= MAX_KEY_BYTES && value_bytes <= MAX_VALUE_BYTES, "no record is that long");
        self.block.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.block.extend_from_slice(&(value_bytes as u32).to_le_bytes());
        self.block.extend_from_slice(key);
        self.count += 1;
    }

    /// Key and value of a gap of this builder.
    pub fn gap(&mut self, gap: Gap) -> (&[u8], &mut [u8]) {
        let (before, value) = self.block.split_at_mut(gap.value_at as usize);
        (&before[gap.key_at as usize..], &mut value[..gap.value_bytes as usize])
    }

    /// Number of entries so far.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of keys and values so far.
    pub fn payload_bytes(&self) -> usize {
        self.block.len() - self.len() * HEADER_BYTES
    }

    /// All that were appended, in their order.
    pub fn finish(self) -> Entries {
        Entries { count: self.count, block: self.block.into() }
    }
}

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
