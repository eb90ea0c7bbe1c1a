//! The order in which a primary writes a table, one word after the other (rule W2).
//!
//! ```text
//!  publish   slot | record, second word to last | first word | first word of the old record := 0
//!  clear     slot := 0 | first word of the record := 0
//! ```
//! **Why the slot comes first.** A reader may have read the same slot long ago, when it led to an earlier version of the
//! key in the same space. If the record became valid before the slot led to it, that reader would return the new
//! version, and the next reader the old one, which the slot still leads to. So no reader may find a record before all
//! of them do. **Why the old record is poisoned before its space is used again.** The slot comes first, so the space
//! that it leads to must not hold a valid record: it might be an earlier version of the same key.
//!
//! The old record may stay valid until the new one is: only readers that have read the slot before find it, and they
//! began before the new version was visible to anyone.
//!
//! A caller writes the words in this order, so that each is visible before the next (stores with release ordering on the
//! primary's memory do). It may stop between two. It uses the space of a record again only after the last word of the
//! step that poisons it. Space that was never used is zeroed.
//!
//! Pure functions, of the one thread that writes a table.

use super::{BUCKET_SLOTS, Line, Slot, WORD_BYTES};

/// The write of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordWrite {
    /// Offset in the table's address space, in bytes, a multiple of 8.
    pub at: u64,
    /// The word, which is stored little endian.
    pub word: u64,
}

/// The place of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotPlace {
    /// Line that holds the bucket.
    pub bucket: Line,
    /// Its index there, below [`BUCKET_SLOTS`].
    pub index: u8,
}

impl SlotPlace {
    fn write(self, word: u64) -> WordWrite {
        debug_assert!(usize::from(self.index) < BUCKET_SLOTS, "behind the slots is the link");
        WordWrite { at: self.bucket.word_at(self.index.into()), word }
    }
}

/// The writes that publish a version of a key: `slot` is its slot from now on, at `place`, and `record` the words that
/// [`Record::append_to`](super::Record::append_to) made for the slot's line. `old` is where the record of the version
/// before begins, if the table has that.
pub fn publish<'a>(
    place: SlotPlace,
    slot: Slot,
    record: &'a [u8],
    old: Option<Line>,
) -> impl Iterator<Item = WordWrite> + 'a {
    debug_assert!(old != Some(slot.line), "a record is never overwritten");
    let words = record.as_chunks::<WORD_BYTES>().0.iter().enumerate();
    let mut words = words.map(move |(i, word)| WordWrite { at: slot.line.word_at(i), word: u64::from_le_bytes(*word) });
    let first = words.next();
    std::iter::once(place.write(slot.word())).chain(words).chain(first).chain(old.map(poison))
}

/// The writes that take a version out of the table: its slot is at `place`, its record at `record`.
pub fn clear(place: SlotPlace, record: Line) -> [WordWrite; 2] {
    [place.write(0), poison(record)]
}

/// The write that makes `next` the next bucket after `bucket`, the last of its chain. `next` is zeroed; the first slot
/// of it is written after this. A bucket stays in its chain for the life of the table.
pub fn link(bucket: Line, next: Line) -> WordWrite {
    WordWrite { at: bucket.word_at(BUCKET_SLOTS), word: next.0.into() }
}

fn poison(record: Line) -> WordWrite {
    WordWrite { at: record.word_at(0), word: 0 }
}
