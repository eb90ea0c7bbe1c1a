//! The reader of a table, as a machine without effects: the client and the simulation run the same.
//!
//! ```text
//!  begin --> Read bucket --> Read record --> Found
//!               ^  ^ link ------'  | not whole: another try, from the home bucket
//!               '------------------'
//!  Ask: the key is not in the grant, not in the table, or changes all the time. The client sends a request instead.
//! ```
//! Invariants:
//! - Absence is never an answer (rule W3): the key may be in no table, too long for it, or may expire.
//! - A value is returned only if record, CRC, tag and key agree (rule R1). After [`TRIES`] tries the reader asks.
//! - The number of reads is bounded, and each is within the grant, whatever bytes it is fed.
//!
//! A value counts only after the [lease](super::ClockSample) was looked at, after the last read (rule R2). One caller at
//! a time.

use super::{
    BUCKET_SLOTS, BytesToRead, Grant, LINE_BYTES, Line, MAX_CHAIN_BUCKETS, Record, RecordPlace, Slot, WORD_BYTES,
    fingerprint, home_bucket, tag,
};
use crate::{Lsn, filter};
use std::borrow::Borrow;

/// Tries of a reader (rule R1).
pub const TRIES: u8 = 3;

/// Why the client must ask the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The key is not within the grant's bounds.
    OutOfBounds,
    /// The key is not in the table. It may well exist.
    Absent,
    /// No try found bucket and record in agreement: the pair is being written, or the table is damaged.
    Changing,
    /// A slot or a link leads to lines that are not granted: the table has grown. Ask for a new grant, too.
    NotGranted,
    /// The chain has more buckets than [`MAX_CHAIN_BUCKETS`], which no writer makes.
    LongChain,
}

/// What is to be done next. `'a`: the bytes that the reader was fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a, G, K> {
    /// Read [`Reader::place`], and feed the bytes to the reader.
    Read(Reader<G, K>),
    /// The newest version of the key at some instant since the reader began, if the lease says so.
    Found {
        /// Its LSN.
        lsn: Lsn,
        /// Borrowed from the bytes that the reader was fed.
        value: &'a [u8],
    },
    /// Ask the primary.
    Ask(Reason),
}

/// A look-up of one key, between two reads. `G` is a [`Grant`] or leads to one; `K` has the bytes of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader<G, K> {
    grant: G,
    key: K,
    progress: Progress,
}

/// How far a look-up has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Progress {
    /// Hash of the key.
    hash: u64,
    /// Tries so far, this one included.
    tries: u8,
    /// Buckets of the chain in this try, this one included.
    buckets: u8,
    /// What is read next.
    place: BytesToRead,
    wanted: NextRead,
}

/// What is at the place that is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NextRead {
    Bucket,
    /// The record that the slot `index` of the bucket `words` leads to.
    Record {
        words: [u64; BUCKET_SLOTS + 1],
        index: usize,
    },
}

impl<G: Borrow<Grant>, K: AsRef<[u8]>> Reader<G, K> {
    /// Begins to look for `key`.
    pub fn begin(grant: G, key: K) -> Step<'static, G, K> {
        if !grant.borrow().contains(key.as_ref()) {
            return Step::Ask(Reason::OutOfBounds);
        }
        let place = BytesToRead { memory: 0, offset: 0, bytes: 0 };
        let hash = filter::hash(key.as_ref());
        let progress = Progress { hash, tries: 0, buckets: 0, place, wanted: NextRead::Bucket };
        Reader { grant, key, progress }.try_again()
    }

    /// What it wants to read.
    pub fn place(&self) -> BytesToRead {
        self.progress.place
    }

    /// The record that it wants to read there; `None` if that is a bucket.
    pub fn record_line(&self) -> Option<Line> {
        let NextRead::Record { words, index } = self.progress.wanted else { return None };
        words.get(index).copied().and_then(Slot::from_word).map(|slot| slot.line)
    }

    /// Tries so far, the present one included: 1 to [`TRIES`].
    pub fn tries(&self) -> u8 {
        self.progress.tries
    }

    /// Goes on with what was read at [`Reader::place`]. The words of `bytes` may be of different instants, all of them
    /// after the last step.
    pub fn feed(self, bytes: &[u8]) -> Step<'_, G, K> {
        if bytes.len() != self.progress.place.bytes as usize {
            return self.try_again();
        }
        match self.progress.wanted {
            NextRead::Bucket => {
                let mut words = [0; BUCKET_SLOTS + 1];
                for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<WORD_BYTES>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
                self.next_record(words, 0)
            }
            NextRead::Record { words, index } => self.take_record(words, index, bytes),
        }
    }

    /// Goes on with the record that the slot `index` led to.
    fn take_record(self, words: [u64; BUCKET_SLOTS + 1], index: usize, bytes: &[u8]) -> Step<'_, G, K> {
        let slot = words.get(index).copied().and_then(Slot::from_word);
        let record = slot.and_then(|slot| {
            let place = RecordPlace { nonce: self.grant.borrow().nonce, line: slot.line };
            Record::read(place, bytes).filter(|record| tag(record.lsn) == slot.tag)
        });
        match record {
            Some(Record { lsn, key, value }) if key == self.key.as_ref() => Step::Found { lsn, value },
            Some(_) => self.next_record(words, index + 1),
            None => self.try_again(),
        }
    }

    /// Goes on with the next slot, from `index` on, that may be the key's, or with the next bucket.
    fn next_record<'a>(mut self, words: [u64; BUCKET_SLOTS + 1], index: usize) -> Step<'a, G, K> {
        let wanted = fingerprint(self.progress.hash);
        let (slots, link) = words.split_at(BUCKET_SLOTS);
        for (index, word) in slots.iter().enumerate().skip(index) {
            let Some(slot) = Slot::from_word(*word).filter(|slot| slot.fingerprint == wanted) else { continue };
            let Some(place) = self.grant.borrow().record_place(slot.line, slot.lines) else {
                return Step::Ask(Reason::NotGranted);
            };
            self.progress.place = place;
            self.progress.wanted = NextRead::Record { words, index };
            return Step::Read(self);
        }
        match link.first().copied().map(u32::try_from) {
            None | Some(Ok(0)) => Step::Ask(Reason::Absent),
            Some(_) if self.progress.buckets == MAX_CHAIN_BUCKETS => Step::Ask(Reason::LongChain),
            Some(Ok(next)) => self.read_bucket(Line(next)),
            Some(Err(_)) => Step::Ask(Reason::NotGranted),
        }
    }

    /// Begins another try, unless there were enough.
    fn try_again<'a>(mut self) -> Step<'a, G, K> {
        if self.progress.tries == TRIES {
            return Step::Ask(Reason::Changing);
        }
        self.progress.tries += 1;
        self.progress.buckets = 0;
        let home = home_bucket(self.progress.hash, self.grant.borrow().buckets);
        self.read_bucket(home)
    }

    fn read_bucket<'a>(mut self, line: Line) -> Step<'a, G, K> {
        let Some(place) = self.grant.borrow().bucket_place(line) else { return Step::Ask(Reason::NotGranted) };
        debug_assert_eq!(place.bytes as usize, LINE_BYTES, "a bucket is a line");
        self.progress.buckets += 1;
        self.progress.place = place;
        self.progress.wanted = NextRead::Bucket;
        Step::Read(self)
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
