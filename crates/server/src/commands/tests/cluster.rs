//! Clients in cluster mode: what they are told of slots, and where they are sent.

use super::fake::Fake;
use crate::commands::idle_node::number_of;
use crate::node::PeerSettings;
use crate::protocol_session::ProtocolSession;
use crate::redirects::REDIRECT_AFTER;
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, GroupConfig, Member, Reads, ServerInfo, TableOptions, encode_value};
use leeward_format::op::OpResult;
use leeward_format::partition::Partition;
use leeward_format::slot::{SLOTS, slot_of};
use leeward_format::user::{Grant, PasswordHash, User, Users};
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const DISABLED: &str = "-ERR This instance has cluster support disabled|";

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) }
}

fn serve(fake: &mut Fake, server: u32, resp_address: Option<&str>) {
    let info =
        resp_address.map(|address| ServerInfo { resp_address: address.into(), ..ServerInfo::of(member(server)) });
    let value = info.as_ref().map(encode_value);
    fake.node.set(&ClusterPath::Server(ServerId(server)), value);
}

/// Region 200 and those that follow, with these primaries from this term on; the others of servers 1 to 3 are backups.
fn assign(fake: &mut Fake, primaries: &[Option<u32>], term: u32) {
    let partition = Partition::Slots { tokens: primaries.len() as u32 };
    let starts: Vec<Bytes> = std::iter::once(Bytes::new()).chain(partition.splits()).collect();
    for (index, primary) in primaries.iter().enumerate() {
        let region = RegionId(200 + index as u32);
        let config = GroupConfig {
            start: starts[index].clone(),
            end: starts.get(index + 1).cloned(),
            epoch: Epoch(term),
            term: Epoch(term),
            primary: primary.map(member),
            backups: (1..=3).filter(|server| Some(*server) != *primary).map(member).collect(),
            ..GroupConfig::unassigned(region, "carts")
        };
        fake.node.configure(region, Some(&config));
    }
}

/// Node 1 of three. The regions of its table `carts`, which is database 0, have these primaries.
fn carts_of(primaries: &[Option<u32>], reads: Reads) -> Fake {
    let mut fake = Fake::new(&[]);
    fake.shared.facts.server = ServerId(1);
    let partition = Partition::Slots { tokens: primaries.len() as u32 };
    let options = TableOptions { name: "carts".into(), partition, reads: reads.into(), ..TableOptions::default() };
    fake.node.set(&ClusterPath::Table("carts".into()), Some(encode_value(&options)));
    for (server, address) in [(1, "10.0.0.1:7379"), (2, "10.0.0.2:7380"), (3, "store-3.example:7381")] {
        serve(&mut fake, server, Some(address));
    }
    assign(&mut fake, primaries, 4);
    fake.shared.facts.redis_table = "carts".parse().expect("a name");
    assert_eq!(fake.run("SELECT 0"), "+OK|");
    fake
}

/// Each of three nodes has a region: slots 0 to 5460, up to 10921, and up to 16383.
fn carts() -> Fake {
    carts_of(&[Some(1), Some(2), Some(3)], Reads::Primary)
}

fn id(server: u32) -> String {
    format!("{server:024x}{server:016x}")
}

/// Runs a command twice, with as much time between that its primary is no longer new.
fn settled(fake: &mut Fake, line: &str) -> String {
    fake.run(line);
    fake.now += REDIRECT_AFTER;
    fake.run(line)
}

