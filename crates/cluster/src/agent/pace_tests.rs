//! Tests of the pace of changes that operators ask for.

use super::*;
use crate::view::LAST_ASKED_FOR;
use leeward_format::RegionId;

const NOW: Nanos = Nanos::from_secs(1_000);

fn path(region: u32) -> ClusterPath {
    ClusterPath::Region(RegionId(region))
}

#[test]
fn a_burst_is_executed_and_further_requests_are_told_when_to_ask_again() {
    let mut pace = Pace::default();
    (0..BURST).for_each(|_| pace.admit(NOW, &path(1), Epoch(5)).unwrap());
    let refused = pace.admit(NOW, &path(1), Epoch(5)).unwrap_err();
    assert_eq!(refused, "/leeward/region/1 was changed 60 times of late: ask again in 1 s");
    assert_eq!(pace.admit(NOW, &path(2), Epoch(5)), Ok(()), "each path has its own pace");
    let later = NOW + Nanos::from_secs(1);
    assert_eq!(pace.admit(later, &path(1), Epoch(5)), Ok(()), "a refused change costs nothing");
    assert!(pace.admit(later, &path(1), Epoch(5)).is_err());
    let next_hour = later + Nanos::from_secs(3_600);
    pace.admit(next_hour, &path(3), Epoch(5)).unwrap();
    assert_eq!(pace.paid_at.keys().collect::<Vec<_>>(), [&path(3)], "old changes are forgotten");
}

#[test]
fn endless_requests_take_years_to_reach_the_last_epoch() {
    let year = Nanos::from_secs(365 * 24 * 3_600).0;
    let steps: Vec<u64> =
        (0..LAST_ASKED_FOR.0).step_by(0x1_0000).map(|epoch| price(Epoch(epoch)).0 * 0x1_0000).collect();
    assert!(steps.iter().sum::<u64>() > 8 * year);
}
