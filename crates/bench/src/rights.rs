//! Measures what checks of rights cost a get: one node, driven by `redis-benchmark` in turn without users, and as one of many
//! users with many grants, of which only the last gives the right.
//!
//! It is the same process and the same data in all rounds: before each part users are made, and after it all are removed.
//! Call it from any thread.

use crate::figures::{median, verdict};
use crate::json::{check_json, write_json};
use crate::operator::{Made, Operator, Verdict, wait_until};
use crate::options::Failure;
use crate::redis_benchmark::{Commands, KEYS, drive};
use crate::starter::temporary;
use clap::{Args, value_parser};
use leeward_client::Grant;
use leeward_format::cluster::TableOptions;
use leeward_operate::dev::{Cluster, Plan};
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;

/// The ratio that is wanted at least.
const WANTED: f64 = 0.97;
/// Commands in flight on each connection.
const DEPTH: u32 = 16;
/// How long a node takes to follow the removal of all users.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);
/// Memory of the node: all data is in memory, so that nothing hides the checks.
const MEMORY_BYTES: u64 = 1 << 30;

/// Options of the measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Rounds, each without users and with them
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Users
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..=10_000))]
    pub users: u32,
    /// Grants of each user, each of one prefix of the table; the last gives the right
    #[arg(long, default_value_t = 31, value_parser = value_parser!(u32).range(1..=63))]
    pub grants: u32,
    /// Gets of each part
    #[arg(long, default_value_t = 2_000_000, value_parser = value_parser!(u64).range(1_000..))]
    pub gets: u64,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// One round: gets per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// While there are no users.
    pub without: f64,
    /// As one of many users.
    pub with: f64,
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The rounds, in order.
    pub rounds: Vec<Round>,
    /// The median of the rounds' ratios: with users, by without.
    pub ratio: f64,
}

impl Report {
    fn of(rounds: Vec<Round>) -> Option<Report> {
        let ratio = median(rounds.iter().map(|round| round.with / round.without).collect())?;
        Some(Report { rounds, ratio })
    }

    fn is_met(&self) -> bool {
        self.ratio >= WANTED
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| round | gets a second without users | with users | ratio |\n|---|---|---|---|")?;
        for (number, Round { without, with }) in (1..).zip(&self.rounds) {
            writeln!(f, "| {number} | {without:.0} | {with:.0} | {:.3} |", with / without)?;
        }
        writeln!(f, "median of the ratios: {:.3} (should be {WANTED} at least: {})", self.ratio, verdict(self.is_met()))
    }
}

/// Measures, prints a table, and writes what `options` ask for. Returns whether the ratio is as wanted. The node is a
/// process of `program`; its data is below `data`, as of [`temporary`].
///
/// # Errors
/// `redis-benchmark` is not installed or fails, a node that does not start, or a file that cannot be written.
pub fn run(options: &Options, program: PathBuf, data: Option<&Path>) -> Result<bool, Failure> {
    check_json(options.json.as_deref())?;
    let directory = temporary(data)?;
    let plan = Plan {
        table: TableOptions { replicas: 1, min_in_sync: 1, ..TableOptions::default() },
        settings: vec![("memory_budget".into(), MEMORY_BYTES.to_string())],
        ..Plan::new(program, 1, Vec::new(), directory.path().to_path_buf())?
    };
    let mut cluster = Cluster::start(plan)?;
    cluster.wait_until_ready(true, || false)?;
    let node = cluster.plan().ports.resp(1);
    drive(node, Commands { test: "set", count: 2 * KEYS, depth: DEPTH }, None)?;
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        eprintln!("round {number} of {}", options.rounds);
        let without = drive(node, gets(options), None)?;
        let with = with_users(options, &cluster.addresses(), node)?;
        rounds.push(Round { without, with });
    }
    let report = Report::of(rounds).ok_or("no rounds")?;
    print!("{report}");
    write_json(options.json.as_deref(), &report)?;
    Ok(report.is_met())
}

/// Makes the users, drives the node as one of them, and removes all.
fn with_users(options: &Options, addresses: &[String], node: SocketAddr) -> Result<f64, Failure> {
    let operator = Operator::make(addresses)?;
    let (made, grants) = (Made::new(), grants(options.grants)?);
    for number in 1..=options.users {
        operator.add(&user(number), &made, &grants)?;
    }
    let last = user(options.users);
    wait_until(addresses, &last, &made, Verdict::Accepted)?;
    let password = String::from_utf8_lossy(made.password.bytes()).into_owned();
    let rate = drive(node, gets(options), Some((&user(options.users.div_ceil(2)), &password)))?;
    operator.remove_all()?;
    thread::sleep(FOLLOWED_WITHIN);
    Ok(rate)
}

fn gets(options: &Options) -> Commands {
    Commands { test: "get", count: options.gets, depth: DEPTH }
}

fn user(number: u32) -> String {
    format!("user-{number}")
}

/// Grants of prefixes that no key has, and last the one of the keys of `redis-benchmark`.
fn grants(count: u32) -> Result<Vec<Grant>, Failure> {
    let prefixes = (1..count).map(|number| format!("p{number:02}:")).chain(["key:".into()]);
    Ok(prefixes.map(|prefix| format!("read,write@default:{prefix}").parse()).collect::<Result<_, String>>()?)
}
