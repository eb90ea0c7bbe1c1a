//! The options of a table: where values are kept, how its regions are replicated, split and read. Plain data, the same
//! on every replica.

use super::either::either;
use super::{BackupMode, GroupConfig, ReadPaths};
use crate::packed::{Codec, Compression};
use crate::partition::Partition;
use crate::table::DEFAULT_TABLE;
use crate::{SegmentId, SegmentName, SegmentNo};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Where the value of a pair is kept, by the bytes of key and value together (hybrid placement, Anthus 2.4). It is set
/// when the table is made, and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Pairs of at least this many bytes, up to `large_from`, are medium: above the last level their values are in
    /// sorted runs of the medium log, in the last level in leaves. Smaller ones live in leaves.
    pub medium_from: u32,
    /// Pairs of at least this many bytes are large: their values stay in the large log.
    pub large_from: u32,
}

/// The class of a pair by its size; see [`Placement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeClass {
    /// Its value is in leaves.
    Small,
    /// Its value is in sorted runs of the medium log, and in leaves of the last level.
    Medium,
    /// Its value is in the large log.
    Large,
}

impl Placement {
    /// Three classes, as in Parallax and Anthus.
    pub const HYBRID: Placement = Placement { medium_from: 100, large_from: 1000 };
    /// Every value is in the large log (Tebis, Talos).
    pub const SEPARATED: Placement = Placement { medium_from: 0, large_from: 0 };
    /// Every value is in leaves.
    pub const IN_PLACE: Placement = Placement { medium_from: u32::MAX, large_from: u32::MAX };

    /// Pairs of at least `bytes` are in the large log, all others in leaves.
    pub const fn threshold(bytes: u32) -> Placement {
        Placement { medium_from: bytes, large_from: bytes }
    }

    /// The class of a pair of this size.
    #[inline]
    pub fn class(self, key_bytes: usize, value_bytes: usize) -> SizeClass {
        let bytes = key_bytes + value_bytes;
        if bytes >= self.large_from as usize {
            SizeClass::Large
        } else if bytes >= self.medium_from as usize {
            SizeClass::Medium
        } else {
            SizeClass::Small
        }
    }
}

/// How much of a level one compaction takes into the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompactionMode {
    /// A few leaf segments, and those of the next level that they overlap.
    #[default]
    Partial,
    /// The whole of both levels, as in the papers (Tebis 2). It writes more, and takes twice the space of the lower
    /// level meanwhile.
    WholeLevel,
}

impl fmt::Display for CompactionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CompactionMode::Partial => "partial",
            CompactionMode::WholeLevel => "whole-level",
        })
    }
}

/// How pointers of a region name segments. It is set when the table is made, because every leaf holds pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Addressing {
    /// By segment numbers on the volume, as in the papers. A backup rewrites the pointers of each segment that it
    /// receives, by its log map and index map (Tebis 3.3).
    Physical,
    /// By names that follow from the segments' ids, the same on every replica. Nothing is rewritten, replicas are equal
    /// byte by byte, and each reader looks names up in memory.
    #[default]
    Logical,
}

impl Addressing {
    /// The name by which pointers refer to the segment `id`, which has the number `no`.
    #[inline]
    pub fn name(self, id: SegmentId, no: SegmentNo) -> SegmentName {
        match self {
            Addressing::Physical => no.name(),
            Addressing::Logical => id.name(),
        }
    }
}

either!(Addressing, "no addressing", Physical = "physical", Logical = "logical");

/// How far a write must have come at the backups before it is acknowledged (Tebis 3.2, Anthus 3.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acknowledge {
    /// Once it is committed: every member in sync holds it, or a quorum of them. Without a quorum it survives the loss
    /// of all members in sync but one.
    #[default]
    LastWrite,
    /// Once it is posted to as many members as must have it. If the primary dies, the newest of these writes may be
    /// lost: at most [`TableOptions::max_unacked_bytes`] of log, and always a suffix of the history.
    LastFlush,
}

either!(Acknowledge, "no time to acknowledge a write", LastWrite = "last-write", LastFlush = "last-flush");

