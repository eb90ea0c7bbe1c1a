//! Clients that ask for much and read nothing, or hold a little each and are many, of real nodes: no node holds more for all
//! of them than the clients' share, whether it is the primary or forwards to it, and others are served.

use super::*;

const VALUE_BYTES: usize = 1_000_000;
/// A quarter of the budget of 128 MiB, and a step: a value, its reply, and what was on its way from another node.
const MOST_BYTES: u64 = (32 << 20) + (20 << 20);

#[test]
fn clients_that_read_nothing_do_not_take_the_memory_of_others() {
    let cluster = Cluster::start_with(3, |config| config.clients.max_connections = 100);
    let value = "v".repeat(VALUE_BYTES);
    let put = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE_BYTES}\r\n{value}\r\n");
    let mut others: Vec<Client> = (0..3).map(|node| cluster.client(node)).collect();
    assert_eq!(others[0].run_until_served("SET k first"), "+OK");
    others[0].send(put.as_bytes());
    assert_eq!(others[0].reply(), "+OK");
    let hoarders: Vec<Client> = (0..45)
        .map(|n| {
            let mut hoarder = cluster.client(n % 3);
            hoarder.send("GET k\r\n".repeat(if n < 3 { 1_024 } else { 64 }).as_bytes());
            hoarder
        })
        .collect();
    for _ in 0..50 {
        for (node, other) in others.iter_mut().enumerate() {
            // A read that waits too long for memory gets an error, and is tried again.
            assert_eq!(other.run_until_served("EXISTS k"), ":1", "of node {node}");
            let held = cluster.servers[node].snapshot().expect("its figures").status.memory.clients;
            assert!(held <= MOST_BYTES, "node {node} holds {held} bytes for clients");
        }
    }
    drop(hoarders);
    let begun = Instant::now();
    while cluster.servers.iter().any(|node| node.snapshot().expect("its figures").status.memory.clients > 4 << 20) {
        assert!(begun.elapsed() < Duration::from_secs(30), "what they held is not given back");
        std::thread::sleep(Duration::from_millis(10));
    }
    for other in &mut others {
        assert_eq!(other.run("GET k").len(), VALUE_BYTES);
    }
}

#[test]
fn many_clients_that_hold_a_little_do_not_stop_a_node() {
    let cluster = Cluster::start_with(1, |config| {
        config.clients.max_connections = 500;
        // A quarter of it is for clients.
        config.storage.memory_budget = 16 << 20;
    });
    let mut other = cluster.client(0);
    assert_eq!(other.run_until_served("SET k v"), "+OK");
    // Each keeps what its pipeline has needed, and then begins a request that it does not end.
    let mut hoarders: Vec<Client> = (0..400).map(|_| cluster.client(0)).collect();
    for hoarder in &mut hoarders {
        hoarder.send("GET k\r\n".repeat(60).as_bytes());
        assert!((0..60).all(|_| hoarder.reply() == "v"));
    }
    assert_eq!(other.run("GET k"), "v", "idle clients hold nothing back");
    let metrics = || http(&cluster.servers[0].info().admin_address, "/metrics").1;
    let none = "leeward_connections_dropped_total{reason=\"memory\"} 0\n";
    assert!(metrics().contains(none), "no idle client was disconnected");
    for hoarder in &mut hoarders {
        // It may have been disconnected.
        drop(hoarder.stream.get_mut().write_all(b"*2\r\n$15000\r\nx"));
    }
    let begun = Instant::now();
    while metrics().contains(none) {
        assert!(begun.elapsed() < Duration::from_secs(30), "they never filled the account");
        assert_eq!(other.run("GET k"), "v", "clients that wait hold it back for a moment only");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(other.run("GET k"), "v");
}
