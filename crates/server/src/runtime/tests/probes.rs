//! Probes of liveness and readiness, which anyone may send: many at once, of nodes with many regions, delay nothing.

use super::identity::request;
use super::*;
use leeward_format::partition::Partition;
use leeward_format::table::NewTable;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Regions of the table: the figures of several turns.
const TOKENS: u32 = 600;
const PROBERS: usize = 64;

/// The count of lease messages that a node has handled, and of those within some 50 ms.
fn lease_messages(server: &Server) -> (u64, u64) {
    let (_, metrics) = http(&server.info().admin_address, "/metrics");
    let figure =
        |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default() as u64;
    let lines = || metrics.lines().filter(|line| line.starts_with("leeward_lease_lateness_seconds"));
    let all = lines().find(|line| line.contains("_count")).map(figure).unwrap_or_default();
    let bound = |line: &str| line.split("le=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
    let in_time = lines().filter(|line| bound(line).is_some_and(|bound| bound <= 0.06)).map(figure).max();
    (all, in_time.unwrap_or_default())
}

#[test]
fn probes_without_pause_delay_no_leases() {
    let cluster = Cluster::start_with(2, |config| config.replication.lease_ms = 2_000);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    let options = TableOptions {
        name: "many".into(),
        replicas: 2,
        min_in_sync: 2,
        partition: Partition::Hash { tokens: TOKENS },
        ..TableOptions::default()
    };
    let table = Box::new(NewTable::new(options, Vec::new()));
    assert_eq!(request(&cluster.servers[0].info().native_address, &Op::CreateTable { table }), OpResult::Done);
    let begun = Instant::now();
    while cluster.servers.iter().any(|server| http(&server.info().admin_address, "/readyz").0 != 200)
        || cluster.servers[1].snapshot().expect("figures").status.regions.len() < TOKENS as usize
    {
        assert!(begun.elapsed() < Duration::from_secs(60), "the table does not come up");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (before, in_time_before) = lease_messages(&cluster.servers[0]);
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for prober in 0..PROBERS {
            let (address, is_over, answers) = (&cluster.servers[0].info().admin_address, &is_over, &answers);
            let path = if prober % 2 == 0 { "/livez" } else { "/readyz" };
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(http(address, path), (200, "ok\n".into()));
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(3));
        // The figures of one moment are those of all regions, in order, though they take several turns.
        let regions = cluster.servers[0].snapshot().expect("figures").status.regions;
        assert_eq!(regions.len(), TOKENS as usize + 2);
        assert!(regions.is_sorted_by_key(|region| (region.table.clone(), region.start.clone())));
        is_over.store(true, Ordering::Relaxed);
    });
    let (after, in_time_after) = lease_messages(&cluster.servers[0]);
    let (handled, in_time) = (after - before, in_time_after - in_time_before);
    println!("{} probes; {in_time} of {handled} lease messages in time", answers.load(Ordering::Relaxed));
    assert!(handled > 0 && answers.load(Ordering::Relaxed) > 1_000);
    // With room for a busy machine.
    assert!(in_time * 100 >= handled * 90, "{in_time} of {handled}");
}

/// A page of the web gives its own name the node's address, and asks through the browser of an operator.
#[test]
fn a_page_of_the_web_reads_nothing_by_a_name_of_its_own() {
    let cluster = Cluster::start(1);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    let admin = &cluster.servers[0].info().admin_address;
    for path in ["/", "/status", "/metrics"] {
        for host in ["evil.example", "evil.example:80"] {
            let (status, said) = http_for(host, admin, path);
            assert_eq!(status, 421, "{said}");
            assert!(said.contains("advertise_host") && said.contains(host), "{said}");
        }
        for host in [admin, "localhost:1", "node-1"] {
            assert_eq!(http_for(host, admin, path).0, 200, "{host}");
        }
    }
    assert_eq!(http_for("evil.example", admin, "/livez"), (200, "ok\n".into()), "all may ask that");
    assert_eq!(http_for("evil.example", admin, "/readyz"), (200, "ok\n".into()));
    let config = |config: &mut NodeConfig| config.network.advertise_host = Some("localhost.localdomain".into());
    drop(cluster);
    let cluster = Cluster::start_with(1, config);
    let admin = cluster.servers[0].info().admin_address.replace("localhost.localdomain", "127.0.0.1");
    assert_eq!(http_for("localhost.localdomain:1", &admin, "/status").0, 200);
    assert_eq!(http_for("evil.example", &admin, "/status").0, 421);
}
