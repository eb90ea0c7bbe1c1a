//! Native clients through rings, against real nodes. The answers are the same as over TCP, for all sizes, and no matter
//! which side sleeps or which process dies.

use crate::running::{Dev, leeward, wait_for};
use leeward_client::{Access, Client, ClientError, ClientOptions, Op, OpResult, Range, Session};
use std::process::Stdio;
use std::time::Duration;

fn address(dev: &Dev, scheme: &str, node: u16) -> String {
    format!("{scheme}127.0.0.1:{}", dev.base + 99 + node)
}

fn options() -> ClientOptions {
    ClientOptions {
        deadline: Duration::from_secs(60),
        connect_within: Duration::from_secs(20),
        retry_puts: true,
        ..ClientOptions::default()
    }
}

fn through_rings(dev: &Dev, options: ClientOptions) -> Client {
    Client::connect(&[address(dev, "leeward+ring://", 1)], options).expect("the node has rings")
}

/// A figure of node 1.
fn figure(dev: &Dev, name: &str) -> u64 {
    let (_, body) = Access::default()
        .get(&format!("127.0.0.1:{}", dev.base + 200), "/metrics", Duration::from_secs(30))
        .expect("the node answers");
    let text = String::from_utf8(body).expect("text");
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    value.parse().expect("a number")
}

fn value(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number * 31 + at * 7) as u8).collect()
}

/// Values of all sizes, up to the largest, which no ring of this client holds; batches; scans; errors.
fn exercise(client: &Client, over_tcp: &Client) {
    let sizes = [0, 1, 33, 123, 1000, 4_000, 9_000, 33_000, 70_000, 200_000, 1 << 20];
    for (number, size) in sizes.into_iter().enumerate() {
        let key = format!("apple-{number}");
        client.put(key.clone(), value(number, size)).expect("a put");
        assert_eq!(over_tcp.get(key).expect("a get").as_deref(), Some(&value(number, size)[..]), "{size} bytes");
    }
    for (number, size) in sizes.into_iter().enumerate() {
        let key = format!("apple-{number}");
        assert_eq!(client.get(key).expect("a get").as_deref(), Some(&value(number, size)[..]), "{size} bytes");
    }
    assert_eq!(client.get("none").expect("a get"), None);
    let entries = |client: &Client| {
        let range = Range { start: "apple-".into(), end: Some("apple-~".into()), ..Range::default() };
        client.scan(range).collect::<Result<Vec<_>, _>>().expect("a scan")
    };
    assert_eq!(entries(client), entries(over_tcp));
    // An answer too large for its slot is fetched later. The operation is not executed twice.
    assert_eq!(client.delete("apple-8").expect("a delete").as_deref(), Some(&value(8, 70_000)[..]));
    assert_eq!(client.delete("apple-8").expect("a delete"), None);
    // More requests than the number of bells that a node leaves unread.
    for sum in 1..=300 {
        assert_eq!(client.add("counter", 1).expect("an addition"), sum);
    }
    let batch: Vec<Op> =
        (0..500).map(|number| Op::Append { key: format!("k{}", number % 50).into(), suffix: "x".into() }).collect();
    let results = client.execute(batch).expect("a batch");
    assert!(results.iter().all(|result| matches!(result, OpResult::Integer(_))), "{results:?}");
    assert_eq!(over_tcp.get("k49").expect("a get").as_deref(), Some(&b"xxxxxxxxxx"[..]));
}

#[test]
fn rings_give_what_tcp_gives() {
    let dev = Dev::start(3, &[]);
    let over_tcp = Client::connect(&[address(&dev, "leeward://", 2)], options()).expect("a node answers");
    let client = through_rings(&dev, ClientOptions { ring_bytes: 64 << 10, ..options() });
    exercise(&client, &over_tcp);
    assert!(figure(&dev, "leeward_ring_requests_total") > 0, "they went through rings");
    assert_eq!(dev.leeward(&["get", "counter"]).trim(), "300");
    drop(client);
    wait_for("rings end with their clients", || {
        figure(&dev, "leeward_ring_clients") == 0 && figure(&dev, "leeward_memory_bytes{purpose=\"rings\"}") == 0
    });
    dev.stop();
}

#[test]
fn a_sleeping_client_or_node_is_woken() {
    // Clients that never spin, and clients that always spin; the same for nodes; over each fabric.
    let libfabric = std::env::var_os("LEEWARD_TEST_LIBFABRIC")
        .map(|_| (["--set", "ring_spin_us=0", "--set", "rings=libfabric:tcp"], Duration::ZERO));
    let others = [
        (["--set", "ring_spin_us=0", "--set", "rings=shm"], Duration::ZERO),
        (["--set", "ring_spin_us=0", "--set", "rings=tcp"], Duration::from_secs(60)),
        (["--set", "ring_spin_us=100000", "--set", "rings=shm"], Duration::ZERO),
        (["--set", "ring_spin_us=50", "--set", "rings=tcp"], Duration::from_micros(50)),
    ];
    for (settings, spin) in others.into_iter().chain(libfabric) {
        let dev = Dev::start(1, &settings);
        let over_tcp = Client::connect(&[address(&dev, "", 1)], options()).expect("a node answers");
        let client = through_rings(&dev, ClientOptions { ring_spin: spin, ..options() });
        exercise(&client, &over_tcp);
        if spin.is_zero() {
            assert!(figure(&dev, "leeward_ring_bells_total") > 0, "it was rung for");
        }
        dev.stop();
    }
}

