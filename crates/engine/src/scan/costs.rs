//! What scans pay for the order in which data lies on the device: what decides when to write it again.
//!
//! A level is merged, or values are written again in key order, once scans have read twice as many bytes for want of it
//! as that will read and write. LevelDB's seek compaction counts likewise. What was done is subtracted. So scans cause
//! half as much work as they have had themselves, and a store that is hardly scanned does none of it.
//!
//! - **Levels.** A scan reads a leaf of each level, whether or not it needs a pair of it. Of the levels above the last,
//!   the bytes of these leaves count.
//! - **Values.** The large log holds values in the order of their writes. Of values that took a read of their own, the
//!   bytes count.
//!
//! Only what comes from the device counts. Any thread.

use leeward_format::manifest::{L1_RUNS, MAX_LEVELS, level_at};
use std::sync::atomic::{AtomicU64, Ordering};

/// Levels, all runs of L1 as one.
const LEVELS: usize = MAX_LEVELS - L1_RUNS + 1;
/// How often scans pay for work: it takes the device from them for a while, and is worth it only if they go on.
const TIMES: u64 = 2;
/// Bytes after which compactions are called to look whether there is something to do.
const CALL_BYTES: u64 = 1 << 20;

/// Bytes that scans have read from the device, less those of the work that they led to.
#[derive(Debug, Default)]
pub(crate) struct ScanCosts {
    /// First leaves, by level.
    levels: [AtomicU64; LEVELS],
    /// Values that took a read of their own.
    values: AtomicU64,
    /// All that was ever counted, and how much it was at the last call.
    all: AtomicU64,
    called: AtomicU64,
}

impl ScanCosts {
    /// A scan has read a leaf of `bytes` of the level at `position`, which is not the last.
    pub(super) fn read_leaf(&self, position: usize, bytes: u64) {
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
        self.of(position).load(Ordering::Relaxed) / TIMES
    }

    /// Bytes that may be read and written to bring values into key order.
    pub(crate) fn values(&self) -> u64 {
        self.values.load(Ordering::Relaxed) / TIMES
    }

    /// A part of the level at `position` was merged into the next: `bytes` were read and written. One thread at a time.
    pub(crate) fn merged(&self, position: usize, bytes: u64) {
        subtract(self.of(position), bytes);
    }

    /// Values will be written again in key order, which costs `bytes`. One thread at a time.
    pub(crate) fn order_values(&self, bytes: u64) {
        subtract(&self.values, bytes);
    }

    /// Whether scans have read enough since the last call.
    pub(crate) fn call(&self) -> bool {
        let all = self.all.load(Ordering::Relaxed);
        let called = self.called.load(Ordering::Relaxed);
        all.saturating_sub(called) >= CALL_BYTES
            && self.called.compare_exchange(called, all, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn of(&self, position: usize) -> &AtomicU64 {
        &self.levels[level_at(position) - 1]
    }

    fn add(&self, to: &AtomicU64, bytes: u64) {
        to.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Others only add meanwhile.
fn subtract(from: &AtomicU64, bytes: u64) {
    from.fetch_sub(from.load(Ordering::Relaxed).min(bytes.saturating_mul(TIMES)), Ordering::Relaxed);
}
