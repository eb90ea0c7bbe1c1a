//! A rebuild of one backup's index, and what stands in its way.

use crate::primary::tests::{Group, THREE, TWO};
use leeward_format::ServerId;
use leeward_format::cluster::{BackupMode, GroupConfig, Member, TableOptions};

fn options(replicas: u32) -> TableOptions {
    TableOptions { replicas, min_in_sync: 2, backups: BackupMode::BuildIndex, ..TableOptions::default() }
}

/// The coordinator accepts the last proposal, and perhaps adds a learner.
fn accept(group: &mut Group, learners: &[Member]) {
    let proposal = group.proposals.pop().expect("a proposal");
    let config = GroupConfig { learners: learners.to_vec(), epoch: proposal.epoch.next(), ..proposal };
    group.primary.reconfigure(group.now, config, &[TWO.server, THREE.server]);
    group.primary.proposal_ended();
}

#[test]
fn a_backup_leaves_the_group_takes_the_index_and_comes_back() {
    for mode in [BackupMode::BuildIndex, BackupMode::TWO_LAYER_LOG] {
        let mut group = Group::in_sync(&[TWO, THREE], TableOptions { backups: mode, ..options(3) });
        for _ in 0..2 {
            group.anew.clear();
            for member in [TWO, THREE] {
                group.primary.lease_granted(member.server, group.now, super::super::tests::LEASE);
            }
            assert_eq!(group.primary.rebuild_index(THREE.server), Ok(()));
            group.wait(50);
            group.run(&[]);
            assert_eq!(group.proposals, [group.primary.config().without(THREE)], "no write waits");
            accept(&mut group, &[THREE]);
            assert!(group.primary.rebuild_index(TWO.server).is_err(), "the other copy is all that is left");
            group.wait(100);
            group.run(&[THREE]);
            assert_eq!(group.anew, [THREE]);
            group.wait(50);
            group.run(&[]);
            assert_eq!(group.proposals, [group.primary.config().with_backup(THREE)]);
            accept(&mut group, &[]);
            group.wait(50);
            group.run(&[]);
            assert_eq!((&group.proposals[..], group.primary.is_complete()), (&[][..], true), "that was all");
        }
    }
}

#[test]
fn where_no_member_can_be_spared_writes_wait() {
    let mut group = Group::in_sync(&[TWO], options(2));
    assert_eq!(group.primary.rebuild_index(TWO.server), Ok(()));
    group.wait(50);
    group.run(&[]);
    assert!(group.proposals.is_empty() && !group.primary.is_complete());
    group.wait(100);
    group.run(&[TWO]);
    assert!(group.primary.is_complete() && group.anew == [TWO]);
}

/// Such as for lack of room: the copy comes back as it was, instead of failing until it is removed.
#[test]
fn a_rebuild_that_fails_is_not_tried_again() {
    let mut group = Group::in_sync(&[TWO], options(2));
    assert_eq!(group.primary.rebuild_index(TWO.server), Ok(()));
    group.wait(150);
    group.link(TWO, false);
    group.link(TWO, true);
    group.run(&[TWO]);
    assert!(group.primary.is_complete() && group.anew.is_empty());
    group.wait(200);
    group.run(&[TWO]);
    assert!(group.primary.is_complete() && group.anew.is_empty());
}

#[test]
fn a_rebuild_is_refused_with_what_to_do() {
    let mut group = Group::in_sync(&[TWO, THREE], options(3));
    let why = group.primary.rebuild_index(ServerId(9)).expect_err("no member");
    assert_eq!(why, "server 9 is no backup of region 4: ask again when it is in sync");
    group.link(THREE, false);
    let why = group.primary.rebuild_index(TWO.server).expect_err("THREE is away");
    assert!(why.contains("another copy of region 4 is not in sync"), "{why}");
    group.wait(400);
    group.run(&[]);
    accept(&mut group, &[]);
    let why = group.primary.rebuild_index(TWO.server).expect_err("one of three is missing");
    assert!(why.contains("shows 3 copies in sync"), "{why}");
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions { backups: BackupMode::SendIndex, ..options(3) });
    assert!(group.primary.rebuild_index(TWO.server).expect_err("it is shipped").contains("do not build"));
    assert!(group.anew.is_empty());
}
