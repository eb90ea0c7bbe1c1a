//! Regions at rest: nothing is under way, and nothing is to be done until something happens. When time passes they are passed by,
//! so that a region that nobody uses costs its part of a promise every so often, and nothing else.
//!
//! Invariants:
//! - A region rests only if nothing that it waits for comes with time alone. Whatever happens to it wakes it: an operation, a
//!   message, a job's end, another configuration or link, other options of tables, servers that come and go, a promise that was not
//!   renewed, memory that others need, a volume that fails.
//! - A region that rested for [`LONGEST_REST`] is looked at all the same. What is found then to be done has woken nobody: it is
//!   counted, and is a bug.

use super::Node;
use super::serving::Serving;
use super::slot::{Holding, Slot};
use super::stand_still::Merging;
use super::trim::Trim;
use leeward_format::cluster::Member;
use leeward_format::{RegionId, SegmentId};
use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// How long a region rests before it is looked at. Those that begin to rest together are looked at one after the other: they rest
/// up to half as long more.
const LONGEST_REST: Nanos = Nanos::from_secs(2);
/// Between two of them.
const APART: Nanos = Nanos::from_millis(50);
const MOST_APART: u32 = 20;

/// Which regions rest. One that it does not know does not; of one that is no more, it knows nothing.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Until when those rest that do; and they by that.
    until: BTreeMap<RegionId, Nanos>,
    by_end: BTreeSet<(Nanos, RegionId)>,
    /// Those that were looked at because time passed, in this turn.
    looked_at: Vec<RegionId>,
    /// Those of them that had rested, and to which nothing has happened.
    overdue: BTreeSet<RegionId>,
    /// [`leeward_engine::Volume::calls`], as it was looked at last.
    calls: u64,
    /// Regions that had something to do which had not woken them, total.
    unforeseen: u64,
}

impl Rest {
    /// Those of `regions`, which are ascending, that do not rest.
    pub(super) fn restless<'a>(
        &'a self,
        regions: impl Iterator<Item = &'a RegionId> + 'a,
    ) -> impl Iterator<Item = RegionId> + 'a {
        let mut resting = self.until.keys().peekable();
        regions.copied().filter(move |region| {
            while resting.next_if(|other| *other < region).is_some() {}
            resting.next_if_eq(&region).is_none()
        })
    }

    /// Whether it rests.
    pub(super) fn is_resting(&self, region: RegionId) -> bool {
        self.until.contains_key(&region)
    }

    /// Something happened to it.
    fn wake(&mut self, region: RegionId) -> bool {
        self.overdue.remove(&region);
        let until = self.until.remove(&region);
        until.is_some_and(|until| self.by_end.remove(&(until, region)))
    }

    /// Nothing has happened to it, and nothing is to be done.
    fn begin(&mut self, now: Nanos, region: RegionId) {
        self.wake(region);
        let until = now + LONGEST_REST + Nanos(APART.0 * u64::from(region.0 % MOST_APART));
        self.until.insert(region, until);
        self.by_end.insert((until, region));
    }

    /// Those that have rested for so long that they are to be looked at.
    fn end(&mut self, now: Nanos) -> Vec<RegionId> {
        let due = |(until, _): &&(Nanos, RegionId)| *until <= now;
        let overdue: Vec<RegionId> = self.by_end.iter().take_while(due).map(|(_, region)| *region).collect();
        for region in &overdue {
            self.wake(*region);
        }
        self.overdue.extend(&overdue);
        overdue
    }

    /// Those that do not rest, as time passed last: in the same turn.
    pub(super) fn looked_at(&self) -> &[RegionId] {
        &self.looked_at
    }

    /// See [`Node::unforeseen`].
    pub(super) fn unforeseen(&self) -> u64 {
        self.unforeseen
    }
}

impl Node {
    /// How often a region that rested had something to do although nothing had happened to it: each time is a bug, and was
    /// done late.
    pub fn unforeseen(&self) -> u64 {
        self.rest.unforeseen()
    }

