//! `leeward table` against real processes.

use crate::running::{Dev, Resp, leeward, wait_for};

/// Runs a command that must fail, and returns what it printed.
fn fails(dev: &Dev, args: &[&str]) -> String {
    let native = format!("127.0.0.1:{}", dev.base + 100);
    let output = leeward().args(args).args(["--connect", &native]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The keys of a table by `SCAN`, a page at a time.
fn pages(dev: &Dev, table: &str, count: &str) -> Vec<String> {
    let mut client = Resp::connect(dev.resp(1));
    assert_eq!(client.call(&["SELECT", table]), "+OK");
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let page = client.call(&["SCAN", &cursor, "COUNT", count]);
        let mut words = page.split_whitespace();
        cursor = words.next().expect("a cursor").to_owned();
        keys.extend(words.map(str::to_owned));
        if cursor == "0" {
            return keys;
        }
    }
}

#[test]
fn tables_are_made_shown_used_and_survive_the_kill_of_every_node() {
    let mut dev = Dev::start(3, &["--restart"]);
    let made = dev.leeward(&["table", "create", "orders", "--preset", "tebis", "--split-at", "g,n", "--l0-kib", "256"]);
    assert!(made.contains("table orders is created and served: 3 regions"), "{made}");
    // Every node knows the table by then.
    for node in 1..=3 {
        let mut client = Resp::connect(dev.resp(node));
        assert_eq!(client.call(&["SELECT", "orders"]), "+OK");
        assert_eq!(client.call(&["SET", &format!("key{node}"), "order"]), "+OK");
    }
    dev.leeward(&["put", "--table", "orders", "apple", "1"]);
    dev.leeward(&["put", "apple", "default"]);
    assert_eq!(dev.leeward(&["get", "--table", "orders", "apple"]), "1\n");
    assert_eq!(dev.leeward(&["get", "apple"]), "default\n");
    assert_eq!(dev.leeward(&["scan", "--table", "orders", "--keys"]), "apple\nkey1\nkey2\nkey3\n");
    assert_eq!(dev.leeward(&["scan", "--keys"]), "apple\n");
    assert_eq!(pages(&dev, "orders", "1"), ["apple", "key1", "key2", "key3"], "pages that end with a region go on");

    let list = dev.leeward(&["table", "list"]);
    let row = |name: &str| list.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    assert!(row("default").is_some() && row("orders").expect("a row").contains("separated"), "{list}");
    let described = dev.leeward(&["table", "describe", "orders"]);
    assert!(described.contains("256 KiB") && described.contains("first") && described.contains('n'), "{described}");
    assert!(dev.leeward(&["status"]).contains("orders"));
    let (all, of_orders) = (dev.leeward(&["status"]), dev.leeward(&["status", "--table", "orders"]));
    let lines = |text: &str, part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!((lines(&all, " serving "), lines(&of_orders, " serving ")), (7, 3), "{all}{of_orders}");
    assert!(fails(&dev, &["status", "--table", "nothing"]).contains("`leeward table list`"));
    let bench = ["bench", "ycsb", "--table", "orders", "--workload", "load,a", "--records", "300", "--ops", "300"];
    dev.leeward(&[&bench[..], &["--verify"]].concat());
    assert_eq!(dev.leeward(&["scan", "--keys"]), "apple\n", "the benchmark was in its table");

    assert!(fails(&dev, &["table", "create", "orders"]).contains("there is a table orders already"));
    assert!(fails(&dev, &["table", "create", "a", "--split-at", "b,a"]).contains("must ascend"));
    assert!(fails(&dev, &["table", "describe", "nothing"]).contains("`leeward table list`"));
    assert!(fails(&dev, &["get", "--table", "nothing", "a"]).contains("there is no table nothing"));

    for node in 1..=3 {
        dev.kill(node);
    }
    for _ in 1..=3 {
        dev.wait_for_line("started again");
    }
    let mut client = None;
    wait_for("a node listens", || {
        client = Resp::try_connect(dev.resp(1));
        client.is_some()
    });
    let mut client = client.expect("it listens");
    assert_eq!(client.call(&["SELECT", "orders"]), "+OK");
    assert_eq!(client.call(&["GET", "key2"]), "order");
    assert_eq!(client.call(&["SELECT", "0"]), "+OK");
    assert_eq!(client.call(&["GET", "apple"]), "default");
    dev.stop();
}

#[test]
fn a_table_that_is_partitioned_by_hash_is_scanned_in_order() {
    let dev = Dev::start(3, &[]);
    let made = dev.leeward(&["table", "create", "events", "--partition", "hash", "--tokens", "6", "--l0-kib", "64"]);
    assert!(made.contains("table events is created and served: 6 regions"), "{made}");
    let lines: Vec<String> = (0..2_000).map(|number| format!("event-{number:05}\tvalue {number}\n")).collect();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairs");
    std::fs::write(&path, lines.concat()).expect("it is written");
    let path = path.to_str().expect("a path");
    assert_eq!(dev.leeward(&["ingest", path, "--table", "events"]), "2000 pairs\n");
    assert_eq!(dev.leeward(&["scan", "--table", "events"]), lines.concat());
    let backwards: String = lines.iter().rev().map(String::as_str).collect();
    assert_eq!(dev.leeward(&["scan", "--table", "events", "--reverse"]), backwards);
    assert_eq!(dev.leeward(&["scan", "--table", "events", "--limit", "600", "event-001"]), lines[100..700].concat());
    assert_eq!(dev.leeward(&["scan", "--table", "events", "event-00777", "event-00780"]), lines[777..780].concat());
    assert_eq!(dev.leeward(&["get", "--table", "events", "event-00042"]), "value 42\n");
    assert_eq!(pages(&dev, "events", "70").len(), 2_000);
    let count = dev.leeward(&["count", "--table", "events"]);
    assert!(count.starts_with("about ") && !count.starts_with("about 0 "), "{count}");

    let described = dev.leeward(&["table", "describe", "events"]);
    assert!(described.contains("hash, 6 tokens") && described.contains("first token"), "{described}");
    let regions = dev.leeward(&["status", "--table", "events"]);
    assert_eq!(regions.matches("first .. #2aaaaaaaaaaaaaaa").count(), 1, "{regions}");
    assert!(dev.leeward(&["table", "list"]).lines().any(|line| line.starts_with("default") && line.contains("range")));
    let region = regions.lines().nth(1).and_then(|line| line.split_whitespace().next()).expect("a region").to_owned();
    assert!(fails(&dev, &["split", "--region", &region]).contains("partitioned by hash"));
    assert!(fails(&dev, &["merge", "--region", &region, "--into", "1"]).contains("partitioned by hash"));
    assert!(fails(&dev, &["table", "create", "a", "--tokens", "6"]).contains("--partition hash"));

    let bench = ["bench", "ycsb", "--table", "events", "--records", "300", "--ops", "300", "--workload"];
    let choosing = ["--distribution", "zipfian:0.9", "--depth", "8", "--verify"];
    let ran = dev.leeward(&[&bench[..], &["load,a,e"], &choosing].concat());
    assert!(ran.lines().any(|line| line.contains("scan")), "workload E: {ran}");
    dev.leeward(&["del", "--table", "events", "--from", "event-00005"]);
    assert_eq!(dev.leeward(&["scan", "--table", "events"]), lines[..5].concat());
    dev.stop();
}

/// An operator splits and merges regions. Their content does not change.
#[test]
fn regions_are_made_two_and_one_again() {
    let dev = Dev::start(3, &[]);
    dev.leeward(&["table", "create", "pieces", "--split-at", "m"]);
    for key in ["a", "f", "n", "z"] {
        dev.leeward(&["put", "--table", "pieces", key, &format!("value of {key}")]);
    }
    let before = dev.leeward(&["scan", "--table", "pieces"]);
    let regions = || {
        let listed = dev.leeward(&["status", "--table", "pieces"]);
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        listed.lines().skip(1).filter_map(first).filter(|cell| cell.parse::<u32>().is_ok()).collect::<Vec<String>>()
    };
    let made = regions();
    let [left, right] = &made[..] else { panic!("{made:?}") };
    assert!(fails(&dev, &["merge", "--region", left, "--into", left]).contains("name a neighbour"));
    let text = dev.leeward(&["merge", "--region", right, "--into", left]);
    assert_eq!(text, format!("region {right} was merged into region {left}\n"));
    assert_eq!(regions(), made[..1]);
    assert_eq!(dev.leeward(&["scan", "--table", "pieces"]), before);
    dev.leeward(&["split", "--region", left, "--at", "g"]);
    let split = regions();
    assert_eq!(split.len(), 2, "{split:?}");
    dev.leeward(&["merge", "--region", left, "--into", &split[1]]);
    assert_eq!(regions(), split[1..]);
    assert_eq!(dev.leeward(&["scan", "--table", "pieces"]), before);
    assert!(fails(&dev, &["merge", "--region", left, "--into", right]).contains("there is no region"));
    assert!(dev.leeward(&["merge", "--region", &split[1], "--cancel"]).contains("stays as it is"));
    dev.stop();
}

#[test]
fn a_scan_of_many_regions_needs_no_more_memory_than_there_is() {
    // A scan asks all regions, and each of the 64 requests charges a page of its answer: more than the share of clients.
    let dev = Dev::start(1, &["--set", "memory_budget=67108864"]);
    dev.leeward(&["table", "create", "wide", "--partition", "hash", "--tokens", "64", "--replicas", "1"]);
    for key in ["a", "b", "c"] {
        dev.leeward(&["put", "--table", "wide", key, "1"]);
    }
    assert_eq!(dev.leeward(&["scan", "--table", "wide"]), "a\t1\nb\t1\nc\t1\n");
    dev.stop();
}
