//! `leeward bench`: runs the benchmark, with a cluster of its own if asked, and writes its report.

use crate::Outcome;
use crate::args::{BenchArgs, Benchmark, ReplicationArgs, YcsbArgs};
use leeward_bench::starter::{Starter, temporary};
use leeward_bench::{Options, check_json, even_split_points, replication, write_json, ycsb};
use leeward_operate::dev::{Cluster, NodeProcesses, Plan};
use std::error::Error;
use std::path::Path;
use std::{env, fs};

pub(crate) fn run(args: &BenchArgs) -> Outcome {
    match &args.benchmark {
        Benchmark::Ycsb(args) => run_ycsb(args),
        Benchmark::Replication(args) => run_replication(args),
    }
}

fn run_ycsb(args: &YcsbArgs) -> Outcome {
    let mut options = options(args);
    options.check(args.dev.is_some())?;
    if args.dev.is_none() && args.table.is_any() {
        return Err("options of the table need --dev: the running cluster already has its table".into());
    }
    check_json(args.json.as_deref())?;
    // Holds the directory until the cluster in it has stopped.
    let mut made = None;
    let mut cluster: Option<Box<dyn NodeProcesses>> = None;
    if let Some(nodes) = args.dev {
        let directory = match &args.data {
            Some(path) => check_empty(path).map(|()| path.clone())?,
            None => made.insert(temporary(None).map_err(|error| error as Box<dyn Error>)?).path().to_path_buf(),
        };
        let splits = even_split_points(args.regions.unwrap_or(2 * nodes));
        let mut started = Cluster::start(Plan {
            table: args.table.options(nodes),
            settings: args.settings.clone(),
            fabric: args.fabric,
            tls: args.tls,
            ..Plan::new(env::current_exe()?, nodes, splits, directory)?
        })?;
        // A signal ends the process.
        started.wait_until_ready(true, || false)?;
        options.seeds = if args.rings { started.addresses_over_rings() } else { started.addresses() };
        cluster = Some(Box::new(started));
    }
    let report = ycsb::run(&options, cluster)?;
    print!("{report}");
    write_json(args.json.as_deref(), &report)?;
    Ok(report.is_clean())
}

fn options(args: &YcsbArgs) -> Options {
    Options {
        seeds: args.connect.addresses(),
        table: args.table_name.clone(),
        workloads: args.workload.clone(),
        mix: args.mix,
        records: args.records,
        ops: args.ops,
        distribution: args.distribution,
        read_members: 1,
        reading: leeward_bench::Reading::default(),
        threads: args.threads,
        depth: args.depth,
        target_rate: args.target_rate,
        verify: args.verify,
        kill_primary_every: args.kill_primary_every,
        kills: args.kills,
        changes: Vec::new(),
        compare_replicas: false,
        deadline: args.deadline,
        retry_puts: args.retry_puts,
    }
}

/// Refuses a directory that is not empty: data of an earlier run would falsify the measurement.
fn check_empty(path: &Path) -> Result<(), String> {
    match fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        true => Err(format!("--data {}: the directory is not empty", path.display())),
        false => Ok(()),
    }
}

fn run_replication(args: &ReplicationArgs) -> Outcome {
    let options = replication::Options {
        only: args.only.clone(),
        quick: args.quick,
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        records: args.records,
        ops: args.ops,
        cell: args.cell,
        json: args.json.clone(),
        out: args.out.clone(),
    };
    let run = || replication::run(&options, &Starter::new(env::current_exe()?, args.data.as_deref())?);
    run().map_err(|error| error as Box<dyn Error>)
}
