//! Real nodes in this process, over real sockets: one alone, three together, and starts that fail.

mod backups;
mod balance;
mod crowds;
mod damage;
mod digests;
mod forgetful;
mod fresh;
mod full;
mod fuzz;
mod hashed;
mod hoards;
mod identity;
mod merges;
mod moves;
mod probes;
mod reads;
mod rings;
mod slots;
mod splits;
mod tables;
mod tls;
mod users;

use super::*;
use crate::config::{ClientLimits, Coordination, Identity, Master, Network};
use leeward_cluster::bootstrap_op;
use leeward_cluster::embedded::{Host, HostOptions};
use leeward_format::cluster::TableOptions;
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_format::op::{Condition, Lifetime, MAX_MESSAGE_BYTES, Op, OpResult, Reply, Request};
use leeward_format::table::TableName;
use leeward_format::{Lsn, RegionId, TableId};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A coordinator and nodes, each with a directory of its own.
struct Cluster {
    host: Option<Host>,
    servers: Vec<Server>,
    dir: TempDir,
}

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Cluster {
    fn start(nodes: u32) -> Cluster {
        Cluster::start_with(nodes, |_| ())
    }

    /// With other settings of all nodes.
    fn start_with(nodes: u32, change: impl Fn(&mut NodeConfig)) -> Cluster {
        Cluster::start_at(nodes, None, change)
    }

    /// With a coordinator that has these certificates.
    fn start_at(nodes: u32, tls: Option<Arc<NodeTls>>, change: impl Fn(&mut NodeConfig)) -> Cluster {
        let dir = tempfile::tempdir().expect("a directory");
        let host = Host::start(HostOptions { directory: dir.path().join("coordinator"), listen: LOOPBACK, tls })
            .expect("a coordinator");
        let table = TableOptions { replicas: nodes, min_in_sync: nodes.min(2), ..TableOptions::default() };
        host.apply(bootstrap_op(&table, TableId(1), &["m".into()])).expect("a table");
        let mut cluster = Cluster { host: Some(host), servers: Vec::new(), dir };
        for id in 1..=nodes {
            let mut config = cluster.config(id, nodes);
            change(&mut config);
            cluster.servers.push(start(&config).expect("a node"));
        }
        cluster
    }

    fn config(&self, id: u32, nodes: u32) -> NodeConfig {
        let coordinator = CoordinatorAt::Embedded(self.host().address());
        NodeConfig {
            identity: Identity {
                server_id: id,
                data_dir: Some(self.dir.path().join(format!("node-{id}"))),
                ..Identity::default()
            },
            network: Network::on(LOOPBACK),
            coordination: Coordination { coordinator, ..Coordination::default() },
            master: Master { expected_servers: nodes, ..Master::default() },
            clients: ClientLimits { max_connections: 20, ..ClientLimits::default() },
            ..NodeConfig::default()
        }
    }

    fn host(&self) -> &Host {
        self.host.as_ref().expect("a running coordinator")
    }

    fn client(&self, node: usize) -> Client {
        Client::connect(&self.servers[node].info().resp_address)
    }
}

/// A blocking Redis client that knows just enough.
struct Client<S = TcpStream> {
    stream: BufReader<S>,
}

impl Client {
    fn connect(address: &str) -> Client {
        let stream = TcpStream::connect(address).expect("the node listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        Client { stream: BufReader::new(stream) }
    }
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the node reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the node answers");
        line.trim_end().to_owned()
    }

    /// One reply, its lines joined by spaces.
    fn reply(&mut self) -> String {
        let line = self.line();
        let count = || line[1..].parse::<i64>().expect("a count");
        match line.as_bytes().first() {
            Some(b'$') if count() >= 0 => {
                let mut body = vec![0; count() as usize + 2];
                self.stream.read_exact(&mut body).expect("a whole string");
                String::from_utf8_lossy(&body[..body.len() - 2]).into_owned()
            }
            Some(b'*') => (0..count()).map(|_| self.reply()).collect::<Vec<_>>().join(" "),
            _ => line,
        }
    }

    fn run(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        self.reply()
    }

