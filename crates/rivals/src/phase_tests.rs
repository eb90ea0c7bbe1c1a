//! The orders in which *space* overwrites, the choices of clients, and the end of a hang.

use super::{Progress, STALL_AT_MOST, WATCH_PAUSE, seed, stride};
use std::collections::BTreeSet;
use std::time::Instant;

#[test]
fn every_pass_visits_every_record_once_in_another_order() {
    for records in [1u64, 2, 3, 10, 997, 1000, 65536] {
        let orders: Vec<Vec<u64>> = (0..3)
            .map(|pass| {
                let step = u128::from(stride(pass, records));
                (0..records).map(|place| (u128::from(place) * step % u128::from(records)) as u64).collect()
            })
            .collect();
        for order in &orders {
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len() as u64, records, "{records} records");
        }
        assert!(orders[0].is_sorted(), "the first pass loads in order");
        if records > 10 {
            assert!(orders[0] != orders[1] && orders[1] != orders[2], "{records} records");
        }
    }
}

#[test]
fn no_client_repeats_what_one_of_another_workload_did() {
    let works = ["load", "a", "b", "c", "d", "e", "f", "space"];
    let mut seeds: Vec<u64> = works.iter().flat_map(|work| (0..8).map(|client| seed(work, client))).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), works.len() * 8);
}

#[test]
fn an_engine_hangs_when_nothing_was_issued_for_long() {
    let start = Instant::now();
    let mut progress = Progress { issued: 0, since: start };
    assert!(!progress.has_stalled(0, start + STALL_AT_MOST));
    assert!(progress.has_stalled(0, start + STALL_AT_MOST + WATCH_PAUSE));
    assert!(!progress.has_stalled(1, start + 2 * STALL_AT_MOST), "it was slow");
    assert!(!progress.has_stalled(1, start + 3 * STALL_AT_MOST));
    assert!(progress.has_stalled(1, start + 3 * STALL_AT_MOST + WATCH_PAUSE));
}
