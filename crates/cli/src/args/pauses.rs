//! The command line of `leeward bench pauses`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench pauses
  leeward bench pauses --only hand-over,dead-backup --rounds 5 --json pauses.json

One region on three nodes serves a moderate load of writes. Kinds of pauses: hand-over, dead-backup, stopped-backup,
dead-primary (L0s of 16 MiB, nearly full) and dead-primary-64 (of 64 MiB). A client writes one key again and again. The pause is
the longest time between two answers to it; where the primary dies, it counts from the end of the primary's session.
Exit code 1: a pause was longer than its budget.")]
pub(crate) struct PausesArgs {
    /// Only these kinds
    #[arg(long, value_delimiter = ',', value_name = "KINDS")]
    pub(crate) only: Vec<String>,
    /// Rounds of each kind; five times as many hand-overs
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,
    /// Directory in which each cluster creates its own [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
