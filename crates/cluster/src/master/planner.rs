//! What a master requests so that all servers carry a like load: pure functions from the state of the cluster to requests.
//!
//! Before it balances anything, it moves copies away from each other, where the locations of servers allow that; and no move for
//! the balance brings copies closer together.
//!
//! The planner balances two things. It only makes moves that improve the balance by more than the figures fluctuate.
//! - **Bytes** of copies. A move of a copy balances them: each server comes to within a twentieth of the mean.
//! - **Work**, which goes with the primary role. Half of a primary role's weight is fixed. The other half is its share of the
//!   operations, if there are any. A hand-over balances work. Where no member of a region has less work, the copy moves together
//!   with the primary role, provided that the bytes stay balanced.
//!
//! A load that cannot be balanced because it is in one piece is split. That is a region with more bytes than its table allows in
//! one region, or a region that has most of the work of a server that is above the mean. Small regions that splits have made are
//! merged: two neighbours that have had little work for long, where one is so small that copying it takes a moment.
//!
//! Invariants:
//! - A region is left alone if it has a pending request, if a change of it is under way, or if its group is not complete. A
//!   region gets one request at a time.
//! - Each request but a split brings copies further apart, or lowers the sum of squares, of bytes or of work, and brings none
//!   closer together. Each split halves a region above a bound, and regions that are merged are together below a quarter of
//!   that bound. So requests come to an end while the figures do not change.
//! - The bounds of regions that a table was made with stay: both regions of a merge come from splits.
//! - The effect of a request counts from the moment that it is made. No request undoes the last request for its region as long as
//!   the planner remembers that one, however much the figures fluctuate.

use super::relief::HAND_OVERS;
use super::rooms::{LEAST_BYTES, Room};
use super::spread::Distances;
use crate::View;
use bytes::Bytes;
use leeward_format::cluster::{DesiredState, GroupConfig, Intent, Member, RegionRequest, TableOptions};
use leeward_format::{RegionId, SegmentId, ServerId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Copies that are built on one server at a time.
const BUILDS: u32 = 2;
/// Regions of one server that are split at a time.
const SPLITS: u32 = 1;
/// Merged regions have together at most this part of the bytes beyond which a region would be split.
const MERGED_PART: u64 = 4;
/// The average weight of a primary role.
const PRIMARY_ROLE: u64 = 1_000;
/// A difference of work up to this counts as none: the work of one primary role, and some.
const SMALL_GAP: u64 = PRIMARY_ROLE + PRIMARY_ROLE / 2;
/// With fewer operations a second on the average server, only the number of primary roles counts.
const FEW_OPS: u64 = 100;

/// A request for a region.
pub(super) type Step = (RegionId, RegionRequest);

/// What is known of one region beside its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Bytes of a copy: the space that it takes on a server that does not have it.
    pub(super) bytes: u64,
    /// Bytes of that on a server that has the copy, without those that it shares with the server's other regions.
    pub(super) own_bytes: u64,
    /// Bytes of that which are neither garbage nor another region's: the size that decides about a split.
    pub(super) size: u64,
    /// It still contains data of a region that was split off: its bytes will change.
    pub(super) is_untrimmed: bool,
    /// It may be split or merged: neither was done lately, nor did an attempt fail lately.
    pub(super) may_split: bool,
    /// Approximate bytes of key-value pairs.
    pub(super) pair_bytes: u64,
    /// It has had little work for long.
    pub(super) is_quiet: bool,
    /// Operations a second; other work of its primary is converted to operations.
    pub(super) ops: u64,
    /// The key at which its operations would split it, if it has had many for a while.
    pub(super) middle: Option<Bytes>,
    /// The request that would undo the last request for it.
    pub(super) undoing: Option<RegionRequest>,
}

/// One server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Server {
    /// Bytes that it can still store.
    pub(super) room: u64,
    /// Its volume takes no writes: it gets nothing.
    is_full: bool,
    /// Bytes of its copies, with the copies that it is to get and without those that it is to lose.
    bytes: u64,
    /// Work of its primary roles.
    work: u64,
    /// Operations a second of the regions that it is the primary of.
    ops: u64,
    /// Copies that are being built here.
    builds: u32,
    /// Regions that it is the primary of and that are about to be split.
    splits: u32,
}