#[test]
fn only_database_0_has_slots_if_its_table_has() {
    let mut fake = carts();
    assert_eq!(fake.run("CLUSTER KEYSLOT {foo}.1"), ":12182|");
    assert!(fake.run("HELLO").contains("|$4|mode|$7|cluster|"));
    assert!(fake.run("INFO server").contains("redis_mode:cluster"));
    assert_eq!(fake.run("INFO cluster"), "$30|# Cluster|cluster_enabled:1||");
    for table in ["1", "orders", "carts", "default"] {
        assert_eq!(fake.run(&format!("SELECT {table}")), "+OK|");
        for line in ["SLOTS", "SHARDS", "NODES", "INFO", "MYID", "KEYSLOT a", "NOPE"] {
            assert_eq!(fake.run(&format!("CLUSTER {line}")), DISABLED, "{table}: {line}");
        }
        assert!(fake.run("HELLO").contains("|$4|mode|$10|standalone|"));
        assert_eq!(fake.run("INFO cluster"), "$30|# Cluster|cluster_enabled:0||");
    }
    fake.shared.facts.redis_table = "orders".parse().expect("a name");
    assert_eq!((fake.run("SELECT 0"), fake.run("CLUSTER SLOTS")), ("+OK|".into(), DISABLED.into()));
    fake.shared.facts.redis_table = "carts".parse().expect("a name");
    assert_eq!(fake.run("SELECT 0"), "+OK|");
    assert_eq!(fake.run("CLUSTER MYID"), format!("$40|{}|", id(1)));
    assert_eq!(fake.run("CLUSTER SLOTS x"), "-ERR wrong number of arguments for 'cluster|slots' command|");
    assert_eq!(fake.run("CLUSTER KEYSLOT"), "-ERR wrong number of arguments for 'cluster|keyslot' command|");
    assert!(fake.run("CLUSTER NOPE").starts_with("-ERR unknown subcommand 'NOPE' of CLUSTER"));
}

#[test]
fn masters_and_their_slots() {
    let mut fake = carts();
    let node = |server: u32, host: &str, port: u16| format!("*4|${}|{host}|:{port}|$40|{}|*0|", host.len(), id(server));
    let (one, two, three) = (node(1, "10.0.0.1", 7379), node(2, "10.0.0.2", 7380), node(3, "store-3.example", 7381));
    assert_eq!(
        fake.run("CLUSTER SLOTS"),
        format!("*3|*3|:0|:5460|{one}*3|:5461|:10921|{two}*3|:10922|:16383|{three}"),
        "all are masters, so none is a replica"
    );
    let nodes = fake.run("CLUSTER NODES");
    let lines: Vec<&str> = nodes.split("\\n").collect();
    assert!(lines[0].ends_with(&format!("|{} 10.0.0.1:7379@0 myself,master - 0 0 4 connected 0-5460", id(1))));
    assert_eq!(lines[1], format!("{} 10.0.0.2:7380@0 master - 0 0 4 connected 5461-10921", id(2)));
    assert_eq!(lines[2], format!("{} store-3.example:7381@0 master - 0 0 4 connected 10922-16383", id(3)));
    let info = fake.run("CLUSTER INFO");
    for line in ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3", "cluster_size:3"] {
        assert!(info.contains(&format!("|{line}|")), "{line}: {info}");
    }
    let shards = fake.run("CLUSTER SHARDS");
    assert!(shards.starts_with("*3|*4|$5|slots|*2|:0|:5460|$5|nodes|*1|*14|$2|id|"), "{shards}");
    assert!(shards.contains("|$4|port|:7380|$2|ip|$8|10.0.0.2|$8|endpoint|$8|10.0.0.2|$4|role|$6|master|"), "{shards}");
    fake.shared.facts.is_encrypted = true;
    assert!(fake.run("CLUSTER SHARDS").contains("|$8|tls-port|:7380|"));
    serve(&mut fake, 2, Some("[fd00::2]:7380"));
    assert!(fake.run("CLUSTER SLOTS").contains("|$7|fd00::2|:7380|"));
    fake.run("HELLO 3");
    assert_eq!(fake.run("CLUSTER SLOTS").matches("|%0|").count(), 3, "no metadata");
}

#[test]
fn a_server_without_a_primary_role_is_a_replica_and_neighbours_are_one_range() {
    let mut fake = carts_of(&[Some(1), Some(1), Some(2), Some(1)], Reads::ANY);
    let slots = fake.run("CLUSTER SLOTS");
    let master = |server: u32| slots.matches(&format!("|{}|", id(server))).count();
    assert!(slots.starts_with("*3|*4|:0|:8191|"), "the first two are one, with one replica: {slots}");
    assert_eq!([master(1), master(2), master(3)], [2, 1, 3], "{slots}");
    let nodes = fake.run("CLUSTER NODES");
    assert!(nodes.contains(&format!("{} store-3.example:7381@0 slave {} 0 0 4 connected\\n", id(3), id(1))), "{nodes}");
    assert!(nodes.contains("connected 0-8191 12288-16383\\n"), "{nodes}");
    let shards = fake.run("CLUSTER SHARDS");
    assert!(shards.starts_with("*2|*4|$5|slots|*4|:0|:8191|:12288|:16383|$5|nodes|*2|"), "{shards}");
    assert!(shards.contains("|$4|role|$7|replica|"), "{shards}");
}

