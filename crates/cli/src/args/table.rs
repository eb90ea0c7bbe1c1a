//! Arguments of `leeward table`, and the names of presets.

use super::{Connect, TableArgs};
use clap::{Args, Subcommand, ValueEnum};
use leeward_format::RegionId;
use leeward_format::cluster::{self, Acknowledge, BackupMode, Posting, Reads, TableOptions};
use leeward_format::packed::Codec;
use leeward_format::partition::{DEFAULT_TOKENS, Partition};
use leeward_format::table::{NewTable, TableChange, TableName};

#[derive(Args, Debug)]
pub(crate) struct TableCommands {
    #[command(subcommand)]
    pub(crate) command: TableCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Make a table, and wait until all of its regions are served
    Create(Box<CreateTableArgs>),
    /// Change how a table is replicated, while it serves
    Alter(AlterTableArgs),
    /// Drop a table with all that it holds, and wait until its regions are removed
    Drop(DropTableArgs),
    /// Show all tables
    List(ListTablesArgs),
    /// Show the options and regions of a table, and about what they hold
    Describe(DescribeTableArgs),
}

/// A named set of options, as far as the engine has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// What suits most: as `anthus`, but backups rewrite nothing
    Default,
    /// Small pairs in leaves, medium ones in sorted runs and at last in leaves, large ones in the large log; physical addressing
    Anthus,
    /// Every value in the large log; whole levels are merged, from L0 on; physical addressing
    #[value(alias = "talos")]
    Tebis,
    /// As `anthus`, but each backup builds its own index: the baseline of the papers
    BuildIndex,
}

impl Preset {
    /// The options that it stands for, which the store defines.
    pub(crate) fn options(self) -> TableOptions {
        match self {
            Preset::Default => cluster::Preset::Default,
            Preset::Anthus => cluster::Preset::Anthus,
            Preset::Tebis => cluster::Preset::Tebis,
            Preset::BuildIndex => cluster::Preset::BuildIndex,
        }
        .options()
    }
}

/// How keys are divided among regions, as `--partition` spells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartitionKind {
    /// A region has all keys from its first one up to its end; it can become two
    #[default]
    Range,
    /// A region has the keys whose hashes are between its bounds: writes of keys in order go to all regions, scans ask all of them
    Hash,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward table create orders
  leeward table create events --partition hash --tokens 12
  leeward table create logs --preset tebis --regions 8
  leeward table create users --split-at g,n,t --replicas 2
  redis-cli -p 7379 select users               commands of this connection are on `users` from now on

A name has 1 to 64 of the characters a-z, 0-9, _ and -, and begins with a letter. Options that are given win over those of
the preset. docs/tables.md says more.")]
pub(crate) struct CreateTableArgs {
    #[command(flatten)]
    connect: Connect,
    /// Its name
    name: TableName,
    /// Options that go together
    #[arg(long, value_enum, default_value = "default")]
    preset: Preset,
    /// Copies of each region, the primary's included [default: as the table `default` has]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=32))]
    replicas: Option<u32>,
    /// Copies in sync without which writes are refused [default: more than half of the replicas]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=32))]
    min_in_sync: Option<u32>,
    /// Number of regions, each with the same part of all keys by their first bytes [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16_384), conflicts_with = "split_at")]
    regions: Option<u32>,
    /// First keys of the regions after the first, ascending
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    split_at: Vec<String>,
    /// How keys are divided among regions. Set for good
    #[arg(long, value_enum, default_value = "range", conflicts_with_all = ["regions", "split_at"])]
    partition: PartitionKind,
    /// With --partition hash, number of regions, each with the same part of all hashes of keys. Set for good: some for each server that
    /// the cluster may come to have [default: 16]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    tokens: Option<u32>,
    /// The coordinator lost its data: the regions, in the order of keys, are those with these numbers, of which servers have copies
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    recover: Vec<u32>,
    // Last, because its heading would be that of the options after it, too.
    #[command(flatten)]
    table: TableArgs,
}

impl CreateTableArgs {
    pub(crate) fn connect(&self) -> &Connect {
        &self.connect
    }

    pub(crate) fn name(&self) -> &TableName {
        &self.name
    }

