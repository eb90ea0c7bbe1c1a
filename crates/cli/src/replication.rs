//! `leeward bench replication`: starts the clusters that the benchmark wants, each in a directory of its own, one at a time.
//!
//! Belongs to one thread.

use crate::Outcome;
use crate::args::{Preset, ReplicationArgs};
use crate::bench::{check_file, end_with_signal};
use crate::ports::Ports;
use crate::signals;
use crate::supervisor::{Cluster, Plan};
use clap::ValueEnum;
use leeward_bench::replication::{self, Clusters, Failure, Link, NODES, Options, Started, Wanted};
use leeward_bench::{DevCluster, even_split_points};
use leeward_format::cluster::TableOptions;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use tempfile::TempDir;

pub(crate) fn run(args: &ReplicationArgs) -> Outcome {
    if let Some(path) = &args.json {
        check_file(path)?;
    }
    let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
    let all = tempfile::Builder::new().prefix("leeward-bench-").tempdir_in(&parent);
    let all = all.map_err(|error| format!("--data {}: {error}", parent.display()))?;
    let events = signals::listen(false)?;
    end_with_signal(events, Some(all.path().to_path_buf()))?;
    let mut starter = Starter { directory: all.path().to_path_buf() };
    replication::run(&options(args), &mut starter).map_err(|error| error as Box<dyn Error>)
}

fn options(args: &ReplicationArgs) -> Options {
    Options {
        only: args.only.clone(),
        quick: args.quick,
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        records: args.records,
        ops: args.ops,
        l0_kib: args.l0_kib,
        memory_mib: args.memory_mib,
        regions: args.regions,
        threads: args.threads,
        depth: args.depth,
        json: args.json.clone(),
        out: args.out.clone(),
    }
}

struct Starter {
    /// Holds the directories of all clusters.
    directory: PathBuf,
}

impl Clusters for Starter {
    fn preset(&self, name: &str) -> TableOptions {
        Preset::from_str(name, false).expect("the benchmark names presets that there are").options()
    }

    fn start(&mut self, wanted: Wanted) -> Result<Started, Failure> {
        let directory = tempfile::Builder::new().prefix("cell-").tempdir_in(&self.directory)?;
        let mut cluster = Cluster::start(plan(&wanted, directory.path().to_path_buf())?)?;
        // A signal ends the process.
        cluster.wait_until_ready(true, || false)?;
        let scheme = if wanted.link == Link::Rings { "leeward+ring://" } else { "" };
        let seeds = cluster.addresses().iter().map(|address| format!("{scheme}{address}")).collect();
        Ok(Started { seeds, cluster: Box::new(Cell { cluster, _directory: directory }) })
    }
}

fn plan(wanted: &Wanted, directory: PathBuf) -> Result<Plan, Failure> {
    Ok(Plan {
        nodes: NODES,
        directory,
        ports: Ports::free(NODES).ok_or("no free ports were found for the nodes")?,
        splits: even_split_points(wanted.regions),
        fabric: if wanted.link == Link::Tcp { "tcp" } else { "shm" },
        table: wanted.table.clone(),
        settings: vec![("memory_budget".into(), wanted.memory_bytes.to_string())],
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
    fn check(&mut self) -> io::Result<()> {
        self.cluster.check()
    }
}
