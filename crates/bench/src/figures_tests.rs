//! Medians.

use super::median;

#[test]
fn the_median_is_the_middle_in_any_order() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![7.0]), Some(7.0));
    assert_eq!(median(vec![9.0, 1.0]), Some(5.0));
    assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0, 3.0, 100.0]), Some(3.5));
}
