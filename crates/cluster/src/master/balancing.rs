//! How a master spreads copies and primary roles. Servers report their load to it. At intervals it asks the
//! [planner](super::planner), and returns configurations with the requests of the planner, where primaries find them.
//!
//! Invariants:
//! - The master evens nothing out while servers come and go, nor before every live server has reported its load, nor while
//!   it has full servers hand over primary roles ([`relief`](super::relief)). That it does at any time.
//! - No region is split again soon after a split or a merge, nor merged into a neighbour soon after a split. A split or merge
//!   that failed is tried again after a longer and longer time.
//! - An operator's request has precedence. The master leaves a region alone while a request of another is pending, and for a
//!   while after. It does the same if an operator cancelled one of its own requests. A new master treats every request that it
//!   finds as an operator's. But no request that was fulfilled keeps a role on a full server, which refuses writes.
//!
//! Pure; one thread at a time.

use super::planner::{Figures, Picture, Step, plan};
use super::relief::relief;
use super::rooms::{Room, Rooms};
use crate::view::{View, requested};
use leeward_format::cluster::{DesiredState, GroupConfig, Intent, Member, Plan, RegionRequest};
use leeward_format::load::{RegionLoad, ServerLoad};
use leeward_format::{RegionId, ServerId};
use leeward_platform::{Backoff, Nanos};
use std::collections::{BTreeMap, BTreeSet};

/// When a master balances the load of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The interval at which it looks.
    pub every: Nanos,
    /// It waits for so long after a server joined, or was asked to leave, or after the agent became the master.
    pub settle: Nanos,
    /// It waits for so long after a server was lost: the server may come back.
    pub server_loss_grace: Nanos,
    /// The master makes no new request for a region for so long after its last request was fulfilled.
    pub cooldown: Nanos,
    /// Nor for so long after an operator's request was last seen.
    pub operator_cooldown: Nanos,
    /// The master remembers the last request for a region for so long, so that it does not undo it.
    pub remember: Nanos,
    /// The load report of a server is out of date after so long.
    pub stale: Nanos,
    /// Operations a second from which on a region may be split because it has most of its server's work. Each KiB written counts
    /// as one more operation. 0: no region is split for its work.
    pub split_ops: u64,
    /// The region must have had so many operations for so long.
    pub busy: Nanos,
    /// Neither side of a split is split again for so long.
    pub split_cooldown: Nanos,
    /// A split, or a hand-over of the primary role, that is not done after so long is given up.
    pub attempt: Nanos,
    /// A split that failed is not tried again for so long; twice as long after each further failure.
    pub failed_split_backoff: Nanos,
    /// Bytes of key-value pairs that a region may have at most to be merged into a neighbour. 0: no regions are merged.
    pub merge_bytes: u64,
    /// Both regions of a merge must have had little work for so long.
    pub quiet: Nanos,
}

impl Default for Balance {
    fn default() -> Self {
        Balance {
            every: Nanos::from_secs(2),
            settle: Nanos::from_secs(10),
            server_loss_grace: Nanos::from_secs(30),
            cooldown: Nanos::from_secs(10),
            operator_cooldown: Nanos::from_secs(60),
            remember: Nanos::from_secs(300),
            stale: Nanos::from_secs(10),
            split_ops: 10_000,
            busy: Nanos::from_secs(10),
            split_cooldown: Nanos::from_secs(60),
            attempt: Nanos::from_secs(120),
            failed_split_backoff: Nanos::from_secs(300),
            merge_bytes: 4 << 20,
            quiet: Nanos::from_secs(600),
        }
    }
}

/// Rates are averages over about so long.
const SMOOTHED_OVER: Nanos = Nanos::from_secs(10);
/// Bytes written that are as much work as an operation.
const BYTES_AN_OPERATION: u64 = 1 << 10;

/// Operations a second up to which a region has little work.
const QUIET_OPS: u64 = 10;

/// The longest backoff after failed splits, as a multiple of [`Balance::failed_split_backoff`].
const LONGEST_BACKOFF: u64 = 256;

/// The known load of a region.
#[derive(Clone, Debug)]
struct Heard {
    at: Nanos,
    load: RegionLoad,
    /// Thousandths of operations a second.
    rate: u64,
    /// Since when the rate has been high enough for a split.
    busy_since: Option<Nanos>,
    /// Since when the rate has been low.
    quiet_since: Option<Nanos>,
}

/// A region that is not to be split or merged for a while.
#[derive(Clone, Copy, Debug)]
struct SplitPause {
    until: Nanos,
    /// Failed attempts since the last one that succeeded.
    failed: u32,
}

