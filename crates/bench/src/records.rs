//! Which records exist while threads insert more. Any thread may call anything.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records that exist: the insert of every record below the limit is over.
#[derive(Debug)]
pub struct Records {
    next: AtomicU64,
    limit: AtomicU64,
    /// Records from the limit on whose inserts are over, while that of an earlier record is not.
    ahead: Mutex<BTreeSet<u64>>,
}

impl Records {
    /// Records below `records` exist.
    pub fn new(records: u64) -> Records {
        Records { next: AtomicU64::new(records), limit: AtomicU64::new(records), ahead: Mutex::default() }
    }

    /// Number of a record to be inserted; [`Records::inserted`] must follow.
    pub fn insert(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The insert of `record` is over. A failed insert counts as well, because the limit could never pass it otherwise.
    pub fn inserted(&self, record: u64) {
        let mut ahead = self.ahead.lock();
        ahead.insert(record);
        let mut limit = self.limit.load(Ordering::Relaxed);
        while ahead.remove(&limit) {
            limit += 1;
        }
        self.limit.store(limit, Ordering::Release);
    }

    /// The limit: operations may name any record below it.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }
}
