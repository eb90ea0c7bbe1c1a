//! Servers join a cluster and leave it again while YCSB A runs. Measures failed requests, the throughput that is left
//! during the moves, and how even the spread is afterwards.
//!
//! Three nodes run from the start. Two more start, and get their share by themselves. Then both are drained, and are stopped
//! once they have nothing left. Call it from any thread; it starts its own threads and joins them before it returns.

use crate::figures::{duration, verdict};
use crate::json::{check_json, write_json};
use crate::loaded::{Load, Requests, Stretch, while_loaded};
use crate::options::{Failure, NODES, client_options};
use crate::starter::{Started, Starter};
use crate::worker::{Measured, PhaseState};
use clap::{Args, value_parser};
use leeward_client::{Op, OpResult, Session};
use leeward_format::ServerId;
use leeward_format::cluster::Intent;
use leeward_format::status::NodeStatus;
use leeward_operate::spread::{Share, Spread};
use serde::Serialize;
use std::time::{Duration, Instant};
use std::{fmt, thread};

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;

/// Nodes that come and go.
const LATE: u32 = 2;
/// The fraction of the throughput before a move that should be left during it.
const LEAST_THROUGHPUT: f64 = 0.7;
/// How far the bytes of a server may be from an equal share, as a fraction of that.
const WIDEST: f64 = 0.1;
/// How long a move may take.
const MOVED_WITHIN: Duration = Duration::from_secs(600);
/// Moving counts as over once nothing has moved for this long. It is longer than the interval at which a master checks.
const STILL_FOR: Duration = Duration::from_secs(8);
/// How often the cluster is checked.
const LOOK: Duration = Duration::from_millis(250);
/// How long a node may take to report its status.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Options of the measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Regions of the table
    #[arg(long, default_value_t = 24, value_parser = value_parser!(u32).range(1..=1024))]
    pub regions: u32,
    /// Seconds without moves before each move, and after the last
    #[arg(long, default_value = "20", value_name = "SECONDS", value_parser = duration)]
    pub rest: Duration,
    /// Pair sizes and threads of the clients, memory of nodes, and where results go.
    #[command(flatten)]
    pub load: Load,
}

/// One part of the run.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// The name of the part.
    pub name: &'static str,
    /// How long it took.
    pub seconds: f64,
    /// Operations per second.
    pub ops_per_second: f64,
    /// The largest distance of a server's bytes from an equal share at its end, as a fraction of that share.
    pub widest_spread: f64,
    /// The fewest and the most regions that one server is primary of at its end.
    pub primaries: (u64, u64),
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Moves {
    /// The parts, in order: a stage without moves comes before each move.
    pub stages: Vec<Stage>,
    /// The outcome of the clients' requests.
    #[serde(flatten)]
    pub requests: Requests,
    /// The lowest throughput during a move, as a fraction of the throughput before that move.
    pub least_throughput: f64,
}

impl Moves {
    fn of(stages: Vec<Stage>, measured: &Measured) -> Moves {
        let pairs = stages.windows(2).filter(|pair| pair[0].name == NO_MOVES && pair[1].name != NO_MOVES);
        let parts = pairs.map(|pair| pair[1].ops_per_second / pair[0].ops_per_second.max(1.0));
        Moves { least_throughput: parts.fold(f64::INFINITY, f64::min), stages, requests: Requests::of(measured) }
    }

    fn widest(&self) -> f64 {
        self.stages.iter().filter(|stage| stage.name != NO_MOVES).map(|stage| stage.widest_spread).fold(0.0, f64::max)
    }

    /// Whether all targets are met.
    pub fn is_met(&self) -> bool {
        self.requests.is_lossless() && self.least_throughput >= LEAST_THROUGHPUT && self.widest() <= WIDEST
    }
}

const NO_MOVES: &str = "nothing moves";

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| what happens | seconds | operations a second | bytes off an equal share, at most | regions a primary serves |"
        )?;
        writeln!(f, "|---|---|---|---|---|")?;
        for Stage { name, seconds, ops_per_second, widest_spread, primaries: (least, most) } in &self.stages {
            let spread = 100.0 * widest_spread;
            writeln!(f, "| {name} | {seconds:.1} | {ops_per_second:.0} | {spread:.1} % | {least} to {most} |")?;
        }
        let Moves { requests, least_throughput, .. } = self;
        write!(f, "{requests}")?;
        writeln!(
            f,
            "throughput during a move / before: {least_throughput:.2} (should be at least {LEAST_THROUGHPUT}: {})",
            verdict(*least_throughput >= LEAST_THROUGHPUT)
        )?;
        let widest = self.widest();
        writeln!(
            f,
            "bytes off an equal share after a move: {:.1} % (should be at most {:.0} %: {})",
            100.0 * widest,
            100.0 * WIDEST,
            verdict(widest <= WIDEST)
        )
    }
}

