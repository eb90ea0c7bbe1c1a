//! How sets of servers compare.

use super::*;

fn distances(locations: &[&str]) -> Distances {
    let locations: Vec<Location> = locations.iter().map(|text| text.parse().unwrap()).collect();
    Distances::of((1..).map(ServerId).zip(&locations))
}

fn closeness(distances: &Distances, servers: &[u32]) -> Closeness {
    let servers: Vec<ServerId> = servers.iter().map(|id| ServerId(*id)).collect();
    distances.within(&servers)
}

#[test]
fn a_shared_zone_counts_before_any_number_of_shared_hosts() {
    let distances = distances(&["zone=a,host=1", "zone=a,host=1", "zone=a,host=2", "zone=b,host=1", "zone=c", ""]);
    assert_eq!(closeness(&distances, &[1, 4, 5]), 0, "hosts of different zones are different hosts");
    let ordered: [&[u32]; 6] = [&[1, 5, 6], &[1, 3, 4], &[1, 2, 4], &[1, 3, 4, 6], &[1, 2, 3], &[1, 2, 3, 4]];
    let worth: Vec<Closeness> = ordered.iter().map(|servers| closeness(&distances, servers)).collect();
    assert!(worth[0] < worth[1] && worth[1] < worth[2] && worth[3] < worth[4] && worth[4] == worth[5], "{worth:x?}");
    let members: Vec<ServerId> = [1, 2, 4].map(ServerId).into();
    let (before, after) =
        (distances.added(ServerId(2), [1, 4].map(ServerId)), distances.added(ServerId(5), [1, 4].map(ServerId)));
    assert_eq!((before, after), (distances.added(ServerId(2), [ServerId(1)]), 0));
    assert!(before > 0);
    assert_eq!(distances.gain(&members, ServerId(2), ServerId(5)), Some(before));
    assert_eq!(distances.gain(&[1, 5, 4].map(ServerId), ServerId(5), ServerId(2)), None);
}

#[test]
fn nobody_said_where_servers_stand() {
    let distances = distances(&["", "", ""]);
    assert!(distances.are_even());
    assert_eq!(closeness(&distances, &[1, 2, 3]), 0);
}
