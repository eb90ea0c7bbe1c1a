//! A process that works shows, and one that is not there is an error.

use super::*;

#[test]
fn work_shows_and_a_missing_process_is_named() {
    let me = [("this test".to_owned(), std::process::id())];
    let watch = thread::spawn(move || idle(&me, Duration::from_millis(300)));
    let mut sum = 0_u64;
    while !watch.is_finished() {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
    }
    let report = watch.join().expect("no panic").expect("this process runs");
    assert!(report.percent_of_a_core > 1.0, "{report}");
    assert!(report.to_string().contains("this test"), "{report}");

    // Ids of processes are at most 2^22.
    let gone = [("node 7".to_owned(), u32::MAX)];
    let error = idle(&gone, Duration::ZERO).expect_err("there is none").to_string();
    assert!(error.contains("node 7"), "{error}");
}
