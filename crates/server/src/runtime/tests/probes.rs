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
