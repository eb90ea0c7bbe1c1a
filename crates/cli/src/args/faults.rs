//! The command line of `leeward bench faults`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench faults
  leeward bench faults --only send-index,build-index-last-flush,2 --kills 10
  leeward bench faults --json faults.json

Every mode of replication that `leeward bench replication` knows, with two and with three replicas, each on a cluster of three
nodes of its own: Load A, then Run A while primaries are killed as by `leeward bench ycsb --kill-primary-every --verify`. After
--kills of them six more come with a change of the table each (`leeward table alter`), one of them while the node killed before
is still brought in sync. Then every acknowledged write is read back and the replicas are compared. docs/benchmark.md says more.
Exit code 1: something failed, was lost, or differs.")]
pub(crate) struct FaultsArgs {
    /// Only these variants, and numbers of replicas (2, 3); of a kind that none is named of, all are run
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<String>,
    /// Kills in each run before those that come with a change of the table
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=1_000))]
    pub(crate) kills: u32,
    /// Seconds from when all are in sync to the next kill
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) kill_primary_every: f64,
    /// Records that load inserts
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: u64,
    /// Size at which an L0 freezes, in KiB
    #[arg(long, default_value_t = 256, value_name = "KIB", value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    pub(crate) l0_kib: u64,
    /// Memory of each node, in MiB
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub(crate) memory_mib: u64,
    /// Number of regions, of the same size
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) regions: u32,
    /// Client threads
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Operations that each thread keeps under way
    #[arg(long, default_value_t = 32, value_name = "OPS")]
    pub(crate) depth: usize,
    /// Directory in which each run makes one of its own [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Write the results here as JSON; the names in it are stable
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
