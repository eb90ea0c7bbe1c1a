//! Files of an authority: what they are, who may read them, and that none is replaced.

use super::*;
use std::os::unix::fs::PermissionsExt;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}

#[test]
fn keys_are_for_their_owner_and_nothing_is_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("certs");
    let authority = Authority::create(&place).expect("it is made");
    let (certificate, key) = authority.add_server(3, &["db3.example".into(), "10.0.0.3".into()], DAY).expect("made");
    assert_eq!((certificate.clone(), key.clone()), server_files(&place, 3));
    assert_eq!([mode(&place.join(CA_KEY)), mode(&key)], [0o600; 2]);
    assert_eq!([mode(&place.join(CA_CERTIFICATE)), mode(&certificate)], [0o644; 2]);
    let before = fs::read(&key).expect("a key");
    for refused in [Authority::create(&place).err(), authority.add_server(3, &[], DAY).err()] {
        assert!(refused.is_some_and(|error| error.to_string().contains("File exists")));
    }
    assert_eq!(fs::read(&key).expect("a key"), before);
}

#[test]
fn an_authority_is_opened_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path();
    let none = Authority::open(place).expect_err("there is none");
    assert!(none.to_string().contains(CA_KEY), "{none}");
    Authority::create(place).expect("it is made");
    Authority::open(place).expect("it is there").add_server(1, &["localhost".into()], DAY).expect("it is made");
    fs::write(place.join(CA_KEY), "no key").expect("it is written");
    let damaged = Authority::open(place).expect_err("no key").to_string();
    assert!(damaged.contains(CA_KEY), "{damaged}");
}

#[test]
fn certificates_are_described() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path();
    let authority = Authority::create(place).expect("it is made");
    let hosts = ["db3.example".into(), "10.0.0.3".into(), "::1".into()];
    let (certificate, key) = authority.add_server(3, &hosts, 30 * DAY).expect("it is made");
    let [of_server] = &describe(&certificate).expect("a certificate")[..] else { panic!("one") };
    assert_eq!(of_server.names, ["server-3.leeward", "db3.example", "10.0.0.3", "::1"]);
    assert!(!of_server.is_authority && (29..=30).contains(&of_server.days_left()), "{of_server:?}");
    assert!(
        of_server.to_string().starts_with("certificate CN=server-3.leeward for server-3.leeward, db3"),
        "{of_server}"
    );
    let [of_authority] = &describe(&place.join(CA_CERTIFICATE)).expect("a certificate")[..] else { panic!("one") };
    assert!(of_authority.is_authority && of_authority.days_left() > 3_000, "{of_authority}");
    for (path, why) in [(&key, "no certificate"), (&place.join("none"), "No such file")] {
        let error = describe(path).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    let (expired, _) = authority.add_server(4, &[], Duration::ZERO).expect("it is made");
    std::thread::sleep(Duration::from_millis(1100));
    assert!(describe(&expired).expect("a certificate")[0].to_string().contains("expired"));
}

#[test]
fn a_host_that_no_certificate_can_have_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(directory.path()).expect("it is made");
    for host in ["not ascii: ä", "db1:7379", ""] {
        let refused = authority.add_server(1, &[host.into()], DAY).expect_err("no name").to_string();
        assert!(refused.contains(host), "{refused}");
    }
    assert!(!server_files(directory.path(), 1).0.exists());
}

#[test]
fn an_attempt_that_did_not_come_to_its_end_is_made_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(directory.path()).expect("it is made");
    let (certificate, key) = server_files(directory.path(), 1);
    fs::write(&key, "half a key").expect("it is written");
    authority.add_server(1, &[], DAY).expect("the key alone is of no use");
    assert!(authority.add_server(1, &[], DAY).expect_err("it is whole now").to_string().contains("exists"));
    assert!(certificate.exists());
}

#[test]
fn no_certificate_outlives_its_authority_and_no_other_key_signs_for_it() {
    let (directory, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let authority = Authority::create(directory.path()).expect("it is made");
    let (certificate, _) = authority.add_server(1, &[], 100 * CA_LIFETIME).expect("it is made");
    let end = |path: &Path| *describe(path).expect("a certificate")[0].valid.end();
    assert_eq!(end(&certificate), end(&directory.path().join(CA_CERTIFICATE)));
    Authority::create(other.path()).expect("it is made");
    fs::copy(other.path().join(CA_KEY), directory.path().join(CA_KEY)).expect("it is copied");
    let refused = Authority::open(directory.path()).expect_err("two authorities").to_string();
    assert!(refused.contains("not the key of"), "{refused}");
}
