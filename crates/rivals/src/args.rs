//! The command line.

use crate::engine::EngineName;
use crate::work::Work;
use leeward_bench::Mix;
use std::path::PathBuf;

/// The same workloads on embedded key-value engines.
#[derive(clap::Parser, Debug)]
#[command(
    name = "leeward-rivals",
    version,
    after_help = "\
Examples:
  cargo run --release -p leeward-rivals --features rocksdb,fjall -- compare --mix sd,s,l --rounds 3 --json rivals.json
  cargo run --release -p leeward-rivals --features rocksdb -- scale --record-counts 1000000,4000000,16000000
  cargo run --release -p leeward-rivals -- run --engine leeward --mix sd --workloads load,c

docs/rivals.md says how each engine is configured, and why, and how to read the report."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// All workloads on all engines, in interleaved rounds; writes JSON, a report and plots
    Compare(CompareArgs),
    /// Cost against size: Load of growing data sets on all engines, in interleaved rounds
    Scale(ScaleArgs),
    /// One engine in this process, for a profiler; prints what it measured, a line of JSON each workload
    Run(RunArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct CompareArgs {
    /// Mixes of pair sizes: s, m, l, sd, md, ld
    #[arg(long, value_delimiter = ',', default_value = "sd,s,l", value_name = "NAMES")]
    pub(crate) mix: Vec<Mix>,
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    #[command(flatten)]
    pub(crate) workloads: WorkloadArgs,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ScaleArgs {
    /// Mixes of pair sizes: s, m, l, sd, md, ld
    #[arg(long, value_delimiter = ',', default_value = "sd", value_name = "NAMES")]
    pub(crate) mix: Vec<Mix>,
    /// Sizes of the data set, ascending; the cache is a quarter of the smallest, for all
    #[arg(long, value_delimiter = ',', default_value = "1000000,4000000,16000000", value_name = "COUNTS")]
    pub(crate) record_counts: Vec<u64>,
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}

#[derive(clap::Args, Debug)]
pub(crate) struct RunArgs {
    /// The engine
    #[arg(long, default_value = "leeward")]
    pub(crate) engine: EngineName,
    /// Mix of pair sizes
    #[arg(long, default_value = "sd")]
    pub(crate) mix: Mix,
    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    #[command(flatten)]
    pub(crate) workloads: WorkloadArgs,
    /// Directory for the data, which must be new or empty [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// How engines take turns, and where results go.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RoundArgs {
    /// Engines, in order of the first round; each further round begins with the next
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = EngineName::built_in())]
    pub(crate) engines: Vec<EngineName>,
    /// The program that runs `leeward-pgo`: this one, built by `cargo xtask pgo rivals`
    #[arg(long, value_name = "PATH")]
    pub(crate) pgo: Option<PathBuf>,
    /// Rounds; figures are medians over them
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Directory in which each run makes a directory of its own; its filesystem must support direct I/O
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
    /// Results; the report and the plots go beside it, under the same name
    #[arg(long, value_name = "FILE", default_value = "rivals.json")]
    pub(crate) json: PathBuf,
}

/// Sizes of a run.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SizeArgs {
    /// Records that load inserts [default: 4,000,000 of s and m, 2,000,000 of the other mixes]
    #[arg(long)]
    pub(crate) records: Option<u64>,
    /// Operations of the workloads a, b, c, d and f; of e, which scans, a tenth [default: half of the records]
    #[arg(long)]
    pub(crate) ops: Option<u64>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}

/// Memory and threads, the same for every engine.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MemoryArgs {
    /// Cache of every engine, in MiB; at most a quarter of the data set [default: a quarter of it]
    #[arg(long, alias = "cache-mb", value_name = "MIB")]
    pub(crate) cache_mib: Option<u64>,
    /// Size at which a memtable is full, in KiB; every engine keeps at most four
    #[arg(long, default_value_t = 4096, value_name = "KIB", value_parser = clap::value_parser!(u64).range(64..))]
    pub(crate) l0_kib: u64,
    /// Client threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WorkloadArgs {
    /// Workloads: load, a, b, c, d, e, f, space (load and two full overwrites of a new store). They run in the order load, a,
    /// b, c, f, d, e, space; load always runs before any of a to f
    #[arg(long, value_delimiter = ',', default_value = "load,a,b,c,d,e,f,space", value_name = "NAMES")]
    pub(crate) workloads: Vec<Work>,
}
