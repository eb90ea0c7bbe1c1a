//! A coordinator that lost its data, or was put back to an older state, while nodes run and after all were restarted: nothing of what
//! the nodes have is destroyed, shown or overwritten under another name, and an operator gets all of it back.

use super::identity::{request, wait_for};
use super::*;
use leeward_engine::VOLUME_NAME;
use leeward_engine::image::Image;
use leeward_format::cluster::CopyIdentity;
use leeward_format::op::OpError;
use leeward_format::table::NewTable;
use leeward_platform::{Disk, RealDisk};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const KEYS: u32 = 200;
const REFUSES: &str = "this node refuses what the coordinator says";

fn create(cluster: &Cluster, name: &str) -> OpResult {
    let options = TableOptions { name: name.into(), replicas: 3, min_in_sync: 2, ..TableOptions::default() };
    let table = Box::new(NewTable::new(options, Vec::new()));
    request(&cluster.servers[0].info().native_address, &Op::CreateTable { table })
}

fn write(cluster: &Cluster) {
    let mut client = cluster.client(0);
    for n in 0..KEYS {
        assert_eq!(client.run_until_served(&format!("SET {}{n} {n}", if n % 2 == 0 { "a" } else { "z" })), "+OK");
    }
}

fn check(cluster: &Cluster, node: usize) {
    let mut client = cluster.client(node);
    for n in 0..KEYS {
        let key = format!("{}{n}", if n % 2 == 0 { "a" } else { "z" });
        assert_eq!(client.run_until_served(&format!("GET {key}")), n.to_string());
    }
}

/// Ends the coordinator, has `change` change its directory, and starts it again at the same address.
fn replace_coordinator(cluster: &mut Cluster, change: impl FnOnce(&Path)) {
    let directory = cluster.dir.path().join("coordinator");
    let options = HostOptions { directory: directory.clone(), listen: cluster.host().address(), tls: None };
    cluster.host = None;
    change(&directory);
    cluster.host = Some(Host::start(options).expect("its port is free again"));
}

fn empty(directory: &Path) {
    fs::remove_dir_all(directory).expect("it is there");
}

fn refuse(cluster: &Cluster, why: &str) {
    for server in &cluster.servers {
        let (status, reason) = wait_for(&server.info().admin_address, "/readyz", REFUSES);
        assert!(status == 503 && reason.contains(why) && reason.contains("leeward restore-coordinator"), "{reason}");
    }
}

fn restore(cluster: &Cluster) {
    let address = |server: &Server| server.info().native_address.clone();
    for confirms in [false, true] {
        for server in &cluster.servers {
            assert_eq!(request(&address(server), &Op::RestoreTree { confirms }), OpResult::Done);
        }
    }
    for server in &cluster.servers {
        wait_for(&server.info().admin_address, "/readyz", "ok");
    }
}

fn restart_nodes(cluster: &mut Cluster) {
    let nodes = cluster.servers.len() as u32;
    cluster.servers.drain(..).for_each(Server::stop);
    for id in 1..=nodes {
        let config = cluster.config(id, nodes);
        cluster.servers.push(start(&config).expect("a node"));
    }
}

#[test]
fn a_coordinator_that_lost_its_data_is_refused_and_restored_while_nodes_go_on() {
    let mut cluster = Cluster::start(3);
    write(&cluster);
    replace_coordinator(&mut cluster, empty);
    refuse(&cluster, "it knows nothing of cluster");
    // No table takes the numbers of what is there, and what is there is served.
    let OpResult::Error(OpError::Invalid(refused)) = create(&cluster, "other") else { panic!("a table was made") };
    assert!(refused.contains("refused") && refused.contains("knows nothing of cluster"), "{refused}");
    check(&cluster, 1);
    assert_eq!(cluster.client(2).run("SET late 1"), "+OK");
    restore(&cluster);
    assert_eq!(create(&cluster, "other"), OpResult::Done);
    check(&cluster, 2);
    assert_eq!(cluster.client(0).run_until_served("GET late"), "1");
    // Failures are handled again.
    cluster.servers.pop().expect("three nodes").stop();
    assert_eq!(cluster.client(0).run_until_served("SET later 1"), "+OK");
    check(&cluster, 1);
}

