//! The coordinator goes down just after a region's primary has proposed a change. The region still answers reads.

use super::*;
use leeward_format::cluster::RegionRequest;
use leeward_format::op::{Condition, Lifetime};

pub(super) fn ask(world: &mut World, op: Op) -> OpResult {
    world.ask(0, vec![op]).expect("it is answered").remove(0)
}

pub(super) const KEYS: [&str; 2] = ["a", "x"];

/// A world of three nodes, each with a replica of both regions. Nothing else happens in it.
pub(super) fn quiet(is_suitable: impl Fn(&Scenario) -> bool) -> World {
    quiet_of(2, is_suitable)
}

/// The same with so many regions.
pub(super) fn quiet_of(regions: usize, is_suitable: impl Fn(&Scenario) -> bool) -> World {
    let is_plain = |world: &World| {
        let Scenario { nodes, table, splits, .. } = &world.scenario;
        let is_whole = *nodes == 3 && table.replicas == 3 && table.quorum.is_none();
        let is_ranged = splits.len() + 1 == regions && !table.partition.is_hash();
        is_whole && is_ranged && world.scenario.balance().is_none() && is_suitable(&world.scenario)
    };
    let mut world = (1..).map(World::new).find(is_plain).expect("some seed has such a world");
    world.is_loaded = false;
    world.set_distances();
    world.nodes().for_each(|node| world.start(node));
    world.push(world.now, Event::CoordinatorTick);
    assert!(world.advance_until(Nanos::from_secs(20), World::is_well));
    for key in KEYS {
        let (key, value, when) = (key.into(), key.into(), Condition::Always);
        let put = Op::Put { key, value, when, want_old: false, lifetime: Lifetime::Forever };
        ask(&mut world, put);
    }
    world
}

/// The operator makes a request. The coordinator goes down when the primary proposes it.
fn lose_coordinator_at(world: &mut World, request: Op) {
    let token = world.question(0, request);
    let end = world.now + Nanos::from_secs(20);
    let is_undecided = |world: &World| world.running().any(|node| node.undecided().next().is_some());
    while !is_undecided(world) {
        assert!(world.turn(end), "nothing is proposed");
    }
    world.questions.remove(&token);
    world.host.down = true;
}

fn reads_are_answered(request: impl Fn(&World) -> Op, is_done: impl Fn(&World) -> bool) {
    let mut world = quiet(|_| true);
    let request = request(&world);
    lose_coordinator_at(&mut world, request);
    let begun = world.now;
    for key in KEYS.into_iter().chain(KEYS) {
        let read = ask(&mut world, Op::Get { key: key.into() });
        assert_eq!(read, OpResult::Value(Some(key.into())));
    }
    assert!(world.now - begun < Nanos::from_secs(2), "{:?}", world.now - begun);
    world.host.down = false;
    let end = world.now + Nanos::from_secs(40);
    assert!(world.advance_until(end, |world| is_done(world) && world.is_well()), "it comes about in the end");
    for key in KEYS {
        assert_eq!(ask(&mut world, Op::Get { key: key.into() }), OpResult::Value(Some(key.into())));
    }
}

fn regions(world: &World) -> Vec<RegionId> {
    world.configs().iter().map(|config| config.region).collect()
}

#[test]
fn reads_are_answered_while_a_hand_over_is_not_answered() {
    let target = |world: &World| world.configs()[0].backups[0].server;
    let chosen = std::cell::Cell::new(ServerId(0));
    let request = |world: &World| {
        chosen.set(target(world));
        Op::RequestRegion { region: regions(world)[0], request: RegionRequest::Primary(chosen.get()) }
    };
    let is_done = |world: &World| world.configs()[0].primary.is_some_and(|primary| primary.server == chosen.get());
    reads_are_answered(request, is_done);
}

#[test]
fn reads_are_answered_while_a_split_is_not_answered() {
    let request = |world: &World| Op::RequestRegion {
        region: regions(world)[0],
        request: RegionRequest::Split { at: Some("a".into()) },
    };
    reads_are_answered(request, |world| regions(world).len() == 3);
}

#[test]
fn reads_are_answered_while_a_merge_is_not_answered() {
    let request = |world: &World| {
        let [from, into] = regions(world)[..] else { panic!("there are two regions") };
        Op::RequestRegion { region: from, request: RegionRequest::Merge { into } }
    };
    reads_are_answered(request, |world| regions(world).len() == 1);
}
