//! What a user is shown of tables that it may see in part.

use super::*;
use leeward_format::RegionId;
use leeward_format::cluster::{GroupConfig, TableOptions};
use leeward_format::partition::Partition;
use leeward_format::user::User;

fn user(grants: &[&str]) -> CompiledUser {
    let mut user = User::new("alice".parse().expect("a name"));
    user.grants.extend(grants.iter().map(|grant| grant.parse().expect("a grant")));
    user.into()
}

fn region(id: u32, table: &str, start: &'static str, end: Option<&'static str>) -> GroupConfig {
    GroupConfig { start: start.into(), end: end.map(Into::into), ..GroupConfig::unassigned(RegionId(id), table) }
}

fn map() -> RegionMap {
    let table = |name: &str| TableOptions { name: name.into(), ..TableOptions::default() };
    let hashed = TableOptions { partition: Partition::Hash { tokens: 1 }, ..table("hashed") };
    RegionMap {
        version: 9,
        tables: vec![table("default"), hashed, table("orders")],
        regions: vec![
            region(1, "default", "", None),
            region(2, "hashed", "", None),
            region(3, "orders", "", Some("eu/secret")),
            region(4, "orders", "eu/secret", Some("m")),
            region(5, "orders", "m", None),
        ],
        servers: Vec::new(),
    }
}

fn shown(user: &CompiledUser) -> Vec<(u32, String, Option<String>)> {
    let text = |key: &bytes::Bytes| String::from_utf8_lossy(key).into_owned();
    let map = visible(user, map());
    assert!(map.regions.iter().all(|region| map.table(&region.table).is_some()));
    map.regions.iter().map(|region| (region.region.0, text(&region.start), region.end.as_ref().map(text))).collect()
}

#[test]
fn only_permitted_tables_regions_and_keys_are_shown() {
    let part = |id, start: &str, end: Option<&str>| (id, start.to_owned(), end.map(str::to_owned));
    assert_eq!(shown(&user(&["read@orders:us/"])), [part(5, "us/", Some("us0"))]);
    assert_eq!(
        shown(&user(&["read@orders:eu/"])),
        [part(3, "eu/", Some("eu/secret")), part(4, "eu/secret", Some("eu0"))]
    );
    assert_eq!(shown(&user(&["read@orders:a", "write@orders:z"])), [part(3, "a", Some("b")), part(5, "z", Some("{"))]);
    assert_eq!(shown(&user(&["read@hashed:x"])), [part(2, "", None)]);
    let whole = [part(3, "", Some("eu/secret")), part(4, "eu/secret", Some("m")), part(5, "m", None)];
    assert_eq!(shown(&user(&["write@orders"])), whole);
    assert_eq!(shown(&user(&[])), []);
    assert_eq!(visible(&user(&["read@orders:a"]), map()).tables.len(), 1);
}

#[test]
fn a_client_routes_by_what_it_is_shown() {
    use leeward_format::routes::RouteCache;
    let limited = visible(&user(&["read@orders:eu/"]), map());
    let update = RoutesUpdate::everything(&limited);
    let mut cache = RouteCache::default();
    cache.apply(update).expect("it is everything");
    let get = Op::Get { key: "eu/x".into() };
    assert_eq!(get.region_in(&cache, "orders").map(|route| route.region), Some(RegionId(4)));
    assert!(Op::Get { key: "a".into() }.region_in(&cache, "orders").is_none());
    assert!(!cache.regions().has_table("default"));
}
