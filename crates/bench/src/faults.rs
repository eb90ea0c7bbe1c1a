//! Kills primaries in every mode of replication, and changes the mode meanwhile.
//!
//! Each run is a cluster of its own, of one of the [variants](VARIANTS) that `bench replication` compares, with two or
//! three replicas, under YCSB's workload A. The first kills are like those of `leeward bench ycsb`; each later kill
//! comes with a change of the table. At the end every acknowledged write is read back, every member must be in sync,
//! and the replicas are compared. Call it from any thread.

use crate::figures::{duration, number};
use crate::json::{check_json, write_json};
use crate::keys::Mix;
use crate::machine::Machine;
use crate::options::{self, Failure};
use crate::replication::plan::Setup;
use crate::replication::{CellOptions, VARIANTS, variant};
use crate::report::Report;
use crate::starter::{Started, Starter, WantedCluster, check_link};
use crate::workload::Workload;
use crate::ycsb;
use clap::{Args, value_parser};
use leeward_format::cluster::{Acknowledge, BackupMode, TableOptions};
use leeward_format::packed::Codec;
use leeward_format::table::TableChange;
use serde::Serialize;
use std::fmt::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;

/// Numbers of replicas that every mode is run with.
const REPLICAS: [u32; 2] = [2, 3];
/// The default of a table.
const GROWTH_FACTOR: u32 = 8;

/// Options of the runs.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only these variants, and these numbers of replicas (2, 3). A kind of which none is named runs whole
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Kills in each run, before those that come with a change of the table
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(..=1_000))]
    pub kills: u32,
    /// Seconds from when all members are in sync to the next kill
    #[arg(long = "kill-primary-every", default_value = "1", value_name = "SECONDS", value_parser = duration)]
    pub every: Duration,
    /// Records that load inserts
    #[arg(long, default_value_t = 50_000, value_parser = value_parser!(u64).range(1..))]
    pub records: u64,
    /// Options that all runs share.
    #[command(flatten)]
    pub cell: CellOptions,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// One run. A figure that the run did not reach is `null` in the JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Name of the variant.
    pub variant: &'static str,
    /// Copies of a region, the primary's included.
    pub replicas: u32,
    /// Primaries killed.
    pub kills: u64,
    /// Of them, those with a change of the table.
    pub changes: u64,
    /// Operations done.
    pub ops: u64,
    /// Operations that failed for good.
    pub errors: u64,
    /// Records with a value, or without one, that the acknowledged writes rule out.
    pub lost_writes: Option<u64>,
    /// Writes that were lost with a primary, as last-flush allows; `null` if the table never used last-flush.
    pub newest_lost: Option<u64>,
    /// Longest time from a kill to the first acknowledged write to a region of the killed primary, in seconds; `null`
    /// if a region acknowledged none in time.
    pub unavailable_seconds: Option<f64>,
    /// Longest time from a restart until every member was in sync, in seconds.
    pub in_sync_seconds: Option<f64>,
    /// Segments that are damaged, or differ between replicas.
    pub replica_faults: Option<u64>,
    /// Why there are no figures.
    pub failure: Option<String>,
    /// The first few losses and differences.
    pub details: Vec<String>,
}

/// The JSON. Names in it are stable; others may be added.
#[derive(Serialize)]
struct Json<'a> {
    machine: &'a Machine,
    runs: &'a [Outcome],
    left_out: &'a [String],
}

