//! `leeward dev` with real processes: writes over RESP survive the `kill -9` of a node, the node comes back in sync, and
//! nothing is left running.

mod comparison;
mod copies;
mod direct;
#[expect(dead_code, reason = "other tests speak to one server without TLS")]
#[path = "../../../cluster/tests/shared/ensemble.rs"]
mod ensemble;
mod faults;
mod machine;
mod many;
mod proofs;
#[path = "../../../cluster/tests/shared/proxy.rs"]
#[expect(dead_code, reason = "other tests lead it to another server")]
mod proxy;
mod restarts;
mod rings;
mod running;
mod shares;
mod tables;
mod tls;
mod users;
mod zookeeper;

use running::{Dev, Resp, leeward, wait_for};
use std::process::Command;
use std::time::Duration;

const KEYS: u32 = 300;

fn key(number: u32) -> String {
    // Spread over the default regions: words before and after `i`, and records of the benchmark.
    match number % 4 {
        0 => format!("apple-{number}"),
        1 => format!("zebra-{number}"),
        2 => format!("user05{number}"),
        _ => format!("user13{number}"),
    }
}

fn in_sync(dev: &Dev) -> Vec<usize> {
    let map = dev.status()["map"].clone();
    let members = |group: &serde_json::Value| {
        let primary = usize::from(!group["primary"].is_null());
        primary + group["backups"].as_array().map_or(0, Vec::len)
    };
    map["regions"].as_array().map_or(Vec::new(), |regions| regions.iter().map(members).collect())
}

#[test]
fn acknowledged_writes_survive_the_kill_of_a_primary() {
    let mut dev = Dev::start(3, &[]);
    wait_for("all groups are whole", || in_sync(&dev) == [3, 3, 3, 3]);

    let mut one = Resp::connect(dev.resp(1));
    for number in 0..KEYS {
        assert_eq!(one.call(&["SET", &key(number), &format!("value-{number}")]), "+OK", "{number}");
    }
    let mut two = Resp::connect(dev.resp(2));
    assert_eq!(two.call(&["GET", &key(7)]), "value-7", "any node answers for any key");

    let victim = dev.status()["map"]["regions"][0]["primary"]["server"].as_u64().expect("a primary") as u32;
    dev.kill(victim);
    let said = dev.wait_for_line(&format!("node {victim} "));
    assert!(said.contains("killed by signal 9") && said.contains("serve --config"), "{said}");

    let survivor = if victim == 1 { 2 } else { 1 };
    let mut client = Resp::connect(dev.resp(survivor));
    wait_for("every region is served again", || {
        (0..4).all(|number| client.call(&["SET", &key(number), "again"]) == "+OK")
    });
    for number in 4..KEYS {
        assert_eq!(client.call(&["GET", &key(number)]), format!("value-{number}"), "{number} was acknowledged");
    }

    // The command that was printed starts it again. Its log is on a full disk, and it serves all the same.
    let config = said.split("--config ").nth(1).expect("the command").trim();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is full");
    let mut restarted = leeward().args(["serve", "--config", config]).stderr(full).spawn().expect("it starts");
    wait_for("the node is back in sync", || in_sync(&dev) == [3, 3, 3, 3]);
    let mut back = Resp::connect(dev.resp(victim));
    assert_eq!(back.call(&["GET", &key(9)]), "value-9", "the returned node answers");
    let table = dev.leeward(&["status"]);
    assert!(table.contains("master") && table.contains("serving"), "{table}");
    running::terminate(restarted.id());
    assert!(restarted.wait().expect("it ends").success(), "a stop is no failure");
    dev.stop();
}

#[test]
fn a_lone_node_loses_nothing_and_is_restarted_when_that_is_asked_for() {
    let mut dev = Dev::start(1, &["--restart"]);
    let mut client = Resp::connect(dev.resp(1));
    for number in 0..KEYS {
        assert_eq!(client.call(&["SET", &key(number), "kept"]), "+OK", "{number}");
    }
    dev.kill(1);
    dev.wait_for_line("node 1 started again");
    wait_for("it serves", || {
        Resp::try_connect(dev.resp(1)).is_some_and(|mut client| client.call(&["GET", &key(0)]) == "kept")
    });
    let mut client = Resp::connect(dev.resp(1));
    for number in 0..KEYS {
        assert_eq!(client.call(&["GET", &key(number)]), "kept", "{number}");
    }
    assert_eq!(dev.leeward(&["get", &key(5)]).trim_end(), "kept");
    dev.leeward(&["put", "by-hand", "1"]);
    assert_eq!(dev.leeward(&["scan", "by", "bz"]), "by-hand\t1\n");
    let count = dev.leeward(&["count", "by", "bz"]);
    assert_eq!(count, "about 1 keys, 8 bytes of keys and values\n");
    let refused = dev.refused(&["put", "--if-absent", "by-hand", "2"]);
    let version = refused.trim_end().rsplit(' ').next().expect("the message ends with the version").to_owned();
    assert_eq!(refused, format!("nothing was changed: the key exists, with version {version}\n"));
    assert!(dev.refused(&["del", "--if-value", "2", "by-hand"]).contains(&version));
    dev.leeward(&["put", "--if-version", &version, "--ttl", "1ms", "by-hand", "2"]);
    wait_for("it expires", || dev.leeward(&["scan", "by", "bz"]).is_empty());
    dev.leeward(&["put", "--if-absent", "by-hand", "3"]);
    dev.leeward(&["del", "--if-value", "3", "by-hand"]);
    assert_eq!(dev.leeward(&["scan", "by", "bz"]), "");
    dev.stop();
}

