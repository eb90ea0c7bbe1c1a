//! Idle regions: nothing is under way in them, and they have nothing to do until an event comes. A tick skips them. So an
//! unused region costs its part of a periodic lease grant, and nothing else.
//!
//! Invariants:
//! - A region is idle only if it waits for nothing that comes with time alone. Every event of a region wakes it: an operation,
//!   a message, work for its copy, the end of a job, a new configuration or link, changed table options, servers that come and
//!   go, a lease grant that was not renewed, memory that other regions need, a volume that fails, or whose room becomes scarcer.
//! - A region that was idle for [`LONGEST_IDLE`] is looked at all the same. If it then has work to do, no event had woken it
//!   for that work: a missed wake-up. It is counted, and is a bug. Two things come without an event: a floor to record, and,
//!   where others miss room, a level of which it becomes known that it deletes much: its index was read.

use super::{NodeFacts, Shard};
use leeward_engine::Scarcity;
use leeward_format::RegionId;
use leeward_platform::Nanos;
use leeward_region::input::Input as RegionInput;
use leeward_region::machine::RegionMachine;
use leeward_replication::lease::SchedulingGap;
use std::collections::{BTreeMap, BTreeSet};

/// How long a region is idle before it is looked at. Regions that become idle together are looked at one after the other: they
/// stay idle for up to half as long again.
const LONGEST_IDLE: Nanos = Nanos::from_secs(2);
/// Between two of them, and how many such steps there are.
const STAGGER: Nanos = Nanos::from_millis(50);
const STAGGER_STEPS: u32 = 20;
/// Time between two looks at the device of the volume.
const DEVICE_LOOK: Nanos = Nanos::from_secs(2);

/// Which regions are idle. A region that is not listed counts as active. The entry of a region that has ended is removed.
#[derive(Debug)]
pub(crate) struct IdleRegions {
    /// Until when each idle region stays so; and the idle regions ordered by that time.
    until: BTreeMap<RegionId, Nanos>,
    by_end: BTreeSet<(Nanos, RegionId)>,
    /// Regions that the ticks of this turn looked at.
    looked_at: BTreeSet<RegionId>,
    /// Those of them that had been idle, and had no event since.
    overdue: BTreeSet<RegionId>,
    /// [`leeward_engine::Volume::calls`] at the last tick.
    calls: u64,
    /// How scarce room was when that was asked last. The scarcer, the more there is to compact in each region.
    scarcity: Scarcity,
    /// When the device is looked at next.
    next_device_look: Nanos,
    /// How many idle regions had work for which no event had woken them.
    missed_wakeups: u64,
    /// Regions that had an event in this turn.
    touched: BTreeSet<RegionId>,
    /// An event of this turn may concern every region.
    are_all_touched: bool,
    /// How regularly the node has looked at its lease grants: a primary that was idle learns it when it wakes.
    scheduling_gap: SchedulingGap,
}

impl IdleRegions {
    /// No region is idle.
    pub(super) fn new(scheduling_gap: SchedulingGap) -> IdleRegions {
        IdleRegions {
            until: BTreeMap::new(),
            by_end: BTreeSet::new(),
            looked_at: BTreeSet::new(),
            overdue: BTreeSet::new(),
            calls: 0,
            scarcity: Scarcity::default(),
            next_device_look: Nanos::ZERO,
            missed_wakeups: 0,
            touched: BTreeSet::new(),
            are_all_touched: false,
            scheduling_gap,
        }
    }

    /// The active ones of `regions`, which are ascending.
    pub(crate) fn active<'a>(
        &'a self,
        regions: impl Iterator<Item = &'a RegionId> + 'a,
    ) -> impl Iterator<Item = RegionId> + 'a {
        let mut idle = self.until.keys().peekable();
        regions.copied().filter(move |region| {
            while idle.next_if(|other| *other < region).is_some() {}
            idle.next_if_eq(&region).is_none()
        })
    }

    /// A region had an event in this turn.
    pub(crate) fn touch(&mut self, region: RegionId) {
        self.touched.insert(region);
    }

    /// Regions had an event in this turn.
    pub(crate) fn touch_each(&mut self, regions: impl IntoIterator<Item = RegionId>) {
        self.touched.extend(regions);
    }

    /// Other regions may have waited for what an event of this turn has made free.
    pub(crate) fn touch_active<'a>(&mut self, regions: impl Iterator<Item = &'a RegionId>) {
        let idle = &self.until;
        self.touched.extend(regions.filter(|region| !idle.contains_key(region)));
    }

    /// An event of this turn may concern every region.
    pub(crate) fn touch_all(&mut self) {
        self.are_all_touched = true;
    }

    /// Whether `region` is idle.
    pub(crate) fn is_idle(&self, region: RegionId) -> bool {
        self.until.contains_key(&region)
    }

    /// An event has come for `region`. Answers whether it was idle.
    fn wake(&mut self, region: RegionId) -> bool {
        self.overdue.remove(&region);
        let until = self.until.remove(&region);
        until.is_some_and(|until| self.by_end.remove(&(until, region)))
    }

    /// `region` becomes idle: it had no event, and has nothing to do.
    fn begin(&mut self, now: Nanos, region: RegionId) {
        self.wake(region);
        let until = now + LONGEST_IDLE + Nanos(STAGGER.0 * u64::from(region.0 % STAGGER_STEPS));
        self.until.insert(region, until);
        self.by_end.insert((until, region));
    }

    /// Makes the regions active that were idle for so long that they are to be looked at, and answers them.
    fn end(&mut self, now: Nanos) -> Vec<RegionId> {
        let due = |(until, _): &&(Nanos, RegionId)| *until <= now;
        let overdue: Vec<RegionId> = self.by_end.iter().take_while(due).map(|(_, region)| *region).collect();
        for region in &overdue {
            self.wake(*region);
        }
        self.overdue.extend(&overdue);
        overdue
    }

    /// Whether room is scarcer than when this was asked last.
    fn becomes_scarcer(&mut self, scarcity: Scarcity) -> bool {
        std::mem::replace(&mut self.scarcity, scarcity) < scarcity
    }

    /// The regions that were active at the tick of this turn.
    pub(crate) fn looked_at(&self) -> &BTreeSet<RegionId> {
        &self.looked_at
    }

    /// How often an idle region had work to do although it had no event. Each time is a bug, and the work was done late.
    pub(crate) fn missed_wakeups(&self) -> u64 {
        self.missed_wakeups
    }
}

