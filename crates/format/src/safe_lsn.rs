//! The safe LSN of a region in memory of its primary, which backups read by one-sided reads before they answer a read.
//!
//! ```text
//!  line   0                8           16                24       32       64
//!         | readable until | safe LSN  | wall time       | check  | zeroes |       u64 each, little endian
//! ```
//! The line stands for the answer to a question: between a read of the line and the instant `readable until` of the primary's
//! clock, no other node was primary, and the primary had acknowledged nothing beyond the safe LSN that was there when the line
//! was read. A backup bounds the primary's clock as clients of a hash index do ([`ClockSample`](crate::hash_index::ClockSample)).
//!
//! Rules of the primary:
//! - The safe LSN and the wall time are in the line before any answer leaves that shows them.
//! - The instant is no later than the grants that the primary needs, and never falls.
//! - The line ends, with a check of zero, before the region quiesces for a change of its bounds or its primary.
//!
//! A reader may see words of different instants: then the check does not fit, and it reads again. Pure functions; any thread
//! may call them.

use crate::{Lsn, UnixMs, filter};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of a line: a cache line.
pub const SAFE_LSN_LINE_BYTES: usize = 64;
/// Words of a line that are used.
pub const SAFE_LSN_LINE_WORDS: usize = 4;

/// What a line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SafeLsnLine {
    /// Until when, by the primary's clock in nanoseconds, the line counts.
    pub readable_until: u64,
    /// Every acknowledged write has this LSN or a lower one.
    pub lsn: Lsn,
    /// The primary's wall time, by which pairs expire.
    pub wall: UnixMs,
}

impl SafeLsnLine {
    /// Its words as a line with this nonce. The order in which they are stored does not matter.
    pub fn words(self, nonce: u64) -> [u64; SAFE_LSN_LINE_WORDS] {
        let SafeLsnLine { readable_until, lsn, wall } = self;
        let hashed = [nonce, readable_until, lsn.0, wall.0].map(u64::to_le_bytes);
        // Zero is no line's check.
        [readable_until, lsn.0, wall.0, filter::hash(hashed.as_flattened()).max(1)]
    }

    /// Reads the line with this nonce; `None` if the words are not of one instant, or another line's, or it has ended.
    pub fn read(nonce: u64, bytes: &[u8]) -> Option<SafeLsnLine> {
        let [readable_until, lsn, wall, check, ..] = bytes.as_chunks::<8>().0 else { return None };
        let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let line = SafeLsnLine { readable_until: word(readable_until), lsn: Lsn(word(lsn)), wall: UnixMs(word(wall)) };
        let [.., expected] = line.words(nonce);
        (expected == word(check)).then_some(line)
    }
}

/// The right to read a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SafeLsnLineGrant {
    /// Descriptor of the memory at the primary's fabric.
    pub memory: Bytes,
    /// Where the line begins in it, in bytes.
    pub offset: u64,
    /// Nonce of the line. No other line has it.
    pub nonce: u64,
    /// The primary's clock when it answered, in nanoseconds.
    pub clock: u64,
}

#[cfg(test)]
#[path = "safe_lsn_tests.rs"]
mod tests;
