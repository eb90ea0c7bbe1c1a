//! The master spreads copies and primary roles while clients write: real nodes.

use super::identity::request;
use super::*;
use leeward_format::cluster::{GroupConfig, Intent, RegionMap};
use leeward_format::table::NewTable;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const REGIONS: usize = 12;
/// Machines that test are slow and busy.
const TIMEOUT: Duration = Duration::from_secs(240);

fn is_whole(map: &RegionMap) -> bool {
    let is_still = |group: &GroupConfig| {
        let is_requested = group.desired.primary.is_some() || group.desired.leaving.is_some();
        group.in_sync().count() == 3 && group.learners.is_empty() && !is_requested
    };
    map.regions.len() == REGIONS + 2 && map.regions.iter().all(is_still)
}

/// How many regions each of `servers` is primary of, and has a copy of.
fn shares(map: &RegionMap, servers: &[u32]) -> Vec<(usize, usize)> {
    let of = |server: &u32| {
        let server = ServerId(*server);
        let primaries =
            map.regions.iter().filter(|group| group.primary.is_some_and(|primary| primary.server == server));
        let copies = map.regions.iter().filter(|group| group.members().any(|member| member.server == server));
        (primaries.count(), copies.count())
    };
    servers.iter().map(of).collect()
}

fn wait_for(server: &Server, what: &str, is_so: impl Fn(&RegionMap) -> bool) {
    let begun = Instant::now();
    loop {
        let map = server.snapshot().expect("the node answers").map;
        if is_so(&map) {
            return;
        }
        let found = shares(&map, &[1, 2, 3, 4, 5]);
        assert!(begun.elapsed() < TIMEOUT, "{what} never: {found:?} {:?}", map.regions);
        thread::sleep(Duration::from_millis(50));
    }
}

/// Counts a key of each region up by way of a node until it is told to stop; every answer must be the next number.
fn count(mut client: Client, node: usize, is_over: &AtomicBool) -> u64 {
    let mut counted = 0;
    while !is_over.load(Ordering::Relaxed) {
        counted += 1;
        for region in 0..REGIONS {
            assert_eq!(client.run(&format!("INCR {region:02}-{node}")), format!(":{counted}"));
        }
    }
    counted
}

#[test]
fn servers_that_come_get_their_share_and_give_it_back_when_they_leave() {
    let mut cluster = Cluster::start(3);
    let address = cluster.servers[0].info().native_address.clone();
    let options = TableOptions { name: "wide".into(), replicas: 3, min_in_sync: 2, ..TableOptions::default() };
    let splits = (1..REGIONS).map(|region| format!("{region:02}").into()).collect();
    let table = Box::new(NewTable::new(options, splits));
    assert_eq!(request(&address, &Op::CreateTable { table }), OpResult::Done);
    wait_for(&cluster.servers[0], "the regions are whole", is_whole);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut counting = Vec::new();
        for node in 0..3 {
            let mut client = cluster.client(node);
            let begun = Instant::now();
            while client.run("SELECT wide") != "+OK" {
                assert!(begun.elapsed() < TIMEOUT, "the table is never known");
                thread::sleep(Duration::from_millis(10));
            }
            for region in 0..REGIONS {
                assert_eq!(client.run_until_served(&format!("SET {region:02}-{node} 0")), "+OK");
            }
            let is_over = &is_over;
            counting.push(scope.spawn(move || count(client, node, is_over)));
        }
        for id in [4, 5] {
            let server = start(&cluster.config(id, 3)).expect("another node");
            cluster.servers.push(server);
        }
        let is_spread = |map: &RegionMap| {
            // 42 copies and 14 primary roles for five servers.
            let shares = shares(map, &[1, 2, 3, 4, 5]);
            shares.iter().all(|(primaries, copies)| (1..=5).contains(primaries) && (7..=10).contains(copies))
        };
        wait_for(&cluster.servers[0], "all have alike", |map| is_whole(map) && is_spread(map));
        for id in [4, 5] {
            let leave = Op::Intend { server: ServerId(id), intent: Some(Intent::Leave) };
            assert_eq!(request(&address, &leave), OpResult::Done);
        }
        let is_left = |map: &RegionMap| shares(map, &[4, 5]) == [(0, 0), (0, 0)];
        wait_for(&cluster.servers[0], "they have left", |map| is_whole(map) && is_left(map));
        for server in cluster.servers.drain(3..) {
            server.stop();
        }
        let is_even =
            |map: &RegionMap| shares(map, &[1, 2, 3]).iter().all(|(primaries, _)| (3..=7).contains(primaries));
        wait_for(&cluster.servers[0], "primary roles are even again", |map| is_whole(map) && is_even(map));
        is_over.store(true, Ordering::Relaxed);
        for thread in counting {
            assert!(thread.join().expect("every answer was right") > 2);
        }
    });
}
