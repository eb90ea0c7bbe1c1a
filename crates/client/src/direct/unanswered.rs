//! The writes of a session that are not answered: a direct read of their keys would not see them.
//!
//! Keys are told apart by their hash. Two with one hash only cost a direct read. Pure.

use leeward_format::filter;
use leeward_format::op::Op;
use rustc_hash::FxHashMap;

/// The writes of a session that have no answer yet.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// How many writes of single keys there are, by the hash of the key.
    keys: FxHashMap<u64, u32>,
    /// How many of ranges of keys.
    ranges: u32,
}

impl Unanswered {
    /// An operation was submitted.
    pub(super) fn submitted(&mut self, op: &Op) {
        if !op.writes_data() {
            return;
        }
        match op.key() {
            Some(key) => *self.keys.entry(filter::hash(key)).or_default() += 1,
            None => self.ranges += 1,
        }
    }

    /// The operation, which was submitted, is answered.
    pub(super) fn ended(&mut self, op: &Op) {
        if !op.writes_data() {
            return;
        }
        let Some(key) = op.key() else { return self.ranges = self.ranges.saturating_sub(1) };
        let hash = filter::hash(key);
        if let Some(count) = self.keys.get_mut(&hash) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.keys.remove(&hash);
            }
        }
    }

    /// Whether one of them may write `key`.
    #[inline]
    pub(super) fn concerns(&self, key: &[u8]) -> bool {
        self.ranges > 0 || (!self.keys.is_empty() && self.keys.contains_key(&filter::hash(key)))
    }
}
