//! Regions that become two, and those again, while clients count: real nodes.

use super::identity::wish;
use super::moves::{PATIENCE, is_whole, map, wait_for, while_counting};
use super::*;
use leeward_format::cluster::{RegionMap, RegionWish};
use leeward_format::op::OpError;
use std::thread;

/// What the node answers to the wish that a region become two.
fn split(server: &Server, region: u32, at: Option<&'static str>) -> OpResult {
    let wished = RegionWish::Split { at: at.map(Into::into) };
    wish(&server.info().native_address, &Op::Wish { region: RegionId(region), wish: wished })
}

/// First keys of the regions, each of which begins where the one before ends.
fn starts(map: &RegionMap) -> Vec<String> {
    let ends = map.regions.iter().map(|group| group.end.clone());
    assert!(map.regions.iter().skip(1).map(|group| Some(group.start.clone())).eq(ends.take(map.regions.len() - 1)));
    assert!(map.regions[0].start.is_empty() && map.regions.last().expect("a region").end.is_none());
    map.regions.iter().map(|group| String::from_utf8_lossy(&group.start).into_owned()).collect()
}

/// What all nodes say they have trimmed, and whether any region has anything of another's.
fn is_trimmed(cluster: &Cluster) -> bool {
    let statuses = cluster.servers.iter().map(|server| server.snapshot().expect("the node answers").status);
    let regions: Vec<_> = statuses.flat_map(|status| status.regions).collect();
    regions.iter().map(|region| region.counters.trims).sum::<u64>() >= 4
}

#[test]
fn regions_become_two_and_no_client_notices() {
    let cluster = Cluster::start(3);
    let first = &cluster.servers[0];
    let mut client = cluster.client(0);
    assert_eq!(client.run_until_served("SET a 1"), "+OK");
    assert_eq!(client.run_until_served("SET z 1"), "+OK");
    let value = "v".repeat(700);
    for number in 0..4_000 {
        client.send(format!("SET b{:04} {value}{number}\r\n", number * 37 % 4_000).as_bytes());
    }
    for _ in 0..4_000 {
        assert_eq!(client.reply(), "+OK");
    }
    wait_for(first, "the groups are whole", is_whole);
    while_counting(&cluster, &[0, 1, 2], || {
        for (regions, (region, at)) in
            (3..).zip([(1, Some("a1")), (2, None), (3, None), (1, Some("a0x")), (3, Some("a2"))])
        {
            assert_eq!(split(first, region, at), OpResult::Done);
            wait_for(first, "the region is two", |map| map.regions.len() == regions && is_whole(map));
            if let Some(at) = at {
                assert!(starts(&map(first)).iter().any(|start| start == at), "{:?}", starts(&map(first)));
            }
            // Each comes to be trimmed.
            thread::sleep(Duration::from_millis(100));
        }
    });
    let found = map(first);
    assert_eq!(found.regions.len(), 7, "{:?}", starts(&found));
    assert!(found.regions.iter().all(|group| group.wishes.plan.is_none()));
    let begun = Instant::now();
    while !is_trimmed(&cluster) {
        assert!(begun.elapsed() < PATIENCE, "nothing is trimmed");
        thread::sleep(Duration::from_millis(20));
    }
    for number in 0..4_000 {
        client.send(format!("GET b{number:04}\r\n").as_bytes());
    }
    for number in 0..4_000 {
        let reply = client.reply();
        let written = (0..4_000).find(|written| written * 37 % 4_000 == number).expect("37 divides nothing of 4,000");
        assert_eq!(reply, format!("{value}{written}"), "key b{number:04}");
    }
}

#[test]
fn a_split_that_cannot_be_says_why_and_can_be_taken_back() {
    let cluster = Cluster::start(1);
    let server = &cluster.servers[0];
    let mut client = cluster.client(0);
    assert_eq!(client.run_until_served("SET a 1"), "+OK");
    let OpResult::Error(OpError::Invalid(why)) = split(server, 1, Some("x")) else { panic!("x is region 2's") };
    assert!(why.contains("name one between"), "{why}");
    // One key cannot be halved.
    assert_eq!(split(server, 1, None), OpResult::Done);
    let plan = || {
        let regions = server.snapshot().expect("the node answers").status.regions;
        regions.into_iter().find(|region| region.region == RegionId(1)).and_then(|region| region.plan)
    };
    let begun = Instant::now();
    while plan().is_none_or(|plan| plan.waits_for.is_none()) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", plan());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(plan().and_then(|plan| plan.waits_for).as_deref(), Some("no key halves it: it has too few"));
    let whole = Op::Wish { region: RegionId(1), wish: RegionWish::Whole };
    assert_eq!(wish(&server.info().native_address, &whole), OpResult::Done);
    wait_for(server, "the plan is forgotten", |map| map.regions.iter().all(|group| group.wishes.plan.is_none()));
    assert_eq!(map(server).regions.len(), 2);
    for number in 10..99 {
        assert_eq!(client.run(&format!("SET c{number} 1")), "+OK");
    }
    // The number is not given again.
    assert_eq!(split(server, 1, Some("c40")), OpResult::Done);
    wait_for(server, "the region is two", |map| map.regions.iter().any(|group| group.region == RegionId(4)));
    let counted: u32 = client.run("DBSIZE")[1..].parse().expect("a number");
    assert!((70..110).contains(&counted), "{counted} of 90: each side counts what is its own");
}
