//! The last admin's password is lost: its log gets another, and nothing else in the log changes.

use super::*;
use crate::embedded::{Host, HostOptions};
use leeward_format::coordinator::CoordinatorError;
use leeward_format::user::User;
use std::net::{Ipv4Addr, SocketAddr};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn name(text: &str) -> UserName {
    text.parse().expect("a name")
}

fn hash(salt: &str) -> PasswordHash {
    PasswordHash::new(format!("$argon2id$v=19$m=19456,t=2,p=1${salt}$hash"))
}

fn host(directory: &Path) -> Host {
    Host::start(HostOptions { directory: directory.into(), listen: LOOPBACK, tls: None }).expect("a host")
}

/// The tree in the log of a host that does not run.
fn tree(directory: &Path) -> Tree {
    Log::open(directory).expect("a log").1
}

fn user(tree: &Tree, user: &str) -> User {
    let (_, value) = tree.get(&ClusterPath::User(name(user)).to_string()).expect("it is there");
    decode_value("user", value).expect("a user")
}

fn changes(tree: &Tree) -> u64 {
    decode_value("count", tree.get(&ClusterPath::Users.to_string()).expect("it is there").1).expect("a number")
}

#[test]
fn an_admin_gets_another_password_and_others_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = host(directory.path());
    let grants = (0..64).map(|i| format!("read@t{i}:p").parse().expect("a grant")).collect();
    let limited = User { is_enabled: false, passwords: vec![hash("old")], grants, ..User::new(name("root")) };
    let other = User { is_enabled: true, passwords: vec![hash("shop")], ..User::new(name("shop")) };
    for (path, value) in [
        (ClusterPath::User(name("root")), encode_value(&limited)),
        (ClusterPath::User(name("shop")), encode_value(&other)),
        (ClusterPath::User(name("odd")), Bytes::from_static(b"no user")),
        (ClusterPath::Users, encode_value(&41_u64)),
    ] {
        running.apply(put(&Tree::new(), &path, value)).expect("it is made");
    }
    // While the host runs, the log is its own.
    let locked = reset_admin(directory.path(), &name("root"), hash("new")).expect_err("it runs");
    assert!(locked.to_string().contains("in use by another process"), "{locked}");
    drop(running);

    reset_admin(directory.path(), &name("root"), hash("new")).expect("it is changed");
    let after = tree(directory.path());
    let root = user(&after, "root");
    assert!(root.is_keeper() && root.passwords == [hash("new")], "{root:?}");
    assert_eq!((user(&after, "shop"), changes(&after)), (other, 42));
    // Users that cannot be read, and that are not there, are made.
    reset_admin(directory.path(), &name("odd"), hash("1")).expect("it is made anew");
    reset_admin(directory.path(), &name("fresh"), hash("2")).expect("it is made");
    let after = tree(directory.path());
    assert!(user(&after, "odd").is_keeper() && user(&after, "fresh").is_keeper());
    assert_eq!(changes(&after), 44);
    // The host goes on from there.
    let again = host(directory.path());
    let stale = CoordinatorOp::Set { path: ClusterPath::Users.to_string(), value: encode_value(&1_u64), version: 1 };
    assert!(matches!(again.apply(stale), Err(CoordinatorError::Stale { version }) if version == after.version()));
}

#[test]
fn a_directory_without_a_log_stays_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let refused = reset_admin(directory.path(), &name("root"), hash("new")).expect_err("there is no log");
    assert!(refused.to_string().contains("coordinator.log: there is no such file"), "{refused}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0);
}
