//! How long a region was unavailable: the longest time between two successful operations on it, as the clients noted them. Pure.
//! Times are microseconds since the run began.

use crate::clients::Success;

#[cfg(test)]
#[path = "gaps_tests.rs"]
mod tests;

/// The longest gaps that overlap some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Longest {
    /// Without any success.
    pub(crate) of_any: u64,
    /// Without a successful write.
    pub(crate) of_writes: u64,
}

impl Longest {
    pub(crate) fn or(self, other: Longest) -> Longest {
        Longest { of_any: self.of_any.max(other.of_any), of_writes: self.of_writes.max(other.of_writes) }
    }
}

/// When each region had a success.
#[derive(Debug)]
pub(crate) struct Successes {
    /// By region: the times of all operations, and those of writes; ascending.
    regions: Vec<[Vec<u64>; 2]>,
    end: u64,
}

impl Successes {
    /// Of a run that began at 0 and ended at `end`.
    pub(crate) fn new(all: &[Success], regions: usize, end: u64) -> Successes {
        let mut times = vec![[Vec::new(), Vec::new()]; regions];
        for Success { region, at, is_write } in all {
            times[*region][0].push(*at);
            if *is_write {
                times[*region][1].push(*at);
            }
        }
        times.iter_mut().flatten().for_each(|times| times.sort_unstable());
        Successes { regions: times, end }
    }

    /// The longest gaps of any region that overlap the time from `from` to `to`. A gap that began before or ended later counts
    /// with its whole length.
    pub(crate) fn longest(&self, from: u64, to: u64) -> Longest {
        let longest = |kind: usize| {
            let gaps = self.regions.iter().map(|region| longest(&region[kind], self.end, (from, to)));
            gaps.max().unwrap_or_default()
        };
        Longest { of_any: longest(0), of_writes: longest(1) }
    }
}

fn longest(times: &[u64], end: u64, (from, to): (u64, u64)) -> u64 {
    let first = times.partition_point(|at| *at <= from);
    let mut before = first.checked_sub(1).map_or(0, |index| times[index]);
    let mut longest = 0;
    for at in times[first..].iter().copied().chain([end]) {
        longest = longest.max(at.saturating_sub(before));
        before = at;
        if at >= to {
            break;
        }
    }
    longest
}