/// Measures, prints a table, and writes what `options` ask for. Returns whether all targets are met.
///
/// # Errors
/// A cluster that does not start, a file that cannot be written, or a move that does not come to an end.
pub fn run(options: &Options, starter: &Starter) -> Result<bool, Failure> {
    check_json(options.load.json.as_deref())?;
    let (started, load) = options.load.start(starter, options.regions, LATE)?;
    let session = Session::connect(&load.seeds, client_options(&load))?;
    // The cluster outlives the load.
    let ((stages, _started), measured) = while_loaded(&load, |shared| {
        let mut field = LoadedCluster { started, session, shared, rest: options.rest, stages: Vec::new() };
        field.move_all().map(|()| (field.stages, field.started))
    })?;
    let moves = Moves::of(stages, &measured);
    print!("{moves}");
    write_json(options.load.json.as_deref(), &serde_json::json!({ "moves": moves }))?;
    Ok(moves.is_met())
}

/// The servers that come and go.
fn late() -> impl Iterator<Item = u32> {
    NODES + 1..=NODES + LATE
}

fn is_late(server: ServerId) -> bool {
    late().any(|one| one == server.0)
}

/// A cluster under load.
struct LoadedCluster<'a> {
    started: Started,
    session: Session,
    shared: &'a PhaseState<'a>,
    rest: Duration,
    stages: Vec<Stage>,
}

impl LoadedCluster<'_> {
    fn move_all(&mut self) -> Result<(), Failure> {
        self.rest(|server| !is_late(server))?;
        let stretch = Stretch::begin(self.shared);
        for server in late() {
            self.started.cluster.restart(server)?;
        }
        let has_come =
            |spread: &Spread| late().all(|one| spread.shares.get(&ServerId(one)).is_some_and(|s| s.copies > 0));
        self.wait("two servers join", has_come)?;
        self.end("two servers join", stretch, |_| true)?;
        self.rest(|_| true)?;
        let stretch = Stretch::begin(self.shared);
        for server in late() {
            let leave = Op::Intend { server: ServerId(server), intent: Some(Intent::Leave) };
            let answers = self.session.execute(vec![leave])?;
            if answers != [OpResult::Done] {
                return Err(format!("asking server {server} to leave is answered by {answers:?}").into());
            }
        }
        let has_gone =
            |spread: &Spread| late().all(|one| spread.shares.get(&ServerId(one)).is_none_or(|s| s.copies == 0));
        self.wait("they leave", has_gone)?;
        self.end("they leave", stretch, |server| !is_late(server))?;
        for server in late() {
            self.started.cluster.kill(server)?;
        }
        self.rest(|server| !is_late(server))?;
        Ok(self.started.cluster.check()?)
    }

    fn rest(&mut self, among: impl Fn(ServerId) -> bool) -> Result<(), Failure> {
        let stretch = Stretch::begin(self.shared);
        thread::sleep(self.rest);
        self.end(NO_MOVES, stretch, among)
    }

    fn end(
        &mut self,
        name: &'static str,
        stretch: Stretch<'_>,
        among: impl Fn(ServerId) -> bool,
    ) -> Result<(), Failure> {
        let (seconds, ops_per_second) = stretch.end();
        let spread = self.spread()?;
        let (widest_spread, primaries) = (spread.widest(&among), spread.primaries(&among));
        self.stages.push(Stage { name, seconds, ops_per_second, widest_spread, primaries });
        Ok(())
    }

    /// Waits until `is_so`, and nothing moves any more.
    fn wait(&mut self, what: &str, is_so: impl Fn(&Spread) -> bool) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut still = Instant::now();
        let mut said = usize::MAX;
        while begun.elapsed() < MOVED_WITHIN {
            let spread = self.spread()?;
            if !is_so(&spread) || !spread.moving.is_empty() {
                still = Instant::now();
            }
            if still.elapsed() > STILL_FOR {
                return Ok(());
            }
            if said != spread.moving.len() {
                said = spread.moving.len();
                eprintln!("{what}: {said} regions move, {}", describe(&spread));
            }
            thread::sleep(LOOK);
        }
        Err(format!("{what}: not done after {MOVED_WITHIN:?}").into())
    }

    fn spread(&mut self) -> Result<Spread, Failure> {
        let map = self.session.fetch_map()?;
        // A node that has just come or gone does not answer.
        let access = self.session.access();
        let asked = map.servers.iter().map(|info| access.status(&info.admin_address, TIMEOUT));
        let statuses: Vec<NodeStatus> = asked.filter_map(Result::ok).collect();
        Ok(Spread::of(&map, &statuses.iter().collect::<Vec<_>>()))
    }
}

fn describe(spread: &Spread) -> String {
    let of = |(server, share): (&ServerId, &Share)| {
        format!("{server}: {} MiB, primary of {}", share.bytes >> 20, share.primaries)
    };
    spread.shares.iter().map(of).collect::<Vec<_>>().join("; ")
}