#[test]
fn restarted_nodes_restore_a_lost_coordinator_from_what_their_copies_belong_to() {
    let mut cluster = Cluster::start(3);
    assert_eq!(create(&cluster, "other"), OpResult::Done);
    write(&cluster);
    replace_coordinator(&mut cluster, |directory| {
        empty(directory);
    });
    // As `leeward dev` does: an empty coordinator gets a table, whose first region has the number of one that is there.
    let table = TableOptions { replicas: 3, min_in_sync: 2, ..TableOptions::default() };
    cluster.host().apply(bootstrap_op(&table, TableId(2), &[])).expect("a table");
    restart_nodes(&mut cluster);
    refuse(&cluster, "it knows nothing of cluster");
    assert!(cluster.client(0).run("GET a0").starts_with("-LOADING"));
    restore(&cluster);
    check(&cluster, 0);
    let tables: Vec<String> = {
        let (_, status) = http(&cluster.servers[0].info().admin_address, "/status");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let regions = status["map"]["regions"].as_array().expect("regions").clone();
        regions.iter().map(|region| region["table"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(tables, ["default", "default", "other"], "with the regions that they had");
}

#[test]
fn a_coordinator_that_was_put_back_is_refused_and_no_term_is_given_twice() {
    let mut cluster = Cluster::start(3);
    write(&cluster);
    let saved = cluster.dir.path().join("saved");
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to).expect("a directory");
        for entry in fs::read_dir(from).expect("a directory") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), to.join(entry.file_name())).expect("it is copied");
        }
    };
    copy(&cluster.dir.path().join("coordinator"), &saved);
    assert_eq!(create(&cluster, "newer"), OpResult::Done);
    for is_restarted in [false, true] {
        replace_coordinator(&mut cluster, |directory| {
            empty(directory);
            copy(&saved, directory);
        });
        if is_restarted {
            restart_nodes(&mut cluster);
        }
        refuse(&cluster, "older state");
        restore(&cluster);
        check(&cluster, 1);
        assert_eq!(cluster.client(2).run_until_served("SET more 1"), "+OK");
        let OpResult::Error(OpError::Invalid(exists)) = create(&cluster, "newer") else { panic!("it was forgotten") };
        assert!(exists.contains("there is a table newer already"), "{exists}");
    }
}

/// What the copies on a node's volume say that they belong to.
fn identities(config: &NodeConfig) -> BTreeMap<RegionId, CopyIdentity> {
    let disk = RealDisk::open(config.data_dir()).expect("a directory");
    let image = Image::read(disk.open(VOLUME_NAME).expect("a volume"), None).expect("it is read");
    image.expect("a volume").state().identities.clone()
}

#[test]
fn every_copy_says_what_it_belongs_to() {
    let cluster = Cluster::start(3);
    assert_eq!(create(&cluster, "other"), OpResult::Done);
    write(&cluster);
    moves::wait_for(&cluster.servers[0], "every replica is in sync", moves::is_whole);
    let map = moves::map(&cluster.servers[0]);
    for id in 1..=3 {
        let config = cluster.config(id, 3);
        let begun = Instant::now();
        let mut known = identities(&config);
        while known.len() < map.regions.len() {
            assert!(begun.elapsed() < Duration::from_secs(30), "server {id}: {known:?}");
            std::thread::sleep(Duration::from_millis(20));
            known = identities(&config);
        }
        for config in &map.regions {
            let identity = &known[&config.region];
            let bounds = (&identity.start, &identity.end);
            assert_eq!((identity.table_id, bounds), (config.table_id, (&config.start, &config.end)));
            assert!(identity.epoch >= config.term && identity.cluster.0 != 0, "{identity:?} of {config:?}");
        }
    }
}
