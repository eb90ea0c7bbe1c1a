//! How a master spreads copies and offices: it hears what servers have to do, asks the [planner](crate::balance) now and then, and
//! writes what that wishes into configurations, where primaries find it.
//!
//! Invariants:
//! - It wishes nothing while servers come and go, nor before every live server has said what it has to do.
//! - No region is divided again soon after it was or has taken in a neighbour, nor becomes part of one soon after it was divided; and
//!   what could not be is tried again ever more rarely.
//! - What an operator wishes stands: a region is left alone while a wish of another stands, and for a while after, also if a wish of
//!   this master was taken back. A master that is new takes every wish that it finds for an operator's.

use super::alteration::planned;
use super::{Agent, ClusterOptions, Purpose};
use crate::View;
use crate::balance::{Figures, Picture, Shift, plan};
use crate::wishes::wished;
use leeward_format::cluster::{ClusterPath, GroupConfig, Intent, Member, Plan, RegionWish, Wishes};
use leeward_format::load::{RegionLoad, ServerLoad};
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// When a master looks whether servers have alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// So often.
    pub every: Nanos,
    /// Not for so long after a server came, or was asked to leave, or an agent became the master.
    pub settle: Nanos,
    /// Nor for so long after one went, which may come back.
    pub mourn: Nanos,
    /// Nothing more is wished of a region for so long after a wish of the master's has come about.
    pub rest: Nanos,
    /// Or after an operator's was seen last.
    pub respect: Nanos,
    /// So long it is remembered what the last wish of a region was, so as not to take it back.
    pub remember: Nanos,
    /// A server that has not said for so long what it has to do may have something else to do.
    pub stale: Nanos,
    /// Operations a second, a KiB written as one more, from which on a region may be divided because it has most of what its server
    /// has to do; 0: none is for that.
    pub split_ops: u64,
    /// It must have had so many for so long.
    pub busy: Nanos,
    /// Neither side of a division is divided again for so long.
    pub apart: Nanos,
    /// A division that has not come about for so long is given up.
    pub attempt: Nanos,
    /// And not tried again for so long; twice as long after each further time.
    pub futile: Nanos,
    /// Bytes of pairs that a region may have at most to become part of a neighbour; 0: none becomes that.
    pub merge_bytes: u64,
    /// Both must have had little to do for so long.
    pub quiet: Nanos,
}

impl Default for Balance {
    fn default() -> Self {
        Balance {
            every: Nanos::from_secs(2),
            settle: Nanos::from_secs(10),
            mourn: Nanos::from_secs(30),
            rest: Nanos::from_secs(10),
            respect: Nanos::from_secs(60),
            remember: Nanos::from_secs(300),
            stale: Nanos::from_secs(10),
            split_ops: 10_000,
            busy: Nanos::from_secs(10),
            apart: Nanos::from_secs(60),
            attempt: Nanos::from_secs(120),
            futile: Nanos::from_secs(300),
            merge_bytes: 4 << 20,
            quiet: Nanos::from_secs(600),
        }
    }
}

/// Rates are averages of about so long.
const SMOOTHED_OVER: Nanos = Nanos::from_secs(10);
/// Bytes written that are as much to do as an operation.
const BYTES_AN_OPERATION: u64 = 1 << 10;

/// Operations a second of a region that has little to do.
const QUIET_OPS: u64 = 10;

/// How often the time is doubled for which a division is not tried again.
const MAX_DOUBLINGS: u32 = 8;

/// What is known of a region's load.
#[derive(Clone, Debug)]
struct Heard {
    at: Nanos,
    load: RegionLoad,
    /// Thousandths of operations a second.
    rate: u64,
    /// Since when they have been as many as it may be divided for.
    busy_since: Option<Nanos>,
    /// Since when they have been few.
    quiet_since: Option<Nanos>,
}

/// A region that is not to be divided, nor to become part of another, for a while.
#[derive(Clone, Copy, Debug)]
struct Undivided {
    until: Nanos,
    /// Times that it could not be, since it was.
    failed: u32,
}

