//! The decisions about replica groups: pure functions from the view to configurations to propose.
//!
//! The rules are PacificA's, with Leeward's incarnations (Tebis 3.5; `docs/design/failover.md`):
//! - A new primary was in sync: it is a live backup, in exactly the incarnation that the configuration names. A learner or a
//!   restarted process never is in sync.
//! - If no in-sync incarnation is left, every in-sync server of the last configuration must be back with the volume that it had.
//!   [`missing_volumes`] has the one exception. The same goes for every member that was in sync when an unsettled primary became
//!   primary. The copy with the highest (term, LSN) wins. So `kill -9` of every process, in any order, loses no acknowledged
//!   write: the last primary that acknowledged it has it in its files. A server that lost its files, or has older ones, never
//!   passes for the server that had them.
//! - For a table with a quorum, one member in sync is not enough. A new primary needs answers from so many members that one of
//!   them has everything that was committed, [`GroupConfig::recovery_quorum`]. Only then it serves.
//! - A new primary begins a new term. The epoch rises with every change.
//!
//! - Nothing is decided about a region while a live server has known more of it than its configuration says. Nothing at all is
//!   decided until each live server has registered since an operator restored the tree.
//!
//! Each result is proposed by compare-and-set, so a decision on old knowledge changes nothing.

use super::missing_volumes::{NO_COPY, ServerCopy, is_back, missing_volumes};
use super::rooms::{Fit, Room, Rooms};
use super::spread::Distances;
use crate::view::{View, merge_source_moved};
use leeward_format::cluster::{CopyFound, GroupConfig, Intent, Member, Plan, PriorMember, TableOptions};
use leeward_format::{Epoch, Lsn, RegionId, ServerId};
use leeward_platform::{Bug, planted};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which of the regions that never had a primary may get one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Assign {
    /// None: more servers are expected, and would find every region assigned to others.
    #[default]
    No,
    /// The regions of which no server has a copy: servers are missing, perhaps for long.
    Fresh,
    /// All regions: every expected server is there.
    Any,
}

/// The decisions that a master may make now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Which regions may get a primary for the first time.
    pub(super) assign: Assign,
    /// The places of restarting servers are kept.
    pub(super) keeps: bool,
}

/// The configuration that should replace `config`, if one should.
pub(super) fn decide(known: Known<'_>, config: &GroupConfig, policy: Policy) -> Option<GroupConfig> {
    let Known { view, rooms, loads, distances } = known;
    let table = view.table(&config.table)?;
    if view.contradiction(config).is_some() {
        return None;
    }
    Group { view, rooms, loads, distances, table, config, keeps: policy.keeps }.next(policy.assign)
}

/// What a decision about any region depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) view: &'a View,
    pub(super) rooms: &'a Rooms,
    pub(super) loads: &'a Loads,
    pub(super) distances: &'a Distances,
}

/// What each live server has, and is to have.
#[derive(Debug, Default)]
pub(super) struct Loads {
    /// The number of primary roles.
    primaries: BTreeMap<ServerId, i32>,
    memberships: BTreeMap<ServerId, i32>,
    /// Bytes of copies that are being built.
    building: BTreeMap<ServerId, u64>,
    counted: BTreeMap<RegionId, Counted>,
}

/// How a region is counted.
#[derive(Debug)]
struct Counted {
    config: Arc<GroupConfig>,
    /// Bytes that its copy was to take on each of its learners.
    building: Vec<(ServerId, u64)>,
}

