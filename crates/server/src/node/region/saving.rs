//! When written bytes become durable. Twice in a flush interval there is a round: one sync makes all durable that primaries have
//! appended, and what copies have saved since the round before; then copies save what is in their mirror buffers. So the syncs
//! of a node do not grow with its regions. Copies also save before the buffered bytes exceed the mirrors' share of the memory.
//!
//! Invariants:
//! - An appended record is durable half a flush interval later, and one that a copy received a whole one, if the device keeps up.
//! - One sync at a time. What a copy is still saving when it begins is left to the next one.
//!
//! Belongs to the node's thread.

use super::Slot;
use crate::node::job::Outcome;
use crate::node::serving::{Serving, UpkeepDone};
use crate::node::{Context, Node};
use leeward_engine::{Error, Purpose, Region, Volume};
use leeward_fabric::Fabric;
use leeward_format::{Lsn, RegionId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use std::sync::Arc;

/// How often the node checks how many bytes the fabric has received, while these are few; otherwise it checks at each tick.
const QUIET_LOOK: Nanos = Nanos::from_millis(200);

/// When the last round was, and how much came since.
pub(crate) struct TailSaver {
    /// Time between two rounds.
    interval: Nanos,
    saved: Nanos,
    /// Copies have saved something that may not be durable.
    is_unsynced: bool,
    is_syncing: bool,
    /// Bytes that the fabric had received at `saved`.
    received_at_save: u64,
    /// Bytes that the fabric had received at the last check, and when to check again.
    received: u64,
    look_at_received: Nanos,
}

impl TailSaver {
    /// Bytes may stay in the page cache, or in a backup's memory, for about the flush interval.
    pub(crate) fn new(flush_interval: Nanos) -> TailSaver {
        TailSaver {
            interval: Nanos(flush_interval.0 / 2),
            saved: Nanos::ZERO,
            is_unsynced: false,
            is_syncing: false,
            received_at_save: 0,
            received: 0,
            look_at_received: Nanos::ZERO,
        }
    }

    /// Whether copies should save now, and if so whether in a round.
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
    /// Makes written bytes durable, and copies save what is in their mirror buffers, if it is time to.
    pub(crate) fn save_tails(&mut self, now: Nanos) {
        let Context { fabric, volume, .. } = &self.context;
        let Some(durably) = self.tail_saver.is_due(now, &**fabric, volume) else { return };
        if durably {
            self.sync_written();
        }
        for slot in self.slots.values_mut() {
            slot.backup.save_tails(durably);
            slot.act_as_backup(&mut self.context);
            self.tail_saver.is_unsynced |= !slot.backup.is_idle();
        }
    }

    fn sync_written(&mut self) {
        if self.tail_saver.is_syncing || self.context.volume.is_failed() {
            return;
        }
        let appended: Vec<Arc<Region>> =
            self.slots.values_mut().filter_map(Slot::serving).filter_map(Serving::begin_sync).collect();
        let has_saved = std::mem::take(&mut self.tail_saver.is_unsynced);
        let Some(first) = self.slots.keys().next().filter(|_| has_saved || !appended.is_empty()) else { return };
        self.tail_saver.is_syncing = true;
        let volume = self.context.volume.clone();
        self.context.spawn(*first, Activity::Engine.of_primary(), move || {
            let synced = Region::sync_tails_of(&volume, &appended);
            Outcome::Synced(appended.iter().map(|region| region.id()).zip(synced).collect())
        });
    }

    /// The sync of a round ended.
    pub(crate) fn synced(&mut self, now: Nanos, regions: Vec<(RegionId, Result<Lsn, Error>)>) {
        self.tail_saver.is_syncing = false;
        for (region, result) in regions {
            self.idle.touch(region);
            self.job_done(now, region, Outcome::Upkeep(UpkeepDone::Synced(result)));
        }
    }
}