    /// Repeats `command` while the cluster is not there yet.
    fn run_until_served(&mut self, command: &str) -> String {
        let begun = Instant::now();
        loop {
            let reply = self.run(command);
            let not_yet = ["-LOADING", "-NOREPLICAS", "-TRYAGAIN"].iter().any(|code| reply.starts_with(code));
            if !not_yet || begun.elapsed() > Duration::from_secs(30) {
                return reply;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn http(address: &str, path: &str) -> (u16, String) {
    http_for("x", address, path)
}

/// A request for this host, whatever the address is.
fn http_for(host: &str, address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the admin port listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("the admin port reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

#[test]
fn a_lone_node_serves_every_protocol_and_keeps_what_it_acknowledged() {
    let mut cluster = Cluster::start(1);
    let mut client = cluster.client(0);
    assert_eq!(client.run("PING"), "+PONG");
    assert_eq!(client.run_until_served("SET hello world"), "+OK");
    assert_eq!(client.run_until_served("SET zebra 1"), "+OK");
    assert_eq!(client.run("GET hello"), "world");
    assert_eq!(client.run("INCR zebra"), ":2");
    assert_eq!(client.run("KRANGE a zz"), "hello world zebra 2");
    assert_eq!(client.run("KEYS *"), "hello zebra");
    client.send(b"SET a 1\r\nINCR a\r\nGET a\r\nKEYS *\r\nDEL a\r\nGET a\r\n");
    let replies: Vec<String> = (0..6).map(|_| client.reply()).collect();
    assert_eq!(replies, ["+OK", ":2", "2", "a hello zebra", ":1", "$-1"]);

    let info = cluster.servers[0].info().clone();
    let (status, body) = http(&info.admin_address, "/status");
    let status_json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (status, &status_json["server"], &status_json["map"]["regions"][0]["primary"]),
        (200, &1.into(), &1.into())
    );
    assert_eq!(http(&info.admin_address, "/livez"), (200, "ok\n".into()));
    assert_eq!(http(&info.admin_address, "/readyz"), (200, "ok\n".into()));
    let (_, metrics) = http(&info.admin_address, "/metrics");
    assert!(metrics.contains("leeward_commands_total{command=\"ping\"} 1"), "{metrics}");
    assert!(http(&info.admin_address, "/").1.contains("Leeward node 1"));
    assert_eq!(http(&info.admin_address, "/nonsense").0, 404);

    drop(client);
    cluster.servers.pop().expect("the node").stop();
    cluster.servers.push(start(&cluster.config(1, 1)).expect("the node again"));
    assert!(cluster.servers[0].info().member.incarnation > info.member.incarnation);
    let mut client = cluster.client(0);
    assert_eq!(client.run_until_served("GET hello"), "world");
    assert_eq!(client.run_until_served("GET zebra"), "2");
}

#[test]
fn any_of_three_nodes_takes_any_command() {
    let cluster = Cluster::start(3);
    for node in 0..3 {
        let mut client = cluster.client(node);
        for key in ["apple", "melon", "zebra"] {
            assert_eq!(client.run_until_served(&format!("SET {key}{node} {node}")), "+OK");
        }
    }
    for node in 0..3 {
        let mut client = cluster.client(node);
        assert_eq!(client.run("MGET apple0 melon1 zebra2 none"), "0 1 2 $-1");
        assert_eq!(client.run("KRANGE - + KEYS"), "apple0 apple1 apple2 melon0 melon1 melon2 zebra0 zebra1 zebra2");
        assert_eq!(client.run("KPREFIX melon REV LIMIT 2"), "melon2 2 melon1 1");
        assert_eq!(client.run(&format!("DEL apple{node} zebra{node} none")), ":2");
        assert_eq!(client.run(&format!("SET apple{node} {node}")), "+OK");
        assert_eq!(client.run(&format!("SET zebra{node} {node}")), "+OK");
    }
    let mut client = cluster.client(1);
    assert_eq!(client.run("KDELRANGE apple1 zebra1"), "+OK");
    assert_eq!(client.run("KRANGE - + KEYS"), "apple0 zebra1 zebra2");
    let (start, end) = ("zebra2".into(), None);
    let deleted = identity::ask(&cluster.servers[2].info().native_address, Op::DeleteRange { start, end });
    assert_eq!(deleted, OpResult::RangeDeleted { resume: None });
    assert_eq!(client.run("KRANGE - +"), "apple0 0 zebra1 1");
    let snapshot = cluster.servers[1].snapshot().expect("the node answers");
    assert_eq!(snapshot.map.servers.len(), 3);
}

/// What a turn forwards goes out in batches: more operations than one takes, and values longer than one.
#[test]
fn a_pipeline_is_answered_whole_and_in_order_by_nodes_that_forward_it() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).run_until_served("SET n 0"), "+OK");
    let long = "v".repeat(20_000);
    for node in 0..3 {
        let mut client = cluster.client(node);
        assert_eq!(client.run_until_served(&format!("SET long {long}")), "+OK");
        client.send("INCR n\r\nGET long\r\nGET n\r\n".repeat(500).as_bytes());
        for number in node * 500 + 1..=(node + 1) * 500 {
            let replies = [client.reply(), client.reply(), client.reply()];
            assert!(replies == [format!(":{number}"), long.clone(), number.to_string()], "{number} at node {node}");
        }
    }
}

#[test]
fn a_native_client_gets_the_map_and_its_results() {
    let cluster = Cluster::start(1);
    cluster.client(0).run_until_served("SET a 1");
    let mut stream = TcpStream::connect(&cluster.servers[0].info().native_address).expect("the node listens");
    let mut bytes = Vec::new();
    write_frame(FrameKind::Request, &Request::Hello { client: "test".into(), known: 0 }, &mut bytes);
    let put = Op::Put {
        key: "b".into(),
        value: "2".into(),
        when: Condition::Absent,
        want_old: false,
        lifetime: Lifetime::Forever,
    };
    let ops = vec![Op::Get { key: "a".into() }, put];
    let request = Request::Ops { id: 9, direct: true, table: TableName::default(), ops };
    write_frame(FrameKind::Request, &request, &mut bytes);
    stream.write_all(&bytes).expect("the node reads");
    let mut received = Vec::new();
    let mut replies = Vec::new();
    while replies.len() < 2 {
        while let Some((reply, len)) = read_frame(FrameKind::Reply, &received, MAX_MESSAGE_BYTES).expect("frames") {
            received.drain(..len);
            replies.push(reply);
        }
        let mut piece = [0; 4096];
        let len = if replies.len() < 2 { stream.read(&mut piece).expect("the node answers") } else { 0 };
        received.extend_from_slice(&piece[..len]);
    }
    assert!(matches!(&replies[0], Reply::Routes(update) if update.since.is_none() && update.tables.len() == 1));
    let results =
        vec![OpResult::Value(Some("1".into())), OpResult::Put { done: true, old: None, version: Some(Lsn(2)) }];
    assert_eq!(replies[1], Reply::Results { id: 9, results });
}

#[test]
fn protocol_errors_are_told_before_the_connection_is_closed() {
    let cluster = Cluster::start(1);
    let mut client = cluster.client(0);
    client.send(b"PING\r\n*1\r\n:1\r\n");
    client.send(&vec![b'x'; 100_000]);
    assert_eq!(client.line(), "+PONG");
    assert_eq!(client.line(), "-ERR Protocol error: expected '$', got ':'");
    let mut client = cluster.client(0);
    assert_eq!(client.run("QUIT"), "+OK");
    assert_eq!(client.line(), "");
}

#[test]
fn a_client_that_never_reads_its_replies_is_disconnected_and_hurts_nobody() {
    let mut cluster = Cluster::start(1);
    let mut config = cluster.config(1, 1);
    config.clients.client_stall_seconds = 1;
    cluster.servers.pop().expect("the node").stop();
    cluster.servers.push(start(&config).expect("the node again"));
    let value = "v".repeat(60_000);
    assert_eq!(cluster.client(0).run_until_served(&format!("SET k {value}")), "+OK");
    let mut deaf = cluster.client(0);
    let flood = "GET k\r\n".repeat(1000);
    let begun = Instant::now();
    // Writes are taken until back-pressure reaches this end, then until the node has had enough.
    deaf.stream.get_ref().set_write_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "the node puts up with it");
        match deaf.stream.get_mut().write(flood.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
            _ => assert_eq!(cluster.client(0).run("STRLEN k"), ":60000"),
        }
    }
    let (_, metrics) = http(&cluster.servers[0].info().admin_address, "/metrics");
    assert!(metrics.contains("leeward_connections_dropped_total{reason=\"stalled\"} 1"), "{metrics}");
}

