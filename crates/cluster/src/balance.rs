//! What a master wishes so that servers have alike: pure functions from what there is to wishes.
//!
//! Two things are evened out, each by moves that make it more even by more than figures waver:
//! - **bytes** of copies, which a move of a copy evens: servers come to within a twentieth of the mean;
//! - **work**, which goes with the offices: half of what an office counts for is that it is one, the other half its part of the
//!   operations, as far as there are any. A hand-over evens it; where no member of a region has less to do, a copy goes with it, if
//!   that leaves the bytes even.
//!
//! What cannot be evened since it is in one piece is divided: a region that has more bytes than its table wants in one; and one that
//! has much to do, most of what its server has, which is more than others have. What divisions have made, and has become small, is
//! merged: two neighbours that have had little to do for long, one of them so small that it is copied in a moment.
//!
//! Invariants:
//! - A region of which something is wished or under way, or whose group is not whole, is left alone; one wish a region.
//! - Each wish but a division brings the sum of squares, of bytes or of work, down, and each division halves what is above a bound; what
//!   is merged is together below a quarter of that bound. So on figures that stand still wishes come to an end.
//! - Bounds of regions that a table was made with stay: what is merged was divided, both parts of it.
//! - What comes of a wish counts from the moment that it is made; and none takes back the last one of its region, as long as that
//!   is remembered, however figures waver.

use crate::View;
use bytes::Bytes;
use leeward_format::cluster::{GroupConfig, Intent, Member, RegionWish, TableOptions, Wishes};
use leeward_format::{RegionId, SegmentId, ServerId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Copies that are built on one server at a time.
const BUILDS: u32 = 2;
/// Offices that change hands at a time.
const HAND_OVERS: u32 = 4;
/// Regions of one server that are divided at a time.
const DIVISIONS: u32 = 1;
/// Bytes that a copy counts as at least: its tails take as much, and a thousand empty copies are a burden too.
const LEAST_BYTES: u64 = 4 << 20;
/// What is merged has together at most this part of the bytes beyond which it would be divided.
const MERGED_PART: u64 = 4;
/// What an office counts for, on the average.
const OFFICE: u64 = 1_000;
/// A gap of work up to this is none: that of one office, and some.
const SMALL_GAP: u64 = OFFICE + OFFICE / 2;
/// With fewer operations a second on each server, on the average, offices are only counted.
const FEW_OPS: u64 = 100;

/// What is wished of a region.
pub(crate) type Wish = (RegionId, Shift);

/// What is to go elsewhere, or apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shift {
    /// The office, to this member.
    Primary(ServerId),
    /// A copy, and with it the office if it has it.
    Move { from: ServerId, to: ServerId },
    /// The keys from this one on, to a region of their own; `None`: half of the bytes.
    Split { at: Option<Bytes> },
    /// All keys, to a neighbour.
    Merge { into: RegionId },
}

impl From<Shift> for RegionWish {
    fn from(shift: Shift) -> RegionWish {
        match shift {
            Shift::Primary(server) => RegionWish::Primary(server),
            Shift::Move { from, to } => RegionWish::Move { from, to },
            Shift::Split { at } => RegionWish::Split { at },
            Shift::Merge { into } => RegionWish::Merge { into },
        }
    }
}

/// What is known of one region beside its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Bytes of a copy: what it takes of a server that does not have it.
    pub(crate) bytes: u64,
    /// What of that it takes of one that has it, beside what others of its regions share with it.
    pub(crate) own_bytes: u64,
    /// What of that is neither garbage nor another region's, as far as a division goes.
    pub(crate) size: u64,
    /// Something is left in it of a region that was divided off: its bytes are not what they will be.
    pub(crate) is_untrimmed: bool,
    /// It may be divided, or merged: that was not done lately, nor tried in vain.
    pub(crate) may_divide: bool,
    /// Bytes of pairs, about.
    pub(crate) pair_bytes: u64,
    /// It has had little to do for long.
    pub(crate) is_quiet: bool,
    /// Operations a second, and what else its primary does, in operations.
    pub(crate) ops: u64,
    /// Where it would be divided by these, if it has had many for a while.
    pub(crate) middle: Option<Bytes>,
    /// What would take back what was last wished of it.
    pub(crate) undoing: Option<Shift>,
}

/// One server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    /// Bytes that it may still take.
    pub(crate) room: u64,
    /// Of its copies, those that are to come included, those that are to go not.
    bytes: u64,
    /// Of its offices.
    work: u64,
    /// Operations of its regions, a second.
    ops: u64,
    /// Copies that are being built here.
    builds: u32,
    /// Of its regions, those that are about to be divided.
    divisions: u32,
}

