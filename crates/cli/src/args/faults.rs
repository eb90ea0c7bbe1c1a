//! The command line of `leeward bench faults`.

use super::replication::CellArgs;
use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench faults
  leeward bench faults --only send-index,build-index-last-flush,2 --kills 10
  leeward bench faults --json faults.json

Runs every mode of replication that `leeward bench replication` knows, with two and with three replicas. Each run has its own
cluster of three nodes: Load A, then Run A while primaries are killed as by `leeward bench ycsb --kill-primary-every --verify`.
After --kills of them come six more, each with a change of the table (`leeward table alter`); one of these comes while the node
killed before is not in sync yet. Then every acknowledged write is read back and the replicas are compared. docs/benchmark.md
says more.
Exit code 1: something failed, was lost, or differs.")]
pub(crate) struct FaultsArgs {
    /// Only these variants, and these numbers of replicas (2, 3). A kind of which none is named runs whole
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<String>,
    /// Kills in each run, before those that come with a change of the table
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=1_000))]
    pub(crate) kills: u32,
    /// Seconds from when all members are in sync to the next kill
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) kill_primary_every: f64,
    /// Records that load inserts
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: u64,
    #[command(flatten)]
    pub(crate) cell: CellArgs,
}
