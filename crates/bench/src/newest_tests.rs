//! Which writes may be lost with a killed primary, and which may not.

use super::Newest;
use crate::keys::Mix;
use crate::ledger::Ledger;

/// A ledger of a table with one region, whose primary may lose `most_bytes`; one write at a time.
fn ledger(most_bytes: u64) -> Ledger {
    Ledger::new(true).with_newest(Newest::new(vec!["".into()], Mix::S, most_bytes, 1))
}

fn write(ledger: &Ledger, record: u64) -> u64 {
    let sequence = ledger.begin(record);
    ledger.acknowledged(record, sequence);
    sequence
}

/// The number of losses that the table does not allow, and of the newest writes that are lost as it allows.
fn judge(ledger: &Ledger, found: &[(u64, Option<u64>)]) -> (usize, u64) {
    ledger.settle();
    let lost = found.iter().filter(|(record, sequence)| !ledger.check(*record, *sequence)).count();
    let (taken, gaps) = ledger.judge_newest().expect("it may lose some");
    (lost + gaps.len(), taken)
}

#[test]
fn without_a_kill_nothing_may_be_gone() {
    let ledger = ledger(1 << 20);
    let (first, second) = (write(&ledger, 1), write(&ledger, 1));
    assert_eq!(judge(&ledger, &[(1, Some(second))]), (0, 0));
    assert_eq!(judge(&ledger, &[(1, Some(first))]), (1, 0));
    assert_eq!(judge(&ledger, &[(1, None)]), (1, 0));
}

#[test]
fn a_kill_takes_the_newest() {
    let ledger = ledger(1 << 20);
    let first = write(&ledger, 1);
    let (kept, gone) = (write(&ledger, 2), write(&ledger, 1));
    write(&ledger, 3);
    ledger.newest_lost(b"");
    assert_eq!(judge(&ledger, &[(1, Some(first)), (2, Some(kept)), (3, None)]), (0, 2));
    assert!(ledger.check(1, Some(gone)));
}

#[test]
fn what_was_left_may_not_be_newer_than_what_is_gone() {
    let ledger = ledger(1 << 20);
    write(&ledger, 1);
    let later = write(&ledger, 2);
    ledger.newest_lost(b"");
    assert_eq!(judge(&ledger, &[(1, None), (2, Some(later))]), (1, 1));
}

#[test]
fn no_more_is_taken_than_the_table_may_lose() {
    let ledger = ledger(4 << 10);
    let writes: Vec<u64> = (0..200).map(|record| write(&ledger, record)).collect();
    ledger.newest_lost(b"");
    let held = |kept: usize| -> Vec<(u64, Option<u64>)> {
        writes.iter().zip(0..).map(|(write, record)| (record, (record < kept as u64).then_some(*write))).collect()
    };
    assert_eq!(judge(&ledger, &held(150)), (0, 50));
    let (lost, _) = judge(&ledger, &held(0));
    assert!((80..120).contains(&lost), "4 KiB and a write are some 97 records of 53 bytes: {lost}");
}

#[test]
fn what_comes_after_a_kill_is_not_its_prey() {
    let ledger = ledger(4 << 10);
    let before = write(&ledger, 1);
    ledger.newest_lost(b"");
    let after = write(&ledger, 1);
    assert_eq!(judge(&ledger, &[(1, Some(after))]), (0, 0));
    assert_eq!(judge(&ledger, &[(1, Some(before))]), (1, 0));
}

#[test]
fn an_answer_that_was_under_way_may_be_the_dead_primarys() {
    let ledger = ledger(4 << 10);
    let before = write(&ledger, 1);
    let sent = ledger.begin(1);
    ledger.newest_lost(b"");
    ledger.acknowledged(1, sent);
    assert_eq!(judge(&ledger, &[(1, Some(before))]), (0, 0));
    assert_eq!(judge(&ledger, &[(1, Some(sent))]), (0, 0));
}

#[test]
fn regions_lose_by_themselves() {
    let ledger = Ledger::new(true).with_newest(Newest::new(
        ["", "user00", "user05"].map(bytes::Bytes::from).to_vec(),
        Mix::S,
        1 << 20,
        1,
    ));
    let in_last = |record: &u64| crate::keys::key(*record)[..] >= b"user05"[..];
    let (low, high) = ((0..).find(|record| !in_last(record)), (0..).find(in_last));
    let (low, high) = (low.expect("there is one"), high.expect("there is one"));
    write(&ledger, low);
    write(&ledger, high);
    ledger.newest_lost(b"user05");
    assert_eq!(judge(&ledger, &[(high, None)]), (0, 1));
    assert_eq!(judge(&ledger, &[(low, None)]).0, 1, "its primary lives");
}