#[test]
fn a_pipeline_whose_replies_are_far_longer_than_it_is_answered_whole() {
    let cluster = Cluster::start(1);
    let value = "v".repeat(20_000);
    assert_eq!(cluster.client(0).run_until_served(&format!("SET k {value}")), "+OK");
    for count in [100, 5000, 9000] {
        let mut client = cluster.client(0);
        client.send("GET k\r\n".repeat(count).as_bytes());
        for _ in 0..count {
            assert_eq!((client.line().as_str(), client.line().len()), ("$20000", 20_000));
        }
        assert_eq!(client.run("PING"), "+PONG");
    }
}

#[test]
fn the_end_of_a_client_that_only_writes_does_not_lose_its_commands() {
    let cluster = Cluster::start(1);
    assert_eq!(cluster.client(0).run_until_served("SET n 0"), "+OK");
    let mut client = cluster.client(0);
    client.send("INCR n\r\n".repeat(1000).as_bytes());
    client.stream.get_ref().shutdown(std::net::Shutdown::Write).expect("half a connection is left");
    let replies: Vec<String> = (0..1000).map(|_| client.line()).collect();
    assert_eq!(replies.last().map(String::as_str), Some(":1000"));
    assert_eq!(client.line(), "");
}

#[test]
fn a_node_without_its_coordinator_says_which_and_recovers() {
    let mut cluster = Cluster::start(1);
    let config = cluster.config(1, 1);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    cluster.servers.pop().expect("the node").stop();
    let options =
        HostOptions { directory: cluster.dir.path().join("coordinator"), listen: cluster.host().address(), tls: None };
    cluster.host = None;
    cluster.servers.push(start(&config).expect("a coordinator may come later"));
    let admin = cluster.servers[0].info().admin_address.clone();
    let wait_for = |what: &str| {
        let begun = Instant::now();
        loop {
            let (status, reason) = http(&admin, "/readyz");
            if reason.contains(what) {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{status} {reason}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert_eq!(wait_for(&format!("the coordinator at {} cannot be reached", options.listen)), 503);
    assert_eq!(cluster.client(0).run("GET a"), "-LOADING no primary serves this key yet; try again");
    cluster.host = Some(Host::start(options).expect("its port is free again"));
    assert_eq!(wait_for("ok"), 200);
    assert_eq!(cluster.client(0).run_until_served("GET a"), "1");
}

#[test]
fn a_start_that_cannot_be_says_what_to_do() {
    let cluster = Cluster::start(1);
    let taken = cluster.servers[0].info().resp_address.clone();
    let mut config = cluster.config(2, 1);
    config.network.resp_listen = Some(taken.clone());
    let error = start(&config).err().expect("the port is taken").to_string();
    assert!(error.contains(&taken) && error.contains("set resp_listen to another port"), "{error}");

    let error = start(&cluster.config(1, 1)).err().expect("the directory is taken").to_string();
    assert!(error.contains("is in use by another process"), "{error}");

    let mut config = cluster.config(3, 1);
    config.identity.data_dir = Some(cluster.dir.path().join("other"));
    std::fs::create_dir(config.data_dir()).expect("a directory");
    std::fs::write(config.data_dir().join(VOLUME_NAME), vec![b'x'; 1 << 20]).expect("a file");
    let error = start(&config).err().expect("no volume").to_string();
    assert!(error.contains("volume"), "{error}");

    config.identity.data_dir = Some(PathBuf::from("/proc/nowhere"));
    let error = start(&config).err().expect("no directory").to_string();
    assert!(error.contains("/proc/nowhere"), "{error}");

    config.storage.job_threads = 0;
    let error = start(&config).err().expect("absurd").to_string();
    assert!(error.contains("job_threads is 0"), "{error}");
}

/// Threads without which a node cannot continue.
#[test]
fn a_panic_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "LEEWARD_TEST_WHO_PANICS";
    const ABORTED: i32 = 6;
    match std::env::var(CHILD).as_deref() {
        Err(_) => {}
        Ok(who) => {
            let in_job = who == "job";
            let thread = std::thread::spawn(move || {
                let vital = (!in_job).then_some(Vital("the coordinator client"));
                let work = || panic!("on purpose {}", vital.is_some());
                if in_job { die_of_panic("a job", work) } else { work() }
            });
            // Only a process that did not end gets here.
            drop(thread.join());
            return;
        }
    }
    for who in ["job", "client"] {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "runtime::tests::a_panic_ends_the_process", "--nocapture"]).env(CHILD, who);
        let ended = child.output().expect("it starts");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(ABORTED), "{who}: {said}");
        assert!(said.contains("on purpose"), "{said}");
    }
}
