//! Primary roles are transferred, and servers leave and come back, while clients send requests: real nodes.

use super::identity::request;
use super::*;
use leeward_format::cluster::{Intent, RegionMap, RegionRequest};
use leeward_format::op::OpError;
use leeward_format::status::RegionStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn map(server: &Server) -> RegionMap {
    server.snapshot().expect("the node answers").map
}

/// The status of the regions of all nodes.
pub(super) fn region_statuses(cluster: &Cluster) -> Vec<RegionStatus> {
    let statuses = cluster.servers.iter().map(|server| server.snapshot().expect("the node answers").status);
    statuses.flat_map(|status| status.regions).collect()
}

/// Sends an operator's request for a region, and returns the node's answer.
pub(super) fn request_for(server: &Server, region: u32, requested: RegionRequest) -> OpResult {
    request(&server.info().native_address, &Op::RequestRegion { region: RegionId(region), request: requested })
}

pub(super) fn wait_for(server: &Server, what: &str, is_so: impl Fn(&RegionMap) -> bool) {
    let begun = Instant::now();
    loop {
        let map = map(server);
        if is_so(&map) {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{what} never: {:?}", map.regions);
        thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn is_whole(map: &RegionMap) -> bool {
    !map.regions.is_empty() && map.regions.iter().all(|group| group.in_sync().count() == 3)
}

fn primary(map: &RegionMap, region: u32) -> Option<u32> {
    let group = map.regions.iter().find(|group| group.region == RegionId(region))?;
    group.primary.map(|primary| primary.server.0)
}

/// Counts one key up by way of a node until it is told to stop; every answer must be the next number.
fn count(mut client: Client, key: &str, is_over: &AtomicBool) -> u64 {
    let mut counted = 0;
    while !is_over.load(Ordering::Relaxed) {
        counted += 1;
        assert_eq!(client.run(&format!("INCR {key}")), format!(":{counted}"));
    }
    counted
}

/// Ends the counting when this is dropped, also when something failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts one key up by way of a node until that closes the connection; returns how often it was answered.
fn count_until_closed(mut client: Client, key: &str) -> u64 {
    let command = format!("INCR {key}\r\n");
    let mut counted = 0;
    loop {
        let mut line = String::new();
        // Bytes that are sent into a closed connection may end it with an error.
        let is_sent = client.stream.get_mut().write_all(command.as_bytes()).is_ok();
        if !is_sent || client.stream.read_line(&mut line).unwrap_or(0) == 0 {
            return counted;
        }
        counted += 1;
        assert_eq!(line, format!(":{counted}\r\n"));
    }
}

/// Runs `change` while a client of each node counts a key of each of two regions.
pub(super) fn while_counting(cluster: &Cluster, nodes: &[usize], change: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let is_over = &is_over;
        let clients = nodes.iter().flat_map(|node| [(*node, 'a'), (*node, 'z')]);
        let counting: Vec<_> = clients
            .map(|(node, first)| {
                let (client, key) = (cluster.client(node), format!("{first}{node}"));
                scope.spawn(move || count(client, &key, is_over))
            })
            .collect();
        let over = Over(is_over);
        thread::sleep(Duration::from_millis(100));
        change();
        thread::sleep(Duration::from_millis(100));
        drop(over);
        for thread in counting {
            assert!(thread.join().expect("every answer was right") > 10);
        }
    });
}

#[test]
fn a_primary_role_is_transferred_and_no_client_notices() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    assert_eq!(cluster.client(0).run_until_served("SET z 1"), "+OK");
    let first = &cluster.servers[0];
    wait_for(first, "the groups are whole", is_whole);
    while_counting(&cluster, &[0, 1, 2], || {
        for turn in 0..9 {
            let (region, server) = (1 + turn % 2, 1 + turn % 3);
            assert_eq!(request_for(first, region, RegionRequest::Primary(ServerId(server))), OpResult::Done);
            wait_for(first, "the request is executed", |map| primary(map, region) == Some(server));
        }
    });
}

#[test]
fn a_server_that_stops_in_order_is_relieved_and_comes_back() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    assert_eq!(cluster.client(0).run_until_served("SET z 1"), "+OK");
    wait_for(&cluster.servers[0], "the groups are whole", is_whole);
    for id in [3, 1, 2] {
        let at = cluster.servers.iter().position(|server| server.info().member.server == ServerId(id)).expect("a node");
        let others: Vec<usize> = (0..3).filter(|other| *other != at).collect();
        let relieved = &cluster.servers[at];
        // So many that one of them always waits for an answer.
        let clients: Vec<Client> = (0..8).map(|_| cluster.client(at)).collect();
        let answered: Vec<u64> = thread::scope(|scope| {
            let numbered = clients.into_iter().enumerate();
            let counting: Vec<_> = numbered
                .map(|(n, client)| scope.spawn(move || count_until_closed(client, &format!("own{n}"))))
                .collect();
            while_counting(&cluster, &others, || {
                relieved.begin_to_depart(TIMEOUT);
                let begun = Instant::now();
                while !relieved.has_ended() {
                    assert!(begun.elapsed() < TIMEOUT, "it never ends");
                    thread::sleep(Duration::from_millis(5));
                }
            });
            counting.into_iter().map(|one| one.join().expect("every answer was right")).collect()
        });
        for (n, answered) in answered.iter().enumerate() {
            let done = cluster.client(others[0]).run(&format!("GETDEL own{n}"));
            assert_eq!(done, answered.to_string(), "what was done was answered");
        }
        let left = map(&cluster.servers[others[0]]);
        let is_there = |group: &leeward_format::cluster::GroupConfig| group.in_sync().any(|m| m.server == ServerId(id));
        assert!(!left.regions.iter().any(is_there), "its groups continued without it: {:?}", left.regions);
        cluster.servers.remove(at).stop();
        for other in &cluster.servers {
            let mut client = Client::connect(&other.info().resp_address);
            assert!(client.run("DEL a0 a1 a2 z0 z1 z2").starts_with(':'));
        }
        cluster.servers.push(start(&cluster.config(id, 3)).expect("the node again"));
        wait_for(&cluster.servers[0], "the groups are whole again", is_whole);
    }
}

#[test]
fn a_server_that_holds_the_last_replicas_cannot_leave() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    let address = &cluster.servers[0].info().native_address;
    let leave = Op::Intend { server: ServerId(2), intent: Some(Intent::Leave) };
    let OpResult::Error(OpError::Invalid(why)) = request(address, &leave) else { panic!("three replicas want three") };
    assert_eq!(
        why,
        "server 2 cannot leave: table default has 3 replicas, and 2 servers would be left; start another first"
    );
}
