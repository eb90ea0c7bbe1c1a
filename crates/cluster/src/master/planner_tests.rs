//! The planner on random clusters. Each request is fulfilled as soon as it is made.

use super::*;
use crate::view::tests::{configure, member, register, synced};
use leeward_format::cluster::Location;
use leeward_platform::Rng;
use std::collections::BTreeSet;

const UNLIMITED: u64 = u64::MAX / 4;

/// A cluster that fulfils requests.
#[derive(Clone, Debug)]
struct Model {
    servers: Vec<ServerId>,
    regions: Vec<Region>,
    moved_bytes: u64,
    /// Regions with more bytes than this are split.
    split_bytes: u64,
    /// Regions with at least so many operations may be split.
    split_ops: u64,
    splits: usize,
    /// Where servers stand.
    locations: BTreeMap<ServerId, Location>,
}

fn region(id: u32, members: Vec<ServerId>, bytes: u64, ops: u64) -> Region {
    Region {
        id: RegionId(id),
        primary: members[0],
        members,
        bytes,
        room: bytes,
        work: 0,
        ops,
        excess: None,
        middle: None,
        is_movable: true,
        is_free: true,
        undoing: None,
    }
}

impl Model {
    /// Regions have their members among the first `old` of `servers`.
    fn draw(
        rng: &mut Rng,
        servers: u64,
        old: u64,
        replicas: u64,
        regions: u64,
        bytes: impl Fn(&mut Rng) -> u64,
    ) -> Model {
        let servers: Vec<ServerId> = (1..=servers as u32).map(ServerId).collect();
        let ops = [0, 10, 1_000][rng.index(3)];
        let regions = (1..=regions as u32).map(|id| {
            let mut members = servers[..old as usize].to_vec();
            rng.shuffle(&mut members);
            members.truncate(replicas as usize);
            let ops = if rng.one_in(20) { ops * 20 } else { rng.below(ops + 1) };
            region(id, members, bytes(rng), ops)
        });
        let regions = regions.collect();
        Model {
            regions,
            servers,
            moved_bytes: 0,
            split_bytes: u64::MAX,
            split_ops: u64::MAX,
            splits: 0,
            locations: BTreeMap::new(),
        }
    }

    fn picture(&self) -> Picture {
        let server = Server { room: UNLIMITED, ..Server::default() };
        let servers = self.servers.iter().map(|id| (*id, server)).collect();
        let distances = Distances::of(self.locations.iter().map(|(server, location)| (*server, location)));
        let mut picture = Picture { servers, distances, regions: self.regions.clone(), ..Picture::default() };
        for region in &mut picture.regions {
            region.excess = (region.bytes > self.split_bytes).then(|| region.bytes * 100 / self.split_bytes);
            region.is_movable = region.excess.is_none();
            region.middle = (region.ops >= self.split_ops).then(|| "middle".into());
        }
        picture.weigh();
        picture
    }

    fn fulfil(&mut self, id: RegionId, request: RegionRequest) {
        let next = self.regions.len() as u32 + 1;
        let region = self.regions.iter_mut().find(|region| region.id == id).unwrap();
        assert_ne!(region.undoing.as_ref(), Some(&request), "it undoes the last request for {region:?}");
        match request {
            RegionRequest::Split { at } => {
                assert!(region.bytes > self.split_bytes && at.is_none() || region.ops >= self.split_ops, "{region:?}");
                self.splits += 1;
                let child =
                    Region { id: RegionId(next), bytes: region.bytes / 2, ops: region.ops / 2, ..region.clone() };
                region.bytes -= child.bytes;
                region.ops -= child.ops;
                self.regions.push(child);
            }
            RegionRequest::Merge { .. } => unreachable!("no region was split before"),
            RegionRequest::KeepMembers | RegionRequest::KeepBounds => {
                unreachable!("the master keeps nothing by request")
            }
            RegionRequest::Primary(to) => {
                assert!(region.members.contains(&to), "{request:?} of {region:?}");
                assert_ne!(region.primary, to);
                region.undoing = Some(RegionRequest::Primary(region.primary));
                region.primary = to;
            }
            RegionRequest::Move { from, to } => {
                assert!(region.members.contains(&from) && !region.members.contains(&to), "{request:?} of {region:?}");
                region.undoing = Some(RegionRequest::Move { from: to, to: from });
                region.members.retain(|member| *member != from);
                region.members.push(to);
                if region.primary == from {
                    region.primary = to;
                }
                self.moved_bytes += region.bytes;
            }
        }
    }

