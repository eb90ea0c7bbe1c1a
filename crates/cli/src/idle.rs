//! `leeward bench idle`: how long a cluster takes to start, and what it spends while it gets no requests.
//!
//! The memory of a process is not accounted by region. So the figure per region is a bound: as if all memory of the process
//! were for the regions that it serves, or for those that it backs up.

use crate::Outcome;
use crate::args::IdleArgs;
use crate::bench::{check_file, directory, end_with_signal, plan};
use crate::ingest::into_table;
use crate::signals;
use crate::supervisor::{Cluster, DevError, Plan};
use leeward_bench::{DevCluster, IdleReport, idle, write_json};
use leeward_client::{Client, ClientOptions, RegionMap, Session};
use leeward_format::ServerId;
use leeward_format::cluster::Member;
use serde::Serialize;
use std::error::Error;
use std::fmt;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

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
    /// Where it is served.
    primary: u64,
    /// Where it is backed up.
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

pub(crate) fn run(args: &IdleArgs) -> Outcome {
    if let Some(path) = &args.json {
        check_file(path)?;
    }
    let mut temporary = None;
    let events = signals::listen(false)?;
    let directory = directory(None, &mut temporary)?;
    end_with_signal(events, temporary.as_ref().map(|made| made.path().to_path_buf()))?;
    let plan = plan(args.dev, args.regions, args.fabric, directory)?;
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
fn fill(cluster: &Cluster, pairs: u32) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(&cluster.addresses(), ClientOptions::default())?;
    let starts: Vec<_> = client.region_map()?.regions.into_iter().map(|config| config.start).collect();
    // The first keys of regions, with a number behind: they lie in these regions.
    let key = |start: &bytes::Bytes, number: u32| [start, &number.to_be_bytes()[..]].concat();
    let keys = (0..pairs).flat_map(|number| starts.iter().map(move |start| key(start, number)));
    into_table(&client, &mut keys.map(|key| Ok((key, vec![7; VALUE_BYTES])))).map(drop)
}

/// Bounds of what a region takes.
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
