//! What to compact next. Memory only.

use super::sweep::{Accounts, Sweep, Victims};
use super::{Compaction, CompactionDone, Context, SegmentIds, Source};
use crate::tree::Level;
use crate::version::{Reads, Version};
use leeward_format::cluster::{Placement, TableOptions};
use leeward_format::manifest::LogExtent;
use leeward_format::packed::Compression;
use leeward_format::{Lsn, SegmentId, UnixMs};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Most leaf segments of a level that one compaction takes.
const MAX_INPUT_SEGMENTS: usize = 4;
/// Most L0s that one compaction takes: each rewrites what of L1 it overlaps, whether it is one L0 or many.
const MAX_INPUT_L0S: usize = 8;
/// Size of L1, in L0s: what a compaction of L0s rewrites is L1. Measured against 8.
const L1_L0S: u64 = 4;
/// A level goes before the frozen L0s, which writers may be waiting for, when it is over its size by more than this for each
/// of them.
const L0_WEIGHT: f64 = 0.5;

/// Parts of a sweep for each other compaction while the large log is beyond its limit.
const TURNS_BEYOND_LIMIT: u32 = 2;

/// Decides what to compact next. One a region, used by one thread at a time.
pub struct Picker {
    l1_bytes: u64,
    growth_factor: u32,
    placement: Placement,
    compression: Compression,
    ids: SegmentIds,
    /// Key that the next compaction of each level starts from, so that all of a level gets its turn.
    resume: Vec<Vec<u8>>,
    sweep: Sweep,
    /// So many of the last compactions were parts of a sweep.
    swept_last: u32,
    garbage_percent: u32,
    max_space_percent: u32,
}

/// What a picker must know of the logs that leaves point to.
pub(crate) struct Logs<'a> {
    pub(crate) accounts: Accounts,
    /// See [`super::sweep::choose`].
    pub(crate) choose: &'a dyn Fn(u64) -> Victims,
}

impl Picker {
    /// For levels of a table with these options.
    pub fn new(options: &TableOptions, ids: SegmentIds) -> Picker {
        let &TableOptions {
            l0_bytes, growth_factor, placement, compression, garbage_percent, max_space_percent, ..
        } = options;
        let (resume, sweep, swept_last) = (Vec::new(), Sweep::default(), 0);
        Picker {
            l1_bytes: l0_bytes.saturating_mul(L1_L0S),
            growth_factor,
            placement,
            compression,
            ids,
            resume,
            sweep,
            swept_last,
            garbage_percent,
            max_space_percent,
        }
    }

    /// The most urgent compaction of `version`, if any: its frozen L0s as far as all of them is committed, or a level that
    /// is over its size, or a part of a sweep. `extents` are how far the logs had reached when each L0 froze, the oldest
    /// first; those of the L0s compacted go into the edit. Fewer than `least` L0s can wait. What has expired by `now` is
    /// dropped. Touches no device.
    ///
    /// A sweep takes what time the others leave; every second compaction once there is half as much garbage again as
    /// there should be; and two of three where the space is beyond its limit.
    pub(crate) fn pick(
        &mut self,
        version: &Version,
        commit: Lsn,
        extents: &[Vec<LogExtent>],
        logs: &Logs<'_>,
        (least, now): (usize, UnixMs),
    ) -> Option<Compaction> {
        let accounts = &logs.accounts;
        let turns = match accounts.is_beyond(self.max_space_percent) {
            true => TURNS_BEYOND_LIMIT,
            false => u32::from(accounts.is_over(self.garbage_percent.saturating_mul(3) / 2)),
        };
        let swept = self.next_of_sweep(version, logs);
        let source = match swept {
            Some(swept) if self.swept_last < turns => Some(swept),
            swept => {
                // Writers that wait for space get no second L0.
                let least = if accounts.is_beyond(self.max_space_percent) { 1 } else { least };
                self.pick_merge(version, commit, extents, least).or(swept)
            }
        };
        let source = source.or_else(|| pick_ranged(version))?;
        self.swept_last = if matches!(source, Source::Rewrite { .. }) { self.swept_last + 1 } else { 0 };
        let mut levels = version.levels().to_vec();
        if levels.len() == source.target() {
            levels.push(Arc::new(Level::empty()));
        }
        let (reads, ids) = (Arc::clone(version.reads()), Arc::clone(&self.ids));
        let (placement, compression, base) = (self.placement, self.compression, version.levels().to_vec());
        let victims = Arc::clone(self.sweep.numbers());
        let output_bytes = output_bytes(&reads, &source, &levels);
        let writing = Mutex::default();
        let context =
            Context { reads, ids, placement, compression, now, victims, source, levels, base, output_bytes, writing };
        Some(Compaction::new(context))
    }

    /// What is compacted from now on is compressed so.
    #[cfg(test)]
    pub(crate) fn compress(&mut self, compression: Compression) {
        self.compression = compression;
    }

    /// What [`Picker::reset`] brings back.
    pub(crate) fn mark(&self) -> (Vec<Vec<u8>>, u32) {
        (self.resume.clone(), self.swept_last)
    }

    /// What was picked since `mark` will not be done.
    pub(crate) fn reset(&mut self, mark: (Vec<Vec<u8>>, u32)) {
        (self.resume, self.swept_last) = mark;
    }

    /// A compaction was installed; `gone` were given back with it.
    pub(crate) fn installed(&mut self, done: &CompactionDone, gone: &[SegmentId]) {
        self.sweep.installed(done.swept.as_ref(), gone);
    }