impl Server {
    fn with(room: Room) -> Server {
        match room {
            Room::Full | Room::WasFull => Server { is_full: true, ..Server::default() },
            Room::Bytes(room) => Server { room, ..Server::default() },
        }
    }
}

/// One region, as it will be once its desired state is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Region {
    id: RegionId,
    primary: ServerId,
    members: Vec<ServerId>,
    bytes: u64,
    /// Space that a copy needs on a server that has none.
    room: u64,
    /// The weight of its primary role.
    work: u64,
    /// Operations a second.
    ops: u64,
    /// Its size in percent of the bytes that its table allows in one region, if it has more.
    excess: Option<u64>,
    /// The key at which its operations would split it.
    middle: Option<Bytes>,
    /// A copy of it may be built elsewhere.
    is_movable: bool,
    /// The planner may make a request for it.
    is_free: bool,
    /// But not this request.
    undoing: Option<RegionRequest>,
}

/// The state that the requests depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    /// Servers that are live and are to stay.
    servers: BTreeMap<ServerId, Server>,
    regions: Vec<Region>,
    distances: Distances,
    /// Primary roles that are about to be handed over.
    hand_overs: u32,
    /// Neighbours that may be merged, the first into the second; pairs with the fewest bytes come first.
    pairs: Vec<(RegionId, RegionId)>,
}

impl Picture {
    /// Finds neighbours that may be merged. One of them has at most `merge_bytes` of key-value pairs. Finds none while a merge is
    /// under way.
    pub(super) fn look_for_pairs(&mut self, view: &View, figures: &BTreeMap<RegionId, Figures>, merge_bytes: u64) {
        if merge_bytes == 0 || view.merging().next().is_some() {
            return;
        }
        let free: BTreeSet<RegionId> = self.free().map(|region| region.id).collect();
        let may_be_merged = |config: &GroupConfig| {
            let was_split = config.inherited_below > SegmentId(1) && free.contains(&config.region);
            let known = figures.get(&config.region).filter(|_| was_split)?;
            (known.is_quiet && known.may_split && !known.is_untrimmed).then_some(known)
        };
        let mut pairs = Vec::new();
        for table in view.tables() {
            let Some(beyond) = table.split_beyond() else { continue };
            let most = table.merged_up_to(merge_bytes);
            let regions: Vec<_> = view.routes().regions_of(&table.name).collect();
            for pair in regions.windows(2) {
                let (Some(left), Some(right)) = (may_be_merged(pair[0]), may_be_merged(pair[1])) else { continue };
                let of = |known: &Figures, config: &GroupConfig| (known.pair_bytes, config.region);
                let (left_one, right_one) = (of(left, pair[0]), of(right, pair[1]));
                let (small, large) = (left_one.min(right_one), left_one.max(right_one));
                // The figures are late, and a copy is a little larger.
                if small.0 <= most / 2 && left.size.saturating_add(right.size) <= beyond / MERGED_PART {
                    pairs.push((small.0.saturating_add(large.0), small.1, large.1));
                }
            }
        }
        pairs.sort_unstable();
        self.pairs = pairs.into_iter().map(|(_, small, large)| (small, large)).collect();
    }

    /// The merge of a region into its neighbour; one at a time.
    fn merge(&self) -> Option<Step> {
        let is_free = |id: RegionId| self.free().any(|region| region.id == id);
        let (small, large) = self.pairs.iter().find(|(small, large)| is_free(*small) && is_free(*large))?;
        Some((*small, RegionRequest::Merge { into: *large }))
    }

    /// The state of the cluster, with the known figures of regions and servers. A region that is not `is_free` gets no request.
    pub(super) fn new(
        view: &View,
        figures: &BTreeMap<RegionId, Figures>,
        room: impl Fn(ServerId) -> Room,
        is_free: impl Fn(RegionId) -> bool,
    ) -> Picture {
        let live = view.servers().map(|info| info.member.server);
        let staying = live.filter(|server| view.intent(*server).is_none());
        let servers = staying.map(|server| (server, Server::with(room(server)))).collect();
        let mut picture = Picture { servers, distances: Distances::of_live(view), ..Picture::default() };
        // The targets of merges stay where they are.
        let merge_targets: BTreeSet<RegionId> = view.merging().map(|(_, into)| into).collect();
        for config in view.regions() {
            let known = figures.get(&config.region).cloned();
            let may_change = is_whole(view, config) && !merge_targets.contains(&config.region);
            let is_free = known.is_some() && may_change && is_free(config.region);
            picture.add(view, config, known.unwrap_or_default(), is_free);
        }
        picture.weigh();
        picture
    }

