//! Measures a healthy cluster under hostile clients: how much memory servers use, whether leases are kept and members stay, and
//! how long other clients wait. It does not judge what [`crate::run`] judges.

use crate::clients::resp::Resp;
use crate::clients::{Outcome, Store};
use crate::cluster::coordinator::CoordinatorKind;
use crate::cluster::{Cluster, Plan, table_options};
use crate::error::ChaosError;
use crate::faults::kind::{Class, FaultKind};
use crate::hostile::Hostile;
use crate::place::{self, RunResources};
use crate::report::Lateness;
use crate::{groups, run, workload};
use hdrhistogram::Histogram;
use leeward_format::cluster::TableOptions;
use leeward_history::Action;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Harmless clients. Each sets a key and gets it, in turn.
const OTHERS: usize = 10;
/// Pause between two commands of a harmless client.
const PAUSE: Duration = Duration::from_millis(10);
/// How long harmless clients work before hostile ones start.
const WARM_UP: Duration = Duration::from_secs(2);
/// Pause between checks.
const LOOK: Duration = Duration::from_millis(100);

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct StressOptions {
    /// Which hostile clients.
    pub kind: FaultKind,
    /// Their connections in total.
    pub connections: usize,
    /// All connections go to the first server; otherwise to all servers in turn.
    pub at_one: bool,
    /// For how long.
    pub lasts: Duration,
    /// `memory_budget` of each server, in bytes.
    pub memory_budget: u64,
    /// Every connection is encrypted, and clients are a user.
    pub tls: bool,
    /// Processes of servers: 3 to 5.
    pub servers: usize,
    /// The binary under test.
    pub leeward: PathBuf,
    /// Where directories are made.
    pub directory: PathBuf,
    /// How much servers log.
    pub log: String,
    /// Keeps the servers' logs.
    pub keep: bool,
}

/// What hostile clients did to a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct StressReport {
    /// Which hostile clients.
    pub kind: &'static str,
    /// Their connections in total.
    pub connections: usize,
    /// `memory_budget` of each server, in bytes.
    pub memory_budget: u64,
    /// The largest peak resident memory of any server, in bytes.
    pub most_resident: u64,
    /// Regions whose primary or members changed meanwhile; `null` if no server answered.
    pub changes: Option<Vec<String>>,
    /// How late messages of leases were handled.
    pub lease_lateness: Vec<Lateness>,
    /// Commands of the harmless clients that were answered.
    pub answered: u64,
    /// Commands of the harmless clients that were not answered.
    pub not_answered: u64,
    /// The outcome of the first of these.
    pub first_error: Option<String>,
    /// How long commands took, in microseconds: the median, the 99th percentile and the maximum.
    pub latency_us: [u64; 3],
    /// Processes that ended by themselves.
    pub deaths: Vec<String>,
    /// Where the logs are, if they were kept.
    pub logs: Option<PathBuf>,
}

/// Commands of the harmless clients.
struct Others {
    latency_us: Histogram<u64>,
    not_answered: u64,
    first_error: Option<String>,
}

/// Runs it. `interrupted` ends it early.
///
/// # Errors
/// This machine cannot run it, or the cluster did not come up.
pub fn stress(options: &StressOptions, interrupted: &AtomicBool) -> Result<StressReport, ChaosError> {
    run::check(options.servers, &options.leeward)?;
    if options.kind.class() != Class::Client {
        return Err(ChaosError::Refused(format!("{} are no hostile clients: see --list", options.kind)));
    }
    if options.kind == FaultKind::Guesses && !options.tls {
        return Err(ChaosError::Refused("guesses need users to be checked against: add --tls".into()));
    }
    let mut place = RunResources::new(&options.directory)?;
    if options.keep {
        place.keep();
    }
    let place = Arc::new(place);
    let plan = Plan {
        leeward: options.leeward.clone(),
        servers: options.servers,
        coordinator: CoordinatorKind::Embedded,
        alone: true,
        tls: options.tls,
        log: options.log.clone(),
        table: TableOptions { l0_bytes: TableOptions::default().l0_bytes, ..table_options() },
        // Without balancing: moves and splits by the master are no answer to hostile clients.
        settings: format!("memory_budget = {}\nbalance = false\n", options.memory_budget),
    };
    let cluster = Cluster::start(&place, plan, &|| !interrupted.load(Ordering::SeqCst))?;
    let mut report = measure(options, cluster, interrupted)?;
    report.logs = options.keep.then(|| place::kept(&place));
    Ok(report)
}

fn measure(
    options: &StressOptions,
    mut cluster: Cluster,
    interrupted: &AtomicBool,
) -> Result<StressReport, ChaosError> {
    let is_over = AtomicBool::new(false);
    let mut targets = cluster.targets();
    if options.at_one {
        targets.resp.truncate(1);
    }
    let mut deaths = Vec::new();
    let (others, changes) = thread::scope(|scope| {
        let others: Vec<_> = (0..OTHERS)
            .map(|number| {
                let table = workload::table_of(number % workload::regions()).name();
                let store = Resp::new(&cluster, table, number);
                let is_over = &is_over;
                scope.spawn(move || work(store, number, is_over))
            })
            .collect();
        let mut pass = |time| wait(&mut cluster, time, interrupted, &mut deaths);
        let passed = pass(WARM_UP);
        let before = cluster.groups();
        let hostile = Hostile::with_connections(options.kind, &targets, 0, options.connections);
        let passed = passed.and_then(|()| wait(&mut cluster, options.lasts, interrupted, &mut deaths));
        let changes = groups::changes(before.as_deref(), cluster.groups().as_deref());
        is_over.store(true, Ordering::SeqCst);
        let others = others.into_iter().map(|other| other.join().expect("a client does not panic")).collect::<Vec<_>>();
        drop(hostile);
        passed.map(|()| (others, changes))
    })?;
    let mut all = Others::new();
    others.into_iter().for_each(|other| all.merge(other));
    let latency_us = [0.5, 0.99, 1.0].map(|quantile| all.latency_us.value_at_quantile(quantile));
    Ok(StressReport {
        kind: options.kind.name(),
        connections: options.connections,
        memory_budget: options.memory_budget,
        most_resident: cluster.most_resident().into_iter().max().unwrap_or(0),
        changes,
        lease_lateness: cluster.lease_lateness(),
        answered: all.latency_us.len(),
        not_answered: all.not_answered,
        first_error: all.first_error,
        latency_us,
        deaths,
        logs: None,
    })
}