/// How a primary posts new records to a backup's mirror buffers. The bytes and their places are the same in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Posting {
    /// One write for each log, with all new records of a turn.
    #[default]
    Coalesced,
    /// One write for each record, in LSN order over both logs: in-order replication (Anthus 3.1.2.1, measured in
    /// 4.3.7).
    PerRecord,
}

either!(Posting, "no way to post records", Coalesced = "coalesced", PerRecord = "per-record");

/// Options of a table, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableOptions {
    /// Must pass [`check_table_name`](crate::table::check_table_name).
    pub name: String,
    /// Where values are kept.
    pub placement: Placement,
    /// Members that a replica group should have, the primary included.
    pub replicas: u32,
    /// Writes are refused while fewer members than this, the primary included, are in sync.
    pub min_in_sync: u32,
    /// Size at which an L0 freezes, in bytes of memory. With one sorted run, L1 may have four times as many.
    pub l0_bytes: u64,
    /// Ratio between the sizes of neighbouring levels.
    pub growth_factor: u32,
    /// Number of L1's sorted runs, each compacted from L0s, at which they are merged into L2. With 1, L0s are merged
    /// with L1.
    pub l1_runs: u32,
    /// How much of a level one compaction takes.
    pub compaction: CompactionMode,
    /// Percent of the large log that may be garbage before merges collect it on their way. From 1.5 times this on,
    /// compactions run only to collect it.
    pub garbage_percent: u32,
    /// MiB that garbage collection may read and write per region and second, while the large log is below
    /// `max_space_percent`; 0: no limit.
    pub garbage_mib_per_second: u32,
    /// Space that the large log may take, in percent of its live data. Beyond it, garbage collection goes before all
    /// else, and writers wait.
    pub max_space_percent: u32,
    /// How leaves are compressed.
    pub compression: Compression,
    /// How backups keep their copies.
    pub backups: BackupMode,
    /// How pointers name segments.
    pub addressing: Addressing,
    /// How segments are compressed on their way to backups.
    pub wire: Codec,
    /// When a write is acknowledged.
    pub acknowledge: Acknowledge,
    /// How records are posted to backups.
    pub posting: Posting,
    /// With [`Acknowledge::LastFlush`]: bytes of log that may be acknowledged before a backup has confirmed them.
    /// Beyond it, writes wait.
    pub max_unacked_bytes: u64,
    /// How many members, the primary included, must have a write for it to be committed; `None`: every member in sync.
    /// Set when the table is made: a newly promoted primary must know how many members to ask.
    pub quorum: Option<u32>,
    /// Size in bytes beyond which the master splits a region; 0: it splits no region of the table.
    pub split_bytes: u64,
    /// How reads are answered.
    pub reads: ReadPaths,
    /// How its keys are split among its regions. Set when the table is made.
    pub partition: Partition,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions {
            name: DEFAULT_TABLE.into(),
            placement: Placement::HYBRID,
            replicas: 3,
            min_in_sync: 2,
            l0_bytes: 4 << 20,
            growth_factor: 8,
            l1_runs: 4,
            compaction: CompactionMode::Partial,
            garbage_percent: 10,
            garbage_mib_per_second: 0,
            max_space_percent: 130,
            compression: Compression::default(),
            backups: BackupMode::default(),
            addressing: Addressing::default(),
            wire: Codec::None,
            acknowledge: Acknowledge::default(),
            posting: Posting::default(),
            max_unacked_bytes: 1 << 20,
            quorum: None,
            split_bytes: 8 << 30,
            reads: ReadPaths::default(),
            partition: Partition::Range,
        }
    }
}

impl TableOptions {
    /// Whether enough members of `group` are in sync for writes.
    pub fn takes_writes(&self, group: &GroupConfig) -> bool {
        group.in_sync().count() >= self.min_in_sync as usize
    }

    /// How many of `members` in sync must have a write before it is committed: all, or the quorum if it is smaller.
    pub fn needed_of(&self, members: usize) -> usize {
        self.quorum.map_or(members, |quorum| members.min(quorum as usize))
    }
}
