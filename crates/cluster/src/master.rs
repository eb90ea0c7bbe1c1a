//! What a master decides about replica groups: pure functions from the view to configurations to propose.
//!
//! The rules are PacificA's, with Leeward's incarnations (DESIGN 6, "Reconfiguration"; Tebis 3.5):
//! - Whoever becomes primary was in sync: a live backup, in exactly the life that the configuration names. A learner
//!   or a restarted process never is.
//! - If no in-sync life is left, every in-sync server of the last configuration must be back with the volume that it had
//!   ([`awaited`] has the one exception), and every one that was in sync when an unsettled primary took office; the copy
//!   with the highest (term, LSN) wins. So `kill -9` of every process, in any order, loses no acknowledged write: the last
//!   primary that acknowledged one has it in its files. And a server that lost its files, or has older ones, never passes for
//!   the one that had them.
//! - Of a table with a quorum one member in sync is not enough: who takes office must hear of so many that one of them has all that
//!   was committed, [`GroupConfig::must_hear`], and serves only then.
//! - A new primary begins a new term; the epoch rises with every change.
//!
//! Each result is proposed by compare-and-set, so a decision on old knowledge changes nothing.

use crate::View;
use crate::awaited::{Found, awaited, is_back};
use crate::wishes::gathered;
use leeward_format::cluster::{Former, GroupConfig, Intent, Member, Plan, TableOptions};
use leeward_format::{Epoch, Lsn, RegionId, ServerId};
use leeward_platform::{Bug, planted};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which of the regions that never had a primary may get one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Assign {
    /// None: servers are still expected, and would find everything assigned to others.
    #[default]
    No,
    /// Those of which no server has a copy: servers are missing, and may be for long.
    Fresh,
    /// All: every expected server is there.
    Any,
}

/// What a master may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Which regions may get a primary for the first time.
    pub(crate) assign: Assign,
    /// The places of servers that restart are kept.
    pub(crate) keeps: bool,
}

/// The configuration that should replace `config`, if one should.
pub(crate) fn decide(view: &View, loads: &Loads, config: &GroupConfig, policy: Policy) -> Option<GroupConfig> {
    let table = view.table(&config.table)?;
    Group { view, loads, table, config, keeps: policy.keeps }.next(policy.assign)
}

/// How much each server has to do, as far as it lives.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    primaries: BTreeMap<ServerId, i32>,
    memberships: BTreeMap<ServerId, i32>,
    /// What each region counts as.
    counted: BTreeMap<RegionId, Arc<GroupConfig>>,
}

impl Loads {
    /// From now on the region counts as `config`, or not at all. Between two calls, nobody comes to life or dies: then all are
    /// counted anew.
    pub(crate) fn set(&mut self, view: &View, region: RegionId, config: Option<Arc<GroupConfig>>) {
        if let Some(before) = self.counted.remove(&region) {
            self.count(view, &before, -1);
        }
        if let Some(config) = config {
            self.count(view, &config, 1);
            self.counted.insert(region, config);
        }
    }
    /// What a region counts as.
    pub(crate) fn counted(&self, region: RegionId) -> Option<&Arc<GroupConfig>> {
        self.counted.get(&region)
    }
    fn count(&mut self, view: &View, config: &GroupConfig, by: i32) {
        if let Some(primary) = config.primary.filter(|primary| view.is_live(*primary)) {
            *self.primaries.entry(primary.server).or_default() += by;
        }
        for member in config.members().filter(|member| view.is_live(*member)) {
            *self.memberships.entry(member.server).or_default() += by;
        }
    }
    fn primaries(&self, server: ServerId) -> i32 {
        self.primaries.get(&server).copied().unwrap_or(0)
    }
    fn memberships(&self, server: ServerId) -> i32 {
        self.memberships.get(&server).copied().unwrap_or(0)
    }
}

/// One region's group, about to be decided on.
struct Group<'a> {
    view: &'a View,
    loads: &'a Loads,
    table: &'a TableOptions,
    config: &'a GroupConfig,
    keeps: bool,
}

