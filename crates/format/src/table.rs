//! Names of tables, new tables, changes of tables, and checks of their options. Plain data; any thread.
//!
//! Invariant: a [`TableName`] passes [`check_table_name`], even if it was decoded.

use crate::MAX_KEY_BYTES;
use crate::cluster::{Acknowledge, BackupMode, IndexKind, Posting, ReadPaths, Reads, Scans, TableOptions};
use crate::packed::Codec;
use crate::partition::TOKENS;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::ops::{Deref, RangeInclusive};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

/// The table that is made with the cluster. Operations that name no table go to it.
pub const DEFAULT_TABLE: &str = "default";
/// Longest name, in bytes.
pub const MAX_TABLE_NAME_BYTES: usize = 64;
/// Most regions that a table can be made with.
pub const MAX_NEW_REGIONS: usize = 16 * 1024;
/// Allowed values of a table's `l0_bytes`.
pub const L0_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 30;
/// Allowed values of a table's `growth_factor`.
pub const GROWTH_FACTOR: RangeInclusive<u32> = 2..=64;
/// Allowed values of a table's `l1_runs`: fewer than L1 has positions, so that new runs can come while others are
/// merged.
pub const RUNS_OF_L1: RangeInclusive<u32> = 1..=6;
/// Allowed values of a table's `garbage_percent`.
pub const GARBAGE_PERCENT: RangeInclusive<u32> = 1..=90;
/// Allowed values of a table's `max_space_percent`.
pub const MAX_SPACE_PERCENT: RangeInclusive<u32> = 105..=1000;
/// Allowed values of a table's `max_unacked_bytes`.
pub const MAX_UNACKED_BYTES: RangeInclusive<u64> = 4 << 10..=16 << 20;
/// Allowed values of a table's `split_bytes`, besides 0. Even a small region has whole segments of several kinds.
pub const SPLIT_BYTES: RangeInclusive<u64> = 32 << 20..=1 << 50;
/// Allowed values of a table's `replicas`.
pub const REPLICAS: RangeInclusive<u32> = 1..=32;

/// Why `name` cannot be the name of a table; `None` if it can.
pub fn check_table_name(name: &str) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    // A first letter keeps names apart from numbers and from options of a command line.
    let is_name = name.len() <= MAX_TABLE_NAME_BYTES
        && name.bytes().all(fits)
        && name.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
    let shown: String = name.chars().take(MAX_TABLE_NAME_BYTES + 1).collect();
    (!is_name).then(|| {
        format!(
            "{shown:?} is no name of a table: it has 1 to {MAX_TABLE_NAME_BYTES} of the characters a-z, 0-9, _ and -, \
             and begins with a letter"
        )
    })
}

/// The error for a table that does not exist.
pub fn unknown_table(name: &str) -> String {
    format!("there is no table {name}; `leeward table list` shows those there are")
}

/// Name of a table, cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(Arc<str>);

/// Most messages name this table: its name is not allocated for each.
static DEFAULT_NAME: LazyLock<TableName> = LazyLock::new(|| TableName(DEFAULT_TABLE.into()));

impl Default for TableName {
    fn default() -> Self {
        DEFAULT_NAME.clone()
    }
}

impl Deref for TableName {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for TableName {
    type Err = String;
    fn from_str(name: &str) -> Result<TableName, String> {
        if name == DEFAULT_TABLE {
            return Ok(TableName::default());
        }
        check_table_name(name).map_or_else(|| Ok(TableName(name.into())), Err)
    }
}

impl Serialize for TableName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TableName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TableName, D::Error> {
        struct Name;
        impl de::Visitor<'_> for Name {
            type Value = TableName;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a table")
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<TableName, E> {
                name.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// A table to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTable {
    /// Its name and options.
    pub options: TableOptions,
    /// First keys of its regions after the first, ascending; empty for a table that is [partitioned by
    /// hash](crate::partition::Partition::Hash).
    pub splits: Vec<Bytes>,
}

impl NewTable {
    /// A table that did not exist before.
    pub fn new(options: TableOptions, splits: Vec<Bytes>) -> NewTable {
        NewTable { options, splits }
    }

    /// First keys, or first tokens, of all regions.
    pub fn starts(&self) -> Vec<Bytes> {
        std::iter::once(Bytes::new())
            .chain(self.splits.iter().cloned())
            .chain(self.options.partition.splits())
            .collect()
    }

