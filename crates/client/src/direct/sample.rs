//! A sample of the records that were read since the last question, by which the primary knows what not to evict.
//!
//! Each hit has the same chance to be in it (reservoir sampling). So a record that is read more often is in it more
//! often. Pure but for the generator that it is lent.

use leeward_format::hash_index::Line;
use leeward_platform::Rng;

/// Most records of a sample.
pub(super) const MOST: usize = 512;

/// A sample of the records that were read.
#[derive(Debug, Default)]
pub(super) struct Sample {
    lines: Vec<Line>,
    hits: u64,
}

impl Sample {
    /// The record at `line` was read.
    #[inline]
    pub(super) fn hit(&mut self, line: Line, rng: &mut Rng) {
        self.hits += 1;
        if self.lines.len() < MOST {
            return self.lines.push(line);
        }
        let place = usize::try_from(rng.below(self.hits)).ok();
        if let Some(kept) = place.and_then(|place| self.lines.get_mut(place)) {
            *kept = line;
        }
    }

    /// Takes the sample, and begins another.
    pub(super) fn take(&mut self) -> Vec<Line> {
        self.hits = 0;
        std::mem::take(&mut self.lines)
    }
}
