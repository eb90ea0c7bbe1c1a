//! The hash table that a primary keeps in memory, and that clients read by one-sided reads (HiStore 4.1): its bytes,
//! the order in which the primary writes them, and the reader.
//!
//! ```text
//!  address space   | line 0 | line 1 | ...                  a line: 64 bytes
//!  buckets         | home bucket 0 | home bucket 1 | ...    from line 0 on; overflow buckets and records behind them
//!
//!  bucket    0        8             56      64
//!            | slot 0 | ... | slot 6 | link |
//!  slot      63          52 51  40 39       32 31   0
//!            | fingerprint | tag | lines - 1  | line |       0: empty
//!  link      63 32 31   0
//!            | 0  | line |                                   of the next bucket of the chain; 0: there is none
//!  record    0     8        12          14            16
//!            | LSN | crc32c | key bytes | value bytes | key | value | zeroes up to a multiple of 8 |
//!            | u64 | u32    | u16       | u16         |
//!            '- first word: 0 in a poisoned record
//! ```
//! All little endian. A record begins at a line. Its CRC covers all but itself and the zeroes. It is seeded with the
//! table's nonce and the record's line. The key hash is that of [`crate::filter::hash`].
//!
//! **What readers rely on.** Aligned words are atomic, and nothing else is: the words of one read come in any order, and
//! the writer may be anywhere between two words. One thread writes a table, one word after the other ([`publish`]):
//! 1. A key has at most one slot. A slot is changed in place or cleared. It never moves.
//! 2. A new version is written as slot, then record, its first word last. So a record becomes valid only when no reader
//!    that begins then can find an older version of its key.
//! 3. Then the first word of the old record is zeroed, which poisons it. Space is reused only after that. So the space
//!    that a slot leads to never holds a valid record that is older than the slot.
//! 4. A version that leaves the table has its slot cleared, then its record poisoned.
//! 5. A line holds a bucket or a record of one size class for the life of the table.
//!
//! From these rules it follows that a [`Reader`] returns what the key had at some instant between its first and its
//! last read. `reader_tests.rs` runs every schedule of small tables to show it, and that rules 2 and 3 are needed.
//! That a slot has the *tag* of its version, 12 bits of the LSN, is a second barrier, and saves a read of most records
//! that are not meant.
//!
//! Pure functions over hostile bytes; any thread may call them.

mod grant;
mod lease;
mod publish;
mod reader;
mod record;

pub use grant::{BytesToRead, Content, Extent, Grant, GrantFields, MAX_DESCRIPTOR_BYTES, MAX_EXTENTS};
pub use lease::{BOARD_BYTES, Board, CLOCK_DRIFT_PERCENT, ClockSample};
pub use publish::{SlotPlace, WordWrite, clear, link, publish};
pub use reader::{Reader, Reason, Step, TRIES};
pub use record::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES, Record, RecordPlace, record_lines, written};

use crate::Lsn;
use serde::{Deserialize, Serialize};

/// Bytes of a line: the unit of addresses, and a bucket.
pub const LINE_BYTES: usize = 64;
/// Bytes of a word, the unit that is written and read as a whole.
pub const WORD_BYTES: usize = 8;
/// Slots of a bucket (HiStore 4.1). The last word is the link.
pub const BUCKET_SLOTS: usize = 7;
/// Most buckets of a chain, its home bucket included. A writer that finds all of them full leaves a key out.
pub const MAX_CHAIN_BUCKETS: u8 = 4;
/// Largest size class of records, in lines: 16 KiB.
pub const MAX_CLASS_LINES: u16 = 256;

/// Bits of the tag and of the fingerprint.
const BITS: u32 = 12;
const MASK: u64 = (1 << BITS) - 1;
const TAG_SHIFT: u32 = 40;
const LINES_SHIFT: u32 = 32;
const FINGERPRINT_SHIFT: u32 = TAG_SHIFT + BITS;

/// A line of the table's address space, of [`LINE_BYTES`]. [`Extent`]s say which memory it is in. Line 0 is the first
/// home bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Line(pub u32);

impl Line {
    /// Offset of its `word`, 0 to 7 in a bucket, in the address space, in bytes.
    pub fn word_at(self, word: usize) -> u64 {
        u64::from(self.0) * LINE_BYTES as u64 + (word * WORD_BYTES) as u64
    }
}

/// The home bucket of a key with this hash, in a table with this many home buckets.
#[inline]
pub fn home_bucket(hash: u64, buckets: u32) -> Line {
    Line((((hash >> 32) * u64::from(buckets)) >> 32) as u32)
}

/// The fingerprint of a key with this hash: 12 bits, of which the home bucket does not depend.
#[inline]
pub fn fingerprint(hash: u64) -> u16 {
    (hash & MASK) as u16
}

/// The tag of the version with this LSN: its low 12 bits.
#[inline]
pub fn tag(lsn: Lsn) -> u16 {
    (lsn.0 & tag_mask()) as u16
}

#[cfg(not(feature = "narrow-tags"))]
const fn tag_mask() -> u64 {
    MASK
}

#[cfg(feature = "narrow-tags")]
thread_local! {
    static TAG_MASK: std::cell::Cell<u64> = const { std::cell::Cell::new(MASK) };
}

#[cfg(feature = "narrow-tags")]
fn tag_mask() -> u64 {
    TAG_MASK.get()
}

/// For tests: from now on a tag has only so many bits of the LSN on this thread, so that tags of different versions are
/// often equal.
#[cfg(feature = "narrow-tags")]
pub fn narrow_tags(bits: u32) {
    TAG_MASK.set((1 << bits.min(BITS)) - 1);
}

/// A slot that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// [`fingerprint`] of the key.
    pub fingerprint: u16,
    /// [`tag`] of the version.
    pub tag: u16,
    /// Length of the record in lines, 1 to [`MAX_CLASS_LINES`].
    pub lines: u16,
    /// Where the record begins. Not line 0, which is a bucket.
    pub line: Line,
}

impl Slot {
    /// Decodes a word; `None` for an empty slot. Every word that leads to line 0 is one.
    #[inline]
    pub fn from_word(word: u64) -> Option<Slot> {
        let line = Line(word as u32);
        let slot = Slot {
            fingerprint: (word >> FINGERPRINT_SHIFT) as u16,
            tag: (word >> TAG_SHIFT & MASK) as u16,
            lines: (word >> LINES_SHIFT & 0xff) as u16 + 1,
            line,
        };
        (line.0 != 0).then_some(slot)
    }

    /// [`Slot::from_word`] reads it back. It is never that of an empty slot.
    #[inline]
    pub fn word(self) -> u64 {
        debug_assert!(self.line.0 != 0, "line 0 is a bucket");
        debug_assert!((1..=MAX_CLASS_LINES).contains(&self.lines), "a record has lines, and at most those of a class");
        u64::from(self.fingerprint) << FINGERPRINT_SHIFT
            | u64::from(self.tag) << TAG_SHIFT
            | u64::from(self.lines - 1) << LINES_SHIFT
            | u64::from(self.line.0)
    }
}

#[cfg(test)]
mod tests;
