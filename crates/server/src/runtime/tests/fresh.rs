//! Scans that backups answer, of real nodes: they see all that was acknowledged before their call.

use super::backups::{WITHIN, create, is_whole, select_at, wait_until};
use super::*;
use crate::config::FabricKind;
use leeward_format::cluster::{BackupMode, ReadPaths, Scans};
use leeward_format::op::{OpError, Read as Reading, ScanRange};
use leeward_format::partition::Partition;
use leeward_format::status::Role;
use leeward_format::table::TableChange;
use leeward_platform::Rng;

/// The sum of a figure of all nodes.
fn sum(cluster: &Cluster, figure: &str) -> u64 {
    let of_node = |node| {
        let info = cluster.client(node).run("INFO");
        let mut figures = info.lines().filter_map(|line| line.trim().split_once(':'));
        let (_, value) = figures.find(|(name, _)| *name == figure).expect("INFO has it");
        value.parse::<u64>().expect("a number")
    };
    (0..cluster.servers.len()).map(of_node).sum()
}

fn start(fabric: FabricKind, options: TableOptions) -> Cluster {
    let cluster = Cluster::start_with(3, |config| {
        if fabric == FabricKind::Shm {
            let name = format!("@leeward-{:016x}", Rng::from_entropy().u64());
            (config.network.fabric, config.network.fabric_listen) = (fabric, Some(name));
        }
    });
    create(&cluster, TableOptions { reads: ReadPaths { scans: Scans::Backups, ..ReadPaths::default() }, ..options });
    wait_until(&cluster, "every replica is in sync", |regions| {
        is_whole(regions) && regions.iter().any(|region| region.role == Role::Primary)
    });
    cluster
}

/// Writes, and looks at once by a scan through each of the nodes.
fn write_and_scan(clients: &mut [Client], numbers: std::ops::Range<u32>) {
    let count = clients.len();
    for number in numbers {
        let writer = &mut clients[number as usize % count];
        assert_eq!(writer.run_until_served(&format!("SET key{} {number}", number % 50)), "+OK");
        let scanned = clients[(number / 2) as usize % count].run_until_served("KPREFIX key");
        let found: Vec<&str> = scanned.split(' ').collect();
        let (key, value) = (format!("key{}", number % 50), number.to_string());
        assert!(found.chunks(2).any(|pair| *pair == [&*key, &*value]), "{key} is not {value} in {scanned}");
    }
}

fn scans_see_what_was_written(fabric: FabricKind, options: TableOptions) {
    let mut cluster = start(fabric, options);
    let mut clients: Vec<Client> = (0..3).map(|node| select_at(&cluster, node)).collect();
    write_and_scan(&mut clients, 1..400);
    let (fresh, questions) = (sum(&cluster, "fresh_reads"), sum(&cluster, "safe_lsn_questions"));
    assert!(fresh > 200, "backups have answered {fresh} scans");
    match fabric {
        FabricKind::Shm => assert!((1..fresh / 2).contains(&questions), "{questions} questions for {fresh} scans"),
        _ => assert!(questions >= fresh / 2, "{questions} questions for {fresh} scans"),
    }
    // What was written under the primary before is in the scans of a new one's backups.
    drop(clients);
    cluster.servers.remove(0).stop();
    let mut clients: Vec<Client> = (0..2).map(|node| select_at(&cluster, node)).collect();
    write_and_scan(&mut clients, 400..500);
}

#[test]
fn scans_of_backups_that_are_sent_the_index_see_what_was_written() {
    scans_see_what_was_written(FabricKind::Tcp, TableOptions::default());
}

#[test]
fn scans_of_backups_that_build_an_index_see_what_was_written() {
    let (backups, partition) = (BackupMode::BuildIndex, Partition::Hash { tokens: 3 });
    scans_see_what_was_written(FabricKind::Shm, TableOptions { backups, partition, ..TableOptions::default() });
}

/// Which members answer scans changes while the table serves. A backup that is asked directly answers as of after the call, or
/// says that it does not.
#[test]
fn backups_answer_scans_while_the_table_says_so() {
    let cluster = start(FabricKind::Tcp, TableOptions::default());
    let map = cluster.servers[0].snapshot().expect("the node answers").map;
    let group = &map.regions_of("built")[0];
    let backup = group.backups[0].server.0 as usize - 1;
    let address = cluster.servers[backup].info().native_address.clone();
    let mut writer = select_at(&cluster, 0);
    let scan = |at_most_ms| {
        let scan = ScanRange { start: "key".into(), end: None, reverse: false, limit: 9, keys_only: false };
        let ops = vec![Reading::stale(Op::Scan(scan), at_most_ms)];
        let table = "built".parse().expect("a name");
        identity::ask_as(&address, Request::Ops { id: 1, direct: true, table, ops })
    };
    let until = |is_so: &dyn Fn(&OpResult) -> bool| {
        let begun = Instant::now();
        while !is_so(&scan(0)) {
            assert!(begun.elapsed() < WITHIN, "{:?}", scan(0));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let change = |scans| {
        let name = "built".parse().expect("a name");
        let change = Box::new(TableChange { name, scans: Some(scans), ..TableChange::default() });
        assert_eq!(identity::request(&address, &Op::AlterTable { change }), OpResult::Done);
    };
    until(&|result| matches!(result, OpResult::Entries { .. }));
    for number in 0..100 {
        assert_eq!(writer.run_until_served(&format!("SET key {number}")), "+OK");
        let entries = vec![("key".into(), number.to_string().into())];
        // It accepts staleness, but this table allows none.
        assert_eq!(scan(if number % 2 == 0 { 0 } else { 60_000 }), OpResult::Entries { entries, resume: None });
    }
    change(Scans::Primary);
    until(&|result| matches!(result, OpResult::Error(OpError::NotPrimary { .. })));
    change(Scans::Backups);
    until(&|result| matches!(result, OpResult::Entries { .. }));
}