#[test]
fn slots_without_a_live_primary_are_this_nodes_to_forward() {
    let mut fake = carts_of(&[Some(1), Some(2), None], Reads::Primary);
    serve(&mut fake, 2, None);
    let slots = fake.run("CLUSTER SLOTS");
    assert_eq!(slots.matches(&format!("|{}|", id(1))).count(), 2, "what has a primary is apart: {slots}");
    let info = fake.run("CLUSTER INFO");
    for line in ["cluster_state:fail", "cluster_slots_ok:5461", "cluster_slots_fail:10923", "cluster_known_nodes:2"] {
        assert!(info.contains(&format!("|{line}|")), "{line}: {info}");
    }
    assert_eq!(settled(&mut fake, "SET foo 1"), "+OK|", "its region has no primary, so it waits here");
    // Another process of the server is not the primary.
    let other = ServerInfo { member: Member { incarnation: Incarnation(2), ..member(2) }, ..ServerInfo::of(member(2)) };
    fake.node.set(&ClusterPath::Server(ServerId(2)), Some(encode_value(&other)));
    assert_eq!(settled(&mut fake, "SET bar 1"), "+OK|");
    // A node that is not live itself sends clients elsewhere, and so does one that lacks a region.
    serve(&mut fake, 1, None);
    assert!(fake.run("CLUSTER SLOTS").starts_with("-CLUSTERDOWN "));
    let mut fake = carts();
    fake.node.configure(RegionId(201), None);
    assert!(fake.run("CLUSTER NODES").starts_with("-CLUSTERDOWN "));
}

#[test]
fn keys_of_other_nodes_are_redirected_once_their_primary_is_settled() {
    let mut fake = carts();
    let moved = "-MOVED 12182 store-3.example:7381|";
    assert_eq!(fake.run("SET foo 1"), "+OK|", "it may have moved just now");
    fake.now += REDIRECT_AFTER;
    for line in ["GET foo", "SET foo 2", "MGET {foo}a {foo}b", "MSET {foo}a 1 foo 2", "DEL foo {foo}", "INCR foo"] {
        assert_eq!(fake.run(line), moved, "{line}");
    }
    let pairs = &fake.node.tables[&"carts".parse().expect("a name")];
    assert!(fake.waiting.is_empty() && pairs.len() == 1, "nothing was done here");
    assert_eq!(fake.run("SET hello 1"), "+OK|");
    assert_eq!(fake.run("GET hello"), "$1|1|", "its slot, 866, is this node's");
    // One command behind ASKING.
    assert_eq!(fake.run("ASKING"), "+OK|");
    assert_eq!(fake.run("GET foo"), "$1|1|");
    assert_eq!(fake.run("GET foo"), moved);
    assert_eq!(
        (fake.run("ASKING"), fake.run("PING"), fake.run("GET foo")),
        ("+OK|".into(), "+PONG|".into(), moved.into())
    );
    // Also if that command fails early.
    for failing in ["NOPE", "GET", "CLIENT NOPE", "SET hello"] {
        assert_eq!(fake.run("ASKING"), "+OK|");
        assert!(fake.run(failing).starts_with("-ERR "), "{failing}");
        assert_eq!(fake.run("GET foo"), moved, "{failing}");
    }
    // A pipeline is answered in order.
    assert_eq!(fake.run_bytes(b"GET hello\r\nGET foo\r\nGET hello\r\n"), format!("$1|1|{moved}$1|1|"));
    // The region has a new primary: forwarded, until all nodes must have heard of it.
    assign(&mut fake, &[Some(1), Some(2), Some(2)], 5);
    assert_eq!(fake.run("GET foo"), "$1|1|");
    fake.now += REDIRECT_AFTER - leeward_platform::Nanos(1);
    assert_eq!(fake.run("GET foo"), "$1|1|");
    fake.now += leeward_platform::Nanos(1);
    assert_eq!(fake.run("GET foo"), "-MOVED 12182 10.0.0.2:7380|");
    assign(&mut fake, &[Some(1), Some(2), Some(1)], 6);
    assert_eq!(fake.run("GET foo"), "$1|1|");
    // The server that was the primary is so again: that is new too.
    assign(&mut fake, &[Some(1), Some(2), Some(2)], 7);
    assert_eq!(fake.run("GET foo"), "$1|1|");
    fake.now += REDIRECT_AFTER;
    assert_eq!(fake.run("GET foo"), "-MOVED 12182 10.0.0.2:7380|");
}

