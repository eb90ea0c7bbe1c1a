//! Several tables on real nodes: made by any node, at the same time, while a node is down, and there after a restart.

use super::identity::{ask_in, request};
use super::moves::{TIMEOUT, is_whole, map, wait_for};
use super::*;
use leeward_format::cluster::{GroupConfig, IndexKind, RegionMap, RegionRequest};
use leeward_format::op::{HashIndexQuestion, HashIndexState, OpError};
use leeward_format::table::{NewTable, TableChange};

/// More than a piece of the walk that fills an index.
const FILLED: u64 = 1_000;

fn create(cluster: &Cluster, node: usize, name: &str, splits: &[&'static str]) -> OpResult {
    let replicas = 3;
    let options = TableOptions { name: name.into(), replicas, min_in_sync: 2, ..TableOptions::default() };
    let splits = splits.iter().map(|key| (*key).into()).collect();
    let table = Box::new(NewTable::new(options, splits));
    request(&cluster.servers[node].info().native_address, &Op::CreateTable { table })
}

/// A client that has selected `table`, as soon as its node knows the table.
pub(super) fn select(cluster: &Cluster, node: usize, table: &str) -> Client {
    let begun = Instant::now();
    let mut client = cluster.client(node);
    loop {
        let reply = client.run(&format!("SELECT {table}"));
        if reply == "+OK" || begun.elapsed() > Duration::from_secs(30) {
            assert_eq!(reply, "+OK");
            return client;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn tables_are_made_by_any_node_and_keep_their_pairs_apart() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).run_until_served("SET key default"), "+OK");
    assert!(cluster.client(0).run("SELECT orders").starts_with("-ERR there is no table orders;"));
    assert_eq!(create(&cluster, 0, "orders", &["g", "p"]), OpResult::Done);
    let again = create(&cluster, 1, "orders", &[]);
    assert_eq!(again, OpResult::Error(OpError::Invalid("there is a table orders already".into())));
    for node in 0..3 {
        let mut client = select(&cluster, node, "orders");
        for key in ["apple", "key", "zebra"] {
            assert_eq!(client.run_until_served(&format!("SET {key}{node} order")), "+OK");
        }
    }
    let mut orders = select(&cluster, 1, "orders");
    assert_eq!(orders.run("GET key"), "$-1");
    assert_eq!(orders.run("SET key order"), "+OK");
    let all = "apple0 apple1 apple2 key key0 key1 key2 zebra0 zebra1 zebra2";
    assert_eq!(orders.run("KRANGE - + KEYS"), all);
    assert_eq!(orders.run("KRANGE - + REV KEYS LIMIT 2"), "zebra2 zebra1");
    let scanned = cluster.client(2).run_until_served("KRANGE - + KEYS");
    assert_eq!(scanned, "key", "a scan stops at its table's end");
    assert_eq!(cluster.client(2).run("GET key"), "default");

    // One node is down: the others are enough to make a table and to write to it.
    cluster.servers.pop().expect("node 3").stop();
    let begun = Instant::now();
    // Until then a region of the new table could be given to it.
    while cluster.servers[0].snapshot().expect("the node answers").map.servers.len() > 2 {
        assert!(begun.elapsed() < Duration::from_secs(30), "its session ends");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(create(&cluster, 0, "late", &["m"]), OpResult::Done);
    let mut late = select(&cluster, 1, "late");
    assert_eq!(late.run_until_served("SET a 1"), "+OK");
    assert_eq!(late.run_until_served("SET z 2"), "+OK");

    // All stop and start again.
    drop((orders, late));
    std::mem::take(&mut cluster.servers).into_iter().for_each(Server::stop);
    for id in 1..=3 {
        let server = start(&cluster.config(id, 3)).expect("the node again");
        cluster.servers.push(server);
    }
    let mut late = select(&cluster, 2, "late");
    assert_eq!((late.run_until_served("GET a"), late.run_until_served("GET z")), ("1".into(), "2".into()));
    let mut orders = select(&cluster, 2, "orders");
    for key in ["apple0", "key0", "zebra0"] {
        assert_eq!(orders.run_until_served(&format!("GET {key}")), "order");
    }
    assert_eq!(orders.run("KRANGE - + KEYS"), all);
}

#[test]
fn of_creations_at_the_same_time_each_name_is_made_once() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    for node in 1..3 {
        assert_eq!(cluster.client(node).run_until_served("GET a"), "1", "the node is part of the cluster");
    }
    let cluster = &cluster;
    let results: Vec<(String, OpResult)> = std::thread::scope(|scope| {
        let creating = (0..9).map(|request| {
            let name = format!("t{}", request % 6);
            scope.spawn(move || (name.clone(), create(cluster, request % 3, &name, &["m"])))
        });
        let threads: Vec<_> = creating.collect();
        threads.into_iter().map(|thread| thread.join().expect("it is answered")).collect()
    });
    for table in 0..6 {
        let of_table = results.iter().filter(|(name, _)| *name == format!("t{table}"));
        let (made, refused): (Vec<_>, Vec<_>) = of_table.partition(|(_, result)| *result == OpResult::Done);
        assert_eq!(made.len(), 1, "t{table}: {results:?}");
        let exists = OpResult::Error(OpError::Invalid(format!("there is a table t{table} already")));
        assert!(refused.iter().all(|(_, result)| *result == exists), "t{table}: {results:?}");
        let mut client = select(cluster, 0, &format!("t{table}"));
        assert_eq!(client.run_until_served(&format!("SET a {table}")), "+OK");
        assert_eq!(client.run_until_served(&format!("SET z {table}")), "+OK");
        assert_eq!(client.run("DBSIZE"), ":2");
    }
    let map = cluster.servers[0].snapshot().expect("the node answers").map;
    assert_eq!(map.tables.len(), 7);
    let mut numbers: Vec<u32> = map.regions.iter().map(|config| config.region.0).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=14).collect::<Vec<_>>(), "each region has a number of its own");
}