/// The request of this master for a region, and when it made it.
#[derive(Clone, Debug)]
struct Requested {
    at: Nanos,
    /// Empty once no part of it is pending.
    desired: DesiredState,
    /// The request that would undo the last request that can be undone.
    undoing: Option<RegionRequest>,
}

/// What a master knows of the load, and the requests that it has made.
#[derive(Debug, Default)]
pub(super) struct Balancing {
    /// Regions whose configuration has changed since the last look.
    due: BTreeSet<RegionId>,
    /// The last seen desired state of each region that has a pending request.
    pending: BTreeMap<RegionId, DesiredState>,
    requested: BTreeMap<RegionId, Requested>,
    /// Regions for which a request is on its way to the coordinator, and has no effect yet.
    writing: BTreeSet<RegionId>,
    /// The master makes no request for these regions until then.
    cooldowns: BTreeMap<RegionId, Nanos>,
    split_pauses: BTreeMap<RegionId, SplitPause>,
    regions: BTreeMap<RegionId, Heard>,
    rooms: Rooms,
    /// The servers at the last look, and the intent for each.
    present: Option<BTreeMap<Member, Option<Intent>>>,
    unsettled_until: Nanos,
    looked: Nanos,
}

impl Balancing {
    /// The configurations of these regions have changed.
    pub(super) fn changed(&mut self, regions: &BTreeSet<RegionId>) {
        self.due.extend(regions);
    }

    /// What each server can store.
    pub(super) fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// The configurations to write now, at most one a region. No request is made for a region that is not `is_free`. A request
    /// that was written has no effect while it `is_under_way`. Unless it `evens_out`, only full servers hand roles over.
    pub(super) fn balance(
        &mut self,
        now: Nanos,
        view: &View,
        timing: &Balance,
        evens_out: bool,
        is_free: impl Fn(RegionId) -> bool,
        is_under_way: impl Fn(RegionId) -> bool,
    ) -> Vec<GroupConfig> {
        if self.present.is_none() {
            self.due.extend(view.regions().map(|config| config.region));
        }
        self.note_desired(now, view, timing);
        let (under_way, over) = std::mem::take(&mut self.writing).into_iter().partition(|region| is_under_way(*region));
        self.writing = under_way;
        for region in over {
            self.close(region);
        }
        self.rooms.forget_old(now, view, timing.stale);
        let is_unsettled = self.is_unsettled(now, view, timing);
        if !self.writing.is_empty() || now.since(self.looked) < timing.every {
            return Vec::new();
        }
        self.looked = now;
        let mut next = self.cancel_overdue(now, view, timing, &is_free);
        let cancelled: Vec<RegionId> = next.iter().map(|config| config.region).collect();
        let is_free = |region| !cancelled.contains(&region) && is_free(region);
        let mut steps = relief(view, &self.rooms, is_free);
        for (region, _) in &steps {
            tracing::info!(%region, "the volume of its primary has no room for writes, and that of a backup has");
        }
        if steps.is_empty() && evens_out && !is_unsettled {
            steps = self.even_out(now, view, timing, |region| !self.cooldowns.contains_key(&region) && is_free(region));
        }
        for (region, request) in steps {
            next.extend(self.write(now, view, timing, region, &request));
        }
        next
    }

    /// What the planner requests, once it knows enough.
    fn even_out(&self, now: Nanos, view: &View, timing: &Balance, is_free: impl Fn(RegionId) -> bool) -> Vec<Step> {
        if view.servers().any(|info| self.rooms.of(info.member).is_none()) {
            return Vec::new();
        }
        let room = |id: ServerId| {
            let member = view.server(id).map(|info| info.member);
            member.and_then(|member| self.rooms.of(member)).unwrap_or(Room::Full)
        };
        let figures = self.figures(now, timing);
        let mut picture = Picture::new(view, &figures, room, is_free);
        picture.look_for_pairs(view, &figures, timing.merge_bytes);
        plan(picture)
    }

    /// Cancels hand-overs of the primary role that are not done after a long time: they may never be, and four of them keep
    /// others waiting. Cancels splits too, since a region that is to be split cannot be moved.
    fn cancel_overdue(
        &self,
        now: Nanos,
        view: &View,
        timing: &Balance,
        is_free: impl Fn(RegionId) -> bool,
    ) -> Vec<GroupConfig> {
        let old = |(region, mine): (&RegionId, &Requested)| {
            let pending = self.pending.get(region).filter(|_| now.since(mine.at) >= timing.attempt)?;
            let DesiredState { primary, plan, .. } = &mine.desired;
            let keeps_primary = primary.is_some() && *primary == pending.primary && pending.leaving.is_none();
            let stays_whole = plan.is_some() && *plan == pending.plan;
            let request = match (keeps_primary, stays_whole) {
                (true, _) => RegionRequest::KeepMembers,
                (_, true) => RegionRequest::KeepBounds,
                _ => return None,
            };
            let next = requested(view, *region, &request).ok().flatten().filter(|_| is_free(*region))?;
            tracing::info!(%region, ?request, "the master cancels its request: it was not fulfilled in time");
            Some(next)
        };
        self.requested.iter().filter_map(old).collect()
    }