/// What this master has wished of a region, and when.
#[derive(Clone, Debug)]
struct Wished {
    at: Nanos,
    /// Nothing once nothing of it stands.
    wishes: Wishes,
    /// What would take back what was wished last that can be.
    undoing: Option<Shift>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Balancing {
    /// Regions whose configuration has changed since the last look.
    due: BTreeSet<RegionId>,
    /// Wishes that stand, of any region that has any, as seen last.
    standing: BTreeMap<RegionId, Wishes>,
    wished: BTreeMap<RegionId, Wished>,
    /// Of these a wish is on its way to the coordinator, and counts for nobody yet.
    writing: BTreeSet<RegionId>,
    /// Of these nothing is wished until then.
    resting: BTreeMap<RegionId, Nanos>,
    undivided: BTreeMap<RegionId, Undivided>,
    regions: BTreeMap<RegionId, Heard>,
    /// When each server was heard last, and how many more bytes it may take.
    servers: BTreeMap<Member, (Nanos, u64)>,
    /// Who was there at the last look, and what was to become of them.
    present: Option<BTreeMap<Member, Option<Intent>>>,
    unsettled_until: Nanos,
    looked: Nanos,
}

impl Balancing {
    /// The configurations of these regions have changed.
    pub(super) fn changed(&mut self, regions: &BTreeSet<RegionId>) {
        self.due.extend(regions);
    }

    /// Takes note of wishes that came, went or have come about.
    fn note_wishes(&mut self, now: Nanos, view: &View, timing: &Balance) {
        for region in std::mem::take(&mut self.due) {
            let Some(config) = view.region(region) else {
                let plan = self.standing.remove(&region).and_then(|wishes| wishes.plan);
                if let Some(into) = plan.and_then(|plan| plan.neighbour()) {
                    self.is_other(now, timing, &[into]);
                }
                self.wished.remove(&region);
                self.resting.remove(&region);
                self.undivided.remove(&region);
                self.regions.remove(&region);
                continue;
            };
            let before = match config.wishes == Wishes::default() {
                true => self.standing.remove(&region),
                false => self.standing.insert(region, config.wishes.clone()),
            };
            let before = before.unwrap_or_default();
            if before == config.wishes {
                continue;
            }
            let mine = self.wished.get(&region).map(|wished| &wished.wishes);
            let is_mine = mine.is_some_and(|mine| is_part_of(&before, mine) && is_part_of(&config.wishes, mine));
            if let Some(plan) = before.plan.as_ref().filter(|_| config.wishes.plan.is_none()) {
                let child = plan.child().filter(|child| view.region(*child).is_some());
                match child {
                    Some(child) => self.is_other(now, timing, &[region, child]),
                    None => self.stays_whole(now, timing, region),
                }
            }
            let has_come_about = is_mine && is_fulfilled(view, config, &before, &config.wishes);
            let pause = if has_come_about { timing.rest } else { timing.respect };
            self.resting.insert(region, now + pause);
            self.close(region);
        }
        self.resting.retain(|region, until| *until > now || self.standing.contains_key(region));
    }

    /// These regions were divided, or have taken in a neighbour.
    fn is_other(&mut self, now: Nanos, timing: &Balance, regions: &[RegionId]) {
        for region in regions {
            self.undivided.insert(*region, Undivided { until: now + timing.apart, failed: 0 });
            // What was heard was of other keys.
            self.regions.remove(region);
        }
    }

    /// A region was not divided, or did not become part of another, or cannot: it is tried again later, and others have their turn.
    fn stays_whole(&mut self, now: Nanos, timing: &Balance, region: RegionId) {
        let failed = self.undivided.get(&region).map_or(0, |undivided| undivided.failed);
        let until = now + Nanos(timing.futile.0 << failed.min(MAX_DOUBLINGS));
        self.undivided.insert(region, Undivided { until, failed: failed + 1 });
    }