    fn add(&mut self, view: &View, config: &GroupConfig, figures: Figures, is_free: bool) {
        let Some(primary) = config.primary else { return };
        let leaves = |member: &Member| view.departs(config, *member) == Some(Intent::Leave);
        let staying = config.members().filter(|member| !leaves(member));
        let may_split = figures.may_split && !figures.is_untrimmed;
        let beyond = view.table(&config.table).and_then(TableOptions::split_beyond).filter(|_| may_split);
        let excess = beyond.filter(|beyond| figures.size > *beyond).map(|beyond| figures.size * 100 / beyond);
        let region = Region {
            id: config.region,
            primary: config.desired.primary.unwrap_or(primary.server),
            members: staying.map(|member| member.server).collect(),
            bytes: figures.own_bytes.max(LEAST_BYTES),
            room: figures.bytes.max(LEAST_BYTES),
            work: 0,
            ops: figures.ops,
            excess,
            middle: figures.middle.filter(|_| beyond.is_some()),
            // A region that is to be split is split before it is moved: the pieces are smaller.
            is_movable: excess.is_none() && !figures.is_untrimmed,
            is_free,
            undoing: figures.undoing,
        };
        self.hand_overs += u32::from(config.desired.primary.is_some());
        if config.desired.plan.is_some() {
            change(&mut self.servers, primary.server, |server| server.splits += 1);
        }
        for learner in &config.learners {
            if let Some(server) = self.servers.get_mut(&learner.server) {
                server.builds += 1;
            }
        }
        self.regions.push(region);
    }

    /// Sums up the load of each server.
    fn weigh(&mut self) {
        let (regions, servers) = (self.regions.len() as u64, self.servers.len() as u64);
        let all: u64 = self.regions.iter().map(|region| region.ops).sum();
        let is_busy = all >= FEW_OPS * servers.max(1);
        for region in &mut self.regions {
            let part = u128::from(region.ops) * u128::from(regions * (PRIMARY_ROLE / 2)) / u128::from(all.max(1));
            region.work = if is_busy { PRIMARY_ROLE / 2 + part as u64 } else { PRIMARY_ROLE };
            if let Some(server) = self.servers.get_mut(&region.primary) {
                server.work += region.work;
                server.ops += region.ops;
            }
            for member in &region.members {
                if let Some(server) = self.servers.get_mut(member) {
                    server.bytes += region.bytes;
                }
            }
        }
    }

    fn mean(&self, what: impl Fn(&Server) -> u64) -> u64 {
        self.servers.values().map(what).sum::<u64>() / (self.servers.len() as u64).max(1)
    }

    fn free(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(|region| region.is_free)
    }

    fn movable(&self) -> impl Iterator<Item = &Region> {
        self.free().filter(|region| region.is_movable)
    }

    /// The split of a region that has more bytes than its table allows in one; at most one region of a server at a time.
    fn split(&self) -> Option<Step> {
        let may = |region: &&Region| {
            let server = self.servers.get(&region.primary);
            region.excess.is_some() && server.is_some_and(|server| server.splits < SPLITS)
        };
        let largest = self.free().filter(may).max_by_key(|region| (region.excess, Reverse(region.id)))?;
        Some((largest.id, RegionRequest::Split { at: None }))
    }

    /// The split of a region that has most of its server's work, where that server has more work than others. Only to be called
    /// when nothing can be moved.
    fn split_by_work(&self) -> Option<Step> {
        let is_idle = |server: &Server| server.builds == 0 && server.splits == 0;
        if self.hand_overs > 0 || !self.servers.values().all(is_idle) {
            return None;
        }
        let mean = self.mean(|server| server.ops);
        // The server is more than a quarter above the mean, and the region has more than three fifths of its operations. With a
        // lower bound, figures that fluctuate would split two equal regions again and again.
        let is_most = |region: &Region, server: &Server| {
            server.ops / 5 > mean / 4 && region.ops / 3 > server.ops / 5 && region.middle.is_some()
        };
        let most = self.free().filter(|region| self.servers.get(&region.primary).is_some_and(|it| is_most(region, it)));
        let most = most.max_by_key(|region| (region.ops, Reverse(region.id)))?;
        Some((most.id, RegionRequest::Split { at: most.middle.clone() }))
    }

