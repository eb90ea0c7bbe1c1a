//! How many pairs of a new run older levels have too, by a sample of its keys. Only these pairs hide something: a run
//! of new keys wastes no space, and need not be merged for its sake.
//!
//! Memory only: what a filter cannot exclude counts as known, and so does all that a segment may have whose filter is
//! not in memory.

use crate::tree::Level;
use crate::version::{Reach, Reads};
use leeward_format::filter::hash;
use std::sync::Arc;

/// One key in so many is looked up. A full segment of small pairs has some 40,000.
const EVERY: u32 = 64;

/// The sample of a leaf segment that is being filled.
#[derive(Debug, Default)]
pub(super) struct Sample {
    keys: u32,
    looked_up: u32,
    known: u32,
}

impl Sample {
    /// The next key of the segment. `older` are the levels below.
    #[inline]
    pub(super) fn add(&mut self, reads: &Reads, older: &[Arc<Level>], key: &[u8]) {
        if self.keys.is_multiple_of(EVERY) {
            self.look_up(reads, older, key);
        }
        self.keys += 1;
    }

    fn look_up(&mut self, reads: &Reads, older: &[Arc<Level>], key: &[u8]) {
        let hash = hash(key);
        self.looked_up += 1;
        self.known += u32::from(older.iter().any(|level| level.may_contain(reads, key, hash)));
    }

    /// Part of the keys that older levels have.
    pub(super) fn overlap(&self) -> f32 {
        if self.looked_up == 0 { 1.0 } else { self.known as f32 / self.looked_up as f32 }
    }
}

impl Level {
    /// Whether the level may have `key`, which has this `hash`, as far as memory knows.
    fn may_contain(&self, reads: &Reads, key: &[u8], hash: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        match self.segments()[self.segment_of(key)].index(reads, Reach::Memory) {
            Ok(Some(index)) => index.may_contain(hash),
            _ => true,
        }
    }
}
