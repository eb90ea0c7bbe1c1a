//! Errors of a client without a node to connect to, and how soon they come; and a node's report of itself.

use crate::fake::{ADMITTED, FakeNode, map, succeed};
use leeward_client::{
    Access, Client, ClientError, ClientOptions, Handshake, NewTable, OpError, Password, RegionMap, Session,
    TableOptions,
};
use leeward_format::ServerId;
use leeward_format::frame::{FrameKind, PROTOCOL_VERSION, version_frame};
use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Addresses at which nothing listens.
fn nowhere(count: usize) -> Vec<String> {
    let bound: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    bound.iter().map(|listener| listener.local_addr().expect("it is bound").to_string()).collect()
}

fn options(connect_within: Duration) -> ClientOptions {
    ClientOptions { deadline: LONG, connect_within, ..ClientOptions::default() }
}

#[test]
fn addresses_where_nothing_listens_are_given_up_soon_and_named() {
    let seeds = nowhere(3);
    let begun = Instant::now();
    let error = Session::connect(&seeds, options(Duration::from_millis(300))).expect_err("no node is there");
    assert!(begun.elapsed() < LONG / 2, "the deadline of operations is not waited for");
    let text = error.to_string();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{text}");
    assert!(seeds.iter().all(|seed| text.contains(seed)) && text.contains("refused"), "{text}");
}

#[test]
fn a_port_that_takes_connections_and_says_nothing_is_no_node() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("it is bound").to_string();
    let error = Session::connect(&[&address], options(Duration::from_millis(300))).expect_err("it says nothing");
    assert!(error.to_string().contains("no answer in time"), "{error}");
    let error =
        Access::default().shake_hands(&address, "test", Duration::from_millis(100)).expect_err("it says nothing");
    assert_eq!(error.to_string(), "no answer in time");
}

#[test]
fn a_node_of_another_version_is_called_that() {
    let node = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = node.local_addr().expect("it is bound").to_string();
    std::thread::spawn(move || {
        for stream in node.incoming() {
            let mut other = version_frame(FrameKind::Reply);
            other[4] += 1;
            stream.expect("it connects").write_all(&other).expect("it is read");
        }
    });
    let spoken = format!("it speaks version {} of the protocol, this program version", PROTOCOL_VERSION + 1);
    let error = Access::default().shake_hands(&address, "test", LONG).expect_err("no client understands it");
    assert!(error.to_string().contains(&spoken), "{error}");
    let error =
        Session::connect(&[&address], options(Duration::from_millis(300))).expect_err("no client understands it");
    assert!(error.to_string().contains(&spoken), "{error}");
}

#[test]
fn a_node_without_regions_is_waited_for_and_then_told_from_none() {
    let (listener, address) = FakeNode::bind();
    let _node = FakeNode::serve(listener, RegionMap::default(), succeed);
    let options = ClientOptions { deadline: Duration::from_millis(300), ..ClientOptions::default() };
    let error = Session::connect(&[&address], options).expect_err("it knows no region");
    assert!(matches!(error, ClientError::NoRegions { .. }), "{error}");
}

/// The first address may be of a node that never reached the coordinator, whatever the order; and one may not answer at all.
#[test]
fn a_node_that_knows_nothing_hides_no_other() {
    let ((blind, a), (sighted, b)) = (FakeNode::bind(), FakeNode::bind());
    let _blind = FakeNode::serve(blind, RegionMap::default(), succeed);
    let _sighted = FakeNode::serve(sighted, map(3, &[("", 1)], &[&b]), succeed);
    let dead = nowhere(1).remove(0);
    let orders = [[&a, &b, &dead], [&b, &a, &dead], [&dead, &a, &b], [&b, &dead, &a], [&a, &dead, &b], [&dead, &b, &a]];
    for seeds in orders {
        for needs_regions in [true, false] {
            let begun = Instant::now();
            let client =
                Client::connect(&seeds, ClientOptions { needs_regions, ..options(LONG) }).expect("it finds it");
            assert!(client.get("a").expect("an answer").is_some());
            client.create_table(NewTable::new(TableOptions::default(), Vec::new())).expect("it is asked for");
            assert_eq!(client.region_map().expect("a map").version, 3);
            assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        }
    }
    let soon = ClientOptions { deadline: Duration::from_millis(300), ..ClientOptions::default() };
    let error = Session::connect(&[&a, &dead], soon).expect_err("the one knows nothing, the other is dead");
    assert!(matches!(error, ClientError::NoRegions { .. }), "{error}");
}

#[test]
fn a_client_that_creates_the_first_table_needs_no_region() {
    let (listener, address) = FakeNode::bind();
    let _node = FakeNode::serve(listener, map(1, &[], &[&address]), succeed);
    let options = ClientOptions { needs_regions: false, ..options(LONG) };
    let client = Client::connect(&[&address], options).expect("the node answers");
    client.create_table(NewTable::new(TableOptions::default(), Vec::new())).expect("it is asked for");
}

#[test]
fn a_node_says_who_it_is() {
    let (listener, address) = FakeNode::bind();
    let map = map(3, &[("", 1)], &[&address]);
    let _node = FakeNode::serve(listener, map.clone(), succeed);
    let said = Access::default().shake_hands(&address, "test", LONG).expect("it answers");
    assert_eq!(said, Handshake { server: ServerId(1), admin_address: "admin:1".into(), map });
    let [nowhere] = &nowhere(1)[..] else { panic!("one was asked for") };
    Access::default().shake_hands(nowhere, "test", LONG).expect_err("no node is there");
}

#[test]
fn a_user_that_is_refused_is_told_so_at_once() {
    let (listener, host) = FakeNode::bind();
    let _node = FakeNode::serve(listener, map(1, &[("", 1)], &[&host]), succeed);
    let address = |user: &str| format!("leeward://{user}@{host}");
    let with = |password: Option<&[u8]>| ClientOptions { password: password.map(Password::new), ..options(LONG) };
    let client = Client::connect(&[address(ADMITTED)], with(Some(b"pw"))).expect("it is let in");
    assert!(client.get("a").expect("an answer").is_some());
    let begun = Instant::now();
    let error = Client::connect(&[address("mallory")], with(Some(b"pw"))).expect_err("it is not let in");
    assert!(matches!(error, ClientError::Op(OpError::Unauthenticated(_))), "{error}");
    assert!(begun.elapsed() < LONG / 2, "without a retry until the deadline");
    let error = Client::connect(&[address(ADMITTED)], with(None)).expect_err("without a password");
    assert!(error.to_string().contains("LEEWARD_PASSWORD"), "{error}");
    let file = std::env::temp_dir().join(format!("leeward-password-{}", std::process::id()));
    std::fs::write(&file, "pw\n").expect("it is written");
    let addresses = [format!("{}?password_file={}", address(ADMITTED), file.display())];
    let said = Client::connect(&addresses, with(None)).map(drop);
    let report = Access::of(&addresses).expect("it is read").shake_hands(&addresses[0], "test", LONG).map(drop);
    std::fs::remove_file(&file).expect("it is there");
    said.expect("it is let in");
    report.expect("it is let in");
}