#[test]
fn several_slots_are_refused_only_where_clients_are_redirected() {
    let mut fake = carts();
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot|";
    for line in ["MGET foo hello", "MSET foo 1 hello 2", "DEL foo hello", "EXISTS hello foo", "UNLINK foo bar"] {
        assert_eq!(fake.run(line), cross, "{line}");
    }
    assert!(fake.waiting.is_empty());
    // A client would follow a redirection to database 0 of the other node, whatever that is.
    for (database, value) in [("carts", 1), ("1", 2)] {
        assert_eq!(fake.run(&format!("SELECT {database}")), "+OK|");
        assert_eq!(settled(&mut fake, &format!("MSET foo {value} hello 3")), "+OK|");
        assert_eq!(settled(&mut fake, "MGET foo hello"), format!("*2|$1|{value}|$1|3|"));
    }
    assert_eq!(fake.run("SELECT 0"), "+OK|");
    assert_eq!(fake.run("MGET foo hello"), cross);
}

#[test]
fn a_table_by_slots_that_is_not_database_0_is_never_redirected() {
    let mut fake = carts();
    fake.shared.facts.redis_table = "default".parse().expect("a name");
    assert_eq!(fake.run("RESET"), "+RESET|");
    assert_eq!(fake.run("SELECT carts"), "+OK|");
    assert_eq!(settled(&mut fake, "SET foo 1"), "+OK|");
    assert_eq!(fake.run("CLUSTER SLOTS"), DISABLED);
    assert!(fake.node.tables[&"carts".parse().expect("a name")].contains_key(&b"foo"[..]));
}

/// Of a node whose database 0 may be another table this node forwards, and it names none as the master of slots.
#[test]
fn clients_are_not_sent_to_a_node_with_another_redis_table() {
    let mut fake = carts();
    let moved = "-MOVED 12182 store-3.example:7381|";
    assert_eq!(settled(&mut fake, "SET foo 1"), moved);
    let named = fake.run("CLUSTER SLOTS");
    fake.peer_settings = PeerSettings::new([("redis_table".to_owned(), "\"carts\"".to_owned())].into());
    assert_eq!(settled(&mut fake, "SET foo 2"), "+OK|", "the other has not told its own yet");
    assert!(fake.node.tables[&"carts".parse().expect("a name")].contains_key(&b"foo"[..]));
    assert_ne!(fake.run("CLUSTER SLOTS"), named, "clients route by that");
    let (masters, slots) = (fake.run("CLUSTER NODES"), "0-16383");
    assert!(masters.lines().any(|line| line.contains("myself,master") && line.contains(slots)), "{masters}");
}

#[test]
fn a_node_that_does_not_hear_the_coordinator_forwards() {
    let mut fake = carts();
    let moved = "-MOVED 12182 store-3.example:7381|";
    assert_eq!(settled(&mut fake, "SET foo 1"), moved);
    fake.is_synced = false;
    assert_eq!(settled(&mut fake, "GET foo"), "$1|1|");
    assert!(fake.run("MGET foo hello").starts_with("-CROSSSLOT "), "what it is does not depend on that");
    fake.is_synced = true;
    assert_eq!(fake.run("GET foo"), moved);
}

