//! How a backup uses the safe LSNs that it hears.

use super::*;
use leeward_replication::clock::ClockWatch;

fn session(term: u32, session: u64) -> PrimarySession {
    PrimarySession { primary: ServerId(1), term: Epoch(term), session }
}

fn safe_lsn_record(heard: u64, epoch: u32, lsn: u64) -> SafeLsnRecord {
    let mut watch = ClockWatch::default();
    assert_eq!(watch.look(Nanos::ZERO, 0, Nanos::from_secs(1)), None);
    let heard = watch.reading(Nanos::from_millis(heard)).expect("later than the look");
    SafeLsnRecord { heard, epoch: Epoch(epoch), lsn: Lsn(lsn) }
}

#[test]
fn the_newest_safe_lsn_whose_records_the_copy_has_counts() {
    let mut known = SafeLsns::default();
    let mine = session(4, 1);
    for (heard, lsn) in [(10, 100), (20, 100), (30, 150), (40, 200)] {
        known.hear(mine, safe_lsn_record(heard, 5, lsn));
    }
    let newest = |applied| known.newest(mine, Epoch(5), Lsn(applied)).map(|known| known.heard.boot().as_millis());
    assert_eq!([99, 100, 149, 199, 200, 300].map(newest), [None, Some(20), Some(20), Some(30), Some(40), Some(40)]);
}

#[test]
fn a_safe_lsn_counts_for_the_keys_of_its_configuration_and_in_its_session() {
    let mut known = SafeLsns::default();
    let mine = session(4, 1);
    known.hear(mine, safe_lsn_record(10, 5, 1));
    known.hear(mine, safe_lsn_record(20, 6, 1));
    let newest = |known: &SafeLsns, session, epoch| known.newest(session, Epoch(epoch), Lsn(9)).is_some();
    assert!(newest(&known, mine, 6) && !newest(&known, mine, 7));
    assert!(!newest(&known, mine, 5), "its keys may be another region's by now");
    for other in [session(4, 2), session(5, 1)] {
        assert!(!newest(&known, other, 6));
        known.hear(other, safe_lsn_record(30, 6, 1));
        assert!(newest(&known, other, 6) && !newest(&known, mine, 6) && !newest(&known, other, 5));
    }
}

#[test]
fn few_safe_lsns_are_kept() {
    let mut known = SafeLsns::default();
    let mine = session(4, 1);
    (1..=100).for_each(|n| known.hear(mine, safe_lsn_record(n, 5, n)));
    assert_eq!(known.known.len(), MOST_SAFE_LSNS);
    assert_eq!(known.newest(mine, Epoch(5), Lsn(92)), None);
    assert_eq!(known.newest(mine, Epoch(5), Lsn(94)), Some(safe_lsn_record(94, 5, 94)));
}
