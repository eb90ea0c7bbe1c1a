//! The wall time of a node, which decides what has expired: told to the node, and shared with the regions that it serves.
//!
//! Written by the node's thread; it may go back.

use leeward_format::UnixMs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Clones are the same time.
#[derive(Clone, Debug, Default)]
pub(super) struct Wall(Arc<AtomicU64>);

impl Wall {
    pub(super) fn set(&self, now: UnixMs) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> UnixMs {
        UnixMs(self.0.load(Ordering::Relaxed))
    }
}
