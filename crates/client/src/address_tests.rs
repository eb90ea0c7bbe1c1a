//! Addresses, good and bad.

use super::{Address, Way};
use std::time::Duration;

#[test]
fn addresses_are_checked_before_they_are_used() {
    for (good, way) in [
        ("127.0.0.1:7479", Way::Tcp),
        ("localhost:1", Way::Tcp),
        ("[::1]:7479", Way::Tcp),
        ("leeward://localhost:1/", Way::Tcp),
        ("leeward+ring://[::1]:7479", Way::Rings { spin: None }),
        ("leeward+ring://[::1]:7479/?spin_us=0", Way::Rings { spin: Some(Duration::ZERO) }),
        ("leeward+ring://host:7479?spin_us=100000", Way::Rings { spin: Some(Duration::from_millis(100)) }),
        ("leeward+direct://[::1]:7479", Way::Direct { spin: None }),
        ("leeward+direct://host:7479?spin_us=5", Way::Direct { spin: Some(Duration::from_micros(5)) }),
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
fn one_cluster_is_reached_one_way() {
    let (way, seeds) = Address::parse_all(&["leeward+ring://a:1", "leeward+ring://b:2"]).expect("two that agree");
    assert_eq!((way, seeds), (Way::Rings { spin: None }, vec!["a:1".to_string(), "b:2".to_string()]));
    let error = Address::parse_all(&["leeward+ring://a:1", "b:2"]).expect_err("two that do not").to_string();
    assert!(error.contains("are alike") && error.contains("b:2"), "{error}");
    Address::parse_all(&["leeward+ring://a:1", "leeward+ring://b:2?spin_us=1"]).expect_err("one spins");
    Address::parse_all(&["leeward+ring://a:1", "leeward+direct://b:2"]).expect_err("one insists on direct reads");
    assert_eq!(Address::parse_all::<&str>(&[]).expect("none").0, Way::Tcp);
}
