//! A node accepts the settings that the supervisor writes. Bad plans are refused before anything runs.

use super::plan::last_lines;
use super::{Cluster, DevError, Fabric, Plan, Ports, default_table, describe};
use leeward_server::NodeConfig;
use leeward_server::config::FabricKind;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

fn plan(directory: &Path, fabric: Fabric) -> Plan {
    let plan = Plan::new("leeward".into(), 3, Vec::new(), directory.into()).expect("some ports are free");
    Plan { ports: Ports::new(9379), fabric, ..plan }
}

#[test]
fn the_settings_of_a_node_are_read_back_as_they_were_meant() {
    let directory = Path::new("/tmp/with \"quotes\" and spaces");
    let text = plan(directory, Fabric::Tcp).config(2);
    let config = NodeConfig::from_toml(&text, "node.toml").expect(&text);
    assert_eq!((config.identity.server_id, config.master.expected_servers), (2, 3));
    assert_eq!(config.data_dir(), directory.join("node-2"));
    let addresses = [config.resp_listen(), config.native_listen(), config.admin_listen(), config.fabric_listen()];
    assert_eq!(addresses, ["127.0.0.1:9380", "127.0.0.1:9480", "127.0.0.1:9580", "127.0.0.1:9680"]);
    assert_eq!(config.coordination.coordinator.to_string(), "127.0.0.1:9779");
    let shared = NodeConfig::from_toml(&plan(directory, Fabric::Shm).config(1), "node.toml").expect("settings");
    assert_eq!(shared.network.fabric, FabricKind::Shm);
    for fabric in <Fabric as clap::ValueEnum>::value_variants() {
        let config = NodeConfig::from_toml(&plan(directory, *fabric).config(1), "node.toml").expect("settings");
        let by_path = config.fabric_listen().starts_with('@');
        assert_eq!(by_path, *fabric == Fabric::Shm, "{fabric:?} at {}", config.fabric_listen());
    }
}

#[test]
fn the_key_of_encrypted_volumes_is_made_once_for_its_owner_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let plain = plan(directory.path(), Fabric::Shm);
    plain.make_key().expect("there is nothing to make");
    assert!(!plain.key_file().exists() && !plain.config(1).contains("encryption"));
    let plan = Plan { encrypt: true, ..plain };
    plan.make_key().expect("it is made");
    let made = std::fs::read_to_string(plan.key_file()).expect("it is there");
    let (name, digits) = made.trim_end().split_once(' ').expect("a name and a key");
    assert!(name == "dev" && digits.len() == 64 && digits.chars().all(|digit| digit.is_ascii_hexdigit()), "{name}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&plan.key_file().metadata().expect("it is there").permissions());
    assert_eq!(mode & 0o777, 0o400);
    plan.make_key().expect("it stays");
    assert_eq!(std::fs::read_to_string(plan.key_file()).expect("it is there"), made);
    let config = NodeConfig::from_toml(&plan.config(1), "node.toml").expect("settings");
    assert_eq!(config.storage.encryption_key_file, Some(plan.key_file()));
}

#[test]
fn settings_of_the_command_line_win() {
    let mut plan = plan(Path::new("/x"), Fabric::Shm);
    plan.settings = [("memory_budget", "33554432"), ("fabric", "tcp"), ("lease_ms", "500")]
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .to_vec();
    let text = plan.config(1);
    let config = NodeConfig::from_toml(&text, "node.toml").expect(&text);
    assert_eq!(
        (config.storage.memory_budget, config.replication.lease_ms, config.network.fabric),
        (32 << 20, 500, FabricKind::Tcp)
    );
}

#[test]
fn settings_that_no_node_could_take_are_refused_before_anything_is_made() {
    let parent = tempfile::tempdir().expect("a directory");
    for (name, value, says) in [
        ("memory_budget", "5", "memory_budget is 5: it must be from"),
        ("colour", "red", "unknown field `colour`"),
        ("server_id", "7", "--set server_id: every node gets its own"),
        ("resp_listen", "127.0.0.1:1", "--set resp_listen"),
        ("coordinator", "127.0.0.1:1", "--set coordinator"),
        ("coordinator", "zk://127.0.0.1:1", "names no path"),
    ] {
        let directory = parent.path().join("data");
        let mut plan = plan(&directory, Fabric::Shm);
        plan.settings.push((name.into(), value.into()));
        let error = Cluster::start(plan).expect_err(name).to_string();
        assert!(error.contains(says) && !directory.exists(), "{error}");
    }
}

#[test]
fn a_directory_of_another_number_of_nodes_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("node-1")).expect("a directory in it");
    let error = Cluster::start(plan(directory.path(), Fabric::Shm)).expect_err("one is not three").to_string();
    assert!(error.contains("1 nodes") && error.contains("--nodes 1"), "{error}");
}

#[test]
fn splits_that_do_not_ascend_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    for splits in [vec!["b".into(), "a".into()], vec!["a".into(), "a".into()], vec!["".into(), "a".into()]] {
        let plan = Plan { splits, ..plan(directory.path(), Fabric::Shm) };
        assert!(matches!(Cluster::start(plan), Err(DevError::Splits)));
    }
}

#[test]
fn a_table_has_as_many_replicas_as_there_are_nodes() {
    let of = |nodes| {
        let options = default_table(nodes);
        (options.replicas, options.min_in_sync)
    };
    assert_eq!([of(1), of(2), of(3), of(5)], [(1, 1), (2, 2), (3, 2), (3, 2)]);
}

#[test]
fn ends_are_described() {
    assert_eq!(describe(ExitStatus::from_raw(9)), "was killed by signal 9");
    assert_eq!(describe(ExitStatus::from_raw(2 << 8)), "ended with exit code 2");
    assert_eq!(last_lines("a\nb\nc\n", 2), "  b\n  c");
    assert_eq!(last_lines("", 2), "");
}

#[test]
fn a_file_is_written_whole_or_not_at_all_and_only_if_it_differs() {
    use std::os::unix::fs::MetadataExt;
    use std::{fs, io};
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("node.toml");
    let inode = || fs::metadata(&path).expect("it is there").ino();
    super::write_if_different(&path, "one").expect("there is room");
    let first = inode();
    // Where a second file would find no room, the same text needs none, and another one leaves the file as it is.
    let new = directory.path().join("node.new");
    std::os::unix::fs::symlink("/dev/full", &new).expect("a link");
    super::write_if_different(&path, "one").expect("nothing is written");
    assert!(new.is_symlink());
    let error = super::write_if_different(&path, "two").expect_err("the disk is full");
    assert_eq!((error.kind(), fs::read_to_string(&path).expect("text")), (io::ErrorKind::StorageFull, "one".into()));
    assert!(inode() == first && !new.is_symlink(), "the part of it that had room is gone");
    super::write_if_different(&path, "two").expect("there is room");
    assert_eq!(fs::read_to_string(&path).expect("text"), "two");
}