impl Loads {
    /// Counts the region with `config` from now on, or no longer. No server joins or dies between two calls: when one
    /// does, all regions are counted anew.
    pub(super) fn set(&mut self, view: &View, rooms: &Rooms, region: RegionId, config: Option<Arc<GroupConfig>>) {
        if let Some(before) = self.counted.remove(&region) {
            self.count(view, &before.config, -1);
            for (server, bytes) in before.building {
                *self.building.entry(server).or_default() -= bytes;
            }
        }
        if let Some(config) = config {
            self.count(view, &config, 1);
            let takes = |learner: &Member| (learner.server, bytes_on(view, rooms, &config, *learner));
            let building: Vec<_> = config.learners.iter().map(takes).collect();
            for (server, bytes) in &building {
                *self.building.entry(*server).or_default() += bytes;
            }
            self.counted.insert(region, Counted { config, building });
        }
    }
    /// The configuration that a region is counted with.
    pub(super) fn counted(&self, region: RegionId) -> Option<&Arc<GroupConfig>> {
        self.counted.get(&region).map(|counted| &counted.config)
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
    fn building(&self, server: ServerId) -> u64 {
        self.building.get(&server).copied().unwrap_or(0)
    }
}

/// Bytes that a copy of the region takes on a server that is to get one; 0 if it has one already, and lacks little.
fn bytes_on(view: &View, rooms: &Rooms, config: &GroupConfig, member: Member) -> u64 {
    let found = view.server(member.server).map(|info| ServerCopy::of(info, config));
    let has_copy = found.is_some_and(|found| !found.is_damaged() && found.copy != NO_COPY);
    if has_copy { 0 } else { rooms.bytes_of(config.region) }
}

/// The group of one region that the master decides about.
struct Group<'a> {
    view: &'a View,
    rooms: &'a Rooms,
    loads: &'a Loads,
    distances: &'a Distances,
    table: &'a TableOptions,
    config: &'a GroupConfig,
    keeps: bool,
}

