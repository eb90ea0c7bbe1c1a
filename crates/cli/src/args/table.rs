//! Arguments of `leeward table`.

use super::{Connect, TableArgs};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use leeward_format::cluster::{Acknowledge, BackupMode, IndexKind, Posting, Preset, Reads, Scans, TableOptions};
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
    /// Create a table, and wait until all of its regions are served
    Create(Box<CreateTableArgs>),
    /// Change how a table is replicated, while it serves
    Alter(AlterTableArgs),
    /// Drop a table with all that it holds, and wait until its regions are removed
    Drop(DropTableArgs),
    /// Show all tables
    List(ListTablesArgs),
    /// Show the options and regions of a table, and estimate what they hold
    Describe(DescribeTableArgs),
}

/// Parses the name of a preset, and shows all of them in the help.
fn presets() -> impl TypedValueParser<Value = Preset> {
    let shown = |preset: Preset| PossibleValue::new(preset.name()).aliases(preset.alias()).help(preset.about());
    let named = |name: String| Preset::of_name(&name).ok_or_else(|| format!("no preset {name}"));
    PossibleValuesParser::new(Preset::ALL.map(shown)).try_map(named)
}

/// How keys are split among regions, as `--partition` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartitionKind {
    /// A region has all keys from its first one up to its end; regions can be split and merged
    Range,
    /// A region has the keys whose hashes are between its bounds. Writes of ascending keys go to all regions; scans ask all
    /// of them
    Hash,
    /// As `hash`, but by the hash slots of Redis: Redis clients in cluster mode find the primaries by themselves
    Slots,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward table create orders
  leeward table create events --partition hash --tokens 12
  leeward table create carts --partition slots --tokens 12      for Redis clients in cluster mode
  leeward table create logs --preset tebis --regions 8
  leeward table create users --split-at g,n,t --replicas 2
  redis-cli -p 7379 select users               later commands of this connection use `users`

A name has 1 to 64 of the characters a-z, 0-9, _ and -, and begins with a letter. Options that are given override those of
the preset. docs/tables.md says more.")]
pub(crate) struct CreateTableArgs {
    #[command(flatten)]
    connect: Connect,
    /// Name of the table
    name: TableName,
    /// A named set of options
    #[arg(long, value_parser = presets(), default_value = "default")]
    preset: Preset,
    /// Copies of each region, the primary's included [default: as the table `default` has]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=32))]
    replicas: Option<u32>,
    /// Copies that must be in sync, or writes are refused [default: more than half of the replicas]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=32))]
    min_in_sync: Option<u32>,
    /// Number of regions, which split all keys evenly by their first bytes [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16_384), conflicts_with = "split_at")]
    regions: Option<u32>,
    /// First keys of the second and later regions, ascending
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    split_at: Vec<String>,
    /// How keys are split among regions. Cannot be changed later [default: range]
    #[arg(long, value_enum)]
    partition: Option<PartitionKind>,
    /// With --partition hash or slots: number of regions, each with an equal share of the hashes. Cannot be changed later, so
    /// have some for each server that the cluster may ever have [default: 16]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    tokens: Option<u32>,
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

    /// The table to create, in a cluster whose default table has `replicas` copies.
    ///
    /// # Errors
    /// Options do not go together.
    pub(crate) fn new_table(&self, replicas: u32) -> Result<NewTable, String> {
        let replicas = self.replicas.unwrap_or(replicas);
        let preset = self.preset.options();
        let tokens = self.tokens.unwrap_or(DEFAULT_TOKENS);
        let partition = match self.partition {
            None => preset.partition.with_tokens(tokens),
            Some(PartitionKind::Range) => Partition::Range,
            Some(PartitionKind::Hash) => Partition::Hash { tokens },
            Some(PartitionKind::Slots) => Partition::Slots { tokens },
        };
        if self.tokens.is_some() && !partition.is_hash() {
            return Err("--tokens needs --partition hash or --partition slots".into());
        }
        if (self.regions.is_some() || !self.split_at.is_empty()) && partition.is_hash() {
            return Err("--regions and --split-at need --partition range; for hash and slots there is --tokens".into());
        }
        let options = self.table.over(TableOptions {
            name: self.name.to_string(),
            replicas,
            min_in_sync: self.min_in_sync.unwrap_or(replicas / 2 + 1),
            partition,
            ..preset
        });
        let splits = match self.regions {
            Some(regions) => even_splits(regions),
            None => self.split_at.iter().map(|key| key.clone().into()).collect(),
        };
        Ok(NewTable { options, splits })
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  leeward table drop orders
The data of the table is gone for good. The table `default` cannot be dropped.")]
pub(crate) struct DropTableArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Name of the table
    pub(crate) name: TableName,
}

/// First keys that split all keys evenly into `regions` by their first two bytes.
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

Options that are not given stay as they are. Some changes need members to be rebuilt. Those leave the group one by one and come
back when they are in sync. If too few members for writes would be left, writes wait meanwhile. `leeward table describe` shows
the progress.")]
pub(crate) struct AlterTableArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Name of the table
    pub(crate) name: TableName,
    /// Copies that must be in sync, or writes are refused
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=32))]
    min_in_sync: Option<u32>,
    /// How backups keep their copies: `send-index`, `build-index` or `two-layer-log`, as `table create` explains
    #[arg(long, value_name = "MODE")]
    backups: Option<BackupMode>,
    /// How the primary compresses the segments that it ships to backups: `none`, `lz4` or `zstd`
    #[arg(long, value_name = "CODEC")]
    wire: Option<Codec>,
    /// When a write is acknowledged: `last-write` or `last-flush`
    #[arg(long, value_name = "WHEN")]
    acknowledge: Option<Acknowledge>,
    /// How records are posted to backups: `coalesced` or `per-record`
    #[arg(long, value_name = "HOW")]
    posting: Option<Posting>,
    /// With last-flush: KiB of writes that may be acknowledged before a backup has confirmed them
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(4..=16_384))]
    max_unacked_kib: Option<u64>,
    /// Which members answer reads that allow stale data: `primary`, `any` or `any:MILLISECONDS`
    #[arg(long, value_name = "MEMBERS")]
    reads: Option<Reads>,
    /// What a primary answers reads from: `lsm` or `hybrid`, as `table create` explains
    #[arg(long, value_name = "KIND")]
    index: Option<IndexKind>,
    /// Which members answer scans: `primary` or `backups`, as `table create` explains
    #[arg(long, value_name = "MEMBERS")]
    scans: Option<Scans>,
    /// Size at which a region is split, such as 8GiB or 512MiB; 0: never, not for its load either
    #[arg(long, value_name = "SIZE", value_parser = size)]
    split_bytes: Option<u64>,
}

/// Parses the value of `--split-bytes`: a number of bytes, or of KiB, MiB, GiB or TiB with that unit after it.
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
    let number: u64 =
        digits.parse().map_err(|_| "a size is a number with an optional unit, such as 8GiB".to_owned())?;
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
            index,
            scans,
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
            index,
            scans,
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
    /// Name of the table
    pub(crate) name: TableName,
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
