//! The order in which servers are restarted, and the reasons to restart none.

use super::*;
use leeward_client::GroupConfig;
use leeward_format::cluster::{Member, TableOptions};
use leeward_format::{Incarnation, RegionId, VolumeId};

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) }
}

/// Three servers with a region of all.
fn map() -> RegionMap {
    let info = |server| ServerInfo::of(member(server));
    let table = TableOptions { name: "orders".into(), replicas: 3, min_in_sync: 2, ..TableOptions::default() };
    let mut group = GroupConfig::unassigned(RegionId(1), "orders");
    (group.primary, group.backups) = (Some(member(1)), vec![member(2), member(3)]);
    RegionMap { version: 1, tables: vec![table], regions: vec![group], servers: [1, 2, 3].map(info).to_vec() }
}

#[test]
fn the_master_is_last_and_only_those_that_are_wanted_are_restarted() {
    let order = |wanted: &[u32], master| {
        let servers = order(&map(), wanted, master)?;
        Ok::<_, String>(servers.iter().map(|info| info.member.server.0).collect::<Vec<_>>())
    };
    assert_eq!(order(&[], Some(ServerId(1))), Ok(vec![2, 3, 1]));
    assert_eq!(order(&[], None), Ok(vec![1, 2, 3]));
    assert_eq!(order(&[3, 2], Some(ServerId(2))), Ok(vec![3, 2]));
    assert_eq!(order(&[4], None), Err("there is no server 4".into()));
}

#[test]
fn a_region_that_lacks_a_member_keeps_servers_from_being_restarted() {
    let mut map = map();
    assert_eq!(lack(&map), None);
    map.servers[2].member.incarnation = Incarnation(2);
    assert_eq!(lack(&map).unwrap(), "region 1 of table orders has 2 of 3 members");
    map.servers[2].member.incarnation = Incarnation(1);
    map.regions[0].primary = None;
    assert!(lack(&map).is_some());
}

#[test]
fn tables_whose_writes_would_wait_are_named() {
    let mut map = map();
    assert_eq!(pauses(&map), None);
    map.tables[0].min_in_sync = 3;
    assert!(pauses(&map).unwrap().starts_with("table orders: its regions have 3 replicas and need 3 in sync"));
    (map.tables[0].replicas, map.tables[0].min_in_sync) = (1, 1);
    assert!(pauses(&map).is_some());
}
