//! `leeward dev --tls` and `leeward certs`, as an operator uses them.

use crate::running::{Dev, leeward};
use std::path::Path;

/// What a command says, and whether it succeeded.
fn run(connect: &str, args: &[&str]) -> (bool, String) {
    let output = leeward().args(args).env("LEEWARD_CONNECT", connect).output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn done(connect: &str, args: &[&str]) -> String {
    let (is_done, said) = run(connect, args);
    assert!(is_done, "{args:?}: {said}");
    said
}

fn address(dev: &Dev, scheme: &str, ca: &Path) -> String {
    format!("{scheme}://127.0.0.1:{}?ca={}", dev.base + 100, ca.display())
}

#[test]
fn everything_is_encrypted_on_demand() {
    let dev = Dev::start(3, &["--tls"]);
    let ca = dev.directory.path().join("certs").join("ca.crt");
    let connect = address(&dev, "leeward+tls", &ca);
    done(&connect, &["put", "apple", "1"]);
    assert_eq!(done(&connect, &["get", "apple"]), "1\n");
    assert_eq!(done(&address(&dev, "leeward+ring+tls", &ca), &["get", "apple"]), "1\n");
    let status = done(&connect, &["status"]);
    assert!(!status.contains("does not answer") && status.matches(" ok\n").count() == 3, "{status}");
    done(&connect, &["table", "describe", "default"]);
    let load = ["bench", "ycsb", "--workload", "load,a", "--records", "3000", "--ops", "3000", "--verify"];
    done(&connect, &load);
    done(&connect, &["verify", "--replicas", "--ranges"]);

    let (is_done, said) = run(&format!("127.0.0.1:{}", dev.base + 100), &["get", "apple"]);
    assert!(!is_done && said.contains("no node answers"), "{said}");
    let other = dev.directory.path().join("other");
    let of_other = other.to_str().expect("a path");
    done(&connect, &["certs", "create", "--directory", of_other]);
    let (is_done, said) = run(&address(&dev, "leeward+tls", &other.join("ca.crt")), &["get", "apple"]);
    assert!(!is_done && said.contains("invalid peer certificate"), "{said}");
    let (is_done, said) = run(&address(&dev, "leeward+tls", &other.join("none")), &["get", "apple"]);
    assert!(!is_done && said.contains("none: No such file"), "{said}");
    dev.stop();
}

#[test]
fn certificates_are_made_and_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("certs");
    let at = place.to_str().expect("a path");
    done("", &["certs", "create", "--directory", at]);
    let (is_done, said) = run("", &["certs", "create", "--directory", at]);
    assert!(!is_done && said.contains("File exists"), "{said}");
    let hosts = ["--host", "db1.example,10.0.0.1"];
    done("", &[&["certs", "add", "--directory", at, "--server", "7", "--days", "30"][..], &hosts].concat());
    let file = place.join("server-7.crt");
    let said = done("", &["certs", "show", file.to_str().expect("a path")]);
    assert!(said.contains("server-7.leeward, db1.example, 10.0.0.1") && said.contains("valid for"), "{said}");
    let config = format!(
        "tls_ca = \"{at}/ca.crt\"\ntls_certificate = \"{at}/server-7.crt\"\ntls_key = \"{at}/server-7.key\"\nserver_id = 7\n"
    );
    let node = directory.path().join("node.toml");
    std::fs::write(&node, config).expect("it is written");
    let shown = done("", &["config", "--config", node.to_str().expect("a path")]);
    assert!(shown.contains("tls_key"), "{shown}");
}
