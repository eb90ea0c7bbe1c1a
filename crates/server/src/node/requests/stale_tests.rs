//! By which clock a primary may publish a safe LSN.

use super::*;

#[test]
fn a_clock_reading_counts_only_if_it_was_heard_before_the_lease_was_checked() {
    let at = Nanos::from_millis;
    let mut clock = ClockHeard::default();
    assert_eq!(clock.before(at(9)), None);
    clock.hear(100, at(10));
    assert_eq!([9, 10, 11].map(|now| clock.before(at(now))), [None, None, Some(100)]);
    clock.hear(200, at(20));
    assert_eq!([15, 20, 21].map(|now| clock.before(at(now))), [Some(100), Some(100), Some(200)]);
}
