//! Embedded engines side by side: the same YCSB workloads on Leeward, RocksDB and fjall, in interleaved rounds.
//!
//! ```text
//!   compare -> rounds: for each mix and round, each engine in turn
//!                |        a child process each: `run`, which prints its measurements line by line
//!                |            phase: client threads over an engine's driver; /proc/self before and after
//!                v
//!              cells: medians -> targets: ratios to RocksDB -> report (Markdown), plot (SVG), JSON
//! ```
//! Each engine has a process of its own in each round. So CPU time, device bytes and memory are the engine's own, and a
//! crash does not end the comparison. The parts of the workloads come from `leeward-bench`. `docs/rivals.md` says how
//! each engine is configured and how to read the report.
#![forbid(unsafe_code)]

mod args;
mod cells;
mod engine;
mod measurement;
mod page_cache;
mod phase;
mod plan;
mod plot;
mod report;
mod rounds;
mod run;
mod scale;
mod targets;
mod work;

use args::{Args, Command};
use clap::Parser;
use std::process::ExitCode;

/// Any failure, as a message.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Compare(args) => report::compare(&args),
        Command::Scale(args) => scale::scale(&args),
        Command::Run(args) => run::run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
