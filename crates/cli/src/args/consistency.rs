//! Options of a table: which members must have a write before it is acknowledged, which of them answer reads, and from
//! what index.

use clap::Args;
use leeward_format::cluster::{Acknowledge, IndexKind, ReadPaths, Reads, Scans, TableOptions};

/// When writes are acknowledged, and which members answer reads.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ConsistencyArgs {
    /// When a write is acknowledged. `last-write`: every backup in sync holds it, or as many copies as `--quorum` says.
    /// `last-flush`: it is on its way to them; the newest writes may be lost with a primary [default: last-write]
    #[arg(long, value_name = "WHEN")]
    acknowledge: Option<Acknowledge>,
    /// With last-flush: KiB of writes that may be acknowledged before a backup has confirmed them [default: 1024]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(4..=16_384))]
    max_unacked_kib: Option<u64>,
    /// Number of copies, the primary's included, that must have a write before it is acknowledged. A slow or dead backup then
    /// delays no write. Cannot be changed later [default: all that are in sync]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=32))]
    quorum: Option<u32>,
    /// Which members answer reads that allow stale data: `primary`, or `any` member in sync. Answers of `any` are stale by at
    /// most a second, or by the limit of `any:MILLISECONDS`, and say how stale they may be. Each backup then keeps as much in
    /// L0s as its primary [default: primary]
    #[arg(long, value_name = "MEMBERS")]
    reads: Option<Reads>,
    /// What a primary answers reads from: `lsm` (L0s and levels) or `hybrid` (also a hash table in memory of the newest
    /// committed versions of hot keys, which clients read by one-sided reads) [default: lsm]
    #[arg(long, value_name = "KIND")]
    index: Option<IndexKind>,
    /// Which members answer scans: `primary`, or `backups`, which ask the primary how far they must have its log first. No
    /// answer is stale. Each backup then keeps as much in L0s as its primary [default: primary]
    #[arg(long, value_name = "MEMBERS")]
    scans: Option<Scans>,
}

impl ConsistencyArgs {
    /// Whether any option was given.
    pub(crate) fn is_any(&self) -> bool {
        let of_writes = self.acknowledge.is_some() || self.max_unacked_kib.is_some() || self.quorum.is_some();
        of_writes || self.reads.is_some() || self.index.is_some() || self.scans.is_some()
    }

    /// `base` with the options that were given.
    pub(crate) fn over(&self, base: TableOptions) -> TableOptions {
        TableOptions {
            acknowledge: self.acknowledge.unwrap_or(base.acknowledge),
            max_unacked_bytes: self.max_unacked_kib.map_or(base.max_unacked_bytes, |kib| kib << 10),
            quorum: self.quorum.or(base.quorum),
            reads: ReadPaths {
                stale: self.reads.unwrap_or(base.reads.stale),
                index: self.index.unwrap_or(base.reads.index),
                scans: self.scans.unwrap_or(base.reads.scans),
            },
            ..base
        }
    }
}
