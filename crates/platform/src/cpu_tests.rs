//! Time goes to the account that a thread is at, with real threads and their real clocks.

use super::*;

const COMPACTING: Account = Activity::Compaction.of_backup();

fn work_for(millis: u64) {
    // A little more than is asked for: what it costs to read the clock is not booked.
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
        let _measured = ledger.open(Activity::Mirroring.of_backup(), 1);
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
fn where_nobody_measures_nothing_is_booked() {
    let _at = at(COMPACTING);
    assert!(OPEN.with_borrow(Option::is_none));
}

#[test]
fn a_sample_counts_for_the_turns_that_were_not_measured() {
    let ledger = Arc::new(Ledger::default());
    drop({
        let measured = ledger.open(COMPACTING, 16);
        work_for(1);
        measured
    });
    assert!((16..32).contains(&millis(&ledger, COMPACTING)));
}

#[test]
fn a_ledger_within_another_takes_only_its_own() {
    let (outer, inner) = (Arc::new(Ledger::default()), Arc::new(Ledger::default()));
    {
        let _outer = outer.open(COMPACTING, 1);
        work_for(1);
        {
            let _inner = inner.open(COMPACTING, 1);
            work_for(4);
        }
        work_for(1);
    }
    assert_eq!((millis(&outer, COMPACTING), millis(&inner, COMPACTING)), (2, 4));
}

#[test]
fn what_another_thread_does_is_charged_to_whoever_wanted_it() {
    let ledger = Arc::new(Ledger::default());
    let charge = {
        let _measured = ledger.open(COMPACTING, 1);
        Charge::of_this_thread()
    };
    std::thread::spawn(|| charge.bear(|| work_for(3))).join().expect("it only works");
    assert_eq!(millis(&ledger, COMPACTING), 3);
    assert!(process_nanos() >= ledger.nanos(COMPACTING));
}
