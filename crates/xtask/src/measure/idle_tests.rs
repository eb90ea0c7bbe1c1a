//! The figures per region are upper bounds.

use super::*;
use leeward_bench::IdleProcess;
use leeward_format::cluster::GroupConfig;
use leeward_format::{Incarnation, RegionId, VolumeId};

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) }
}

fn group(region: u32, primary: u32, backups: &[u32]) -> GroupConfig {
    let backups = backups.iter().copied().map(member).collect();
    GroupConfig { primary: Some(member(primary)), backups, ..GroupConfig::unassigned(RegionId(region), "t") }
}

#[test]
fn all_of_a_process_counts_for_either_kind_of_its_regions() {
    let regions = vec![group(1, 1, &[2]), group(2, 1, &[2, 3]), group(3, 2, &[3])];
    let map = RegionMap { regions, ..RegionMap::default() };
    let process = |memory| IdleProcess {
        name: String::new(),
        user_seconds: 0.0,
        system_seconds: 0.0,
        written_bytes: None,
        memory_bytes: Some(memory),
    };
    // The coordinator has no regions.
    let processes = vec![process(6_000), process(2_000), process(4_000), process(90_000)];
    let idle = IdleReport { seconds: 1.0, percent_of_a_core: 0.0, processes };
    let RegionBytes { primary, backup } = region_bytes(&map, &[(1, 11), (2, 12), (3, 13)], &idle);
    // Server 1 backs up no region, and server 3 serves none, so their memory counts for the other kind only.
    assert_eq!((primary, backup), (3_000, 2_000));
}
