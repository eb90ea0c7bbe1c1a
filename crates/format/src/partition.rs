//! How the keys of a table are split among its regions: by ranges of keys, or of their hashes.
//!
//! ```text
//! range   key "orders/7"                 ---------------------> the region whose bounds hold it
//! hash    key "orders/7" -> token 9c4e0a51d3f27b68 (8 bytes) --> the region whose bounds hold that
//! slots   key "orders/7" -> slot 2a17 (2 bytes) ---------------> the region whose bounds hold that
//! ```
//! The bounds of a region are keys, tokens or slots, and are compared byte by byte. Inside a region, pairs are sorted
//! by key in every case. [Slots](crate::slot) are tokens of 14 bits, made by another hash.
//!
//! Invariant: the token or slot of a key depends on the key alone, and never changes. Plain data; any thread may use
//! it.

use crate::slot::{SLOTS, slot_of};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Deref, RangeInclusive};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How many tokens a table may have. Each is a region.
pub const TOKENS: RangeInclusive<u32> = 1..=16 * 1024;
/// Tokens of a table that does not say how many.
pub const DEFAULT_TOKENS: u32 = 16;

/// The seed makes tokens independent of the hashes in filters. Otherwise the filter hashes of a region's keys would all
/// begin alike, and its filters would be of little use.
const TOKEN_SEED: u64 = 0x7c67_1e5a_0b6d_94f3;

/// How the region of a key is determined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Partition {
    /// By the key: a region has the keys from its start up to its end, and can be split.
    #[default]
    Range,
    /// By its token: every region has an equal part of all tokens, and is never split.
    Hash {
        /// Regions of the table.
        tokens: u32,
    },
    /// By its Redis hash [slot](crate::slot): every region has an equal part of all slots, and is never split. Redis
    /// clients in cluster mode find the primaries by themselves.
    Slots {
        /// Regions of the table.
        tokens: u32,
    },
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partition::Range => f.pad("range"),
            Partition::Hash { tokens } => write!(f, "hash, {tokens} tokens"),
            Partition::Slots { tokens } => write!(f, "slots, {tokens} tokens"),
        }
    }
}

impl Partition {
    /// Whether its regions are ranges of tokens or slots, which are hashes, not of keys.
    pub fn is_hash(self) -> bool {
        self.tokens().is_some()
    }

    /// Whether its regions are ranges of Redis hash slots.
    pub fn is_slots(self) -> bool {
        matches!(self, Partition::Slots { .. })
    }

    /// Regions of the table, if their number does not change; `None` for [`Partition::Range`].
    pub fn tokens(self) -> Option<u32> {
        match self {
            Partition::Range => None,
            Partition::Hash { tokens } | Partition::Slots { tokens } => Some(tokens),
        }
    }

    /// The same partition with so many regions, where their number does not change.
    #[must_use]
    pub fn with_tokens(self, tokens: u32) -> Partition {
        match self {
            Partition::Range => Partition::Range,
            Partition::Hash { .. } => Partition::Hash { tokens },
            Partition::Slots { .. } => Partition::Slots { tokens },
        }
    }

    /// The place of a key among the bounds of regions.
    pub fn place(self, key: &[u8]) -> PartitionPlace<'_> {
        match self {
            Partition::Range => PartitionPlace::Key(key),
            Partition::Hash { .. } => PartitionPlace::Token(token(key).to_be_bytes()),
            Partition::Slots { .. } => PartitionPlace::Slot(slot_of(key).to_be_bytes()),
        }
    }

    /// How many different hashes there are; 1 for [`Partition::Range`].
    fn space(self) -> u128 {
        match self {
            Partition::Range => 1,
            Partition::Hash { .. } => 1 << 64,
            Partition::Slots { .. } => SLOTS.into(),
        }
    }

    /// The first tokens or slots of all regions but the first; none for [`Partition::Range`].
    pub fn splits(self) -> impl Iterator<Item = Bytes> {
        let tokens = self.tokens().unwrap_or(1);
        (1..tokens).map(move |index| {
            let first = u128::from(index) * self.space() / u128::from(tokens);
            match self {
                Partition::Slots { .. } => Bytes::copy_from_slice(&(first as u16).to_be_bytes()),
                Partition::Range | Partition::Hash { .. } => Bytes::copy_from_slice(&(first as u64).to_be_bytes()),
            }
        })
    }

    /// A bound of a region as text: a key by `text`, a token as `#` and its hexadecimal digits, a slot as `slot 5461`.
    /// The first region's start is the empty key in every case.
    pub fn bound_text(self, bound: &[u8], text: impl Fn(&[u8]) -> String) -> String {
        match self {
            Partition::Hash { .. } if !bound.is_empty() => {
                std::iter::once("#".to_owned()).chain(bound.iter().map(|byte| format!("{byte:02x}"))).collect()
            }
            Partition::Slots { .. } if !bound.is_empty() => format!("slot {}", slot_at(Some(bound))),
            _ => text(bound),
        }
    }

    /// Index, from 0, of the region that begins at the token or slot `start`; `None` for [`Partition::Range`].
    pub fn token_index(self, start: &[u8]) -> Option<u32> {
        let first: u128 = match self {
            Partition::Range => return None,
            Partition::Hash { .. } => <[u8; 8]>::try_from(start).map_or(0, u64::from_be_bytes).into(),
            Partition::Slots { .. } => slot_at(Some(start)).into(),
        };
        Some((first * u128::from(self.tokens()?)).div_ceil(self.space()) as u32)
    }
}

/// The slot that a bound of a region of [`Partition::Slots`] is at. An empty bound is before the first slot, and none is
/// behind the last.
pub fn slot_at(bound: Option<&[u8]>) -> u16 {
    match bound {
        Some(bound) => <[u8; 2]>::try_from(bound).map_or(0, u16::from_be_bytes).min(SLOTS),
        None => SLOTS,
    }
}

/// The token of a key.
fn token(key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, TOKEN_SEED)
}

/// The place of a key among the bounds of regions: bytes that are compared with the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionPlace<'a> {
    /// The key itself.
    Key(&'a [u8]),
    /// Its token, big endian.
    Token([u8; 8]),
    /// Its slot, big endian.
    Slot([u8; 2]),
}

impl Deref for PartitionPlace<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            PartitionPlace::Key(key) => key,
            PartitionPlace::Token(token) => token,
            PartitionPlace::Slot(slot) => slot,
        }
    }
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod tests;
