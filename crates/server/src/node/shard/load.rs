//! What clients do with the regions of a shard, as rates since the last report.

use super::Shard;
use leeward_format::load::RegionLoad;
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use leeward_region::machine::RegionMachine;
use std::collections::BTreeMap;

/// With fewer operations a second, the report names no key at which they would split a region.
const FEW_OPS: u64 = 50;

/// The totals of a region as of the last report.
struct Reported {
    term: Epoch,
    at: Nanos,
    ops: u64,
    written: u64,
}

/// What was reported last of each region.
#[derive(Default)]
pub(super) struct LoadMeter(BTreeMap<RegionId, Reported>);

impl Shard {
    /// The load of the regions that are served here.
    pub(in crate::node) fn load(&mut self, now: Nanos) -> Vec<RegionLoad> {
        let before = std::mem::take(&mut self.load_meter.0);
        let mut regions = Vec::new();
        for (id, machine) in &mut self.machines {
            let Some(serving) = RegionMachine::serving(machine).filter(|serving| serving.is_open()) else { continue };
            let counters = serving.counters();
            let (ops, written) = (counters.reads + counters.writes, counters.user_bytes);
            let begin = Reported { term: serving.term(), at: serving.opening().0, ops: 0, written: 0 };
            let last = before.get(id).filter(|reported| reported.term == serving.term()).unwrap_or(&begin);
            let rate = |now_is: u64, was: u64| rate(now_is - was, now - last.at);
            let (ops_a_second, written_a_second) = (rate(ops, last.ops), rate(written, last.written));
            let (space, pair_bytes) = (serving.region().space(), serving.region().pair_bytes());
            regions.push(RegionLoad {
                region: *id,
                bytes: space.bytes,
                ops: ops_a_second,
                written: written_a_second,
                shared: space.shared_bytes,
                inherited: space.inherited_bytes,
                is_trimmed: serving.is_trimmed(),
                pair_bytes,
                middle: if ops_a_second < FEW_OPS { None } else { serving.reshape().middle() },
            });
            self.load_meter.0.insert(*id, Reported { term: serving.term(), at: now, ops, written });
        }
        regions
    }
}

/// The rate per second of `count` in `time`.
fn rate(count: u64, time: Nanos) -> u64 {
    let millis = u128::from(time.as_millis().max(1));
    u64::try_from(u128::from(count) * 1_000 / millis).unwrap_or(u64::MAX)
}
