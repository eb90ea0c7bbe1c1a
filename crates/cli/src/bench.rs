//! `leeward bench`: runs the benchmark, with a cluster of its own if asked, and writes its report.

use crate::Outcome;
use crate::args::{BenchArgs, Benchmark, Fabric, TableArgs, YcsbArgs};
use crate::idle;
use crate::ports::Ports;
use crate::replication;
use crate::routes;
use crate::signals::{self, Event};
use crate::supervisor::{Cluster, Plan};
use leeward_bench::{DevCluster, Options, even_split_points, write_json, ycsb};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

pub(crate) fn run(args: &BenchArgs) -> Outcome {
    match &args.benchmark {
        Benchmark::Ycsb(args) => run_ycsb(args),
        Benchmark::Idle(args) => idle::run(args),
        Benchmark::Routes(args) => routes::run(args),
        Benchmark::Replication(args) => replication::run(args),
        Benchmark::Faults(args) => replication::run_faults(args),
        Benchmark::Pauses(args) => replication::run_pauses(args),
        Benchmark::Moves(args) => replication::run_moves(args),
        Benchmark::Splits(args) => replication::run_splits(args),
    }
}

fn run_ycsb(args: &YcsbArgs) -> Outcome {
    let mut options = options(args)?;
    options.check(args.dev.is_some())?;
    if args.dev.is_none() && args.table.is_any() {
        return Err("options of the table need --dev: the running cluster already has its table".into());
    }
    if let Some(path) = &args.json {
        check_file(path)?;
    }
    // Holds the directory until the cluster in it has stopped.
    let mut temporary = None;
    let mut cluster: Option<Box<dyn DevCluster>> = None;
    if let Some(nodes) = args.dev {
        let events = signals::listen(false)?;
        let directory = directory(args.data.as_ref(), &mut temporary)?;
        let mut started = Cluster::start(Plan {
            table: args.table.options(nodes),
            settings: args.settings.clone(),
            ..plan(nodes, args.regions, args.fabric, directory)?
        })?;
        started.wait_until_ready(true, || events.try_recv().is_ok_and(Event::ends))?;
        let scheme = if args.rings { "leeward+ring://" } else { "" };
        options.seeds = started.addresses().iter().map(|address| format!("{scheme}{address}")).collect();
        cluster = Some(Box::new(started));
        end_with_signal(events, temporary.as_ref().map(|made| made.path().to_path_buf()))?;
    }
    let report = ycsb::run(&options, cluster)?;
    print!("{report}");
    write_json(args.json.as_deref(), &report)?;
    Ok(report.is_clean())
}

/// Checks that results can be written to the file: better now than after hours of measuring.
pub(crate) fn check_file(path: &Path) -> Result<(), String> {
    let opened = fs::File::options().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| format!("--json {}: {error}", path.display()))
}

/// The time that an option names.
pub(crate) fn seconds(name: &str, seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("--{name}: {error}"))
}

fn options(args: &YcsbArgs) -> Result<Options, String> {
    Ok(Options {
        seeds: args.connect.connect.clone(),
        table: args.table_name.clone(),
        workloads: args.workload.clone(),
        mix: args.mix,
        records: args.records,
        ops: args.ops,
        distribution: args.distribution,
        threads: args.threads,
        depth: args.depth,
        target_rate: args.target_rate,
        verify: args.verify,
        kill_primary_every: args.kill_primary_every.map(|every| seconds("kill-primary-every", every)).transpose()?,
        kills: args.kills,
        changes: Vec::new(),
        compare_replicas: false,
        deadline: seconds("deadline", args.deadline)?,
        retry_puts: args.retry_puts,
    })
}

/// A cluster with the default table and no settings.
pub(crate) fn plan(nodes: u32, regions: Option<u32>, fabric: Fabric, directory: PathBuf) -> Result<Plan, String> {
    Ok(Plan {
        nodes,
        late: 0,
        directory,
        ports: Ports::free(nodes).ok_or("no free ports were found for the nodes")?,
        splits: even_split_points(regions.unwrap_or(2 * nodes)),
        fabric: fabric.name(),
        table: TableArgs::default().options(nodes),
        settings: Vec::new(),
    })
}

/// The directory of the cluster's data. It must be empty: data of an earlier run would falsify the measurement.
pub(crate) fn directory(data: Option<&PathBuf>, temporary: &mut Option<tempfile::TempDir>) -> Result<PathBuf, String> {
    let Some(path) = data else {
        let made = tempfile::Builder::new().prefix("leeward-bench-").tempdir();
        let made = made.map_err(|error| format!("cannot create a temporary directory: {error}"))?;
        return Ok(temporary.insert(made).path().to_path_buf());
    };
    if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("--data {}: the directory is not empty", path.display()));
    }
    Ok(path.clone())
}

/// Ends the process at Ctrl-C. The nodes stop with it, because their standard inputs end.
pub(crate) fn end_with_signal(events: Receiver<Event>, temporary: Option<PathBuf>) -> Result<(), std::io::Error> {
    let wait = move || {
        if events.iter().any(Event::ends) {
            eprintln!("interrupted");
            if let Some(Err(error)) = temporary.map(fs::remove_dir_all) {
                eprintln!("the temporary directory cannot be removed: {error}");
            }
            process::exit(130);
        }
    };
    thread::Builder::new().name("interrupt".into()).spawn(wait).map(drop)
}
