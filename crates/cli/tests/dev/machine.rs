//! What the machine does to a cluster: a umask that hides nothing, a terminal that goes away, limits on the size and on
//! the number of files.

use super::running::{Dev, Resp, leeward, signal, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// `leeward`, started by a shell after it has done something.
fn leeward_after(setting: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{setting}; exec \"$@\""), "sh"]).arg(leeward().get_program());
    command
}

/// All files and directories below `directory`, and itself.
fn everything(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    for entry in fs::read_dir(directory).expect("it is readable") {
        let path = entry.expect("it is readable").path();
        match path.is_dir() {
            true => all.append(&mut everything(&path)),
            false => all.push(path),
        }
    }
    all
}

#[test]
fn others_may_open_nothing_whatever_the_umask_is() {
    let parent = Arc::new(tempfile::tempdir().expect("a directory"));
    let data = parent.path().join("data");
    let mut dev = Dev::start_by(leeward_after("umask 0"), parent.clone(), &data, 2, &[]);
    let mut one = Resp::connect(dev.resp(1));
    assert_eq!(one.call(&["SET", "apple", "red"]), "+OK");
    dev.leeward(&["checkpoint", "first"]);
    let log = fs::read_to_string(data.join("node-1/log")).expect("it has a log");
    assert!(!log.contains("other users of this host"), "there is nothing to warn of: {log}");
    dev.stop();
    let all = everything(&data);
    for name in
        ["coordinator.log", "coordinator.lock", "node-1/volume", "node-1/lock", "node-1/log", "node-1/node.toml"]
    {
        assert!(all.iter().any(|path| path.ends_with(name)), "{name}");
    }
    assert!(all.iter().any(|path| path.ends_with("volume") && path.to_string_lossy().contains("checkpoints/first")));
    for path in all {
        let mode = path.metadata().expect("it is there").mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{mode:o} {}", path.display());
    }
    // As an earlier version left it.
    let volume = data.join("node-2/volume");
    for (path, mode) in [(data.join("node-2"), 0o755), (volume.clone(), 0o644)] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("it is ours");
    }
    dev = Dev::start_by(leeward(), parent, &data, 2, &[]);
    let log = fs::read_to_string(data.join("node-2/log")).expect("it has a log");
    assert!(log.contains("chmod -R go= "), "{log}");
    dev.stop();
}

#[test]
fn a_node_outlives_a_hangup_and_a_limit_on_the_size_of_files() {
    let parent = Arc::new(tempfile::tempdir().expect("a directory"));
    let data = parent.path().join("data");
    // 64 MiB, in blocks of 512 bytes.
    let dev = Dev::start_by(leeward_after("ulimit -f 131072"), parent, &data, 1, &[]);
    signal(dev.pids[0], "HUP");
    let mut one = Resp::connect(dev.resp(1));
    let value = "x".repeat(20_000);
    let refused = (0..20_000).map(|n| one.call(&["SET", &format!("key{n}"), &value])).find(|answer| answer != "+OK");
    let refused = refused.expect("40 times as much as fits");
    assert!(refused.starts_with("-UNAVAILABLE") && refused.contains("no space"), "{refused}");
    assert_eq!(one.call(&["GET", "key0"]), value, "reads go on");
    let node = dev.status()["nodes"][0].clone();
    assert!(node["volume_failure"].is_null() && node["volume_full"].is_string(), "full, and not broken: {node}");
    dev.stop();
}

#[test]
fn a_node_without_file_descriptors_lets_operators_in_and_tells_clients() {
    let parent = Arc::new(tempfile::tempdir().expect("a directory"));
    let data = parent.path().join("data");
    let dev = Dev::start_by(leeward_after("ulimit -n 400"), parent, &data, 1, &[]);
    let mut first = Resp::connect(dev.resp(1));
    assert_eq!(first.call(&["SET", "apple", "red"]), "+OK");
    let mut clients: Vec<Resp> = (0..400).map(|_| Resp::connect(dev.resp(1))).collect();
    // One that is displaced leaves its descriptor to the next, which may come in.
    let mut last = loop {
        let mut one = Resp::connect(dev.resp(1));
        match &one.call(&["GET", "apple"])[..] {
            "red" if clients.len() < 800 => clients.push(one),
            answer => {
                assert_eq!(answer, "-ERR max number of clients reached");
                break one;
            }
        }
    };
    let mut admin = TcpStream::connect(("127.0.0.1", dev.base + 200)).expect("it listens");
    admin.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").expect("it reads");
    let mut said = String::new();
    admin.read_to_string(&mut said).expect("it answers");
    assert!(said.contains("200 OK") && said.ends_with("\r\n\r\nok\n"), "{said}");
    assert!(dev.leeward(&["status"]).contains("serving"), "and the native port");
    assert_eq!(first.call(&["GET", "apple"]), "red");
    let log = fs::read_to_string(data.join("node-1/log")).expect("it has a log");
    assert!(log.contains("file descriptors have run out"), "{log}");
    drop(clients);
    wait_for("there is room again", || last.call(&["GET", "apple"]) == "red");
    dev.stop();
}
