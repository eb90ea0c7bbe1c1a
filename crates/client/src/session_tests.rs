//! Where operations are sent, by key, by bound and by region.

use super::primary_address;
use bytes::Bytes;
use leeward_format::cluster::{GroupConfig, Member, RegionMap, ServerInfo, TableOptions};
use leeward_format::op::Op;
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) }
}

fn region(id: u32, start: &'static str, end: Option<&'static str>, primary: Option<u32>) -> GroupConfig {
    GroupConfig {
        start: start.into(),
        end: end.map(Bytes::from),
        epoch: Epoch(1),
        term: Epoch(1),
        primary: primary.map(member),
        ..GroupConfig::unassigned(RegionId(id), "default")
    }
}

fn server(id: u32) -> ServerInfo {
    ServerInfo {
        member: member(id),
        fabric_address: String::new(),
        native_address: format!("host:{id}"),
        resp_address: String::new(),
        admin_address: String::new(),
        copies: Vec::new(),
    }
}

fn map() -> RegionMap {
    let regions = vec![
        region(1, "", Some("h"), Some(1)),
        region(2, "h", Some("p"), Some(2)),
        region(3, "p", Some("t"), None),
        region(4, "t", None, Some(9)),
    ];
    let tables = vec![TableOptions::default()];
    RegionMap { version: 1, tables, regions, servers: vec![server(1), server(2)] }
}

fn scan(start: &'static str, end: Option<&'static str>, reverse: bool) -> Op {
    Op::Scan { start: start.into(), end: end.map(Bytes::from), reverse, limit: 1, keys_only: false }
}

#[test]
fn an_operation_goes_to_the_primary_of_its_region() {
    let map = map();
    let to = |op: &Op| primary_address(&map, "default", op);
    assert_eq!(to(&Op::Get { key: "a".into() }), Some("host:1"));
    assert_eq!(to(&Op::Get { key: "h".into() }), Some("host:2"), "the start of a region is its own");
    assert_eq!(
        to(&Op::Delete { key: "q".into(), when: leeward_format::op::Condition::Always }),
        None,
        "no primary yet"
    );
    assert_eq!(
        to(&Op::Delete { key: "z".into(), when: leeward_format::op::Condition::Always }),
        None,
        "a primary that is not alive"
    );
    assert_eq!(to(&Op::Count { region: RegionId(2) }), Some("host:2"));
    assert_eq!(to(&Op::Count { region: RegionId(7) }), None);
}

#[test]
fn each_table_has_its_own_regions() {
    let mut map = map();
    let mut add = |region: GroupConfig| map.regions.push(GroupConfig { table: "orders".into(), ..region });
    add(region(5, "", Some("p"), Some(2)));
    add(region(6, "p", None, Some(1)));
    map.tables.push(TableOptions { name: "orders".into(), ..TableOptions::default() });
    let to = |table, op: &Op| primary_address(&map, table, op);
    assert_eq!(to("default", &Op::Get { key: "a".into() }), Some("host:1"));
    assert_eq!(to("orders", &Op::Get { key: "a".into() }), Some("host:2"));
    assert_eq!(to("orders", &scan("a", None, true)), Some("host:1"), "from the end of its own table");
    assert_eq!(to("orders", &scan("", Some(""), true)), Some("host:2"), "an empty range is asked somewhere");
    assert_eq!(to("default", &scan("a", None, true)), None, "the last region of the default table has no primary");
    assert_eq!(to("new", &Op::Get { key: "a".into() }), Some("host:1"), "any node may know it");
    assert_eq!(to("orders", &Op::Count { region: RegionId(2) }), Some("host:2"), "a region is named by its number");
}

#[test]
fn a_scan_goes_to_the_region_of_the_bound_it_starts_from() {
    let map = map();
    assert_eq!(primary_address(&map, "default", &scan("", Some("z"), false)), Some("host:1"));
    assert_eq!(primary_address(&map, "default", &scan("i", None, false)), Some("host:2"));
    assert_eq!(primary_address(&map, "default", &scan("a", Some("i"), true)), Some("host:2"));
    assert_eq!(
        primary_address(&map, "default", &scan("a", Some("h"), true)),
        Some("host:1"),
        "the end itself is excluded"
    );
    assert_eq!(
        primary_address(&map, "default", &scan("a", None, true)),
        None,
        "the last region's primary is not alive"
    );
}
