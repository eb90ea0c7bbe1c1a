//! How the keys of a table are split among its regions: by ranges of keys, or of their hashes.
//!
//! ```text
//! range   key "orders/7"                 ---------------------> the region whose bounds hold it
//! hash    key "orders/7" -> token 9c4e0a51d3f27b68 (8 bytes) --> the region whose bounds hold that
//! ```
//! The bounds of a region are keys in the one case and tokens in the other; both are compared byte by byte. Inside a region pairs
//! lie by key, whatever its bounds are.
//!
//! Invariant: the token of a key depends on the key alone, and never changes. Plain data; any thread may use it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Deref, RangeInclusive};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How many tokens a table may have, each of them a region.
pub const TOKENS: RangeInclusive<u32> = 1..=16 * 1024;
/// Tokens of a table that does not say how many.
pub const DEFAULT_TOKENS: u32 = 16;

/// Other hashes of keys have no seed: the filters of a region would be of little use if all of its keys began alike in them.
const TOKEN_SEED: u64 = 0x7c67_1e5a_0b6d_94f3;

/// What of keys decides about their region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Partition {
    /// The keys themselves: a region has those from its start up to its end, and can become two.
    #[default]
    Range,
    /// Their tokens: a region has the same part of all tokens as every other, and stays one.
    Hash {
        /// Regions of the table.
        tokens: u32,
    },
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partition::Range => f.pad("range"),
            Partition::Hash { tokens } => write!(f, "hash, {tokens} tokens"),
        }
    }
}

impl Partition {
    /// Its regions are parts of the tokens, not of the keys.
    pub fn is_hash(self) -> bool {
        matches!(self, Partition::Hash { .. })
    }

    /// Where a key lies among the bounds of regions.
    pub fn place(self, key: &[u8]) -> Place<'_> {
        match self {
            Partition::Range => Place::Key(key),
            Partition::Hash { .. } => Place::Token(token(key).to_be_bytes()),
        }
    }

    /// The first tokens of the regions after the first; none of a table that is split by keys.
    pub fn splits(self) -> impl Iterator<Item = Bytes> {
        let tokens = match self {
            Partition::Range => 1,
            Partition::Hash { tokens } => tokens,
        };
        (1..tokens).map(move |index| {
            let first = (u128::from(index) << 64) / u128::from(tokens);
            Bytes::copy_from_slice(&(first as u64).to_be_bytes())
        })
    }

    /// A bound of a region, to be read: a key as `text` says, a token as `#` and its hexadecimal digits. The first region's start
    /// is empty in either case.
    pub fn bound_text(self, bound: &[u8], text: impl Fn(&[u8]) -> String) -> String {
        match self {
            Partition::Hash { .. } if !bound.is_empty() => {
                std::iter::once("#".to_owned()).chain(bound.iter().map(|byte| format!("{byte:02x}"))).collect()
            }
            _ => text(bound),
        }
    }

    /// Which of the regions of a table with tokens begins at `start`, counted from 0; `None`: the table has none.
    pub fn token_index(self, start: &[u8]) -> Option<u32> {
        let Partition::Hash { tokens } = self else { return None };
        let first = <[u8; 8]>::try_from(start).map_or(0, u64::from_be_bytes);
        Some((u128::from(first) * u128::from(tokens)).div_ceil(1 << 64) as u32)
    }
}

/// The token of a key.
fn token(key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, TOKEN_SEED)
}

/// Where a key lies among the bounds of regions: bytes that are compared with those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// By itself.
    Key(&'a [u8]),
    /// By its token.
    Token([u8; 8]),
}

impl Deref for Place<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Place::Key(key) => key,
            Place::Token(token) => token,
        }
    }
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod tests;
