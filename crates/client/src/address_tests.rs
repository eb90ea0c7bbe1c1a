//! Addresses, good and bad.

use super::{Address, RequestPath, Seeds, connect};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

#[test]
fn a_host_is_reached_by_any_of_its_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let alive = listener.local_addr().expect("it is bound");
    let dead = SocketAddr::from(([127, 0, 0, 1], 1));
    let stream = connect(&[dead, alive][..], Duration::from_secs(5)).expect("the second one listens");
    assert_eq!(stream.peer_addr().expect("it is connected"), alive);
    connect(dead, Duration::from_secs(5)).expect_err("nothing listens there");
    let none = connect(&[] as &[SocketAddr], Duration::from_secs(5)).expect_err("no address");
    assert_eq!(none.to_string(), "the host has no address");
}

#[test]
fn addresses_are_checked_before_they_are_used() {
    for (good, way) in [
        ("127.0.0.1:7479", RequestPath::Tcp),
        ("localhost:1", RequestPath::Tcp),
        ("[::1]:7479", RequestPath::Tcp),
        ("leeward://localhost:1/", RequestPath::Tcp),
        ("leeward+ring://[::1]:7479", RequestPath::Rings { spin: None }),
        ("leeward+ring://[::1]:7479/?spin_us=0", RequestPath::Rings { spin: Some(Duration::ZERO) }),
        ("leeward+ring://host:7479?spin_us=100000", RequestPath::Rings { spin: Some(Duration::from_millis(100)) }),
        ("leeward+direct://[::1]:7479", RequestPath::Direct { spin: None }),
        ("leeward+direct://host:7479?spin_us=5", RequestPath::Direct { spin: Some(Duration::from_micros(5)) }),
    ] {
        assert_eq!(Address::parse(good).expect(good).way, way, "{good}");
    }
    let bad =
        ["", "7479", "host", "host:", ":7479", "host:0", "host:70000", "host:port", "leeward://host", "redis://h:1"];
    for bad in bad {
        let error = Address::parse(bad).expect_err(bad).to_string();
        assert!(error.contains("host:port"), "{error}");
    }
    for bad in ["?spin_us=100001", "?spin_us=", "?spin=5", "?", "?spin_us=5&spin_us=6"] {
        let error = Address::parse(&format!("leeward+ring://host:1{bad}")).expect_err(bad).to_string();
        assert!(error.contains("?spin_us=N"), "{error}");
    }
    Address::parse("leeward://host:1?spin_us=5").expect_err("TCP has nothing to look into");
}

#[test]
fn tls_needs_an_authority() {
    for (good, way) in [
        ("leeward+tls://host:1?ca=certs/ca.crt", RequestPath::Tcp),
        ("leeward+ring+tls://[::1]:7479/?ca=certs/ca.crt", RequestPath::Rings { spin: None }),
        (
            "leeward+direct+tls://h:1?spin_us=5&ca=certs/ca.crt",
            RequestPath::Direct { spin: Some(Duration::from_micros(5)) },
        ),
    ] {
        let address = Address::parse(good).expect(good);
        assert_eq!((address.way, address.tls_ca), (way, Some("certs/ca.crt".into())), "{good}");
    }
    for bad in ["", "?ca=", "?ca=a&ca=b", "?ca=a&spin_us=5", "?key=a", "?ca"] {
        let error = Address::parse(&format!("leeward+tls://host:1{bad}")).expect_err(bad).to_string();
        assert!(error.contains("?ca=FILE"), "{error}");
    }
    Address::parse("leeward://host:1?ca=ca.crt").expect_err("it says nothing of TLS");
    let error = Address::parse_all(&["leeward+tls://a:1?ca=x", "leeward+tls://b:1?ca=y"]).expect_err("two clusters");
    assert!(error.to_string().contains("alike"), "{error}");
}

#[test]
fn one_cluster_is_reached_one_way() {
    let seeds = Address::parse_all(&["leeward+ring://a:1", "leeward+ring://b:2"]).expect("two that agree");
    let addresses = vec!["a:1".to_string(), "b:2".to_string()];
    let (user, password_file) = (None, None);
    assert_eq!(seeds, Seeds { way: RequestPath::Rings { spin: None }, tls_ca: None, user, password_file, addresses });
    let error = Address::parse_all(&["leeward+ring://a:1", "b:2"]).expect_err("two that do not").to_string();
    assert!(error.contains("are alike") && error.contains("b:2"), "{error}");
    Address::parse_all(&["leeward+ring://a:1", "leeward+ring://b:2?spin_us=1"]).expect_err("one spins");
    Address::parse_all(&["leeward+ring://a:1", "leeward+direct://b:2"]).expect_err("one insists on direct reads");
    assert_eq!(Address::parse_all::<&str>(&[]).expect("none").way, RequestPath::Tcp);
}

#[test]
fn a_user_comes_before_the_host_and_its_password_is_in_no_address() {
    let address = Address::parse("leeward+tls://alice@host:1?ca=ca.crt&password_file=secret").expect("it is one");
    assert_eq!((address.user.as_deref(), address.password_file), (Some("alice"), Some("secret".into())));
    assert_eq!((address.host_port.as_str(), address.tls_ca), ("host:1", Some("ca.crt".into())));
    let address = Address::parse("leeward+ring://a.b@c@[::1]:7479").expect("it is one");
    assert_eq!((address.user.as_deref(), address.host_port.as_str()), (Some("a.b@c"), "[::1]:7479"));
    for bad in ["leeward://alice:hunter2@host:1", "alice:hunter2@host:1", "leeward+tls://alice:hunter2@host:1?ca=x"] {
        let error = Address::parse(bad).expect_err(bad).to_string();
        assert!(error.contains("?password_file=FILE") && !error.contains("hunter2"), "{error}");
    }
    Address::parse("leeward://host:1?password_file=x").expect_err("it is no user's");
    Address::parse_all(&["leeward://alice@a:1", "leeward://bob@b:1"]).expect_err("two users");
}
