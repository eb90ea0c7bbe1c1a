//! What scans pay for the order in which data lies on the device: what decides when to write it again.
//!
//! A level is merged, or values are written again in key order, once scans have read twice as many bytes for want of it
//! as that will read and write. LevelDB's seek compaction counts likewise. What was done is subtracted. So scans cause
//! half as much work as they have had themselves, and a store that is hardly scanned does none of it.
//!
//! - **Levels.** A scan reads a leaf of each level, whether or not it needs a pair of it. Of the levels above the last,
//!   the bytes of these leaves count.
//! - **Values.** The large log holds values in the order of their writes. Of values that took a read of their own, the
//!   bytes count, unless they are in a sorted run already.
//!
//! Only what comes from the device counts, and only of scans with a limit: others may be exports. Any thread.

use leeward_format::manifest::{L1_RUNS, MAX_LEVELS, level_at};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Levels, all runs of L1 as one.
const LEVELS: usize = MAX_LEVELS - L1_RUNS + 1;
/// How often scans pay for work: it takes the device from them for a while, and is worth it only if they go on.
const TIMES: u64 = 2;
/// Bytes after which compactions are called to look whether there is something to do.
const CALL_BYTES: u64 = 1 << 20;

/// Bytes that scans have read from the device, less those of the work that they led to.
#[derive(Debug, Default)]
pub(crate) struct ScanCosts {
    /// First leaves, by level. Negative after a merge of more than was paid for.
    levels: [AtomicI64; LEVELS],
    /// Values that took a read of their own.
    values: AtomicI64,
    /// All that was ever counted, and how much it was at the last call.
    all: AtomicU64,
    called: AtomicU64,
}

impl ScanCosts {
    /// A scan has read a leaf of `bytes` of the level at `position`, which is not the last.
    pub(crate) fn read_leaf(&self, position: usize, bytes: u64) {
        self.add(self.of(position), bytes);
    }

    /// A scan has read values of `bytes` in all, each by itself.
    pub(crate) fn read_values(&self, bytes: u64) {
        if bytes > 0 {
            self.add(&self.values, bytes);
        }
    }

    /// Bytes that may be read and written to merge the level at `position`: scans have paid for them.
    pub(crate) fn level(&self, position: usize) -> u64 {
        paid(self.of(position))
    }

    /// Bytes that may be read and written to bring values into key order.
    pub(crate) fn values(&self) -> u64 {
        paid(&self.values)
    }

    /// A part of the level at `position` was merged into the next: `bytes` were read and written. One thread at a time.
    pub(crate) fn merged(&self, position: usize, bytes: u64) {
        let (of, cost) = (self.of(position), signed(bytes.saturating_mul(TIMES)));
        // A debt is that of one merge: those for other reasons do not add up.
        let debt = of.load(Ordering::Relaxed).min(0);
        of.fetch_sub(cost.saturating_add(debt), Ordering::Relaxed);
    }

    /// The level at `position` has no data any more. One thread at a time.
    pub(crate) fn forget_level(&self, position: usize) {
        self.of(position).store(0, Ordering::Relaxed);
    }

    /// Values will be written again in key order, which reads and writes `bytes` that were paid for. One thread at a
    /// time.
    pub(crate) fn order_values(&self, bytes: u64) {
        self.values.fetch_sub(signed(bytes.saturating_mul(TIMES)), Ordering::Relaxed);
    }

    /// No values are left to be brought into key order. One thread at a time.
    pub(crate) fn forget_values(&self) {
        self.values.store(0, Ordering::Relaxed);
    }

    /// Whether scans have read enough since the last call.
    pub(crate) fn call(&self) -> bool {
        let all = self.all.load(Ordering::Relaxed);
        let called = self.called.load(Ordering::Relaxed);
        all.saturating_sub(called) >= CALL_BYTES
            && self.called.compare_exchange(called, all, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn of(&self, position: usize) -> &AtomicI64 {
        &self.levels[level_at(position) - 1]
    }

    fn add(&self, to: &AtomicI64, bytes: u64) {
        to.fetch_add(signed(bytes), Ordering::Relaxed);
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn paid(count: &AtomicI64) -> u64 {
    u64::try_from(count.load(Ordering::Relaxed)).unwrap_or(0) / TIMES
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_of_more_than_was_paid_for_is_a_debt_but_debts_do_not_add_up() {
        let (costs, level) = (ScanCosts::default(), L1_RUNS);
        costs.read_leaf(level, 100);
        costs.merged(level, 80);
        costs.read_leaf(level, 60);
        assert_eq!(costs.level(level), 0, "twice 80 is 160, and 160 were read");
        costs.read_leaf(level, 10);
        assert_eq!(costs.level(level), 5);
        for _ in 0..9 {
            costs.merged(level, 80);
        }
        costs.read_leaf(level, 170);
        assert_eq!(costs.level(level), 5, "the debt is that of the last merge");
        assert_eq!(costs.level(level - 1), 0, "of the level above nothing was read");
        costs.forget_level(level);
        assert_eq!(costs.level(level), 0);
    }
}
