//! What breaks, when, and for how long. Each seed has a character of its own: few or many faults, of a few kinds.

use crate::world::{NODES, NodeId};
use leeward_platform::{Nanos, Rng};

/// One thing that breaks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A process is killed; what it wrote is in the page cache.
    Kill(NodeId),
    /// A machine loses power; what was not synced is lost or torn.
    PowerLoss(NodeId),
    /// All processes are killed at once.
    KillAll,
    /// A process is killed by one of its next disk operations, in the middle of it.
    DiskKill(NodeId),
    /// A node is cut off from the others, and mostly from the coordinator too.
    Isolate(NodeId),
    /// Nothing gets from one node to another.
    CutOneWay(NodeId, NodeId),
    /// A node is cut off from the coordinator only.
    CutCoordinator(NodeId),
    /// A process stops running for a while; its memory can be written.
    Pause(NodeId),
    /// A device answers forty times slower.
    SlowDisk(NodeId),
    /// A link is slow one way.
    SlowLink(NodeId, NodeId),
}

const KINDS: u64 = 10;

pub(crate) struct Faults {
    /// No fault strikes after this.
    pub(crate) end: Nanos,
    pub(crate) struck: u64,
    /// A machine lost power and not every region was whole since.
    pub(crate) power_lost: bool,
    kinds: Vec<u64>,
    gap_ms: u64,
    length_ms: u64,
}

impl Faults {
    pub(crate) fn new(rng: &mut Rng) -> Faults {
        let mut kinds: Vec<u64> = (0..KINDS).collect();
        rng.shuffle(&mut kinds);
        kinds.truncate(rng.between(1, 5) as usize);
        Faults {
            end: Nanos::from_millis(rng.between(3_000, 8_000)),
            struck: 0,
            power_lost: false,
            kinds,
            gap_ms: rng.between(200, 2_000),
            length_ms: rng.between(50, 3_000),
        }
    }

    /// Until the next fault.
    pub(crate) fn pause(&self, rng: &mut Rng) -> Nanos {
        Nanos::from_millis(rng.between(self.gap_ms / 4, self.gap_ms * 2))
    }

    /// How long a fault lasts.
    pub(crate) fn length(&self, rng: &mut Rng) -> Nanos {
        Nanos::from_millis(rng.between(10, self.length_ms))
    }

    pub(crate) fn choose(&self, rng: &mut Rng) -> Fault {
        let node = rng.index(NODES);
        let other = (node + 1 + rng.index(NODES - 1)) % NODES;
        match self.kinds[rng.index(self.kinds.len())] {
            0 => Fault::Kill(node),
            1 => Fault::PowerLoss(node),
            2 => Fault::KillAll,
            3 => Fault::DiskKill(node),
            4 => Fault::Isolate(node),
            5 => Fault::CutOneWay(node, other),
            6 => Fault::CutCoordinator(node),
            7 => Fault::Pause(node),
            8 => Fault::SlowDisk(node),
            _ => Fault::SlowLink(node, other),
        }
    }
}
