//! Measures what a request of a Redis client costs: Leeward with three copies, beside Redis with two replicas.
//!
//! Both run at the same time on this machine, and `redis-benchmark` drives one of them at a time. Counted is the CPU time of
//! all server processes, by the kernel's accounting. Redis keeps its data in memory only, and acknowledges a write before
//! replicas have it. Call it from any thread.

mod servers;

use crate::figures::{median, number, verdict};
use crate::json::{check_json, write_json};
use crate::options::Failure;
use crate::process::{ProcessSpent, seconds};
use crate::redis_benchmark::{Commands, KEYS, drive};
use crate::starter::temporary;
use clap::{Args, value_parser};
use leeward_client::{ClientOptions, Session};
use leeward_operate::dev::{Cluster, NodeProcesses, Plan};
use serde::Serialize;
use servers::Servers;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Nodes of Leeward, each with a copy; Redis has one replica less.
const NODES: u32 = 3;
/// Memory of a node: all data is in memory, as it is in Redis.
const MEMORY_BYTES: u64 = 1 << 30;
/// One request at a time on each connection is slow: it gets this part of the requests.
const PART_ONE_BY_ONE: u64 = 4;

/// Options of the measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Rounds; in each, every kind of request goes to Redis and to Leeward in turn
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Requests of each kind, 16 in flight on each connection; a quarter of that where there is one
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u64).range(400_000..))]
    pub requests: u64,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// GETs at the primary, one in flight on each connection.
    Get,
    /// The same, 16 in flight.
    Get16,
    /// GETs at another node, which forwards them: only Leeward. One in flight.
    Forwarded,
    /// The same, 16 in flight.
    Forwarded16,
    /// SETs at the primary, one in flight.
    Set,
    /// The same, 16 in flight.
    Set16,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Get, Kind::Get16, Kind::Forwarded, Kind::Forwarded16, Kind::Set, Kind::Set16];

    fn is_forwarded(self) -> bool {
        matches!(self, Kind::Forwarded | Kind::Forwarded16)
    }

    fn commands(self, options: &Options) -> Commands {
        let (test, depth) = match self {
            Kind::Get | Kind::Forwarded => ("get", 1),
            Kind::Get16 | Kind::Forwarded16 => ("get", 16),
            Kind::Set => ("set", 1),
            Kind::Set16 => ("set", 16),
        };
        let count = if depth == 1 { options.requests / PART_ONE_BY_ONE } else { options.requests };
        Commands { test, count, depth }
    }

    /// The kind whose cost of Redis it is compared with: Redis forwards nothing.
    fn beside(self) -> Kind {
        match self {
            Kind::Forwarded => Kind::Get,
            Kind::Forwarded16 => Kind::Get16,
            other => other,
        }
    }

    /// The most that it should cost, in costs of Redis.
    fn wanted(self) -> Option<f64> {
        match self {
            Kind::Get => Some(0.8),
            Kind::Get16 => Some(1.3),
            Kind::Forwarded => None,
            Kind::Forwarded16 => Some(2.3),
            Kind::Set => Some(0.65),
            Kind::Set16 => Some(0.45),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Get => "GET at the primary",
            Kind::Get16 => "GET at the primary, 16 in flight",
            Kind::Forwarded => "GET at another node",
            Kind::Forwarded16 => "GET at another node, 16 in flight",
            Kind::Set => "SET",
            Kind::Set16 => "SET, 16 in flight",
        })
    }
}

/// What requests of one kind took in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// CPU time of all server processes, in microseconds a request.
    pub cpu_us: f64,
    /// Requests a second.
    pub rate: f64,
}

/// The medians of one kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Which requests, how many in flight, and to which node.
    pub kind: Kind,
    /// Of Redis; of a forwarded GET the one at the primary.
    pub redis: Cost,
    /// Of Leeward.
    pub leeward: Cost,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.leeward.cpu_us / self.redis.cpu_us
    }

    fn is_met(&self) -> bool {
        self.kind.wanted().is_none_or(|most| self.ratio() <= most)
    }
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One row for each kind.
    pub rows: Vec<Row>,
}

impl Report {
    /// Of what each kind cost in all rounds, at Redis and at Leeward.
    fn of(rounds: &[(Kind, Option<Cost>, Cost)]) -> Option<Report> {
        let middle = |costs: Vec<Cost>| {
            let of = |figure: fn(&Cost) -> f64| median(costs.iter().map(figure).collect());
            Some(Cost { cpu_us: of(|cost| cost.cpu_us)?, rate: of(|cost| cost.rate)? })
        };
        let row = |kind: Kind| {
            let redis = rounds.iter().filter(|(other, ..)| *other == kind.beside()).filter_map(|(_, cost, _)| *cost);
            let leeward = rounds.iter().filter(|(other, ..)| *other == kind).map(|(.., cost)| *cost);
            Some(Row { kind, redis: middle(redis.collect())?, leeward: middle(leeward.collect())? })
        };
        Some(Report { rows: Kind::ALL.into_iter().map(row).collect::<Option<_>>()? })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "CPU of all servers, us a request; requests a second in brackets. Medians.\n")?;
        writeln!(
            f,
            "| request | Redis, 2 replicas | Leeward, 3 copies | ratio | at most | |\n|---|---|---|---|---|---|"
        )?;
        for row in &self.rows {
            let cost = |cost: Cost| format!("{} ({:.0})", number(cost.cpu_us), cost.rate);
            let wanted = row.kind.wanted();
            let (most, verdict) = (wanted.map(number), wanted.map(|_| verdict(row.is_met())));
            let (most, verdict) = (most.unwrap_or_default(), verdict.unwrap_or_default());
            let (redis, leeward, ratio) = (cost(row.redis), cost(row.leeward), number(row.ratio()));
            writeln!(f, "| {} | {redis} | {leeward} | {ratio} | {most} | {verdict} |", row.kind)?;
        }
        Ok(())
    }
}

