//! Bad settings are refused with the reason and the range; good ones arrive.

use super::*;
use std::net::SocketAddr;

fn refusal(text: &str) -> String {
    NodeConfig::from_toml(text, "node.toml").expect_err(text).to_string()
}

#[test]
fn defaults_are_valid_and_follow_the_server_id() {
    let config = NodeConfig::from_toml("server_id = 3", "node.toml").unwrap();
    assert_eq!(config.resp_listen(), "127.0.0.1:7381");
    assert_eq!(config.native_listen(), "127.0.0.1:7481");
    assert_eq!(config.admin_listen(), "127.0.0.1:7581");
    assert_eq!(config.fabric_listen(), "127.0.0.1:7681");
    assert_eq!(config.data_dir(), PathBuf::from("leeward-data/node-3"));
    assert_eq!(NodeConfig::from_toml("", "node.toml").unwrap(), NodeConfig::default());
}

#[test]
fn an_unknown_name_is_refused_with_its_line_and_the_names_there_are() {
    let refused = refusal("server_id = 1\nmemory_size = 5\n");
    assert!(
        refused.contains("line 2") && refused.contains("memory_size") && refused.contains("memory_budget"),
        "{refused}"
    );
}

#[test]
fn absurd_values_are_refused_with_the_range() {
    for (text, says) in [
        ("server_id = 0", "server_id is 0: it must be from 1 to 10000"),
        ("job_threads = 1000", "job_threads is 1000: it must be from 1 to 64"),
        ("segment_bytes = 100000", "segment_bytes is 100000: it must be a power of two"),
        ("segment_bytes = 16384", "segment_bytes is 16384: it must be from 32768 to 2097152"),
        (
            "encryption_key_file = \"/k\"\nencryption_key_command = [\"cat\", \"/k\"]",
            "encryption_key_file is /k: it must be left out where encryption_key_command is given",
        ),
        ("encryption_key_command = []", "encryption_key_command is []: it must be a program, and its arguments"),
        ("encryption_key_command = \"cat /k\"", "encryption_key_command"),
        ("max_connections = 0", "max_connections is 0: it must be from 1 to 100000"),
        ("capacity_bytes = 1", "capacity_bytes is 1: it must be from 67108864 to"),
        ("flush_interval_ms = 0", "flush_interval_ms is 0: it must be from 10 to 60000"),
        ("lease_ms = 5", "lease_ms is 5: it must be from 100 to 60000"),
        ("resp_listen = \"here\"", "resp_listen is here: it must be an IP address and a port"),
        ("advertise_host = \"\"", "advertise_host is \"\": it must be a host name or an IP address"),
        ("advertise_host = \"node-1:7379\"", "without a port"),
        ("advertise_host = \"0.0.0.0\"", "that others can connect to"),
        (
            "coordinator = \"localhost:7779\"",
            "is not an IP address and a port, such as 127.0.0.1:7779, nor a path of ZooKeeper",
        ),
        ("coordinator = \"zk://zk1,zk2\"", "\"zk://zk1,zk2\" names no path for the cluster: write zk://host"),
        ("coordinator = \"http://zk1/x\"", "does not begin with zk://"),
        ("zookeeper_auth_file = \"/x\"", "zookeeper_auth_file is /x: it must be left out where the coordinator is not"),
        ("memory_budget = -1", "memory_budget"),
        ("memory_budget = \"much\"", "memory_budget"),
        ("fabric = \"carrier-pigeon\"", "\"carrier-pigeon\" is no fabric: it must be tcp, shm, libfabric"),
        ("fabric = \"libfabric:pigeon\"", "\"pigeon\" is no libfabric provider that is known here"),
        ("rings = \"carrier-pigeon\"", "carrier-pigeon"),
        ("ring_bytes = 4095", "ring_bytes is 4095: it must be from 4096 to 67108864"),
        ("ring_bytes = 5000", "ring_bytes is 5000: it must be a multiple of 64"),
        ("ring_spin_us = 200000", "ring_spin_us is 200000: it must be from 0 to 100000"),
        ("server_id = ", "line 1"),
    ] {
        let refused = refusal(text);
        assert!(refused.starts_with("node.toml: ") && refused.contains(says), "{text}: {refused}");
    }
}

#[test]
fn with_tls_a_node_may_listen_on_any_address_without_insecure_listen() {
    let listen = "resp_listen = \"10.0.0.1:7379\"\nadmin_listen = \"10.0.0.1:7579\"";
    let tls = "tls_ca = \"a\"\ntls_certificate = \"b\"\ntls_key = \"c\"";
    NodeConfig::from_toml(&format!("{tls}\n{listen}"), "node.toml").expect("it is encrypted");
    let refused = refusal(listen);
    assert!(refused.contains("there is no TLS") && refused.contains("leeward certs"), "{refused}");
    // The audit log is a file of the operator's choice.
    let config = NodeConfig::from_toml("audit_log = \"audit.json\"", "node.toml").expect("it is a setting");
    assert_eq!(config.users.audit_log, Some("audit.json".into()));
}

