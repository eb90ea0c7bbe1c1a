//! `leeward bench replication`, `faults`, `pauses`, `moves` and `splits`: starts the clusters that these benchmarks want, one
//! at a time, each in a directory of its own.
//!
//! Belongs to one thread.

use crate::Outcome;
use crate::args::{CellArgs, FaultsArgs, LoadArgs, MovesArgs, PausesArgs, Preset, ReplicationArgs, SplitsArgs};
use crate::bench::{check_file, end_with_signal, seconds};
use crate::ports::Ports;
use crate::signals;
use crate::supervisor::{Cluster, Plan};
use clap::ValueEnum;
use leeward_bench::replication::{self, CellOptions, Clusters, Failure, Link, NODES, Options, Started, Wanted};
use leeward_bench::{DevCluster, Load, even_split_points, faults, moves, pauses, splits};
use leeward_fabric::{LibfabricFabric, LinkOptions, PeerId, Provider};
use leeward_format::cluster::TableOptions;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) fn run(args: &ReplicationArgs) -> Outcome {
    with_starter(args.cell.files(), |starter| replication::run(&options(args), starter))
}

pub(crate) fn run_faults(args: &FaultsArgs) -> Outcome {
    let options = faults::Options {
        only: args.only.clone(),
        kills: args.kills,
        every: seconds("kill-primary-every", args.kill_primary_every)?,
        records: args.records,
        cell: cell(&args.cell),
        json: args.cell.json.clone(),
    };
    with_starter(args.cell.files(), |starter| faults::run(&options, starter))
}

pub(crate) fn run_pauses(args: &PausesArgs) -> Outcome {
    let options = pauses::Options { only: args.only.clone(), rounds: args.rounds, json: args.json.clone() };
    with_starter((args.data.as_deref(), args.json.as_deref()), |starter| pauses::run(&options, starter))
}

pub(crate) fn run_moves(args: &MovesArgs) -> Outcome {
    let options =
        moves::Options { regions: args.regions, load: args.load.load(args.records), rest: seconds("rest", args.rest)? };
    with_starter(args.load.files(), |starter| moves::run(&options, starter))
}

pub(crate) fn run_splits(args: &SplitsArgs) -> Outcome {
    let options =
        splits::Options { rounds: args.rounds, load: args.load.load(args.records), rest: seconds("rest", args.rest)? };
    with_starter(args.load.files(), |starter| splits::run(&options, starter))
}

fn cell(args: &CellArgs) -> CellOptions {
    let &CellArgs { l0_kib, memory_mib, regions, threads, depth, .. } = args;
    CellOptions { l0_kib, memory_mib, regions, threads, depth }
}

impl CellArgs {
    /// Where clusters and the JSON go.
    fn files(&self) -> (Option<&Path>, Option<&Path>) {
        (self.data.as_deref(), self.json.as_deref())
    }
}

impl LoadArgs {
    fn load(&self, records: u64) -> Load {
        let LoadArgs { mix, threads, depth, memory_mib, json, .. } = self;
        let (mix, memory_bytes) = (*mix, *memory_mib << 20);
        Load { records, mix, threads: *threads, depth: *depth, memory_bytes, json: json.clone() }
    }

    /// Where the cluster and the JSON go.
    fn files(&self) -> (Option<&Path>, Option<&Path>) {
        (self.data.as_deref(), self.json.as_deref())
    }
}

fn with_starter(
    (data, json): (Option<&Path>, Option<&Path>),
    run: impl FnOnce(&mut Starter) -> Result<bool, Failure>,
) -> Outcome {
    if let Some(path) = json {
        check_file(path)?;
    }
    let parent = data.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let all = tempfile::Builder::new().prefix("leeward-bench-").tempdir_in(&parent);
    let all = all.map_err(|error| format!("--data {}: {error}", parent.display()))?;
    let events = signals::listen(false)?;
    end_with_signal(events, Some(all.path().to_path_buf()))?;
    run(&mut Starter { directory: all.path().to_path_buf() }).map_err(|error| error as Box<dyn Error>)
}

