//! The ledger with difficult histories: concurrent writes, unknown outcomes, refusals.

use super::Ledger;

fn ledger() -> Ledger {
    Ledger::new(true)
}

#[test]
fn an_acknowledged_write_is_the_only_possibility() {
    let ledger = ledger();
    let first = ledger.begin(5);
    ledger.acknowledged(5, first);
    assert!(ledger.check(5, Some(first)));
    assert!(!ledger.check(5, None), "lost");
    let second = ledger.begin(5);
    assert!(ledger.check(5, Some(first)) && ledger.check(5, Some(second)), "it is under way");
    ledger.acknowledged(5, second);
    assert!(!ledger.check(5, Some(first)), "the older value is a lost write");
    assert!(ledger.check(5, Some(second)));
    assert_eq!(ledger.possible(5), [second]);
}

#[test]
fn writes_at_the_same_time_may_be_decided_either_way() {
    let ledger = ledger();
    let (a, b) = (ledger.begin(1), ledger.begin(1));
    ledger.acknowledged(1, b);
    ledger.acknowledged(1, a);
    assert!(ledger.check(1, Some(a)) && ledger.check(1, Some(b)));
    assert!(!ledger.check(1, None), "what was before both is overwritten");
    let c = ledger.begin(1);
    ledger.acknowledged(1, c);
    assert_eq!(ledger.possible(1), [c], "both were acknowledged before the third was sent");
}

#[test]
fn a_chain_of_overlaps_keeps_only_what_may_be_last() {
    let ledger = ledger();
    let a = ledger.begin(1);
    let b = ledger.begin(1);
    ledger.acknowledged(1, a);
    let c = ledger.begin(1);
    ledger.acknowledged(1, b);
    ledger.acknowledged(1, c);
    assert!(!ledger.check(1, Some(a)), "acknowledged before c was sent");
    assert!(ledger.check(1, Some(b)) && ledger.check(1, Some(c)));
}

#[test]
fn an_unknown_outcome_stays_possible() {
    let ledger = ledger();
    let first = ledger.begin(9);
    ledger.acknowledged(9, first);
    let unknown = ledger.begin(9);
    assert!(ledger.check(9, Some(first)) && ledger.check(9, Some(unknown)));
    let last = ledger.begin(9);
    ledger.acknowledged(9, last);
    assert!(!ledger.check(9, Some(first)), "an acknowledged write came after it");
    assert!(ledger.check(9, Some(unknown)) && ledger.check(9, Some(last)));
}

#[test]
fn a_refused_write_changes_nothing() {
    let ledger = ledger();
    let first = ledger.begin(2);
    ledger.acknowledged(2, first);
    let refused = ledger.begin(2);
    ledger.refused(2, refused);
    assert_eq!(ledger.possible(2), [first]);
    assert!(!ledger.check(2, Some(refused)));
    let never = ledger.begin(3);
    ledger.refused(3, never);
    assert!(ledger.check(3, None), "nothing was ever written");
}

#[test]
fn values_of_an_earlier_run_are_what_was_before() {
    let ledger = ledger();
    let old = ledger.first - 1000;
    let unknown = ledger.begin(4);
    assert!(ledger.check(4, None) && ledger.check(4, Some(old)) && ledger.check(4, Some(unknown)));
    ledger.acknowledged(4, unknown);
    assert!(!ledger.check(4, None) && !ledger.check(4, Some(old)));
}

#[test]
fn the_records_written_to_are_listed_once() {
    let ledger = ledger();
    for record in [0, 1, 63, 64, 65, 1000] {
        let sequence = ledger.begin(record);
        ledger.acknowledged(record, sequence);
    }
    let under_way = ledger.begin(64);
    ledger.begin(70);
    let refused = ledger.begin(71);
    ledger.refused(71, refused);
    assert_eq!(ledger.records(), [0, 1, 63, 64, 65, 70, 1000]);
    ledger.acknowledged(64, under_way);
    assert_eq!(ledger.records(), [0, 1, 63, 64, 65, 70, 1000]);
}

#[test]
fn without_memory_it_only_numbers() {
    let ledger = Ledger::new(false);
    let (a, b) = (ledger.begin(1), ledger.begin(1));
    assert!(b > a);
    ledger.acknowledged(1, a);
    ledger.refused(1, b);
    assert!(ledger.records().is_empty());
}

#[test]
fn many_threads_at_one_record_agree_on_a_last_write() {
    let ledger = ledger();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let sequence = ledger.begin(7);
                    ledger.acknowledged(7, sequence);
                }
            });
        }
    });
    let possible = ledger.possible(7);
    assert!((1..=4).contains(&possible.len()), "{possible:?}");
}
