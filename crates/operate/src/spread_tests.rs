//! Shares of servers, from a map and statuses as nodes send them.

use super::*;
use leeward_format::cluster::{DesiredState, Member, ServerInfo, TableOptions};
use leeward_format::{Incarnation, VolumeId};

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) }
}

fn group(region: u32, primary: u32, backup: u32) -> GroupConfig {
    GroupConfig {
        primary: Some(member(primary)),
        backups: vec![member(backup)],
        ..GroupConfig::unassigned(RegionId(region), "default")
    }
}

#[test]
fn servers_have_what_the_regions_of_the_map_have() {
    let info = |server| ServerInfo::of(member(server));
    let mut moved = group(2, 1, 2);
    moved.learners.push(member(3));
    moved.desired = DesiredState { leaving: Some(ServerId(2)), ..DesiredState::default() };
    let map = RegionMap {
        version: 1,
        tables: vec![TableOptions { replicas: 2, ..TableOptions::default() }],
        regions: vec![group(1, 2, 1), moved],
        servers: (1..=3).map(info).collect(),
    };
    let status = |text: &str| serde_json::from_str::<NodeStatus>(text).expect("a status");
    let one = status(
        r#"{"server":1,"regions":[{"region":2,"role":"primary","bytes":300},{"region":1,"role":"backup","bytes":0}]}"#,
    );
    let two = status(r#"{"server":2,"regions":[{"region":1,"role":"primary","bytes":100}]}"#);
    let spread = Spread::of(&map, &[&two, &one]);
    let share = |primaries, copies, builds, bytes| Share { primaries, copies, builds, bytes };
    assert_eq!(spread.shares[&ServerId(1)], share(1, 2, 0, 400));
    assert_eq!(spread.shares[&ServerId(2)], share(1, 2, 0, 400));
    assert_eq!(spread.shares[&ServerId(3)], share(0, 1, 1, 300));
    assert_eq!(spread.moving, [RegionId(2)]);
    assert_eq!(spread.primaries(|_| true), (0, 1));
    let others = |server: ServerId| server.0 != 2;
    assert_eq!(spread.even_bytes(others), 350);
    assert!((spread.widest(others) - 50.0 / 350.0).abs() < 1e-9);
    assert_eq!((spread.even_bytes(|_| false), spread.primaries(|_| false)), (0, (0, 0)));
}
