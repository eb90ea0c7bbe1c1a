//! The choice of the server to kill, the keys of probes, and when a cluster is whole.

use super::{members_in_sync, probe_key, victim};
use bytes::Bytes;
use leeward_client::{GroupConfig, RegionMap, ServerInfo};
use leeward_format::cluster::Member;
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};

fn member(server: u32, incarnation: u64) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(incarnation) }
}

fn group(id: u32, start: &'static str, end: Option<&'static str>, primary: u32, backups: &[Member]) -> GroupConfig {
    GroupConfig {
        start: start.into(),
        end: end.map(Bytes::from),
        epoch: Epoch(1),
        term: Epoch(1),
        primary: Some(member(primary, 1)),
        backups: backups.to_vec(),
        ..GroupConfig::unassigned(RegionId(id), "default")
    }
}

fn server(member: Member) -> ServerInfo {
    ServerInfo::of(member)
}

#[test]
fn the_busiest_primary_is_killed() {
    let regions = vec![group(1, "", Some("b"), 1, &[]), group(2, "b", Some("c"), 2, &[]), group(3, "c", None, 2, &[])];
    assert_eq!(victim(&RegionMap { version: 1, tables: Vec::new(), regions, servers: Vec::new() }), Some(2));
    assert_eq!(victim(&RegionMap::default()), None);
}

#[test]
fn a_cluster_is_whole_by_members_that_live_now() {
    let regions = vec![group(1, "", None, 1, &[member(2, 1), member(3, 1)])];
    let mut map = RegionMap {
        version: 1,
        tables: Vec::new(),
        regions,
        servers: vec![server(member(1, 1)), server(member(2, 1))],
    };
    assert_eq!(members_in_sync(&map), 2, "the third is dead, though not removed yet");
    map.servers.push(server(member(3, 2)));
    assert_eq!(members_in_sync(&map), 2, "another incarnation is another member");
    map.regions[0].backups[1] = member(3, 2);
    assert_eq!(members_in_sync(&map), 3);
    map.regions[0].primary = None;
    assert_eq!(members_in_sync(&map), 0, "without a primary nothing is in sync with anything");
}

#[test]
fn a_probe_is_in_its_region() {
    for group in [group(1, "", Some("a"), 1, &[]), group(2, "a", Some("a\0"), 1, &[]), group(3, "user1", None, 1, &[])]
    {
        let key = probe_key(&group);
        assert!(group.contains(&key), "{key:?}");
    }
}