    /// The table to make, in a cluster whose default table has `replicas` copies.
    ///
    /// # Errors
    /// Options do not go together.
    pub(crate) fn new_table(&self, replicas: u32) -> Result<NewTable, String> {
        let replicas = self.replicas.unwrap_or(replicas);
        let partition = match (self.partition, self.tokens) {
            (PartitionKind::Hash, tokens) => Partition::Hash { tokens: tokens.unwrap_or(DEFAULT_TOKENS) },
            (PartitionKind::Range, None) => Partition::Range,
            (PartitionKind::Range, Some(_)) => return Err("--tokens is of tables with --partition hash".into()),
        };
        let options = self.table.over(TableOptions {
            name: self.name.to_string(),
            replicas,
            min_in_sync: self.min_in_sync.unwrap_or(replicas / 2 + 1),
            partition,
            ..self.preset.options()
        });
        let splits = match self.regions {
            Some(regions) => even_splits(regions),
            None => self.split_at.iter().map(|key| key.clone().into()).collect(),
        };
        Ok(NewTable { options, splits, numbers: self.recover.iter().copied().map(RegionId).collect() })
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  leeward table drop orders
What the table holds is gone for good. The table `default` cannot be dropped.")]
pub(crate) struct DropTableArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Its name
    pub(crate) name: TableName,
}

/// First keys that part all keys into `regions` by their first two bytes.
fn even_splits(regions: u32) -> Vec<bytes::Bytes> {
    let split = |part: u32| {
        let [.., high, low] = (part * (1 << 16) / regions).to_be_bytes();
        // A last byte of zero would only make the key longer.
        if low == 0 { vec![high].into() } else { vec![high, low].into() }
    };
    (1..regions).map(split).collect()
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward table alter orders --backups build-index
  leeward table alter orders --acknowledge last-flush --max-unacked-kib 256
  leeward table alter orders --split-bytes 2GiB

Every option stays as it is that is not given. Where members have to be built anew, they leave the group one by one and come back
when they are in sync, if enough are left to take writes; otherwise writes wait meanwhile. `leeward table describe` shows it.")]
pub(crate) struct AlterTableArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Its name
    pub(crate) name: TableName,
    /// Copies in sync without which writes are refused
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=32))]
    min_in_sync: Option<u32>,
    /// How backups keep their copies: `send-index` or `build-index`
    #[arg(long, value_name = "MODE")]
    backups: Option<BackupMode>,
    /// How what compactions build is compressed on its way to backups: `none`, `lz4` or `zstd`
    #[arg(long, value_name = "CODEC")]
    wire: Option<Codec>,
    /// When a write is acknowledged: `last-write` or `last-flush`
    #[arg(long, value_name = "WHEN")]
    acknowledge: Option<Acknowledge>,
    /// How records are posted to backups: `coalesced` or `per-record`
    #[arg(long, value_name = "HOW")]
    posting: Option<Posting>,
    /// With last-flush, KiB that may be acknowledged before a backup has confirmed them
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(4..=16_384))]
    max_unacked_kib: Option<u64>,
    /// Who answers reads that put up with an answer that is not the newest: `primary`, `any` or `any:MILLISECONDS`
    #[arg(long, value_name = "WHO")]
    reads: Option<Reads>,
    /// Size from which on a region is divided, such as 8GiB or 512MiB; 0: none is, nor for its load
    #[arg(long, value_name = "SIZE", value_parser = size)]
    split_bytes: Option<u64>,
}

/// A number of bytes, or of a unit of them, as `--split-bytes` spells it.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err("the unit is KiB, MiB, GiB or TiB, or none: bytes".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "a size is a number, and perhaps a unit: 8GiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is too much".into())
}

impl AlterTableArgs {
    /// The change; `None` if no option was given.
    pub(crate) fn change(&self) -> Option<TableChange> {
        let &AlterTableArgs {
            min_in_sync,
            backups,
            wire,
            acknowledge,
            posting,
            max_unacked_kib,
            reads,
            split_bytes,
            ..
        } = self;
        let max_unacked_bytes = max_unacked_kib.map(|kib| kib << 10);
        let nothing = TableChange { name: self.name.clone(), ..TableChange::default() };
        let change = TableChange {
            min_in_sync,
            backups,
            wire,
            acknowledge,
            posting,
            max_unacked_bytes,
            split_bytes,
            reads,
            ..nothing.clone()
        };
        (change != nothing).then_some(change)
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  leeward table list")]
pub(crate) struct ListTablesArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  leeward table describe orders")]
pub(crate) struct DescribeTableArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Its name
    pub(crate) name: TableName,
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