    /// If nothing of what this master has wished of a region stands: another that wishes the same later is not this master.
    fn close(&mut self, region: RegionId) {
        let Some(wished) = self.wished.get_mut(&region) else { return };
        let stands = |standing: &Wishes| {
            let Wishes { primary, leaving, plan } = &wished.wishes;
            let is_same = [(primary, standing.primary), (leaving, standing.leaving)];
            is_same.iter().any(|(mine, now)| mine.is_some() && *mine == now) || plan.is_some() && *plan == standing.plan
        };
        if !self.standing.get(&region).is_some_and(stands) {
            wished.wishes = Wishes::default();
        }
    }

    /// Whether servers have come or gone lately.
    fn is_unsettled(&mut self, now: Nanos, view: &View, timing: &Balance) -> bool {
        let intent = |member: Member| (member, view.intent(member.server));
        let present: BTreeMap<Member, Option<Intent>> = view.servers().map(|info| intent(info.member)).collect();
        let before = self.present.as_ref().filter(|before| **before == present);
        if before.is_none() {
            let is_there = |gone: &Member| present.keys().any(|member| member.server == gone.server);
            let has_gone = self.present.iter().flat_map(BTreeMap::keys).any(|member| !is_there(member));
            let pause = if has_gone { timing.mourn } else { timing.settle };
            self.unsettled_until = self.unsettled_until.max(now + pause);
            self.servers.retain(|member, _| present.contains_key(member));
            self.present = Some(present);
        }
        now < self.unsettled_until
    }

    /// Whether every live server has said lately what it has to do.
    fn knows_all(&self, now: Nanos, view: &View, timing: &Balance) -> bool {
        let is_known = |member: Member| self.servers.get(&member).is_some_and(|(at, _)| now.since(*at) <= timing.stale);
        view.servers().all(|info| is_known(info.member))
    }

    fn hear(&mut self, now: Nanos, member: Member, load: &ServerLoad) {
        // A tenth is left: compactions need room, and what is written meanwhile.
        let room = load.capacity.map_or(u64::MAX, |capacity| (capacity - capacity / 10).saturating_sub(load.used));
        self.servers.insert(member, (now, room));
    }

    fn hear_region(&mut self, now: Nanos, load: &RegionLoad, split_ops: u64) {
        let rate = load.ops.saturating_add(load.written / BYTES_AN_OPERATION).saturating_mul(1_000);
        let before = self.regions.get(&load.region);
        let rate = match before {
            None => rate,
            Some(before) => {
                let passed = now.since(before.at).0;
                let part = u128::from(passed) * 1_000 / u128::from((passed + SMOOTHED_OVER.0).max(1));
                let mixed = u128::from(before.rate) * (1_000 - part) + u128::from(rate) * part;
                u64::try_from(mixed / 1_000).unwrap_or(u64::MAX)
            }
        };
        let is_busy = split_ops > 0 && rate / 1_000 >= split_ops;
        let busy_since = is_busy.then(|| before.and_then(|before| before.busy_since).unwrap_or(now));
        let is_quiet = rate / 1_000 <= QUIET_OPS;
        let quiet_since = is_quiet.then(|| before.and_then(|before| before.quiet_since).unwrap_or(now));
        self.regions.insert(load.region, Heard { at: now, load: load.clone(), rate, busy_since, quiet_since });
    }

