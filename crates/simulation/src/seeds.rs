//! Many seeds in parallel, one per thread at a time. The only module of this crate that knows threads.

use crate::scenario::Scenario;
use crate::{Report, run};
use leeward_platform::planted::Bug;
use std::collections::HashSet;
use std::num::NonZero;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// CI runs the seeds up to this one in any case. It adds those up to [`COVER`] that have a pair of choices which no seed before
/// has.
const FIRST: u64 = 150;
const COVER: u64 = 3_000;

/// The seeds that are searched for a planted bug until one finds it. Some bugs need a situation that one seed in a thousand has.
const PLANTED: RangeInclusive<u64> = 1..=3_000;

/// The seeds that are searched for `bug`: those up to 3,000 with options that bring about the situation that its rule is for.
pub fn planted(bug: Bug) -> impl Iterator<Item = u64> + Send {
    PLANTED.filter(move |seed| Scenario::of(*seed).may_show(bug))
}

/// The seeds that CI runs: the first ones, and each later one that has a pair of choices which no seed before it has. So each
/// pair of values occurs, and each kind of fault meets each value.
pub fn ci() -> Vec<u64> {
    let mut seen = HashSet::new();
    let has_news = |seed: &u64| {
        let choices = Scenario::of(*seed).choices();
        let mut has_news = false;
        for (position, left) in choices.iter().enumerate() {
            for right in &choices[..position] {
                has_news |= seen.insert((left.clone(), right.clone()));
            }
        }
        has_news || *seed <= FIRST
    };
    (1..=COVER).filter(has_news).collect()
}

/// Runs `seeds` on `jobs` threads, roughly in order; `None` means one thread per core. Calls `seen` with each report, from any of
/// the threads. `seen` ends the search with [`ControlFlow::Break`].
pub fn search(
    seeds: impl Iterator<Item = u64> + Send,
    bug: Option<Bug>,
    jobs: Option<NonZero<usize>>,
    seen: impl Fn(Report) -> ControlFlow<()> + Sync,
) {
    let jobs = jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZero::get);
    let (seeds, over) = (Mutex::new(seeds), AtomicBool::new(false));
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let next = seeds.lock().expect("no thread panics with it").next();
            let Some(seed) = next else { return };
            if seen(run(seed, bug)).is_break() {
                over.store(true, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
}

/// The command that repeats a run, with its log.
pub fn replay_command(seed: u64, bug: Option<Bug>) -> String {
    let bug = bug.map_or(String::new(), |bug| format!(" --bug {bug:?}"));
    format!("cargo xtask simulate --seed {seed}{bug}")
}
