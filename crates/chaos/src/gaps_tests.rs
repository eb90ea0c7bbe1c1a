//! Gaps by hand.

use super::*;

fn success(region: usize, at: u64, is_write: bool) -> Success {
    Success { region, at, is_write }
}

#[test]
fn the_longest_gap_of_any_region_counts_whole() {
    let all = [
        success(0, 10, true),
        success(0, 20, false),
        success(0, 90, true),
        success(1, 15, true),
        success(1, 45, true),
        success(1, 95, true),
    ];
    let successes = Successes::new(&all, 2, 100);
    assert_eq!(successes.longest(30, 40), Longest { of_any: 70, of_writes: 80 });
    assert_eq!(successes.longest(92, 93), Longest { of_any: 50, of_writes: 50 }, "region 1 has none from 45 to 95");
    assert_eq!(successes.longest(96, 99), Longest { of_any: 10, of_writes: 10 }, "to the end of the run");
    assert_eq!(successes.longest(0, 5), Longest { of_any: 15, of_writes: 15 }, "from its beginning");
}

#[test]
fn a_region_without_success_is_one_gap() {
    assert_eq!(Successes::new(&[], 1, 100).longest(20, 30), Longest { of_any: 100, of_writes: 100 });
}
