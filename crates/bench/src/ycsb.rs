//! A YCSB run: the order of phases. Call it from any thread; it starts its own and
//! joins them before it returns.

use crate::keys::{key, sequence_of};
use crate::kills::Kills;
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::newest::Newest;
use crate::options::{BenchError, Options, client_options};
use crate::phase::{self, Bench};
use crate::report::{PhaseReport, Report};
use crate::verify;
use crate::workload::Workload;
use leeward_client::{Op, OpResult, RegionMap, Session};
use leeward_format::cluster::Acknowledge;
use leeward_operate::dev::NodeProcesses;
use leeward_operate::replicas;
use parking_lot::Mutex;
use std::io;

/// Records that are read to find out whether Load must come first.
const SAMPLE: u64 = 64;

/// Runs all phases, then the verification, and prints what happens on the way: progress on the standard error,
/// results of phases and kills on the standard output. A cluster that is given is dropped at the end.
///
/// # Errors
/// Bad options, a cluster that cannot be reached, or a killed node that does not come back. Operations that fail are
/// counted in the report.
pub fn run(options: &Options, cluster: Option<Box<dyn NodeProcesses>>) -> Result<Report, BenchError> {
    measure(options, cluster, &mut |phase| {
        print!("{phase}");
        Ok(())
    })
}

/// As [`run`], but calls `each` with the report of each phase. An error of `each` ends the run.
pub(crate) fn measure(
    options: &Options,
    cluster: Option<Box<dyn NodeProcesses>>,
    each: &mut dyn FnMut(&PhaseReport) -> Result<(), BenchError>,
) -> Result<Report, BenchError> {
    options.check(cluster.is_some())?;
    let client_options = client_options(options);
    let mut session = Session::connect(&options.seeds, client_options.clone())?;
    let map = session.fetch_map()?;
    options.check_for(&map)?;
    let admins = map.servers.iter().map(|server| server.admin_address.clone()).collect();
    let ledger = ledger(options, &map);
    let bench = Bench {
        options,
        ledger: &ledger,
        meter: Mutex::new(Meter::new(session.access().clone(), admins)),
        cluster: cluster.map(Mutex::new),
    };
    let mut kills = kills_of(&bench).transpose()?;
    let mut report = Report::new(options);
    let mut records = options.records;
    let mut workloads = options.workloads.clone();
    if workloads[0] != Workload::Load && !is_loaded(&mut session, options)? {
        println!("not all of {records} records with mix {} are there: loading them first", options.mix);
        workloads.insert(0, Workload::Load);
    }
    for workload in workloads {
        let killer = kills.as_mut().filter(|_| workload != Workload::Load);
        let outcome = phase::run(&bench, workload, records, killer)?;
        records = outcome.records;
        each(&outcome.report)?;
        report.add_phase(outcome.report);
    }
    if options.verify {
        let found = verify::run(options, &ledger)?;
        report.set_verified(&found);
    }
    if options.compare_replicas {
        kills.as_mut().map_or(Ok(()), Kills::wait_until_settled)?;
        let mut session = Session::connect(&options.seeds, client_options.clone())?;
        let map = session.fetch_map()?;
        let compared = replicas::compare(session.access(), &map);
        report.set_compared(&compared.map_err(|error| BenchError::Cluster(io::Error::other(error)))?);
    }
    if let Some(kills) = kills {
        report.kills = kills.into_made();
    }
    Ok(report)
}

impl Options {
    /// Refuses options that the table does not support.
    fn check_for(&self, map: &RegionMap) -> Result<(), BenchError> {
        let is_hashed = map.table(&self.table).is_some_and(|table| table.partition.is_hash());
        if is_hashed && self.kill_primary_every.is_some() {
            return Err(BenchError::Option(
                "kills are measured by a key of each region's range, and a table that is partitioned by hash has no such \
                 ranges: use a table with ranges of keys"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// The ledger of a run, configured for whether the table may lose its newest writes with a primary.
fn ledger(options: &Options, map: &RegionMap) -> Ledger {
    let ledger = Ledger::new(options.verify);
    let Some(table) = map.table(&options.table).filter(|_| options.verify && options.kill_primary_every.is_some())
    else {
        return ledger;
    };
    let becomes = options.changes.iter().filter_map(|change| change.acknowledge);
    if !becomes.chain([table.acknowledge]).any(|acknowledge| acknowledge == Acknowledge::LastFlush) {
        return ledger;
    }
    let starts = map.regions_of(&options.table).iter().map(|group| group.start.clone()).collect();
    let under_way = options.threads * options.depth;
    ledger.with_newest(Newest::new(starts, options.mix, table.max_unacked_bytes, under_way))
}

/// Whether a sample of the records exists, with the sizes of the mix.
fn is_loaded(session: &mut Session, options: &Options) -> Result<bool, BenchError> {
    let sample: Vec<u64> = (0..SAMPLE).map(|part| (options.records - 1) * part / (SAMPLE - 1)).collect();
    let results = session.execute(sample.iter().map(|record| Op::Get { key: key(*record) }).collect())?;
    Ok(sample.into_iter().zip(results).all(|(record, result)| match result {
        OpResult::Value(Some(value)) => sequence_of(record, &value, options.mix.value_bytes(record)).is_some(),
        _ => false,
    }))
}

fn kills_of<'a>(bench: &'a Bench<'_>) -> Option<Result<Kills<'a>, BenchError>> {
    let (cluster, every) = bench.cluster.as_ref().zip(bench.options.kill_primary_every)?;
    Some(Kills::new(cluster, bench.ledger, every, bench.options))
}
