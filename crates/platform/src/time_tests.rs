//! The boot clock, from the kernel's clocks, whenever they are read.

use super::*;

const MS: i64 = 1_000_000;

#[test]
fn readings_apart_never_make_the_clock_go_back_or_ahead_of_time() {
    let suspended = Suspended(AtomicI64::new(i64::MIN));
    // The machine was suspended for 5 s before, and for 2 s at the instant 100 ms. (Instant of each reading, by the
    // monotonic clock.)
    let offset = |at: i64| if at < 100 * MS { 5_000 * MS } else { 7_000 * MS };
    let readings = [(1, 1), (2, 40), (50, 51), (60, 160), (99, 130), (101, 250), (260, 260), (270, 400), (401, 401)];
    let mut last = i64::MIN;
    for (boot_at, monotonic_at) in readings.map(|(boot, monotonic)| (boot * MS, monotonic * MS)) {
        let known = suspended.after(boot_at + offset(boot_at), monotonic_at);
        assert!(known >= last, "it went back");
        assert!(known <= offset(boot_at), "it is ahead");
        last = known;
    }
    assert_eq!(last, 7_000 * MS);
}

#[test]
fn it_is_never_far_behind_once_the_clocks_were_read_closely() {
    let suspended = Suspended(AtomicI64::new(i64::MIN));
    assert_eq!(suspended.after(5_000 * MS, 10), 5_000 * MS - 10);
    // Many short suspends: their sum counts, though each is below the step.
    let known: Vec<i64> = (1..=40).map(|n| suspended.after(5_000 * MS + n * MS / 10, 10)).collect();
    let behind = known.iter().zip(1..).map(|(known, n)| 5_000 * MS + n * MS / 10 - 10 - known);
    assert!(behind.max().unwrap() <= SUSPEND_STEP);
    assert!(known.is_sorted());
}

#[test]
fn a_time_namespace_may_have_a_boot_clock_behind_the_monotonic_one() {
    let suspended = Suspended(AtomicI64::new(i64::MIN));
    assert_eq!(suspended.after(0, 3_600_000 * MS), -3_600_000 * MS);
    assert_eq!(suspended.after(i64::MAX, i64::MIN), i64::MAX);
}

#[test]
fn the_machine_has_such_clocks_and_threads_agree_on_the_order() {
    let newest = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let before = newest.load(Ordering::SeqCst);
                    let now = i64::try_from(BootClock.now().0).unwrap();
                    assert!(now >= before, "{now} after {before}");
                    newest.fetch_max(now, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(newest.into_inner() > 0);
}
