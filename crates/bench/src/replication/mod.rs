//! Compares modes of replication: the papers' experiments, each cell on a cluster of its own, in interleaved rounds.
//!
//! ```text
//!   run -> plan: which clusters          Starter (of dev): three     processes in a new directory
//!            |                               |
//!            '-> rounds: each cell in turn --'--> ycsb: Load A, Run A -> samples
//!                                                                         |
//!                 cells: medians, the JSON <------------------------------+--> targets: ratios --> report: Markdown, SVG
//! ```
//! Cells that are compared with each other run one after the other, and each round begins with the next of them. So
//! other load on the machine affects all of them alike. A run whose data has too few levels is refused, because it
//! would prove nothing. Call it from any thread.

mod cells;
pub(crate) mod plan;
mod report;
mod targets;

pub use cells::{Cell, CpuShare, Figure, Percentiles};
pub use plan::{EXPERIMENTS, Experiment, Link, VARIANTS, Variant};
pub use targets::{Bound, Verdict};

use crate::dev::{Started, Starter, Wanted};
use crate::json::{check_json, write_json};
use crate::keys::Mix;
use crate::machine::Machine;
use crate::report::PhaseReport;
use crate::ycsb::{self, BenchError, Workload};
use cells::Sample;
use clap::{Args, value_parser};
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

/// Options that all clusters of one run share.
#[derive(Args, Clone, Copy, Debug)]
pub struct CellOptions {
    /// Size at which an L0 freezes, in KiB, unless the mode has a smaller one
    #[arg(long, default_value_t = 256, value_name = "KIB", value_parser = value_parser!(u64).range(64..=1_048_576))]
    pub l0_kib: u64,
    /// Memory of each node, in MiB
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = value_parser!(u64).range(16..=1_048_576))]
    pub memory_mib: u64,
    /// Number of regions, all of the same size
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1024))]
    pub regions: u32,
    /// Client threads
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Operations that each thread keeps in flight
    #[arg(long, default_value_t = 32, value_name = "OPS")]
    pub depth: usize,
}

/// Options of the comparison.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of experiments, variants and mixes. If none of a kind is named, all of that kind run.
    pub only: Vec<String>,
    /// Run only two replicas, and only the mixes SD and S unless `only` names others.
    pub quick: bool,
    /// Rounds; figures are medians over them.
    pub rounds: u32,
    /// Records that Load inserts; `None`: 400,000 to 2,500,000, by the mix.
    pub records: Option<u64>,
    /// Operations of Run A; `None`: as many as there are records.
    pub ops: Option<u64>,
    /// Options that all cells share.
    pub cell: CellOptions,
    /// Results as JSON.
    pub json: Option<PathBuf>,
    /// Directory for the report and the plots.
    pub out: Option<PathBuf>,
}

/// A cell that could not be measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failed {
    cell: String,
    round: u32,
    reason: String,
}

/// The samples and failures of all rounds.
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
/// Invalid options, a run that would prove nothing, or a file that cannot be written.
pub fn run(options: &Options, starter: &Starter) -> Result<bool, Failure> {
    check_json(options.json.as_deref())?;
    let scope = Scope::new(&options.only, options.quick)?;
    let groups = scope.setups();
    if groups.is_empty() {
        return Err("--only: no experiment has all of that together".into());
    }
    check_l0(options, &groups)?;
    if let Some(directory) = &options.out {
        fs::create_dir_all(directory).map_err(|error| format!("--out {}: {error}", directory.display()))?;
    }
    let results = rounds(options, &groups, starter)?;
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

/// Checks the options of every table, before hours of measuring.
fn check_l0(options: &Options, groups: &[Vec<Setup>]) -> Result<(), Failure> {
    for setup in groups.iter().flatten() {
        let table = setup.table(options.cell.l0_kib << 10);
        table.check().map_err(|reason| format!("--l0-kib: {setup}: {reason}"))?;
    }
    Ok(())
}

fn rounds(options: &Options, groups: &[Vec<Setup>], starter: &Starter) -> Result<Results, Failure> {
    let mut results = Results::default();
    let total = groups.iter().flatten().count() * options.rounds as usize;
    let mut done = 0;
    for round in 1..=options.rounds {
        for group in groups {
            for turn in 0..group.len() {
                let setup = group[(turn + round as usize - 1) % group.len()];
                done += 1;
                eprintln!("[{done}/{total}] round {round}: {setup}");
                match measure(options, setup, starter) {
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
fn measure(options: &Options, setup: Setup, starter: &Starter) -> Result<Vec<PhaseReport>, BenchError> {
    let of = variant(setup.variant);
    let table = setup.table(options.cell.l0_kib << 10);
    let (regions, threads, depth) = match (of.one_by_one, options.cell) {
        (false, cell) => (cell.regions, cell.threads, cell.depth),
        (true, _) => (1, 1, 1),
    };
    let wanted = Wanted { table, link: of.link, regions, late: 0, memory_bytes: options.cell.memory_mib << 20 };
    let Started { seeds, cluster } = starter.start(wanted).map_err(|error| BenchError::Start(error.to_string()))?;
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
        print_phase(phase);
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

/// The default number of records: enough for tens of MiB of index in each region, and for seconds of load on a small
/// machine. With fewer, the one compaction that runs when the load ends would decide how long the nodes take to settle.
fn records(mix: Mix) -> u64 {
    match mix {
        Mix::S => 2_500_000,
        Mix::M | Mix::S80 => 1_200_000,
        Mix::SD | Mix::MD | Mix::S40 => 1_000_000,
        Mix::L | Mix::LD => 400_000,
    }
}

fn print_phase(phase: &PhaseReport) {
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
