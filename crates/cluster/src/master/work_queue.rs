//! The regions that a master has yet to look at. With it, a change of one region among ten thousand costs a look at one.
//!
//! Invariant: a region that is not in the queue needs nothing, or waits for an operation that is under way. A decision depends on
//! the region, on its merge target, on its table, on the servers that are live or leaving, and on the policy of the master. Each
//! change of these puts the region back into the queue. While a server is full, a region with a learner depends on the room of
//! servers too, and each report of a load puts it back. Pure.

use super::decide::{Assign, Known, Loads, Policy, decide};
use super::rooms::Rooms;
use super::spread::Distances;
use crate::view::{Changed, View};
use leeward_format::RegionId;
use leeward_format::cluster::GroupConfig;
use leeward_format::routing::Routing;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The regions that a master has yet to look at.
#[derive(Debug)]
pub(super) struct WorkQueue {
    due: BTreeSet<RegionId>,
    /// Every region is due, and the loads are to be counted anew.
    is_all_due: bool,
    /// The policy of the master at the last look.
    policy: Policy,
    loads: Loads,
    distances: Distances,
    /// Regions that have learners.
    with_learners: BTreeSet<RegionId>,
}

impl Default for WorkQueue {
    fn default() -> Self {
        let policy = Policy { assign: Assign::No, keeps: true };
        WorkQueue {
            due: BTreeSet::new(),
            is_all_due: true,
            policy,
            loads: Loads::default(),
            distances: Distances::default(),
            with_learners: BTreeSet::new(),
        }
    }
}

/// The result of a look.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// The configurations to propose, at most one a region. They count from now on.
    pub(super) next: Vec<Arc<GroupConfig>>,
    /// The regions that were looked at.
    pub(super) looked_at: BTreeSet<RegionId>,
}

impl WorkQueue {
    /// Takes note of a change of the view.
    pub(super) fn changed(&mut self, changed: &Changed) {
        self.due.extend(&changed.regions);
        self.is_all_due |= changed.servers || !changed.tables.is_empty();
    }

    /// An operation on the region has ended, or may be asked for again: the region is due.
    pub(super) fn put_back(&mut self, region: RegionId) {
        self.due.insert(region);
    }

    /// A server has said how much room it has, and one is full: learners may leave it for others.
    pub(super) fn put_back_learners(&mut self) {
        self.due.extend(&self.with_learners);
    }

    /// Looks at the regions that are due. For a region that is not `is_free` an operation is under way, or is not to be repeated
    /// yet. The caller says with [`WorkQueue::put_back`] when that is over.
    pub(super) fn decide(
        &mut self,
        view: &View,
        rooms: &Rooms,
        policy: Policy,
        is_free: impl Fn(RegionId) -> bool,
    ) -> Decided {
        self.is_all_due |= policy != self.policy;
        self.policy = policy;
        if std::mem::take(&mut self.is_all_due) {
            self.distances = Distances::of_live(view);
            let before = std::mem::take(&mut self.loads);
            for config in view.routes().regions() {
                self.due.insert(config.region);
                self.count(view, rooms, config.region, before.counted(config.region), &is_free);
            }
        }
        // A merge source follows its target, once that has room.
        self.due.extend(view.merging().map(|(region, _)| region));
        let looked_at = std::mem::take(&mut self.due);
        for region in &looked_at {
            let before = self.loads.counted(*region).cloned();
            self.count(view, rooms, *region, before.as_ref(), &is_free);
            match view.region(*region).is_some_and(|config| !config.learners.is_empty()) {
                true => self.with_learners.insert(*region),
                false => self.with_learners.remove(region),
            };
        }
        let mut next = Vec::new();
        for region in looked_at.iter().copied().filter(|region| is_free(*region)) {
            let Some(config) = view.region(region) else { continue };
            let known = Known { view, rooms, loads: &self.loads, distances: &self.distances };
            if let Some(decided) = decide(known, config, policy) {
                let decided = Arc::new(decided);
                self.loads.set(view, rooms, region, Some(decided.clone()));
                next.push(decided);
            }
        }
        Decided { next, looked_at }
    }

    /// Counts a region that was counted with `before`: with its configuration, or with a decided one that has not taken effect
    /// yet.
    fn count(
        &mut self,
        view: &View,
        rooms: &Rooms,
        region: RegionId,
        before: Option<&Arc<GroupConfig>>,
        is_free: impl Fn(RegionId) -> bool,
    ) {
        let config = view.routes().region(region);
        let is_decided = |before: &&Arc<GroupConfig>| config.is_some_and(|config| before.epoch > config.epoch);
        let decided = before.filter(is_decided).filter(|_| !is_free(region));
        self.loads.set(view, rooms, region, decided.or(config).cloned());
    }
}

#[cfg(test)]
#[path = "work_queue_tests.rs"]
mod tests;
