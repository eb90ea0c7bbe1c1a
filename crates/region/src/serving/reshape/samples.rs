//! Keys of some of the latest operations on a region. They tell where to split it so that each half has about as much to do.
//!
//! A random generator chooses which operations to note, so that no pattern of clients coincides with it. The region's number
//! seeds the generator, so a simulated run repeats exactly.

use bytes::Bytes;
use leeward_format::RegionId;
use leeward_format::op::{Op, ScanRange};
use leeward_platform::Rng;

/// Keys that are remembered.
const KEYS: usize = 64;
/// One of so many operations on keys is noted, on average.
const ONE_OF: u64 = 32;
/// Longer keys are cut: what they begin with tells them apart well enough.
const MOST_BYTES: usize = 64;
/// A split key has at least this fraction (1/4) of the operations on either side.
const LEAST_PART: usize = 4;

/// Keys of the latest operations on a region.
#[derive(Debug)]
pub(super) struct Samples {
    rng: Rng,
    /// Operations on keys until the next one is noted.
    until_next: u64,
    keys: Vec<Bytes>,
    /// Index that the next key replaces, once as many keys are known as are remembered.
    next: usize,
}

impl Samples {
    pub(crate) fn new(region: RegionId) -> Samples {
        Samples { rng: Rng::new(region.0.into()), until_next: 0, keys: Vec::new(), next: 0 }
    }

    /// An operation comes to the region.
    pub(crate) fn note(&mut self, op: &Op) {
        let key = match op {
            Op::Scan(ScanRange { start, reverse: false, .. }) => Some(start),
            op => op.key(),
        };
        let Some(key) = key else { return };
        if self.until_next > 0 {
            self.until_next -= 1;
            return;
        }
        self.until_next = self.rng.below(2 * ONE_OF - 1);
        // The key itself would keep all of its message in memory.
        let key = Bytes::copy_from_slice(&key[..key.len().min(MOST_BYTES)]);
        match self.keys.len() < KEYS {
            true => self.keys.push(key),
            false => self.keys[self.next] = key,
        }
        self.next = (self.next + 1) % KEYS;
    }

    /// A key with about half of the latest operations below it, and the others from it on. `None`: too few operations are
    /// known, or too many are on one key, or keys ascend or descend with time, so that one half would soon have nothing to do.
    pub(crate) fn middle(&self) -> Option<Bytes> {
        if self.keys.len() < KEYS {
            return None;
        }
        let mut keys: Vec<&Bytes> = self.keys.iter().collect();
        keys.sort_unstable();
        let below = |key: &Bytes| keys.partition_point(|other| *other < key);
        let middle = keys.iter().copied().min_by_key(|key| below(key).abs_diff(KEYS / 2))?;
        let splits = |keys: &[Bytes]| {
            let left = keys.iter().filter(|key| *key < middle).count();
            left.min(keys.len() - left) >= keys.len() / LEAST_PART
        };
        // The oldest key is the one that the next key replaces.
        let by_age = [&self.keys[self.next..], &self.keys[..self.next]].concat();
        by_age.chunks(KEYS / 2).all(splits).then(|| middle.clone())
    }
}

#[cfg(test)]
#[path = "samples_tests.rs"]
mod tests;