    /// The configuration with a request of this master.
    fn write(
        &mut self,
        now: Nanos,
        view: &View,
        timing: &Balance,
        region: RegionId,
        request: &RegionRequest,
    ) -> Option<GroupConfig> {
        let undoing = match undoing(view.region(region)?, request) {
            None => self.requested.get(&region).and_then(|last| last.undoing.clone()),
            undoing => undoing,
        };
        match requested(view, region, request) {
            Ok(Some(next)) => {
                tracing::info!(%region, ?request, "the master balances the load of servers");
                self.requested.insert(region, Requested { at: now, desired: next.desired.clone(), undoing });
                self.writing.insert(region);
                Some(next)
            }
            Ok(None) => None,
            Err(why) => {
                tracing::warn!(%region, ?request, why, "a request of the master is impossible");
                if let RegionRequest::Split { .. } | RegionRequest::Merge { .. } = request {
                    self.back_off_split(now, timing, region);
                }
                None
            }
        }
    }

    /// Takes note of requests that appeared, were cancelled or were fulfilled.
    fn note_desired(&mut self, now: Nanos, view: &View, timing: &Balance) {
        for region in std::mem::take(&mut self.due) {
            let Some(config) = view.region(region) else {
                let plan = self.pending.remove(&region).and_then(|desired| desired.plan);
                if let Some(into) = plan.and_then(|plan| plan.neighbour()) {
                    self.bounds_changed(now, timing, &[into]);
                }
                self.requested.remove(&region);
                self.cooldowns.remove(&region);
                self.split_pauses.remove(&region);
                self.regions.remove(&region);
                self.rooms.forget(region);
                continue;
            };
            let before = match config.desired == DesiredState::default() {
                true => self.pending.remove(&region),
                false => self.pending.insert(region, config.desired.clone()),
            };
            let before = before.unwrap_or_default();
            if before == config.desired {
                continue;
            }
            let mine = self.requested.get(&region).map(|requested| &requested.desired);
            let is_mine = mine.is_some_and(|mine| is_part_of(&before, mine) && is_part_of(&config.desired, mine));
            if let Some(plan) = before.plan.as_ref().filter(|_| config.desired.plan.is_none()) {
                let child = plan.child().filter(|child| view.region(*child).is_some());
                match child {
                    Some(child) => self.bounds_changed(now, timing, &[region, child]),
                    None => self.back_off_split(now, timing, region),
                }
            }
            let is_operators = !is_mine || was_cancelled(view, config, &before, &config.desired);
            let pause = if is_operators { timing.operator_cooldown } else { timing.cooldown };
            self.cooldowns.insert(region, now + pause);
            self.close(region);
        }
        self.cooldowns.retain(|region, until| *until > now || self.pending.contains_key(region));
    }

    /// These regions come from a split or a merge.
    fn bounds_changed(&mut self, now: Nanos, timing: &Balance, regions: &[RegionId]) {
        for region in regions {
            self.split_pauses.insert(*region, SplitPause { until: now + timing.split_cooldown, failed: 0 });
            // The load reported so far was of other keys.
            self.regions.remove(region);
            self.rooms.forget(*region);
        }
    }

    /// A split or merge failed or is impossible. It is tried again later, and other regions have their turn.
    fn back_off_split(&mut self, now: Nanos, timing: &Balance, region: RegionId) {
        let failed = self.split_pauses.get(&region).map_or(0, |pause| pause.failed);
        let until = now + Backoff::up_to_times(timing.failed_split_backoff, LONGEST_BACKOFF).after(failed);
        self.split_pauses.insert(region, SplitPause { until, failed: failed + 1 });
    }

    /// Forgets the parts of the master's request for a region that are not pending. If the same is requested later, it is
    /// another's: the primary role of a merge source is asked for again as long as the merge is planned.
    fn close(&mut self, region: RegionId) {
        let Some(Requested { desired, .. }) = self.requested.get_mut(&region) else { return };
        let none = DesiredState::default();
        let pending = self.pending.get(&region).unwrap_or(&none);
        desired.primary.take_if(|mine| pending.primary != Some(*mine));
        desired.leaving.take_if(|mine| pending.leaving != Some(*mine));
        desired.plan.take_if(|mine| pending.plan.as_ref() != Some(mine));
    }

