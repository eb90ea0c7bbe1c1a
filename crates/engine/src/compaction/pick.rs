//! What to compact next. Memory only.

use super::{Compaction, Context, SegmentIds, Source};
use crate::tree::Level;
use crate::version::Version;
use leeward_format::Lsn;
use leeward_format::manifest::LogExtent;
use std::fmt;
use std::sync::Arc;

/// Most leaf segments of a level that one compaction takes.
const MAX_INPUT_SEGMENTS: usize = 4;
/// Most L0s that one compaction takes: each rewrites what of L1 it overlaps, whether it is one L0 or many.
const MAX_INPUT_L0S: usize = 8;
/// A level goes before the frozen L0s, which writers may be waiting for, when it is over its size by more than this for each
/// of them.
const L0_WEIGHT: f64 = 0.5;

/// Decides what to compact next. One a region, used by one thread at a time.
pub struct Picker {
    l1_bytes: u64,
    growth_factor: u32,
    ids: SegmentIds,
    /// Key that the next compaction of each level starts from, so that all of a level gets its turn.
    resume: Vec<Vec<u8>>,
}

impl Picker {
    /// For an L1 of `l1_bytes`, and levels that grow by `growth_factor` from there.
    pub fn new(l1_bytes: u64, growth_factor: u32, ids: SegmentIds) -> Picker {
        Picker { l1_bytes, growth_factor, ids, resume: Vec::new() }
    }

    /// The most urgent compaction of `version`, if any: its frozen L0s as far as all of them is committed, or a level that
    /// is over its size. `logs` are how far the logs had reached when each L0 froze, the oldest first; those of the L0s
    /// compacted go into the edit. Touches no device.
    pub fn pick(&mut self, version: &Version, commit: Lsn, logs: &[Vec<LogExtent>]) -> Option<Compaction> {
        let frozen = version.frozen().iter().rev();
        let l0s: Vec<_> = frozen.take_while(|l0| l0.last_lsn() <= commit).take(MAX_INPUT_L0S).cloned().collect();
        let fullest = version
            .levels()
            .iter()
            .enumerate()
            .map(|(level, contents)| (level, contents.bytes() as f64 / self.target_bytes(level) as f64))
            .filter(|(_, fill)| *fill > 1.0)
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        let source = match fullest {
            Some((level, fill)) if l0s.is_empty() || fill > l0s.len() as f64 * L0_WEIGHT => {
                self.take_segments(version, level)
            }
            _ if l0s.is_empty() => return None,
            _ => {
                let logs = furthest(&logs[..logs.len().min(l0s.len())]);
                Source::L0(l0s, logs)
            }
        };
        let mut levels = version.levels().to_vec();
        if levels.len() == source.target() {
            levels.push(Arc::new(Level::empty()));
        }
        let (reads, ids) = (Arc::clone(version.reads()), Arc::clone(&self.ids));
        Some(Compaction::new(Context { reads, ids, source, levels, base: version.levels().to_vec() }))
    }

    /// Bytes that a level (0 is L1) should have at most.
    fn target_bytes(&self, level: usize) -> u64 {
        let growth = u64::from(self.growth_factor.max(2)).saturating_pow(level as u32);
        self.l1_bytes.max(1).saturating_mul(growth)
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
