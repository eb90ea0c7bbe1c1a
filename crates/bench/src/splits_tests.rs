//! The table of splits.

use super::*;
use crate::worker::Measured;

#[test]
fn a_failed_request_is_told_and_judged() {
    let split = Split { seconds: 0.5, longest_pause_ms: 31.4, before: 1e4, during: 9e3, wake: 8e3, after: 1.1e4 };
    let measured = Measured { ops: 70_000, ..Measured::new() };
    let splits = Splits { splits: vec![split.clone()], requests: Requests::of(&measured) };
    assert!(splits.requests.is_lossless());
    let told = splits.to_string();
    assert!(told.contains("| 1 | 0.50 | 31.4 | 10000 | 9000 | 8000 | 11000 |"), "{told}");
    assert!(told.contains("failed requests: 0 of 70000, 0 misses (should be 0: met)"), "{told}");
    let measured = Measured { errors: 1, first_error: Some("no".into()), ..measured };
    let splits = Splits { splits: vec![split], requests: Requests::of(&measured) };
    assert!(!splits.requests.is_lossless());
    assert!(splits.to_string().contains("MISSED)\nthe first failure: no\n"), "{splits}");
}
