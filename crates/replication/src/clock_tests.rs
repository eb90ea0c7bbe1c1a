//! Stops of the boot clock are told from clocks that run a little fast or slow.

use super::*;

const LEASE: Nanos = Nanos::from_millis(600);
const WALL: u64 = 1_700_000_000_000;

/// A watch that has looked every 10 ms for three seconds, at a wall clock that runs at `percent` of the boot clock's
/// speed.
fn watched(percent: u64) -> ClockWatch {
    let mut watch = ClockWatch::default();
    for ms in (0..=3_000).step_by(10) {
        assert_eq!(
            watch.look(Nanos::from_millis(ms), WALL + ms * percent / 100, LEASE),
            None,
            "{percent} % at {ms} ms"
        );
    }
    watch
}

#[test]
fn a_clock_that_is_slewed_was_not_stopped() {
    for percent in [90, 92, 100, 108, 110] {
        watched(percent);
    }
}

#[test]
fn a_stop_is_noticed_once_the_wall_clock_tells_and_once_only() {
    let mut watch = watched(100);
    // The machine was stopped for five seconds, and nothing shows it for 200 ms.
    let [early, told, later] = [3_010, 3_200, 3_210].map(Nanos::from_millis);
    assert_eq!(watch.look(early, WALL + 3_010, LEASE), None);
    assert_eq!(watch.look(told, WALL + 8_200, LEASE), Some(5_000));
    assert_eq!(watch.look(later, WALL + 8_210, LEASE), None);
}

#[test]
fn a_wall_clock_that_is_set_back_counts_too() {
    assert_eq!(watched(100).look(Nanos::from_millis(3_010), WALL + 3_010 - 90, LEASE), Some(-90));
    assert_eq!(watched(100).look(Nanos::from_millis(3_010), 0, LEASE), Some(-((WALL + 3_010) as i64)));
}

#[test]
fn short_stops_add_up_within_a_lease() {
    let mut watch = watched(100);
    let apart =
        (1..=10).find_map(|stop| watch.look(Nanos::from_millis(3_000 + 40 * stop), WALL + 3_000 + 60 * stop, LEASE));
    assert_eq!(apart, Some(80), "beyond an eighth of the lease");
}

#[test]
fn a_process_that_was_stopped_has_clocks_that_agree() {
    // SIGSTOP: the boot clock went on, and the wall clock with it, a little faster.
    assert_eq!(watched(100).look(Nanos::from_secs(63), WALL + 66_000, LEASE), None);
}

#[test]
fn few_notes_are_kept() {
    assert!(watched(100).noted.len() as u64 <= NOTES + 2);
}

#[test]
fn an_age_holds_by_a_clock_that_is_slow() {
    let watch = watched(100);
    let age = |elapsed| {
        let earlier = watch.reading(Nanos::from_millis(2_900)).expect("it is in the last lease");
        watch.age_ms(earlier, Nanos::from_millis(2_900) + Nanos::from_millis(elapsed))
    };
    // The wall clock may be a millisecond later than it says.
    assert_eq!([0, 1, 8].map(age), [1, 3, 10]);
    // 600 ms by a clock that has counted 540.
    assert!((600..610).contains(&age(540)), "{}", age(540));
}

#[test]
fn an_age_counts_a_stop_that_is_too_short_for_leases() {
    let mut watch = watched(100);
    let [heard, early, told] = [3_010, 3_020, 3_030].map(Nanos::from_millis);
    let heard = watch.reading(heard).expect("it is in the last lease");
    assert_eq!(watch.look(early, WALL + 3_020, LEASE), None);
    let before = watch.age_ms(heard, early);
    // Stopped for 60 ms.
    assert_eq!(watch.look(told, WALL + 3_090, LEASE), None);
    let after = watch.age_ms(heard, told);
    assert!((80..90).contains(&after) && after >= before + 70, "{before} {after}");
    // A wall clock that is set back makes no answer younger.
    assert_eq!(watch.look(told, WALL + 2_980, LEASE), None);
    assert!(watch.age_ms(heard, told) >= 20);
}

#[test]
fn an_instant_that_is_long_ago_has_no_age() {
    assert_eq!(watched(100).reading(Nanos::from_millis(2_000)), None);
    let mut watch = watched(100);
    assert!(watch.look(Nanos::from_millis(3_010), WALL + 8_010, LEASE).is_some());
    assert_eq!(watch.reading(Nanos::from_millis(3_000)), None, "it was before a stop");
}
