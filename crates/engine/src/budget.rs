//! What the memory of a volume is for, and how much of its budget is taken. Any thread.

use leeward_platform::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// L0s, frozen and pinned ones included.
    L0s,
    /// Buffers of compactions; and built segments until every backup has them.
    Compactions,
    /// Read-ahead of scans, of look-ups of many keys, and of replays.
    Reads,
    /// Windows of log tails: pages that are mapped, or bytes on the heap.
    Tails,
    /// Regions themselves, fences of their levels, and state of each of their leaf segments.
    Levels,
    /// Data that primaries have written into a backup's memory.
    Mirrors,
    /// Request rings of clients, if the engine is part of a server.
    Rings,
    /// Requests of clients and answers to them, if the engine is part of a server.
    Clients,
    /// Hash indexes, if the engine is part of a server.
    HashIndexes,
}

pub(crate) const PURPOSES: usize = 9;

/// One part in this many of the budget is for memory that the allocator cannot return, and for bookkeeping.
const KEPT_SHARE: u64 = 32;
/// One part in this many of the budget is idle in the pool at most, or [`IDLE_BYTES`] if that is more: a system call for each
/// block is dear, and a budget below 16 MiB is only for tests.
const IDLE_SHARE: u64 = 16;
const IDLE_BYTES: u64 = 1 << 20;

/// The reserved bytes of a budget.
pub(crate) struct MemoryAccounts {
    budget: u64,
    /// Source of large blocks.
    pool: Arc<Pool>,
    pub(crate) taken: AtomicU64,
    pub(crate) by_purpose: [AtomicU64; PURPOSES],
}

impl MemoryAccounts {
    pub(crate) fn new(budget: u64) -> MemoryAccounts {
        let pool = Pool::new((budget / IDLE_SHARE).max(IDLE_BYTES) as usize);
        MemoryAccounts { budget, pool, taken: AtomicU64::new(0), by_purpose: Default::default() }
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Bytes that are left for the cache.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        let mine = self.budget - self.budget / KEPT_SHARE;
        mine.saturating_sub(self.taken.load(Relaxed))
    }

    pub(crate) fn of(&self, purpose: Purpose) -> u64 {
        self.by_purpose[purpose as usize].load(Relaxed)
    }
}
