//! Rounds. Each round runs every engine once, in its own child process, and begins with another engine. So other load
//! on the machine affects all engines alike.

use crate::Failure;
use crate::args::RoundArgs;
use crate::engine::EngineName;
use crate::measurement::{Line, Measurement};
use crate::page_cache;
use crate::plan::Plan;
use crate::work::Work;
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// One workload of one engine in one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Mix of pair sizes.
    pub(crate) mix: String,
    /// Records that Load inserted.
    pub(crate) records: u64,
    /// Round, from 1.
    pub(crate) round: u32,
    pub(crate) engine: EngineName,
    #[serde(flatten)]
    pub(crate) measurement: Measurement,
}

/// A child that failed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failed {
    /// Mix of pair sizes.
    pub(crate) mix: String,
    /// Records that Load was to insert.
    pub(crate) records: u64,
    /// Round, from 1.
    pub(crate) round: u32,
    pub(crate) engine: EngineName,
    /// Why.
    pub(crate) reason: String,
}

/// The samples and failures of all rounds of all plans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    pub(crate) samples: Vec<Sample>,
    pub(crate) failures: Vec<Failed>,
}

/// Runs `works` of every plan on every engine, round by round. Prints the progress to the standard error.
///
/// # Errors
/// A child cannot be started or read from, or refuses sizes that prove nothing. An engine that fails is among the
/// results.
pub(crate) fn run(plans: &[Plan], works: &[Work], args: &RoundArgs) -> Result<Results, Failure> {
    let mut results = Results::default();
    for round in 1..=args.rounds {
        for plan in plans {
            for turn in 0..args.engines.len() {
                let engine = args.engines[(turn + round as usize - 1) % args.engines.len()];
                run_child(&mut results, plan, works, round, engine, args)?;
            }
        }
    }
    Ok(results)
}

fn run_child(
    results: &mut Results,
    plan: &Plan,
    works: &[Work],
    round: u32,
    engine: EngineName,
    args: &RoundArgs,
) -> Result<(), Failure> {
    let dir = &args.dir;
    let (mix, records) = (plan.mix.to_string(), plan.records);
    let directory = tempfile::Builder::new().prefix("leeward-rivals-").tempdir_in(dir);
    let directory = directory.map_err(|error| format!("--dir {}: {error}", dir.display()))?;
    let mut child = start(program(engine, args)?, plan, works, engine, directory.path())?;
    let output = child.stdout.take().expect("the output is a pipe");
    let over = AtomicBool::new(false);
    let read = thread::scope(|scope| {
        if !engine.has_direct_io() {
            scope.spawn(|| page_cache::keep_empty(directory.path(), &over));
        }
        let read = listen(output, |measurement| {
            tell(plan, round, engine, &measurement);
            results.samples.push(Sample { mix: mix.clone(), records, round, engine, measurement });
        });
        over.store(true, Ordering::Relaxed);
        read
    });
    let reason = read.map_err(|error| format!("mix {mix}, {engine}: {error}"))?;
    let status = child.wait()?;
    if !status.success() || reason.is_some() {
        let reason = reason.unwrap_or_else(|| status.to_string());
        eprintln!("{mix} round {round} {engine}: {reason}");
        results.failures.push(Failed { mix, records, round, engine, reason });
    }
    Ok(())
}

/// Reads the lines of a child to their end; returns why the engine failed, if it did.
fn listen(output: ChildStdout, mut take: impl FnMut(Measurement)) -> Result<Option<String>, Failure> {
    let mut reason = None;
    for line in BufReader::new(output).lines() {
        match serde_json::from_str(&line?)? {
            Line::Measured(measurement) => take(*measurement),
            Line::Failed(error) => reason = Some(error),
            Line::Refused(reason) => return Err(reason.into()),
        }
    }
    Ok(reason)
}

/// The program that runs an engine: this one, but for `leeward-pgo`.
fn program(engine: EngineName, args: &RoundArgs) -> Result<PathBuf, Failure> {
    match engine {
        EngineName::LeewardPgo => args.pgo.clone().ok_or_else(|| "leeward-pgo needs --pgo PATH".into()),
        _ => Ok(std::env::current_exe()?),
    }
}

/// A program, as a run of one engine.
fn start(
    program: PathBuf,
    plan: &Plan,
    works: &[Work],
    engine: EngineName,
    directory: &Path,
) -> Result<Child, Failure> {
    let works: Vec<String> = works.iter().map(Work::to_string).collect();
    let mut command = Command::new(&program);
    command.arg("run").args(plan.arguments()).args(["--engine", &engine.to_string()]);
    command.args(["--workloads", &works.join(",")]).arg("--dir").arg(directory);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    spawned.map_err(|error| format!("{}: {error}", program.display()).into())
}

fn tell(plan: &Plan, round: u32, engine: EngineName, measurement: &Measurement) {
    eprintln!(
        "{} x {} round {round} {engine:>12} {:>5}: {:>9.0} ops/s, {:>6.2} CPU-s/Mop, {:>5.2} read {:>5.2} written, space {:.2}",
        plan.mix,
        plan.records,
        measurement.workload.to_string(),
        measurement.ops_per_second(),
        measurement.cpu_seconds_per_million_ops(),
        measurement.read_amplification(),
        measurement.write_amplification(),
        measurement.space_amplification(),
    );
}
