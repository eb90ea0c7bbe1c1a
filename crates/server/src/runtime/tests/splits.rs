//! Regions are split, and split again, while clients count: real nodes.

use super::identity::request;
use super::moves::{TIMEOUT, is_whole, map, region_statuses, request_for, wait_for, while_counting};
use super::*;
use leeward_format::cluster::{GroupConfig, RegionMap, RegionRequest};
use leeward_format::op::OpError;
use leeward_format::status::RegionStatus;
use leeward_format::table::NewTable;
use std::thread;

/// Requests a split, and returns the node's answer.
pub(super) fn split(server: &Server, region: u32, at: Option<&'static str>) -> OpResult {
    request_for(server, region, RegionRequest::Split { at: at.map(Into::into) })
}

/// First keys of the regions, each of which begins where the one before ends.
fn starts(map: &RegionMap) -> Vec<String> {
    let ends = map.regions.iter().map(|group| group.end.clone());
    assert!(map.regions.iter().skip(1).map(|group| Some(group.start.clone())).eq(ends.take(map.regions.len() - 1)));
    assert!(map.regions[0].start.is_empty() && map.regions.last().expect("a region").end.is_none());
    map.regions.iter().map(|group| String::from_utf8_lossy(&group.start).into_owned()).collect()
}

/// Whether the nodes have trimmed so often that no region has anything of another's.
fn is_trimmed(cluster: &Cluster) -> bool {
    region_statuses(cluster).iter().map(|region| region.counters.trims).sum::<u64>() >= 4
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
            // Time for each region to be trimmed.
            thread::sleep(Duration::from_millis(100));
        }
    });
    let found = map(first);
    assert_eq!(found.regions.len(), 7, "{:?}", starts(&found));
    assert!(found.regions.iter().all(|group| group.desired.plan.is_none()));
    let begun = Instant::now();
    while !is_trimmed(&cluster) {
        assert!(begun.elapsed() < TIMEOUT, "nothing is trimmed");
        thread::sleep(Duration::from_millis(20));
    }
    for number in 0..4_000 {
        client.send(format!("GET b{number:04}\r\n").as_bytes());
    }
    for number in 0..4_000 {
        let reply = client.reply();
        let written =
            (0..4_000).find(|written| written * 37 % 4_000 == number).expect("37 and 4,000 have no common factor");
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
        assert!(begun.elapsed() < TIMEOUT, "{:?}", plan());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(plan().and_then(|plan| plan.waits_for).as_deref(), Some("no key halves it: it has too few"));
    assert_eq!(request_for(server, 1, RegionRequest::KeepBounds), OpResult::Done);
    wait_for(server, "the plan is forgotten", |map| map.regions.iter().all(|group| group.desired.plan.is_none()));
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

/// Pairs of the table that is to grow, and bytes of each value: the master splits its regions from 32 MiB on.
const PAIRS: usize = 12_000;
const VALUE_BYTES: usize = 8 << 10;

/// The regions of the table that grows.
fn grown(server: &Server) -> Vec<GroupConfig> {
    map(server).regions.into_iter().filter(|group| group.table == "grows").collect()
}

#[test]
fn a_table_that_grows_is_split_by_the_master_and_no_write_fails() {
    let cluster = Cluster::start_with(3, |config| {
        config.master.split_cooldown_seconds = 1;
        // A machine that builds meanwhile gives a node no turn for longer than the usual lease.
        config.replication.lease_ms = 3_000;
    });
    let first = &cluster.servers[0];
    let table = TableOptions { name: "grows".into(), split_bytes: 32 << 20, ..TableOptions::default() };
    let table = Box::new(NewTable::new(table, Vec::new()));
    assert_eq!(request(&first.info().native_address, &Op::CreateTable { table }), OpResult::Done);
    wait_for(first, "the groups are whole", |map| map.regions.len() == 3 && is_whole(map));
    let mut client = cluster.client(0);
    let begun = Instant::now();
    while client.run("SELECT grows") != "+OK" || client.run("SET k 1") != "+OK" {
        assert!(begun.elapsed() < TIMEOUT, "the table is never served");
        thread::sleep(Duration::from_millis(10));
    }
    let value = "v".repeat(VALUE_BYTES - 5);
    let begun = Instant::now();
    let (mut written, mut regions) = (0, 1);
    // On and on, until there are three.
    while regions < 3 || written < PAIRS {
        for number in written..written + 100 {
            let number = number * 7_919 % PAIRS;
            client.send(format!("SET k{number:05} {value}{number:05}\r\n").as_bytes());
        }
        for _ in 0..100 {
            assert_eq!(client.reply(), "+OK");
        }
        written += 100;
        regions = grown(first).len();
        assert!(begun.elapsed() < 8 * TIMEOUT, "{written} pairs are written, and there are {regions} regions");
    }
    for number in 0..PAIRS {
        client.send(format!("GET k{number:05}\r\n").as_bytes());
        assert_eq!(client.reply(), format!("{value}{number:05}"), "key {number}");
    }
    // The table settles, with no region of more bytes than there should be, none empty, and no plan left.
    let is_small = |region: &RegionStatus| region.bytes < 64 << 20;
    let begun = Instant::now();
    loop {
        let groups = grown(first);
        let ours = |region: &RegionStatus| groups.iter().any(|group| group.region == region.region);
        let all: Vec<_> = region_statuses(&cluster).into_iter().filter(ours).collect();
        if groups.iter().all(|group| group.desired == Default::default()) && all.iter().all(is_small) {
            assert!((3..=12).contains(&groups.len()), "{} regions", groups.len());
            break;
        }
        assert!(begun.elapsed() < 4 * TIMEOUT, "it does not settle: {all:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// One of two regions has all of the load.
#[test]
fn a_hot_region_is_split_by_the_master_and_its_halves_are_spread() {
    let cluster =
        Cluster::start_with(3, |config| (config.master.split_cooldown_seconds, config.master.split_ops) = (600, 300));
    let first = &cluster.servers[0];
    let mut client = cluster.client(0);
    assert_eq!(client.run_until_served("SET a000 1"), "+OK");
    assert_eq!(client.run_until_served("SET z000 1"), "+OK");
    wait_for(first, "the groups are whole", is_whole);
    let begun = Instant::now();
    let mut turn = 0;
    // Half of the operations are on the last fifth of the keys.
    let is_spread = |map: &RegionMap| {
        let hot: Vec<_> = map.regions.iter().filter(|group| group.start < "m").collect();
        hot.len() == 2 && hot[1].start > "a700" && hot[0].primary != hot[1].primary
    };
    while !is_spread(&map(first)) {
        for number in 0..200 {
            let key = 999 - (number * number * 31 + turn * 7) % 1_000 * (turn % 3 + 1) / 4;
            client.send(format!("SET a{key:03} {turn}\r\n").as_bytes());
        }
        for _ in 0..200 {
            assert_eq!(client.reply(), "+OK");
        }
        turn += 1;
        // Thousands of operations a second are far more than it takes.
        thread::sleep(Duration::from_millis(20));
        assert!(begun.elapsed() < 8 * TIMEOUT, "it is not: {:?}", map(first).regions);
    }
}
