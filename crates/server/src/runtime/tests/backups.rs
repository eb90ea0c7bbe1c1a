//! Backups of real nodes that build their own index: they compact and are sent none, and a backup that takes over has
//! everything.

use super::moves::request_for;
use super::*;
use leeward_format::cluster::{Addressing, BackupMode, RegionRequest};
use leeward_format::packed::Codec;
use leeward_format::status::{RegionStatus, Role};
use leeward_format::table::{NewTable, TableChange};

const KEYS: u32 = 6_000;
pub(super) const WITHIN: Duration = Duration::from_secs(60);

fn value(n: u32) -> String {
    format!("{n}-{}", "v".repeat(60 + n as usize % 700))
}

/// The status of the one region of table `built` at each node, by place; `None` if a node does not know the region yet.
fn regions(cluster: &Cluster) -> Option<Vec<RegionStatus>> {
    let snapshots = cluster.servers.iter().map(|server| server.snapshot().expect("the node answers"));
    snapshots.map(|snapshot| snapshot.status.regions.into_iter().find(|region| region.table == "built")).collect()
}

pub(super) fn wait_until(cluster: &Cluster, what: &str, is_so: impl Fn(&[RegionStatus]) -> bool) -> Vec<RegionStatus> {
    let begun = Instant::now();
    loop {
        let regions = regions(cluster);
        match regions {
            Some(regions) if is_so(&regions) => return regions,
            regions => assert!(begun.elapsed() < WITHIN, "{what}: {regions:#?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn select(cluster: &Cluster) -> Client {
    select_at(cluster, 0)
}

/// A connection to a node, on the table.
pub(super) fn select_at(cluster: &Cluster, node: usize) -> Client {
    let mut client = cluster.client(node);
    let begun = Instant::now();
    while client.run("SELECT built") != "+OK" {
        assert!(begun.elapsed() < WITHIN, "the node has heard of the table");
        std::thread::sleep(Duration::from_millis(10));
    }
    client
}

pub(super) fn create(cluster: &Cluster, options: TableOptions) {
    create_with_l0s(cluster, 64 << 10, options);
}

fn create_with_l0s(cluster: &Cluster, l0_bytes: u64, options: TableOptions) {
    let options = TableOptions { name: "built".into(), replicas: 3, min_in_sync: 2, l0_bytes, ..options };
    let table = Box::new(NewTable::new(options, Vec::new()));
    let made = identity::request(&cluster.servers[0].info().native_address, &Op::CreateTable { table });
    assert_eq!(made, OpResult::Done);
}

/// Every member is in sync.
pub(super) fn is_whole(regions: &[RegionStatus]) -> bool {
    regions.iter().all(|region| region.role != Role::Learner && ["serving", "in sync"].contains(&&*region.state))
}

/// The mode changes to and fro while clients write and the primary dies: nothing is lost, and every member comes to follow it.
#[test]
fn the_mode_of_a_table_changes_while_it_serves() {
    let mut cluster = Cluster::start(3);
    create(&cluster, TableOptions { addressing: Addressing::Logical, wire: Codec::Lz4, ..TableOptions::default() });
    wait_until(&cluster, "every replica is in sync", is_whole);
    let mut client = select(&cluster);
    for n in 0..KEYS {
        assert_eq!(client.run_until_served(&format!("SET key{n} {}", value(n))), "+OK");
        let backups = if n % (KEYS / 2) < KEYS / 4 { BackupMode::BuildIndex } else { BackupMode::SendIndex };
        if n.is_multiple_of(KEYS / 4) {
            let name = "built".parse().expect("a name");
            let change = Box::new(TableChange { name, backups: Some(backups), ..TableChange::default() });
            let node = &cluster.servers[n as usize % cluster.servers.len()].info().native_address;
            assert_eq!(identity::request(node, &Op::AlterTable { change }), OpResult::Done);
        }
        if n == KEYS * 3 / 8 {
            let found = wait_until(&cluster, "one serves", |regions| regions.iter().any(|r| r.role == Role::Primary));
            let primary = found.iter().position(|region| region.role == Role::Primary).expect("one serves");
            drop(client);
            cluster.servers.remove(primary).stop();
            client = select(&cluster);
        }
    }
    for n in 0..KEYS {
        assert_eq!(client.run_until_served(&format!("GET key{n}")), value(n));
    }
    let is_sent = |region: &RegionStatus| region.role == Role::Primary || region.counters.index_bytes_rewritten == 0;
    wait_until(&cluster, "the last mode is followed", |regions| is_whole(regions) && regions.iter().all(is_sent));
}

/// The work of backups for an index of their own is reported as work of backups.
fn cpu_time_is_told_by_role(cluster: &Cluster, primary: usize) {
    let told = |server: &Server, activity: &str, role: &str| {
        let cpu = server.snapshot().expect("the node answers").status.cpu.expect("it is measured");
        assert!(cpu.process_ns > 0);
        let spent = cpu.spent.into_iter().find(|spent| spent.activity == activity && spent.role == role);
        spent.expect("every account is told").nanos
    };
    for (place, server) in cluster.servers.iter().enumerate() {
        let role = if place == primary { "primary" } else { "backup" };
        assert!(told(server, "compaction", role) > 0, "it has merged as a {role}");
        assert!(told(server, "engine", role) > 0, "it has filled L0s as a {role}");
        assert!(place == primary || told(server, "rewriting", "backup") > 0, "a base was installed");
        let metrics = http(&server.info().admin_address, "/metrics").1;
        assert!(metrics.contains("leeward_cpu_seconds_total{activity=\"other\",role=\"node\"}"), "{metrics}");
    }
}

#[test]
fn a_backup_that_builds_its_index_takes_over() {
    let mut cluster = Cluster::start(3);
    create(&cluster, TableOptions { backups: BackupMode::BuildIndex, ..TableOptions::default() });
    // One that comes when there is an index gets that with its base, and may have nothing left to build.
    wait_until(&cluster, "every replica is in sync", is_whole);
    let mut client = select(&cluster);
    for n in 0..KEYS {
        assert_eq!(client.run_until_served(&format!("SET key{} {}", n % (KEYS / 2), value(n))), "+OK");
    }
    let is_built =
        |region: &RegionStatus| region.counters.compactions > 0 && region.counters.compaction_bytes_written > 0;
    let found = wait_until(&cluster, "every replica compacts", |regions| regions.iter().all(is_built));
    for region in &found {
        assert_eq!((region.counters.index_bytes_shipped, region.counters.installs), (0, 0), "{region:#?}");
    }
    let primary = found.iter().position(|region| region.role == Role::Primary).expect("one serves");
    cpu_time_is_told_by_role(&cluster, primary);
    drop(client);
    cluster.servers.remove(primary).stop();
    let mut client = select(&cluster);
    for n in KEYS / 2..KEYS {
        assert_eq!(client.run_until_served(&format!("GET key{}", n % (KEYS / 2))), value(n));
    }
    assert_eq!(client.run_until_served("SET after failover"), "+OK");
    let done = client.run("DBSIZE");
    assert!(done.starts_with(':'), "{done}");
}

/// A backup fills L0s of its own. Before it takes over in order, it compacts them while the old primary serves.
#[test]
fn a_backup_that_is_to_take_over_has_little_to_replay() {
    const LITTLE: u64 = 512 << 10;
    let cluster = Cluster::start(3);
    create_with_l0s(&cluster, 16 << 20, TableOptions { backups: BackupMode::TWO_LAYER_LOG, ..TableOptions::default() });
    let found = wait_until(&cluster, "every replica is in sync", is_whole);
    let mut client = select(&cluster);
    for n in 0..KEYS {
        assert_eq!(client.run_until_served(&format!("SET key{n} {}", value(n))), "+OK");
    }
    let is_primary = |region: &RegionStatus| region.role == Role::Primary && region.state == "serving";
    let has_all = |regions: &[RegionStatus]| regions.iter().all(|region| region.l0_bytes > LITTLE);
    wait_until(&cluster, "every replica has much in its L0s", has_all);
    let (id, first) = (found[0].region.0, found.iter().position(is_primary).expect("one serves"));
    for (place, server) in cluster.servers.iter().enumerate().filter(|(place, _)| *place != first) {
        let target = RegionRequest::Primary(server.info().member.server);
        assert_eq!(request_for(server, id, target), OpResult::Done);
        let found = wait_until(&cluster, "it takes over", |regions| is_primary(&regions[place]));
        assert!(found[place].promotion_bytes < LITTLE, "{:#?}", found[place]);
    }
    assert_eq!(client.run_until_served("GET key9"), value(9));
}
