//! What a run measures and how, and why there is no report. Plain data.

use crate::distribution::Distribution;
use crate::keys::Mix;
use crate::workload::Workload;
use leeward_client::{ClientError, ClientOptions, TableName};
use leeward_format::table::TableChange;
use std::error::Error;
use std::io;
use std::time::Duration;

/// Any failure, as a message for people.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Nodes of every cluster, unless an option or an experiment says otherwise.
pub(crate) const NODES: u32 = 3;
/// How stale the answers to a read of several members may be: it is measured what they cost.
pub(crate) const STALE: Duration = Duration::from_secs(10);
/// Panic message: `submit` fails only at a limit, and [`client_options`] sets none.
pub(crate) const UNBOUNDED: &str = "the number of operations in flight is not limited";

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

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
