//! Replication compared: the papers' experiments, each cell on a cluster of its own, in interleaved rounds.
//!
//! ```text
//!   run -> plan: which clusters          Clusters (of cli): three processes in a new directory
//!            |                               |
//!            '-> rounds: each cell in turn --'--> ycsb: Load A, Run A -> samples
//!                                                                         |
//!                 cells: medians, the JSON <------------------------------+--> targets: ratios --> report: Markdown, SVG
//! ```
//! Cells that are compared with each other run one after the other, and each round begins with the next of them. So other
//! work of the machine affects all of them alike. A run whose data has too few levels would prove nothing and is refused.
//! Call it from any thread.

mod cells;
pub(crate) mod plan;
mod report;
mod targets;

pub use cells::{Cell, CpuShare, Figure, Percentiles};
pub use plan::{EXPERIMENTS, Experiment, Link, VARIANTS, Variant};
pub use targets::{Bound, Verdict};

use crate::json::write_json;
use crate::keys::Mix;
use crate::machine::Machine;
use crate::report::PhaseReport;
use crate::ycsb::{self, BenchError, DevCluster, Workload};
use cells::Sample;
use leeward_format::cluster::TableOptions;
use plan::{Scope, Setup, variant};
use serde::Serialize;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// Any failure, as a message for people.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Nodes of every cluster.
pub const NODES: u32 = 3;
/// Levels, L0 included, below which a run is refused.
const MIN_LEVELS: u32 = 3;

/// What all clusters of one run have in common.
#[derive(Clone, Copy, Debug)]
pub struct CellOptions {
    /// Size at which an L0 freezes, in KiB.
    pub l0_kib: u64,
    /// Memory of a node, in MiB.
    pub memory_mib: u64,
    /// Regions.
    pub regions: u32,
    /// Client threads.
    pub threads: usize,
    /// Operations that each keeps in flight.
    pub depth: usize,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of experiments, variants and mixes. A kind of which none is named runs whole.
    pub only: Vec<String>,
    /// The mixes SD and S with two replicas, where no others are named.
    pub quick: bool,
    /// Rounds; figures are medians over them.
    pub rounds: u32,
    /// Records that Load inserts, whatever the mix; `None`: as many as its sizes want.
    pub records: Option<u64>,
    /// Operations of Run A; `None`: as many as there are records.
    pub ops: Option<u64>,
    /// What all cells have in common.
    pub cell: CellOptions,
    /// Results as JSON.
    pub json: Option<PathBuf>,
    /// Directory for the report and the plots.
    pub out: Option<PathBuf>,
}

/// A cluster to be started.
#[derive(Debug)]
pub struct Wanted {
    /// Its table.
    pub table: TableOptions,
    /// How it is reached.
    pub link: Link,
    /// Regions of the table.
    pub regions: u32,
    /// Nodes beside the [`NODES`] that run from the start: [`DevCluster::restart`] starts them.
    pub late: u32,
    /// Memory of a node, in bytes.
    pub memory_bytes: u64,
}

/// A cluster that runs. Dropping it stops its nodes and removes its data.
pub struct Started {
    /// Addresses for its clients.
    pub seeds: Vec<String>,
    /// Its processes.
    pub cluster: Box<dyn DevCluster>,
}

/// Starts clusters.
pub trait Clusters {
    /// Options that the preset of this name stands for.
    fn preset(&self, name: &str) -> TableOptions;
    /// Checks that this machine has what a link needs.
    ///
    /// # Errors
    /// Something is missing; the message says what.
    fn check_link(&self, link: Link) -> Result<(), Failure>;
    /// Starts a cluster of [`NODES`] nodes and waits until every region has all of its replicas.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&mut self, wanted: Wanted) -> Result<Started, Failure>;
}

/// A cell that could not be measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failed {
    cell: String,
    round: u32,
    reason: String,
}

/// What all rounds measured.
#[derive(Debug, Default)]
pub(crate) struct Results {
    samples: Vec<Sample>,
    failures: Vec<Failed>,
}

/// The JSON. Names in it are stable; others may be added.
#[derive(Serialize)]
struct Json<'a> {
    machine: &'a Machine,
    cells: Vec<Cell>,
    targets: &'a [Verdict],
    failures: &'a [Failed],
}

/// Runs everything, writes what `options` ask for, and prints the report. Returns whether every cell could be measured.
///
/// # Errors
/// Options that make no sense, a run that would prove nothing, or a file that cannot be written.
pub fn run(options: &Options, clusters: &mut dyn Clusters) -> Result<bool, Failure> {
    let scope = Scope::new(&options.only, options.quick)?;
    let groups = scope.setups();
    if groups.is_empty() {
        return Err("--only: no experiment has all of that together".into());
    }
    check_l0(options, &groups, clusters)?;
    if let Some(directory) = &options.out {
        fs::create_dir_all(directory).map_err(|error| format!("--out {}: {error}", directory.display()))?;
    }
    let results = rounds(options, &groups, clusters)?;
    let machine = Machine::here();
    let verdicts = targets::verdicts(&results.samples);
    let cells = cells::cells(&results.samples);
    let json = Json { machine: &machine, cells, targets: &verdicts, failures: &results.failures };
    write_json(options.json.as_deref(), &json)?;
    let text = report::markdown(&machine, options, &scope, &results, &verdicts, options.out.is_some());
    if let Some(directory) = &options.out {
        let path = directory.join("report.md");
        fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
        report::draw_all(directory, &scope, &results.samples)?;
    }
    print!("{text}");
    Ok(results.failures.is_empty())
}