impl Shard {
    /// How regularly the node looks at its lease grants, from here on.
    pub(in crate::node) fn note_scheduling_gap(&mut self, gap: SchedulingGap) {
        self.idle.scheduling_gap = gap;
    }

    /// Regions whose turn is to be ended. Wakes those that had an event in it.
    pub(in crate::node) fn wake_touched(&mut self, now: Nanos) -> BTreeSet<RegionId> {
        let mut regions = std::mem::take(&mut self.idle.touched);
        if std::mem::take(&mut self.idle.are_all_touched) {
            regions.extend(self.machines.keys());
        }
        for region in &regions {
            self.wake(now, *region);
        }
        regions.extend(&self.idle.looked_at);
        regions
    }

    /// An event has come for a region.
    pub(in crate::node) fn wake(&mut self, now: Nanos, region: RegionId) {
        if self.idle.wake(region) {
            self.note_idle(now, region);
        }
    }

    /// An event has come that may concern any region.
    pub(in crate::node) fn wake_all(&mut self, now: Nanos) {
        self.idle.overdue.clear();
        let idle: Vec<RegionId> = self.idle.until.keys().copied().collect();
        idle.into_iter().for_each(|region| self.wake(now, region));
    }

    /// Other regions may have waited for what an event of this turn has made free.
    pub(in crate::node) fn touch_active(&mut self) {
        self.idle.touch_active(self.machines.keys());
    }

    /// Tells the primary of a region, if it is here, that the region was idle until now.
    fn note_idle(&mut self, now: Nanos, region: RegionId) {
        let gap = self.idle.scheduling_gap;
        if let Some(serving) = self.serving(region) {
            serving.primary_mut().note_idle(now, gap);
        }
    }

    /// A tick looks at the regions that are not idle.
    pub(in crate::node) fn look_at_active(&mut self, facts: NodeFacts) {
        let given_work = std::mem::take(&mut self.given_work);
        for region in self.regions_to_look_at(facts.control.now()) {
            let config = self.machine(region).and_then(|machine| machine.config());
            let departing = facts.control.departing_from(config);
            self.give(facts, region, RegionInput::Tick { departing });
        }
        // That a copy gets work because somebody looks at it is no event.
        self.given_work = given_work;
    }

    /// Answers which regions are to be looked at.
    fn regions_to_look_at(&mut self, now: Nanos) -> Vec<RegionId> {
        if self.volume().is_failed() {
            self.wake_all(now);
        }
        if self.idle.next_device_look <= now {
            self.idle.next_device_look = now + DEVICE_LOOK;
            self.volume().look_at_device();
        }
        if self.idle.becomes_scarcer(self.resources.volume.scarcity()) {
            self.wake_all(now);
        }
        let calls = self.volume().calls();
        if std::mem::replace(&mut self.idle.calls, calls) != calls {
            let is_called =
                |machine: &mut RegionMachine| machine.serving().is_some_and(|serving| serving.region().is_called());
            let called = self.machines.iter_mut().filter_map(|(region, machine)| is_called(machine).then_some(*region));
            called.collect::<Vec<_>>().into_iter().for_each(|region| self.wake(now, region));
        }
        let overdue = self.idle.end(now);
        for region in &overdue {
            self.note_idle(now, *region);
        }
        let active = match self.idle.until.len() + overdue.len() == self.machines.len() {
            // All the others are idle.
            true => overdue,
            false => self.idle.active(self.machines.keys()).collect(),
        };
        self.idle.looked_at.extend(&active);
        active
    }

    /// Ends the turn: the regions that were looked at and have nothing to do become idle.
    pub(in crate::node) fn let_idle(&mut self, now: Nanos) {
        let is_failed = self.volume().is_failed();
        for region in std::mem::take(&mut self.given_work) {
            self.wake(now, region);
        }
        let mut overdue = std::mem::take(&mut self.idle.overdue);
        let looked_at = std::mem::take(&mut self.idle.looked_at);
        // Room may have been made and taken since the tick of this turn. What becomes idle with room is woken without it.
        if !looked_at.is_empty() && self.idle.becomes_scarcer(self.resources.volume.scarcity()) {
            overdue.clear();
            self.wake_all(now);
        }
        for region in looked_at {
            let Some(machine) = self.machines.get(&region).filter(|_| !is_failed) else { continue };
            if machine.may_idle(now) {
                self.idle.begin(now, region);
            } else if overdue.contains(&region) && !machine.raises_floor() && self.idle.scarcity != Scarcity::Missed {
                tracing::warn!(%region, "an idle region had work to do, and no event had woken it");
                self.idle.missed_wakeups += 1;
            }
        }
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
