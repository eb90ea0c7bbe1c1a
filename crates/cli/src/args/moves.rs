//! The command lines of `leeward bench moves` and `leeward bench splits`.

use clap::Args;
use leeward_bench::Mix;
use std::path::PathBuf;

/// Options of every benchmark that runs under a load.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// Sizes of the pairs
    #[arg(long, default_value = "sd")]
    pub(crate) mix: Mix,
    /// Client threads
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Operations that each thread keeps in flight
    #[arg(long, default_value_t = 16, value_name = "OPS")]
    pub(crate) depth: usize,
    /// Memory of each node, in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub(crate) memory_mib: u64,
    /// Directory in which the cluster creates its own [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench moves
  leeward bench moves --regions 48 --records 5000000 --mix md --json moves.json

Three nodes serve YCSB A. Two more start, and get their share of copies and primary roles by themselves. Then both are drained
and stopped. The benchmark prints the requests that failed, the throughput before and during each move, and how evenly bytes are
spread afterwards.
Exit code 1: a request failed, less than 0.7 of the throughput was left, or a server is more than a tenth off its share.")]
pub(crate) struct MovesArgs {
    /// Regions of the table
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) regions: u32,
    /// Records that are loaded first
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: u64,
    /// Seconds without moves before each move, and after the last
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS")]
    pub(crate) rest: f64,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench splits
  leeward bench splits --rounds 1 --records 4000000 --mix md --json splits.json

One region on three nodes serves YCSB A. It is split, then its half with the lowest keys is split, and so on. One client writes
one key of the region again and again. The benchmark prints the longest time between two answers to that client, and the
throughput of all others: before the split, until there are two regions, in the five seconds after that, and later.
Exit code 1: a request failed.")]
pub(crate) struct SplitsArgs {
    /// Number of splits
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) rounds: u32,
    /// Records that are loaded first
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub(crate) records: u64,
    /// Seconds without splits before each split, and after the five seconds that follow the last
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub(crate) rest: f64,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}
