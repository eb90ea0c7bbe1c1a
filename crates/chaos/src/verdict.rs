//! The end of a run: reads every key, judges the histories and the ledger of filling keys, and compares the replicas. One thread.

use crate::clients::{ClientRun, Filling, Log, Outcome};
use crate::cluster::Cluster;
use crate::error::ChaosError;
use crate::report::Report;
use crate::workload::{SharedKey, filling_key, number_of, table_of};
use bytes::Bytes;
use leeward_client::{ClientOptions, Op, OpResult, Session};
use leeward_history::{Action, Operation, Verdict, check, counterexample};

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;

/// States after which the search for an order of a key's operations gives up.
const MAX_STATES: usize = 2_000_000;
/// The same, for the minimizing of a contradiction, which searches many times.
const MAX_SMALL_STATES: usize = 50_000;
/// Keys that are read at once.
const BATCH: usize = 200;
/// Most contradictions and losses that are shown.
const SHOWN: usize = 5;

/// Reads every key, judges the results, and fills `report`.
///
/// # Errors
/// The cluster does not answer, although it is whole.
pub(crate) fn judge(
    cluster: &Cluster,
    shared: &ClientRun,
    log: &mut Log,
    report: &mut Report,
) -> Result<(), ChaosError> {
    read_histories(cluster, shared, log, report)?;
    let found = {
        let key = |filling: &Filling| (filling.region, filling_key(filling.region, filling.number));
        let keys = log.fillings.iter().map(key);
        read(cluster, keys.collect(), report)?
    };
    judge_fillings(&log.fillings, &found, report);
    let difference = cluster.compare_replicas()?;
    report.replicas_equal = Some(difference.is_none());
    report.findings.extend(difference.map(|difference| format!("replicas differ: {difference}")));
    Ok(())
}

/// The last operation of every key is a read.
fn read_histories(cluster: &Cluster, shared: &ClientRun, log: &mut Log, report: &mut Report) -> Result<(), ChaosError> {
    let mut keys: Vec<SharedKey> = log.histories.keys().copied().collect();
    keys.sort_unstable();
    let called = shared.now();
    let found = read(cluster, keys.iter().map(|key| (key.region, key.bytes())).collect(), report)?;
    let answered = shared.now();
    for (key, found) in keys.iter().zip(&found) {
        let last = Operation { called, answered, action: Action::Read(*found) };
        log.histories.entry(*key).or_default().push(last);
    }
    Ok(())
}

/// The numbers of the values at `keys` of these regions.
fn read(cluster: &Cluster, keys: Vec<(usize, Bytes)>, report: &mut Report) -> Result<Vec<Option<i64>>, ChaosError> {
    let failed = |why: String| ChaosError::NotReady(format!("the cluster is whole, and cannot be read: {why}"));
    let options = ClientOptions { name: "leeward-chaos-verdict".into(), ..ClientOptions::default() };
    let connected = Session::connect(&cluster.addresses(), options);
    let mut session = connected.map_err(|error| failed(error.to_string()))?;
    let mut found = Vec::new();
    let batches = keys.chunk_by(|(one, _), (next, _)| one == next).flat_map(|of_region| of_region.chunks(BATCH));
    for batch in batches {
        let table = table_of(batch[0].0).name();
        let ops = batch.iter().map(|(_, key)| Op::Get { key: key.clone() }).collect();
        for result in session.execute_in(&table, ops).map_err(|error| failed(error.to_string()))? {
            match result {
                OpResult::Value(value) => found.push(value.as_deref().map(number_of)),
                other => return Err(failed(format!("{other:?}"))),
            }
        }
    }
    report.operations += found.len() as u64;
    Ok(found)
}

/// Judges all histories.
pub(crate) fn judge_histories(log: &Log, report: &mut Report) {
    report.keys = log.histories.len();
    report.violations += log.wrong.len() as u64;
    report.findings.extend(log.wrong.iter().take(SHOWN).cloned());
    let mut keys: Vec<(&SharedKey, &Vec<Operation>)> = log.histories.iter().collect();
    keys.sort_unstable_by_key(|(key, _)| **key);
    let mut explained = 0;
    for (key, operations) in keys {
        match check(operations, MAX_STATES) {
            Verdict::Linearizable => continue,
            Verdict::Undecided => report.undecided += 1,
            Verdict::Violation => report.violations += 1,
        }
        if explained < SHOWN {
            explained += 1;
            report.findings.push(explain(*key, operations));
        }
    }
}

/// The operations that contradict each other. Times are microseconds since the run began.
fn explain(key: SharedKey, operations: &[Operation]) -> String {
    let shown = counterexample(operations, MAX_SMALL_STATES);
    let lines: String = shown.iter().take(BATCH).map(|operation| format!("\n    {operation}")).collect();
    let (count, name) = (operations.len(), key.bytes());
    format!("key {name:?}: no order explains these of its {count} operations (us since the run began):{lines}")
}

/// Each acknowledged filling key has the value that was written. No refused one is there.
fn judge_fillings(fillings: &[Filling], found: &[Option<i64>], report: &mut Report) {
    for (filling, found) in fillings.iter().zip(found) {
        let number = filling.number;
        let is_right = match filling.outcome {
            Outcome::Answered(_) => *found == Some(number),
            Outcome::NotDone => found.is_none(),
            Outcome::Unknown | Outcome::Wrong(_) => found.is_none_or(|found| found == number),
        };
        if is_right {
            continue;
        }
        match (&filling.outcome, found) {
            (Outcome::Answered(_), _) => report.lost_writes += 1,
            _ => report.violations += 1,
        }
        if report.findings.len() < 2 * SHOWN {
            let key = filling_key(filling.region, number);
            report.findings.push(format!("{key:?}, written once, {:?}, reads as {found:?}", filling.outcome));
        }
    }
}
