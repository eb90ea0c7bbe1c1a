//! A copy of a disk is removed only after other members have taken over what was written on it. Tests; any thread.

use super::*;
use crate::world::outage_tests::{KEYS, ask, quiet};
use leeward_format::op::{Condition, Lifetime, Op, OpResult};

fn put(world: &mut World, key: &'static str) {
    let (when, lifetime) = (Condition::Always, Lifetime::Forever);
    ask(world, Op::Put { key: key.into(), value: key.into(), when, want_old: false, lifetime });
}

/// Otherwise the death of the others would leave a region without any disk that it can continue with.
#[test]
fn a_copy_that_a_region_counts_on_is_removed_only_after_others_have_taken_over() {
    let is_soon = |interval: Nanos| interval < Nanos::from_secs(1);
    let mut world = quiet(|scenario| is_soon(scenario.timing(0, 0).replication.floor_interval));
    let node = node_of(world.configs()[0].primary.expect("it is served").server);
    world.machines[node].make_copy(1);
    // Its floor rises beyond the copy.
    for _ in 0..20 {
        KEYS.into_iter().for_each(|key| put(&mut world, key));
        world.advance(world.now + Nanos::from_millis(200));
    }
    let look_at = world.now + Nanos::from_secs(8);
    assert!(world.restore_copy(node, look_at), "the copy is known to be older");
    let (mut was_counted_on, mut is_counted_on) = (false, false);
    while world.machines[node].on_copy.is_some() {
        is_counted_on = world.counts_on_copy(node);
        was_counted_on |= is_counted_on;
        assert!(world.turn(look_at + Nanos::from_secs(20)), "the disk is put back");
    }
    assert!(was_counted_on && !is_counted_on);
    assert!(world.advance_until(world.now + Nanos::from_secs(20), World::is_well));
    for key in KEYS {
        assert_eq!(ask(&mut world, Op::Get { key: key.into() }), OpResult::Value(Some(key.into())));
    }
}