    /// Checks that the table can be made.
    ///
    /// # Errors
    /// The reason, with the allowed values.
    pub fn check(&self) -> Result<(), String> {
        self.options.check()?;
        if self.options.partition.is_hash() && !self.splits.is_empty() {
            return Err(
                "first keys of regions for a table that is partitioned by hash: its tokens say what regions it has"
                    .into(),
            );
        }
        if self.splits.len() >= MAX_NEW_REGIONS {
            return Err(format!("{} regions: a table is made with at most {MAX_NEW_REGIONS}", self.splits.len() + 1));
        }
        let is_ascending = self.starts().is_sorted_by(|left, right| left < right);
        if !is_ascending || self.splits.iter().any(|key| key.len() > MAX_KEY_BYTES) {
            return Err(format!(
                "the first keys of regions must ascend, each must differ from the one before, and each has 1 to \
                 {MAX_KEY_BYTES} bytes"
            ));
        }
        Ok(())
    }
}

/// A change of a table's options while it serves; `None` leaves an option as it is. Options of the data's layout cannot
/// change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableChange {
    /// The table to change. It keeps its name.
    pub name: TableName,
    /// See [`TableOptions::min_in_sync`].
    pub min_in_sync: Option<u32>,
    /// See [`TableOptions::backups`].
    pub backups: Option<BackupMode>,
    /// See [`TableOptions::wire`].
    pub wire: Option<Codec>,
    /// See [`TableOptions::acknowledge`].
    pub acknowledge: Option<Acknowledge>,
    /// See [`TableOptions::posting`].
    pub posting: Option<Posting>,
    /// See [`TableOptions::max_unacked_bytes`].
    pub max_unacked_bytes: Option<u64>,
    /// See [`TableOptions::split_bytes`].
    pub split_bytes: Option<u64>,
    /// See [`ReadPaths::stale`].
    pub reads: Option<Reads>,
    /// See [`ReadPaths::index`].
    pub index: Option<IndexKind>,
    /// See [`ReadPaths::scans`].
    pub scans: Option<Scans>,
}

impl TableChange {
    /// `options` with the change.
    ///
    /// # Errors
    /// The new options are not valid: the reason, with the allowed values.
    pub fn apply(&self, options: &TableOptions) -> Result<TableOptions, String> {
        let changed = TableOptions {
            min_in_sync: self.min_in_sync.unwrap_or(options.min_in_sync),
            backups: self.backups.unwrap_or(options.backups),
            wire: self.wire.unwrap_or(options.wire),
            acknowledge: self.acknowledge.unwrap_or(options.acknowledge),
            posting: self.posting.unwrap_or(options.posting),
            max_unacked_bytes: self.max_unacked_bytes.unwrap_or(options.max_unacked_bytes),
            split_bytes: self.split_bytes.unwrap_or(options.split_bytes),
            reads: ReadPaths {
                stale: self.reads.unwrap_or(options.reads.stale),
                index: self.index.unwrap_or(options.reads.index),
                scans: self.scans.unwrap_or(options.reads.scans),
            },
            ..options.clone()
        };
        changed.check().map(|()| changed)
    }
}

/// A merge source has at most this many L0s of pairs.
const MERGED_L0S: u64 = 8;

impl TableOptions {
    /// Bytes of a region beyond which the master splits it; `None`: it splits no region of the table, not even a busy
    /// one. `None` for a table that is partitioned by hash, whatever its options say: it has as many regions as tokens.
    pub fn split_beyond(&self) -> Option<u64> {
        Some(self.split_bytes).filter(|bytes| *bytes > 0 && !self.partition.is_hash())
    }

    /// Most bytes of pairs that a merge source may have, if a node copies at most `merge_bytes`. The neighbour's L0s
    /// must take them without waiting for many merges. 0: no regions of the table are merged.
    pub fn merged_up_to(&self, merge_bytes: u64) -> u64 {
        if self.partition.is_hash() { 0 } else { merge_bytes.min(self.l0_bytes.saturating_mul(MERGED_L0S)) }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// The reason, with the allowed values.
    pub fn check(&self) -> Result<(), String> {
        let TableOptions {
            name,
            placement,
            replicas,
            min_in_sync,
            l0_bytes,
            growth_factor,
            l1_runs,
            garbage_percent,
            max_space_percent,
            // Every value is valid.
            compression: _,
            compaction: _,
            backups,
            addressing: _,
            wire: _,
            acknowledge: _,
            posting: _,
            max_unacked_bytes,
            quorum,
            partition,
            garbage_mib_per_second: _,
            split_bytes,
            reads,
        } = self;
        if let Some(reason) = check_table_name(name) {
            return Err(reason);
        }
        within("replicas", *replicas, &REPLICAS)?;
        within("min_in_sync", *min_in_sync, &(1..=*replicas))?;
        if let Some(quorum) = quorum {
            if *replicas < 2 {
                return Err("a quorum is one of several members: with one replica there is none".into());
            }
            within("quorum", *quorum, &(2..=*replicas))?;
        }
        if let Some(tokens) = partition.tokens() {
            within("tokens", tokens, &TOKENS)?;
        }
        within("l0_bytes", *l0_bytes, &L0_BYTES)?;
        within("growth_factor", *growth_factor, &GROWTH_FACTOR)?;
        within("l1_runs", *l1_runs, &RUNS_OF_L1)?;
        if let Some(degree) = backups.ordering_degree() {
            within("ordering_degree", degree, &BackupMode::ORDERING_DEGREES)?;
        }
        within("garbage_percent", *garbage_percent, &GARBAGE_PERCENT)?;
        within("max_unacked_bytes", *max_unacked_bytes, &MAX_UNACKED_BYTES)?;
        if let Reads::Any { max_staleness_ms } = &reads.stale {
            within("max_staleness_ms", *max_staleness_ms, &Reads::STALENESS_MS)?;
        }
        within("max_space_percent", *max_space_percent, &MAX_SPACE_PERCENT)?;
        if *split_bytes > 0 {
            within("split_bytes, where it is not 0,", *split_bytes, &SPLIT_BYTES)?;
        }
        within("medium_from", placement.medium_from, &(0..=placement.large_from))
    }
}

fn within<T: PartialOrd + fmt::Display>(name: &str, value: T, range: &RangeInclusive<T>) -> Result<(), String> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} is {value}: it must be from {} to {}", range.start(), range.end())),
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
