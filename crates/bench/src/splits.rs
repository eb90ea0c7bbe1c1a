//! Measures splits of a region under load: how long the region pauses, and the throughput that is left during the split
//! and while each half trims the data of the other.
//!
//! One region on three nodes serves YCSB A. Each split is of the region with the lowest keys. At the first split it has
//! all of the load, then half of it, and so on. Beside the load, a thread writes one key of that region repeatedly,
//! each write after the answer to the last. Call it from any thread.

use crate::figures::duration;
use crate::json::{check_json, write_json};
use crate::loaded::{Load, Requests, Stretch, while_loaded};
use crate::options::Failure;
use crate::pauses::{Probe, connect, keep_probing, settle};
use crate::starter::{Started, Starter};
use crate::worker::PhaseState;
use clap::{Args, value_parser};
use leeward_client::{Op, OpResult, Session};
use leeward_format::cluster::RegionRequest;
use serde::Serialize;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;

/// How long a split may take.
const SPLIT_WITHIN: Duration = Duration::from_secs(120);
/// Length of the wake: the time after a split whose throughput is reported separately.
const WAKE: Duration = Duration::from_secs(5);
/// How often the region map is checked.
const LOOK: Duration = Duration::from_millis(2);

/// Options of the measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Number of splits
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=16))]
    pub rounds: u32,
    /// Seconds without splits before each split, and after the five seconds that follow the last
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = duration)]
    pub rest: Duration,
    /// Pair sizes and threads of the clients, memory of nodes, and where results go.
    #[command(flatten)]
    pub load: Load,
}

/// One split. Rates are operations per second, of all clients except the one that writes one key.
#[derive(Clone, Debug, Serialize)]
pub struct Split {
    /// From the request until there were two regions, in seconds.
    pub seconds: f64,
    /// The longest time between two answers to the client that writes one key of the region, in milliseconds.
    pub longest_pause_ms: f64,
    /// Before the split.
    pub before: f64,
    /// From the request until there were two regions.
    pub during: f64,
    /// In the five seconds after that.
    pub wake: f64,
    /// After those.
    pub after: f64,
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Splits {
    /// The splits, in order.
    pub splits: Vec<Split>,
    /// The outcome of the clients' requests.
    #[serde(flatten)]
    pub requests: Requests,
}

impl fmt::Display for Splits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| split | seconds | longest pause, ms | ops/s before | during | 5 s after | later |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for (number, split) in (1..).zip(&self.splits) {
            let Split { seconds, longest_pause_ms, before, during, wake, after } = split;
            writeln!(
                f,
                "| {number} | {seconds:.2} | {longest_pause_ms:.1} | {before:.0} | {during:.0} | {wake:.0} | {after:.0} |"
            )?;
        }
        write!(f, "{}", self.requests)
    }
}

/// Measures, prints a table, and writes what `options` ask for. Returns whether no request failed.
///
/// # Errors
/// A cluster that does not start, a file that cannot be written, or a region that is not split.
pub fn run(options: &Options, starter: &Starter) -> Result<bool, Failure> {
    check_json(options.load.json.as_deref())?;
    let (mut started, load) = options.load.start(starter, 1, 0)?;
    let (splits, measured) = while_loaded(&load, |shared| split_all(options, &mut started, shared))?;
    let splits = Splits { splits, requests: Requests::of(&measured) };
    print!("{splits}");
    write_json(options.load.json.as_deref(), &splits)?;
    Ok(splits.requests.is_lossless())
}

fn split_all(options: &Options, started: &mut Started, shared: &PhaseState<'_>) -> Result<Vec<Split>, Failure> {
    let (probe, probing) = (Probe::default(), connect(&started.seeds)?);
    let mut field = LoadedCluster { session: connect(&started.seeds)?, shared, probe: &probe };
    let splits = thread::scope(|scope| {
        let probing = scope.spawn(|| keep_probing(probing, &probe));
        let splits = (0..options.rounds).map(|_| field.split(options.rest)).collect::<Result<Vec<_>, _>>();
        probe.end();
        probing.join().expect("it does not panic").map_err(|error| error.to_string())?;
        splits
    })?;
    started.cluster.check()?;
    Ok(splits)
}

/// A cluster under load.
struct LoadedCluster<'a> {
    session: Session,
    shared: &'a PhaseState<'a>,
    probe: &'a Probe,
}

impl LoadedCluster<'_> {
    /// Splits the region with the lowest keys, which the probe is in.
    fn split(&mut self, rest: Duration) -> Result<Split, Failure> {
        let before = self.rate_for(rest)?;
        let regions = self.session.fetch_map()?.regions;
        let region = regions.first().ok_or("there is no region")?.region;
        let begun = Instant::now();
        let during = self.rate(|field| {
            let request = Op::RequestRegion { region, request: RegionRequest::Split { at: None } };
            let answers = field.session.execute(vec![request])?;
            if answers != [OpResult::Done] {
                return Err(format!("the request is answered by {answers:?}").into());
            }
            while field.session.fetch_map()?.regions.len() == regions.len() {
                if begun.elapsed() > SPLIT_WITHIN {
                    return Err(format!("region {region} is not split after {SPLIT_WITHIN:?}").into());
                }
                thread::sleep(LOOK);
            }
            Ok(())
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let longest_pause_ms = settle(self.probe, begun)?.as_secs_f64() * 1e3;
        let (wake, after) = (self.rate_for(WAKE)?, self.rate_for(rest)?);
        Ok(Split { seconds, longest_pause_ms, before, during, wake, after })
    }

    /// Operations per second during `time`, without a split.
    fn rate_for(&mut self, time: Duration) -> Result<f64, Failure> {
        self.rate(|_| {
            thread::sleep(time);
            Ok(())
        })
    }

    /// Operations per second while `what` runs.
    fn rate(&mut self, what: impl FnOnce(&mut Self) -> Result<(), Failure>) -> Result<f64, Failure> {
        let stretch = Stretch::begin(self.shared);
        what(self)?;
        Ok(stretch.end().1)
    }
}
