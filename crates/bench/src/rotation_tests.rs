//! What a run reports, and how addresses name the user and its password.

use super::*;

#[test]
fn a_failed_request_is_shown_and_misses_the_target() {
    let of = |failed, first_error: Option<&str>| Report {
        passwords: 2,
        certificates: 6,
        seconds: 12.34,
        requests: Requests { ops: 1_000, failed, misses: 0, first_error: first_error.map(str::to_owned) },
    };
    let shown = of(0, None).to_string();
    assert!(shown.starts_with("2 passwords and 6 certificates were replaced in 12.3 s\n"), "{shown}");
    assert!(shown.contains("failed requests: 0 of 1000, 0 misses (should be 0: met)"), "{shown}");
    let failed = of(1, Some("not permitted"));
    assert!(!failed.requests.is_lossless() && failed.to_string().contains("MISSED"), "{failed}");
    assert!(failed.to_string().ends_with("the first failure: not permitted\n"), "{failed}");
}

#[test]
fn addresses_name_the_user_and_the_file_with_its_password() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = Plan::new("leeward".into(), NODES, Vec::new(), directory.path().into()).expect("free ports");
    let made = Made::new();
    let all = seeds(&Plan { tls: true, ..plan }, &made).expect("a file");
    for seed in &all {
        let address = leeward_client::Address::parse(seed).expect("it is one");
        assert_eq!((address.user.as_deref(), address.tls_ca.is_some()), (Some(USER), true));
        let file = address.password_file.expect("a file");
        assert_eq!(fs::read(file).expect("it is there"), made.password.bytes());
    }
    assert_eq!(as_user("127.0.0.1:1", "alice"), "leeward://alice@127.0.0.1:1");
}