/// Runs every mode, prints a table, and writes what `options` ask for. Returns whether nothing was lost anywhere.
///
/// # Errors
/// Invalid options, or a file that cannot be written. A run that fails is in the table.
pub fn run(options: &Options, starter: &Starter) -> Result<bool, Failure> {
    check_json(options.json.as_deref())?;
    let mut left_out = Vec::new();
    let mut setups = setups(&options.only)?;
    setups.retain(|setup| match check_link(variant(setup.variant).link) {
        Ok(()) => true,
        Err(reason) => {
            left_out.push(format!("{}, {} replicas: {reason}", setup.variant, setup.replicas));
            false
        }
    });
    let mut runs = Vec::new();
    for (number, setup) in (1..).zip(&setups) {
        eprintln!("[{number}/{}] {}, {} replicas", setups.len(), setup.variant, setup.replicas);
        let outcome = Outcome { variant: setup.variant, replicas: setup.replicas, ..Outcome::default() };
        runs.push(match measure(options, *setup, starter) {
            Ok(report) => outcome.of(&report),
            Err(reason) => Outcome { failure: Some(reason.to_string()), ..outcome },
        });
        runs.last().into_iter().flat_map(Outcome::complaints).for_each(|complaint| eprintln!("  {complaint}"));
    }
    let machine = Machine::here();
    print!("{}", table(&machine, &runs, &left_out));
    write_json(options.json.as_deref(), &Json { machine: &machine, runs: &runs, left_out: &left_out })?;
    Ok(runs.iter().all(Outcome::is_clean))
}

/// Every variant that has backups, with each number of replicas, limited to what `only` names.
fn setups(only: &[String]) -> Result<Vec<Setup>, String> {
    let modes = || VARIANTS.iter().filter(|variant| variant.mode != "none").map(|variant| variant.name);
    let (counts, names): (Vec<_>, Vec<_>) = only.iter().partition(|name| name.parse::<u32>().is_ok());
    if let Some(unknown) = names.iter().find(|name| !modes().any(|mode| mode == **name)) {
        return Err(format!("--only {unknown}: it is 2, 3, or one of {}", modes().collect::<Vec<_>>().join(", ")));
    }
    let replicas: Vec<u32> = REPLICAS.into_iter().filter(|count| wants(&counts, &count.to_string())).collect();
    if let Some(unknown) = counts.iter().find(|count| !REPLICAS.iter().any(|replicas| replicas.to_string() == ***count))
    {
        return Err(format!("--only {unknown}: there are runs with 2 and with 3 replicas"));
    }
    let modes = modes().filter(|mode| wants(&names, mode));
    Ok(modes
        .flat_map(|mode| replicas.iter().map(move |count| Setup::new(mode, Mix::SD, *count, GROWTH_FACTOR)))
        .collect())
}

fn wants(wanted: &[&String], one: &str) -> bool {
    wanted.is_empty() || wanted.iter().any(|name| *name == one)
}

/// Changes that touch every option that can be changed, and end where they began. Every third change comes while a
/// member is being brought in sync.
fn changes(table: &TableOptions) -> Vec<TableChange> {
    let others: Vec<BackupMode> = BackupMode::ALL.into_iter().filter(|mode| *mode != table.backups).collect();
    let wire = if table.wire == Codec::None { Codec::Lz4 } else { Codec::None };
    let acknowledge = match table.acknowledge {
        Acknowledge::LastWrite => Acknowledge::LastFlush,
        Acknowledge::LastFlush => Acknowledge::LastWrite,
    };
    let nothing = TableChange::default;
    vec![
        TableChange { backups: Some(others[0]), ..nothing() },
        TableChange { wire: Some(wire), acknowledge: Some(acknowledge), ..nothing() },
        TableChange { backups: Some(table.backups), ..nothing() },
        TableChange { min_in_sync: Some(1), ..nothing() },
        TableChange { backups: Some(others[1]), acknowledge: Some(table.acknowledge), ..nothing() },
        TableChange {
            backups: Some(table.backups),
            wire: Some(table.wire),
            min_in_sync: Some(table.min_in_sync),
            ..nothing()
        },
    ]
}

