//! A cluster under a load that lasts until something else has ended: YCSB A on records that were loaded before. Call it from
//! any thread; it starts its own threads and joins them before it returns.

use crate::figures::verdict;
use crate::keys::Mix;
use crate::ledger::Ledger;
use crate::options::{self, Failure, NODES};
use crate::records::Records;
use crate::starter::{Link, Started, Starter, WantedCluster};
use crate::worker::{Measured, PhaseState, Worker};
use crate::workload::Workload;
use crate::ycsb;
use clap::{Args, value_parser};
use leeward_client::ClientError;
use leeward_format::cluster::TableOptions;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use std::{fmt, thread};

/// The load, and the other options of a run.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Records that are loaded first
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1_000..))]
    pub records: u64,
    /// Sizes of the pairs
    #[arg(long, default_value = "sd")]
    pub mix: Mix,
    /// Client threads
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Operations that each thread keeps in flight
    #[arg(long, default_value_t = 16, value_name = "OPS")]
    pub depth: usize,
    /// Memory of each node, in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = value_parser!(u64).range(16..=1_048_576))]
    pub memory_mib: u64,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Load {
    /// Starts three nodes, and prepares `late` more that start later. The table has so many regions with three replicas
    /// each, of which two must have a write. Returns the cluster, and the options of the load.
    pub(crate) fn start(
        &self,
        starter: &Starter,
        regions: u32,
        late: u32,
    ) -> Result<(Started, options::Options), Failure> {
        let table = TableOptions { replicas: 3, min_in_sync: 2, ..TableOptions::default() };
        let memory_bytes = self.memory_mib << 20;
        let link = Link::Shm;
        let wanted = WantedCluster { table, link, regions, nodes: NODES, late, memory_bytes, segment_bytes: None };
        let started = starter.start(wanted)?;
        let load = self.of_seeds(started.seeds.clone());
        Ok((started, load))
    }

    /// The options of the load, for clients that connect to these addresses.
    pub(crate) fn of_seeds(&self, seeds: Vec<String>) -> options::Options {
        options::Options {
            seeds,
            mix: self.mix,
            records: self.records,
            ops: 0,
            threads: self.threads,
            depth: self.depth,
            ..options::Options::default()
        }
    }
}

/// The outcome of the clients' requests.
#[derive(Clone, Debug, Serialize)]
pub struct Requests {
    /// Operations of the clients.
    pub ops: u64,
    /// Of them, those that failed.
    pub failed: u64,
    /// Reads that did not find a record that must exist.
    pub misses: u64,
    /// The first failure.
    pub first_error: Option<String>,
}

impl Requests {
    pub(crate) fn of(measured: &Measured) -> Requests {
        let Measured { ops, errors, misses, first_error, .. } = measured;
        Requests { ops: *ops, failed: *errors, misses: *misses, first_error: first_error.clone() }
    }

    /// Whether no request failed, and nothing was missed.
    pub fn is_lossless(&self) -> bool {
        (self.failed, self.misses) == (0, 0)
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requests { ops, failed, misses, first_error } = self;
        let verdict = verdict(self.is_lossless());
        writeln!(f, "failed requests: {failed} of {ops}, {misses} misses (should be 0: {verdict})")?;
        first_error.iter().try_for_each(|error| writeln!(f, "the first failure: {error}"))
    }
}

/// Counts the operations that succeed during a stretch of time.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a> {
    succeeded: &'a AtomicU64,
    begun: Instant,
    before: u64,
}

impl<'a> Stretch<'a> {
    /// Begins a stretch now.
    pub(crate) fn begin(shared: &'a PhaseState<'_>) -> Stretch<'a> {
        let succeeded = &shared.succeeded;
        Stretch { succeeded, begun: Instant::now(), before: succeeded.load(Ordering::Relaxed) }
    }

    /// Seconds until now, and operations a second in them.
    pub(crate) fn end(self) -> (f64, f64) {
        let done = self.succeeded.load(Ordering::Relaxed) - self.before;
        let seconds = self.begun.elapsed().as_secs_f64();
        (seconds, done as f64 / seconds)
    }
}

/// Loads the records of `load`, then has its workers run until `run` has ended. Returns the result of `run`, and what the
/// workers have measured.
///
/// # Errors
/// Those of `run`, and of connecting.
pub(crate) fn while_loaded<T>(
    load: &options::Options,
    run: impl FnOnce(&PhaseState<'_>) -> Result<T, Failure>,
) -> Result<(T, Measured), Failure> {
    ycsb::run(&options::Options { workloads: vec![Workload::Load], ..load.clone() }, None)?;
    while_working(load, Workload::A, run)
}

/// As [`while_loaded`], with records that were loaded before, and any workload.
///
/// # Errors
/// Those of `run`, and of connecting.
pub(crate) fn while_working<T>(
    load: &options::Options,
    workload: Workload,
    run: impl FnOnce(&PhaseState<'_>) -> Result<T, Failure>,
) -> Result<(T, Measured), Failure> {
    let ledger = Ledger::new(false);
    let shared = PhaseState {
        workload,
        options: load,
        ledger: &ledger,
        records: Records::new(load.records),
        issued: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        succeeded: AtomicU64::new(0),
        ops: 0,
        keep_going: AtomicBool::new(true),
        abandon: AtomicBool::new(false),
        started: Instant::now(),
    };
    let chooser = workload.chooser(None, load.records);
    let workers = (0..load.threads).map(|index| Worker::connect(&shared, chooser.clone(), index));
    let workers = workers.collect::<Result<Vec<_>, _>>()?;
    let (measured, ended) = thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.run())).collect();
        let ended = run(&shared);
        shared.keep_going.store(false, Ordering::Relaxed);
        let measured: Result<Vec<Measured>, ClientError> =
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
        (measured, ended)
    });
    let ended = ended?;
    let mut sum = Measured::new();
    measured?.into_iter().for_each(|measured| sum.add(measured));
    Ok((ended, sum))
}
