//! One engine in this process: opens a store, runs the workloads, prints a line for each. Each child of a comparison is
//! such a run. It can also be run by itself under a profiler.

use crate::Failure;
use crate::args::RunArgs;
use crate::engine::EngineName;
use crate::measurement::{Line, Measurement};
use crate::phase;
use crate::plan::{MIN_LEVELS, Plan};
use crate::work::Work;
use leeward_bench::{Records, Workload};
use std::fs;
use std::path::Path;

/// Runs the engine and workloads of `args`. Returns whether they succeeded, which the printed lines say too.
///
/// # Errors
/// Invalid options, or a directory that cannot be made.
pub(crate) fn run(args: &RunArgs) -> Result<bool, Failure> {
    let plan = Plan::new(args.mix, &args.sizes)?;
    let works = in_order(&args.workloads.workloads);
    let made;
    let directory = match &args.dir {
        Some(directory) if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) => {
            return Err(format!("--dir {}: it is not empty", directory.display()).into());
        }
        Some(directory) => directory.as_path(),
        None => {
            made = tempfile::Builder::new().prefix("leeward-rivals-").tempdir()?;
            made.path()
        }
    };
    let outcome = run_all(args.engine, directory, &plan, &works);
    match &outcome {
        Ok(()) => {}
        Err(End::Failed(error)) => Line::Failed(error.to_string()).print()?,
        Err(End::Refused(reason)) => Line::Refused(reason.clone()).print()?,
    }
    Ok(outcome.is_ok())
}

/// Why a run ended early.
enum End {
    Failed(Failure),
    Refused(String),
}

impl<E: Into<Failure>> From<E> for End {
    fn from(error: E) -> End {
        End::Failed(error.into())
    }
}

/// `wanted` in the order in which they run, with load before the workloads that need it.
pub(crate) fn in_order(wanted: &[Work]) -> Vec<Work> {
    let load = Work::Ycsb(Workload::Load);
    let needs_load = wanted.iter().any(|work| *work != Work::Space);
    Work::ALL.into_iter().filter(|work| wanted.contains(work) || (*work == load && needs_load)).collect()
}

fn run_all(engine: EngineName, directory: &Path, plan: &Plan, works: &[Work]) -> Result<(), End> {
    let (space, ycsb): (Vec<Work>, Vec<Work>) = works.iter().partition(|work| **work == Work::Space);
    for works in [ycsb, space] {
        if works.is_empty() {
            continue;
        }
        fs::create_dir_all(directory)?;
        run_store(engine, directory, plan, &works)?;
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
    }
    Ok(())
}

/// Runs `works`, the first of which loads, on a new store.
fn run_store(engine: EngineName, directory: &Path, plan: &Plan, works: &[Work]) -> Result<(), End> {
    let store = engine.open(directory, plan)?;
    let mut records = Records::new(0);
    for work in works {
        let measurement = phase::run(&*store, directory, plan, *work, &records)?;
        refuse_shallow(&measurement, plan)?;
        if work.loads() {
            records = Records::new(plan.records);
        }
        Line::Measured(Box::new(measurement)).print()?;
    }
    Ok(store.close()?)
}

fn refuse_shallow(measurement: &Measurement, plan: &Plan) -> Result<(), End> {
    let Measurement { workload, levels, .. } = measurement;
    if *levels >= MIN_LEVELS {
        return Ok(());
    }
    Err(End::Refused(format!(
        "refused: after {workload} the data has {levels} levels, L0 included, and fewer than {MIN_LEVELS} prove nothing: give \
         more than {} --records or less than {} --l0-kib",
        plan.records,
        plan.l0_bytes >> 10
    )))
}
