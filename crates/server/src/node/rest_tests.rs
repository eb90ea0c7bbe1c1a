//! Which regions rest, and until when.

use super::*;

const ALL: [RegionId; 4] = [RegionId(1), RegionId(2), RegionId(5), RegionId(9)];

fn restless(rest: &Rest) -> Vec<u32> {
    rest.restless(ALL.iter()).map(|region| region.0).collect()
}

#[test]
fn regions_that_are_not_known_are_looked_at() {
    let mut rest = Rest::default();
    assert_eq!(restless(&rest), [1, 2, 5, 9]);
    // Of one that is no more nothing is left to be looked at.
    for region in [2, 3, 9] {
        rest.begin(Nanos::ZERO, RegionId(region));
    }
    assert_eq!(restless(&rest), [1, 5]);
    assert!(rest.wake(RegionId(2)) && !rest.wake(RegionId(2)));
    assert_eq!(restless(&rest), [1, 2, 5]);
}

#[test]
fn a_rest_ends_when_something_happens_or_after_a_while() {
    let mut rest = Rest::default();
    ALL.iter().for_each(|region| rest.begin(Nanos::ZERO, *region));
    assert!(rest.end(LONGEST_REST).is_empty());
    let first = LONGEST_REST + APART;
    assert_eq!(rest.end(first), [RegionId(1)], "not all at once");
    assert_eq!(restless(&rest), [1]);
    assert!(rest.overdue.contains(&RegionId(1)));
    rest.wake(RegionId(1));
    assert!(rest.overdue.is_empty(), "something has happened to it in the same turn");
    rest.wake(RegionId(9));
    assert_eq!(rest.end(LONGEST_REST + LONGEST_REST), [RegionId(2), RegionId(5)]);
    assert_eq!(restless(&rest), [1, 2, 5, 9]);
}
