//! When backups save what is in their mirror buffers: at each flush interval durably, and before the buffered bytes exceed the
//! mirrors' share of the memory.
//!
//! Belongs to the node's thread.

use crate::node::{Context, Node};
use leeward_engine::{Purpose, Volume};
use leeward_fabric::Fabric;
use leeward_platform::Nanos;

/// How often the node checks how many bytes the fabric has received, while these are few; otherwise it checks at each tick.
const QUIET_LOOK: Nanos = Nanos::from_millis(200);

/// When backups saved last, and how much came since.
pub(crate) struct TailSaver {
    interval: Nanos,
    saved: Nanos,
    /// Bytes that the fabric had received at `saved`.
    received_at_save: u64,
    /// Bytes that the fabric had received at the last check, and when to check again.
    received: u64,
    look_at_received: Nanos,
}

impl TailSaver {
    pub(crate) fn new(interval: Nanos) -> TailSaver {
        let look_at_received = Nanos::ZERO;
        TailSaver { interval, saved: Nanos::ZERO, received_at_save: 0, received: 0, look_at_received }
    }

    /// How long bytes of a log tail may stay in the page cache, or in a backup's memory.
    pub(crate) fn interval(&self) -> Nanos {
        self.interval
    }

    /// Whether backups should save now, and if so whether durably.
    fn is_due(&mut self, now: Nanos, fabric: &dyn Fabric, volume: &Volume) -> Option<bool> {
        let durably = now - self.saved >= self.interval;
        if !durably && now < self.look_at_received {
            return None;
        }
        // Counting the received bytes is not free: they lie in many buffers.
        let (received, share) = (fabric.counters().bytes_received, volume.memory().share(Purpose::Mirrors));
        let before = std::mem::replace(&mut self.received, received);
        if received.saturating_sub(before) <= share / 64 {
            self.look_at_received = now + QUIET_LOOK;
        }
        if durably {
            self.saved = now;
        } else if received.saturating_sub(self.received_at_save) <= share / 4 {
            return None;
        }
        self.received_at_save = received;
        Some(durably)
    }
}

impl Node {
    /// Makes copies save what is in their mirror buffers, if it is time to.
    pub(crate) fn save_tails(&mut self, now: Nanos) {
        let Context { fabric, volume, .. } = &self.context;
        let Some(durably) = self.tail_saver.is_due(now, &**fabric, volume) else { return };
        for slot in self.slots.values_mut() {
            slot.backup.save_tails(durably);
            slot.act_as_backup(&mut self.context);
        }
    }
}
