//! Things in use that delay the start of a cluster, and things in use that prevent it.

use super::*;
use std::net::TcpListener;
use std::path::Path;

fn plan(directory: &Path) -> Plan {
    Plan::new("leeward".into(), 2, Vec::new(), directory.into()).expect("some ports are free")
}

#[test]
fn what_a_killed_cluster_still_holds_is_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = plan(directory.path());
    let port = TcpListener::bind(plan.ports.admin(2)).expect("it was free a moment ago");
    let lock = RealDisk::open(plan.node_directory(1)).and_then(|disk| disk.lock()).expect("no process has it");
    assert!(matches!(try_claim(&plan), Err(DevError::Port(_))));
    drop(port);
    assert!(matches!(try_claim(&plan), Err(DevError::InUse(_))));
    let freed = thread::spawn(move || {
        thread::sleep(4 * PAUSE);
        drop(lock);
    });
    let host = claim(&plan).expect("it is free soon");
    freed.join().expect("it only waits");
    drop(host);
}

#[test]
fn what_stays_taken_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = plan(directory.path());
    let first = claim(&plan).expect("all is free");
    let error = claim(&plan).expect_err("the coordinator's directory is taken").to_string();
    assert!(error.contains("in use by another process"), "{error}");
    drop(first);
    let _lock = RealDisk::open(plan.node_directory(2)).and_then(|disk| disk.lock()).expect("no process has it");
    let error = claim(&plan).expect_err("a node's directory is taken").to_string();
    assert!(error.contains("node-2") && error.contains("in use by another process"), "{error}");
}