    /// The servers that have no copy of `region` and can receive the copy of `from`.
    fn targets(&self, region: &Region, from: ServerId) -> impl Iterator<Item = (ServerId, &Server)> {
        let servers = self.servers.iter().map(|(id, server)| (*id, server));
        servers.filter(move |(to, server)| {
            let has_room = server.builds < BUILDS && server.room >= region.room;
            let is_outside =
                !region.members.contains(to) && region.undoing != Some(RegionRequest::Move { from, to: *to });
            has_room && is_outside && self.distances.gain(&region.members, from, *to).is_some()
        })
    }

    /// The move of a copy away from the others of its region; a copy of a backup if possible, and to a server with few bytes.
    fn spread(&self) -> Option<Step> {
        let mut best = None;
        for region in self.movable().filter(|_| !self.distances.are_even()) {
            for from in &region.members {
                for (to, target) in self.targets(region, *from) {
                    let gain = self.distances.gain(&region.members, *from, to).filter(|gain| *gain > 0);
                    let rank = |gain| (gain, *from != region.primary, Reverse((target.bytes, region.id, *from, to)));
                    best = best.max(gain.map(rank));
                }
            }
        }
        let (.., Reverse((_, region, from, to))) = best?;
        Some((region, RegionRequest::Move { from, to }))
    }

    /// The difference of work above which a move is worth it; `None`: no two servers differ by so much.
    fn least_gap(&self) -> Option<u64> {
        let least = SMALL_GAP.max(self.mean(|server| server.work) / 4);
        let works = || self.servers.values().map(|server| server.work);
        Some(least).filter(|least| works().max() > works().min().map(|fewest| fewest + least))
    }

    /// The hand-over of a primary role to a member with less work.
    fn hand_over(&self) -> Option<Step> {
        let least = self.least_gap()?;
        let mut best = None;
        for region in self.free() {
            let Some(giver) = self.servers.get(&region.primary) else { continue };
            for to in &region.members {
                let request = RegionRequest::Primary(*to);
                let may_get = |server: &&Server| !server.is_full && region.undoing.as_ref() != Some(&request);
                let Some(target) = self.servers.get(to).filter(may_get) else { continue };
                let gain = gain(giver.work, target.work, region.work, least);
                best = best.max(gain.map(|gain| (gain, Reverse((region.id, *to)))));
            }
        }
        let (_, Reverse((region, to))) = best?;
        Some((region, RegionRequest::Primary(to)))
    }

    /// The move of a copy to a server with fewer bytes; a copy of a backup if possible.
    fn copy(&self) -> Option<Step> {
        let mean = self.mean(|server| server.bytes);
        if self.servers.values().all(|server| is_even(server.bytes, mean)) {
            return None;
        }
        let mut best = None;
        for region in self.movable() {
            for from in &region.members {
                let Some(giver) = self.servers.get(from) else { continue };
                let targets = self.targets(region, *from);
                let Some((to, target)) = targets.min_by_key(|(id, server)| (server.bytes, *id)) else { continue };
                let is_needed = !is_even(giver.bytes, mean) || !is_even(target.bytes, mean);
                let gain = gain(giver.bytes, target.bytes, region.bytes, 0).filter(|_| is_needed);
                let found = gain.map(|gain| (*from != region.primary, gain, Reverse((region.id, *from, to))));
                best = best.max(found);
            }
        }
        let (.., Reverse((region, from, to))) = best?;
        Some((region, RegionRequest::Move { from, to }))
    }

    /// The move of a primary's copy, and so of the primary role, to a server with less work. The bytes must be balanced, and stay
    /// so.
    fn copy_of_primary(&self) -> Option<Step> {
        let mean = self.mean(|server| server.bytes);
        let is_idle = self.hand_overs == 0 && self.servers.values().all(|server| server.builds == 0);
        if !is_idle || !self.servers.values().all(|server| is_even(server.bytes, mean)) {
            return None;
        }
        let least = self.least_gap()?;
        let mut best = None;
        for region in self.movable() {
            let Some(giver) = self.servers.get(&region.primary) else { continue };
            let stays_even = |target: &Server| {
                is_even(giver.bytes.saturating_sub(region.bytes), mean) && is_even(target.bytes + region.bytes, mean)
            };
            let targets = self.targets(region, region.primary).filter(|(_, target)| stays_even(target));
            let Some((to, target)) = targets.min_by_key(|(id, server)| (server.work, *id)) else { continue };
            let gain = gain(giver.work, target.work, region.work, least);
            best = best.max(gain.map(|gain| (gain, Reverse((region.id, region.primary, to)))));
        }
        let (_, Reverse((region, from, to))) = best?;
        Some((region, RegionRequest::Move { from, to }))
    }

