//! The volume of a primary is full, and those of its backups have room: real nodes.

use super::moves::{is_whole, map, wait_for};
use super::*;
use leeward_format::cluster::RegionMap;

const MIB: usize = 1 << 20;
const VALUE: usize = 256 << 10;
const CLIENTS: usize = 8;

/// The primary of the region with the first keys.
fn primary(map: &RegionMap) -> u32 {
    let group = map.regions.iter().find(|group| group.start.is_empty()).expect("a region has the first keys");
    group.primary.expect("it has a primary").server.0
}

/// A value that no compression makes smaller.
fn value(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b'a' + (state >> 59) as u8 % 26
    };
    std::iter::repeat_with(letter).take(VALUE).collect()
}

/// Sets a key of the first region, and says how long it took until that was done.
fn set(client: &mut Client, number: usize) -> Duration {
    let begun = Instant::now();
    loop {
        client.send(format!("*3\r\n$3\r\nSET\r\n$7\r\na{number:06}\r\n${VALUE}\r\n").as_bytes());
        client.send(&value(number));
        client.send(b"\r\n");
        let reply = client.reply();
        if reply == "+OK" {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{reply}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// It does not matter whether servers are balanced.
#[test]
fn a_full_primary_hands_over_and_writes_go_on() {
    let cluster = Cluster::start_with(3, |config| {
        config.master.balance = false;
        config.storage.capacity_bytes = (config.identity.server_id == 1).then_some(64 << 20);
    });
    wait_for(&cluster.servers[1], "the regions are whole", is_whole);
    assert_eq!(primary(&map(&cluster.servers[1])), 1, "the first region goes to the first server");
    let count = 96 * MIB / VALUE;
    let write = |mut client: Client, first| {
        (first..count).step_by(CLIENTS).map(|number| set(&mut client, number)).max().expect("some are set")
    };
    let longest = std::thread::scope(|scope| {
        let start = |first| (cluster.client(1), first);
        let clients: Vec<_> =
            (0..CLIENTS).map(start).map(|(client, first)| scope.spawn(move || write(client, first))).collect();
        clients.into_iter().map(|client| client.join().expect("its writes are done")).max().expect("a client")
    });
    // A fifth of a second, on a machine that has nothing else to do.
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    assert_ne!(primary(&map(&cluster.servers[1])), 1);
    let (_, status) = http(&cluster.servers[0].info().admin_address, "/status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let why = status["gets_no_roles"].as_str().unwrap_or_default();
    assert!(why.starts_with("its volume had no room for writes"), "{status}");
    let mut client = cluster.client(1);
    for number in (0..count).step_by(7) {
        assert_eq!(client.run(&format!("GET a{number:06}")).into_bytes(), value(number), "key {number}");
    }
}