#[test]
fn listening_beyond_loopback_needs_leave() {
    for name in ["resp_listen", "native_listen", "admin_listen", "fabric_listen"] {
        let line = format!("{name} = \"0.0.0.0:9000\"");
        let refused = refusal(&line);
        assert!(refused.contains(name) && refused.contains("--insecure-listen"), "{refused}");
        let refused = refusal(&format!("insecure_listen = true\n{line}"));
        assert!(refused.contains(name) && refused.contains("set advertise_host to"), "{refused}");
        for host in ["10.0.0.7", "node-1.example", "fd00::1"] {
            let text = format!("insecure_listen = true\nadvertise_host = \"{host}\"\n{line}");
            NodeConfig::from_toml(&text, "node.toml").unwrap();
        }
        let named = line.replace("0.0.0.0", "10.0.0.7");
        NodeConfig::from_toml(&format!("insecure_listen = true\n{named}"), "node.toml").unwrap();
    }
}

#[test]
fn files_of_certificates_belong_together_and_nothing_goes_out_unencrypted() {
    let all = "tls_ca = \"ca.crt\"\ntls_certificate = \"a.crt\"\ntls_key = \"a.key\"\n";
    NodeConfig::from_toml(all, "node.toml").unwrap();
    for missing in ["tls_ca", "tls_certificate", "tls_key"] {
        let lines: Vec<&str> = all.lines().filter(|line| !line.starts_with(&format!("{missing} "))).collect();
        let refused = refusal(&lines.join("\n"));
        assert!(refused.contains(missing) && refused.contains("belong together"), "{refused}");
    }
    for (line, says) in [("fabric = \"libfabric:tcp\"", "tcp or shm"), ("rings = \"tcp\"", "shm or off")] {
        let refused = refusal(&format!("{all}{line}"));
        assert!(refused.contains(says) && refused.contains("insecure_fabric"), "{refused}");
        assert!(NodeConfig::from_toml(&format!("{all}{line}\ninsecure_listen = true"), "node.toml").is_err());
        NodeConfig::from_toml(&format!("{all}{line}\ninsecure_fabric = true"), "node.toml").unwrap();
    }
    let config = NodeConfig::from_toml(all, "node.toml").unwrap();
    let missing = config.tls.load(1).unwrap_err().to_string();
    assert!(missing.starts_with("ca.crt: "), "{missing}");
}

#[test]
fn overrides_win_and_are_checked_as_the_file_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    std::fs::write(&file, "server_id = 2\nmemory_budget = 33554432\n").unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let overrides = [pair("memory_budget", "67108864"), pair("resp_listen", "127.0.0.1:0"), pair("fabric", "shm")];
    let config = NodeConfig::load(Some(&file), &overrides).unwrap();
    assert_eq!(
        (config.identity.server_id, config.storage.memory_budget, config.network.fabric),
        (2, 64 << 20, FabricKind::Shm)
    );
    assert_eq!(config.resp_listen(), "127.0.0.1:0");
    assert_eq!(config.fabric_listen(), "@leeward-7779-2");
    let refused = NodeConfig::load(Some(&file), &[pair("nonsense", "1")]).unwrap_err().to_string();
    assert!(refused.contains("with nonsense=1") && refused.contains("unknown field"), "{refused}");
    let missing = NodeConfig::load(Some(&dir.path().join("absent.toml")), &[]).unwrap_err().to_string();
    assert!(missing.contains("absent.toml"), "{missing}");
}

#[test]
fn the_advertised_address_has_the_bound_port() {
    let bound = SocketAddr::from(([0, 0, 0, 0], 7379));
    let mut config = NodeConfig::default();
    assert_eq!(config.network.advertised(bound), "0.0.0.0:7379");
    config.network.advertise_host = Some("store-1.example".into());
    assert_eq!(config.network.advertised(bound), "store-1.example:7379");
    config.network.advertise_host = Some("fd00::1".into());
    assert_eq!(config.network.advertised(bound), "[fd00::1]:7379");
}

#[test]
fn an_ensemble_and_its_credentials_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("auth");
    let overrides = [("coordinator", "zk://zk1,zk2:2182/leeward"), ("zookeeper_auth_file", file.to_str().unwrap())];
    let overrides = overrides.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = NodeConfig::load(None, &overrides).unwrap();
    assert_eq!(config.coordination.coordinator.to_string(), "zk://zk1:2181,zk2:2182/leeward");
    let missing = config.coordination.zookeeper_credentials().unwrap_err().to_string();
    assert!(missing.starts_with(&format!("{}: No such file", file.display())), "{missing}");
    std::fs::write(&file, "leeward:secret\n").unwrap();
    assert_eq!(config.coordination.zookeeper_credentials().unwrap(), "leeward:secret".parse().ok());
    std::fs::write(&file, "secret\n").unwrap();
    let wrong = config.coordination.zookeeper_credentials().unwrap_err().to_string();
    assert!(wrong.contains("auth: it must be one line, user:password") && !wrong.contains("secret"), "{wrong}");
    assert_eq!(NodeConfig::default().coordination.zookeeper_credentials().unwrap(), None);

    // Two clusters of one host have sockets of their own.
    let listens = |path: &str| {
        let coordinator = format!("coordinator = \"zk://zk1/{path}\"\nfabric = \"shm\"");
        NodeConfig::from_toml(&coordinator, "node.toml").unwrap().fabric_listen()
    };
    assert_eq!(listens("a"), listens("a"));
    assert_ne!(listens("a"), listens("b"));
}
