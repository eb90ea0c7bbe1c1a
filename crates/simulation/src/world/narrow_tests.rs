//! Leases beside the rebuild of a member over a narrow network: they do not wait behind its segments. Tests; any thread.

use super::*;
use crate::world::outage_tests::{ask, quiet_of};
use leeward_format::op::{Condition, Lifetime, Op};
use leeward_format::packed::Codec;
use leeward_platform::planted::{Bug, plant};

/// Pairs of all segments that the member lacks, and the bytes of a value: together some 3 s of a link of 1 Gbit/s, by the
/// scale of the simulation.
const PAIRS: u32 = 800;
const VALUE_BYTES: usize = 7_000;

/// Keys of each of the six regions begin with one of these.
const FIRST: [&str; 6] = ["a", "i", "l", "n", "s", "x"];

fn put(index: u32) -> Op {
    let first = FIRST[index as usize % FIRST.len()];
    let (key, value) = (format!("{first}{index:05}"), vec![index as u8; VALUE_BYTES]);
    let (when, lifetime) = (Condition::Always, Lifetime::Forever);
    Op::Put { key: key.into(), value: value.into(), when, want_old: false, lifetime }
}

/// Round trips of lease messages while a member is rebuilt from nothing and clients write, shortest first; and whether
/// another member left its group meanwhile.
fn rebuild_beside_writes() -> (Vec<Nanos>, bool) {
    let is_narrow = |scenario: &Scenario| {
        scenario.network.bytes_per_second == 125_000_000 / 64
            && scenario.far().is_none()
            && scenario.timing(0, 0).replication == scenario.timing(1, 7).replication
            && scenario.direct_readers == 0
            && scenario.table.wire == Codec::None
    };
    let mut world = quiet_of(FIRST.len(), is_narrow);
    // The second process of each node catches learners up as fast as it can.
    world.nodes().for_each(|node| world.crash(node, false));
    world.nodes().for_each(|node| world.start(node));
    assert!(world.advance_until(world.now + Nanos::from_secs(20), World::is_well));
    for first in (0..PAIRS).step_by(20) {
        world.ask(0, (first..first + 20).map(put).collect()).expect("they are answered");
    }
    let primary = world.configs()[0].primary.expect("it is served").server;
    let node = world.nodes().find(|node| server_id(*node) != primary).expect("there are three");
    let others: Vec<ServerId> = world.nodes().map(server_id).filter(|server| *server != server_id(node)).collect();
    // Removed, with its disk. Then it comes back with an empty one.
    world.crash(node, false);
    world.machines[node].replace_disk(&mut world.rng);
    let is_removed = |world: &World| world.configs().iter().all(|config| config.in_sync().count() == 2);
    assert!(world.advance_until(world.now + Nanos::from_secs(20), is_removed));
    world.start(node);
    let received = |world: &World| {
        let node = world.machines[node].node.as_ref().expect("it runs");
        node.status().network.map_or(0, |network| network.bytes_received)
    };
    let before = received(&world);
    world.lease_round_trips = Some(Vec::new());
    let (begun, mut index, mut has_left) = (world.now, 0, false);
    while !world.is_well() {
        assert!(world.now - begun < Nanos::from_secs(60), "the member comes back");
        if world.questions.values().all(Option::is_some) {
            world.questions.clear();
            world.question(0, put(index % PAIRS));
            index += 1;
        }
        world.turn(world.now + Nanos::from_millis(10));
        let is_member =
            |config: &GroupConfig| others.iter().all(|one| config.in_sync().any(|member| member.server == *one));
        has_left |= !world.configs().iter().all(is_member);
    }
    // How long that takes depends on how many of the regions each of the two others serves.
    let all = u64::from(PAIRS) * VALUE_BYTES as u64;
    assert!(
        received(&world) - before >= all,
        "the member gets all pairs over the links: {}",
        received(&world) - before
    );
    assert!(index > 20, "clients write meanwhile");
    ask(&mut world, put(0));
    let mut round_trips = world.lease_round_trips.take().expect("they were noted");
    round_trips.sort_unstable();
    (round_trips, has_left)
}

fn p999(sorted: &[Nanos]) -> Nanos {
    sorted[(sorted.len() - 1) * 999 / 1000]
}

#[test]
fn leases_do_not_wait_behind_the_rebuild_of_a_member() {
    let (round_trips, has_left) = rebuild_beside_writes();
    assert!(round_trips.len() > 30, "{}", round_trips.len());
    assert!(p999(&round_trips) < Nanos::from_millis(50), "{:?}", p999(&round_trips));
    assert!(!has_left, "a healthy member was removed");
}

/// What the test above would find if they did.
#[test]
fn leases_behind_the_rebuild_of_a_member_are_found() {
    plant(Some(Bug::LeaseBehindBulk));
    let (round_trips, _) = rebuild_beside_writes();
    plant(None);
    assert!(p999(&round_trips) > Nanos::from_millis(50), "{:?}", p999(&round_trips));
}
