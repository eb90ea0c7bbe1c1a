//! Which regions are idle, and until when.

use super::*;

const ALL: [RegionId; 4] = [RegionId(1), RegionId(2), RegionId(5), RegionId(9)];

fn active(idle: &IdleRegions) -> Vec<u32> {
    idle.active(ALL.iter()).map(|region| region.0).collect()
}

#[test]
fn regions_that_are_not_known_are_looked_at() {
    let mut idle = IdleRegions::new(SchedulingGap::new(Nanos::ZERO));
    assert_eq!(active(&idle), [1, 2, 5, 9]);
    // Region 3 has ended: it is not looked at.
    for region in [2, 3, 9] {
        idle.begin(Nanos::ZERO, RegionId(region));
    }
    assert_eq!(active(&idle), [1, 5]);
    assert!(idle.wake(RegionId(2)) && !idle.wake(RegionId(2)));
    assert_eq!(active(&idle), [1, 2, 5]);
}

#[test]
fn a_region_is_idle_until_an_event_comes_or_for_a_while() {
    let mut idle = IdleRegions::new(SchedulingGap::new(Nanos::ZERO));
    ALL.iter().for_each(|region| idle.begin(Nanos::ZERO, *region));
    assert!(idle.end(LONGEST_IDLE).is_empty());
    let first = LONGEST_IDLE + STAGGER;
    assert_eq!(idle.end(first), [RegionId(1)], "not all at once");
    assert_eq!(active(&idle), [1]);
    assert!(idle.overdue.contains(&RegionId(1)));
    idle.wake(RegionId(1));
    assert!(idle.overdue.is_empty(), "it had an event in the same turn");
    idle.wake(RegionId(9));
    assert_eq!(idle.end(LONGEST_IDLE + LONGEST_IDLE), [RegionId(2), RegionId(5)]);
    assert_eq!(active(&idle), [1, 2, 5, 9]);
}

/// Where room is short, there is more to compact in each region: seed 750 had one that nothing woke.
#[test]
fn that_room_becomes_scarcer_is_an_event() {
    use Scarcity::{Missed, None, Short};
    let mut idle = IdleRegions::new(SchedulingGap::new(Nanos::ZERO));
    let told = [None, Missed, Missed, Short, Missed, Short, None, Short].map(|now| idle.becomes_scarcer(now));
    assert_eq!(told, [false, true, false, true, false, true, false, true]);
}
