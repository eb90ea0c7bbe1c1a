//! The tables of a report.

use super::differs;
use crate::kills::Kill;
use crate::report::tests::report;

#[test]
fn people_read_the_phase_and_the_kill() {
    let report = report();
    let text = report.phases[0].to_string();
    for part in [
        "a: 1000 ops in 2.00 s, 500 ops/s, 0 errors",
        "2000.00 s per million ops",
        "3.00 per user byte",
        "0 compactions",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let kill = Kill {
        server: 2,
        regions: vec![1, 4],
        unavailable_seconds: vec![Some(0.25), None],
        recovery_seconds: None,
        in_sync_seconds: 1.5,
        changed: None,
    };
    assert_eq!(
        kill.to_string(),
        "node 2, region 1 unavailable for 0.250 s, region 4 unavailable until the deadline, \
         all in sync 1.50 s after the restart"
    );
    let lone = Kill { unavailable_seconds: vec![Some(0.25), Some(0.5)], recovery_seconds: Some(0.5), ..kill };
    assert!(lone.to_string().ends_with("; it was restarted at once and recovered in 0.500 s"), "{lone}");
}

#[test]
fn the_two_counts_of_device_bytes_must_agree() {
    assert!(!differs(Some(100 << 20), Some(104 << 20)));
    assert!(differs(Some(100 << 20), Some(110 << 20)));
    assert!(differs(Some(0), Some(20 << 20)));
    assert!(!differs(Some(0), Some(4 << 20)), "too little to tell");
    assert!(!differs(None, Some(2 << 20)));
}
