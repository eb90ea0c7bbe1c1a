//! Packed routes are unpacked as they were. A client applies an update that continues from what it knows, and nothing
//! else.

use super::*;
use crate::cluster::Member;
use crate::{Incarnation, VolumeId};
use proptest::prelude::*;

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(1) }
}

fn config(id: u32, start: &[u8], epoch: u32, primary: Option<u32>, backups: &[u32]) -> GroupConfig {
    GroupConfig {
        start: Bytes::copy_from_slice(start),
        epoch: Epoch(epoch),
        term: Epoch(epoch),
        primary: primary.map(member),
        backups: backups.iter().map(|server| member(*server)).collect(),
        ..GroupConfig::unassigned(RegionId(id), "a")
    }
}

/// An update as a node would send it.
fn update(version: u64, since: Option<u64>, all: &[GroupConfig], told: &[GroupConfig], gone: &[u32]) -> RoutesUpdate {
    let mut index = RouteIndex::default();
    index.set_table("a", Some(Partition::Range));
    all.iter().for_each(|config| index.put(Arc::new(config.clone())));
    RoutesUpdate {
        version,
        since,
        digest: index.digest(),
        tables: vec![TableRoutes::pack("a", Some(Partition::Range.into()), told)],
        gone: gone.iter().map(|id| RegionId(*id)).collect(),
        servers: vec![(ServerId(1), "host:1".into())],
    }
}

proptest! {
    #[test]
    fn what_is_packed_is_unpacked(
        keys in prop::collection::btree_set(prop::collection::vec(0..3_u8, 0..12), 0..30),
        ids in prop::collection::vec(any::<u32>(), 30),
        primary in prop::option::of(any::<u32>()),
        backups in prop::collection::vec(any::<u32>(), 0..4),
    ) {
        let configs = keys.iter().zip(ids).map(|(key, id)| config(id, key, id / 2, primary, &backups));
        let configs: Vec<GroupConfig> = configs.collect();
        let packed = TableRoutes::pack("a", Some(Partition::Range.into()), &configs);
        let bytes = postcard::to_stdvec(&packed).expect("into memory");
        let packed: TableRoutes = postcard::from_bytes(&bytes).expect("as written");
        let routes = packed.unpack(&mut { MAX_KEYS_BYTES }).expect("as packed");
        prop_assert_eq!(routes.len(), configs.len());
        for (route, config) in routes.iter().zip(&configs) {
            prop_assert_eq!((route.region, &route.start, route.epoch), (config.region, &config.start, config.epoch));
            prop_assert_eq!(&*route.table, "a");
            prop_assert_eq!(route.primary, primary.map(ServerId));
            prop_assert!(route.backups.iter().map(|server| server.0).eq(backups.iter().copied()));
        }
    }
}

#[test]
fn a_client_follows_versions() {
    let (first, second) = (config(1, b"", 1, Some(1), &[2]), config(2, b"m", 1, Some(2), &[1]));
    let mut cache = RouteCache::default();
    let whole = update(5, None, &[first.clone(), second.clone()], &[first.clone(), second.clone()], &[]);
    assert_eq!(cache.apply(whole.clone()), Ok(Applied::Newer));
    assert_eq!(cache.apply(whole), Ok(Applied::Known));
    let primary = |cache: &RouteCache, key: &[u8]| cache.region_of("a", key).and_then(|region| region.primary);
    assert_eq!((primary(&cache, b"a"), primary(&cache, b"x")), (Some(ServerId(1)), Some(ServerId(2))));
    assert_eq!((cache.address(ServerId(1)), cache.address(ServerId(2))), (Some("host:1"), None));

    // The second region is gone, and the first has another primary.
    let moved = config(1, b"", 2, Some(3), &[]);
    let delta = update(7, Some(5), std::slice::from_ref(&moved), std::slice::from_ref(&moved), &[2]);
    assert_eq!(cache.apply(delta.clone()), Ok(Applied::Newer));
    assert_eq!((primary(&cache, b"a"), primary(&cache, b"x")), (Some(ServerId(3)), Some(ServerId(3))));
    assert_eq!(cache.apply(delta), Ok(Applied::Known), "what is told twice does no harm");
    let old = update(6, None, &[first.clone(), second.clone()], &[first, second], &[]);
    assert_eq!((cache.apply(old), cache.version()), (Ok(Applied::Known), 7), "an older state is not taken");
    assert_eq!(primary(&cache, b"x"), Some(ServerId(3)));
}

