//! The order of the servers, the time for each, and names that cannot be looked up.

use super::*;
use std::sync::{Arc, Mutex};

const SECOND: Nanos = Nanos::from_secs(1);

type Names = Arc<Mutex<Vec<io::Result<Vec<SocketAddr>>>>>;

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn ports(servers: &Servers) -> Vec<u16> {
    servers.turns.iter().map(|(_, address)| address.port()).collect()
}

/// Hosts `0`, `1` and so on, with the addresses in `names`. After a look-up the resolver hangs until `names` has a new answer.
fn servers(hosts: usize, seed: u64, names: &Names) -> (Servers, Receiver<()>) {
    let hosts: Vec<Host> = (0..hosts).map(|host| (host.to_string(), 1)).collect();
    let names = names.clone();
    let (sender, woken) = channel();
    let resolve = move |host: &Host| {
        let host: usize = host.0.parse().expect("a number");
        loop {
            if let Some(found) = names.lock().expect("it is whole").get_mut(host) {
                return std::mem::replace(found, Ok(Vec::new()));
            }
            if Arc::strong_count(&names) == 1 {
                return Ok(Vec::new());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    let wake = move || sender.send(()).unwrap_or_default();
    (Servers::new(&hosts, Rng::new(seed), resolve, wake).expect("a thread"), woken)
}

/// One for each of `count` hosts.
fn known(count: u16, seed: u64) -> Servers {
    let names = Names::new(Mutex::new((0..count).map(|port| Ok(vec![address(port)])).collect()));
    let (mut servers, woken) = servers(count.into(), seed, &names);
    assert_eq!(servers.next(), None, "they are looked up first");
    woken.recv().expect("the resolver answers");
    assert!(matches!(servers.found(), Some(Ok(()))));
    servers
}

#[test]
fn a_tried_server_is_last() {
    let mut firsts = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let mut servers = known(3, seed);
        let first = ports(&servers);
        firsts.insert(first.clone());
        for _ in 0..2 {
            let round: Vec<u16> = (0..3).map(|_| servers.next().expect("they are known").address.port()).collect();
            assert_eq!(round, first);
        }
        let again = servers.next().expect("they are known");
        assert_eq!(again, Server { name: format!("{}:1", first[0]), address: address(first[0]) });
        assert_eq!(ports(&servers), [first[1], first[2], first[0]]);
    }
    assert_eq!(firsts.len(), 6, "clients differ");
}

#[test]
fn a_session_outlives_all_servers_but_one() {
    for count in 1..=9 {
        for timeout in [SECOND, Nanos::from_secs(60)] {
            let mut servers = known(count, 1);
            // The loss of the server that served is noticed after a third.
            let mut passed = Nanos(timeout.0 / 3);
            for _ in 1..count - 1 {
                passed += servers.failed(timeout);
                passed += servers.silence_timeout(timeout, false);
            }
            passed += servers.failed(timeout);
            let left = timeout.since(passed);
            assert!(left >= servers.silence_timeout(timeout, false), "{count}: {left:?} are left for the last");
        }
    }
}

#[test]
fn long_failure_gives_servers_more_time_and_lengthens_pauses() {
    let mut servers = known(3, 1);
    let mut pauses = Vec::new();
    let mut silence_timeout = Vec::new();
    for _ in 0..30 {
        silence_timeout.push((
            servers.silence_timeout(SECOND, false).as_millis(),
            servers.silence_timeout(SECOND, true).as_millis(),
        ));
        pauses.push(servers.failed(SECOND));
    }
    for (attempt, expected) in [(0, (111, 111)), (2, (111, 111)), (3, (222, 222)), (6, (333, 444)), (29, (333, 1000))] {
        assert_eq!(silence_timeout[attempt], expected, "{attempt}");
    }
    for (attempt, most) in [(0, 37), (1, 37), (2, 74), (5, 148), (8, 296), (29, 333)] {
        let most = Nanos::from_millis(most + 1);
        assert!(pauses[attempt] < most && pauses[attempt] >= Nanos(most.0 / 2 - 1_000_000), "{attempt}: {pauses:?}");
    }
    pauses[10..].sort();
    pauses.dedup();
    assert!(pauses.len() > 25, "there is chance in them: {pauses:?}");
    let longest = (0..30).map(|_| servers.failed(Nanos::from_secs(60))).max();
    assert!(longest <= Some(LONGEST_PAUSE), "{longest:?}");
    servers.served();
    assert_eq!(servers.silence_timeout(SECOND, true).as_millis(), 111);
    assert!(servers.failed(SECOND) <= RETRY);
}

#[test]
fn known_addresses_of_a_name_count_while_the_resolver_hangs_or_fails() {
    let names = Names::new(Mutex::new(vec![Ok(vec![address(1), address(2)]), Ok(vec![address(3)])]));
    let (mut servers, woken) = servers(2, 1, &names);
    assert_eq!(servers.next(), None);
    woken.recv().expect("the resolver answers");
    let put = |found: Vec<io::Result<Vec<SocketAddr>>>| *names.lock().expect("it is whole") = found;
    put(Vec::new());
    let mut round = |count: usize| {
        let mut round: Vec<u16> = Vec::new();
        for _ in 0..count {
            round.push(servers.next().expect("they are known").address.port());
            servers.failed(SECOND);
        }
        round.sort_unstable();
        round
    };
    for _ in 0..3 {
        assert_eq!(round(3), [1, 2, 3], "the resolver hangs");
    }
    for (found, expected) in [
        // One name has no address now, the other has two.
        (vec![Err(io::ErrorKind::TimedOut.into()), Ok(vec![address(3), address(4)])], vec![1, 2, 3, 4]),
        (vec![Ok(vec![address(2)]), Ok(Vec::new())], vec![2, 3, 4]),
    ] {
        put(found);
        woken.recv().expect("the resolver answers");
        put(Vec::new());
        assert_eq!(round(expected.len()), expected);
    }
}

#[test]
fn an_unknown_name_is_reported_only_if_no_address_is_known() {
    let refused = || Err(io::ErrorKind::TimedOut.into());
    let names = Names::new(Mutex::new(vec![refused(), refused()]));
    let (mut servers, woken) = servers(2, 1, &names);
    assert_eq!(servers.next(), None);
    woken.recv().expect("the resolver answers");
    let unknown = servers.found().expect("it has answered").expect_err("nothing is known");
    assert_eq!((unknown.name.as_str(), unknown.error.kind()), ("1:1", io::ErrorKind::TimedOut));
    *names.lock().expect("it is whole") = vec![refused(), Ok(vec![address(7)])];
    servers.failed(SECOND);
    assert_eq!(servers.next(), None, "it is looked up again");
    woken.recv().expect("the resolver answers");
    assert_eq!(servers.next().map(|server| server.name), Some("1:1".into()));
}
