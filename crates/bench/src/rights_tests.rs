//! The grant that gives the right is the last.

use super::*;

#[test]
fn only_the_last_grant_is_of_the_keys() {
    let grants = grants(31).expect("they are grants");
    let gives = |grant: &&Grant| grant.prefixes.iter().any(|prefix| b"key:000000000001".starts_with(prefix));
    assert_eq!((grants.len(), grants.iter().position(|grant| gives(&grant))), (31, Some(30)));
}

#[test]
fn the_ratio_is_the_median_of_the_rounds() {
    let rounds = |ratios: &[f64]| ratios.iter().map(|ratio| Round { without: 100.0, with: 100.0 * ratio }).collect();
    let report = Report::of(rounds(&[0.5, 0.98, 1.2])).expect("there are rounds");
    assert!(report.is_met() && report.to_string().contains("0.980 (should be 0.97 at least: met)"), "{report}");
    assert!(!Report::of(rounds(&[0.96])).expect("there is a round").is_met());
    assert!(Report::of(Vec::new()).is_none());
}
