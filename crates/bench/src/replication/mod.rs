//! Compares modes of replication: the papers' experiments, each cell on a cluster of its own, in interleaved rounds.
//!
//! ```text
//!   run -> plan: which clusters          Starter (of dev): nodes, processes in a new directory
//!            |                               |
//!            '-> rounds: each cell in turn --'--> ycsb: Load A, Run A -> samples
//!                                                                         |
//!                 cells: medians, the JSON <------------------------------+--> targets: ratios --> report: Markdown, SVG
//! ```
//! Cells that are compared with each other run one after the other, and each round begins with the next of them. So
//! other load on the machine affects all of them alike. A run whose data has too few levels is refused, because it
//! would prove nothing. Call it from any thread.

mod cells;
mod experiments;
mod figure;
mod measure;
pub(crate) mod plan;
mod rebuild;
mod recovery;
mod report;
mod targets;
mod variants;
mod wanted;

use crate::options::{Failure, NODES};
pub use cells::{Cell, CpuShare, Percentiles, RecoveryFigures};
pub use experiments::{EXPERIMENTS, Experiment};
pub use figure::Figure;
pub use targets::{Bound, Verdict};
pub(crate) use variants::variant;
pub use variants::{VARIANTS, Variant};

use crate::json::{check_json, write_json};
use crate::machine::Machine;
use crate::starter::Starter;
use cells::Sample;
use clap::{Args, value_parser};
use measure::measure;
use plan::{Scope, Setup};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;

/// Size of an L0 in KiB, unless an option or an experiment says otherwise.
const L0_KIB: u64 = 256;

/// Options that all clusters of one run share.
#[derive(Args, Clone, Copy, Debug)]
pub struct CellOptions {
    /// Size at which an L0 freezes, in KiB, unless the mode has a smaller one [default: 256; with two-layer logs so that
    /// load fills 400 in each region]
    #[arg(long, value_name = "KIB", value_parser = value_parser!(u64).range(64..=1_048_576))]
    pub l0_kib: Option<u64>,
    /// Nodes of each cluster, unless the experiment has another number
    #[arg(long, default_value_t = NODES, value_parser = value_parser!(u32).range(3..=32))]
    pub nodes: u32,
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

impl CellOptions {
    /// Size of an L0, unless an experiment says otherwise.
    pub(crate) fn l0_bytes(self) -> u64 {
        self.l0_kib.unwrap_or(L0_KIB) << 10
    }
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
        let table = setup.table(measure::l0_bytes(options, *setup));
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
                    Err(error) if error.is_refusal() => return Err(format!("{setup}: {error}").into()),
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