fn options(args: &ReplicationArgs) -> Options {
    Options {
        only: args.only.clone(),
        quick: args.quick,
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        records: args.records,
        ops: args.ops,
        cell: cell(&args.cell),
        json: args.cell.json.clone(),
        out: args.out.clone(),
    }
}

/// The provider that stands in for a network card, and its name in a node's settings.
const PROVIDER: (Provider, &str) = (Provider::Tcp, "libfabric:tcp");

/// How long a client or node spins on its rings before it sleeps, in microseconds, where spinning is measured.
const SPIN_US: u64 = 100;

struct Starter {
    /// Holds the directories of all clusters.
    directory: PathBuf,
}

impl Clusters for Starter {
    fn preset(&self, name: &str) -> TableOptions {
        Preset::from_str(name, false).expect("the benchmark names presets that exist").options()
    }

    fn check_link(&self, link: Link) -> Result<(), Failure> {
        if link == Link::Libfabric {
            LibfabricFabric::bind(PeerId(0), "127.0.0.1:0", PROVIDER.0, LinkOptions::default(), Arc::new(|_, _| {}))?;
        }
        Ok(())
    }

    fn start(&mut self, wanted: Wanted) -> Result<Started, Failure> {
        let directory = tempfile::Builder::new().prefix("cell-").tempdir_in(&self.directory)?;
        let mut cluster = Cluster::start(plan(&wanted, directory.path().to_path_buf())?)?;
        // A signal ends the process.
        cluster.wait_until_ready(true, || false)?;
        let seed = |address: &String| match wanted.link {
            Link::Rings => format!("leeward+ring://{address}"),
            Link::SpinningRings => format!("leeward+ring://{address}?spin_us={SPIN_US}"),
            Link::Shm | Link::Tcp | Link::Libfabric => address.clone(),
        };
        let seeds = cluster.addresses().iter().map(seed).collect();
        Ok(Started { seeds, cluster: Box::new(Cell { cluster, _directory: directory }) })
    }
}

fn plan(wanted: &Wanted, directory: PathBuf) -> Result<Plan, Failure> {
    let mut settings = vec![("memory_budget".into(), wanted.memory_bytes.to_string())];
    if wanted.late == 0 {
        // A transfer of a primary role would disturb the measurement.
        settings.push(("balance".into(), "false".into()));
    }
    if wanted.link == Link::SpinningRings {
        settings.push(("ring_spin_us".into(), SPIN_US.to_string()));
    }
    Ok(Plan {
        nodes: NODES + wanted.late,
        late: wanted.late,
        directory,
        ports: Ports::free(NODES + wanted.late).ok_or("no free ports were found for the nodes")?,
        splits: even_split_points(wanted.regions),
        fabric: match wanted.link {
            Link::Shm | Link::Rings | Link::SpinningRings => "shm",
            Link::Tcp => "tcp",
            Link::Libfabric => PROVIDER.1,
        },
        table: wanted.table.clone(),
        settings,
    })
}

/// A cluster and its data. The nodes stop before the directory goes.
struct Cell {
    cluster: Cluster,
    _directory: TempDir,
}

impl DevCluster for Cell {
    fn kill(&mut self, server: u32) -> io::Result<()> {
        self.cluster.kill(server)
    }
    fn restart(&mut self, server: u32) -> io::Result<()> {
        self.cluster.restart(server)
    }
    fn halt(&mut self, server: u32) -> io::Result<()> {
        self.cluster.halt(server)
    }
    fn resume(&mut self, server: u32) -> io::Result<()> {
        self.cluster.resume(server)
    }
    fn check(&mut self) -> io::Result<()> {
        self.cluster.check()
    }
    fn compare_replicas(&mut self) -> io::Result<Vec<String>> {
        self.cluster.compare_replicas()
    }
}
