//! One phase: its worker threads, its progress bar, the meter, and its report.

use crate::kills::Kills;
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::options::{BenchError, Options};
use crate::records::Records;
use crate::report::PhaseReport;
use crate::settle::settle;
use crate::worker::{Measured, PhaseState, Worker};
use crate::workload::Workload;
use indicatif::{ProgressBar, ProgressStyle};
use leeward_client::ClientError;
use leeward_operate::dev::NodeProcesses;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

/// How often the progress bar is drawn.
const DRAW: Duration = Duration::from_millis(100);
/// Pause between two checks whether the threads are done.
const LOOK: Duration = Duration::from_millis(20);
/// How often the servers are sampled.
const SAMPLE: Duration = Duration::from_secs(1);
/// A phase is aborted after the deadline of one operation and this time more without a success.
const STUCK: Duration = Duration::from_secs(5);

/// The state that all phases of a run share.
pub(crate) struct Bench<'a> {
    pub(crate) options: &'a Options,
    pub(crate) ledger: &'a Ledger,
    pub(crate) meter: Mutex<Meter>,
    pub(crate) cluster: Option<Mutex<Box<dyn NodeProcesses>>>,
}

/// A phase that is over.
pub(crate) struct Outcome {
    pub(crate) report: PhaseReport,
    /// Records that exist now.
    pub(crate) records: u64,
}

/// Runs `workload` over `records` records.
pub(crate) fn run(
    bench: &Bench<'_>,
    workload: Workload,
    records: u64,
    mut kills: Option<&mut Kills<'_>>,
) -> Result<Outcome, BenchError> {
    let Bench { options, ledger, meter, .. } = bench;
    let load = workload == Workload::Load;
    // Load inserts records 0, 1, ... again if they are there already.
    let existing = Records::new(if load { 0 } else { records });
    let chooser = workload.chooser(options.distribution, existing.limit());
    {
        let mut meter = meter.lock();
        meter.sample();
        meter.take_totals();
        meter.take_cpu();
    }
    let shared = PhaseState {
        workload,
        options,
        ledger,
        records: existing,
        issued: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        succeeded: AtomicU64::new(0),
        ops: if load { options.records } else { options.ops },
        keep_going: AtomicBool::new(kills.as_ref().is_some_and(|kills| kills.wants_more())),
        abandon: AtomicBool::new(false),
        started: Instant::now(),
    };
    let workers = (0..options.threads).map(|index| Worker::connect(&shared, chooser.clone(), index));
    let workers = workers.collect::<Result<Vec<_>, _>>()?;
    let over = AtomicBool::new(false);
    let bar = progress_bar(workload, shared.ops);
    let (measured, seconds) = thread::scope(|scope| {
        let killer = kills.as_mut().map(|kills| {
            let (over, bar, keep_going) = (&over, &bar, &shared.keep_going);
            scope.spawn(move || {
                let result = kills.run(over, meter, bar);
                // All kills are made, or one failed, so the phase need not continue for more kills.
                keep_going.store(false, Ordering::Relaxed);
                result
            })
        });
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.run())).collect();
        let watched = watch(bench, &shared, &bar, || threads.iter().all(|thread| thread.is_finished()));
        let seconds = shared.started.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        let measured: Result<Vec<Measured>, ClientError> =
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
        let killed = killer.map_or(Ok(()), |killer| killer.join().expect("the killer does not panic"));
        let mut sum = Measured::new();
        measured?.into_iter().for_each(|measured| sum.add(measured));
        match watched {
            Watched::Over => killed.map(|()| (sum, seconds)),
            Watched::Broken(error) => Err(BenchError::Cluster(error)),
            Watched::Stuck(after) => {
                let error = sum.first_error.unwrap_or_else(|| "none".into());
                Err(BenchError::Stuck { workload, after, error })
            }
        }
    })?;
    bar.finish_and_clear();
    let settled = settle(meter);
    let report = PhaseReport::new(workload, &measured, seconds, &settled);
    Ok(Outcome { report, records: shared.records.limit() })
}

/// How watching a phase ended.
enum Watched {
    /// Its threads are done.
    Over,
    /// The cluster does not run any more.
    Broken(io::Error),
    /// Nothing has succeeded for this long.
    Stuck(Duration),
}

/// Draws the progress, samples the servers and checks the cluster until the threads are done.
fn watch(bench: &Bench<'_>, shared: &PhaseState<'_>, bar: &ProgressBar, finished: impl Fn() -> bool) -> Watched {
    let mut sampled = Instant::now();
    let mut succeeded = (0, Instant::now());
    while !finished() {
        thread::sleep(LOOK);
        bar.set_position(shared.completed.load(Ordering::Relaxed));
        if sampled.elapsed() < SAMPLE {
            continue;
        }
        sampled = Instant::now();
        bench.meter.lock().sample();
        let now = shared.succeeded.load(Ordering::Relaxed);
        if now > succeeded.0 {
            succeeded = (now, Instant::now());
        }
        let failure = bench.cluster.as_ref().and_then(|cluster| cluster.lock().check().err());
        let stuck = succeeded.1.elapsed();
        let watched = match failure {
            Some(error) => Watched::Broken(error),
            None if stuck > bench.options.deadline + STUCK => Watched::Stuck(stuck),
            None => continue,
        };
        shared.abandon.store(true, Ordering::Relaxed);
        return watched;
    }
    Watched::Over
}

fn progress_bar(workload: Workload, ops: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>6} [{bar:40}] {pos}/{len} {per_sec} eta {eta}");
    let style = style.expect("the template is well-formed").progress_chars("=> ");
    let bar = ProgressBar::new(ops).with_style(style).with_prefix(workload.to_string());
    bar.enable_steady_tick(DRAW);
    bar
}
