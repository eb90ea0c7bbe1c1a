//! A cluster under a load that goes on until something else has ended: YCSB A on records that were loaded before. Call it from any
//! thread; it starts its own and joins them before it answers.

use crate::ledger::Ledger;
use crate::records::Records;
use crate::replication::Failure;
use crate::worker::{Measured, Shared, Worker};
use crate::ycsb::{self, Workload};
use leeward_client::ClientError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Loads the records that `load` says, then has its workers run until `run` has ended; answers what that does, and what the workers
/// have measured.
///
/// # Errors
/// Those of `run`, and of connecting.
pub(crate) fn while_loaded<T>(
    load: &ycsb::Options,
    run: impl FnOnce(&Shared<'_>) -> Result<T, Failure>,
) -> Result<(T, Measured), Failure> {
    ycsb::run(&ycsb::Options { workloads: vec![Workload::Load], ..load.clone() }, None)?;
    let ledger = Ledger::new(false);
    let shared = Shared {
        workload: Workload::A,
        options: load,
        ledger: &ledger,
        records: Records::new(load.records),
        issued: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        succeeded: AtomicU64::new(0),
        ops: 0,
        go_on: AtomicBool::new(true),
        abandon: AtomicBool::new(false),
        started: Instant::now(),
    };
    let chooser = Workload::A.chooser(None, load.records);
    let workers = (0..load.threads).map(|index| Worker::connect(&shared, chooser.clone(), index));
    let workers = workers.collect::<Result<Vec<_>, _>>()?;
    let (measured, ended) = thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.run())).collect();
        let ended = run(&shared);
        shared.go_on.store(false, Ordering::Relaxed);
        let measured: Result<Vec<Measured>, ClientError> =
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
        (measured, ended)
    });
    let ended = ended?;
    let mut sum = Measured::new();
    measured?.into_iter().for_each(|measured| sum.add(measured));
    Ok((ended, sum))
}