impl Group<'_> {
    fn next(&self, assign: Assign) -> Option<GroupConfig> {
        match self.config.primary {
            Some(primary) if self.view.is_live(primary) => self.maintain(),
            None if self.config.backups.is_empty() && self.config.former.is_empty() => self.assign(assign),
            _ => self.promote(),
        }
    }

    /// A region that never had a primary. Its copies are empty, and an empty copy is a whole one: all members are in sync from
    /// the start, and any of them can take over before the first write. Unless every volume that it needed was given up, or
    /// the coordinator lost its data and was filled anew: then every server is awaited, and the best copy found is taken,
    /// under an epoch that no segment of it has seen.
    fn assign(&self, assign: Assign) -> Option<GroupConfig> {
        let best = self.view.servers().map(|info| self.copy_of(info.member)).max()?;
        let fresh = best == (Epoch(0), Lsn(0));
        if assign == Assign::No || (assign == Assign::Fresh && !fresh) {
            return None;
        }
        let candidates = self.view.servers().map(|info| info.member).filter(|member| self.copy_of(*member) == best);
        let primary = self.least_loaded(candidates)?;
        let mut next = self.new_term(primary, Vec::new());
        // With a quorum, who takes over asks the others how far their copies reach: an empty one would be no answer.
        if fresh && self.table.quorum.is_none() {
            next.backups = std::mem::take(&mut next.learners);
        }
        Some(next)
    }

    /// The primary lives: dead learners leave the group, the living join it. Only the primary removes a dead backup: it knows
    /// best, and where it is dead as well, and nobody has noticed yet, that backup may hold what the primary's volume lost with
    /// its power.
    fn maintain(&self) -> Option<GroupConfig> {
        let mut next = self.config.clone();
        let leaves = |member: &Member| self.view.departs(self.config, *member) == Some(Intent::Leave);
        next.learners.retain(|member| self.view.is_live(*member) && !leaves(member));
        self.fill(&mut next);
        self.trim(&mut next);
        forget_gone(&mut next);
        self.forget_apart(&mut next);
        if next == *self.config {
            // At rest: a region that is to be part of another goes where that has its primary.
            return gathered(self.view, self.config);
        }
        next.epoch = self.config.epoch.next();
        Some(next)
    }

    /// The primary is dead: a live backup takes office, or, if there is none, a restarted member once all are back.
    fn promote(&self) -> Option<GroupConfig> {
        let mut in_sync: Vec<Member> =
            self.config.backups.iter().filter_map(|member| self.live_in_sync(*member)).collect();
        let (primary, must_hear) = match self.least_loaded(in_sync.iter().copied()) {
            Some(primary) => (primary, self.must_hear()),
            None => self.longest_copy()?,
        };
        in_sync.retain(|member| *member != primary);
        let mut next = self.new_term(primary, in_sync);
        // Also of a longest copy: a former member that lives may have it in its memory only.
        let is_in = |member: &Member| next.in_sync().any(|other| other == *member);
        let left = self.config.in_sync().map(|member| Former { member, term: self.config.term });
        next.former = self.config.former.iter().copied().chain(left).filter(|former| !is_in(&former.member)).collect();
        next.must_hear = must_hear;
        Some(next)
    }

    /// Of how many members that lived on one certainly has all that was committed; 0: of any.
    fn must_hear(&self) -> u32 {
        let members = self.config.in_sync().count();
        match (self.config.must_hear, members - self.table.needed_of(members)) {
            (0, 0) => 0,
            (0, spared) => spared as u32 + 1,
            (as_before, _) => as_before,
        }
    }

    /// When no in-sync life is left: who has the longest copy, once all volumes that may hold it are back; and of how many it must
    /// hear first, see [`Group::must_hear`].
    fn longest_copy(&self) -> Option<(Member, u32)> {
        let live = |server| self.view.server(server).map(|info| Found::of(info, self.config.region));
        if !awaited(self.config, live).is_empty() {
            return None;
        }
        let back = |member: &Member| {
            live(member.server).filter(|found| is_back(self.config, found, member)).map(|found| found.member)
        };
        let in_sync = self.config.in_sync().filter_map(|member| back(&member));
        let mut copies: Vec<((Epoch, Lsn), Member)> = in_sync.map(|member| (self.copy_of(member), member)).collect();
        let mut has_lived_on = false;
        for former in &self.config.former {
            let Some(found) = back(&former.member) else { continue };
            // A former member that did not die after all has more than what it found when it started: everything
            // that was acknowledged in its last term.
            let lives = found == former.member;
            has_lived_on |= lives;
            let copy = if lives { (former.term, Lsn(u64::MAX)) } else { self.copy_of(found) };
            copies.push((copy, found));
        }
        let best = copies.iter().map(|(copy, _)| *copy).max()?;
        let longest =
            self.least_loaded(copies.into_iter().filter(|(copy, _)| *copy == best).map(|(_, member)| member))?;
        // With a quorum, what a member has in its memory is not known, nor that it is all.
        let is_certain = self.table.quorum.is_none() || !has_lived_on;
        Some((longest, if is_certain { 0 } else { self.config.heir_servers() }))
    }

    /// `member` if it lives and is in sync.
    fn live_in_sync(&self, member: Member) -> Option<Member> {
        if planted(Bug::PromoteRestarted) {
            return self.view.server(member.server).map(|info| info.member);
        }
        Some(member).filter(|member| self.view.is_live(*member))
    }

    /// The next configuration with a new primary, in an epoch above all that its copy has seen, in-sync backups, and every other place
    /// taken by a live learner.
    fn new_term(&self, primary: Member, backups: Vec<Member>) -> GroupConfig {
        let epoch = self.config.epoch.max(self.copy_of(primary).0).next();
        let mut next = GroupConfig { epoch, term: epoch, primary: Some(primary), backups, ..self.config.clone() };
        (next.former, next.must_hear, next.yielded) = (Vec::new(), 0, Epoch(0));
        next.wishes.primary.take_if(|wished| *wished == primary.server);
        let in_sync: BTreeSet<ServerId> = next.in_sync().map(|member| member.server).collect();
        next.learners.retain(|member| self.view.is_live(*member) && !in_sync.contains(&member.server));
        self.fill(&mut next);
        forget_gone(&mut next);
        next
    }

    /// Live servers that are not in the group become learners while it has fewer than `replicas` members that stay: those with
    /// a copy first, because they lack less, then those next on the ring, then the least loaded. Who was to leave, and is out of it,
    /// stays out. A place may be kept for each server that restarts.
    fn fill(&self, next: &mut GroupConfig) {
        let there: BTreeSet<ServerId> = next.members().map(|member| member.server).collect();
        let leaves = |member: &Member| self.view.departs(next, *member) == Some(Intent::Leave);
        let staying = next.members().filter(|member| !leaves(member)).count();
        let is_outside = |member: &Member| {
            let is_leaving = next.wishes.leaving == Some(member.server);
            !there.contains(&member.server) && !is_leaving && self.view.intent(member.server).is_none()
        };
        let mut outside: Vec<Member> = self.view.servers().map(|info| info.member).filter(is_outside).collect();
        outside.sort_by_key(|member| {
            let server = member.server;
            (Reverse(self.copy_of(*member)), self.way_round(server), self.loads.memberships(server), server)
        });
        let is_away = |(server, intent): &(ServerId, Intent)| *intent == Intent::Restart && !there.contains(server);
        let kept = if self.keeps { self.view.intents().filter(is_away).count() } else { 0 };
        outside.truncate((self.table.replicas as usize).saturating_sub(staying + kept));
        next.learners.extend(outside);
    }

    /// A region whose plan names one that is no neighbour of it any more stays as it is.
    fn forget_apart(&self, next: &mut GroupConfig) {
        let is_apart = |plan: &mut Plan| {
            let other = plan.neighbour().map(|other| self.view.region(other));
            other.is_some_and(|other| other.is_none_or(|other| !other.is_next_to(self.config)))
        };
        next.wishes.plan.take_if(is_apart);
    }

    /// Nothing is built for, and nobody stays in, a group that has all its replicas: a move or a departure was taken back.
    fn trim(&self, next: &mut GroupConfig) {
        let stays = |member: &Member| self.view.departs(next, *member) != Some(Intent::Leave);
        let surplus = next.members().filter(stays).count().saturating_sub(self.table.replicas as usize);
        let learners = next.learners.len().saturating_sub(surplus);
        if surplus > next.learners.len() && next.wishes.leaving.is_none() {
            let most = next.backups.iter().filter(|backup| stays(backup));
            let most = most.max_by_key(|backup| (self.loads.memberships(backup.server), backup.server));
            next.wishes.leaving = most.map(|backup| backup.server);
        }
        next.learners.truncate(learners);
    }

    /// How far round the ring a server is from where a token's first primary belongs (DEPART 2.1): tokens follow each other from server
    /// to server, and the copies of each are on successive ones. 0 for all once somebody has the region, and where there is no ring:
    /// later moves are by load.
    fn way_round(&self, server: ServerId) -> usize {
        let GroupConfig { primary: None, backups, former, start, .. } = self.config else { return 0 };
        let Some(index) = self.table.partition.token_index(start).filter(|_| backups.is_empty() && former.is_empty())
        else {
            return 0;
        };
        let live = self.view.servers().map(|info| info.member.server);
        let ring: Vec<ServerId> = live.filter(|server| self.view.intent(*server).is_none()).collect();
        let place = ring.iter().position(|other| *other == server).unwrap_or(0);
        let first = index as usize % ring.len().max(1);
        (place + ring.len() - first) % ring.len().max(1)
    }

    /// One that is not about to leave, the one that is wished for first; else the next on the ring; else the one with the fewest
    /// primaries; with equally many, the one with the fewest memberships.
    fn least_loaded(&self, members: impl Iterator<Item = Member>) -> Option<Member> {
        members.min_by_key(|member| {
            let server = member.server;
            let departs = self.view.departs(self.config, *member).is_some();
            let is_wished = self.config.wishes.primary == Some(server);
            let is_last = (departs, !is_wished, self.way_round(server));
            (is_last, self.loads.primaries(server), self.loads.memberships(server), server)
        })
    }

    /// How far the copy reaches that `member` found when it started; nothing if it had none.
    fn copy_of(&self, member: Member) -> (Epoch, Lsn) {
        let found = self.view.server(member.server).map(|info| Found::of(info, self.config.region));
        found.map_or((Epoch(0), Lsn(0)), |found| found.copy)
    }
}

/// Forgets wishes that concern who is no member any more.
fn forget_gone(next: &mut GroupConfig) {
    let there: BTreeSet<ServerId> = next.members().map(|member| member.server).collect();
    let is_gone = |server: &mut ServerId| !there.contains(server);
    next.wishes.primary.take_if(is_gone);
    next.wishes.leaving.take_if(is_gone);
}

#[cfg(test)]
#[path = "master_tests.rs"]
pub(crate) mod tests;
