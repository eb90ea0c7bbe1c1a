//! How many pairs of a new run older levels have too, by a sample of its keys. Only these pairs hide something: a run
//! of new keys wastes no space, and need not be merged to save any.
//!
//! What is hidden may be large, in place or in a log, and its size is unknown. So the part that counts is that of the
//! keys or that of the bytes of their pairs, whichever is more: most updates are about as large as what they replace.
//!
//! Memory only: what a filter cannot exclude counts as known, and so does what a segment may have whose filter is not
//! in memory.

use super::Context;
use super::runs::NewRun;
use crate::memtable::Entry;
use crate::tree::Level;
use leeward_format::filter::hash;
use std::sync::Arc;

/// One key in so many is looked up. A full segment of small pairs has some 40,000. A prime: keys often come in groups of
/// two, four or ten.
const EVERY: usize = 61;

/// The sample of a leaf segment that is being filled.
#[derive(Debug, Default)]
pub(super) struct Sample {
    looked_up: Sum,
    known: Sum,
}

/// Keys, and the bytes of their pairs.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    keys: u32,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        (self.keys, self.bytes) = (self.keys + 1, self.bytes + bytes);
    }
}

impl Sample {
    /// The pair of this number in the segment, from 0.
    #[inline]
    pub(super) fn add(&mut self, context: &Context, number: usize, key: &[u8], entry: Entry<'_>) {
        // Nobody asks what the one run of L1 hides, into which L0s are merged.
        let is_new = |run: &NewRun| context.levels[run.target].is_empty();
        if number.is_multiple_of(EVERY) && context.source.new_run().is_some_and(is_new) {
            self.look_up(&context.levels[context.source.target() + 1..], key, entry);
        }
    }

    /// `older` are the levels below the new run.
    fn look_up(&mut self, older: &[Arc<Level>], key: &[u8], entry: Entry<'_>) {
        let value_bytes = match entry {
            Entry::InPlace(value) => value.len() as u64,
            Entry::InLog { value_bytes, .. } => u64::from(value_bytes),
            Entry::Tombstone => 0,
        };
        let (hash, bytes) = (hash(key), key.len() as u64 + value_bytes);
        self.looked_up.add(bytes);
        if older.iter().any(|level| level.may_have(key, hash)) {
            self.known.add(bytes);
        }
    }

    /// Part of the pairs that older levels have.
    pub(super) fn overlap(&self) -> f32 {
        let Sample { looked_up, known, .. } = self;
        if looked_up.keys == 0 {
            return 1.0;
        }
        let of_bytes = known.bytes as f32 / looked_up.bytes as f32;
        of_bytes.max(known.keys as f32 / looked_up.keys as f32)
    }
}

impl Level {
    /// Whether the level may have `key`, which has this `hash`, as far as memory knows.
    fn may_have(&self, key: &[u8], hash: u64) -> bool {
        !self.is_empty() && self.segments()[self.segment_of(key)].may_have(hash)
    }
}
