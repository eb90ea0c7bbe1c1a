//! Reads of backups' copies, of real nodes: they see what was written, and are never staler than they say.

use super::backups::{WITHIN, create, is_whole, select, select_at, wait_until};
use super::*;
use leeward_format::cluster::{BackupMode, Placement, Reads};
use leeward_format::op::{OpError, Read as Reading, ReadResult};
use leeward_format::status::Role;
use leeward_format::table::TableChange;

const KEYS: u32 = 3_000;

fn value(n: u32) -> String {
    format!("{n}-{}", "v".repeat(40 + n as usize * 7 % 900))
}

/// A connection to a node, on the table, that accepts stale reads.
fn stale(cluster: &Cluster, node: usize) -> Client {
    let mut client = select_at(cluster, node);
    assert_eq!(client.run("READONLY"), "+OK");
    client
}

/// How stale the last answer may be; `None`: the primary answered.
fn age(client: &mut Client) -> Option<Duration> {
    let age = client.run("LEEWARD.AGE");
    let age = age[1..].parse().expect("milliseconds");
    (age > 0).then(|| Duration::from_millis(age))
}

/// Reads `key` until a backup answers with `value`.
fn read_from_backup(client: &mut Client, key: &str, value: &str) {
    let begun = Instant::now();
    loop {
        let found = client.run(&format!("GET {key}"));
        let age = age(client);
        if found == value && age.is_some() {
            assert!(age < Some(Duration::from_millis(2_001)), "{age:?} is more than the table allows");
            return;
        }
        assert!(begun.elapsed() < WITHIN, "{key} is {found}, {age:?} old");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn backups_of(cluster: &Cluster) -> Vec<usize> {
    let found = wait_until(cluster, "every replica is in sync", |regions| {
        is_whole(regions) && regions.iter().any(|region| region.role == Role::Primary)
    });
    (0..found.len()).filter(|node| found[*node].role != Role::Primary).collect()
}

fn reads_of_backups(backups: BackupMode, placement: Placement) {
    let mut cluster = Cluster::start(3);
    let reads = Reads::Any { max_staleness_ms: 2_000 };
    create(&cluster, TableOptions { backups, placement, reads: reads.into(), ..TableOptions::default() });
    let readers = backups_of(&cluster);
    let mut writer = select(&cluster);
    for n in 0..KEYS {
        assert_eq!(writer.run_until_served(&format!("SET key{} {}", n % 1_000, value(n))), "+OK");
    }
    for node in &readers {
        let mut reader = stale(&cluster, *node);
        for n in KEYS - 1_000..KEYS {
            read_from_backup(&mut reader, &format!("key{}", n % 1_000), &value(n));
        }
        let all = reader.run("KPREFIX key99 KEYS");
        assert_eq!(all.split(' ').count(), 11, "{all}");
        assert!(age(&mut reader).is_some(), "a scan is of the backup as well");
        assert_eq!(reader.run("READWRITE"), "+OK");
        assert_eq!(reader.run("GET key1"), value(KEYS - 999));
        assert_eq!(age(&mut reader), None, "the primary answered");
    }
    // The new primary continues, and the backup that is left follows it.
    let primary = (0..3).find(|node| !readers.contains(node)).expect("one of three");
    drop(writer);
    cluster.servers.remove(primary).stop();
    let mut writer = select(&cluster);
    assert_eq!(writer.run_until_served("SET after failover"), "+OK");
    let mut readers = [stale(&cluster, 0), stale(&cluster, 1)];
    let begun = Instant::now();
    while !readers.iter_mut().any(|reader| reader.run("GET after") == "failover" && age(reader).is_some()) {
        assert!(begun.elapsed() < WITHIN, "the backup that is left can be read");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_backup_that_is_sent_the_index_can_be_read() {
    reads_of_backups(BackupMode::SendIndex, Placement { medium_from: 200, large_from: 500 });
}

#[test]
fn a_backup_that_builds_its_index_can_be_read() {
    reads_of_backups(BackupMode::BuildIndex, Placement::SEPARATED);
}

/// A counter goes up while backups are read. No answer is older than the backup says.
#[test]
fn what_a_backup_answers_is_no_staler_than_it_says() {
    let cluster = Cluster::start(3);
    create(&cluster, TableOptions { reads: Reads::Any { max_staleness_ms: 2_000 }.into(), ..TableOptions::default() });
    let readers = backups_of(&cluster);
    let mut readers: Vec<Client> = readers.into_iter().map(|node| stale(&cluster, node)).collect();
    let mut writer = select(&cluster);
    let mut acknowledged = vec![Instant::now()];
    let (begun, mut of_backups) = (Instant::now(), 0);
    while of_backups < 400 {
        assert!(begun.elapsed() < WITHIN, "backups answered {of_backups} times");
        assert_eq!(writer.run_until_served(&format!("SET counter {}", acknowledged.len())), "+OK");
        acknowledged.push(Instant::now());
        for reader in &mut readers {
            let called = Instant::now();
            let found: usize = reader.run("GET counter").parse().unwrap_or(0);
            let Some(age) = age(reader) else { continue };
            of_backups += 1;
            let newest = acknowledged.iter().rposition(|at| *at + age < called).unwrap_or(0);
            assert!(found >= newest, "{found} was answered as {age:?} old, and {newest} was written before that");
        }
    }
}

/// The option to read backups changes while the table serves. A backup that cannot know its state refuses.
#[test]
fn backups_are_read_while_the_table_says_so() {
    let cluster = Cluster::start(3);
    create(&cluster, TableOptions::default());
    let backup = backups_of(&cluster)[0];
    let address = cluster.servers[backup].info().native_address.clone();
    let mut writer = select(&cluster);
    assert_eq!(writer.run_until_served("SET key value"), "+OK");
    let ask = |at_most_ms, direct| {
        let op = Reading::stale(Op::Get { key: "key".into() }, at_most_ms);
        let table = "built".parse().expect("a name");
        identity::ask_as(&address, Request::Ops { id: 1, direct, table, ops: vec![op] })
    };
    let value = OpResult::Value(Some("value".into()));
    assert_eq!(ask(2_000, false), value, "it passes on what is the primary's");
    let is_refused = |result: &OpResult| matches!(result, OpResult::Error(OpError::NotPrimary { .. }));
    assert!(is_refused(&ask(2_000, true)));
    let change = |reads| {
        let name = "built".parse().expect("a name");
        let change = Box::new(TableChange { name, reads: Some(reads), ..TableChange::default() });
        assert_eq!(identity::request(&address, &Op::AlterTable { change }), OpResult::Done);
    };
    let until = |is_so: &dyn Fn(&OpResult) -> bool| {
        let begun = Instant::now();
        loop {
            let result = ask(2_000, true);
            if is_so(&result) {
                return result;
            }
            assert!(begun.elapsed() < WITHIN, "{result:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    change(Reads::ANY);
    let found = until(&|result| matches!(result, OpResult::Stale { .. }));
    let OpResult::Stale { age_ms, result, .. } = found else { unreachable!("just seen") };
    assert_eq!(result, ReadResult::Value(Some("value".into())));
    assert!(age_ms > 0 && age_ms <= 1_000, "{age_ms}");
    assert_eq!(ask(0, true), value, "it asks the primary first");
    assert_eq!(ask(0, false), value);
    change(Reads::Primary);
    until(&is_refused);
}