impl Group<'_> {
    fn next(&self, assign: Assign) -> Option<GroupConfig> {
        match self.config.primary {
            Some(primary) if self.view.is_live(primary) && !self.should_be_replaced(primary) => {
                match self.is_overtaken() {
                    true => Some(self.new_term(primary, self.config.backups.clone())),
                    false => self.maintain(),
                }
            }
            None if self.config.backups.is_empty() && self.config.prior_members.is_empty() => self.assign(assign),
            _ => self.promote(),
        }
    }

    /// Whether a live primary says that its copy is damaged, so that it cannot serve, and a backup has a sound one.
    fn should_be_replaced(&self, primary: Member) -> bool {
        let has_sound = |member: &Member| self.view.is_sound(*member, self.config.region);
        !has_sound(&primary) && self.config.backups.iter().any(has_sound)
    }

    /// Whether a server has a copy of a later term, which the coordinator forgot. That copy cannot follow this primary, and gets
    /// the content of this one in a term that is later still.
    fn is_overtaken(&self) -> bool {
        self.copies().any(|copy| copy.term > self.config.term)
    }

    /// The copies of the region that live servers say they have.
    fn copies(&self) -> impl Iterator<Item = &CopyFound> {
        let copies = self.view.servers().filter_map(|info| info.copy_of(self.config.region));
        copies.filter(|copy| !copy.is_of_other_table(self.config))
    }

    /// A region that never had a primary. Its copies are empty, and an empty copy is complete. So all members are in sync from
    /// the start, and any of them can take over before the first write.
    ///
    /// There are two exceptions: every volume that the region had was given up, or the coordinator lost its data and was
    /// filled anew. Then the master waits for every server. It takes the best copy found, under an epoch that no segment of that
    /// copy has seen. All others are learners: a process may have got a copy since it said what it had found. A damaged copy
    /// counts for nothing in the first case, since it was given up like the others. In the second it may be all that there is.
    /// So it is chosen, and refuses to serve until an operator looks at it.
    fn assign(&self, assign: Assign) -> Option<GroupConfig> {
        let is_given_up = self.config.term > Epoch(0);
        let rank = |member| if is_given_up { self.sound_copy_of(member) } else { Some(self.copy_of(member)) };
        let best = self.view.servers().map(|info| rank(info.member)).max()?;
        let fresh = self.view.servers().all(|info| self.copy_of(info.member) == NO_COPY);
        let is_unconfirmed = !fresh && self.view.is_unconfirmed(self.config);
        if assign == Assign::No || (assign == Assign::Fresh && !fresh) || is_unconfirmed {
            return None;
        }
        let candidates = self.view.servers().map(|info| info.member).filter(|member| rank(*member) == best);
        let primary = self.least_loaded(candidates)?;
        let mut next = self.new_term(primary, Vec::new());
        // With a quorum, a new primary asks the others how far their copies reach. An empty copy would be no answer.
        if fresh && self.config.term == Epoch(0) && self.table.quorum.is_none() {
            next.backups = std::mem::take(&mut next.learners);
        }
        Some(next)
    }

    /// The primary is live: dead learners leave the group, and live ones join it. Only the primary removes a dead backup, because
    /// it knows best. If the primary is dead too, and no server has noticed yet, that backup may hold data that the primary's
    /// volume lost in a power failure.
    fn maintain(&self) -> Option<GroupConfig> {
        let mut next = self.config.clone();
        let leaves = |member: &Member| self.view.departs(self.config, *member) == Some(Intent::Leave);
        next.learners.retain(|member| self.view.is_live(*member) && !leaves(member));
        self.make_place(&mut next);
        self.fill(&mut next);
        self.trim(&mut next);
        forget_gone(&mut next);
        self.forget_separated(&mut next);
        if next == *self.config {
            // The region is idle. A merge source moves its primary to the server that has the primary of its target.
            return merge_source_moved(self.view, self.config, |member| self.rooms.is_full(member));
        }
        next.epoch = self.config.epoch.next();
        Some(next)
    }

    /// The primary is dead, or its copy is damaged: a live backup becomes primary. If there is none, a restarted member does,
    /// once all are back.
    fn promote(&self) -> Option<GroupConfig> {
        let mut in_sync: Vec<Member> =
            self.config.backups.iter().filter_map(|member| self.live_in_sync(*member)).collect();
        let (primary, recovery_quorum) = match self.least_loaded(in_sync.iter().copied()) {
            Some(primary) => (primary, self.recovery_quorum()),
            None => self.longest_copy()?,
        };
        in_sync.retain(|member| *member != primary);
        let mut next = self.new_term(primary, in_sync);
        // Also for a longest copy: a former member that is live may have it in its memory only.
        let is_in = |member: &Member| next.in_sync().any(|other| other == *member);
        let left = self.config.in_sync().map(|member| PriorMember { member, term: self.config.term });
        next.prior_members =
            self.config.prior_members.iter().copied().chain(left).filter(|former| !is_in(&former.member)).collect();
        next.recovery_quorum = recovery_quorum;
        Some(next)
    }

    /// The number of members without a restart among which one certainly has everything that was committed; 0: any member has.
    fn recovery_quorum(&self) -> u32 {
        let members = self.config.in_sync().count();
        match (self.config.recovery_quorum, members - self.table.needed_of(members)) {
            (0, 0) => 0,
            (0, spared) => spared as u32 + 1,
            (as_before, _) => as_before,
        }
    }

    /// When no in-sync incarnation is left: the member with the longest copy, once all volumes that may hold it are back. Also
    /// the number of members that must answer it first: see [`Group::recovery_quorum`].
    fn longest_copy(&self) -> Option<(Member, u32)> {
        let live = |server| self.view.server(server).map(|info| ServerCopy::of(info, self.config));
        if !missing_volumes(self.config, live).is_empty() {
            return None;
        }
        let back = |member: &Member| {
            live(member.server).filter(|found| is_back(self.config, found, member)).map(|found| found.member)
        };
        let in_sync = self.config.in_sync().filter_map(|member| back(&member));
        let mut copies: Vec<((Epoch, Lsn), Member)> = in_sync.map(|member| (self.copy_of(member), member)).collect();
        let mut has_lived_on = false;
        for former in &self.config.prior_members {
            let Some(found) = back(&former.member) else { continue };
            // A former member that did not die has more than it found when it started: everything that was acknowledged in its
            // last term.
            let lives = found == former.member;
            has_lived_on |= lives;
            let copy = if lives { (former.term, Lsn(u64::MAX)) } else { self.copy_of(found) };
            copies.push((copy, found));
        }
        let best = copies.iter().map(|(copy, _)| *copy).max()?;
        let longest =
            self.least_loaded(copies.into_iter().filter(|(copy, _)| *copy == best).map(|(_, member)| member))?;
        // With a quorum, it is not known what a member has in its memory, nor whether that is everything.
        let is_certain = self.table.quorum.is_none() || !has_lived_on;
        Some((longest, if is_certain { 0 } else { self.config.candidate_servers() }))
    }

    /// `member` if it is live, in sync, and its copy is not damaged.
    fn live_in_sync(&self, member: Member) -> Option<Member> {
        if planted(Bug::PromoteRestarted) {
            return self.view.server(member.server).map(|info| info.member);
        }
        Some(member).filter(|member| self.view.is_sound(*member, self.config.region))
    }

    /// The next configuration with a new primary, in an epoch above all that its copy has seen. It has these in-sync backups, and
    /// live learners in all other places.
    fn new_term(&self, primary: Member, backups: Vec<Member>) -> GroupConfig {
        let seen = self.copies().map(CopyFound::seen).max();
        let epoch = self.config.epoch.max(seen.unwrap_or_default()).next();
        let mut next = GroupConfig { epoch, term: epoch, primary: Some(primary), backups, ..self.config.clone() };
        (next.prior_members, next.recovery_quorum, next.relinquished_term) = (Vec::new(), 0, Epoch(0));
        next.restored_in = None;
        next.desired.primary.take_if(|requested| *requested == primary.server);
        let in_sync: BTreeSet<ServerId> = next.in_sync().map(|member| member.server).collect();
        next.learners.retain(|member| self.view.is_live(*member) && !in_sync.contains(&member.server));
        self.fill(&mut next);
        forget_gone(&mut next);
        next
    }

    /// Live servers outside the group become learners while it has fewer than `replicas` members that stay. Servers with room
    /// come first, then those that stand far from the other members, then those with a copy, because they lack less, then the
    /// next on the ring, then the least loaded. A server that was to leave the group, and has left it, stays out. A place may be
    /// kept for each restarting server.
    ///
    /// Where only full servers are left, one of them becomes a learner all the same. A learner counts for nothing, so no write
    /// waits for it, and it is in sync as soon as it has room. A server that was started again while its disk is full lacks
    /// little, and finds room for that where there is none for a whole copy.
    fn fill(&self, next: &mut GroupConfig) {
        let there: BTreeSet<ServerId> = next.members().map(|member| member.server).collect();
        let leaves = |member: &Member| self.view.departs(next, *member) == Some(Intent::Leave);
        let mut staying: Vec<ServerId> =
            next.members().filter(|member| !leaves(member)).map(|member| member.server).collect();
        let mut outside = self.outside(next);
        let is_away = |(server, intent): &(ServerId, Intent)| *intent == Intent::Restart && !there.contains(server);
        let kept = if self.keeps { self.view.intents().filter(is_away).count() } else { 0 };
        while staying.len() + kept < self.table.replicas as usize
            && let Some(index) = self.best_of(&outside, &staying)
        {
            let member = outside.swap_remove(index);
            staying.push(member.server);
            next.learners.push(member);
        }
    }

    /// The servers that may get a copy: live ones that are no members, and are to stay.
    fn outside(&self, next: &GroupConfig) -> Vec<Member> {
        let is_outside = |member: &Member| {
            let is_leaving = next.desired.leaving == Some(member.server);
            !next.members().any(|other| other.server == member.server)
                && !is_leaving
                && self.view.intent(member.server).is_none()
        };
        self.view.servers().map(|info| info.member).filter(is_outside).collect()
    }

    /// Learners on full servers leave the group where servers with room can take their places. The target of a move stays.
    /// While a group is too small for writes, a server that has room again is good enough, although it may fill up again.
    fn make_place(&self, next: &mut GroupConfig) {
        if next.desired.leaving.is_some() || !next.learners.iter().any(|learner| self.rooms.is_full(*learner)) {
            return;
        }
        let lacks_members = !self.table.takes_writes(next);
        let mut fits: Vec<Fit> = self.outside(next).into_iter().map(|member| self.fit(member)).collect();
        next.learners.retain(|learner| {
            let worst = match self.rooms.of(*learner) {
                Some(Room::Full) if lacks_members => Fit::WasFull,
                Some(Room::Full | Room::WasFull) => Fit::Room,
                _ => return true,
            };
            let place = fits.iter().position(|fit| *fit <= worst);
            place.map(|place| fits.swap_remove(place)).is_none()
        });
    }

    /// How well a copy of the region fits on a server that is to get one, beside those that are being built there.
    fn fit(&self, member: Member) -> Fit {
        match bytes_on(self.view, self.rooms, self.config, member) {
            0 => self.rooms.fit(member, 0),
            bytes => self.rooms.fit(member, self.loads.building(member.server).saturating_add(bytes)),
        }
    }

    /// The server `outside` of a group that should get a copy beside those that are `staying`.
    fn best_of(&self, outside: &[Member], staying: &[ServerId]) -> Option<usize> {
        let rank = |member: &Member| {
            let server = member.server;
            let closeness = self.distances.added(server, staying.iter().copied());
            let copy = Reverse(self.sound_copy_of(*member));
            (self.fit(*member), closeness, copy, self.way_round(server), self.loads.memberships(server), server)
        };
        (0..outside.len()).min_by_key(|index| rank(&outside[*index]))
    }

    /// Forgets a merge plan whose target is no neighbour of the region any more.
    fn forget_separated(&self, next: &mut GroupConfig) {
        let is_separated = |plan: &mut Plan| {
            let other = plan.neighbour().map(|other| self.view.region(other));
            other.is_some_and(|other| other.is_none_or(|other| !other.is_next_to(self.config)))
        };
        next.desired.plan.take_if(is_separated);
    }

    /// Removes the learners and the backup that a group has above its number of replicas: a move or a departure was cancelled.
    fn trim(&self, next: &mut GroupConfig) {
        let stays = |member: &Member| self.view.departs(next, *member) != Some(Intent::Leave);
        let excess = next.members().filter(stays).count().saturating_sub(self.table.replicas as usize);
        let learners = next.learners.len().saturating_sub(excess);
        if excess > next.learners.len() && next.desired.leaving.is_none() {
            let most = next.backups.iter().filter(|backup| stays(backup));
            let most = most.max_by_key(|backup| {
                let others = next.in_sync().map(|member| member.server).filter(|server| *server != backup.server);
                let closeness = self.distances.added(backup.server, others);
                (self.rooms.is_full(**backup), closeness, self.loads.memberships(backup.server), backup.server)
            });
            next.desired.leaving = most.map(|backup| backup.server);
        }
        next.learners.truncate(learners);
    }

    /// The distance on the ring between a server and the place of a token's first primary (DEPART 2.1). Successive tokens belong
    /// to successive servers, and so do the copies of each token. 0 for all servers once one has the region, and where there is
    /// no ring: later moves are by load.
    fn way_round(&self, server: ServerId) -> usize {
        let GroupConfig { primary: None, backups, prior_members, start, .. } = self.config else { return 0 };
        let Some(index) =
            self.table.partition.token_index(start).filter(|_| backups.is_empty() && prior_members.is_empty())
        else {
            return 0;
        };
        let live = self.view.servers().map(|info| info.member.server);
        let ring: Vec<ServerId> = live.filter(|server| self.view.intent(*server).is_none()).collect();
        let place = ring.iter().position(|other| *other == server).unwrap_or(0);
        let first = index as usize % ring.len().max(1);
        (place + ring.len() - first) % ring.len().max(1)
    }

    /// The best primary among `members`. Members that are not about to leave come first; of them those that are not full, then
    /// the requested primary, then the next on the ring, then the one with the fewest primary roles, then the one with the fewest
    /// memberships.
    fn least_loaded(&self, members: impl Iterator<Item = Member>) -> Option<Member> {
        members.min_by_key(|member| {
            let server = member.server;
            let departs = self.view.departs(self.config, *member).is_some();
            let is_requested = self.config.desired.primary == Some(server);
            let is_last = (departs, self.rooms.is_full(*member), !is_requested, self.way_round(server));
            (is_last, self.loads.primaries(server), self.loads.memberships(server), server)
        })
    }

    fn found(&self, member: Member) -> Option<ServerCopy> {
        self.view.server(member.server).map(|info| ServerCopy::of(info, self.config))
    }

    /// The term and last LSN of the copy that `member` has registered; zero if it had none when it started.
    fn copy_of(&self, member: Member) -> (Epoch, Lsn) {
        self.found(member).map_or(NO_COPY, |found| found.copy)
    }

    /// The same; `None` if the copy is damaged.
    fn sound_copy_of(&self, member: Member) -> Option<(Epoch, Lsn)> {
        self.found(member).filter(|found| !found.is_damaged()).map(|found| found.copy)
    }
}

/// Forgets requests about servers that are no members any more.
fn forget_gone(next: &mut GroupConfig) {
    let there: BTreeSet<ServerId> = next.members().map(|member| member.server).collect();
    let is_gone = |server: &mut ServerId| !there.contains(server);
    next.desired.primary.take_if(is_gone);
    next.desired.leaving.take_if(is_gone);
}

#[cfg(test)]
#[path = "decide_tests.rs"]
pub(super) mod tests;

#[cfg(test)]
#[path = "placement_tests.rs"]
mod placement_tests;