#[test]
fn nodes_end_with_their_supervisor_however_it_dies() {
    let dev = Dev::start(2, &["--fabric", "tcp"]);
    let nodes = dev.pids.clone();
    dev.die();
    wait_for("the nodes are gone", || nodes.iter().all(|pid| !running::is_alive(*pid)));
}

#[test]
fn a_second_start_says_what_is_in_the_way() {
    let dev = Dev::start(1, &[]);
    let base = dev.base.to_string();
    let attempt = |data: &str, base: &str| {
        let output = leeward().args(["dev", "--nodes", "1", "--data", data, "--base-port", base]).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let data = dev.directory.path().display().to_string();
    let locked = attempt(&data, &base);
    assert!(locked.contains("in use by another process"), "{locked}");
    let other = tempfile::tempdir().expect("a directory");
    let taken = attempt(&other.path().display().to_string(), &base);
    assert!(taken.contains("--base-port") && taken.contains(&(dev.base + 400).to_string()), "{taken}");
    dev.stop();
}

#[test]
fn a_bench_with_its_own_cluster_loses_nothing_to_kills() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("result.json");
    let output = leeward()
        .args([
            "bench",
            "ycsb",
            "--dev",
            "3",
            "--workload",
            "load,a",
            "--mix",
            "sd",
            "--records",
            "3000",
            "--ops",
            "3000",
        ])
        .args(["--kill-primary-every", "0.5", "--kills", "2", "--verify", "--json"])
        .arg(&json)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("kill 2: node") && text.contains("unavailable for"), "{text}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("it is JSON");
    assert_eq!((&report["errors"], &report["lost_writes"]), (&0.into(), &0.into()), "{text}");
    assert_eq!(report["kills"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["backups"]["compactions"], 0);
    assert_eq!(report["backups"]["index_bytes_read"], 0);
}

#[test]
fn an_idle_cluster_is_idle() {
    let dev = Dev::start(3, &[]);
    std::thread::sleep(Duration::from_secs(2));
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is alive");
        let fields: Vec<u64> = stat
            .rsplit(") ")
            .next()
            .expect("fields")
            .split(' ')
            .skip(11)
            .take(2)
            .map(|f| f.parse().expect("ticks"))
            .collect();
        fields[0] + fields[1]
    };
    let all = || dev.pids.iter().copied().chain([dev.supervisor()]).map(ticks).sum::<u64>();
    let before = all();
    std::thread::sleep(Duration::from_secs(5));
    let share = (all() - before) as f64 / 500.0;
    assert!(share < 0.03, "an idle cluster of three nodes uses {:.1} % of a core", share * 100.0);
    dev.stop();
}

#[test]
fn bad_arguments_and_settings_are_refused() {
    let refused = |args: &[&str]| {
        let output = leeward().args(args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (args, part) in [
        (&["serve", "--set", "memory_budget=5"][..], "memory_budget is 5: it must be from"),
        (&["serve", "--set", "colour=red"], "colour"),
        (&["serve", "--set", "data_dir=/dev/null/x"], "starting server=1 data_dir=/dev/null/x"),
        (&["serve", "--coordinator", "zk://a,b"], "names no path for the cluster: write zk://host[:port]"),
        (
            &["serve", "--coordinator", "zk://a/b", "--set", "zookeeper_auth_file=/nonexistent"],
            "/nonexistent: No such file",
        ),
        (&["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["serve", "--set", "resp_listen=0.0.0.0:1"], "loopback"),
        (&["get", "x", "--connect", "nowhere"], "host:port"),
        (&["bench", "ycsb", "--records", "0"], "--records"),
        (&["bench", "replication", "--only", "colour"], "--only colour"),
        (&["bench", "replication", "--l0-kib", "64"], "l0_bytes is 32768"),
        (&["dev", "--log", "=,="], "--log"),
    ] {
        let text = refused(args);
        assert!(text.contains(part), "{args:?}: {text}");
    }
    let version = Command::new(env!("CARGO_BIN_EXE_leeward")).arg("--version").output().expect("it runs");
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("leeward "));
}