#[test]
fn what_does_not_lead_on_has_a_client_ask_for_everything() {
    let (first, second) = (config(1, b"", 1, Some(1), &[]), config(2, b"m", 1, Some(2), &[]));
    let known = |all: &[GroupConfig]| {
        let mut cache = RouteCache::default();
        assert_eq!(cache.apply(update(5, None, all, all, &[])), Ok(Applied::Newer));
        cache
    };
    // An update between is missing.
    let mut cache = known(std::slice::from_ref(&first));
    let later = update(9, Some(7), &[first.clone(), second.clone()], std::slice::from_ref(&second), &[]);
    assert_eq!((cache.apply(later), cache.version()), (Ok(Applied::Unfit), 0));
    assert!(cache.region_of("a", b"x").is_some(), "it still routes by what it knew");
    // The node has a region that it does not send.
    let mut cache = known(std::slice::from_ref(&first));
    let all = [first.clone(), second.clone()];
    assert_eq!((cache.apply(update(9, Some(5), &all, &[], &[])), cache.version()), (Ok(Applied::Unfit), 0));
    assert_eq!(cache.apply(update(9, None, &all, &all, &[])), Ok(Applied::Newer));
    assert_eq!((cache.version(), cache.regions().len()), (9, 2));
}

#[test]
fn keys_that_no_region_has_are_refused() {
    let route = |shared, rest: usize| PackedRoute {
        step: 1,
        shared,
        rest: vec![7; rest].into(),
        epoch: Epoch(1),
        primary: None,
        backups: Vec::new(),
    };
    let unpack = |regions, mut room: usize| {
        TableRoutes { name: "a".into(), table: Some(Partition::Range.into()), regions }
            .unpack(&mut room)
            .map(|routes| routes.len())
    };
    assert_eq!(unpack(vec![route(0, MAX_KEY_BYTES), route(MAX_KEY_BYTES as u32, 0)], MAX_KEYS_BYTES), Ok(2));
    assert!(unpack(vec![route(1, 0)], MAX_KEYS_BYTES).is_err(), "there is nothing to share");
    assert!(unpack(vec![route(0, 9), route(u32::MAX, 1)], MAX_KEYS_BYTES).is_err());
    assert!(unpack(vec![route(0, MAX_KEY_BYTES), route(1, MAX_KEY_BYTES)], MAX_KEYS_BYTES).is_err());
    assert!(unpack(vec![route(0, 9), route(9, 0)], 17).is_err(), "together they are too long");
    let mut cache = RouteCache::default();
    let mut bad = update(5, None, &[], &[], &[]);
    bad.tables.push(TableRoutes { name: "b".into(), table: Some(Partition::Range.into()), regions: vec![route(1, 0)] });
    assert!(cache.apply(bad).is_err());
    assert_eq!((cache.version(), cache.servers().count()), (0, 0), "nothing of it was taken");
}

#[test]
fn ten_thousand_regions_take_less_than_a_mebibyte() {
    let name = |number: u32| format!("customer-{:011}", u64::from(number) * 7_919_999);
    let configs = (0..10_000_u32).map(|number| config(number + 1, name(number).as_bytes(), 12, Some(2), &[1, 3]));
    let configs: Vec<GroupConfig> = configs.collect();
    let packed = TableRoutes::pack("a", Some(Partition::Range.into()), &configs);
    let bytes = postcard::to_stdvec(&packed).expect("into memory").len();
    assert!(bytes < 256 << 10, "{bytes} bytes");
}