    /// Counts the request as if it were fulfilled.
    fn count(&mut self, id: RegionId, request: &RegionRequest) {
        let region = self.regions.iter_mut().find(|region| region.id == id).expect("a request is for a known region");
        region.is_free = false;
        let primary = match request {
            RegionRequest::Primary(to) => *to,
            RegionRequest::Merge { .. } | RegionRequest::KeepMembers | RegionRequest::KeepBounds => region.primary,
            RegionRequest::Split { .. } => {
                change(&mut self.servers, region.primary, |server| server.splits += 1);
                region.primary
            }
            &RegionRequest::Move { from, to } => {
                region.members.iter_mut().filter(|member| **member == from).for_each(|member| *member = to);
                let (bytes, room) = (region.bytes, region.room);
                change(&mut self.servers, from, |giver| giver.bytes -= bytes);
                change(&mut self.servers, to, |target| {
                    target.bytes += bytes;
                    target.room -= room;
                    target.builds += 1;
                });
                if region.primary == from { to } else { region.primary }
            }
        };
        if primary != region.primary {
            self.hand_overs += 1;
            let work = region.work;
            change(&mut self.servers, region.primary, |giver| giver.work -= work);
            change(&mut self.servers, primary, |target| target.work += work);
            region.primary = primary;
        }
    }
}

/// The requests to make now, in this order. There are none if all is balanced, or if earlier requests must be fulfilled first.
pub(super) fn plan(mut picture: Picture) -> Vec<Step> {
    let mut steps = Vec::new();
    // Each split needs a new region number: one at a time.
    if let Some(step) = picture.split() {
        picture.count(step.0, &step.1);
        steps.push(step);
    }
    while picture.hand_overs < HAND_OVERS
        && let Some(step) = picture.hand_over()
    {
        picture.count(step.0, &step.1);
        steps.push(step);
    }
    while let Some(step) = picture.spread().or_else(|| picture.copy()) {
        picture.count(step.0, &step.1);
        steps.push(step);
    }
    if let Some(step) = picture.copy_of_primary() {
        picture.count(step.0, &step.1);
        steps.push(step);
    }
    if steps.is_empty() {
        steps.extend(picture.split_by_work());
    }
    if steps.is_empty() {
        steps.extend(picture.merge());
    }
    steps
}

/// Whether the group of `config` is complete, and no request for it is pending.
fn is_whole(view: &View, config: &GroupConfig) -> bool {
    let members = config.in_sync().count();
    let stays = |member: Member| view.is_live(member) && view.departs(config, member).is_none();
    view.table(&config.table).is_some_and(|table| table.replicas as usize == members)
        && config.in_sync().all(stays)
        && config.learners.is_empty()
        && config.prior_members.is_empty()
        && config.recovery_quorum == 0
        && config.desired == DesiredState::default()
}

/// Whether `bytes` of a server are within a twentieth of the `mean` of all servers.
fn is_even(bytes: u64, mean: u64) -> bool {
    bytes.abs_diff(mean) <= mean / 20
}

/// The gain in balance if `piece` moves from a server that has `from` to one that has `to`: half of what the sum of squares
/// loses. `None`: the move is not worth it. The difference is not above `least`, or it would be nearly as large the other way
/// round.
fn gain(from: u64, to: u64, piece: u64, least: u64) -> Option<u128> {
    let gap = from.checked_sub(to).filter(|gap| *gap > least)?;
    (piece <= gap / 5 * 4).then(|| u128::from(piece) * u128::from(gap - piece))
}

fn change(servers: &mut BTreeMap<ServerId, Server>, id: ServerId, how: impl FnOnce(&mut Server)) {
    if let Some(server) = servers.get_mut(&id) {
        how(server);
    }
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
