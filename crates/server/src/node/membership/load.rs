//! The load of this server, which it reports to the master at intervals.

use crate::node::Node;
use leeward_format::control::Control;
use leeward_format::load::{Fullness, RegionLoad, ServerLoad};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use leeward_region::machine::RegionMachine;
use std::collections::BTreeMap;

/// With fewer operations a second, the report names no key at which they would split a region.
const FEW_OPS: u64 = 50;

/// A server whose volume has refused writes counts as full for so long after that: so a role does not come back to it, and
/// leave it again, while it is emptied and filled.
const FULL_FOR: Nanos = Nanos::from_secs(60);

/// The totals of a region as of the last report.
struct Reported {
    term: Epoch,
    at: Nanos,
    ops: u64,
    written: u64,
}

/// What this server's load was at the last report, and when the next one is due.
pub(crate) struct LoadReports {
    interval: Nanos,
    last: Nanos,
    /// Until when the server counts as full.
    full_until: Nanos,
    regions: BTreeMap<RegionId, Reported>,
}

impl LoadReports {
    pub(crate) fn new(interval: Nanos) -> LoadReports {
        LoadReports { interval, last: Nanos::ZERO, full_until: Nanos::ZERO, regions: BTreeMap::new() }
    }

    /// Why this server counts as full, if it does.
    pub(crate) fn why_full(&self, now: Nanos) -> Option<String> {
        let left = self.full_until.since(now);
        let ago = FULL_FOR.since(left).as_millis() / 1_000;
        (left > Nanos::ZERO).then(|| format!("its volume had no room for writes {ago} s ago"))
    }
}

impl Node {
    /// Reports the load, if there is a master and the interval is over, or the volume has become full.
    pub(crate) fn report_load(&mut self, now: Nanos) {
        let Some(master) = self.context.agent.reports_load_to() else { return };
        let has_filled_up = || self.loads.why_full(now).is_none() && self.context.volume.why_full().is_some();
        if now - self.loads.last < self.loads.interval && !has_filled_up() {
            return;
        }
        self.loads.last = now;
        let load = self.load(now);
        if master == self.context.me.server {
            self.context.agent.record_load(now, master, &load);
        } else if self.context.links.is_up(master) {
            self.context.links.send(master, &Control::Load(load));
        }
    }

    fn load(&mut self, now: Nanos) -> ServerLoad {
        let before = std::mem::take(&mut self.loads.regions);
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
            self.loads.regions.insert(*id, Reported { term: serving.term(), at: now, ops, written });
        }
        let volume = &self.context.volume;
        let is_full = volume.why_full().is_some();
        if is_full {
            self.loads.full_until = now + FULL_FOR;
        }
        let fullness = match self.loads.why_full(now) {
            _ if is_full => Fullness::Full,
            Some(_) => Fullness::WasFull,
            None => Fullness::HasRoom,
        };
        ServerLoad { used: volume.usage().0, capacity: volume.capacity(), fullness, regions }
    }
}

/// The rate per second of `count` in `time`.
fn rate(count: u64, time: Nanos) -> u64 {
    let millis = u128::from(time.as_millis().max(1));
    u64::try_from(u128::from(count) * 1_000 / millis).unwrap_or(u64::MAX)
}
