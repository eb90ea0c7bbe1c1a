//! A table that is partitioned by hash, or by slots, on real nodes: any node answers for any key, and operations on ranges see one
//! sorted map, whatever the regions of the keys.

use super::identity::request;
use super::tables::select;
use super::*;
use leeward_format::cluster::RegionRequest;
use leeward_format::op::{OpError, RangeOp, ScanRange};
use leeward_format::partition::Partition;
use leeward_format::table::NewTable;
use std::collections::BTreeMap;

const TOKENS: u32 = 5;
const KEYS: u32 = 400;

type Map = BTreeMap<String, String>;

fn key(number: u32) -> String {
    format!("{}{:04}", ["a", "b", "m", "z"][number as usize % 4], number.wrapping_mul(7_919) % 10_000)
}

fn make(cluster: &Cluster, partition: Partition) {
    let options =
        TableOptions { name: "hashed".into(), replicas: 3, min_in_sync: 2, partition, ..TableOptions::default() };
    let table = Box::new(NewTable::new(options, Vec::new()));
    let made = request(&cluster.servers[0].info().native_address, &Op::CreateTable { table });
    assert_eq!(made, OpResult::Done);
}

/// The keys of a table by `SCAN`, so many at a time.
fn by_cursor(client: &mut Client, count: u32) -> Vec<String> {
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let reply = client.run(&format!("SCAN {cursor} COUNT {count}"));
        let mut words = reply.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
        cursor = words.next().expect("a cursor");
        keys.extend(words);
        if cursor == "0" {
            return keys;
        }
    }
}

fn check(client: &mut Client, map: &Map) {
    let keys: Vec<&str> = map.keys().map(String::as_str).collect();
    let backwards: Vec<&str> = keys.iter().rev().copied().collect();
    let all: Vec<&str> = map.iter().flat_map(|(key, value)| [&key[..], value]).collect();
    assert_eq!(client.run_until_served("KRANGE - +"), all.join(" "));
    assert_eq!(client.run("KRANGE - + REV KEYS"), backwards.join(" "));
    for limit in [1, 7, 100] {
        assert_eq!(client.run(&format!("KRANGE - + KEYS LIMIT {limit}")), keys[..limit].join(" "));
        assert_eq!(client.run(&format!("KRANGE - + REV KEYS LIMIT {limit}")), backwards[..limit].join(" "));
    }
    let inside = |from: &str, to: &str| -> Vec<&str> {
        keys.iter().filter(|key| **key >= from && **key < to).copied().collect()
    };
    assert_eq!(client.run("KRANGE b5 m5 KEYS"), inside("b5", "m5").join(" "));
    assert_eq!(client.run("KPREFIX m KEYS"), inside("m", "n").join(" "));
    assert_eq!(client.run("KEYS z*"), inside("z", "{").join(" "));
    for count in [3, 50] {
        assert_eq!(by_cursor(client, count), keys);
    }
}

#[test]
fn what_is_scattered_by_hash_is_scanned_in_order() {
    scans_are_in_order(Partition::Hash { tokens: TOKENS });
}

#[test]
fn what_is_scattered_by_slots_is_scanned_in_order() {
    scans_are_in_order(Partition::Slots { tokens: TOKENS });
}

fn scans_are_in_order(partition: Partition) {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).run_until_served("SET key default"), "+OK");
    make(&cluster, partition);
    let mut map = Map::new();
    let mut clients: Vec<Client> = (0..3).map(|node| select(&cluster, node, "hashed")).collect();
    for number in 0..KEYS {
        let client = &mut clients[number as usize % 3];
        assert_eq!(client.run_until_served(&format!("SET {} {number}", key(number))), "+OK");
        map.insert(key(number), number.to_string());
    }
    for (number, client) in clients.iter_mut().enumerate() {
        check(client, &map);
        assert_eq!(client.run(&format!("GET {}", key(number as u32 + 9))), (number + 9).to_string());
    }
    let region_map = cluster.servers[0].snapshot().expect("the node answers").map;
    let regions: Vec<RegionId> = region_map.regions_of("hashed").iter().map(|group| group.region).collect();
    assert_eq!(regions.len(), TOKENS as usize);
    let mut primaries: Vec<u32> =
        region_map.regions_of("hashed").iter().filter_map(|group| Some(group.primary?.server.0)).collect();
    primaries.sort_unstable();
    assert_eq!(primaries, [1, 1, 2, 2, 3], "they go round the servers");

    // Each region has some of every range, and says so of its own part alone.
    let native = cluster.servers[1].info().native_address.clone();
    let scan =
        || RangeOp::Scan(ScanRange { start: "".into(), end: None, reverse: false, limit: 1_000, keys_only: true });
    let mut found = Vec::new();
    for region in &regions {
        let answer = identity::ask_in(&native, "hashed", scan().within(*region));
        let OpResult::Entries { entries, resume: None } = answer else { panic!("{answer:?}") };
        assert!(entries.len() > 40, "region {region} has {}", entries.len());
        found.extend(entries.into_iter().map(|(key, _)| String::from_utf8_lossy(&key).into_owned()));
    }
    found.sort_unstable();
    assert!(found.iter().eq(map.keys()));
    // A client that does not know that gets an error, and not a part for the whole.
    let answer = identity::ask_in(&native, "hashed", Op::from(scan()));
    let OpResult::Error(OpError::Invalid(why)) = answer else { panic!("{answer:?}") };
    assert!(why.contains("partitioned by hash"), "{why}");
    // Such regions cannot be split either.
    let split = Op::RequestRegion { region: regions[0], request: RegionRequest::Split { at: None } };
    let OpResult::Error(OpError::Invalid(why)) = request(&native, &split) else { panic!("it was written down") };
    assert!(why.contains("as many regions as it has tokens"), "{why}");

    assert_eq!(clients[2].run("KDELRANGE a5 b5"), "+OK");
    map.retain(|key, _| &key[..] < "a5" || &key[..] >= "b5");
    check(&mut clients[0], &map);
    drop(clients);
    cluster.servers.pop().expect("node 3").stop();
    check(&mut select(&cluster, 1, "hashed"), &map);
}