fn measure(options: &Options, setup: Setup, starter: &Starter) -> Result<Report, Failure> {
    let of = variant(setup.variant);
    let table = setup.table(options.cell.l0_bytes());
    table.check().map_err(|reason| format!("--l0-kib: {reason}"))?;
    let changes = changes(&table);
    let wanted = WantedCluster {
        table,
        link: of.link,
        regions: options.cell.regions,
        nodes: options.cell.nodes,
        late: 0,
        memory_bytes: options.cell.memory_mib << 20,
        segment_bytes: None,
    };
    let Started { seeds, cluster } = starter.start(wanted)?;
    let work = options::Options {
        seeds,
        workloads: vec![Workload::Load, Workload::A],
        mix: setup.mix,
        records: options.records,
        ops: options.records,
        threads: options.cell.threads,
        depth: options.cell.depth,
        verify: true,
        kill_primary_every: Some(options.every),
        kills: Some(options.kills + changes.len() as u32),
        changes,
        compare_replicas: true,
        ..options::Options::default()
    };
    Ok(ycsb::measure(&work, Some(cluster), &mut |_| Ok(()))?)
}

impl Outcome {
    fn of(self, report: &Report) -> Outcome {
        let longest = |seconds: &[f64]| seconds.iter().copied().reduce(f64::max);
        let unavailable: Option<Vec<f64>> =
            report.kills.iter().flat_map(|kill| kill.unavailable_seconds.iter().copied()).collect();
        let in_sync: Vec<f64> = report.kills.iter().map(|kill| kill.in_sync_seconds).collect();
        let failed = report.phases.iter().filter_map(|phase| phase.first_error.clone());
        Outcome {
            kills: report.kills.len() as u64,
            changes: report.kills.iter().filter(|kill| kill.changed.is_some()).count() as u64,
            ops: report.phases.iter().map(|phase| phase.ops).sum(),
            errors: report.errors,
            lost_writes: report.lost_writes,
            newest_lost: report.newest_lost,
            unavailable_seconds: unavailable.and_then(|seconds| longest(&seconds)),
            in_sync_seconds: longest(&in_sync),
            replica_faults: report.replica_faults,
            details: failed.chain(report.details().iter().cloned()).collect(),
            ..self
        }
    }

    /// The run ended; no operation failed, no write was lost, and the replicas are the same.
    fn is_clean(&self) -> bool {
        self.failure.is_none()
            && self.errors == 0
            && self.lost_writes == Some(0)
            && self.replica_faults == Some(0)
            && self.unavailable_seconds.is_some()
    }

    fn complaints(&self) -> impl Iterator<Item = &String> {
        self.failure.iter().chain(&self.details)
    }
}

/// A Markdown table with one line a run, and the failures below it.
fn table(machine: &Machine, runs: &[Outcome], left_out: &[String]) -> String {
    let mut out = String::new();
    write_table(&mut out, machine, runs, left_out).expect("writing to a string cannot fail");
    out
}

fn write_table(out: &mut String, machine: &Machine, runs: &[Outcome], left_out: &[String]) -> fmt::Result {
    let Machine { processor, cores, kernel } = machine;
    writeln!(out, "{processor}, {cores} cores, Linux {kernel}; three nodes and their clients on this machine.\n")?;
    writeln!(
        out,
        "| variant | replicas | kills | with a change | operations | errors | lost writes | newest gone, as last-flush allows | \
         longest unavailable, s | longest until in sync, s | replica faults |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|")?;
    let count = |count: Option<u64>| count.map_or_else(|| "-".into(), |count: u64| count.to_string());
    let seconds = |seconds: Option<f64>| seconds.map_or_else(|| "-".into(), number);
    for run in runs {
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            run.variant,
            run.replicas,
            run.kills,
            run.changes,
            run.ops,
            run.errors,
            count(run.lost_writes),
            count(run.newest_lost),
            seconds(run.unavailable_seconds),
            seconds(run.in_sync_seconds),
            count(run.replica_faults)
        )?;
    }
    let failed: Vec<&Outcome> = runs.iter().filter(|run| !run.is_clean()).collect();
    writeln!(out, "\n{} runs, {} failed", runs.len(), failed.len())?;
    for run in failed {
        writeln!(out, "- {}, {} replicas FAILED", run.variant, run.replicas)?;
        run.complaints().try_for_each(|complaint| writeln!(out, "  - {complaint}"))?;
    }
    left_out.iter().try_for_each(|left_out| writeln!(out, "- left out: {left_out}"))
}
