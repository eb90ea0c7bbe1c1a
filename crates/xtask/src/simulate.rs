//! `cargo xtask simulate`: runs seeds of the simulated cluster, or repeats one with its log.

use clap::Args;
use leeward_platform::planted::Bug;
use leeward_simulation::{Report, seeds};
use std::num::NonZero;
use std::ops::{ControlFlow, RangeInclusive};
use std::process::ExitCode;
use std::sync::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Options of a simulation.
#[derive(Args, Debug)]
pub struct Simulate {
    /// Repeats this seed with the log of its nodes; RUST_LOG chooses how much (default: info).
    #[arg(long, conflicts_with_all = ["seeds", "jobs"])]
    seed: Option<u64>,
    /// Runs these seeds, both ends included.
    #[arg(long, value_name = "FROM..TO", value_parser = range, default_value = "1..1000")]
    seeds: RangeInclusive<u64>,
    /// Plants this bug, which the seeds should find.
    #[arg(long, value_name = "NAME", value_parser = bug)]
    bug: Option<Bug>,
    /// Seeds that run at the same time; as many as there are cores by default.
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// Ends with the first failure.
    #[arg(long)]
    stop: bool,
}

fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("two numbers with .. between them")?;
    let number = |text: &str| text.trim_start_matches('=').parse::<u64>().map_err(|error| format!("{text}: {error}"));
    Ok(number(from)?..=number(to)?)
}

fn bug(text: &str) -> Result<Bug, String> {
    let plain = |text: &str| text.replace(['-', '_'], "").to_lowercase();
    let names = || Bug::ALL.map(|bug| format!("{bug:?}")).join(", ");
    let found = Bug::ALL.into_iter().find(|bug| plain(&format!("{bug:?}")) == plain(text));
    found.ok_or_else(|| format!("one of {}", names()))
}

/// Runs the seeds. The exit code is a failure if a seed failed.
pub fn simulate(options: &Simulate) -> ExitCode {
    let failed = match options.seed {
        Some(seed) => repeat(seed, options.bug),
        None => search(options),
    };
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The time of a log line: simulated seconds, and the node.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        let (now, node) = leeward_simulation::here();
        match node {
            Some(node) => write!(writer, "{:11.6} node {node}", now.as_secs_f64()),
            None => write!(writer, "{:11.6}       ", now.as_secs_f64()),
        }
    }
}

fn repeat(seed: u64, bug: Option<Bug>) -> bool {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_timer(SimulatedTime).with_env_filter(filter).with_writer(std::io::stdout).init();
    let report = leeward_simulation::run(seed, bug);
    println!("{}", line(&report));
    report.failure.inspect(|failure| println!("FAILED: {failure}")).is_some()
}

fn line(report: &Report) -> String {
    let Report {
        seed,
        scenario,
        answered,
        unknown,
        again,
        stale,
        fresh,
        direct,
        compactions,
        promotions,
        splits,
        merges,
        faults,
        digest,
        ..
    } = report;
    format!(
        "seed {seed}: {answered} answered, {unknown} unknown, {again} asked again, {stale} read from backups, {fresh} fresh, {} read directly, {compactions} compactions, \
         {promotions} promotions, {splits} splits, {merges} merges, {faults} faults, digest {digest:016x} ({scenario})",
        direct.hits
    )
}

/// The reports of a search so far.
#[derive(Default)]
struct Seen {
    seeds: u64,
    failed: u64,
    total: Report,
}

fn search(options: &Simulate) -> bool {
    let all = options.seeds.end().saturating_sub(*options.seeds.start()) + 1;
    let seen = Mutex::new(Seen::default());
    seeds::search(options.seeds.clone(), options.bug, options.jobs, |report| {
        let mut seen = seen.lock().expect("no thread panics with it");
        seen.note(&report, options.bug);
        if seen.seeds.is_multiple_of(100) {
            println!("{} of {all} seeds, {} failed", seen.seeds, seen.failed);
        }
        if options.stop && seen.failed > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let Seen { seeds, failed, total } = seen.into_inner().expect("no thread panics with it");
    let Report {
        answered, unknown, again, stale, fresh, direct, compactions, promotions, splits, merges, faults, ..
    } = total;
    println!(
        "{seeds} seeds, {failed} failed: {answered} operations answered, {unknown} unknown, {again} asked again, {stale} read from backups, {fresh} fresh, \
         {} read directly, {compactions} compactions, {promotions} promotions, {splits} splits, {merges} merges, {faults} faults",
        direct.hits
    );
    failed > 0
}

impl Seen {
    fn note(&mut self, report: &Report, bug: Option<Bug>) {
        self.seeds += 1;
        let total = &mut self.total;
        total.answered += report.answered;
        total.unknown += report.unknown;
        total.again += report.again;
        total.stale += report.stale;
        total.fresh += report.fresh;
        total.direct += report.direct;
        total.compactions += report.compactions;
        total.promotions += report.promotions;
        total.splits += report.splits;
        total.merges += report.merges;
        total.faults += report.faults;
        if let Some(failure) = &report.failure {
            self.failed += 1;
            let short: String = failure.chars().take(1_000).collect();
            println!(
                "seed {} FAILED: {short}\n    repeat it: {}",
                report.seed,
                seeds::replay_command(report.seed, bug)
            );
        }
    }
}

#[cfg(test)]
#[path = "simulate_tests.rs"]
mod tests;
