//! Ghost entries of the cache: hashes of what it evicted, or did not admit, recently. A miss of something that was
//! noted `n` bytes ago would have been a hit in a cache that is larger by `n` bytes.
//!
//! ```text
//!  slot   | 16 bits of the hash, never 0 | time: bytes that passed, in 8192ths of the cache's, wrapping |
//! ```
//! These are hints: two threads may overwrite each other's notes, and hashes may collide. Any thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Ticks of the clock while as many bytes pass as the cache has.
const TICKS: u64 = 8192;

pub(super) struct Ghosts {
    slots: Box<[AtomicU32]>,
    /// Bytes noted so far.
    passed: AtomicU64,
    tick_bytes: u64,
}

impl Ghosts {
    /// Room for `slots` hashes of what a cache of `cache_bytes` evicts.
    pub(super) fn new(slots: u64, cache_bytes: u64) -> Ghosts {
        Ghosts {
            slots: (0..slots.max(1)).map(|_| AtomicU32::new(0)).collect(),
            passed: AtomicU64::new(0),
            tick_bytes: (cache_bytes / TICKS).max(1),
        }
    }

    /// Notes that an item with this hash, of `bytes` bytes, is not in the cache from now on.
    pub(super) fn note(&self, hash: u64, bytes: u64) {
        let passed = self.passed.fetch_add(bytes, Relaxed);
        self.slot(hash).store((fingerprint(hash) << 16) | u32::from(self.tick(passed)), Relaxed);
    }

    /// Bytes noted since `hash` was; `None` if it is not known to be noted.
    pub(super) fn age(&self, hash: u64) -> Option<u64> {
        let found = self.slot(hash).load(Relaxed);
        let age = self.tick(self.passed.load(Relaxed)).wrapping_sub(found as u16);
        (found >> 16 == fingerprint(hash)).then(|| u64::from(age) * self.tick_bytes)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.slots) as u64
    }

    fn tick(&self, passed: u64) -> u16 {
        (passed / self.tick_bytes) as u16
    }

    fn slot(&self, hash: u64) -> &AtomicU32 {
        &self.slots[(hash as u32 as usize) % self.slots.len()]
    }
}

fn fingerprint(hash: u64) -> u32 {
    (hash >> 48) as u32 | 1
}
