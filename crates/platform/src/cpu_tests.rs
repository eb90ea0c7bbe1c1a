//! Time goes to the account that a thread has set, with real threads and their real clocks.

use super::*;

const COMPACTING: Account = Activity::Compaction.of_backup();

fn work_for(millis: u64) {
    // A little more than asked for, because the cost of reading the clock is not booked.
    let until = thread_nanos() + millis * 1_000_000 + 50_000;
    while thread_nanos() < until {
        std::hint::spin_loop();
    }
}

fn millis(ledger: &Ledger, account: Account) -> u64 {
    ledger.nanos(account) / 1_000_000
}

#[test]
fn time_goes_to_what_the_thread_is_at() {
    let ledger = Arc::new(Ledger::default());
    {
        let _measured = ledger.open(Activity::Mirroring.of_backup(), How::Whole);
        work_for(2);
        {
            let _at = at_activity(Activity::Engine);
            work_for(3);
            let _at = at(Activity::Send.of_node());
            work_for(5);
        }
        work_for(2);
    }
    work_for(5);
    let booked = [Activity::Mirroring.of_backup(), Activity::Engine.of_backup(), Activity::Send.of_node()];
    assert_eq!(booked.map(|account| millis(&ledger, account)), [4, 3, 5]);
    assert_eq!(ledger.nanos(Activity::Engine.of_primary()), 0);
}

#[test]
fn without_a_ledger_nothing_is_booked() {
    let _at = at(COMPACTING);
    assert!(OPEN.with_borrow(Option::is_none));
}

#[test]
fn samples_are_spread_over_what_the_thread_has_had() {
    let ledger = Arc::new(Ledger::default());
    assert!(!ledger.spread(100), "there is nothing to tell by");
    {
        let _measured = ledger.open(Activity::Receive.of_node(), How::Sampled);
        work_for(2);
        let _at = at(Activity::Send.of_node());
        work_for(6);
    }
    {
        let _not_measured = ledger.open(Activity::Receive.of_node(), How::Not);
        let _at = at(Activity::Send.of_node());
        work_for(2);
    }
    assert_eq!(ledger.nanos(Activity::Send.of_node()), 0);
    assert!(ledger.spread(80_000_000));
    let spread = [Activity::Receive.of_node(), Activity::Send.of_node()].map(|account| millis(&ledger, account));
    assert!((18..=22).contains(&spread[0]) && (58..=62).contains(&spread[1]), "{spread:?}");
    assert!(!ledger.spread(80_000_000), "they are spread once");
}

#[test]
fn what_is_rare_is_measured_apart_and_not_spread_over() {
    let ledger = Arc::new(Ledger::default());
    let shipping = Activity::Shipping.of_primary();
    drop({
        let not_measured = ledger.open(Activity::Send.of_node(), How::Not);
        drop({
            let apart = apart(shipping);
            work_for(4);
            apart
        });
        not_measured
    });
    {
        let _sampled = ledger.open(Activity::Send.of_node(), How::Sampled);
        work_for(1);
    }
    assert_eq!(millis(&ledger, shipping), 4);
    assert!(ledger.spread(10_000_000));
    assert!((5..=6).contains(&millis(&ledger, Activity::Send.of_node())), "of ten, four are told already");
    drop(apart(shipping));
    assert!(OPEN.with_borrow(Option::is_none), "nothing is measured");
}

#[test]
fn a_ledger_within_another_takes_only_its_own() {
    let (outer, inner) = (Arc::new(Ledger::default()), Arc::new(Ledger::default()));
    {
        let _outer = outer.open(COMPACTING, How::Whole);
        work_for(1);
        {
            let _inner = inner.open(COMPACTING, How::Whole);
            work_for(4);
        }
        work_for(1);
    }
    assert_eq!((millis(&outer, COMPACTING), millis(&inner, COMPACTING)), (2, 4));
}

#[test]
fn what_another_thread_does_is_charged_to_the_thread_that_wanted_it() {
    let ledger = Arc::new(Ledger::default());
    let charge = {
        let _measured = ledger.open(COMPACTING, How::Whole);
        Charge::of_this_thread()
    };
    std::thread::spawn(|| charge.run_charged(|| work_for(3))).join().expect("it only works");
    assert_eq!(millis(&ledger, COMPACTING), 3);
    assert!(process_nanos() >= ledger.nanos(COMPACTING));
}