/// Every table must be possible before hours of measuring.
fn check_l0(options: &Options, groups: &[Vec<Setup>], clusters: &dyn Clusters) -> Result<(), Failure> {
    for setup in groups.iter().flatten() {
        let preset = clusters.preset(variant(setup.variant).preset);
        setup
            .table(preset, options.cell.l0_kib << 10)
            .check()
            .map_err(|reason| format!("--l0-kib: {setup}: {reason}"))?;
    }
    Ok(())
}

fn rounds(options: &Options, groups: &[Vec<Setup>], clusters: &mut dyn Clusters) -> Result<Results, Failure> {
    let mut results = Results::default();
    let total = groups.iter().flatten().count() * options.rounds as usize;
    let mut done = 0;
    for round in 1..=options.rounds {
        for group in groups {
            for turn in 0..group.len() {
                let setup = group[(turn + round as usize - 1) % group.len()];
                done += 1;
                eprintln!("[{done}/{total}] round {round}: {setup}");
                match measure(options, setup, clusters) {
                    Ok(phases) => {
                        results.samples.extend(phases.into_iter().map(|phase| Sample { setup, round, phase }));
                    }
                    Err(error @ BenchError::Shallow { .. }) => return Err(format!("{setup}: {error}").into()),
                    Err(error) => {
                        let reason = error.to_string();
                        eprintln!("  failed: {reason}");
                        results.failures.push(Failed { cell: setup.to_string(), round, reason });
                    }
                }
            }
        }
    }
    Ok(results)
}

/// Load A and Run A on a new cluster.
fn measure(options: &Options, setup: Setup, clusters: &mut dyn Clusters) -> Result<Vec<PhaseReport>, BenchError> {
    let of = variant(setup.variant);
    let table = setup.table(clusters.preset(of.preset), options.cell.l0_kib << 10);
    let (regions, threads, depth) = match (of.one_by_one, options.cell) {
        (false, cell) => (cell.regions, cell.threads, cell.depth),
        (true, _) => (1, 1, 1),
    };
    let wanted = Wanted { table, link: of.link, regions, late: 0, memory_bytes: options.cell.memory_mib << 20 };
    let Started { seeds, cluster } = clusters.start(wanted).map_err(|error| BenchError::Start(error.to_string()))?;
    let records = options.records.unwrap_or_else(|| records(setup.mix));
    let work = ycsb::Options {
        seeds,
        workloads: vec![Workload::Load, Workload::A],
        mix: setup.mix,
        records,
        ops: options.ops.unwrap_or(records),
        threads,
        depth,
        ..ycsb::Options::default()
    };
    let report = ycsb::measure(&work, Some(cluster), &mut |phase| {
        tell(phase);
        match cells::levels(phase) {
            levels if levels < MIN_LEVELS => Err(BenchError::Shallow { levels, least: MIN_LEVELS }),
            _ => Ok(()),
        }
    })?;
    match report.phases.iter().find_map(|phase| phase.first_error.as_ref().filter(|_| phase.errors > 0)) {
        Some(error) => Err(BenchError::Failed { errors: report.errors, error: error.clone() }),
        None => Ok(report.phases),
    }
}

/// Enough records for tens of MiB of index in each region, and for seconds of load on a small machine. Then the one
/// compaction that is under way when a load ends no longer decides how long the nodes take to settle.
fn records(mix: Mix) -> u64 {
    match mix {
        Mix::S => 2_500_000,
        Mix::M | Mix::S80 => 1_200_000,
        Mix::SD | Mix::MD | Mix::S40 => 1_000_000,
        Mix::L | Mix::LD => 400_000,
    }
}

fn tell(phase: &PhaseReport) {
    let figure = |figure: Figure| figure.of(phase).map_or_else(|| "-".into(), crate::figures::number);
    eprintln!(
        "  {:>4}: {:>7.0} ops/s, until settled {:>7.0}; {} CPU-s/Mop, of them {} for backups' index; I/O {}, network {}, {} levels",
        phase.workload,
        phase.ops_per_second,
        phase.settled_ops_per_second,
        figure(Figure::Cpu),
        figure(Figure::BackupIndexCpu),
        figure(Figure::IoAmplification),
        figure(Figure::NetworkAmplification),
        cells::levels(phase)
    );
}
