//! Many seeds beside each other, one a thread at a time. The only place of this crate that knows threads.

use crate::{Report, run};
use leeward_platform::planted::Bug;
use std::num::NonZero;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The seeds that CI runs.
pub const CI: RangeInclusive<u64> = 1..=1_000;

/// Where a planted bug is looked for, until it is found: what some of them need comes about in one seed of a thousand.
pub const PLANTED: RangeInclusive<u64> = 1..=3_000;

/// Runs `seeds` on `jobs` threads, roughly in order; `None`: as many as there are cores. `seen` is called with each
/// report, from any of the threads, and ends the search with [`ControlFlow::Break`].
pub fn search(
    seeds: RangeInclusive<u64>,
    bug: Option<Bug>,
    jobs: Option<NonZero<usize>>,
    seen: impl Fn(Report) -> ControlFlow<()> + Sync,
) {
    let jobs = jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZero::get);
    let (next, over) = (AtomicU64::new(*seeds.start()), AtomicBool::new(false));
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > *seeds.end() {
                return;
            }
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
