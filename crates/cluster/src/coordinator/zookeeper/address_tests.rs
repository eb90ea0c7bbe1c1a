//! Input of operators is accepted, or refused with the reason.

use super::*;

#[test]
fn addresses_are_read_and_written_back() {
    for (given, meant) in [
        ("zk://a/x", "zk://a:2181/x"),
        ("zk://a:1,b.example.org:65535/x/y", "zk://a:1,b.example.org:65535/x/y"),
        ("zk://10.0.0.1,[::1]:7,[fe80::1]/leeward", "zk://10.0.0.1:2181,[::1]:7,[fe80::1]:2181/leeward"),
    ] {
        let ensemble: Ensemble = given.parse().unwrap();
        assert_eq!(ensemble.to_string(), meant);
        assert_eq!(meant.parse(), Ok(ensemble));
    }
}

#[test]
fn a_wrong_address_is_refused_with_the_reason() {
    for (given, why) in [
        ("127.0.0.1:7779", "does not begin with zk://"),
        ("zk://a", "names no path"),
        ("zk://a,b/", "has a part that is empty"),
        ("zk:///x", "has a host without a name"),
        ("zk://a,,b/x", "has a host without a name"),
        ("zk://a,a:2181/x", "names a twice"),
        ("zk://a:0/x", "has the port \"0\" for a"),
        ("zk://a:port/x", "has the port \"port\" for a"),
        ("zk://a:70000/x", "no number from 1 to 65535"),
        ("zk://a b/x", "has the host \"a b\""),
        ("zk://[::g]/x", "[::g], which is no IPv6 address"),
        ("zk://[::1]2181/x", "has \"2181\" after the host"),
        ("zk://a/x/", "has a part that is empty"),
        ("zk://a/x/../y", "empty, . or .."),
        ("zk://a/x\u{1}", "a character that ZooKeeper does not take"),
        ("zk://a/zookeeper/x", "ZooKeeper's own"),
    ] {
        let error = given.parse::<Ensemble>().unwrap_err();
        assert!(error.contains(why), "{given}: {error}");
        assert!(error.contains("such as zk://zk1,zk2,zk3/leeward"), "it says what to write: {error}");
    }
    let long = format!("zk://a/{}", "x".repeat(300));
    assert!(long.parse::<Ensemble>().unwrap_err().contains("301 bytes, at most 256"));
    let error = "zk://me:secret@a/x".parse::<Ensemble>().unwrap_err();
    assert!(error.contains("zookeeper_auth_file") && !error.contains("secret"), "{error}");
}

#[test]
fn a_password_is_in_no_message() {
    let credentials: Credentials = "leeward:pass:word".parse().unwrap();
    assert_eq!(credentials.digest(), "leeward:pass:word");
    assert_eq!(format!("{credentials:?}"), "Credentials(leeward)");
    for wrong in ["secret", ":secret", "secret:", "", "a:secret\nb:secret"] {
        let error = wrong.parse::<Credentials>().unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