    /// The next part of a sweep, if there is garbage to collect.
    fn next_of_sweep(&mut self, version: &Version, logs: &Logs<'_>) -> Option<Source> {
        let segment_bytes = version.reads().volume.segment_bytes() as u64;
        if self.sweep.is_due(&logs.accounts, self.garbage_percent, segment_bytes) {
            let goal = logs.accounts.space_bytes * u64::from(self.garbage_percent) / 200;
            self.sweep.begin((logs.choose)(goal), &logs.accounts, segment_bytes);
        }
        loop {
            let (level, resume) = self.sweep.place()?;
            match version.levels().get(level) {
                Some(contents) if !contents.is_empty() => {
                    let first = contents.segment_of(resume);
                    let most = self.sweep.part(contents.segments().len(), segment_bytes);
                    return Some(Source::Rewrite { level, first, most });
                }
                Some(_) => self.sweep.next_level(),
                None => self.sweep.end(&logs.accounts, segment_bytes),
            }
        }
    }

    /// The next merge; of L0s if it is `least` at least.
    fn pick_merge(
        &mut self,
        version: &Version,
        commit: Lsn,
        extents: &[Vec<LogExtent>],
        least: usize,
    ) -> Option<Source> {
        let frozen = version.frozen().iter().rev();
        let mut l0s: Vec<_> = frozen.take_while(|l0| l0.last_lsn() <= commit).take(MAX_INPUT_L0S).cloned().collect();
        if l0s.len() < least {
            l0s.clear();
        }
        let fullest = version
            .levels()
            .iter()
            .enumerate()
            .map(|(level, contents)| (level, contents.bytes() as f64 / self.target_bytes(version, level) as f64))
            .filter(|(_, fill)| *fill > 1.0)
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        let source = match fullest {
            Some((level, fill)) if l0s.is_empty() || fill > l0s.len() as f64 * L0_WEIGHT => {
                self.take_segments(version, level)
            }
            _ if l0s.is_empty() => return None,
            _ => {
                let extents = furthest(&extents[..extents.len().min(l0s.len())]);
                Source::L0(l0s, extents)
            }
        };
        Some(source)
    }

    /// Bytes that a level (0 is L1) should have at most: those that it grows to from L1; and above the last level, whose
    /// entries it may hide, as large a part of the level below's as space may be wasted, where that is fewer.
    fn target_bytes(&self, version: &Version, level: usize) -> u64 {
        let share = self.max_space_percent.saturating_sub(100).max(100 / self.growth_factor.max(2));
        let growth = u64::from(self.growth_factor.max(2)).saturating_pow(level as u32);
        let grown = self.l1_bytes.max(1).saturating_mul(growth);
        let below = version.levels().get(level + 1).map_or(0, |below| below.bytes());
        match below {
            0 => grown,
            below => grown.min((below.saturating_mul(u64::from(share)) / 100).max(self.l1_bytes / L1_L0S)),
        }
    }

    fn take_segments(&mut self, version: &Version, level: usize) -> Source {
        let contents = &version.levels()[level];
        if self.resume.len() <= level {
            self.resume.resize(level + 1, Vec::new());
        }
        let first = contents.segment_of(&self.resume[level]);
        let end = (first + MAX_INPUT_SEGMENTS).min(contents.segments().len());
        self.resume[level] = if end < contents.segments().len() { contents.fence(end).to_vec() } else { Vec::new() };
        Source::Level { level, first, end }
    }
}

/// Leaf segments with range tombstones above the last level: what they hide takes space until they have met it.
fn pick_ranged(version: &Version) -> Option<Source> {
    let last = version.levels().iter().rposition(|level| !level.is_empty())?;
    version.levels()[..last].iter().enumerate().find_map(|(level, contents)| {
        let ranged = contents.ranged();
        let first = *ranged.first()?;
        let next_to = |(i, at): &(usize, &usize)| **at == first + i;
        let end = first + ranged.iter().take(MAX_INPUT_SEGMENTS).enumerate().take_while(next_to).count();
        Some(Source::Level { level, first, end })
    })
}

/// See [`Context::output_bytes`]: small regions have small segments.
fn output_bytes(reads: &Reads, source: &Source, levels: &[Arc<Level>]) -> usize {
    const INDEX_BYTES: u64 = 32 << 10;
    let most = reads.volume.segment_bytes();
    let input = match source {
        Source::L0(l0s, _) => l0s.iter().map(|l0| l0.bytes()).sum::<u64>() + levels[0].bytes(),
        Source::Level { level, .. } => levels[*level].bytes() + levels[level + 1].bytes(),
        Source::Rewrite { .. } | Source::Sorted { .. } => return most,
    };
    usize::try_from(input + input / 4 + INDEX_BYTES).unwrap_or(most).min(most)
}

/// How far each log segment of `logs` was referred to last.
fn furthest(logs: &[Vec<LogExtent>]) -> Vec<LogExtent> {
    let mut all: Vec<LogExtent> = Vec::new();
    for extent in logs.iter().flatten() {
        match all.iter_mut().find(|known| known.id == extent.id) {
            Some(known) => known.bytes = known.bytes.max(extent.bytes),
            None => all.push(*extent),
        }
    }
    all
}

impl fmt::Debug for Picker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picker({} bytes, factor {})", self.l1_bytes, self.growth_factor)
    }
}
