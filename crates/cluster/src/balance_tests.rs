//! The planner on clusters that are drawn at random, whose wishes come about as they are made.

use super::*;
use leeward_platform::Rng;
use std::collections::BTreeSet;

const UNLIMITED: u64 = u64::MAX / 4;

/// What comes of wishes.
#[derive(Clone, Debug)]
struct Model {
    servers: Vec<ServerId>,
    regions: Vec<Region>,
    moved_bytes: u64,
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
            let work = if rng.one_in(20) { ops * 20 } else { rng.below(ops + 1) };
            let (primary, bytes) = (members[0], bytes(rng));
            Region { id: RegionId(id), primary, members, bytes, work, is_free: true, undoing: None }
        });
        Model { regions: regions.collect(), servers, moved_bytes: 0 }
    }

    fn picture(&self) -> Picture {
        let server = Server { room: UNLIMITED, ..Server::default() };
        let servers = self.servers.iter().map(|id| (*id, server)).collect();
        let mut picture = Picture { servers, regions: self.regions.clone(), hand_overs: 0 };
        picture.weigh();
        picture
    }

    fn fulfil(&mut self, id: RegionId, wish: Shift) {
        let region = self.regions.iter_mut().find(|region| region.id == id).unwrap();
        assert_ne!(region.undoing, Some(wish), "it takes back the last wish of {region:?}");
        match wish {
            Shift::Primary(heir) => {
                assert!(region.members.contains(&heir), "{wish:?} of {region:?}");
                assert_ne!(region.primary, heir);
                region.undoing = Some(Shift::Primary(region.primary));
                region.primary = heir;
            }
            Shift::Move { from, to } => {
                assert!(region.members.contains(&from) && !region.members.contains(&to), "{wish:?} of {region:?}");
                region.undoing = Some(Shift::Move { from: to, to: from });
                region.members.retain(|member| *member != from);
                region.members.push(to);
                if region.primary == from {
                    region.primary = to;
                }
                self.moved_bytes += region.bytes;
            }
        }
    }

    /// Bytes that must go elsewhere before all servers have equally many.
    fn excess(&self) -> u64 {
        let picture = self.picture();
        let mean = picture.mean(|server| server.bytes);
        picture.servers.values().map(|server| server.bytes.saturating_sub(mean)).sum()
    }

    /// Lets wishes come about until there are none.
    fn settle(&mut self) {
        let mut wishes = 0;
        loop {
            let plan = plan(self.picture());
            if plan.is_empty() {
                return;
            }
            let named: BTreeSet<RegionId> = plan.iter().map(|(id, _)| *id).collect();
            assert_eq!(named.len(), plan.len(), "one wish a region: {plan:?}");
            wishes += plan.len();
            assert!(wishes < 10 * self.regions.len(), "it does not come to an end");
            plan.into_iter().for_each(|(id, wish)| self.fulfil(id, wish));
        }
    }
}

fn spread(values: impl Iterator<Item = u64> + Clone) -> (u64, u64) {
    (values.clone().min().unwrap(), values.max().unwrap())
}

#[test]
fn clusters_come_to_rest_with_bytes_that_are_even() {
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
        // Some go twice, and some with their offices.
        let most_moved = excess / 2 * 3 + mean;
        assert!(model.moved_bytes <= most_moved, "seed {seed}: {} moved of {excess}", model.moved_bytes);
    }
}

#[test]
fn figures_that_waver_move_little() {
    for seed in 0..50 {
        let rng = &mut Rng::new(seed);
        let mut model = Model::draw(rng, 5, 3, 3, 100, |rng| rng.between(100, 200) << 20);
        model.regions.iter_mut().for_each(|region| region.work = 1_000);
        model.settle();
        let mut wishes = 0;
        for _ in 0..100 {
            // What was wished of them last is forgotten by now.
            model.regions.iter_mut().for_each(|region| region.undoing = None);
            let mut wavering = model.clone();
            for region in &mut wavering.regions {
                region.work = rng.between(900, 1_100);
                region.bytes = region.bytes / 100 * rng.between(98, 102);
            }
            let plan = plan(wavering.picture());
            wishes += plan.len();
            plan.into_iter().for_each(|(id, wish)| model.fulfil(id, wish));
        }
        assert!(wishes <= 12, "seed {seed}: {wishes} wishes for nothing");
    }
}

#[test]
fn offices_are_spread_by_their_number_and_by_their_work() {
    for seed in 0..100 {
        let rng = &mut Rng::new(seed);
        let mut model = Model::draw(rng, 5, 5, 3, 100, |_| 100 << 20);
        let hot = seed % 2 == 1;
        model.regions.iter_mut().for_each(|region| region.work = if hot && region.id.0 == 1 { 90_000 } else { 100 });
        let before = model.regions[0].primary;
        for region in &mut model.regions {
            // Where the hot one is, most of the others are.
            if region.members.contains(&before) {
                region.primary = before;
            }
        }
        model.settle();
        let picture = model.picture();
        let (least, most) = spread(picture.servers.values().map(|server| server.work));
        let offices = |server| model.regions.iter().filter(|region| region.primary == server).count();
        let of_hot = offices(model.regions[0].primary);
        match hot {
            true => assert!(of_hot < 5, "seed {seed}: {of_hot} offices beside one that weighs as much as half of all"),
            false => assert!(most - least <= 5 * OFFICE, "seed {seed}: {least} to {most}"),
        }
    }
}

#[test]
fn full_servers_and_those_that_build_get_nothing() {
    let region = |id, primary: u32| Region {
        id: RegionId(id),
        primary: ServerId(primary),
        members: vec![ServerId(primary)],
        bytes: 100 << 20,
        work: 0,
        is_free: true,
        undoing: None,
    };
    let regions: Vec<Region> = (1..=20).map(|id| region(id, 1)).collect();
    let wishes = |room: u64, builds: u32| {
        let server = Server { room: UNLIMITED, ..Server::default() };
        let servers = [(ServerId(1), server), (ServerId(2), Server { room, builds, ..server })];
        let mut picture = Picture { servers: servers.into(), regions: regions.clone(), hand_overs: 0 };
        picture.weigh();
        plan(picture).len()
    };
    assert_eq!(wishes(UNLIMITED, 0), 2);
    assert_eq!(wishes(UNLIMITED, 1), 1);
    assert_eq!(wishes(UNLIMITED, 2), 0);
    assert_eq!(wishes(150 << 20, 0), 1, "there is room for one");
    assert_eq!(wishes(50 << 20, 0), 0);
}
