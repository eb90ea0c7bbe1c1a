//! The options of a table: where values are kept, how its regions are replicated, split and read. Plain data, the same on every
//! replica.

use super::{GroupConfig, Reads};
use crate::packed::{Codec, Compression};
use crate::partition::Partition;
use crate::table::DEFAULT_TABLE;
use crate::{SegmentId, SegmentName, SegmentNo};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Where the value of a pair is kept, by the bytes of key and value together (hybrid placement, Anthus 2.4). What a pair
/// is never changes: the placement of a table is set when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Pairs of at least this many bytes, up to `large_from`, are medium: above the last level their values are in sorted
    /// runs of the medium log, in the last level in leaves. Smaller ones live in leaves.
    pub medium_from: u32,
    /// Pairs of at least this many bytes are large: their values stay in the large log.
    pub large_from: u32,
}

/// What a pair is by its size; see [`Placement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeClass {
    /// In leaves.
    Small,
    /// In runs of the medium log, at last in leaves.
    Medium,
    /// In the large log.
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

    /// What a pair of this size is.
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
    /// A few leaf segments and what they overlap there.
    #[default]
    Partial,
    /// The whole of both levels, as in the papers (Tebis 2): more writing, and twice the space of the lower one meanwhile.
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

/// An option that is one of two: both of them, and their names, as people write them.
macro_rules! either {
    ($type:ident, $what:literal, $one:ident = $its_name:literal, $other:ident = $other_name:literal) => {
        impl $type {
            /// All of them.
            pub const ALL: [$type; 2] = [$type::$one, $type::$other];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $type::$one => $its_name,
                    $type::$other => $other_name,
                })
            }
        }

        impl FromStr for $type {
            type Err = String;
            fn from_str(name: &str) -> Result<$type, String> {
                let known = $type::ALL.into_iter().find(|one| one.to_string() == name);
                known.ok_or_else(|| {
                    format!(concat!("{:?} is ", $what, ": it is ", $its_name, " or ", $other_name), name)
                })
            }
        }
    };
}

/// What pointers of a region say. It is set when the table is made: every leaf is full of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Addressing {
    /// Numbers of segments on the volume, as in the papers: a backup rewrites those of each segment that it is sent, by its log
    /// map and index map (Tebis 3.3).
    Physical,
    /// Names that are part of the segments' identities, the same on every replica: nothing is rewritten, replicas are equal byte
    /// by byte, and each reader looks names up in memory.
    #[default]
    Logical,
}

impl Addressing {
    /// What pointers call the segment `id` that lies at `no`.
    #[inline]
    pub fn name(self, id: SegmentId, no: SegmentNo) -> SegmentName {
        match self {
            Addressing::Physical => no.name(),
            Addressing::Logical => id.name(),
        }
    }
}

either!(Addressing, "no addressing", Physical = "physical", Logical = "logical");

/// When a write is acknowledged, by what its backups have of it (Tebis 3.2, Anthus 3.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acknowledge {
    /// Once every backup in sync holds it: it survives the loss of all members but one.
    #[default]
    LastWrite,
    /// Once it is on its way to every backup in sync. A primary that dies may take the newest of such writes with it, as many
    /// bytes as [`TableOptions::max_unacked_bytes`] says, never one and not those after it.
    LastFlush,
}

either!(Acknowledge, "no time to acknowledge a write", LastWrite = "last-write", LastFlush = "last-flush");

/// How a primary posts new records to a backup's mirror buffers. A backup finds the same bytes at the same places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Posting {
    /// All that a turn has brought is one write of each log.
    #[default]
    Coalesced,
    /// Each record is a write of its own, in the order of LSNs over both logs: in-order replication (Anthus 3.1.2.1, measured in
    /// 4.3.7).
    PerRecord,
}

either!(Posting, "no way to post records", Coalesced = "coalesced", PerRecord = "per-record");

/// How backups keep their copies of a table's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackupMode {
    /// The primary ships what its compactions build (Tebis 3.3): a backup has no L0, merges nothing, and reads nothing from its
    /// device.
    #[default]
    SendIndex,
    /// A backup builds its index from the mirrored logs, with an L0 and compactions of its own, as far behind the primary as a
    /// bound allows (Anthus 3.3.3): the baseline.
    BuildIndex,
}

either!(BackupMode, "no way to keep a backup", SendIndex = "send-index", BuildIndex = "build-index");

/// Options of a table, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableOptions {
    /// Name.
    pub name: String,
    /// Where values are kept.
    pub placement: Placement,
    /// Members that a replica group should have, the primary included.
    pub replicas: u32,
    /// Members, the primary included, without which writes are refused.
    pub min_in_sync: u32,
    /// Size at which an L0 freezes, in bytes of memory. L1 may have four times as many, if it is one sorted run.
    pub l0_bytes: u64,
    /// Ratio between the sizes of neighbouring levels.
    pub growth_factor: u32,
    /// Sorted runs of L1, each written of L0s, from which on they are merged into L2. With 1, L0s are merged with L1.
    pub l1_runs: u32,
    /// How much of a level one compaction takes.
    pub compaction: CompactionMode,
    /// Percent of the space of logs that leaves point to which may be garbage before merges that pass collect it; half as much
    /// again, and it is collected for its own sake.
    pub garbage_percent: u32,
    /// MiB that the collection of garbage may read and write of a region in a second, as long as the next limit is kept; 0: as
    /// many as it can.
    pub garbage_mib_per_second: u32,
    /// Percent of what is live in those logs that they may take of the volume: beyond, collection goes before all else,
    /// and writers wait.
    pub max_space_percent: u32,
    /// How leaves are compressed.
    pub compression: Compression,
    /// How backups keep their copies.
    pub backups: BackupMode,
    /// What pointers say.
    pub addressing: Addressing,
    /// How what a compaction built is compressed on its way to backups.
    pub wire: Codec,
    /// When a write is acknowledged.
    pub acknowledge: Acknowledge,
    /// How records are posted to backups.
    pub posting: Posting,
    /// With [`Acknowledge::LastFlush`]: bytes of log that may be acknowledged before a backup has confirmed them; then writes
    /// wait.
    pub max_unacked_bytes: u64,
    /// How many members, the primary included, must have a write for it to be committed; `None`: every member in sync. Set when
    /// the table is made: a newly promoted primary must know how many of the members to ask.
    pub quorum: Option<u32>,
    /// Size in bytes from which on the master splits a region; 0: it splits no region of the table.
    pub split_bytes: u64,
    /// Which members may answer reads.
    pub reads: Reads,
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
            reads: Reads::default(),
            partition: Partition::Range,
        }
    }
}

impl TableOptions {
    /// Whether as many members of `group` are in sync as a write wants.
    pub fn takes_writes(&self, group: &GroupConfig) -> bool {
        group.in_sync().count() >= self.min_in_sync as usize
    }

    /// How many of `members` in sync must have a write before it is committed: of a group that has shrunk below the quorum, all.
    pub fn needed_of(&self, members: usize) -> usize {
        self.quorum.map_or(members, |quorum| members.min(quorum as usize))
    }
}
