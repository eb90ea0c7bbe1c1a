//! Arguments of the command line.

use super::*;

#[test]
fn ranges_include_both_ends() {
    assert_eq!(range("3..5"), Ok(3..=5));
    assert_eq!(range("3..=5"), Ok(3..=5));
    assert!(range("3").is_err() && range("a..b").is_err());
}

#[test]
fn bugs_have_names() {
    assert_eq!(bug("SkipLeaseCheck"), Ok(Bug::SkipLeaseCheck));
    assert_eq!(bug("skip-lease-check"), Ok(Bug::SkipLeaseCheck));
    assert!(bug("nonsense").unwrap_err().contains("PromoteRestarted"));
}
