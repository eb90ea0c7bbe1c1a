//! A YCSB run: the options, the workloads, and the order of phases. Call it from any thread; it starts its own and
//! joins them before it returns.

use crate::distribution::{Distribution, Theta};
use crate::generators::{Chooser, Zipfian};
use crate::keys::{Mix, key, sequence_of};
use crate::kills::Kills;
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::newest::Newest;
use crate::phase;
use crate::report::{PhaseReport, Report};
use crate::verify;
use leeward_client::{ClientError, ClientOptions, Op, OpResult, RegionMap, Session, TableName};
use leeward_format::cluster::Acknowledge;
use leeward_format::table::TableChange;
use leeward_operate::dev::NodeProcesses;
use leeward_operate::replicas;
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

#[cfg(test)]
#[path = "ycsb_tests.rs"]
mod tests;

/// Records that are read to find out whether Load must come first.
const SAMPLE: u64 = 64;
/// How stale the answers to a read of several members may be: it is measured what they cost.
pub(crate) const STALE: Duration = Duration::from_secs(10);

/// A YCSB workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Inserts every record.
    Load,
    /// 50 % reads, 50 % updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads of the latest records, 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// 50 % reads, 50 % read-modify-writes.
    F,
    /// Updates. Not of YCSB.
    U,
}

/// The kind of one operation of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads a record.
    Read,
    /// Writes a record that exists.
    Update,
    /// Writes a record that does not exist.
    Insert,
    /// Reads 1 to [`LONGEST_SCAN`] records in key order.
    Scan,
    /// Reads a record, then writes it.
    ReadModifyWrite,
}

/// Longest scan, in records, as in YCSB.
pub const LONGEST_SCAN: u32 = 100;

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [Kind::Read, Kind::Update, Kind::Insert, Kind::Scan, Kind::ReadModifyWrite];
}

impl Workload {
    /// Every workload.
    pub const ALL: [Workload; 8] =
        [Workload::Load, Workload::A, Workload::B, Workload::C, Workload::D, Workload::E, Workload::F, Workload::U];

    /// The kind of the next operation, by a draw from 0 to 99.
    pub fn kind(self, draw: u8) -> Kind {
        match (self, draw) {
            (Workload::Load, _) => Kind::Insert,
            (Workload::A, 0..50) | (Workload::B | Workload::D, 0..95) | (Workload::C, _) | (Workload::F, 0..50) => {
                Kind::Read
            }
            (Workload::A | Workload::B | Workload::U, _) => Kind::Update,
            (Workload::E, 0..95) => Kind::Scan,
            (Workload::D | Workload::E, _) => Kind::Insert,
            (Workload::F, _) => Kind::ReadModifyWrite,
        }
    }

    /// How the workload chooses among `records`, unless the options say otherwise.
    pub fn chooser(self, chosen: Option<Distribution>, records: u64) -> Chooser {
        let own = match self {
            Workload::D => Distribution::Latest,
            _ => Distribution::Zipfian(Theta::default()),
        };
        let records = records.max(1);
        match chosen.unwrap_or(own) {
            // Load reads no existing record, so it does not need the zeta constant, which takes long to compute.
            _ if self == Workload::Load => Chooser::Uniform,
            Distribution::Uniform => Chooser::Uniform,
            Distribution::Zipfian(theta) => Chooser::Zipfian(Zipfian::new(records, theta.get())),
            Distribution::Latest => Chooser::Latest(Zipfian::new(records, Theta::default().get())),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Load => "load",
            Workload::A => "a",
            Workload::B => "b",
            Workload::C => "c",
            Workload::D => "d",
            Workload::E => "e",
            Workload::F => "f",
            Workload::U => "u",
        })
    }
}

impl FromStr for Workload {
    type Err = String;
    fn from_str(text: &str) -> Result<Workload, String> {
        Workload::ALL
            .into_iter()
            .find(|workload| workload.to_string() == text.to_ascii_lowercase())
            .ok_or_else(|| format!("unknown workload {text:?}: it is one of load, a, b, c, d, e, f, u"))
    }
}

