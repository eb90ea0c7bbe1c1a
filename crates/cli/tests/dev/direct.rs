//! Direct reads of hash indexes, and scans of backups, against real nodes: answers are never old, whatever happens to the
//! primary.
//!
//! One thread writes ascending numbers. A read is right if it is not lower than the last number that was acknowledged
//! before the read began, nor higher than the last one whose write had begun when the read ended.

use crate::running::{Dev, wait_for};
use leeward_client::{Client, ClientError, ClientOptions, DirectStats, Op, OpResult, Range, Session, TableName};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const KEYS: usize = 40;

/// The last number of a key whose write has begun, and the last one that was acknowledged.
#[derive(Default)]
struct Written {
    begun: AtomicU64,
    acknowledged: AtomicU64,
}

fn address(dev: &Dev, scheme: &str, node: u16) -> String {
    format!("{scheme}127.0.0.1:{}", dev.base + 99 + node)
}

fn options() -> ClientOptions {
    ClientOptions {
        table: "hot".parse::<TableName>().expect("a name"),
        deadline: Duration::from_secs(60),
        connect_within: Duration::from_secs(20),
        retry_puts: true,
        ..ClientOptions::default()
    }
}

fn key(number: usize) -> String {
    format!("key-{number}")
}

fn write(client: &Client, keys: &[Written], is_over: &AtomicBool) {
    let mut number = 0;
    while !is_over.load(SeqCst) {
        number += 1;
        let written = &keys[number as usize % KEYS];
        written.begun.store(number, SeqCst);
        let value = format!("{number}{}", " ".repeat(number as usize % 300));
        if client.put(key(number as usize % KEYS), value).is_ok() {
            written.acknowledged.store(number, SeqCst);
        }
    }
}

fn read(session: &mut Session, keys: &[Written], is_over: &AtomicBool) -> DirectStats {
    let mut at = 0;
    while !is_over.load(SeqCst) {
        at = (at + 7) % KEYS;
        let least = keys[at].acknowledged.load(SeqCst);
        let results = session.execute(vec![Op::Get { key: key(at).into() }]).expect("this process can wait");
        let number = match &results[..] {
            [OpResult::Value(None)] => 0,
            [OpResult::Value(Some(value))] => number(value),
            // Retried until the deadline, or the region has no primary at the moment.
            [OpResult::Error(_)] => continue,
            other => panic!("{other:?}"),
        };
        let most = keys[at].begun.load(SeqCst);
        assert!((least..=most).contains(&number), "{}: {number} is not from {least} to {most}", key(at));
    }
    session.direct_stats()
}

/// Scans all keys. Returns how often.
fn scan(client: &Client, keys: &[Written], is_over: &AtomicBool) -> u64 {
    let mut scans = 0;
    while !is_over.load(SeqCst) {
        let least: Vec<u64> = keys.iter().map(|written| written.acknowledged.load(SeqCst)).collect();
        let Ok(pairs) = client.scan(Range::default()).collect::<Result<Vec<_>, _>>() else { continue };
        scans += 1;
        for (at, least) in least.iter().enumerate() {
            let found = pairs.iter().find(|(found, _)| *found == key(at).as_bytes());
            let number = found.map_or(0, |(_, value)| number(value));
            let most = keys[at].begun.load(SeqCst);
            assert!((*least..=most).contains(&number), "{}: {number} is not from {least} to {most}", key(at));
        }
    }
    scans
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).expect("digits").trim_end().parse().expect("a number")
}