    /// Bytes that must move before all servers have equally many.
    fn excess(&self) -> u64 {
        let picture = self.picture();
        let mean = picture.mean(|server| server.bytes);
        picture.servers.values().map(|server| server.bytes.saturating_sub(mean)).sum()
    }

    /// Fulfils requests until there are none.
    fn settle(&mut self) {
        let mut requests = 0;
        loop {
            let plan = plan(self.picture());
            if plan.is_empty() {
                return;
            }
            let named: BTreeSet<RegionId> = plan.iter().map(|(id, _)| *id).collect();
            assert_eq!(named.len(), plan.len(), "one request a region: {plan:?}");
            requests += plan.len();
            assert!(requests < 10 * self.regions.len(), "it does not come to an end");
            plan.into_iter().for_each(|(id, request)| self.fulfil(id, request));
        }
    }
}

fn spread(values: impl Iterator<Item = u64> + Clone) -> (u64, u64) {
    (values.clone().min().unwrap(), values.max().unwrap())
}

#[test]
fn clusters_settle_with_balanced_bytes() {
    for seed in 0..300 {
        let rng = &mut Rng::new(seed);
        let servers = rng.between(2, 9);
        let old = rng.between(1, servers);
        let replicas = rng.between(1, old.min(4));
        // Of each server's share a region is a twentieth at most.
        let regions = servers * rng.between(20, 40);
        let largest = [1, 2, 4][rng.index(3)];
        let mut model = Model::draw(rng, servers, old, replicas, regions, |rng| rng.between(100, 100 * largest) << 20);
        let excess = model.excess();
        model.settle();
        let picture = model.picture();
        let mean = picture.mean(|server| server.bytes);
        let (least, most) = spread(picture.servers.values().map(|server| server.bytes));
        assert!(
            least * 10 >= mean * 9 && most * 10 <= mean * 11,
            "seed {seed}: {least} to {most}, {mean} on the average"
        );
        // Some copies move twice, and some move with their primary roles.
        let most_moved = excess / 2 * 3 + mean;
        assert!(model.moved_bytes <= most_moved, "seed {seed}: {} moved of {excess}", model.moved_bytes);
    }
}

/// The least closeness of so many of the `servers`, beside those that are `taken`.
fn least_closeness(distances: &Distances, servers: &[ServerId], taken: &mut Vec<ServerId>, replicas: usize) -> u64 {
    if taken.len() == replicas {
        return distances.within(taken);
    }
    let mut least = u64::MAX;
    for (index, server) in servers.iter().enumerate() {
        taken.push(*server);
        least = least.min(least_closeness(distances, &servers[index + 1..], taken, replicas));
        taken.pop();
    }
    least
}

#[test]
fn copies_end_as_far_apart_as_the_servers_allow() {
    let (mut not_apart, mut uneven) = (0, 0);
    for seed in 0..300 {
        let rng = &mut Rng::new(seed);
        let servers = rng.between(2, 7);
        let replicas = rng.between(1, servers.min(4));
        let (old, regions) = (rng.between(replicas, servers), servers * rng.between(5, 10));
        let mut model = Model::draw(rng, servers, old, replicas, regions, |_| 100 << 20);
        let (zones, hosts) = (rng.between(1, 4), rng.between(1, 3));
        for server in model.servers.clone() {
            let location = format!("zone={},host={}", rng.below(zones), rng.below(hosts));
            model.locations.insert(server, location.parse().unwrap());
        }
        let distances = model.picture().distances;
        let least = least_closeness(&distances, &model.servers, &mut Vec::new(), replicas as usize);
        let is_least = |region: &Region| distances.within(&region.members) == least;
        not_apart += model.regions.iter().filter(|region| !is_least(region)).count();
        model.settle();
        assert!(model.regions.iter().all(is_least), "seed {seed}: {:?} are not {least:x} apart", model.regions);
        let picture = model.picture();
        let (fewest, most) = spread(picture.servers.values().map(|server| server.bytes));
        uneven += usize::from(fewest * 2 < most);
    }
    assert!(not_apart > 1_000, "copies were too close before: {not_apart}");
    assert!((1..300).contains(&uneven), "a zone of one server has a copy of each region: {uneven}");
}

