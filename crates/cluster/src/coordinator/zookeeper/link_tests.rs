//! The thread of a client, with fake servers and look-ups that never end.

use super::super::connect;
use super::super::fake::{self, Asked, CHILDREN, DATA, MULTI, Peer};
use super::*;
use crate::coordinator::client::Client;
use crate::{Coordinator, CoordinatorError, CoordinatorOp};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn options(server: SocketAddr, timeout: Nanos) -> ClientOptions {
    ClientOptions { session_timeout: timeout, ..ClientOptions::new(format!("zk://{server}/r").parse().unwrap()) }
}

fn start(server: SocketAddr, timeout: Nanos) -> (Client, Receiver<CoordinatorEvent>) {
    let (sender, events) = channel();
    (connect(options(server, timeout), move |event| drop(sender.send(event))).unwrap(), events)
}

/// Waits for an outage whose reason holds `part`.
fn until_outage(client: &Client, part: &str) {
    let deadline = Instant::now() + LONG;
    while !client.outage().is_some_and(|outage| outage.reason.contains(part)) {
        assert!(Instant::now() < deadline, "{:?} is not: {part}", client.outage());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Serves the paths `/r/0`, `/r/1` and so on, and takes its time for each.
fn serve(mut peer: Peer, timeout_ms: i32, paths: usize, each: Duration) {
    drop(peer.next());
    peer.send(&fake::greeting(timeout_ms));
    while let Some(packet) = peer.next() {
        let Asked { xid, kind, paths: asked } = fake::asked(&packet);
        let body = match (kind, asked.as_str()) {
            (DATA, asked) => {
                let found = |path| match path {
                    "/r" => fake::found(None, 1, 0, paths as i32),
                    _ => {
                        std::thread::sleep(each);
                        fake::found(Some("v"), 2, 0, 0)
                    }
                };
                fake::multi(&asked.split(' ').map(found).collect::<Vec<_>>())
            }
            (CHILDREN, _) => {
                let names: Vec<String> = (0..paths).map(|path| path.to_string()).collect();
                fake::names(&names.iter().map(String::as_str).collect::<Vec<_>>())
            }
            _ => fake::text("/r"),
        };
        peer.send(&fake::answer(xid, 9, 0, &body));
    }
}

#[test]
fn a_server_that_is_slow_to_send_the_tree_is_not_asked_anew() {
    const PATHS: usize = 640;
    let (sender, connections) = channel();
    let server = fake::listen(move |_, peer| {
        sender.send(()).unwrap();
        // 192 ms for each answer. A third of the timeout is over before the answers to the first reads are there.
        serve(peer, 1500, PATHS, Duration::from_millis(3));
    });
    let (client, events) = start(server, Nanos::from_millis(1500));
    let mut told = 0;
    loop {
        match events.recv_timeout(LONG).unwrap() {
            CoordinatorEvent::Changed(changes) => told += changes.len(),
            CoordinatorEvent::Synced { .. } => break,
            _ => {}
        }
    }
    assert_eq!((told, connections.try_iter().count()), (PATHS, 1));
    // Its slowness before does not count from then on.
    assert!(events.recv_timeout(Duration::from_secs(1)).is_err(), "nothing happens");
    assert_eq!(client.outage(), None);
}

#[test]
fn an_ensemble_that_is_away_is_asked_less_and_less_often() {
    let (sender, connections) = channel();
    let server = fake::listen(move |_, _| sender.send(Instant::now()).unwrap());
    let (client, _events) = start(server, Nanos::from_secs(3));
    std::thread::sleep(Duration::from_secs(4));
    drop(client);
    let connections: Vec<Instant> = connections.try_iter().collect();
    let pauses: Vec<Duration> = connections.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(connections.len() < 16, "{pauses:?}");
    let longest = pauses.iter().max().unwrap();
    assert!(*longest > Duration::from_millis(400), "{pauses:?}");
}

#[test]
fn a_server_that_has_seen_less_is_distinguished_from_one_that_only_closes() {
    let server = fake::listen(|number, mut peer| match number {
        0 => {}
        1 => {
            // Until the session is up, and some heartbeats longer.
            drop(peer.next());
            peer.send(&fake::greeting(600));
            while let Some(packet) = peer.next() {
                let Asked { xid, kind, .. } = fake::asked(&packet);
                let body = if kind == DATA { fake::data(None, 1, 0, 0) } else { fake::text("/r") };
                peer.send(&fake::answer(xid, 9, 0, &body));
                if kind == fake::PING {
                    return;
                }
            }
        }
        _ => drop(peer.next()),
    });
    let (client, events) = start(server, Nanos::from_millis(600));
    until_outage(&client, "it has no quorum; or this host has as many connections there as its maxClientCnxns allows");
    assert!(matches!(events.recv_timeout(LONG), Ok(CoordinatorEvent::Up { .. })));
    until_outage(&client, "has seen less of the tree than this client");
}

/// An ensemble that was emptied numbers its changes by elections and changes, from the beginning: it may never come to as many.
/// Where its servers are asked for what they have, a leader that is cut off answers too, and shows nothing: it cannot have a
/// change committed.
#[test]
fn servers_that_never_come_to_as_many_changes_are_asked_for_what_they_have_by_a_quorum() {
    const TIMEOUT_MS: i32 = 600;
    const BEFORE: i64 = 3 << 32;
    const EMPTIED: i64 = 1 << 32;
    let (sender, asked) = channel();
    let taken = Arc::new(AtomicUsize::new(0));
    let server = fake::listen(move |number, mut peer| {
        let Some(greeting) = peer.next() else { return };
        // After the version of the protocol.
        let seen = i64::from_be_bytes(greeting[4..12].try_into().unwrap());
        sender.send((Instant::now(), seen)).unwrap();
        let zxid = if number == 0 { BEFORE } else { EMPTIED };
        if seen > zxid {
            return;
        }
        let is_cut_off = number != 0 && taken.fetch_add(1, Ordering::Relaxed) == 0;
        peer.send(&fake::greeting(TIMEOUT_MS));
        while let Some(packet) = peer.next() {
            let Asked { xid, kind, .. } = fake::asked(&packet);
            if kind == MULTI && is_cut_off {
                continue;
            }
            let body = match kind {
                DATA => fake::data(None, 1, 0, 0),
                MULTI => fake::multi(&[]),
                _ => fake::text("/r"),
            };
            peer.send(&fake::answer(xid, zxid, 0, &body));
            if number == 0 && kind == fake::PING {
                return;
            }
        }
    });
    let (client, events) = start(server, Nanos::from_millis(TIMEOUT_MS as u64));
    let versions: Vec<u64> = std::iter::from_fn(|| events.recv_timeout(LONG).ok())
        .filter_map(|event| if let CoordinatorEvent::Synced { version } = event { Some(version) } else { None })
        .take(2)
        .collect();
    assert_eq!(versions, [BEFORE, EMPTIED].map(|zxid| zxid as u64));
    assert_eq!(client.outage(), None);
    let asked: Vec<(Instant, i64)> = asked.try_iter().collect();
    let (refused, taken) = asked[1..].split_at(asked.len() - 3);
    assert!(!refused.is_empty() && refused.iter().all(|(_, seen)| *seen == BEFORE), "{asked:?}");
    assert!(
        taken.iter().all(|(at, seen)| *seen == 0 && *at - refused[0].0 >= Duration::from_millis(1_200)),
        "{asked:?}"
    );
}

/// The server reads no request with more than 1,000 bytes, and says so only in its own log.
#[test]
fn a_request_that_the_server_answers_by_closing_is_refused_and_shorter_ones_are_served() {
    let (sender, connections) = channel();
    let server = fake::listen(move |_, mut peer| {
        sender.send(()).unwrap();
        drop(peer.next());
        peer.send(&fake::greeting(600));
        while let Some(packet) = peer.next().filter(|packet| packet.len() <= 1000) {
            let Asked { xid, kind, .. } = fake::asked(&packet);
            let body = match kind {
                DATA => fake::data(None, 1, 0, 0),
                MULTI => fake::multi(&[]),
                _ => fake::text("/r"),
            };
            peer.send(&fake::answer(xid, 9, 0, &body));
        }
    });
    let (client, events) = start(server, Nanos::from_millis(600));
    let create = |bytes: usize| {
        let value = vec![b'x'; bytes].into();
        CoordinatorOp::Create { path: "/a".into(), value, ephemeral: false }
    };
    // As an agent does it: until there is an answer.
    let answer = |bytes: usize| loop {
        match events.recv_timeout(LONG).unwrap() {
            CoordinatorEvent::Synced { .. } => client.submit(1, create(bytes)),
            CoordinatorEvent::Reply { result: Err(CoordinatorError::Disconnected), .. } => {}
            CoordinatorEvent::Reply { result, .. } => return result,
            _ => {}
        }
    };
    let Err(CoordinatorError::Refused(why)) = answer(2000) else { panic!("it is too long") };
    assert!(why.contains("4 times ZooKeeper closed") && why.contains("jute.maxbuffer"), "{why}");
    assert_eq!(connections.try_iter().count(), 5, "the session is up");
    client.submit(1, create(10));
    assert_eq!(answer(10), Ok(9));
    assert_eq!(connections.try_iter().count(), 0);
}

#[test]
fn no_caller_waits_for_the_resolver() {
    let (release, held) = channel::<()>();
    let (sender, events) = channel();
    let options = options("127.0.0.1:1".parse().unwrap(), Nanos::from_secs(1));
    let mut link = ZooKeeperLink::new(options, Context::new(move |event| drop(sender.send(event))).unwrap()).unwrap();
    let hangs = move |_: &Host| {
        held.recv().unwrap_err();
        Ok(Vec::new())
    };
    link.servers = Servers::new(&[("far".into(), 1)], Rng::new(1), hangs, || {}).unwrap();
    let client = Client::start(link).unwrap();
    let started = Instant::now();
    client.submit(7, CoordinatorOp::All(Vec::new()));
    let answer = events.recv_timeout(LONG).unwrap();
    assert_eq!(answer, CoordinatorEvent::Reply { id: 7, result: Err(CoordinatorError::Disconnected) });
    drop(client);
    assert!(started.elapsed() < Duration::from_secs(10), "it would wait for ever");
    drop(release);
}
