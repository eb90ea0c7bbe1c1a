//! Clusters whose coordinator is ZooKeeper: servers that the test starts one by one, and those of `leeward dev`.

use crate::ensemble::{Ensemble, is_there};
use crate::running::{Dev, Resp, free_base, leeward, wait_for};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

const NODES: u16 = 3;
const KEYS: u32 = 300;

/// `leeward serve` processes that know nothing but the ensemble.
struct Servers {
    base: u16,
    directory: tempfile::TempDir,
    children: Vec<Child>,
}

impl Servers {
    fn start(coordinator: &str) -> Servers {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("auth"), "leeward:secret\n").expect("a file");
        let mut servers = Servers { base: free_base(), directory, children: Vec::new() };
        for node in 1..=NODES {
            servers.children.push(servers.command(node, coordinator).spawn().expect("it starts"));
        }
        servers
    }

    fn command(&self, node: u16, coordinator: &str) -> Command {
        let mut command = leeward();
        command.args(["serve", "--stop-with-stdin", "--coordinator", coordinator]).stdin(Stdio::piped());
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        for setting in [
            format!("server_id={node}"),
            format!("data_dir={}", path(&format!("node-{node}"))),
            format!("zookeeper_auth_file={}", path("auth")),
            format!("resp_listen=127.0.0.1:{}", self.base + node - 1),
            format!("native_listen=127.0.0.1:{}", self.base + node + 99),
            format!("admin_listen=127.0.0.1:{}", self.base + node + 199),
            format!("fabric_listen=127.0.0.1:{}", self.base + node + 299),
        ] {
            command.args(["--set", &setting]);
        }
        command
    }

    fn resp(&self, node: u64) -> u16 {
        self.base + node as u16 - 1
    }

    fn run(&self, args: &[&str]) -> Output {
        let native: Vec<String> = (1..=NODES).map(|node| format!("127.0.0.1:{}", self.base + node + 99)).collect();
        leeward().args(args).args(["--connect", &native.join(",")]).output().expect("it runs")
    }

    /// The server that is primary of the first region.
    fn primary(&self) -> Option<u64> {
        let status = self.run(&["status", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).ok()?;
        status["map"]["regions"][0]["primary"]["server"].as_u64()
    }

    fn kill(&mut self, node: u64) {
        let child = &mut self.children[node as usize - 1];
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn key(number: u32) -> String {
    format!("{}-{number}", ["apple", "zebra"][number as usize % 2])
}

#[test]
fn servers_on_zookeeper_lose_nothing_to_the_kill_of_a_primary() {
    if !is_there() {
        return;
    }
    let mut ensemble = Ensemble::start(3);
    let mut servers = Servers::start(&ensemble.address("/stores/one"));
    wait_for("a table is made", || {
        let made = servers.run(&["table", "create", "default", "--replicas", "3", "--split-at", "m"]);
        made.status.success() || String::from_utf8_lossy(&made.stderr).contains("already")
    });
    let mut client = Resp::connect(servers.resp(1));
    for number in 0..KEYS {
        assert_eq!(client.call(&["SET", &key(number), &format!("value-{number}")]), "+OK", "{number}");
    }

    // The data path needs neither the ensemble nor its failover.
    (0..3).for_each(|server| ensemble.signal(server, "STOP"));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(client.call(&["SET", &key(0), "value-0"]), "+OK");
    assert_eq!(client.call(&["GET", &key(1)]), "value-1");
    (0..3).for_each(|server| ensemble.signal(server, "CONT"));
    let leader = ensemble.leader();
    ensemble.kill(leader);
    assert_eq!(client.call(&["GET", &key(2)]), "value-2");
    ensemble.restart(leader);

    wait_for("all are whole", || {
        let status = servers.run(&["status", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        let regions = status["map"]["regions"].as_array().cloned().unwrap_or_default();
        regions.len() == 2
            && regions.iter().all(|region| region["backups"].as_array().is_some_and(|all| all.len() == 2))
    });
    let victim = servers.primary().expect("a server is primary");
    servers.kill(victim);
    let killed = Instant::now();
    let survivor = if victim == 1 { 2 } else { 1 };
    let mut client = Resp::connect(servers.resp(survivor));
    wait_for("every region is served again", || {
        (0..2).all(|number| client.call(&["SET", &key(number), &format!("value-{number}")]) == "+OK")
    });
    println!("writes went on {:?} after the kill of a primary", killed.elapsed());
    for number in 0..KEYS {
        assert_eq!(client.call(&["GET", &key(number)]), format!("value-{number}"), "{number} was acknowledged");
    }
}

#[test]
fn a_node_that_zookeeper_refuses_says_so() {
    if !is_there() {
        return;
    }
    let ensemble = Ensemble::start(1);
    let servers = Servers::start(&ensemble.address("/leeward"));
    let says = |base: u16| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", base + 200)).ok()?;
        std::io::Write::write_all(&mut stream, b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        std::io::read_to_string(stream).ok()
    };
    wait_for("the path is theirs", || says(servers.base).is_some_and(|text| text.contains("no regions yet")));
    std::fs::write(servers.directory.path().join("auth"), "leeward:wrong\n").expect("a file");
    let mut stranger = servers.command(7, &ensemble.address("/leeward")).spawn().expect("it starts");
    let mut said = String::new();
    wait_for("it says why", || {
        said = says(servers.base + 6).unwrap_or_default();
        said.contains("the password is wrong")
    });
    assert!(said.contains("503") && said.contains("/leeward: it belongs to another user"), "{said}");
    drop(stranger.kill());
    drop(stranger.wait());
}

#[test]
fn a_cluster_of_this_machine_can_use_zookeeper_as_well() {
    if !is_there() {
        return;
    }
    let ensemble = Ensemble::start(1);
    let dev = Dev::start(2, &["--coordinator", &ensemble.address("/dev")]);
    let mut client = Resp::connect(dev.resp(1));
    assert_eq!(client.call(&["SET", "apple", "1"]), "+OK");
    assert_eq!(dev.leeward(&["get", "apple"]).trim_end(), "1");
    assert!(!dev.directory.path().join("coordinator").exists());
    dev.stop();
}