/// Measures, prints a table, and writes what `options` ask for. Returns whether all targets are met. Nodes of Leeward are
/// processes of `program`; their data is below `data`, as of [`temporary`].
///
/// # Errors
/// `redis-server` or `redis-benchmark` is not installed or fails, a node that does not start, or a file that cannot be
/// written.
pub fn run(options: &Options, program: PathBuf, data: Option<&Path>) -> Result<bool, Failure> {
    check_json(options.json.as_deref())?;
    let directory = temporary(data)?;
    let redis = Servers::start(NODES as usize - 1, directory.path())?;
    let mut leeward = Leeward::start(program, &directory.path().join("leeward"))?;
    let load = Commands { test: "set", count: 4 * KEYS, depth: 16 };
    for node in [redis.address(), leeward.primary] {
        drive(node, load, None)?;
    }
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        for kind in Kind::ALL {
            eprintln!("round {round} of {}: {kind}", options.rounds);
            let commands = kind.commands(options);
            let (node, of_redis) = match kind.is_forwarded() {
                true => (leeward.other, None),
                false => (leeward.primary, Some(cost(redis.address(), commands, &redis.pids())?)),
            };
            rounds.push((kind, of_redis, cost(node, commands, &leeward.pids()?)?));
        }
        redis.check()?;
        leeward.check()?;
    }
    let report = Report::of(&rounds).ok_or("no rounds")?;
    print!("{report}");
    write_json(options.json.as_deref(), &report)?;
    Ok(report.rows.iter().all(Row::is_met))
}

/// What the commands cost all servers.
fn cost(node: SocketAddr, commands: Commands, servers: &[u32]) -> Result<Cost, Failure> {
    let before = cpu_seconds(servers)?;
    let rate = drive(node, commands, None)?;
    Ok(Cost { cpu_us: (cpu_seconds(servers)? - before) * 1e6 / commands.count as f64, rate })
}

fn cpu_seconds(servers: &[u32]) -> Result<f64, Failure> {
    let ticks = servers.iter().map(|pid| {
        let ProcessSpent { user_ticks, system_ticks, .. } = ProcessSpent::of(*pid);
        Some(user_ticks? + system_ticks?)
    });
    let ticks = ticks.sum::<Option<u64>>().ok_or("a server has ended, or the kernel does not tell its CPU time")?;
    Ok(seconds(ticks))
}

/// A cluster of one region.
struct Leeward {
    cluster: Cluster,
    /// The node that serves the region.
    primary: SocketAddr,
    /// A node that forwards requests to it.
    other: SocketAddr,
}

impl Leeward {
    fn start(program: PathBuf, directory: &Path) -> Result<Leeward, Failure> {
        let settings = [("memory_budget", MEMORY_BYTES.to_string()), ("balance", "false".into())];
        let plan = Plan {
            settings: settings.map(|(name, value)| (name.into(), value)).into(),
            ..Plan::new(program, NODES, Vec::new(), directory.to_path_buf())?
        };
        let mut cluster = Cluster::start(plan)?;
        cluster.wait_until_ready(true, || false)?;
        let server = primary(&cluster)?;
        let ports = cluster.plan().ports;
        Ok(Leeward { primary: ports.resp(server), other: ports.resp(server % NODES + 1), cluster })
    }

    fn pids(&self) -> Result<Vec<u32>, Failure> {
        let pids: Option<Vec<u32>> = (1..=NODES).map(|node| self.cluster.pid(node)).collect();
        Ok(pids.ok_or("a node has ended")?)
    }

    /// Checks that all nodes run, and that the same one serves the region: otherwise requests were not what they are called.
    fn check(&mut self) -> Result<(), Failure> {
        self.cluster.check()?;
        let server = primary(&self.cluster)?;
        match self.cluster.plan().ports.resp(server) == self.primary {
            true => Ok(()),
            false => Err("the primary changed meanwhile: measure again, with nothing else on the machine".into()),
        }
    }
}

/// The node that serves the region.
fn primary(cluster: &Cluster) -> Result<u32, Failure> {
    let map = Session::connect(&cluster.addresses(), ClientOptions::default())?.fetch_map()?;
    let primary = map.regions.first().and_then(|region| region.primary.as_ref());
    Ok(primary.ok_or("the region has no primary")?.server.0)
}
