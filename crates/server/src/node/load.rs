//! What this server has to do, told to the master every so often.

use super::Node;
use super::slot::Slot;
use leeward_format::control::Control;
use leeward_format::load::{RegionLoad, ServerLoad};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// With fewer operations a second it is not looked where they would divide a region.
const FEW_OPS: u64 = 50;

/// What a region had done when it was told of last.
struct Told {
    term: Epoch,
    at: Nanos,
    ops: u64,
    written: u64,
}

/// See the module.
pub(super) struct LoadReports {
    every: Nanos,
    told: Nanos,
    regions: BTreeMap<RegionId, Told>,
}

impl LoadReports {
    pub(super) fn new(every: Nanos) -> LoadReports {
        LoadReports { every, told: Nanos::ZERO, regions: BTreeMap::new() }
    }
}

impl Node {
    /// Tells the master, if it is time to and it wants to know.
    pub(super) fn report_load(&mut self, now: Nanos) {
        let Some(master) = self.context.agent.tells_load_to() else { return };
        if now - self.loads.told < self.loads.every {
            return;
        }
        self.loads.told = now;
        let load = self.load(now);
        if master == self.context.me.server {
            self.context.agent.hear_load(now, master, &load);
        } else if self.context.is_linked(master) {
            self.context.send(master, &Control::Load(load));
        }
    }

    fn load(&mut self, now: Nanos) -> ServerLoad {
        let before = std::mem::take(&mut self.loads.regions);
        let mut regions = Vec::new();
        for (id, slot) in &mut self.slots {
            let Some(serving) = Slot::serving(slot).filter(|serving| serving.open) else { continue };
            let counters = &serving.counters;
            let (ops, written) = (counters.reads + counters.writes, counters.user_bytes);
            let begin = Told { term: serving.term, at: serving.since, ops: 0, written: 0 };
            let last = before.get(id).filter(|told| told.term == serving.term).unwrap_or(&begin);
            let rate = |now_is: u64, was: u64| rate(now_is - was, now - last.at);
            let (ops_a_second, written_a_second) = (rate(ops, last.ops), rate(written, last.written));
            let (space, pair_bytes) = (serving.region.space(), serving.region.pair_bytes());
            regions.push(RegionLoad {
                region: *id,
                bytes: space.bytes,
                ops: ops_a_second,
                written: written_a_second,
                shared: space.shared_bytes,
                inherited: space.inherited_bytes,
                is_trimmed: serving.is_trimmed(),
                pair_bytes,
                middle: if ops_a_second < FEW_OPS { None } else { serving.samples.middle() },
            });
            self.loads.regions.insert(*id, Told { term: serving.term, at: now, ops, written });
        }
        let volume = &self.context.volume;
        ServerLoad { used: volume.usage().0, capacity: volume.capacity(), regions }
    }
}

/// So many in so long, a second.
fn rate(count: u64, time: Nanos) -> u64 {
    let millis = u128::from(time.as_millis().max(1));
    u64::try_from(u128::from(count) * 1_000 / millis).unwrap_or(u64::MAX)
}
