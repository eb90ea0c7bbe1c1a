//! The part of the memory budget that one hash index may use: all indexes of a volume have equal ones. Any thread.

use crate::memory::{Memory, Purpose, Reservation};
use leeward_platform::planted::most_index_bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The part of the memory budget of one hash index. The index leaves the others its part when this is dropped.
pub(crate) struct Share {
    reservation: Reservation,
    whole: u64,
    /// Indexes that share it.
    indexes: Arc<AtomicU64>,
}

impl Share {
    /// Another index shares the memory.
    pub(crate) fn join(memory: &Memory) -> Share {
        let indexes = Arc::clone(memory.hash_indexes());
        indexes.fetch_add(1, Relaxed);
        let (reservation, whole) = (memory.reserve(Purpose::HashIndexes), memory.share(Purpose::HashIndexes));
        Share { reservation, whole, indexes }
    }

    /// Bytes that this index may use. They become fewer with each other index.
    pub(crate) fn limit(&self) -> u64 {
        let limit = self.whole / self.indexes.load(Relaxed).max(1);
        most_index_bytes().map_or(limit, |most| limit.min(most))
    }

    /// It uses `bytes` now.
    pub(crate) fn set(&self, bytes: u64) {
        self.reservation.set(bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.indexes.fetch_sub(1, Relaxed);
    }
}
