//! The load of this server, which it reports to the master at intervals.

use super::NodeControl;
use crate::node::links::Links;
use leeward_engine::Volume;
use leeward_format::ServerId;
use leeward_format::control::Control;
use leeward_format::load::{Fullness, RegionLoad, ServerLoad};
use leeward_platform::Nanos;

/// A server whose volume has refused writes counts as full for so long after that: so a role does not come back to it, and
/// leave it again, while it is emptied and filled.
const FULL_FOR: Nanos = Nanos::from_secs(60);

/// When the load is reported, and how long this server counts as full.
pub(super) struct LoadReports {
    interval: Nanos,
    last: Nanos,
    /// Until when the server counts as full.
    full_until: Nanos,
}

impl LoadReports {
    pub(super) fn new(interval: Nanos) -> LoadReports {
        LoadReports { interval, last: Nanos::ZERO, full_until: Nanos::ZERO }
    }

    /// Why this server counts as full, if it does.
    pub(super) fn why_full(&self, now: Nanos) -> Option<String> {
        let left = self.full_until.since(now);
        let ago = FULL_FOR.since(left).as_millis() / 1_000;
        (left > Nanos::ZERO).then(|| format!("its volume had no room for writes {ago} s ago"))
    }

    fn fullness(&mut self, now: Nanos, volume: &Volume) -> Fullness {
        if volume.why_full().is_some() {
            self.full_until = now + FULL_FOR;
            return Fullness::Full;
        }
        if self.why_full(now).is_some() { Fullness::WasFull } else { Fullness::HasRoom }
    }
}

impl NodeControl {
    /// The master that the load is to be reported to now: the interval is over, or the volume has become full.
    pub(in crate::node) fn load_is_due(&self) -> Option<ServerId> {
        let now = self.now();
        let master = self.agent.reports_load_to()?;
        let has_filled_up = || self.loads.why_full(now).is_none() && self.resources.volume.why_full().is_some();
        (now - self.loads.last >= self.loads.interval || has_filled_up()).then_some(master)
    }

    /// Reports the load to `master`.
    pub(in crate::node) fn report_load(&mut self, links: &Links, master: ServerId, regions: Vec<RegionLoad>) {
        let now = self.now();
        self.loads.last = now;
        let volume = &self.resources.volume;
        let fullness = self.loads.fullness(now, volume);
        let load = ServerLoad { used: volume.usage().0, capacity: volume.capacity(), fullness, regions };
        if master == self.me().server {
            self.agent.record_load(now, master, &load);
        } else if links.is_up(master) {
            links.send(master, &Control::Load(load));
        }
    }
}