    /// What the planner is to know of regions.
    fn figures(&self, now: Nanos, timing: &Balance) -> BTreeMap<RegionId, Figures> {
        let of = |(region, heard): (&RegionId, &Heard)| {
            let last = self.wished.get(region).filter(|wished| now.since(wished.at) < timing.remember);
            let undivided = self.undivided.get(region);
            let is_busy = heard.busy_since.is_some_and(|since| now.since(since) >= timing.busy);
            // A sum of them is to fit.
            let bytes = heard.load.bytes.min(1 << 50);
            let own_bytes = bytes.saturating_sub(heard.load.shared);
            let figures = Figures {
                bytes,
                own_bytes,
                size: own_bytes.saturating_sub(heard.load.inherited),
                is_untrimmed: !heard.load.is_trimmed,
                may_divide: undivided.is_none_or(|undivided| now >= undivided.until),
                pair_bytes: heard.load.pair_bytes,
                is_quiet: heard.quiet_since.is_some_and(|since| now.since(since) >= timing.quiet),
                ops: (heard.rate / 1_000).min(1 << 40),
                middle: heard.load.middle.clone().filter(|_| is_busy),
                undoing: last.and_then(|wished| wished.undoing.clone()),
            };
            (*region, figures)
        };
        self.regions.iter().map(of).collect()
    }
}

impl Agent {
    /// Whether this server is to tell the master what it has to do, and so who that is.
    pub fn tells_load_to(&self) -> Option<ServerId> {
        self.options.balance.and(self.view.master()).filter(|_| self.view.is_synced()).map(|master| master.server)
    }

    /// A server says what it has to do. Who is not the master forgets it.
    pub fn hear_load(&mut self, now: Nanos, from: ServerId, load: &ServerLoad) {
        let Some(member) = self.view.server(from).map(|info| info.member).filter(|_| self.is_master()) else { return };
        let split_ops = self.options.balance.map_or(0, |timing| timing.split_ops);
        self.balancing.hear(now, member, load);
        for region in &load.regions {
            let config = self.view.region(region.region);
            if config.is_some_and(|config| config.primary == Some(member)) {
                self.balancing.hear_region(now, region, split_ops);
            }
        }
    }

    /// Wishes, as the master, what brings servers nearer to having alike.
    pub(super) fn balance(&mut self, now: Nanos) {
        let Some(timing) = self.options.balance.filter(|_| self.is_master()) else {
            self.balancing = Balancing::default();
            return;
        };
        if self.balancing.present.is_none() {
            self.balancing.due.extend(self.view.regions().map(|config| config.region));
        }
        self.balancing.note_wishes(now, &self.view, &timing);
        let is_asked = |region: &RegionId| self.asked.has(&ClusterPath::Region(*region));
        let (under_way, over) = std::mem::take(&mut self.balancing.writing).into_iter().partition(is_asked);
        self.balancing.writing = under_way;
        for region in over {
            self.balancing.close(region);
        }
        let is_unsettled = self.balancing.is_unsettled(now, &self.view, &timing) || !self.balancing.writing.is_empty();
        if is_unsettled || now.since(self.balancing.looked) < timing.every || self.keeps_any_place(now) {
            return;
        }
        self.balancing.looked = now;
        self.take_back(now, &timing);
        if !self.balancing.knows_all(now, &self.view, &timing) {
            return;
        }
        let balancing = &self.balancing;
        let room = |id: ServerId| {
            let member = self.view.server(id).map(|info| info.member);
            member.and_then(|member| balancing.servers.get(&member)).map_or(0, |(_, room)| *room)
        };
        let is_free = |region| !balancing.resting.contains_key(&region) && self.is_free(&ClusterPath::Region(region));
        let figures = balancing.figures(now, &timing);
        let mut picture = Picture::new(&self.view, &figures, room, is_free);
        picture.look_for_pairs(&self.view, &figures, timing.merge_bytes);
        for (region, wish) in plan(picture) {
            self.write_wish(now, region, wish);
        }
    }

