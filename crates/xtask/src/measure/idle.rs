//! `cargo xtask measure idle`: how long a cluster takes to start, and what it spends while it gets no requests.
//!
//! The memory of a process is not accounted by region. So the figure per region is an upper bound: it assigns all
//! memory of the process to the regions that it serves, or to those that it backs up.

use clap::Args;
use leeward_bench::Failure;
use leeward_bench::starter::temporary;
use leeward_bench::{IdleReport, check_json, even_split_points, idle, write_json};
use leeward_client::{Client, ClientOptions, Condition, GroupConfig, Lifetime, Op, OpResult, RegionMap, Session};
use leeward_format::ServerId;
use leeward_format::cluster::Member;
use leeward_operate::dev::{Cluster, DevError, Fabric, NodeProcesses, Plan};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

/// Options of the measurement.
#[derive(Args, Debug)]
pub(super) struct IdleArgs {
    /// Start a cluster of this many nodes
    #[arg(long, value_name = "NODES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=32))]
    dev: u32,
    /// How nodes write each other's memory
    #[arg(long, value_enum, default_value = "shm")]
    fabric: Fabric,
    /// Number of regions, all of the same size [default: two per node]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    regions: Option<u32>,
    /// Put this many pairs of 100 bytes into each region, and restart the cluster, before the measurement
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pairs: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Time that a cluster gets to settle after it became ready, or after it was written to.
const SETTLE: Duration = Duration::from_secs(5);
/// Bytes of a value.
const VALUE_BYTES: usize = 100;

/// How long a cluster took to start.
#[derive(Clone, Copy, Debug, Serialize)]
struct Start {
    /// Pairs in each region.
    pairs: u32,
    /// From the first process's start until every region answers.
    served_seconds: f64,
    /// From the first process's start until all of their members are in sync as well.
    whole_seconds: f64,
}

/// Upper bounds of a region's memory, in the process that has the most memory per region.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct RegionBytes {
    /// At its primary.
    primary: u64,
    /// At a backup.
    backup: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    regions: usize,
    starts: Vec<Start>,
    region_bytes: RegionBytes,
    #[serde(flatten)]
    idle: IdleReport,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Start { pairs, served_seconds, whole_seconds } in &self.starts {
            let regions = self.regions;
            write!(f, "{regions} regions of {pairs} pairs: served {served_seconds:.2} s after the start, ")?;
            writeln!(f, "with all members {whole_seconds:.2} s")?;
        }
        write!(f, "{}", self.idle)?;
        let RegionBytes { primary, backup } = self.region_bytes;
        let (primary, backup) = (primary.div_ceil(1 << 10), backup.div_ceil(1 << 10));
        writeln!(f, "memory: at most {primary} KiB a region at its primary, {backup} KiB at a backup")
    }
}

pub(super) fn run(args: &IdleArgs, program: PathBuf, data: Option<&Path>) -> Result<bool, Failure> {
    check_json(args.json.as_deref())?;
    let directory = temporary(data)?;
    let splits = even_split_points(args.regions.unwrap_or(2 * args.dev));
    let plan = Plan { fabric: args.fabric, ..Plan::new(program, args.dev, splits, directory.path().to_path_buf())? };
    let (mut cluster, fresh) = start(plan.clone(), 0)?;
    let mut starts = vec![fresh];
    if args.pairs > 0 {
        fill(&cluster, args.pairs)?;
        thread::sleep(SETTLE);
        cluster.stop();
        drop(cluster);
        let (again, start) = start(plan, args.pairs)?;
        cluster = again;
        starts.push(start);
    }
    thread::sleep(SETTLE);
    let nodes: Vec<(u32, u32)> = (1..=args.dev).filter_map(|node| Some((node, cluster.pid(node)?))).collect();
    let named = nodes.iter().map(|(node, pid)| (format!("node {node}"), *pid));
    let processes: Vec<_> = named.chain([("coordinator".to_owned(), process::id())]).collect();
    let idle = idle(&processes, Duration::from_secs(args.seconds))?;
    cluster.check()?;
    let map = Session::connect(&cluster.addresses(), ClientOptions::default())?.fetch_map()?;
    let report = Report { regions: map.regions.len(), starts, region_bytes: region_bytes(&map, &nodes, &idle), idle };
    print!("{report}");
    write_json(args.json.as_deref(), &report)?;
    Ok(true)
}

/// Starts the cluster, and waits until it is whole.
fn start(plan: Plan, pairs: u32) -> Result<(Cluster, Start), DevError> {
    let begun = Instant::now();
    let mut cluster = Cluster::start(plan)?;
    cluster.wait_until_ready(false, || false)?;
    let served_seconds = begun.elapsed().as_secs_f64();
    cluster.wait_until_ready(true, || false)?;
    Ok((cluster, Start { pairs, served_seconds, whole_seconds: begun.elapsed().as_secs_f64() }))
}

/// Puts so many pairs into each region.
fn fill(cluster: &Cluster, pairs: u32) -> Result<(), Failure> {
    let client = Client::connect(&cluster.addresses(), ClientOptions::default())?;
    let regions = client.region_map()?.regions;
    for number in 0..pairs {
        let put = |config: &GroupConfig| Op::Put {
            // The first key of a region, followed by a number: it lies in this region.
            key: [&config.start, &number.to_be_bytes()[..]].concat().into(),
            value: vec![7; VALUE_BYTES].into(),
            when: Condition::Always,
            want_old: false,
            lifetime: Lifetime::Forever,
        };
        let results = client.execute(regions.iter().map(put).collect())?;
        if let Some(odd) = results.iter().find(|result| !matches!(result, OpResult::Put { .. })) {
            return Err(format!("a put is answered by {odd:?}").into());
        }
    }
    Ok(())
}

/// Upper bounds of the memory of a region, at its primary and at a backup.
fn region_bytes(map: &RegionMap, nodes: &[(u32, u32)], idle: &IdleReport) -> RegionBytes {
    let mut most = RegionBytes::default();
    for ((node, _), process) in nodes.iter().zip(&idle.processes) {
        let is_here = |member: &Member| member.server == ServerId(*node);
        let served = map.regions.iter().filter(|config| config.primary.as_ref().is_some_and(is_here)).count();
        let backed_up = map.regions.iter().filter(|config| config.backups.iter().any(is_here)).count();
        let of = |regions: usize| process.memory_bytes.unwrap_or(0).checked_div(regions as u64).unwrap_or(0);
        most.primary = most.primary.max(of(served));
        most.backup = most.backup.max(of(backed_up));
    }
    most
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