/// Bytes of segments in use at a node, and the regions that it knows or has data of. Segments of regions that it is
/// primary of do not count: when a backup comes back, its primary may begin another segment for it.
fn holdings(server: &Server) -> (u64, Vec<u32>, Vec<u32>) {
    let snapshot = server.snapshot().expect("the node answers");
    let of_primaries: u64 = snapshot.status.regions.iter().map(|region| region.bytes).sum();
    let configured = snapshot.map.regions.iter().map(|config| config.region.0).collect();
    let here = snapshot.status.regions.iter().map(|region| region.region.0).collect();
    (snapshot.status.device.expect("it tells").segment_bytes_used - of_primaries, configured, here)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_table_that_is_dropped_leaves_nothing_behind() {
    let mut cluster = Cluster::start(3);
    for key in ["key", "z"] {
        assert_eq!(cluster.client(0).run_until_served(&format!("SET {key} default")), "+OK");
    }
    let used = |cluster: &Cluster| cluster.servers.iter().map(|server| holdings(server).0).collect::<Vec<_>>();
    wait_until("all members are in sync", || {
        let map = cluster.servers[0].snapshot().expect("the node answers").map;
        map.regions.iter().all(|config| config.in_sync().count() == 3)
    });
    let mut before = used(&cluster);
    wait_until("each has the segments that it needs", || {
        std::thread::sleep(Duration::from_millis(500));
        let last = std::mem::replace(&mut before, used(&cluster));
        last == before
    });
    assert_eq!(create(&cluster, 0, "orders", &["g", "p"]), OpResult::Done);
    let mut orders = select(&cluster, 1, "orders");
    for key in ["apple", "key", "zebra"] {
        assert_eq!(orders.run_until_served(&format!("SET {key} order")), "+OK");
    }
    let is_free = |used: Vec<u64>| used.iter().zip(&before).all(|(used, before)| used <= before);
    wait_until("members have segments of the logs", || !is_free(used(&cluster)));
    // A node that is down meanwhile finds out when it is back.
    let down = cluster.servers.pop().expect("node 3");
    down.stop();
    let drop_it = |cluster: &Cluster, table: &str| {
        let table = table.parse().expect("a name");
        request(&cluster.servers[0].info().native_address, &Op::DropTable { table })
    };
    assert_eq!(drop_it(&cluster, "orders"), OpResult::Done);
    for refused in [drop_it(&cluster, "orders"), drop_it(&cluster, "default")] {
        assert!(matches!(refused, OpResult::Error(OpError::Invalid(_))), "{refused:?}");
    }
    wait_until("the node has heard of it", || orders.run("GET key").starts_with("-ERR there is no table orders"));
    let is_clean =
        |server: &Server| matches!(holdings(server), (_, configured, here) if configured == [1, 2] && here == [1, 2]);
    wait_until("regions and copies are gone", || cluster.servers.iter().all(is_clean));
    let server = start(&cluster.config(3, 3)).expect("the node again");
    cluster.servers.push(server);
    wait_until("its copies are gone as well", || is_clean(&cluster.servers[2]));
    wait_until("the space is free", || is_free(used(&cluster)));

    // Another of that name is another.
    assert_eq!(create(&cluster, 2, "orders", &[]), OpResult::Done);
    let mut orders = select(&cluster, 0, "orders");
    assert_eq!(orders.run_until_served("GET key"), "$-1");
    assert_eq!(holdings(&cluster.servers[0]).1, [1, 2, 6]);
    assert_eq!(cluster.client(1).run_until_served("GET key"), "default");
}

#[test]
fn a_copy_that_was_moved_away_is_destroyed_after_a_while() {
    let cluster = Cluster::start(4);
    assert_eq!(create(&cluster, 0, "orders", &[]), OpResult::Done);
    let mut orders = select(&cluster, 0, "orders");
    assert_eq!(orders.run_until_served("SET key order"), "+OK");
    let region = RegionId(3);
    let group = || {
        let map = cluster.servers[0].snapshot().expect("the node answers").map;
        map.regions.into_iter().find(|config| config.region == region).expect("it is there")
    };
    wait_until("three members are in sync", || group().in_sync().count() == 3);
    let members: Vec<u32> = group().members().map(|member| member.server.0).collect();
    let to = (1..=4).find(|server| !members.contains(server)).expect("a server has no copy");
    let from = members[2];
    let requested = RegionRequest::Move { from: ServerId(from), to: ServerId(to) };
    let requested = Op::RequestRegion { region, request: requested };
    assert_eq!(request(&cluster.servers[0].info().native_address, &requested), OpResult::Done);
    let has = |server: u32| holdings(&cluster.servers[server as usize - 1]).2.contains(&region.0);
    wait_until("the copy is where it was requested", || {
        group().in_sync().count() == 3 && group().in_sync().all(|member| member.server.0 != from)
    });
    assert!(has(from), "it may be asked back");
    wait_until("the old copy is not needed any more", || !has(from));
    assert!(members[..2].iter().chain([&to]).all(|server| has(*server)));
    assert_eq!(orders.run("GET key"), "order");
}

/// The primary of a served region follows: it lets clients read a hash index while the table has one.
#[test]
fn the_kind_of_index_changes_while_a_region_is_served() {
    let cluster = Cluster::start(3);
    assert_eq!(create(&cluster, 0, "orders", &[]), OpResult::Done);
    let mut client = select(&cluster, 0, "orders");
    assert_eq!(client.run_until_served("SET key 1"), "+OK");
    for number in 0..FILLED {
        assert_eq!(client.run_until_served(&format!("SET filled{number} {number}")), "+OK");
    }
    wait_for(&cluster.servers[0], "every replica is in sync", is_whole);
    let group = || map(&cluster.servers[0]).regions_of("orders")[0].clone();
    let before = group();
    let region = before.region;
    let is_primary = |server: &&Server| before.primary == Some(server.info().member);
    let primary = &cluster.servers.iter().find(is_primary).expect("one serves").info().native_address;
    let question = HashIndexQuestion { region, nonce: 0, version: 0, read: Vec::new() };
    let may_read = || match ask_in(primary, "orders", Op::HashIndex(Box::new(question.clone()))) {
        OpResult::HashIndex(answer) => matches!(answer.state, HashIndexState::Granted { .. }),
        other => panic!("{other:?}"),
    };
    assert!(!may_read());
    for (index, wanted) in [(IndexKind::Hybrid, true), (IndexKind::Lsm, false), (IndexKind::Hybrid, true)] {
        let name = "orders".parse().expect("a name");
        let change = Box::new(TableChange { name, index: Some(index), ..TableChange::default() });
        assert_eq!(request(&cluster.servers[1].info().native_address, &Op::AlterTable { change }), OpResult::Done);
        for server in &cluster.servers {
            let has = |map: &RegionMap| map.table("orders").is_some_and(|table| table.reads.index == index);
            wait_for(server, "the change", has);
        }
        let begun = Instant::now();
        while may_read() != wanted {
            assert!(begun.elapsed() < TIMEOUT, "the primary has not heard of {index}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(client.run_until_served("INCR key").starts_with(':'));
        // A new index is filled with what the region has, without a read.
        let has_all = || {
            let regions = cluster.servers.iter().flat_map(|server| server.snapshot().expect("it runs").status.regions);
            let mut of_it = regions.filter(|status| status.region == region);
            of_it.any(|status| status.hash_index.records == FILLED + 1)
        };
        while wanted && !has_all() {
            assert!(begun.elapsed() < TIMEOUT, "the index is not filled");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert_eq!(client.run("GET key"), "4");
    let term_and_members = |group: GroupConfig| (group.term, group.backups, group.learners);
    assert_eq!(term_and_members(group()), term_and_members(before), "no member was built anew");
}