#[test]
fn no_move_for_the_balance_brings_copies_closer_together() {
    // Zone b has one server, which is fuller than the others and stays so.
    let location = |server: u32| if server == 3 { "zone=b" } else { "zone=a" };
    let placed = |server: u32| (ServerId(server), location(server).parse().unwrap());
    let mut model = Model::draw(&mut Rng::new(1), 4, 4, 2, 40, |_| 100 << 20);
    model.locations = (1..=4).map(placed).collect();
    model.settle();
    assert!(model.regions.iter().all(|region| region.members.contains(&ServerId(3))), "{:?}", model.regions);
}

#[test]
fn fluctuating_figures_move_little() {
    for seed in 0..50 {
        let rng = &mut Rng::new(seed);
        let mut model = Model::draw(rng, 5, 3, 3, 100, |rng| rng.between(100, 200) << 20);
        model.regions.iter_mut().for_each(|region| region.ops = 1_000);
        model.settle();
        let mut requests = 0;
        for _ in 0..100 {
            // The planner has forgotten the last requests by now.
            model.regions.iter_mut().for_each(|region| region.undoing = None);
            let mut wavering = model.clone();
            for region in &mut wavering.regions {
                region.ops = rng.between(900, 1_100);
                region.bytes = region.bytes / 100 * rng.between(98, 102);
            }
            let plan = plan(wavering.picture());
            requests += plan.len();
            plan.into_iter().for_each(|(id, request)| model.fulfil(id, request));
        }
        assert!(requests <= 12, "seed {seed}: {requests} requests for nothing");
    }
}

#[test]
fn primary_roles_are_spread_by_their_number_and_by_their_work() {
    for seed in 0..100 {
        let rng = &mut Rng::new(seed);
        let mut model = Model::draw(rng, 5, 5, 3, 100, |_| 100 << 20);
        let hot = seed % 2 == 1;
        model.regions.iter_mut().for_each(|region| region.ops = if hot && region.id.0 == 1 { 90_000 } else { 100 });
        let before = model.regions[0].primary;
        for region in &mut model.regions {
            // The primary of the hot region is the primary of most other regions too.
            if region.members.contains(&before) {
                region.primary = before;
            }
        }
        model.settle();
        let picture = model.picture();
        let (least, most) = spread(picture.servers.values().map(|server| server.work));
        let primary_roles = |server| model.regions.iter().filter(|region| region.primary == server).count();
        let of_hot = primary_roles(model.regions[0].primary);
        match hot {
            true => assert!(of_hot < 5, "seed {seed}: {of_hot} primary roles with one that has half of all the work"),
            false => assert!(most - least <= 5 * PRIMARY_ROLE, "seed {seed}: {least} to {most}"),
        }
    }
}

#[test]
fn full_servers_and_servers_that_build_copies_get_nothing() {
    let regions: Vec<Region> = (1..=20).map(|id| region(id, vec![ServerId(1)], 100 << 20, 0)).collect();
    let requests = |room: u64, builds: u32| {
        let server = Server { room: UNLIMITED, ..Server::default() };
        let servers = [(ServerId(1), server), (ServerId(2), Server { room, builds, ..server })];
        let mut picture = Picture { servers: servers.into(), regions: regions.clone(), ..Picture::default() };
        picture.weigh();
        plan(picture).len()
    };
    assert_eq!(requests(UNLIMITED, 0), 2);
    assert_eq!(requests(UNLIMITED, 1), 1);
    assert_eq!(requests(UNLIMITED, 2), 0);
    assert_eq!(requests(150 << 20, 0), 1, "there is room for one");
    assert_eq!(requests(50 << 20, 0), 0);
}