    /// Takes offices back that a member was to take over and has not for long: it may never, and four of them keep others waiting.
    /// And divisions, which keep the region from being moved.
    fn take_back(&mut self, now: Nanos, timing: &Balance) {
        let balancing = &self.balancing;
        let old = |(region, mine): (&RegionId, &Wished)| {
            let (standing, age) = (balancing.standing.get(region)?, now.since(mine.at));
            let Wishes { primary, plan, .. } = &mine.wishes;
            let keeps_office = primary.is_some() && *primary == standing.primary && standing.leaving.is_none();
            let stays_whole = plan.is_some() && *plan == standing.plan;
            match (keeps_office && age >= timing.respect, stays_whole && age >= timing.attempt) {
                (true, _) => Some((*region, RegionWish::Nothing)),
                (_, true) => Some((*region, RegionWish::Whole)),
                _ => None,
            }
        };
        let is_free = |(region, _): &(RegionId, _)| self.is_free(&ClusterPath::Region(*region));
        let old: Vec<(RegionId, RegionWish)> = balancing.wished.iter().filter_map(old).filter(is_free).collect();
        for (region, wish) in old {
            if let Ok(Some(next)) = wished(&self.view, region, &wish) {
                tracing::info!(%region, ?wish, "what the master wished and has not come about for long is taken back");
                let op = self.replace(&next);
                self.submit(ClusterPath::Region(region), op, Purpose::Plain);
            }
        }
    }

    /// Puts a wish of this master's into the configuration.
    fn write_wish(&mut self, now: Nanos, region: RegionId, wish: Shift) {
        let Some(config) = self.view.region(region) else { return };
        let undoing = match undoing(config, &wish) {
            None => self.balancing.wished.get(&region).and_then(|last| last.undoing.clone()),
            undoing => undoing,
        };
        match wished(&self.view, region, &wish.clone().into()) {
            Ok(Some(next)) => {
                tracing::info!(%region, ?wish, "the master evens out what servers have");
                let wished = Wished { at: now, wishes: next.wishes.clone(), undoing };
                self.balancing.wished.insert(region, wished);
                self.balancing.writing.insert(region);
                let op = planned(&self.view, &next, self.replace(&next));
                self.submit(ClusterPath::Region(region), op, Purpose::Plain);
            }
            Ok(None) => {}
            Err(why) => {
                tracing::warn!(%region, ?wish, why, "the master wishes what cannot be");
                if let (Shift::Split { .. } | Shift::Merge { .. }, Some(timing)) = (&wish, self.options.balance) {
                    self.balancing.stays_whole(now, &timing, region);
                }
            }
        }
    }

    /// A server restarts, and its places are kept: what others have in its place meanwhile is to stay.
    fn keeps_any_place(&self, now: Nanos) -> bool {
        let ClusterOptions { restart_patience, .. } = self.options;
        self.restarting.values().any(|since| now.since(*since) < restart_patience)
    }
}

/// What would take `wish` back, if anything can.
fn undoing(config: &GroupConfig, wish: &Shift) -> Option<Shift> {
    match wish {
        Shift::Primary(_) => config.primary.map(|primary| Shift::Primary(primary.server)),
        Shift::Move { from, to } => Some(Shift::Move { from: *to, to: *from }),
        Shift::Split { .. } | Shift::Merge { .. } => None,
    }
}

/// Whether `all` wishes everything that `part` does.
fn is_part_of(part: &Wishes, all: &Wishes) -> bool {
    let is_in = |one: Option<ServerId>, all| one.is_none() || one == all;
    let is_planned = part.plan.is_none() || part.plan == all.plan;
    is_planned && is_in(part.primary, all.primary) && is_in(part.leaving, all.leaving)
}

/// Whether what was wished before, and is not any more, is so.
fn is_fulfilled(view: &View, config: &GroupConfig, before: &Wishes, now: &Wishes) -> bool {
    let gone = |before: Option<ServerId>, now: Option<ServerId>| before.filter(|_| now.is_none());
    let is_primary = |server| config.primary.is_some_and(|primary| primary.server == server);
    let is_member = |server| config.members().any(|member| member.server == server);
    // One that is part of another by now has no configuration any more.
    let has_child = |plan: &Plan| plan.child().is_some_and(|child| view.region(child).is_some());
    gone(before.primary, now.primary).is_none_or(is_primary)
        && gone(before.leaving, now.leaving).is_none_or(|server| !is_member(server))
        && before.plan.as_ref().filter(|_| now.plan.is_none()).is_none_or(has_child)
}

#[cfg(test)]
#[path = "balancing_tests.rs"]
mod tests;