/// How clients read, if a read is done once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// As the table and the transport allow.
    #[default]
    Usual,
    /// By requests, also where clients could read a hash index.
    Requests,
    /// By requests to the members of the region in turn. No answer is stale.
    AnyMember,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Native addresses of one or more nodes.
    pub seeds: Vec<String>,
    /// The table that is measured.
    pub table: TableName,
    /// The phases, in order. If the records are missing, Load is run first.
    pub workloads: Vec<Workload>,
    /// Sizes of the pairs.
    pub mix: Mix,
    /// Records that Load inserts, and that the other workloads expect.
    pub records: u64,
    /// Operations of each other phase.
    pub ops: u64,
    /// Replaces the workload's own distribution.
    pub distribution: Option<Distribution>,
    /// From how many members each read is done: one of them, or so many in turn, whose answers may be stale. It counts as
    /// one operation, and ends with the last answer.
    pub read_members: u32,
    /// How clients read.
    pub reading: Reading,
    /// Client threads, each with connections of its own.
    pub threads: usize,
    /// Operations that each thread keeps in flight. A scan of a table that is partitioned by hash counts as one for each
    /// region that it asks.
    pub depth: usize,
    /// Operations per second of all threads together. Latency then counts from when an operation was due.
    pub target_rate: Option<f64>,
    /// Remember every acknowledged write and read all of them back at the end.
    pub verify: bool,
    /// Interval at which the primary of most regions is killed, in the phases after Load.
    pub kill_primary_every: Option<Duration>,
    /// Kills to make; the first phase after Load continues past its operations until they are made.
    pub kills: Option<u32>,
    /// Changes of the table, one with each of the last kills.
    pub changes: Vec<TableChange>,
    /// At the end, wait until every member is in sync, and compare the replicas of each region.
    pub compare_replicas: bool,
    /// Time within which an operation is retried.
    pub deadline: Duration,
    /// Give puts request ids: see [`ClientOptions::retry_puts`]. They always have them if `kill_primary_every` is set.
    pub retry_puts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seeds: vec!["127.0.0.1:7479".into()],
            table: TableName::default(),
            workloads: vec![Workload::Load, Workload::A],
            mix: Mix::SD,
            records: 100_000,
            ops: 100_000,
            distribution: None,
            read_members: 1,
            reading: Reading::default(),
            threads: 2,
            depth: 32,
            target_rate: None,
            verify: false,
            kill_primary_every: None,
            kills: None,
            changes: Vec::new(),
            compare_replicas: false,
            deadline: Duration::from_secs(60),
            retry_puts: false,
        }
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option has an invalid value.
    #[error("{0}")]
    Option(String),
    /// The cluster cannot be reached, or this process ran out of something.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A node could not be killed or started again.
    #[error("node {server}: {source}")]
    Node {
        /// Its server id.
        server: u32,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A node of the benchmark's own cluster ended by itself.
    #[error("the cluster does not run any more: {0}")]
    Cluster(io::Error),
    /// No operation has succeeded for so long that the run was ended.
    #[error("{workload}: no operation has succeeded for {after:?}; the first error was: {error}")]
    Stuck {
        /// Of the phase that was ended.
        workload: Workload,
        /// How long.
        after: Duration,
        /// The first error of an operation.
        error: String,
    },
    /// A cluster of the benchmark's own could not be started.
    #[error("{0}")]
    Start(String),
    /// The data has too few levels for a run to prove anything.
    #[error(
        "refused: the data has {levels} levels, L0 included, of at least {least}: give more --records or a smaller --l0-kib"
    )]
    Shallow {
        /// Levels of the data, L0 included.
        levels: u32,
        /// Levels that it needs.
        least: u32,
    },
    /// Two-layer logs have merged their runs too rarely for a run to prove anything.
    #[error(
        "refused: a two-layer log has merged all of its sorted runs {merges} times in Load, of at least {least}: give more \
         --records or a smaller --l0-kib"
    )]
    Unmerged {
        /// Merges of the copy that has merged least.
        merges: u64,
        /// Merges that it needs.
        least: u64,
    },
    /// There are so few pairs that hash indexes have more than the wanted part of them.
    #[error("refused: nodes have memory to index more than {percent} % of the pairs: give at least --records {least}")]
    Indexed {
        /// The wanted part.
        percent: u32,
        /// Records of which that is all that there is memory for.
        least: u64,
    },
    /// Reads that were to ask several members asked primaries.
    #[error("refused: backups have answered {answered:.2} reads an operation, of about {wanted:.2}")]
    Primaries {
        /// Reads of backups, an operation.
        answered: f64,
        /// Reads that backups would answer if all members were asked in turn.
        wanted: f64,
    },
    /// Operations failed, so the figures would mean nothing.
    #[error("{errors} operations failed; the first: {error}")]
    Failed {
        /// How many.
        errors: u64,
        /// The first error.
        error: String,
    },
    /// The death or the return of a node could not be measured.
    #[error("{0}")]
    Recovery(String),
    /// The table could not be changed.
    #[error("the table could not be changed: {0}")]
    Alter(String),
    /// A killed node did not come back.
    #[error("after kill {number}, of node {server}, the groups were not in sync again within {after:?}")]
    NotInSync {
        /// Ordinal of the kill.
        number: usize,
        /// Id of the server whose process was killed.
        server: u32,
        /// The time limit.
        after: Duration,
    },
}

