//! What a backup makes of what it is told, and which clock a primary may vouch by.

use super::*;

fn office(term: u32, session: u64) -> Office {
    Office { primary: ServerId(1), term: Epoch(term), session }
}

fn attestation(heard: u64, epoch: u32, lsn: u64) -> Attestation {
    Attestation { heard: Nanos::from_millis(heard), epoch: Epoch(epoch), lsn: Lsn(lsn) }
}

#[test]
fn the_newest_counts_of_which_the_copy_has_all() {
    let mut known = Attestations::default();
    let mine = office(4, 1);
    for (heard, lsn) in [(10, 100), (20, 100), (30, 150), (40, 200)] {
        known.hear(mine, attestation(heard, 5, lsn));
    }
    let newest = |applied| known.newest(mine, Epoch(5), Lsn(applied)).map(|known| known.heard.as_millis());
    assert_eq!([99, 100, 149, 199, 200, 300].map(newest), [None, Some(20), Some(20), Some(30), Some(40), Some(40)]);
}

#[test]
fn it_counts_for_the_keys_of_its_configuration_and_in_its_session() {
    let mut known = Attestations::default();
    let mine = office(4, 1);
    known.hear(mine, attestation(10, 5, 1));
    known.hear(mine, attestation(20, 6, 1));
    let newest = |known: &Attestations, office, epoch| known.newest(office, Epoch(epoch), Lsn(9)).is_some();
    assert!(newest(&known, mine, 6) && !newest(&known, mine, 7));
    assert!(!newest(&known, mine, 5), "what it is about may be another region's by now");
    for other in [office(4, 2), office(5, 1)] {
        assert!(!newest(&known, other, 6));
        known.hear(other, attestation(30, 6, 1));
        assert!(newest(&known, other, 6) && !newest(&known, mine, 6) && !newest(&known, other, 5));
    }
}

#[test]
fn few_are_kept() {
    let mut known = Attestations::default();
    let mine = office(4, 1);
    (1..=100).for_each(|n| known.hear(mine, attestation(n, 5, n)));
    assert_eq!(known.known.len(), MOST_ATTESTED);
    assert_eq!(known.newest(mine, Epoch(5), Lsn(92)), None);
    assert_eq!(known.newest(mine, Epoch(5), Lsn(94)), Some(attestation(94, 5, 94)));
}

#[test]
fn a_clock_is_vouched_by_only_if_it_was_heard_before_the_lease_was_looked_at() {
    let at = Nanos::from_millis;
    let mut clock = ClockHeard::default();
    assert_eq!(clock.before(at(9)), None);
    clock.hear(100, at(10));
    assert_eq!([9, 10, 11].map(|now| clock.before(at(now))), [None, None, Some(100)]);
    clock.hear(200, at(20));
    assert_eq!([15, 20, 21].map(|now| clock.before(at(now))), [Some(100), Some(100), Some(200)]);
}

#[test]
fn ages_are_rounded_up_and_hold_by_a_clock_that_is_slow() {
    assert_eq!(age_ms(Nanos(5_000_001), Nanos(5_000_000)), 1);
    assert_eq!(age_ms(Nanos(6_700_000), Nanos(5_000_000)), 2);
    assert_eq!(age_ms(Nanos(7_000_001), Nanos(5_000_000)), 3);
    // 600 ms by a clock that has counted 540.
    let slow = age_ms(Nanos::from_millis(540), Nanos::ZERO);
    assert!((600..610).contains(&slow), "{slow}");
}