/// One region, as it will be once all that is wished of it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Region {
    id: RegionId,
    primary: ServerId,
    members: Vec<ServerId>,
    bytes: u64,
    /// Room that a copy needs where there is none.
    room: u64,
    /// What its office counts for.
    work: u64,
    /// Operations a second.
    ops: u64,
    /// Percent that it has of the bytes that its table wants in one region, if they are more.
    excess: Option<u64>,
    /// Where it would be divided by its operations.
    middle: Option<Bytes>,
    /// A copy of it may be built elsewhere.
    is_movable: bool,
    /// Something may be wished of it.
    is_free: bool,
    /// But not this.
    undoing: Option<Shift>,
}

/// All that a wish depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    /// Those that live and stay.
    servers: BTreeMap<ServerId, Server>,
    regions: Vec<Region>,
    /// Offices that are about to change hands.
    hand_overs: u32,
    /// Neighbours that may be merged, the first into the second: the fewest bytes first.
    pairs: Vec<(RegionId, RegionId)>,
}

impl Picture {
    /// Finds neighbours that may be merged, where one has at most so many bytes of pairs, and nothing is merged already.
    pub(crate) fn look_for_pairs(&mut self, view: &View, figures: &BTreeMap<RegionId, Figures>, merge_bytes: u64) {
        if merge_bytes == 0 || view.merging().next().is_some() {
            return;
        }
        let free: BTreeSet<RegionId> = self.free().map(|region| region.id).collect();
        let may_be_merged = |config: &GroupConfig| {
            let was_divided = config.inherited_below > SegmentId(1) && free.contains(&config.region);
            let known = figures.get(&config.region).filter(|_| was_divided)?;
            (known.is_quiet && known.may_divide && !known.is_untrimmed).then_some(known)
        };
        let mut pairs = Vec::new();
        for table in view.tables() {
            let Some(beyond) = table.divided_beyond() else { continue };
            let most = table.merged_up_to(merge_bytes);
            let regions: Vec<_> = view.routes().regions_of(&table.name).collect();
            for pair in regions.windows(2) {
                let (Some(left), Some(right)) = (may_be_merged(pair[0]), may_be_merged(pair[1])) else { continue };
                let of = |known: &Figures, config: &GroupConfig| (known.pair_bytes, config.region);
                let (left_one, right_one) = (of(left, pair[0]), of(right, pair[1]));
                let (small, large) = (left_one.min(right_one), left_one.max(right_one));
                // Figures are late, and what is copied is a little more.
                if small.0 <= most / 2 && left.size.saturating_add(right.size) <= beyond / MERGED_PART {
                    pairs.push((small.0.saturating_add(large.0), small.1, large.1));
                }
            }
        }
        pairs.sort_unstable();
        self.pairs = pairs.into_iter().map(|(_, small, large)| (small, large)).collect();
    }

    /// A region that becomes part of a neighbour; one at a time.
    fn merge(&self) -> Option<Wish> {
        let is_free = |id: RegionId| self.free().any(|region| region.id == id);
        let (small, large) = self.pairs.iter().find(|(small, large)| is_free(*small) && is_free(*large))?;
        Some((*small, Shift::Merge { into: *large }))
    }