/// Waits, and notes processes that end by themselves.
fn wait(
    cluster: &mut Cluster,
    time: Duration,
    interrupted: &AtomicBool,
    deaths: &mut Vec<String>,
) -> Result<(), ChaosError> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if interrupted.load(Ordering::SeqCst) {
            return Err(ChaosError::Interrupted);
        }
        deaths.extend(cluster.deaths());
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Sets one key and gets it, repeatedly.
fn work(mut store: Resp, number: usize, is_over: &AtomicBool) -> Others {
    let mut others = Others::new();
    let key = workload::filling_key(number % workload::regions(), i64::MAX - number as i64);
    for next in 0_i64.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let action = if next % 2 == 0 { Action::Write(next) } else { Action::Read(None) };
        let begun = Instant::now();
        match store.execute(&key, action) {
            Outcome::Answered(_) => others.latency_us.saturating_record(begun.elapsed().as_micros() as u64),
            other => {
                others.not_answered += 1;
                others.first_error.get_or_insert_with(|| format!("{other:?} after {:?}", begun.elapsed()));
            }
        }
        thread::sleep(PAUSE);
    }
    others
}

impl Others {
    fn new() -> Others {
        let latency_us = Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds in order");
        Others { latency_us, not_answered: 0, first_error: None }
    }

    fn merge(&mut self, other: Others) {
        self.latency_us.add(other.latency_us).expect("of the same bounds");
        self.not_answered += other.not_answered;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

impl StressReport {
    /// The most resident memory that a server should have, in bytes: five quarters of its budget, and 64 MiB.
    pub fn resident_bound(&self) -> u64 {
        self.memory_budget / 4 * 5 + (64 << 20)
    }

    /// Servers stayed within their memory, alive and members of their groups, and every command of the harmless clients was
    /// answered. Times are reported, not judged.
    pub fn is_clean(&self) -> bool {
        let has_no_changes = self.changes.as_ref().is_some_and(Vec::is_empty);
        let is_whole = self.deaths.is_empty() && has_no_changes && self.not_answered == 0;
        is_whole && self.most_resident <= self.resident_bound()
    }
}

impl fmt::Display for StressReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        writeln!(f, "{} by {} connections", self.kind, self.connections)?;
        writeln!(
            f,
            "most resident memory of a server: {} MiB, of {} MiB that it may have (memory_budget {} MiB)",
            mib(self.most_resident),
            mib(self.resident_bound()),
            mib(self.memory_budget)
        )?;
        match &self.changes {
            None => writeln!(f, "members and primaries: no server could be asked")?,
            Some(changes) => writeln!(f, "members and primaries: {} changes", changes.len())?,
        }
        self.changes.iter().flatten().try_for_each(|change| writeln!(f, "  {change}"))?;
        for lateness in &self.lease_lateness {
            writeln!(f, "{lateness}")?;
        }
        let [middle, slow, slowest] = self.latency_us.map(|us| us as f64 / 1_000.0);
        writeln!(
            f,
            "{OTHERS} other clients, SET and GET: {} answered, {} not; p50 {middle:.1} ms, p99 {slow:.1} ms, longest {slowest:.1} ms",
            self.answered, self.not_answered
        )?;
        self.first_error.iter().try_for_each(|error| writeln!(f, "  the first that was not: {error}"))?;
        self.deaths.iter().try_for_each(|death| writeln!(f, "FOUND: {death}"))?;
        if let Some(logs) = &self.logs {
            writeln!(f, "logs of all processes: {}", logs.display())?;
        }
        f.write_str(if self.is_clean() { "passed" } else { "FAILED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_wrong_is_enough() {
        let clean = StressReport {
            kind: "flood",
            connections: 1,
            memory_budget: 128 << 20,
            most_resident: 224 << 20,
            changes: Some(Vec::new()),
            lease_lateness: Vec::new(),
            answered: 1,
            not_answered: 0,
            first_error: None,
            latency_us: [1, 2, 3],
            deaths: Vec::new(),
            logs: None,
        };
        assert!(clean.is_clean() && clean.to_string().ends_with("passed"));
        let bad = [
            StressReport { most_resident: (224 << 20) + 1, ..clean.clone() },
            StressReport { changes: None, ..clean.clone() },
            StressReport { changes: Some(vec!["region 1: another primary".into()]), ..clean.clone() },
            StressReport { not_answered: 1, ..clean.clone() },
            StressReport { deaths: vec!["server-1 was killed".into()], ..clean.clone() },
        ];
        assert!(bad.iter().all(|report| !report.is_clean() && report.to_string().ends_with("FAILED")));
    }
}
