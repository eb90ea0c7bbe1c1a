//! Contents that the ledger accepts, and contents that it refuses.

use super::*;

/// Three writes, called at 10, 30, 50 ms and acknowledged 10 ms later.
fn ledger(window_ms: u64) -> Ledger {
    let mut ledger = Ledger::new(Nanos::from_millis(window_ms));
    for (number, at) in [10, 30, 50].into_iter().enumerate() {
        assert_eq!(ledger.write(Nanos::from_millis(at), 100).1, number);
        ledger.acknowledged(Nanos::from_millis(at + 10), number);
    }
    ledger
}

fn content(numbers: &[usize]) -> BTreeMap<Bytes, Bytes> {
    numbers.iter().map(|number| (key(*number), value(*number, 100))).collect()
}

#[test]
fn every_acknowledged_write_is_there_as_it_was_written() {
    let ledger = ledger(0);
    let mut right = content(&[0, 1, 2]);
    right.insert(Bytes::from_static(b"other"), Bytes::new());
    assert_eq!(ledger.check(&mut right), Ok(()));
    assert_eq!(right.len(), 1, "what is not in the ledger is left");
    assert!(ledger.check(&mut content(&[0, 2])).is_err());
    let mut wrong = content(&[0, 1, 2]);
    wrong.insert(key(1), value(2, 100));
    assert!(ledger.check(&mut wrong).is_err());
}

#[test]
fn a_power_loss_takes_the_newest_writes_and_leaves_a_prefix() {
    let mut ledger = ledger(25);
    ledger.power_lost(Nanos::from_millis(61), &[]);
    assert_eq!(ledger.check(&mut content(&[0, 1, 2])), Ok(()));
    assert_eq!(ledger.check(&mut content(&[0, 1])), Ok(()));
    assert_eq!(ledger.check(&mut content(&[0])), Ok(()));
    assert!(ledger.check(&mut content(&[])).is_err(), "the first is too old to be lost");
    assert!(
        ledger.check(&mut content(&[0, 2])).unwrap_err().contains("is gone, and"),
        "the second is before the third"
    );
}

#[test]
fn writes_after_the_loss_do_not_follow_on_those_before() {
    let mut ledger = ledger(25);
    ledger.power_lost(Nanos::from_millis(45), &[]);
    assert_eq!(ledger.check(&mut content(&[0, 2])), Ok(()));
    assert!(ledger.check(&mut content(&[0, 1])).is_err());
}

#[test]
fn a_loss_while_the_answer_is_under_way_may_take_the_write_too() {
    let mut ledger = ledger(25);
    ledger.power_lost(Nanos::from_millis(35), &[]);
    // Acknowledged at 40; the third was made after the power was back, and another loss comes later.
    ledger.power_lost(Nanos::from_millis(64), &[]);
    assert_eq!(ledger.check(&mut content(&[0, 2])), Ok(()));
}

#[test]
fn a_write_that_was_not_done_is_not_there() {
    let mut ledger = ledger(0);
    ledger.not_done(2);
    assert!(ledger.check(&mut content(&[0, 1, 2])).is_err());
    assert_eq!(ledger.check(&mut content(&[0, 1])), Ok(()));
    assert!(ledger.check_read(2, false, Some(&value(2, 100))).is_err());
    assert_eq!(ledger.check_read(2, false, None), Ok(()));
}

#[test]
fn a_process_that_died_before_had_not_synced_the_newest() {
    let mut ledger = ledger(25);
    ledger.power_lost(Nanos::from_millis(500), &[Nanos::from_millis(50)]);
    assert_eq!(ledger.check(&mut content(&[0])), Ok(()), "the second was the newest when the process died");
    assert!(ledger.check(&mut content(&[0, 2])).is_err(), "what is left is a prefix");
    assert!(ledger.check(&mut content(&[1, 2])).is_err(), "the first was synced before");
}
