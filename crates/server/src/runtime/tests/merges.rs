//! Small regions are merged into their neighbours while clients count: real nodes.

use super::identity::request;
use super::moves::{TIMEOUT, is_whole, map, region_statuses, request_for, wait_for, while_counting};
use super::splits::split;
use super::*;
use leeward_format::cluster::{Plan, RegionMap, RegionRequest};
use leeward_format::op::OpError;
use leeward_format::partition::Partition;
use leeward_format::table::NewTable;
use std::thread;

/// Requests a merge, and returns the node's answer.
fn merge(server: &Server, region: u32, into: u32) -> OpResult {
    request_for(server, region, RegionRequest::Merge { into: RegionId(into) })
}

/// What the primary of a region reports about its plan.
fn waits_for(cluster: &Cluster, region: u32) -> Option<String> {
    let mut regions = region_statuses(cluster).into_iter();
    regions.find(|status| status.region == RegionId(region) && status.plan.is_some())?.plan?.waits_for
}

fn wait_for_reason(cluster: &Cluster, region: u32, reason: &str) {
    let begun = Instant::now();
    while waits_for(cluster, region).is_none_or(|why| !why.contains(reason)) {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", waits_for(cluster, region));
        thread::sleep(Duration::from_millis(5));
    }
}

fn merges(cluster: &Cluster) -> u64 {
    region_statuses(cluster).iter().map(|region| region.counters.merges).sum()
}