    /// Whether servers have joined or left lately.
    fn is_unsettled(&mut self, now: Nanos, view: &View, timing: &Balance) -> bool {
        let intent = |member: Member| (member, view.intent(member.server));
        let present: BTreeMap<Member, Option<Intent>> = view.servers().map(|info| intent(info.member)).collect();
        let before = self.present.as_ref().filter(|before| **before == present);
        if before.is_none() {
            let is_there = |gone: &Member| present.keys().any(|member| member.server == gone.server);
            let has_gone = self.present.iter().flat_map(BTreeMap::keys).any(|member| !is_there(member));
            let pause = if has_gone { timing.server_loss_grace } else { timing.settle };
            self.unsettled_until = self.unsettled_until.max(now + pause);
            self.present = Some(present);
        }
        now < self.unsettled_until
    }

    /// A live server reports its load. Of regions, the report of the primary counts.
    pub(super) fn hear(&mut self, now: Nanos, view: &View, member: Member, load: &ServerLoad, split_ops: u64) {
        for region in &load.regions {
            if view.region(region.region).is_some_and(|config| config.primary == Some(member)) {
                self.rooms.size(region.region, region.bytes);
                self.hear_region(now, region, split_ops);
            }
        }
        if self.rooms.hear(now, member, load) {
            // Its regions refuse writes: they do not wait for the next look.
            self.looked = Nanos::ZERO;
        }
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

    /// The figures of each region for the planner.
    fn figures(&self, now: Nanos, timing: &Balance) -> BTreeMap<RegionId, Figures> {
        let of = |(region, heard): (&RegionId, &Heard)| {
            let last = self.requested.get(region).filter(|requested| now.since(requested.at) < timing.remember);
            let pause = self.split_pauses.get(region);
            let is_busy = heard.busy_since.is_some_and(|since| now.since(since) >= timing.busy);
            // The bound keeps sums from an overflow.
            let bytes = heard.load.bytes.min(1 << 50);
            let own_bytes = bytes.saturating_sub(heard.load.shared);
            let figures = Figures {
                bytes,
                own_bytes,
                size: own_bytes.saturating_sub(heard.load.inherited),
                is_untrimmed: !heard.load.is_trimmed,
                may_split: pause.is_none_or(|pause| now >= pause.until),
                pair_bytes: heard.load.pair_bytes,
                is_quiet: heard.quiet_since.is_some_and(|since| now.since(since) >= timing.quiet),
                ops: (heard.rate / 1_000).min(1 << 40),
                middle: heard.load.middle.clone().filter(|_| is_busy),
                undoing: last.and_then(|requested| requested.undoing.clone()),
            };
            (*region, figures)
        };
        self.regions.iter().map(of).collect()
    }
}

/// The request that would undo `request`, if any can.
fn undoing(config: &GroupConfig, request: &RegionRequest) -> Option<RegionRequest> {
    match request {
        RegionRequest::Primary(_) => config.primary.map(|primary| RegionRequest::Primary(primary.server)),
        RegionRequest::Move { from, to } => Some(RegionRequest::Move { from: *to, to: *from }),
        RegionRequest::Split { .. } | RegionRequest::Merge { .. } => None,
        RegionRequest::KeepMembers | RegionRequest::KeepBounds => None,
    }
}

/// Whether `all` contains everything that `part` does.
fn is_part_of(part: &DesiredState, all: &DesiredState) -> bool {
    let is_in = |one: Option<ServerId>, all| one.is_none() || one == all;
    let is_planned = part.plan.is_none() || part.plan == all.plan;
    is_planned && is_in(part.primary, all.primary) && is_in(part.leaving, all.leaving)
}

/// Whether a part of the desired state that is gone since `before` was not fulfilled, although it still could be. No one cancels a
/// hand-over to a member that has dropped out.
fn was_cancelled(view: &View, config: &GroupConfig, before: &DesiredState, now: &DesiredState) -> bool {
    let gone = |before: Option<ServerId>, now: Option<ServerId>| before.filter(|_| now.is_none());
    let is_backup = |server| config.backups.iter().any(|backup| backup.server == server);
    let is_member = |server| config.members().any(|member| member.server == server);
    // A merge source has no configuration any more once it is merged.
    let has_child = |plan: &Plan| plan.child().is_some_and(|child| view.region(child).is_some());
    gone(before.primary, now.primary).is_some_and(is_backup)
        || gone(before.leaving, now.leaving).is_some_and(is_member)
        || before.plan.as_ref().filter(|_| now.plan.is_none()).is_some_and(|plan| !has_child(plan))
}

#[cfg(test)]
#[path = "balancing_tests.rs"]
mod tests;
