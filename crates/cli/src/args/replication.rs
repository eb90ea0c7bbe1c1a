//! The command line of `leeward bench replication`.

use clap::Args;
use leeward_bench::replication::CellOptions;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench replication --quick --json replication.json
  leeward bench replication --rounds 3 --out results
  leeward bench replication --only modes,send-index,build-index,sd,s --rounds 3
  leeward bench replication --only two-layer,ordering,levels,recovery --rounds 3

Each cell has its own cluster of three nodes, or of as many as its experiment says, and runs Load A, then Run A (YCSB) or what its
experiment says. Variants of an experiment differ in one thing. Cells that are compared run one after the other in each round.
Experiments: modes, wire, acknowledge, posting, growth, small-share, presets, links, one-by-one, two-layer, levels, ordering,
recovery, hybrid, hybrid-recovery, hybrid-memory; docs/replication-bench.md lists their variants. A run whose data has fewer than
three levels is refused, and so is one in which a two-layer log has merged all of its runs less than twice. The report says of
each target whether it is met.
Exit code 1: a cell could not be measured.")]
pub(crate) struct ReplicationArgs {
    /// Only two replicas; the mixes sd and s, unless --only names others; one round, unless --rounds says otherwise
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only these experiments, variants and mixes. A kind of which none is named runs whole
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<String>,
    /// Rounds; figures are medians over them [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: Option<u32>,
    /// Records that load inserts [default: 400,000 to 2,500,000, by the mix]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: Option<u64>,
    /// Operations of run A [default: as many as there are records]
    #[arg(long)]
    pub(crate) ops: Option<u64>,
    #[command(flatten)]
    pub(crate) cell: CellOptions,
    /// Directory in which each cluster creates its own [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report and its plots into this directory, which is created
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
