//! Digests of ranges of keys, which prove that two copies hold the same pairs, however their levels came about.
//!
//! A digest covers the live pairs of a range as of one LSN and one instant, both of which the region's primary names.
//! The range is hashed in pieces, with XXH3-128. A piece ends behind the pair with which it has reached
//! [`PIECE_BYTES`], and with the range. Its input is the digest of the pieces before it (16 bytes; zeros for the first
//! piece) and then, for each pair in key order:
//!
//! ```text
//! key bytes u32 | value bytes u32 | LSN u64 | expiry in ms u64, 0: none | key | value        integers: little endian
//! ```
//!
//! So the input of a piece has no second meaning. The digest of the last piece is that of the range; a range without
//! pairs has zeros. A node may stop between two pieces, and go on with another question. Plain data.

use super::MAX_OPERATIONS;
use crate::bounded::at_most;
use crate::{Epoch, Expiry, Lsn, RegionId, UnixMs};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of input with which a piece of a range ends.
pub const PIECE_BYTES: u64 = 256 << 10;

/// Most ranges that a primary cuts its region into.
pub const MOST_RANGES: usize = 4_096;

/// How far ahead of the primary's clock the instant of digests lies, in milliseconds: longer than the comparison of one
/// state takes, and than clocks of servers are apart. Pairs that expire until then are not compared.
pub const DIGEST_AHEAD_MS: u64 = 60_000;

/// The state of a region at one LSN, in one term, without the pairs that have expired by one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestInstant {
    /// Term of the primary that names it.
    pub term: Epoch,
    /// Committed LSN.
    pub lsn: Lsn,
    /// Instant by the wall clock. It lies ahead of the primary's clock, so that no compaction has dropped a pair that
    /// is live then.
    pub now: UnixMs,
}

/// The digest of the live pairs of a range, or of a part of it that ends between two pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeDigest {
    /// Live pairs.
    pub pairs: u64,
    /// XXH3-128 of the last piece, which covers the pieces before; zeros if there are no pairs.
    pub hash: [u8; 16],
    /// The damage that ended the range early, if there was any.
    pub damage: Option<String>,
}

/// A question about consecutive ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeQuestion {
    /// The receiving node must have a copy of it, as primary or not.
    pub region: RegionId,
    /// The state that is asked for.
    pub at: DigestInstant,
    /// Where the first range begins or, if it was begun by an earlier question, goes on.
    pub start: Bytes,
    /// Exclusive ends of the ranges, ascending; `None` for no bound. Each range but the first begins where the one
    /// before ends.
    #[serde(deserialize_with = "at_most::<MAX_OPERATIONS, _, _>")]
    pub ends: Vec<Option<Bytes>>,
    /// The digest of the first range up to `start`; the default if the range begins there.
    pub so_far: RangeDigest,
}

/// The answer to a [`RangeQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RangeAnswer {
    /// The copy does not have that LSN yet, or is not in sync: ask again.
    NotYet,
    /// The copy can no longer show that state, or is of a later term: ask the primary for another state.
    TooLate,
    /// Digests.
    Digests {
        /// Those of the first ranges, one each.
        #[serde(deserialize_with = "at_most::<MAX_OPERATIONS, _, _>")]
        whole: Vec<RangeDigest>,
        /// How far the next range has come: the key to go on with, and the digest up to there. `None`: it was not
        /// begun.
        begun: Option<(Bytes, RangeDigest)>,
    },
    /// The node's clock has passed the instant. So its compactions may have dropped pairs that are live then, or the
    /// comparison has taken too long. Ask the primary for another state.
    InstantPassed,
}

/// Computes the digest of a range, pair by pair.
pub struct RangeHasher {
    state: Xxh3,
    /// Bytes of input in the current piece, without the digest before it.
    bytes: u64,
    so_far: RangeDigest,
}

impl RangeHasher {
    /// Begins a range, or goes on with one behind a piece.
    pub fn new(so_far: RangeDigest) -> RangeHasher {
        let mut hasher = RangeHasher { state: Xxh3::new(), bytes: 0, so_far };
        hasher.begin_piece();
        hasher
    }

    fn begin_piece(&mut self) {
        self.state.reset();
        self.state.update(&self.so_far.hash);
        self.bytes = 0;
    }

    /// Adds the next pair of the range. Returns whether a piece ends behind it.
    pub fn add(&mut self, key: &[u8], lsn: Lsn, expires: Option<Expiry>, value: &[u8]) -> bool {
        let mut head = [0; 24];
        head[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&(value.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&lsn.0.to_le_bytes());
        head[16..].copy_from_slice(&expires.map_or(0, Expiry::ms).to_le_bytes());
        self.state.update(&head);
        self.state.update(key);
        self.state.update(value);
        self.bytes += (head.len() + key.len() + value.len()) as u64;
        // Another node says where a range goes on: its number may be any.
        self.so_far.pairs = self.so_far.pairs.saturating_add(1);
        let ends = self.bytes >= PIECE_BYTES;
        if ends {
            self.end_piece();
        }
        ends
    }

    fn end_piece(&mut self) {
        self.so_far.hash = self.state.digest128().to_le_bytes();
        self.begin_piece();
    }

    /// The digest up to the end of the last piece. A caller stops here only if no pair came since.
    pub fn so_far(&self) -> &RangeDigest {
        &self.so_far
    }

    /// The digest of the range, which ends here.
    pub fn finish(mut self) -> RangeDigest {
        if self.bytes > 0 {
            self.end_piece();
        }
        self.so_far
    }
}

#[cfg(test)]
#[path = "range_digest_tests.rs"]
mod tests;