    /// Regions whose turn is to be ended. Those to which something has happened in it wake.
    pub(super) fn wake_touched(&mut self, now: Nanos) -> BTreeSet<RegionId> {
        let mut regions = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.look_at_all) {
            regions.extend(self.slots.keys());
        }
        for region in &regions {
            self.wake(now, *region);
        }
        regions.extend(&self.rest.looked_at);
        regions
    }

    /// Something happened to a region.
    pub(super) fn wake(&mut self, now: Nanos, region: RegionId) {
        if self.rest.wake(region) {
            self.note_rest(now, region);
        }
    }

    /// Something happened that may be about any region.
    pub(super) fn wake_all(&mut self, now: Nanos) {
        self.rest.overdue.clear();
        let resting: Vec<RegionId> = self.rest.until.keys().copied().collect();
        resting.into_iter().for_each(|region| self.wake(now, region));
    }

    fn note_rest(&mut self, now: Nanos, region: RegionId) {
        if let Some(serving) = self.slots.get_mut(&region).and_then(Slot::serving) {
            serving.primary.rested(now, self.promises.attention());
        }
    }

    /// Time passes: answers which regions are to be looked at.
    pub(super) fn end_rests(&mut self, now: Nanos) -> Vec<RegionId> {
        if self.context.volume.is_failed() {
            self.wake_all(now);
        }
        let calls = self.context.volume.calls();
        if std::mem::replace(&mut self.rest.calls, calls) != calls {
            let is_called = |slot: &mut Slot| slot.serving().is_some_and(|serving| serving.region.is_called());
            let called = self.slots.iter_mut().filter_map(|(region, slot)| is_called(slot).then_some(*region));
            called.collect::<Vec<_>>().into_iter().for_each(|region| self.wake(now, region));
        }
        let overdue = self.rest.end(now);
        for region in &overdue {
            self.note_rest(now, *region);
        }
        let restless = match self.rest.until.len() + overdue.len() == self.slots.len() {
            // The others rest, all of them.
            true => overdue,
            false => self.rest.restless(self.slots.keys()).collect(),
        };
        self.rest.looked_at.extend(&restless);
        restless
    }

    /// Ends the turn: lets those rest that were looked at, and have nothing to do.
    pub(super) fn let_rest(&mut self, now: Nanos) {
        let is_failed = self.context.volume.is_failed();
        let overdue = std::mem::take(&mut self.rest.overdue);
        for region in std::mem::take(&mut self.rest.looked_at) {
            let Some(slot) = self.slots.get(&region).filter(|_| !is_failed) else { continue };
            if slot.may_rest(now, self.context.me) {
                self.rest.begin(now, region);
            } else if overdue.contains(&region) && !slot.raises_floor() {
                tracing::warn!(%region, "had something to do, and nothing had told");
                self.rest.unforeseen += 1;
            }
        }
    }
}

impl Slot {
    fn raises_floor(&self) -> bool {
        matches!(&self.holding, Holding::Serving(serving) if serving.primary.raises_floor())
    }

    /// It has nothing to do until something happens.
    fn may_rest(&self, now: Nanos, me: Member) -> bool {
        let Some(config) = &self.config else { return false };
        if !self.waiting.is_empty() || self.candidate.is_some() {
            return false;
        }
        match &self.holding {
            Holding::Serving(serving) => serving.primary.config() == config && serving.may_rest(now),
            Holding::Copy(_) => {
                let builds = self.building.is_some() || self.is_building;
                config.primary != Some(me) && !builds && self.work.is_none() && self.backup.is_at_rest()
            }
            _ => false,
        }
    }
}

impl Serving {
    fn may_rest(&self, now: Nanos) -> bool {
        let has_ended = self.is_drained() && self.behind.is_empty() && self.exporting.is_empty() && !self.is_merging();
        let is_due = now < self.rest_until || self.unsynced_since.is_some() || self.merging(now) != Merging::Due;
        let is_whole = self.trim == Trim::Done || self.primary.config().inherited_below == SegmentId(0);
        has_ended
            && self.open
            && !is_due
            && is_whole
            && self.primary.is_at_rest(now, self.region.last_lsn())
            && self.region.is_at_rest(self.wall.now())
    }
}

#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;
