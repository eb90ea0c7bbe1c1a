//! The command line of `leeward bench pauses`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench pauses
  leeward bench pauses --only hand-over,dead-backup --rounds 5 --json pauses.json

One region on three nodes, under a moderate load of writes. What happens to it: hand-over, dead-backup, stopped-backup,
dead-primary (L0s of 16 MiB, nearly full) and dead-primary-64 (of 64 MiB). Measured is the longest time between two answers to
a client that writes one key over and over; where the primary dies, from when its session is over.
Exit code 1: a pause was longer than its budget.")]
pub(crate) struct PausesArgs {
    /// Only these kinds
    #[arg(long, value_delimiter = ',', value_name = "KINDS")]
    pub(crate) only: Vec<String>,
    /// How often each; hand-overs five times as often
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,
    /// Directory in which each cluster makes one of its own [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Write the results here as JSON; the names in it are stable
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
