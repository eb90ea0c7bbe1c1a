//! The node that an operation is sent to, by key, by bound and by region.

use super::{pause, primary_address};
use bytes::Bytes;
use leeward_format::cluster::{GroupConfig, Member, RegionMap, ServerInfo, TableOptions};
use leeward_format::op::{Op, ScanRange};
use leeward_format::routes::{Applied, RouteCache, RoutesUpdate};
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};
use std::time::Duration;

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) }
}

fn region(id: u32, table: &str, start: &'static str, primary: Option<u32>) -> GroupConfig {
    GroupConfig {
        start: start.into(),
        epoch: Epoch(1),
        term: Epoch(1),
        primary: primary.map(member),
        ..GroupConfig::unassigned(RegionId(id), table)
    }
}

fn server(id: u32) -> ServerInfo {
    ServerInfo { native_address: format!("host:{id}"), ..ServerInfo::of(member(id)) }
}

/// The routes of a session with these regions, ascending, and with servers 1 and 2.
fn routes(tables: &[&str], regions: Vec<GroupConfig>) -> RouteCache {
    let tables = tables.iter().map(|name| TableOptions { name: (*name).into(), ..TableOptions::default() }).collect();
    let map = RegionMap { version: 1, tables, regions, servers: vec![server(1), server(2)] };
    let mut routes = RouteCache::default();
    assert_eq!(routes.apply(RoutesUpdate::everything(&map)), Ok(Applied::Newer));
    routes
}

fn default_table() -> Vec<GroupConfig> {
    let region = |id, start, primary| region(id, "default", start, primary);
    vec![region(1, "", Some(1)), region(2, "h", Some(2)), region(3, "p", None), region(4, "t", Some(9))]
}

fn scan(start: &'static str, end: Option<&'static str>, reverse: bool) -> Op {
    Op::Scan(ScanRange { start: start.into(), end: end.map(Bytes::from), reverse, limit: 1, keys_only: false })
}

#[test]
fn an_operation_goes_to_the_primary_of_its_region() {
    let map = routes(&["default"], default_table());
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
    let orders = [region(5, "orders", "", Some(2)), region(6, "orders", "p", Some(1))];
    let map = routes(&["default", "orders"], default_table().into_iter().chain(orders).collect());
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
    let map = routes(&["default"], default_table());
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

#[test]
fn pauses_double_up_to_a_limit_and_are_longer_by_up_to_a_half() {
    let ms = Duration::from_millis;
    assert_eq!([0, 1, 2, 3, 4, 5, 100].map(|before| pause(ms(5), before, 0.0)), [5, 10, 20, 40, 80, 80, 80].map(ms));
    assert_eq!(pause(ms(4), 1, 0.5), ms(10));
    assert!(pause(ms(4), 1, 0.999) < ms(12));
}
