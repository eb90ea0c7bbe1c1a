//! The figures of a node and its region map, from the event loop to those that ask.
//!
//! The event loop must not wait for those that ask, however many do. It gathers the figures a few regions a turn
//! (`runtime/gathering.rs`), once for all that ask at the time, and gives all of them the same [`Figures`]. What takes
//! long (sorting, copying the region map, rendering) is done by the first reader, on a thread of the admin port.
//!
//! [`Heartbeat`] is how other threads see that the event loop turns, without asking it.

use leeward_cluster::MapParts;
use leeward_format::cluster::RegionMap;
use leeward_format::status::{CpuStatus, NodeStatus};
use leeward_platform::{BootClock, Clock, Nanos};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of the node and the cluster, as the event loop knew it within a few of its turns.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The node's figures.
    pub status: NodeStatus,
    /// The cluster as the node knows it.
    pub map: RegionMap,
}

/// What the event loop has gathered. Any thread may read it.
#[derive(Debug)]
pub(crate) struct Figures {
    /// When it was complete.
    pub(crate) at: Nanos,
    parts: Mutex<Option<(NodeStatus, MapParts)>>,
    snapshot: OnceLock<Snapshot>,
}

impl Figures {
    /// Figures that were complete at `at`, their regions in any order.
    pub(crate) fn new(at: Nanos, status: NodeStatus, map: MapParts) -> Figures {
        Figures { at, parts: Mutex::new(Some((status, map))), snapshot: OnceLock::new() }
    }

    /// The figures, with regions by table and first key, and with `cpu`. The first call sorts and copies them.
    pub(crate) fn snapshot(&self, cpu: impl FnOnce() -> CpuStatus) -> &Snapshot {
        self.snapshot.get_or_init(|| {
            let (mut status, map) = self.parts.lock().take().expect("one caller takes them");
            status.cpu = Some(cpu());
            status.regions.sort_by(|left, right| (&left.table, &left.start).cmp(&(&right.table, &right.start)));
            Snapshot { status, map: map.region_map() }
        })
    }
}

/// When the event loop last began a turn. It does at least every 50 ms.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat(AtomicU64);

impl Heartbeat {
    /// A turn begins. The event loop's thread calls it.
    pub(crate) fn beat(&self, now: Nanos) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// How long ago the last turn began.
    pub(crate) fn age(&self) -> Nanos {
        BootClock.now().since(Nanos(self.0.load(Ordering::Relaxed)))
    }
}