/// Both sides are counted in all the time, their primaries are on different servers, and pairs expire or are large.
#[test]
fn regions_become_one_and_no_client_notices() {
    let cluster = Cluster::start(3);
    let first = &cluster.servers[0];
    let mut client = cluster.client(0);
    assert_eq!(client.run_until_served("SET a 1"), "+OK");
    assert_eq!(client.run_until_served("SET z 1"), "+OK");
    let large = "v".repeat(3_000);
    for number in 0..400 {
        assert_eq!(client.run(&format!("SET y{number:03} {number}{}", &large[..number * 7])), "+OK");
    }
    assert_eq!(client.run("SET yy soon EX 1000"), "+OK");
    wait_for(first, "the groups are whole", is_whole);
    while_counting(&cluster, &[0, 1, 2], || {
        for round in 0..4 {
            let regions = map(first).regions;
            let (left, right) = (regions[0].region.0, regions[1].region.0);
            let (region, into) = if round % 2 == 0 { (right, left) } else { (left, right) };
            assert_eq!(merge(first, region, into), OpResult::Done);
            wait_for(first, "the regions are one", |map| map.regions.len() == 1 && is_whole(map));
            let found = map(first).regions.remove(0);
            assert_eq!((found.region, found.start.len(), found.end), (RegionId(into), 0, None));
            assert_eq!(found.desired.plan, None);
            assert_eq!(split(first, into, Some("m")), OpResult::Done);
            wait_for(first, "the region is two", |map| map.regions.len() == 2 && is_whole(map));
            let (region, server) = (map(first).regions[1].region.0, 1 + round % 3);
            assert_eq!(request_for(first, region, RegionRequest::Primary(ServerId(server))), OpResult::Done);
        }
    });
    assert!(merges(&cluster) > 0, "it is counted");
    for number in 0..400 {
        assert_eq!(client.run(&format!("GET y{number:03}")), format!("{number}{}", &large[..number * 7]));
    }
    let left: i64 = client.run("TTL yy")[1..].parse().expect("a number");
    assert!((800..=1_000).contains(&left), "{left} seconds");
    // The copies of the ended regions are destroyed everywhere.
    let begun = Instant::now();
    let copies = || cluster.servers.iter().map(|server| server.snapshot().expect("it answers").status.regions.len());
    while copies().any(|copies| copies != 2) {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", copies().collect::<Vec<_>>());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_merge_that_cannot_be_says_why_and_can_be_taken_back() {
    let cluster = Cluster::start_with(1, |config| config.master.merge_bytes = 20_000);
    let server = &cluster.servers[0];
    let mut client = cluster.client(0);
    assert_eq!(client.run_until_served("SET a 1"), "+OK");
    assert_eq!(client.run_until_served("SET z 1"), "+OK");
    let refused = |region, into, reason: &str| {
        let OpResult::Error(OpError::Invalid(why)) = merge(server, region, into) else { panic!("{region} in {into}") };
        assert!(why.contains(reason), "{why}");
    };
    refused(1, 1, "name a neighbour");
    refused(1, 7, "neighbours are 2");
    refused(7, 1, "there is no region 7");
    let table = TableOptions {
        name: "hashed".into(),
        partition: Partition::Hash { tokens: 2 },
        replicas: 1,
        min_in_sync: 1,
        ..TableOptions::default()
    };
    let table = Box::new(NewTable::new(table, Vec::new()));
    assert_eq!(request(&server.info().native_address, &Op::CreateTable { table }), OpResult::Done);
    refused(3, 4, "partitioned by hash");
    let value = "v".repeat(1_000);
    for number in 0..30 {
        assert_eq!(client.run(&format!("SET b{number} {value}")), "+OK");
    }
    assert_eq!(merge(server, 1, 2), OpResult::Done);
    wait_for_reason(&cluster, 1, "it has more than the 20000 bytes of pairs that may be copied");
    refused(2, 1, "region 1 is being merged into region 2");
    assert_eq!(request_for(server, 1, RegionRequest::KeepBounds), OpResult::Done);
    let is_forgotten = |map: &RegionMap| map.regions.iter().all(|group| group.desired.plan.is_none());
    wait_for(server, "the plan is forgotten", is_forgotten);
    // The other way round it is small enough.
    assert_eq!(merge(server, 2, 1), OpResult::Done);
    wait_for(server, "they are one", |map| map.regions.iter().all(|group| group.region != RegionId(2)));
    assert_eq!((client.run("GET z"), client.run("GET b7")), ("1".into(), value));
}

#[test]
fn where_nothing_may_be_copied_regions_stay_as_they_are() {
    let cluster = Cluster::start_with(1, |config| config.master.merge_bytes = 0);
    let server = &cluster.servers[0];
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    assert_eq!(cluster.client(0).run_until_served("SET z 1"), "+OK");
    assert_eq!(merge(server, 1, 2), OpResult::Done);
    wait_for_reason(&cluster, 1, "merge_bytes is 0");
    let planned = map(server).regions.remove(0).desired.plan;
    assert_eq!(planned, Some(Plan::Merge { into: RegionId(2) }));
}

/// Regions that came from splits, and hold little, are merged again. A boundary with which the table was created stays.
#[test]
fn halves_of_splits_are_merged_by_the_master_when_they_are_small_and_quiet() {
    let mut cluster = Cluster::start_with(3, |config| config.master.split_cooldown_seconds = 1);
    let first = &cluster.servers[0];
    let mut client = cluster.client(0);
    assert_eq!(client.run_until_served("SET a 1"), "+OK");
    assert_eq!(client.run_until_served("SET z 1"), "+OK");
    wait_for(first, "the groups are whole", is_whole);
    assert_eq!(split(first, 1, Some("c")), OpResult::Done);
    wait_for(first, "the region is two", |map| map.regions.len() == 3);
    assert_eq!(split(first, 3, Some("e")), OpResult::Done);
    wait_for(first, "the region is two", |map| map.regions.len() == 4);
    for key in ["b", "d", "f", "k"] {
        assert_eq!(client.run(&format!("SET {key} {key}")), "+OK");
    }
    // After an operator's request, the master makes none of its own for a minute. One that is new knows of no such request.
    std::mem::take(&mut cluster.servers).into_iter().for_each(Server::stop);
    for id in 1..=3 {
        let mut config = cluster.config(id, 3);
        config.master.split_cooldown_seconds = 1;
        let server = start(&config).expect("the node again");
        cluster.servers.push(server);
    }
    let (first, mut client) = (&cluster.servers[0], cluster.client(0));
    assert_eq!(client.run_until_served("GET b"), "b");
    assert_eq!(map(first).regions.len(), 4);
    let begun = Instant::now();
    while map(first).regions.len() > 2 {
        assert!(begun.elapsed() < 4 * TIMEOUT, "they are never merged: {:?}", map(first).regions);
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(Duration::from_secs(3));
    let starts: Vec<_> = map(first).regions.iter().map(|group| group.start.clone()).collect();
    assert_eq!(starts.len(), 2, "{starts:?}");
    for key in ["b", "d", "f", "k"] {
        assert_eq!(client.run(&format!("GET {key}")), key);
    }
}
