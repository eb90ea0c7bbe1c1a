//! When written bytes become durable. Twice in a flush interval a round ends: one sync makes all durable that primaries have
//! appended, and what copies have saved since the round before. So the syncs of a node do not grow with its regions. During a
//! round each copy saves what is in its mirror buffers: some of the copies in each of [`STEPS`], so that a client's operation
//! waits for few of these jobs. All copies save at once before the buffered bytes exceed the mirrors' share of the memory.
//!
//! Invariants:
//! - An appended record is durable half a flush interval later, and one that a copy received a whole one, if the device keeps up.
//! - One sync at a time. What a copy is still saving when it begins is left to the next one.
//!
//! Belongs to the node's thread.

use super::{NodeFacts, Shard};
use leeward_engine::{Error, Purpose, Region, Volume};
use leeward_fabric::Fabric;
use leeward_format::{Lsn, RegionId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_region::input::Input as RegionInput;
use leeward_region::job::{JobClass, Outcome, UpkeepDone};
use leeward_region::machine::RegionMachine;
use leeward_region::serving::Serving;
use std::ops::Range;
use std::sync::Arc;

/// How often the node checks how many bytes the fabric has received, while these are few; otherwise it checks at each tick.
const QUIET_LOOK: Nanos = Nanos::from_millis(200);

/// Parts of a round. A copy saves in the part that its region's number gives.
const STEPS: u32 = 10;

/// How far the round is, and how much came since.
pub(super) struct TailSaver {
    /// How long a round takes.
    interval: Nanos,
    began: Nanos,
    /// The first step of the round that is not done.
    next_step: u32,
    /// Copies have saved something that may not be durable.
    is_unsynced: bool,
    is_syncing: bool,
    /// Bytes that the fabric had received when the round began, or all copies saved in it.
    received_at_save: u64,
    /// Bytes that the fabric had received at the last check, and when to check again.
    received: u64,
    look_at_received: Nanos,
}

/// What copies are to save now.
struct Due {
    steps: Range<u32>,
    /// All copies, however far the round is.
    all: bool,
    /// The round has ended, and another begins.
    ends: bool,
}

impl TailSaver {
    /// Bytes may stay in the page cache, or in a backup's memory, for about the flush interval.
    pub(super) fn new(flush_interval: Nanos) -> TailSaver {
        TailSaver {
            interval: Nanos(flush_interval.0 / 2),
            began: Nanos::ZERO,
            next_step: 0,
            is_unsynced: false,
            is_syncing: false,
            received_at_save: 0,
            received: 0,
            look_at_received: Nanos::ZERO,
        }
    }

    fn due(&mut self, now: Nanos, fabric: &dyn Fabric, volume: &Volume) -> Due {
        let elapsed = now - self.began;
        let ends = elapsed >= self.interval;
        let step = if ends { STEPS } else { (elapsed.0 * u64::from(STEPS) / self.interval.0) as u32 };
        let steps = self.next_step..step;
        (self.began, self.next_step) = if ends { (now, 0) } else { (self.began, step) };
        Due { steps, all: self.is_full(now, ends, fabric, volume), ends }
    }

    /// Whether so much was received that all copies save.
    fn is_full(&mut self, now: Nanos, ends: bool, fabric: &dyn Fabric, volume: &Volume) -> bool {
        if !ends && now < self.look_at_received {
            return false;
        }
        // Counting the received bytes is not free: they lie in many buffers.
        let (received, share) = (fabric.counters().bytes_received, volume.memory().share(Purpose::Mirrors));
        let before = std::mem::replace(&mut self.received, received);
        if received.saturating_sub(before) <= share / 64 {
            self.look_at_received = now + QUIET_LOOK;
        }
        let is_full = received.saturating_sub(self.received_at_save) > share / 4;
        if is_full || ends {
            self.received_at_save = received;
        }
        is_full
    }
}

impl Shard {
    /// Makes written bytes durable, and copies save what is in their mirror buffers, if it is time to.
    pub(in crate::node) fn save_tails(&mut self, facts: NodeFacts) {
        let (now, fabric) = (facts.control.now(), facts.links.fabric());
        let Due { steps, all, ends } = self.tail_saver.due(now, fabric, &self.resources.volume);
        if ends {
            self.sync_written();
        }
        if steps.is_empty() && !all {
            return;
        }
        let is_in_step = |region: RegionId| steps.contains(&(region.0 % STEPS));
        let due: Vec<RegionId> = self.machines.keys().copied().filter(|region| all || is_in_step(*region)).collect();
        for region in due {
            self.give(facts, region, RegionInput::Save { is_round: is_in_step(region) });
            self.tail_saver.is_unsynced |= self.machine(region).is_some_and(RegionMachine::is_working);
        }
    }

    fn sync_written(&mut self) {
        if self.tail_saver.is_syncing || self.volume().is_failed() {
            return;
        }
        let appended: Vec<Arc<Region>> =
            self.machines.values_mut().filter_map(RegionMachine::serving).filter_map(Serving::begin_sync).collect();
        let has_saved = std::mem::take(&mut self.tail_saver.is_unsynced);
        let Some(first) = self.machines.keys().next().filter(|_| has_saved || !appended.is_empty()) else { return };
        self.tail_saver.is_syncing = true;
        let volume = Arc::clone(&self.resources.volume);
        let account = if appended.is_empty() { Activity::Mirroring.of_backup() } else { Activity::Engine.of_primary() };
        self.spawn(JobClass::Foreground, *first, account, move || {
            let synced = Region::sync_tails_of(&volume, &appended);
            Outcome::Synced(appended.iter().map(|region| region.id()).zip(synced).collect())
        });
    }

    /// The sync of a round ended.
    pub(in crate::node) fn synced(&mut self, facts: NodeFacts, regions: Vec<(RegionId, Result<Lsn, Error>)>) {
        self.tail_saver.is_syncing = false;
        for (region, result) in regions {
            self.idle.touch(region);
            let is_here = self.give(facts, region, RegionInput::JobDone(Outcome::Upkeep(UpkeepDone::Synced(result))));
            assert!(is_here, "a region is forgotten only when no job has its copy");
        }
    }
}