#[test]
fn until_a_node_knows_of_any_table_it_is_down() {
    let mut fake = carts();
    for table in ["default", "orders", "carts"] {
        fake.node.set(&ClusterPath::Table(table.into()), None);
    }
    for line in ["SLOTS", "MYID", "KEYSLOT a"] {
        assert!(fake.run(&format!("CLUSTER {line}")).starts_with("-CLUSTERDOWN "), "{line}");
    }
    let loading = "-LOADING the cluster has no tables yet; try again|";
    for table in ["1", "carts"] {
        assert_eq!(fake.run(&format!("SELECT {table}")), loading, "{table}");
    }
    let none_yet = "-LOADING the table has no regions yet, or not all of them; try again|";
    assert_eq!(fake.run("DBSIZE"), none_yet);
    // Others are known, and that of database 0 is not: it was dropped, or never made.
    let orders = TableOptions { name: "orders".into(), ..TableOptions::default() };
    fake.node.set(&ClusterPath::Table("orders".into()), Some(encode_value(&orders)));
    let unknown = "-ERR there is no table carts; `leeward table list` shows those there are|";
    for line in ["DBSIZE", "KDELRANGE a b"] {
        assert_eq!(fake.run(line), unknown, "{line}");
        fake.is_synced = false;
        assert_eq!(fake.run(line), none_yet, "{line}");
        fake.is_synced = true;
    }
    assert_eq!(fake.run("CLUSTER SLOTS"), DISABLED);
}

#[test]
fn regions_are_charged_even_if_they_are_one_range_or_the_answer_is_an_error() {
    let mut fake = carts_of(&[Some(1); 512], Reads::Primary);
    let line = b"CLUSTER INFO\r\n".repeat(4);
    for _ in 0..2 {
        fake.session.feed(&line);
        fake.step();
        assert!(fake.session.has_work(), "a step ends behind one of them");
        fake.advance();
        fake.take_output();
        fake.node.configure(RegionId(200), None);
    }
    assert!(fake.run("CLUSTER INFO").starts_with("-CLUSTERDOWN "));
    assert_eq!(fake.run("CLUSTER MYID"), format!("$40|{}|", id(1)), "which needs no regions");
}

#[test]
fn bounds_that_no_table_by_slots_has_are_not_shown() {
    for (start, end) in [(Bytes::from_static(b"\x20\0"), Bytes::from_static(b"\x20\0")), ("slot".into(), "x".into())] {
        let mut fake = carts();
        let odd = GroupConfig {
            start,
            end: Some(end),
            primary: Some(member(2)),
            ..GroupConfig::unassigned(RegionId(201), "carts")
        };
        fake.node.configure(RegionId(201), Some(&odd));
        for line in ["SLOTS", "INFO", "NODES", "SHARDS"] {
            assert!(fake.run(&format!("CLUSTER {line}")).starts_with("-CLUSTERDOWN "), "{line}");
        }
    }
}

#[test]
fn database_1_is_database_0_with_forwarding() {
    let mut fake = carts();
    fake.shared.facts.redis_table = "orders".parse().expect("a name");
    assert_eq!(fake.run("SELECT 1"), "-ERR DB index is out of range|", "database 0 has no slots");
    fake.shared.facts.redis_table = "carts".parse().expect("a name");
    for (line, reply) in [
        ("SELECT 0", "+OK|"),
        ("SET foo 1", "+OK|"),
        ("SELECT 1", "+OK|"),
        ("GET foo", "$1|1|"),
        ("CLUSTER SLOTS", DISABLED),
        ("SELECT 2", "-ERR DB index is out of range|"),
        ("SELECT 0 SOMEHOW", "-ERR wrong number of arguments for 'select' command|"),
        ("RESET", "+RESET|"),
        ("CLUSTER KEYSLOT foo", ":12182|"),
        ("SELECT default", "+OK|"),
        ("GET foo", "$-1|"),
    ] {
        assert_eq!(fake.run(line), reply, "{line}");
    }
    assert!(fake.run("INFO keyspace").contains("db0:keys=1,"));
}

