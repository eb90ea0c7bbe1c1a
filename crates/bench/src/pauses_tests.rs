//! Pauses computed from the times of answers.

use super::*;

#[test]
fn pauses_are_ranked_and_judged() {
    let pauses: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
    let over = Pauses::of(PauseKind::HandOver, &pauses, 7);
    assert_eq!((over.median_ms, over.p99_ms, over.worst_ms), (50.0, 99.0, 100.0));
    assert!(!over.is_met());
    let met =
        Pauses::of(PauseKind::HandOver, &[[Duration::from_millis(5); 99].to_vec(), vec![PAUSE_WITHIN]].concat(), 7);
    assert!(met.is_met(), "one of a hundred may be longer");
    let one = Pauses::of(PauseKind::DeadBackup, &[Duration::from_millis(501)], 0);
    assert!(!one.is_met());
    let text = table(&[over, one]);
    assert!(text.contains("| hand-over | 100 | 50.0 | 99.0 | 100.0 | 50 | MISSED | 7 |"), "{text}");
}

#[test]
fn the_longest_gap_is_around_the_event() {
    let probe = Probe::default();
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    *probe.answers.lock() = vec![at(0), at(500), at(510), at(540), at(545)];
    assert_eq!(probe.longest_gap(at(505)), Some(Duration::from_millis(30)));
    assert_eq!(probe.longest_gap(at(10)), Some(Duration::from_millis(500)), "it had begun before");
    assert_eq!(probe.longest_gap(at(600)), None);
    assert_eq!(probe.first_after(at(510)), Some(at(540)));
    assert_eq!(probe.first_after(at(545)), None);
}