#[test]
fn many_requests_in_flight_are_answered_once_each() {
    let dev = Dev::start(1, &[]);
    let options = ClientOptions { ring_bytes: 16 << 10, ..options() };
    let mut session = Session::connect(&[address(&dev, "leeward+ring://", 1)], options).expect("the node has rings");
    // More than the rings hold.
    let tickets: Vec<_> = (0..2000_usize)
        .map(|number| {
            let (key, suffix) = (format!("k{}", number % 100).into(), value(number, 200).into());
            session.submit(vec![Op::Append { key, suffix }]).expect("there is room")
        })
        .collect();
    let mut results = std::collections::HashMap::new();
    while session.outstanding() > 0 {
        for done in session.poll(Duration::from_secs(1)).expect("a poll") {
            assert!(results.insert(done.ticket, done.results).is_none(), "once");
        }
    }
    for (number, ticket) in tickets.into_iter().enumerate() {
        // Operations on one key are executed in order.
        assert_eq!(results[&ticket], [OpResult::Integer((number as i64 / 100 + 1) * 200)], "{number}");
    }
    dev.stop();
}

#[test]
fn no_client_oversleeps_among_many() {
    // Each request has a bell of its own, and most bells stay unread until the next tick of the node, or its limit.
    let dev = Dev::start(1, &["--set", "ring_spin_us=0"]);
    let client = through_rings(&dev, ClientOptions { deadline: Duration::from_secs(10), ..options() });
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let client = client.clone();
            scope.spawn(move || {
                let key = format!("counter-{thread}");
                for sum in 1..=3000 {
                    assert_eq!(client.add(key.clone(), 1).expect("an answer within the deadline"), sum);
                }
            });
        }
    });
    dev.stop();
}

#[test]
fn a_client_that_is_killed_frees_its_rings() {
    let dev = Dev::start(1, &[]);
    let mut client = leeward()
        .args(["bench", "ycsb", "--workload", "load", "--records", "3000000", "--connect"])
        .arg(address(&dev, "leeward+ring://", 1))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_for("it sends requests", || figure(&dev, "leeward_ring_requests_total") > 1000);
    assert!(figure(&dev, "leeward_ring_clients") > 0);
    assert!(figure(&dev, "leeward_memory_bytes{purpose=\"rings\"}") > 0);
    client.kill().expect("it is alive");
    client.wait().expect("it ends");
    wait_for("its rings are given back", || {
        figure(&dev, "leeward_ring_clients") == 0 && figure(&dev, "leeward_memory_bytes{purpose=\"rings\"}") == 0
    });
    let next = through_rings(&dev, options());
    next.put("key", "value").expect("the node serves on");
    dev.stop();
}

#[test]
fn a_node_that_is_started_again_has_new_rings() {
    let mut dev = Dev::start(1, &["--restart"]);
    let client = through_rings(&dev, options());
    client.put("before", "1").expect("a put");
    dev.kill(1);
    client.put("meanwhile", "2").expect("a put is tried again until the node is back");
    assert_eq!(client.get("before").expect("a get").as_deref(), Some(&b"1"[..]));
    dev.wait_for_line("started again");
    dev.stop();
}

#[test]
fn a_client_that_gets_no_rings_is_told_why() {
    let dev = Dev::start(1, &["--set", "rings=off"]);
    let refused = |dev: &Dev, options| match Client::connect(&[address(dev, "leeward+ring://", 1)], options) {
        Err(error @ ClientError::Rings { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let told = refused(&dev, options());
    assert!(told.contains("rings is off") && told.contains("leeward://127.0.0.1"), "{told}");
    dev.stop();

    // Room for two clients.
    let dev = Dev::start(1, &["--set", "ring_bytes=1048576", "--set", "memory_budget=16777216"]);
    let large = || ClientOptions { ring_bytes: 1 << 20, ..options() };
    let (one, two) = (through_rings(&dev, large()), through_rings(&dev, large()));
    let told = refused(&dev, large());
    assert!(told.contains("memory_budget") && told.contains("over TCP"), "{told}");
    one.put("a", "1").expect("clients that have rings keep them");
    drop(one);
    wait_for("what is given back is had again", || {
        Client::connect(&[address(&dev, "leeward+ring://", 1)], large()).is_ok()
    });
    two.put("b", "2").expect("a put");
    dev.stop();
}