#[test]
fn backups_answer_readers_where_the_table_allows_it() {
    let moved = "-MOVED 12182 store-3.example:7381|";
    for (reads, expected) in [(Reads::ANY, "$-1|"), (Reads::Primary, moved)] {
        let mut fake = carts_of(&[Some(1), Some(2), Some(3)], reads);
        assert_eq!(settled(&mut fake, "GET foo"), moved);
        assert_eq!(fake.run("READONLY"), "+OK|");
        fake.feed(b"GET foo\r\n");
        if let Some(asked) = fake.waiting.pop() {
            fake.complete(number_of(&asked), OpResult::Value(None));
        }
        assert_eq!(fake.take_output(), expected);
        assert_eq!(fake.run("SET foo 1"), moved, "no backup writes");
        assert_eq!(fake.run("READWRITE"), "+OK|");
        assert_eq!(fake.run("GET foo"), moved);
    }
}

#[test]
fn a_scan_of_a_node_has_its_own_keys_and_a_range_has_all() {
    let mut fake = carts();
    // Slots 12182, 5061, 866 and 11058.
    for key in ["foo", "bar", "hello", "somekey"] {
        assert_eq!(fake.run(&format!("SET {key} 1")), "+OK|");
    }
    for (line, reply) in [
        ("KEYS *", "*2|$3|bar|$5|hello|"),
        ("SCAN 0", "*2|$1|0|*2|$3|bar|$5|hello|"),
        ("DBSIZE", ":2|"),
        ("KRANGE - + KEYS", "*4|$3|bar|$3|foo|$5|hello|$7|somekey|"),
        ("KPREFIX f KEYS", "*1|$3|foo|"),
        ("SELECT carts", "+OK|"),
        ("KEYS *", "*4|$3|bar|$3|foo|$5|hello|$7|somekey|"),
        ("DBSIZE", ":4|"),
        ("SELECT 0", "+OK|"),
    ] {
        assert_eq!(fake.run(line), reply, "{line}");
    }
    fake.shared.facts.server = ServerId(2);
    for (line, reply) in [("KEYS *", "*0|"), ("SCAN 0", "*2|$1|0|*0|"), ("DBSIZE", ":0|")] {
        assert_eq!(fake.run(line), reply, "{line}: no key is in slots 5461 to 10921");
    }
    assign(&mut fake, &[Some(1), Some(1), Some(1)], 5);
    for (line, reply) in [("KEYS *", "*0|"), ("SCAN 0", "*2|$1|0|*0|"), ("DBSIZE", ":0|")] {
        assert_eq!(fake.run(line), reply, "{line}: no region is this node's");
    }
}

/// Users, each with a grant.
fn with_users(fake: &mut Fake, known: &[(&str, &str)]) {
    let mut users = Users::none();
    users.revision = 1;
    for (name, grant) in known {
        let passwords = vec![PasswordHash::new(format!("$argon2id${name}"))];
        let mut user = User { is_enabled: true, passwords, ..User::new(name.parse().expect("a name")) };
        user.grants.extend([grant.parse::<Grant>().expect("a grant")]);
        users.put(user);
    }
    fake.users = Arc::new(users);
}

fn authenticate(fake: &mut Fake, name: &str) {
    fake.feed(format!("AUTH {name} pw\r\n").as_bytes());
    let id = PasswordHash::new(format!("$argon2id${name}")).id();
    fake.decide(crate::users::Answer::Admitted(name.parse().expect("a name"), Some(id)));
    assert_eq!(fake.take_output(), "+OK|");
}

#[test]
fn a_dry_run_says_who_is_told_slots() {
    let mut fake = carts();
    with_users(&mut fake, &[("root", "all"), ("alice", "read@carts:eu/"), ("bob", "all@orders")]);
    authenticate(&mut fake, "root");
    let refused = "|This user has no permissions to access the 'carts' key|";
    for command in ["CLUSTER SLOTS", "CLUSTER NOPE", "WAIT 0 0"] {
        assert!(fake.run(&format!("ACL DRYRUN bob {command}")).ends_with(refused), "{command}");
    }
    for command in ["CLUSTER SLOTS", "WAIT 0 0"] {
        assert_eq!(fake.run(&format!("ACL DRYRUN alice {command}")), "+OK|", "{command}");
    }
}