impl BenchError {
    /// Whether the run would prove nothing, whatever its figures.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            BenchError::Shallow { .. }
                | BenchError::Unmerged { .. }
                | BenchError::Indexed { .. }
                | BenchError::Primaries { .. }
        )
    }
}

impl Options {
    /// # Errors
    /// An invalid value; the message has the reason and the allowed range.
    pub fn check(&self, has_cluster: bool) -> Result<(), BenchError> {
        let refuse = |reason: &str| Err(BenchError::Option(reason.into()));
        match self {
            Options { workloads, .. } if workloads.is_empty() => refuse("--workload: at least one is needed"),
            Options { records: 0, .. } => refuse("--records: at least 1"),
            Options { threads, .. } if !(1..=1024).contains(threads) => refuse("--threads: 1 to 1024"),
            Options { read_members: 0, .. } => refuse("a read asks at least 1 member"),
            Options { depth, .. } if !(1..=4096).contains(depth) => refuse("--depth: 1 to 4096"),
            Options { target_rate: Some(rate), .. } if rate.is_nan() || *rate <= 0.0 => {
                refuse("--target-rate: more than 0 operations a second")
            }
            Options { kill_primary_every: Some(_), .. } if !has_cluster => {
                refuse("--kill-primary-every kills processes: it needs --dev, a cluster of the benchmark's own")
            }
            Options { kill_primary_every: Some(every), .. } if every.is_zero() => {
                refuse("--kill-primary-every: more than 0 seconds")
            }
            Options { compare_replicas: true, .. } if !has_cluster => {
                refuse("comparing replicas needs a cluster of the benchmark's own")
            }
            Options { kills: Some(_), kill_primary_every: None, .. } => refuse("--kills needs --kill-primary-every"),
            Options { kills: Some(_), workloads, .. } if workloads.iter().all(|w| *w == Workload::Load) => {
                refuse("--kills needs a workload other than load")
            }
            _ => Ok(()),
        }
    }
}

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
    let mut kills = bench.kills().transpose()?;
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

/// The state that all phases of a run share.
pub(crate) struct Bench<'a> {
    pub(crate) options: &'a Options,
    pub(crate) ledger: &'a Ledger,
    pub(crate) meter: Mutex<Meter>,
    pub(crate) cluster: Option<Mutex<Box<dyn NodeProcesses>>>,
}

impl Bench<'_> {
    fn kills(&self) -> Option<Result<Kills<'_>, BenchError>> {
        let (cluster, every) = self.cluster.as_ref().zip(self.options.kill_primary_every)?;
        Some(Kills::new(cluster, self.ledger, every, self.options))
    }
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

/// Options of the sessions that are measured.
pub(crate) fn reading_options(options: &Options) -> ClientOptions {
    let at_most_stale = match options.reading {
        _ if options.read_members > 1 => Some(STALE),
        Reading::AnyMember => Some(Duration::ZERO),
        Reading::Usual | Reading::Requests => None,
    };
    let direct_reads = options.reading == Reading::Usual;
    ClientOptions { at_most_stale, direct_reads, ..client_options(options) }
}

pub(crate) fn client_options(options: &Options) -> ClientOptions {
    ClientOptions {
        name: "leeward-bench".into(),
        retry_puts: options.retry_puts || options.kill_primary_every.is_some(),
        // Each thread limits its operations in flight itself.
        max_outstanding: usize::MAX,
        table: options.table.clone(),
        deadline: options.deadline,
        ..ClientOptions::default()
    }
}
