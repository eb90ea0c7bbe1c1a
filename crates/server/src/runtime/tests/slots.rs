//! A table that is partitioned by slots, and clients in cluster mode, on real nodes: they go to the primaries by
//! themselves, through a transfer of a primary role and after a node is gone.

use super::identity::request;
use super::moves::{TIMEOUT, map, request_for, wait_for};
use super::*;
use leeward_format::cluster::RegionRequest;
use leeward_format::partition::Partition;
use leeward_format::slot::slot_of;
use leeward_format::table::NewTable;
use std::collections::BTreeMap;

/// A client in cluster mode that knows just enough: it goes where it was sent last, or where `CLUSTER NODES` says.
struct Directed {
    connections: BTreeMap<String, Client>,
    masters: BTreeMap<u16, String>,
    /// Answers that sent it elsewhere.
    redirected: u32,
}

impl Directed {
    /// A client that has asked the node at `address`.
    fn of(address: &str) -> Directed {
        let mut client = Client::connect(address);
        let nodes = client.run("CLUSTER NODES");
        let mut masters = BTreeMap::new();
        for line in nodes.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let address = words[1].strip_suffix("@0").expect("a node without a bus").to_owned();
            for (first, last) in words[8..].iter().map(|range| range.split_once('-').expect("a range")) {
                let slots = first.parse::<u16>().expect("a slot")..=last.parse().expect("a slot");
                masters.extend(slots.map(|slot| (slot, address.clone())));
            }
        }
        Directed { connections: BTreeMap::from([(address.to_owned(), client)]), masters, redirected: 0 }
    }

    /// The address of a key's master.
    fn master(&self, key: &str) -> &str {
        &self.masters[&slot_of(key.as_bytes())]
    }

    /// Follows redirections, and tries again while the cluster is not ready. Nodes that have not heard of a new primary
    /// may send it back and forth for a while.
    fn run(&mut self, key: &str, command: &str) -> String {
        let begun = Instant::now();
        loop {
            let address = self.master(key).to_owned();
            let client = self.connections.entry(address.clone()).or_insert_with(|| Client::connect(&address));
            let reply = client.run_until_served(command);
            let Some(moved) = reply.strip_prefix("-MOVED ") else { return reply };
            let (slot, address) = moved.split_once(' ').expect("a slot and an address");
            let slot: u16 = slot.parse().expect("a slot");
            assert_eq!(slot, slot_of(key.as_bytes()));
            self.masters.insert(slot, address.to_owned());
            self.redirected += 1;
            assert!(begun.elapsed() < TIMEOUT, "{command} is sent from node to node");
        }
    }
}

/// Three nodes. Database 0 is a table of three regions by slots, each with a primary of its own.
fn start_carts() -> Cluster {
    let cluster = Cluster::start_with(3, |config| config.clients.redis_table = "carts".parse().expect("a name"));
    assert!(cluster.client(0).run("CLUSTER SLOTS").starts_with('-'), "there is no such table yet");
    let partition = Partition::Slots { tokens: 3 };
    let options =
        TableOptions { name: "carts".into(), replicas: 3, min_in_sync: 2, partition, ..TableOptions::default() };
    let begun = Instant::now();
    // The node may not have found the cluster yet.
    loop {
        let table = Box::new(NewTable::new(options.clone(), Vec::new()));
        let made = request(&cluster.servers[0].info().native_address, &Op::CreateTable { table });
        if made == OpResult::Done {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{made:?}");
    }
    for server in &cluster.servers {
        wait_for(server, "the table is whole", |map| {
            let regions = map.regions_of("carts");
            regions.len() == 3 && regions.iter().all(|group| group.in_sync().count() == 3)
        });
    }
    cluster
}

#[test]
fn clients_in_cluster_mode_go_to_the_primaries_and_follow_them() {
    let cluster = start_carts();
    let addresses: Vec<String> = cluster.servers.iter().map(|server| server.info().resp_address.clone()).collect();
    let mut clients: Vec<Directed> = addresses.iter().map(|address| Directed::of(address)).collect();
    // Slots 866, 5061, 11058 and 12182: of three regions, the first two of one.
    let keys = ["hello", "bar", "somekey", "foo"];
    for client in &clients {
        assert_eq!(client.masters, clients[0].masters, "all nodes say the same");
        assert_eq!(client.masters.len(), 16_384);
    }
    let mut counted = 0;
    for client in &mut clients {
        counted += 1;
        for key in keys {
            assert_eq!(client.run(key, &format!("INCR {key}")), format!(":{counted}"));
        }
        assert_eq!(client.redirected, 0, "the map is right");
    }

    // The primary of `foo` is moved to each server. A client counts on all the while, by its old map at first.
    let region = map(&cluster.servers[0]).regions_of("carts")[2].region;
    for server in [1, 2, 3] {
        let asked = request_for(&cluster.servers[0], region.0, RegionRequest::Primary(ServerId(server)));
        assert_eq!(asked, OpResult::Done);
        let wanted = &addresses[server as usize - 1];
        let begun = Instant::now();
        while clients[0].master("foo") != wanted {
            assert!(begun.elapsed() < TIMEOUT, "the client is never sent to server {server}");
            counted += 1;
            assert_eq!(clients[0].run("foo", "INCR foo"), format!(":{counted}"), "nothing is lost or done twice");
        }
    }
    assert!(clients[0].redirected >= 2, "at least two of three servers were new");

    // Any other client still works at any node.
    let mut plain = cluster.client(1);
    assert_eq!(plain.run("SELECT 1"), "+OK");
    assert_eq!(plain.run("MGET foo hello"), format!("{counted} 3"));
    assert_eq!(plain.run("KEYS *"), "bar foo hello somekey");
    // Clients in cluster mode put together what each node has.
    let of_node = |node: usize| cluster.client(node).run("KEYS *");
    let mut all: Vec<String> =
        (0..3).flat_map(|node| of_node(node).split(' ').map(str::to_owned).collect::<Vec<_>>()).collect();
    all.retain(|key| !key.is_empty());
    all.sort_unstable();
    assert_eq!(all, ["bar", "foo", "hello", "somekey"]);
}

#[test]
fn clients_in_cluster_mode_find_the_primaries_after_a_node_is_gone() {
    let mut cluster = start_carts();
    let keys = ["hello", "somekey", "foo", "bar"];
    let mut client = Directed::of(&cluster.servers[0].info().resp_address);
    for key in keys {
        assert_eq!(client.run(key, &format!("SET {key} 1")), "+OK");
    }
    let gone = cluster.servers.pop().expect("node 3");
    let address = gone.info().resp_address.clone();
    gone.stop();
    // At once: slots of a node that is gone are another's, or a node's that waits for the new primary.
    let begun = Instant::now();
    let mut client = loop {
        let client = Directed::of(&cluster.servers[0].info().resp_address);
        if !client.masters.values().any(|master| *master == address) {
            break client;
        }
        assert!(begun.elapsed() < TIMEOUT, "the node is named although it is gone");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(client.masters.len(), 16_384);
    for key in keys {
        assert_eq!(client.run(key, &format!("INCR {key}")), ":2", "{key}");
    }
}