/// Ends the threads of a test, also where it fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Runs a writer, two direct readers and a scanner while `during` does something to the nodes.
fn judge(dev: &Dev, during: impl FnOnce()) -> DirectStats {
    let keys: Vec<Written> = (0..KEYS).map(|_| Written::default()).collect();
    let is_over = AtomicBool::new(false);
    let client = || Client::connect(&[address(dev, "", 1), address(dev, "", 2)], options()).expect("a node answers");
    let (writer, scanner) = (client(), client());
    let connect = || {
        let seeds = [address(dev, "leeward+direct://", 1), address(dev, "leeward+direct://", 2)];
        Session::connect(&seeds, options()).expect("the nodes share memory")
    };
    let mut sessions = [connect(), connect()];
    std::thread::scope(|scope| {
        scope.spawn(|| write(&writer, &keys, &is_over));
        let scans = scope.spawn(|| scan(&scanner, &keys, &is_over));
        let readers = sessions.each_mut().map(|session| scope.spawn(|| read(session, &keys, &is_over)));
        let ends = Ends(&is_over);
        during();
        drop(ends);
        let mut stats = DirectStats::default();
        for reader in readers {
            stats += reader.join().expect("no read was old");
        }
        assert!(scans.join().expect("no scan was old") > 20);
        stats
    })
}

/// A cluster with a table whose regions have hash indexes, and whose backups answer scans.
fn start() -> Dev {
    let dev = Dev::start(3, &[]);
    dev.leeward(&["table", "create", "hot", "--preset", "histore-send", "--tokens", "4"]);
    wait_for("all groups are whole", || {
        let map = dev.status()["map"].clone();
        let is_whole =
            |group: &serde_json::Value| group["backups"].as_array().is_some_and(|backups| backups.len() == 2);
        map["regions"].as_array().is_some_and(|regions| regions.iter().all(is_whole))
    });
    dev
}

#[test]
fn a_direct_read_is_never_old() {
    let dev = start();
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    let stats = judge(&dev, || {
        pause(1_500);
        // Its memory can be read while it is stopped, and others take its regions over.
        dev.pause(3);
        pause(4_000);
        dev.resume(3);
        pause(1_500);
        let fresh: u64 = (1..=3).map(|node| figure(&dev, node, "leeward_fresh_reads_total")).sum();
        assert!(fresh > 50, "backups have answered {fresh} scans");
        dev.kill(3);
        pause(3_000);
    });
    assert!(stats.hits > 1_000, "{stats:?}");
    assert!(stats.too_old > 0, "a stopped primary extends no lease: {stats:?}");
    dev.stop();
}

#[test]
fn a_direct_read_follows_hand_overs_and_the_option() {
    let dev = start();
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    let stats = judge(&dev, || {
        pause(1_000);
        for server in ["2", "3", "1"] {
            let map = dev.status()["map"].clone();
            let regions = map["regions"].as_array().expect("regions").clone();
            for region in regions.iter().filter(|region| region["table"] == "hot") {
                dev.leeward(&["move", "--region", &region["region"].to_string(), "--primary", server]);
            }
            pause(700);
        }
        dev.leeward(&["table", "alter", "hot", "--index", "lsm", "--scans", "primary"]);
        wait_for("no index is left", || {
            (1..=3).all(|node| figure(&dev, node, "leeward_memory_bytes{purpose=\"hash-indexes\"}") == 0)
        });
    });
    assert!(stats.hits > 1_000, "{stats:?}");
    assert!(stats.refused > 0, "an index is revoked before its primary changes: {stats:?}");
    dev.stop();
}

/// A figure of a node.
fn figure(dev: &Dev, node: u16, name: &str) -> u64 {
    let admin = format!("127.0.0.1:{}", dev.base + 199 + node);
    let (_, body) =
        leeward_client::Access::default().get(&admin, "/metrics", Duration::from_secs(30)).expect("the node answers");
    let text = String::from_utf8(body).expect("text");
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    value.parse().expect("a number")
}

#[test]
fn a_client_that_gets_no_direct_reads_is_told_why() {
    let dev = Dev::start(1, &["--set", "rings=tcp"]);
    match Session::connect(&[address(&dev, "leeward+direct://", 1)], ClientOptions::default()) {
        Err(error @ ClientError::Direct { .. }) => {
            let told = error.to_string();
            assert!(told.contains("leeward+ring://"), "{told}");
        }
        other => panic!("{other:?}"),
    }
    dev.stop();
}
