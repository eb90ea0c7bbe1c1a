//! Bytes of a cache, as reservations leave them. Any thread.

use crate::budget::MemoryAccounts;
use leeward_platform::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of the cache: how many there are, and how many are in use.
pub(super) struct Budget {
    pub(super) accounts: Arc<MemoryAccounts>,
    pub(super) used: AtomicU64,
    /// Of `used`, those of resident indexes.
    pub(super) resident: AtomicU64,
}

impl Budget {
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.accounts.left()
    }
    pub(super) fn pool(&self) -> &Arc<Pool> {
        self.accounts.pool()
    }
    pub(super) fn try_take(&self, bytes: u64) -> bool {
        let more = |used: u64| (used + bytes <= self.bytes()).then_some(used + bytes);
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
    /// Takes `bytes` even beyond the budget; the caller makes room.
    pub(super) fn take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }
    pub(super) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
    pub(super) fn is_exceeded(&self) -> bool {
        self.used.load(Relaxed) > self.bytes()
    }
    /// Whether so much is in use that something was evicted, or soon will be.
    pub(super) fn is_tight(&self) -> bool {
        let bytes = self.bytes();
        self.used.load(Relaxed) > bytes - bytes / 16
    }
}