#[test]
fn slots_are_for_users_who_may_know_of_the_table() {
    for (grant, is_told) in [("read@carts:eu/", true), ("write@carts", true), ("all@orders", false)] {
        let mut fake = carts();
        with_users(&mut fake, &[("alice", grant)]);
        assert_eq!(fake.run("CLUSTER SLOTS"), "-NOAUTH Authentication required.|");
        authenticate(&mut fake, "alice");
        for line in ["SLOTS", "SHARDS", "NODES", "INFO", "MYID", "KEYSLOT a"] {
            let reply = fake.run(&format!("CLUSTER {line}"));
            assert_eq!(!reply.starts_with("-NOPERM"), is_told, "{grant}: {line}: {reply}");
        }
        assert_eq!(fake.run("HELLO").contains("|$7|cluster|"), is_told, "{grant}");
        assert_eq!(fake.run("SELECT 1") == "+OK|", is_told, "{grant}");
        assert_eq!(fake.run("SELECT 0"), "+OK|");
        // Rights are checked before keys are redirected, which would tell whose they are.
        let reply = settled(&mut fake, "GET foo");
        assert!(reply.starts_with("-NOPERM"), "{grant}: {reply}");
        // Also where there is nothing to scan, or to count: no region is this node's.
        assign(&mut fake, &[Some(2), Some(2), Some(3)], 5);
        for line in ["KEYS *", "SCAN 0", "SCAN 0 TYPE list", "DBSIZE", "KRANGE a a", "KPREFIX a LIMIT 0"] {
            let reply = fake.run(line);
            assert!(reply.starts_with("-NOPERM"), "{grant}: {line}: {reply}");
        }
        // ASKING is of the command that is refused.
        assert_eq!((fake.run("ASKING"), fake.run("CONFIG GET *").starts_with("-NOPERM")), ("+OK|".into(), true));
        assert!(!fake.session.terms.is_asking);
    }
}

/// The slots of each address, by `CLUSTER NODES`.
fn masters(fake: &mut Fake) -> BTreeMap<u16, String> {
    let nodes = fake.run("CLUSTER NODES");
    let text = nodes.split('|').nth(1).expect("a bulk string").to_owned();
    let mut masters = BTreeMap::new();
    for line in text.split("\\n").filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let address = words[1].strip_suffix("@0").expect("no bus").to_owned();
        for range in &words[8..] {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            for slot in first.parse::<u16>().expect("a slot")..=last.parse().expect("a slot") {
                assert_eq!(masters.insert(slot, address.clone()), None, "slot {slot} has two masters");
            }
        }
    }
    masters
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the primaries: the nodes agree on the master of each slot, it takes the slot's keys, and all other nodes
    /// send clients to it.
    #[test]
    fn every_node_sends_a_key_to_the_master_that_all_nodes_name(
        primaries in prop::collection::vec(1_u32..=3, 1..40),
        keys in prop::collection::vec("[a-z{}]{1,8}", 1..10),
    ) {
        let primaries: Vec<Option<u32>> = primaries.into_iter().map(Some).collect();
        let addresses = ["10.0.0.1:7379", "10.0.0.2:7380", "store-3.example:7381"];
        let mut fakes: Vec<Fake> = (1..=3).map(|server| {
            let mut fake = carts_of(&primaries, Reads::Primary);
            fake.shared.facts.server = ServerId(server);
            fake
        }).collect();
        let named = masters(&mut fakes[0]);
        prop_assert_eq!(named.len(), usize::from(SLOTS));
        for (at, fake) in fakes.iter_mut().enumerate() {
            prop_assert_eq!(&masters(fake), &named);
            for key in &keys {
                let slot = slot_of(key.as_bytes());
                let expected = match named[&slot] == addresses[at] {
                    true => "$-1|".to_owned(),
                    false => format!("-MOVED {slot} {}|", named[&slot]),
                };
                prop_assert_eq!(settled(fake, &format!("GET {key}")), expected);
            }
        }
    }
}
