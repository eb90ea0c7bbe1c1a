//! Changes by hand.

use super::*;
use leeward_format::cluster::Member;
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(1) }
}

fn group(region: u32) -> GroupConfig {
    let unassigned = GroupConfig::unassigned(RegionId(region), "t");
    GroupConfig { epoch: Epoch(4), term: Epoch(2), primary: Some(member(1)), backups: vec![member(2)], ..unassigned }
}

#[test]
fn what_changed_is_told_and_nothing_else() {
    let before = [group(1), group(2), group(3)];
    assert_eq!(changes(Some(&before), Some(&before)), Some(Vec::new()));
    let removed = GroupConfig { epoch: Epoch(5), backups: Vec::new(), ..group(1) };
    // A change that was undone.
    let back = GroupConfig { epoch: Epoch(7), term: Epoch(7), ..group(2) };
    let told = changes(Some(&before), Some(&[removed, back, group(3), group(4)])).expect("two snapshots");
    assert_eq!(told.len(), 2);
    assert!(told[0].starts_with("region 1: members") && told[1].starts_with("region 2: another primary"), "{told:?}");
}

#[test]
fn a_missing_snapshot_tells_nothing() {
    assert_eq!(changes(None, Some(&[group(1)])), None);
    assert_eq!(changes(Some(&[group(1)]), None), None);
}
