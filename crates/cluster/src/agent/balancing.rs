//! How a master spreads copies and offices: it hears what servers have to do, asks the [planner](crate::balance) now and then, and
//! writes what that wishes into configurations, where primaries find it.
//!
//! Invariants:
//! - It wishes nothing while servers come and go, nor before every live server has said what it has to do.
//! - What an operator wishes stands: a region is left alone while a wish of another stands, and for a while after, also if a wish of
//!   this master was taken back. A master that is new takes every wish that it finds for an operator's.

use super::{Agent, ClusterOptions, Purpose};
use crate::View;
use crate::balance::{Figures, Picture, Shift, plan};
use crate::wishes::wished;
use leeward_format::cluster::{ClusterPath, GroupConfig, Intent, Member, RegionWish, Wishes};
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
        }
    }
}

/// Rates are averages of about so long.
const SMOOTHED_OVER: Nanos = Nanos::from_secs(10);
/// Bytes written that are as much to do as an operation.
const BYTES_AN_OPERATION: u64 = 1 << 10;

/// What is known of a region's load.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Nanos,
    bytes: u64,
    /// Thousandths of operations a second.
    rate: u64,
}

/// What this master has wished of a region, and when.
#[derive(Clone, Debug)]
struct Wished {
    at: Nanos,
    /// Nothing once nothing of it stands.
    wishes: Wishes,
    undoing: Shift,
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
                self.standing.remove(&region);
                self.wished.remove(&region);
                self.resting.remove(&region);
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
            let has_come_about = is_mine && is_fulfilled(config, &before, &config.wishes);
            let pause = if has_come_about { timing.rest } else { timing.respect };
            self.resting.insert(region, now + pause);
            self.close(region);
        }
        self.resting.retain(|region, until| *until > now || self.standing.contains_key(region));
    }

    /// If nothing of what this master has wished of a region stands: another that wishes the same later is not this master.
    fn close(&mut self, region: RegionId) {
        let Some(wished) = self.wished.get_mut(&region) else { return };
        let stands = |standing: &Wishes| is_part_of(standing, &wished.wishes);
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

    fn hear_region(&mut self, now: Nanos, load: &RegionLoad) {
        let rate = load.ops.saturating_add(load.written / BYTES_AN_OPERATION).saturating_mul(1_000);
        let rate = match self.regions.get(&load.region) {
            None => rate,
            Some(before) => {
                let passed = now.since(before.at).0;
                let part = u128::from(passed) * 1_000 / u128::from((passed + SMOOTHED_OVER.0).max(1));
                let mixed = u128::from(before.rate) * (1_000 - part) + u128::from(rate) * part;
                u64::try_from(mixed / 1_000).unwrap_or(u64::MAX)
            }
        };
        self.regions.insert(load.region, Heard { at: now, bytes: load.bytes, rate });
    }

    /// What the planner is to know of regions.
    fn figures(&self, now: Nanos, timing: &Balance) -> BTreeMap<RegionId, Figures> {
        let of = |(region, heard): (&RegionId, &Heard)| {
            let last = self.wished.get(region).filter(|wished| now.since(wished.at) < timing.remember);
            let undoing = last.map(|wished| wished.undoing);
            // A sum of them is to fit.
            let ops = (heard.rate / 1_000).min(1 << 40);
            (*region, Figures { bytes: heard.bytes.min(1 << 50), ops, undoing })
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
        self.balancing.hear(now, member, load);
        for region in &load.regions {
            let config = self.view.region(region.region);
            if config.is_some_and(|config| config.primary == Some(member)) {
                self.balancing.hear_region(now, region);
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
        let picture = Picture::new(&self.view, &balancing.figures(now, &timing), room, is_free);
        for (region, wish) in plan(picture) {
            self.write_wish(now, region, wish);
        }
    }

    /// Takes offices back that a member was to take over and has not for long: it may never, and four of them keep others waiting.
    fn take_back(&mut self, now: Nanos, timing: &Balance) {
        let is_old = |wished: &Wished| now.since(wished.at) >= timing.respect && wished.wishes.primary.is_some();
        let balancing = &self.balancing;
        let stands = |region: &RegionId, wished: &Wished| {
            let standing = balancing.standing.get(region);
            standing.is_some_and(|standing| standing.leaving.is_none() && is_part_of(standing, &wished.wishes))
        };
        let is_free = |region: &RegionId| self.is_free(&ClusterPath::Region(*region));
        let old = balancing.wished.iter().filter(|(region, wished)| is_old(wished) && stands(region, wished));
        let old: Vec<RegionId> = old.map(|(region, _)| *region).filter(is_free).collect();
        for region in old {
            if let Ok(Some(next)) = wished(&self.view, region, &RegionWish::Nothing) {
                tracing::info!(%region, "an office that has not changed hands for long stays where it is");
                let op = self.replace(&next);
                self.submit(ClusterPath::Region(region), op, Purpose::Plain);
            }
        }
    }

    /// Puts a wish of this master's into the configuration.
    fn write_wish(&mut self, now: Nanos, region: RegionId, wish: Shift) {
        let Some(undoing) = self.view.region(region).and_then(|config| undoing(config, wish)) else { return };
        match wished(&self.view, region, &wish.into()) {
            Ok(Some(next)) => {
                tracing::info!(%region, ?wish, "the master evens out what servers have");
                let wished = Wished { at: now, wishes: next.wishes.clone(), undoing };
                self.balancing.wished.insert(region, wished);
                self.balancing.writing.insert(region);
                let op = self.replace(&next);
                self.submit(ClusterPath::Region(region), op, Purpose::Plain);
            }
            Ok(None) => {}
            Err(why) => tracing::warn!(%region, ?wish, why, "the master wishes what cannot be"),
        }
    }

    /// A server restarts, and its places are kept: what others have in its place meanwhile is to stay.
    fn keeps_any_place(&self, now: Nanos) -> bool {
        let ClusterOptions { restart_patience, .. } = self.options;
        self.restarting.values().any(|since| now.since(*since) < restart_patience)
    }
}

/// What would take `wish` back.
fn undoing(config: &GroupConfig, wish: Shift) -> Option<Shift> {
    match wish {
        Shift::Primary(_) => config.primary.map(|primary| Shift::Primary(primary.server)),
        Shift::Move { from, to } => Some(Shift::Move { from: to, to: from }),
    }
}

/// Whether `all` wishes everything that `part` does.
fn is_part_of(part: &Wishes, all: &Wishes) -> bool {
    let is_in = |one: Option<ServerId>, all| one.is_none() || one == all;
    part.plan.is_none() && is_in(part.primary, all.primary) && is_in(part.leaving, all.leaving)
}

/// Whether what was wished before, and is not any more, is so.
fn is_fulfilled(config: &GroupConfig, before: &Wishes, now: &Wishes) -> bool {
    let gone = |before: Option<ServerId>, now: Option<ServerId>| before.filter(|_| now.is_none());
    let is_primary = |server| config.primary.is_some_and(|primary| primary.server == server);
    let is_member = |server| config.members().any(|member| member.server == server);
    gone(before.primary, now.primary).is_none_or(is_primary)
        && gone(before.leaving, now.leaving).is_none_or(|server| !is_member(server))
}

#[cfg(test)]
#[path = "balancing_tests.rs"]
mod tests;