#[test]
fn a_full_server_gets_no_primary_role_nor_copy() {
    let (full, other, third) = (ServerId(1), ServerId(2), ServerId(3));
    let regions: Vec<Region> = (1..=9).map(|id| region(id, vec![other, third, full], 100 << 20, 10)).collect();
    let steps = |room: Room| {
        let rooms = [(full, room), (other, Room::Bytes(UNLIMITED)), (third, Room::Bytes(UNLIMITED))];
        let servers = rooms.into_iter().map(|(id, room)| (id, Server::with(room))).collect();
        let mut picture = Picture { servers, regions: regions.clone(), ..Picture::default() };
        picture.weigh();
        plan(picture)
    };
    let gets = |steps: &[Step]| {
        let to_full = [RegionRequest::Primary(full), RegionRequest::Move { from: other, to: full }];
        steps.iter().any(|(_, request)| to_full.contains(request))
    };
    let without = steps(Room::Full);
    assert!(!without.is_empty() && !gets(&without), "{without:?}");
    assert!(gets(&steps(Room::Bytes(UNLIMITED))), "with room it gets roles");
}

#[test]
fn regions_are_split_until_none_is_too_large_and_the_pieces_are_spread() {
    for seed in 0..200 {
        let rng = &mut Rng::new(seed);
        let servers = rng.between(2, 6);
        let replicas = rng.between(1, servers.min(3));
        let (old, regions) = (rng.between(replicas, servers), rng.between(1, 6));
        let mut model = Model::draw(rng, servers, old, replicas, regions, |rng| rng.between(100, 20_000) << 20);
        model.split_bytes = 500 << 20;
        let pieces = model.regions.iter().map(|region| (region.bytes / model.split_bytes) as usize + 1).sum::<usize>();
        let all: u64 = model.regions.iter().map(|region| region.bytes).sum();
        model.settle();
        assert!(model.regions.iter().all(|region| region.bytes <= model.split_bytes), "seed {seed}");
        assert!(
            model.regions.len() < 2 * pieces + 1,
            "seed {seed}: {} regions, {pieces} would do",
            model.regions.len()
        );
        assert_eq!(model.regions.iter().map(|region| region.bytes).sum::<u64>(), all);
        let picture = model.picture();
        let mean = picture.mean(|server| server.bytes);
        let is_near = |server: &Server| server.bytes.abs_diff(mean) <= mean / 10 + model.split_bytes;
        assert!(picture.servers.values().all(is_near), "seed {seed}: {picture:?}");
    }
}

/// One region has all the work. In the end no server has much more than its share, unless no other server could do the work.
#[test]
fn a_hot_region_is_split_until_its_pieces_can_be_spread() {
    for seed in 0..200 {
        let rng = &mut Rng::new(seed);
        let servers = rng.between(1, 6);
        let replicas = rng.between(1, servers.min(3));
        let regions = rng.between(1, 20);
        let mut model = Model::draw(rng, servers, servers, replicas, regions, |_| 100 << 20);
        model.regions.iter_mut().for_each(|region| region.ops = 10);
        model.regions[0].ops = 200_000;
        model.split_ops = 10_000;
        model.settle();
        if servers == 1 {
            assert_eq!(model.splits, 0, "there is no other server");
            continue;
        }
        let most = model.regions.iter().map(|region| region.ops).max().expect("a region");
        assert!(model.splits < 20, "seed {seed}: {} splits", model.splits);
        let picture = model.picture();
        let mean = picture.mean(|server| server.ops);
        let busiest = picture.servers.values().map(|server| server.ops).max().expect("a server");
        // Where every server has a copy of every region, the primary role can go to any server.
        let is_spread = busiest <= mean * 5 / 4 + most;
        assert!(replicas < servers || is_spread, "seed {seed}: {busiest}, {mean} on the average, {most} of one region");
        // Fluctuating figures split the regions no further, even once the last requests are forgotten.
        let before = model.splits;
        for _ in 0..300 {
            let mut wavering = model.clone();
            wavering.regions.iter_mut().for_each(|region| region.ops = region.ops / 100 * rng.between(95, 105));
            plan(wavering.picture()).into_iter().for_each(|(id, request)| model.fulfil(id, request));
        }
        assert!(model.splits <= before + 6, "seed {seed}: {} more splits", model.splits - before);
    }
}

