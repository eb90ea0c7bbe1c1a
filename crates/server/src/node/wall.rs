//! The wall time of a node, which decides which pairs have expired. The runtime sets it; the regions that the node serves share
//! it.
//!
//! The node's thread writes it. It may go back.

use leeward_format::UnixMs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All clones share one time.
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
