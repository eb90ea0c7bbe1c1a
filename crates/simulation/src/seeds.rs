//! Many seeds beside each other, one a thread at a time. The only place of this crate that knows threads.

use crate::character::Character;
use crate::{Report, run};
use leeward_platform::planted::Bug;
use std::collections::HashSet;
use std::num::NonZero;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The seeds that CI runs in any case. Others up to [`COVER`] are added where they have a pair of choices that none before them has.
const FIRST: u64 = 150;
const COVER: u64 = 3_000;

/// Where planted bugs are looked for, each until it is found: what some of them need comes about in one seed of a thousand.
const PLANTED: RangeInclusive<u64> = 1..=3_000;

/// Where `bug` is looked for: the seeds up to 3,000 whose options bring about what its rule is for.
pub fn planted(bug: Bug) -> impl Iterator<Item = u64> + Send {
    PLANTED.filter(move |seed| Character::of(*seed).may_show(bug))
}

/// The seeds that CI runs: the first ones, and of those that follow each that has a pair of choices which no seed before it has, so
/// that each pair of values occurs, and each fault strikes beside each value.
pub fn ci() -> Vec<u64> {
    let mut seen = HashSet::new();
    let has_news = |seed: &u64| {
        let choices = Character::of(*seed).choices();
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

/// Runs `seeds` on `jobs` threads, roughly in order; `None`: as many as there are cores. `seen` is called with each
/// report, from any of the threads, and ends the search with [`ControlFlow::Break`].
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