#[test]
fn a_server_has_one_split_at_a_time_and_a_region_that_is_to_be_split_is_not_moved() {
    let regions: Vec<Region> = (1..=6).map(|id| region(id, vec![ServerId(1 + id % 2)], 100 << 20, 0)).collect();
    let servers = [1, 2, 3].map(ServerId).to_vec();
    let split_bytes = 50 << 20;
    let model =
        Model { servers, regions, moved_bytes: 0, split_bytes, split_ops: 0, splits: 0, locations: BTreeMap::new() };
    assert_eq!(
        plan(model.picture()),
        [(RegionId(1), RegionRequest::Split { at: None })],
        "server 3 has no region, and gets smaller ones"
    );
    let mut picture = model.picture();
    picture.servers.get_mut(&ServerId(2)).unwrap().splits = 1;
    assert_eq!(plan(picture.clone()), [(RegionId(2), RegionRequest::Split { at: None })]);
    picture.servers.get_mut(&ServerId(1)).unwrap().splits = 1;
    assert_eq!(plan(picture), []);
}

/// Regions 1 to 5 of one table, in key order, with server 1 as their primary. All come from splits, have 100 bytes of key-value
/// pairs and have been quiet, unless `change` alters them. Returns the merges that are requested.
fn merged(table: TableOptions, change: impl Fn(u32, &mut GroupConfig, &mut Figures)) -> Vec<Step> {
    let splits: Vec<Bytes> = ["b", "c", "d", "e"].map(Bytes::from).to_vec();
    let mut view = synced(&table, &splits);
    let member = member(1, 1);
    register(&mut view, member, None);
    let mut figures = BTreeMap::new();
    for id in 1..=5 {
        let mut config = view.region(RegionId(id)).unwrap().clone();
        (config.primary, config.inherited_below) = (Some(member), SegmentId(77));
        let mut known =
            Figures { may_split: true, pair_bytes: 100, is_quiet: true, size: 1 << 20, ..Figures::default() };
        change(id, &mut config, &mut known);
        figures.insert(RegionId(id), known);
        configure(&mut view, &config);
    }
    let mut picture = Picture::new(&view, &figures, |_| Room::Bytes(UNLIMITED), |_| true);
    picture.look_for_pairs(&view, &figures, 1_000);
    plan(picture)
}

fn table() -> TableOptions {
    TableOptions { replicas: 1, min_in_sync: 1, split_bytes: 8 << 20, ..TableOptions::default() }
}

fn into(region: u32, into: u32) -> Vec<Step> {
    vec![(RegionId(region), RegionRequest::Merge { into: RegionId(into) })]
}

#[test]
fn the_smaller_of_two_small_quiet_neighbours_is_merged_into_the_other_one_at_a_time() {
    assert_eq!(merged(table(), |_, _, _| ()), into(1, 2));
    assert_eq!(merged(table(), |id, _, known| known.pair_bytes = [600, 400, 90, 300, 20][id as usize - 1]), into(5, 4));
    assert_eq!(
        merged(table(), |id, _, known| known.pair_bytes = [600, 400, 90, 700, 900][id as usize - 1]),
        into(3, 2)
    );
    // A merge is under way, or the table is never split, and so never merged.
    let planned = |id, config: &mut GroupConfig, _: &mut Figures| {
        config.desired.plan = (id == 4).then_some(leeward_format::cluster::Plan::Merge { into: RegionId(3) });
    };
    assert_eq!(merged(table(), planned), []);
    assert_eq!(merged(TableOptions { split_bytes: 0, ..table() }, |_, _, _| ()), []);
}

#[test]
fn busy_large_or_never_split_regions_are_not_merged() {
    let quiet = |id: u32, known: &mut Figures| known.is_quiet = id != 2 && id != 4;
    assert_eq!(merged(table(), |id, _, known| quiet(id, known)), [], "each region has a busy neighbour");
    assert_eq!(merged(table(), |_, _, known| known.pair_bytes = 501), [], "there may be more than can be copied");
    assert_eq!(
        merged(table(), |_, _, known| known.size = (1 << 20) + 1),
        [],
        "together they exceed a quarter of the bound"
    );
    assert_eq!(
        merged(table(), |_, config, _| config.inherited_below = SegmentId(1)),
        [],
        "the table was made with these regions"
    );
    let whole = |id: u32| if id == 3 { SegmentId(5) } else { SegmentId(0) };
    assert_eq!(
        merged(table(), |id, config, _| config.inherited_below = whole(id)),
        [],
        "both regions must come from splits"
    );
    assert_eq!(merged(table(), |_, _, known| known.is_untrimmed = true), [], "its bytes will change");
    assert_eq!(merged(table(), |_, _, known| known.may_split = false), [], "it was split just now");
}
