//! Many seeds in parallel, one per thread at a time. No other module of this crate starts threads.

use crate::scenario::Scenario;
use crate::{Report, run};
use leeward_platform::planted::Bug;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZero;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// CI runs all seeds up to this one. It adds seeds up to [`COVER`] until every pair of choices that one of those has
/// occurs.
const FIRST: u64 = 150;
const COVER: u64 = 3_000;

/// The seeds that are searched for a planted bug until one finds it. Some bugs need a situation that one seed in thousands has.
const PLANTED: RangeInclusive<u64> = 1..=6_000;

/// The seeds that are searched for `bug`: those up to 6,000 whose options allow the situation that the broken rule is
/// for.
pub fn planted(bug: Bug) -> impl Iterator<Item = u64> + Send {
    PLANTED.filter(move |seed| Scenario::of(*seed).may_show(bug))
}

/// The seeds that CI runs: the first ones, and later ones with pairs of choices that the others do not have. So each pair of
/// values occurs, and each kind of fault meets each value.
pub fn ci() -> Vec<u64> {
    let mut numbers = HashMap::new();
    let pairs: Vec<_> = (1..=COVER).map(|seed| pairs(seed, &mut numbers)).collect();
    let (mut seen, mut chosen) = (HashSet::<(usize, usize)>::new(), BTreeSet::new());
    // Chooses the seeds that have at least `least_news` new pairs. `seeds` begins with seed `after + 1`.
    let mut choose = |seeds: &[Vec<(usize, usize)>], after: u64, least_news: usize| {
        for (seed, pairs) in (after + 1..).zip(seeds) {
            if pairs.iter().filter(|pair| !seen.contains(*pair)).count() >= least_news {
                seen.extend(pairs);
                chosen.insert(seed);
            }
        }
    };
    let (first, others) = pairs.split_at(FIRST as usize);
    choose(first, 0, 0);
    // Seeds that have many new pairs are chosen first, so that fewer seeds cover all pairs.
    [64, 32, 16, 8, 4, 2, 1].into_iter().for_each(|least_news| choose(others, FIRST, least_news));
    chosen.into_iter().collect()
}

/// The pairs of choices that a seed has; each choice has a number. The way in which it [converts](Scenario::conversion)
/// copies counts as a pair, too.
fn pairs(seed: u64, numbers: &mut HashMap<(&'static str, String), usize>) -> Vec<(usize, usize)> {
    let mut number = |choice| {
        let next = numbers.len();
        *numbers.entry(choice).or_insert(next)
    };
    let scenario = Scenario::of(seed);
    let choices: Vec<usize> = scenario.choices().into_iter().map(&mut number).collect();
    let conversion = scenario.conversion().map(|conversion| number(("conversion", conversion)));
    let mut pairs: Vec<_> = conversion.into_iter().map(|conversion| (conversion, conversion)).collect();
    for (position, left) in choices.iter().enumerate() {
        pairs.extend(choices[..position].iter().map(|right| (*left, *right)));
    }
    pairs
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
