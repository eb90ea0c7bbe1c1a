//! Scans that backups answer, of real nodes: they see all that was acknowledged before their call.

use super::backups::{WITHIN, create, is_whole, select_at, wait_until};
use super::*;
use leeward_format::cluster::{BackupMode, ReadPaths, Scans};
use leeward_format::op::{OpError, Read as Reading, ScanRange};
use leeward_format::partition::Partition;
use leeward_format::status::Role;
use leeward_format::table::TableChange;

/// How many fresh reads a node has answered as a backup.
fn fresh_reads(cluster: &Cluster, node: usize) -> u64 {
    let info = cluster.client(node).run("INFO");
    let line = info.lines().find_map(|line| line.trim().strip_prefix("fresh_reads:")).expect("INFO has it");
    line.parse().expect("a number")
}

fn start(options: TableOptions) -> Cluster {
    let cluster = Cluster::start(3);
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

fn scans_see_what_was_written(options: TableOptions) {
    let mut cluster = start(options);
    let mut clients: Vec<Client> = (0..3).map(|node| select_at(&cluster, node)).collect();
    write_and_scan(&mut clients, 1..400);
    let fresh: u64 = (0..3).map(|node| fresh_reads(&cluster, node)).sum();
    assert!(fresh > 200, "backups have answered {fresh} scans");
    // What was written under the primary before is in the scans of a new one's backups.
    drop(clients);
    cluster.servers.remove(0).stop();
    let mut clients: Vec<Client> = (0..2).map(|node| select_at(&cluster, node)).collect();
    write_and_scan(&mut clients, 400..500);
}

#[test]
fn scans_of_backups_that_are_sent_the_index_see_what_was_written() {
    scans_see_what_was_written(TableOptions::default());
}

#[test]
fn scans_of_backups_that_build_an_index_see_what_was_written() {
    let backups = BackupMode::BuildIndex;
    scans_see_what_was_written(TableOptions {
        backups,
        partition: Partition::Hash { tokens: 3 },
        ..TableOptions::default()
    });
}

/// Which members answer scans changes while the table serves. A backup that is asked directly answers as of after the call, or
/// says that it does not.
#[test]
fn backups_answer_scans_while_the_table_says_so() {
    let cluster = start(TableOptions::default());
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