    /// What there is, with what is known of regions and servers; of regions that are not `is_free` nothing is to be wished.
    pub(crate) fn new(
        view: &View,
        figures: &BTreeMap<RegionId, Figures>,
        room: impl Fn(ServerId) -> u64,
        is_free: impl Fn(RegionId) -> bool,
    ) -> Picture {
        let live = view.servers().map(|info| info.member.server);
        let staying = live.filter(|server| view.intent(*server).is_none());
        let servers = staying.map(|server| (server, Server { room: room(server), ..Server::default() })).collect();
        let mut picture = Picture { servers, ..Picture::default() };
        // Those to which a neighbour comes stay where they are.
        let taking: BTreeSet<RegionId> = view.merging().map(|(_, into)| into).collect();
        for config in view.regions() {
            let known = figures.get(&config.region).cloned();
            let may_change = is_whole(view, config) && !taking.contains(&config.region);
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
        let may_divide = figures.may_divide && !figures.is_untrimmed;
        let beyond = view.table(&config.table).and_then(TableOptions::divided_beyond).filter(|_| may_divide);
        let excess = beyond.filter(|beyond| figures.size > *beyond).map(|beyond| figures.size * 100 / beyond);
        let region = Region {
            id: config.region,
            primary: config.wishes.primary.unwrap_or(primary.server),
            members: staying.map(|member| member.server).collect(),
            bytes: figures.own_bytes.max(LEAST_BYTES),
            room: figures.bytes.max(LEAST_BYTES),
            work: 0,
            ops: figures.ops,
            excess,
            middle: figures.middle.filter(|_| beyond.is_some()),
            // What is to be divided is so first: then there are smaller pieces to move.
            is_movable: excess.is_none() && !figures.is_untrimmed,
            is_free,
            undoing: figures.undoing,
        };
        self.hand_overs += u32::from(config.wishes.primary.is_some());
        if config.wishes.plan.is_some() {
            change(&mut self.servers, primary.server, |server| server.divisions += 1);
        }
        for learner in &config.learners {
            if let Some(server) = self.servers.get_mut(&learner.server) {
                server.builds += 1;
            }
        }
        self.regions.push(region);
    }

    /// Sums up what servers have.
    fn weigh(&mut self) {
        let (regions, servers) = (self.regions.len() as u64, self.servers.len() as u64);
        let all: u64 = self.regions.iter().map(|region| region.ops).sum();
        let is_busy = all >= FEW_OPS * servers.max(1);
        for region in &mut self.regions {
            let part = u128::from(region.ops) * u128::from(regions * (OFFICE / 2)) / u128::from(all.max(1));
            region.work = if is_busy { OFFICE / 2 + part as u64 } else { OFFICE };
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

    /// A region that has more bytes than its table wants in one, at most one of a server.
    fn division(&self) -> Option<Wish> {
        let may = |region: &&Region| {
            let server = self.servers.get(&region.primary);
            region.excess.is_some() && server.is_some_and(|server| server.divisions < DIVISIONS)
        };
        let largest = self.free().filter(may).max_by_key(|region| (region.excess, Reverse(region.id)))?;
        Some((largest.id, Shift::Split { at: None }))
    }

    /// A region that has most of what its server has to do, where that is more than others have; to be asked only when nothing can go
    /// elsewhere.
    fn division_by_work(&self) -> Option<Wish> {
        let is_still = |server: &Server| server.builds == 0 && server.divisions == 0;
        if self.hand_overs > 0 || !self.servers.values().all(is_still) {
            return None;
        }
        let mean = self.mean(|server| server.ops);
        // More than a quarter above the mean, and more than three fifths of it: two that have alike would be divided for ever by
        // figures that waver.
        let is_most = |region: &Region, server: &Server| {
            server.ops / 5 > mean / 4 && region.ops / 3 > server.ops / 5 && region.middle.is_some()
        };
        let most = self.free().filter(|region| self.servers.get(&region.primary).is_some_and(|it| is_most(region, it)));
        let most = most.max_by_key(|region| (region.ops, Reverse(region.id)))?;
        Some((most.id, Shift::Split { at: most.middle.clone() }))
    }

    /// The servers that have no copy of `region` and may take that of `from`.
    fn takers(&self, region: &Region, from: ServerId) -> impl Iterator<Item = (ServerId, &Server)> {
        let servers = self.servers.iter().map(|(id, server)| (*id, server));
        servers.filter(move |(to, server)| {
            let has_room = server.builds < BUILDS && server.room >= region.room;
            has_room && !region.members.contains(to) && region.undoing != Some(Shift::Move { from, to: *to })
        })
    }

    /// The gap of work above which something is done about it; `None`: there is none.
    fn least_gap(&self) -> Option<u64> {
        let least = SMALL_GAP.max(self.mean(|server| server.work) / 4);
        let works = || self.servers.values().map(|server| server.work);
        Some(least).filter(|least| works().max() > works().min().map(|fewest| fewest + least))
    }

    /// An office that a member with less to do takes over.
    fn office(&self) -> Option<Wish> {
        let least = self.least_gap()?;
        let mut best = None;
        for region in self.free() {
            let Some(giver) = self.servers.get(&region.primary) else { continue };
            for heir in &region.members {
                let wish = Shift::Primary(*heir);
                let Some(taker) = self.servers.get(heir).filter(|_| region.undoing.as_ref() != Some(&wish)) else {
                    continue;
                };
                let gain = gain(giver.work, taker.work, region.work, least);
                best = best.max(gain.map(|gain| (gain, Reverse((region.id, *heir)))));
            }
        }
        let (_, Reverse((region, heir))) = best?;
        Some((region, Shift::Primary(heir)))
    }

    /// A copy that goes to a server with fewer bytes; one without the office if there is one.
    fn copy(&self) -> Option<Wish> {
        let mean = self.mean(|server| server.bytes);
        if self.servers.values().all(|server| is_even(server.bytes, mean)) {
            return None;
        }
        let mut best = None;
        for region in self.movable() {
            for from in &region.members {
                let Some(giver) = self.servers.get(from) else { continue };
                let takers = self.takers(region, *from);
                let Some((to, taker)) = takers.min_by_key(|(id, server)| (server.bytes, *id)) else { continue };
                let is_needed = !is_even(giver.bytes, mean) || !is_even(taker.bytes, mean);
                let gain = gain(giver.bytes, taker.bytes, region.bytes, 0).filter(|_| is_needed);
                let found = gain.map(|gain| (*from != region.primary, gain, Reverse((region.id, *from, to))));
                best = best.max(found);
            }
        }
        let (.., Reverse((region, from, to))) = best?;
        Some((region, Shift::Move { from, to }))
    }

    /// A copy that takes its office to a server with less to do, where bytes are even and stay so.
    fn copy_with_office(&self) -> Option<Wish> {
        let mean = self.mean(|server| server.bytes);
        let is_still = self.hand_overs == 0 && self.servers.values().all(|server| server.builds == 0);
        if !is_still || !self.servers.values().all(|server| is_even(server.bytes, mean)) {
            return None;
        }
        let least = self.least_gap()?;
        let mut best = None;
        for region in self.movable() {
            let Some(giver) = self.servers.get(&region.primary) else { continue };
            let stays_even = |taker: &Server| {
                is_even(giver.bytes.saturating_sub(region.bytes), mean) && is_even(taker.bytes + region.bytes, mean)
            };
            let takers = self.takers(region, region.primary).filter(|(_, taker)| stays_even(taker));
            let Some((to, taker)) = takers.min_by_key(|(id, server)| (server.work, *id)) else { continue };
            let gain = gain(giver.work, taker.work, region.work, least);
            best = best.max(gain.map(|gain| (gain, Reverse((region.id, region.primary, to)))));
        }
        let (_, Reverse((region, from, to))) = best?;
        Some((region, Shift::Move { from, to }))
    }

    /// From now on it is as if the wish had come about.
    fn count(&mut self, id: RegionId, wish: &Shift) {
        let region =
            self.regions.iter_mut().find(|region| region.id == id).expect("a wish is of a region that is there");
        region.is_free = false;
        let heir = match wish {
            Shift::Primary(heir) => *heir,
            Shift::Merge { .. } => region.primary,
            Shift::Split { .. } => {
                change(&mut self.servers, region.primary, |server| server.divisions += 1);
                region.primary
            }
            &Shift::Move { from, to } => {
                region.members.iter_mut().filter(|member| **member == from).for_each(|member| *member = to);
                let (bytes, room) = (region.bytes, region.room);
                change(&mut self.servers, from, |giver| giver.bytes -= bytes);
                change(&mut self.servers, to, |taker| {
                    taker.bytes += bytes;
                    taker.room -= room;
                    taker.builds += 1;
                });
                if region.primary == from { to } else { region.primary }
            }
        };
        if heir != region.primary {
            self.hand_overs += 1;
            let work = region.work;
            change(&mut self.servers, region.primary, |giver| giver.work -= work);
            change(&mut self.servers, heir, |taker| taker.work += work);
            region.primary = heir;
        }
    }
}

/// What should be wished now, in this order; nothing where all is even, or must come about first what was wished before.
pub(crate) fn plan(mut picture: Picture) -> Vec<Wish> {
    let mut wishes = Vec::new();
    // One at a time is given a number.
    if let Some(wish) = picture.division() {
        picture.count(wish.0, &wish.1);
        wishes.push(wish);
    }
    while picture.hand_overs < HAND_OVERS
        && let Some(wish) = picture.office()
    {
        picture.count(wish.0, &wish.1);
        wishes.push(wish);
    }
    while let Some(wish) = picture.copy() {
        picture.count(wish.0, &wish.1);
        wishes.push(wish);
    }
    if let Some(wish) = picture.copy_with_office() {
        picture.count(wish.0, &wish.1);
        wishes.push(wish);
    }
    if wishes.is_empty() {
        wishes.extend(picture.division_by_work());
    }
    if wishes.is_empty() {
        wishes.extend(picture.merge());
    }
    wishes
}

/// Whether the group of `config` has all that it should have, and nothing is wished of it.
fn is_whole(view: &View, config: &GroupConfig) -> bool {
    let members = config.in_sync().count();
    let stays = |member: Member| view.is_live(member) && view.departs(config, member).is_none();
    view.table(&config.table).is_some_and(|table| table.replicas as usize == members)
        && config.in_sync().all(stays)
        && config.learners.is_empty()
        && config.former.is_empty()
        && config.must_hear == 0
        && config.wishes == Wishes::default()
}

/// Whether a server that has `bytes` has as many as others, who have `mean`, within a twentieth.
fn is_even(bytes: u64, mean: u64) -> bool {
    bytes.abs_diff(mean) <= mean / 20
}

/// By how much less uneven it is if `piece` goes from one who has `from` to one who has `to`: half of what the sum of squares loses.
/// `None`: it is not worth it, since the gap is not above `least`, or would be nearly as large the other way.
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
#[path = "balance_tests.rs"]
mod tests;
