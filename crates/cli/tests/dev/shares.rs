//! Servers that join, leave and come back: what the commands print and wait for, and `leeward_bench::moves`, with real
//! processes.

use crate::running::{Dev, leeward};
use leeward_bench::Load;
use leeward_bench::moves::{self, Options};
use leeward_bench::starter::Starter;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_server_is_told_to_join_and_its_share_is_shown() {
    let dev = Dev::start(3, &[]);
    let said = dev.leeward(&["join", "--server", "2", "--no-wait"]);
    assert!(said.starts_with("server 2 may have copies; "), "{said}");
    assert!(said.contains("an equal share is") && said.contains("its share comes by itself"), "{said}");
    let native = format!("127.0.0.1:{}", dev.base + 100);
    let output = leeward().args(["join", "--server", "9", "--connect", &native]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(text.contains("server 9 is not registered: start it first; live servers are 1, 2, 3"), "{text}");

    let mut watching = leeward()
        .args(["status", "--watch", "1", "--connect", &native])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(watching.stdout.take().expect("it is piped")).lines();
    let mut settled = lines.map_while(Result::ok).filter(|line| line.ends_with("regions move, 4 are settled"));
    assert!(settled.by_ref().nth(1).is_some(), "it shows it over and over");
    watching.kill().expect("it runs until it is stopped");
    watching.wait().expect("it ends");
    dev.stop();
}

#[test]
fn no_request_fails_while_servers_come_and_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("result.json");
    let load = Load {
        records: 3000,
        mix: "sd".parse().expect("a mix"),
        threads: 2,
        depth: 4,
        memory_mib: 256,
        json: Some(json.clone()),
    };
    let starter = Starter::new(env!("CARGO_BIN_EXE_leeward").into(), None).expect("a directory");
    // Whether enough throughput is left can be judged only on a machine that does nothing else.
    moves::run(&Options { regions: 6, rest: Duration::from_secs(1), load }, &starter).expect("it runs");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("it is JSON");
    let moves = &report["moves"];
    let counts = ["failed", "misses"].map(|name| moves[name].as_u64());
    assert_eq!(counts, [0, 0].map(Some), "{moves}");
    assert!(moves["ops"].as_u64() > Some(0) && moves["stages"].as_array().map(Vec::len) == Some(5), "{moves}");
    // Eighteen copies of six regions: five servers have three or four each.
    let joined = &moves["stages"][1];
    assert!(joined["primaries"][1].as_u64() <= Some(3), "{joined}");
}
