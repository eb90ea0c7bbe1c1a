//! The orders in which *space* overwrites, and the choices of clients.

use super::{seed, stride};
use std::collections::BTreeSet;

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
