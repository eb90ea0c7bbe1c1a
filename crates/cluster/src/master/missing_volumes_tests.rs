//! The volumes that a region waits for, and the texts for the operator.

use super::*;
use leeward_format::cluster::Floor;
use leeward_format::{Epoch, Incarnation};

fn member(server: u32, volume: u64) -> Member {
    Member { server: ServerId(server), volume: VolumeId(volume), incarnation: Incarnation(1) }
}

/// The same volume in its next incarnation.
fn restarted(member: Member) -> Member {
    Member { incarnation: Incarnation(2), ..member }
}

/// Server 1 is the primary, 2 and 3 are backups, 4 is a former member; each has a volume of its number.
fn group() -> GroupConfig {
    GroupConfig {
        epoch: Epoch(5),
        term: Epoch(5),
        primary: Some(member(1, 1)),
        backups: vec![member(2, 2), member(3, 3)],
        prior_members: vec![PriorMember { member: member(4, 4), term: Epoch(4) }],
        ..GroupConfig::unassigned(RegionId(7), "default")
    }
}

fn servers(config: &GroupConfig, live: &[Member]) -> Vec<(u32, Option<u64>)> {
    let copy = (Epoch(5), Lsn(100));
    let found = |member: &Member| ServerCopy { member: *member, copy };
    let missing_volumes =
        missing_volumes(config, |server| live.iter().find(|member| member.server == server).map(found));
    missing_volumes.into_iter().map(|one| (one.member.server.0, one.found.map(|volume| volume.0))).collect()
}

#[test]
fn no_volume_is_missing_while_a_member_in_sync_is_live() {
    assert_eq!(servers(&group(), &[member(3, 3)]), []);
    assert_eq!(servers(&group(), &[restarted(member(3, 3))]), [(1, None), (2, None), (4, None)]);
    let fresh = GroupConfig { primary: None, backups: Vec::new(), prior_members: Vec::new(), ..group() };
    assert_eq!(servers(&fresh, &[]), []);
}

#[test]
fn a_backup_with_a_replaced_disk_is_not_waited_for_and_an_absent_one_is() {
    let back: Vec<Member> = [1, 4].map(|server| restarted(member(server, server.into()))).to_vec();
    assert_eq!(servers(&group(), &back), [(2, None), (3, None)]);
    let replaced = [&back[..], &[member(2, 20)]].concat();
    assert_eq!(servers(&group(), &replaced), [(3, None)]);
    let all = [&replaced[..], &[member(3, 30)]].concat();
    assert_eq!(servers(&group(), &all), []);
}

#[test]
fn the_volumes_of_the_primary_and_of_former_members_are_always_needed() {
    let back = [restarted(member(2, 2)), restarted(member(3, 3))];
    let replaced = [&back[..], &[member(1, 10), member(4, 40)]].concat();
    assert_eq!(servers(&group(), &replaced), [(1, Some(10)), (4, Some(40))]);
    assert_eq!(servers(&group(), &back), [(1, None), (4, None)]);
}

#[test]
fn once_the_primarys_volume_is_given_up_every_backups_is_needed() {
    let config = group().without_volume(&member(1, 1)).without_volume(&member(4, 4));
    assert_eq!(servers(&config, &[member(2, 20), restarted(member(3, 3))]), [(2, Some(20))]);
    assert_eq!(servers(&config, &[restarted(member(2, 2)), restarted(member(3, 3))]), []);
}

#[test]
fn a_primary_with_a_recovery_quorum_waits_for_enough_members_or_for_all_volumes() {
    let config = GroupConfig { recovery_quorum: 2, ..group() };
    assert_eq!(servers(&config, &[member(1, 1), member(3, 3)]), []);
    assert_eq!(servers(&config, &[member(1, 1), member(4, 4)]), [], "a live former member counts");
    let twice =
        GroupConfig { prior_members: vec![PriorMember { member: member(1, 1), term: Epoch(4) }], ..config.clone() };
    assert_eq!(servers(&twice, &[member(1, 1)]), [(2, None), (3, None)], "it is one member");
    let alone = [member(1, 1), restarted(member(2, 2)), member(3, 30)];
    assert_eq!(servers(&config, &alone), [(3, Some(30)), (4, None)]);
    let all = [2, 3, 4].map(|server| restarted(member(server, server.into())));
    assert_eq!(servers(&config, &[&all[..], &[member(1, 1)]].concat()), []);
}

#[test]
fn the_operator_is_told_what_is_missing_and_what_to_do() {
    let says = |found: Option<u64>, is_damaged, parts: &[&str]| {
        let missing = MissingVolume { member: member(2, 2), found: found.map(VolumeId), is_damaged };
        let text = missing.explain(RegionId(7));
        parts.iter().for_each(|part| assert!(text.contains(part), "{text}"));
    };
    let waits = "region 7 waits for volume 0000000000000002 of server 2";
    let give_up = "`leeward accept-loss --region 7 --server 2`";
    let replaced = "another volume, 00000000000000ab";
    says(Some(0xab), false, &[waits, replaced, "put its old data directory back", give_up]);
    says(None, false, &["not in the cluster: start it"]);
    let damaged = "a damaged copy of the region";
    says(
        Some(2),
        true,
        &[waits, damaged, "start it again", "put an undamaged copy of its data directory back", give_up],
    );
}

#[test]
fn a_damaged_copy_is_missing_where_another_volume_would_be() {
    let damaged = (Epoch(5), CopyFound::DAMAGED);
    let waits = |config: &GroupConfig, of_damaged: &[u32]| -> Vec<(u32, bool)> {
        let live = |server: ServerId| {
            let member = restarted(member(server.0, server.0.into()));
            let copy = if of_damaged.contains(&server.0) { damaged } else { (Epoch(5), Lsn(100)) };
            Some(ServerCopy { member, copy })
        };
        missing_volumes(config, live).into_iter().map(|one| (one.member.server.0, one.is_damaged)).collect()
    };
    assert_eq!(waits(&group(), &[]), []);
    assert_eq!(waits(&group(), &[1, 2, 3, 4]), [(1, true), (4, true)], "of a backup it is not waited for");
    let given_up = group().without_volume(&member(1, 1)).without_volume(&member(4, 4));
    assert_eq!(waits(&given_up, &[2]), [(2, true)]);
    // Members whose processes never ended.
    let run = |of_damaged: &[u32]| -> Vec<u32> {
        let live = |server: ServerId| {
            let copy = if of_damaged.contains(&server.0) { damaged } else { NO_COPY };
            Some(ServerCopy { member: member(server.0, server.0.into()), copy })
        };
        missing_volumes(&group(), live).into_iter().map(|one| one.member.server.0).collect()
    };
    assert!(run(&[1, 2, 4]).is_empty(), "a member in sync is left");
    assert_eq!(run(&[1, 2, 3]), [1, 2, 3], "each of them may have more than the primary's volume");
    assert_eq!(run(&[1, 2, 3, 4]), [1, 2, 3, 4]);
}

#[test]
fn an_older_copy_of_the_volume_counts_as_another_volume() {
    let one = restarted(member(1, 1));
    let config = GroupConfig {
        backups: Vec::new(),
        prior_members: Vec::new(),
        floor: Some(Floor { member: member(1, 1), term: Epoch(5), lsn: Lsn(100) }),
        ..group()
    };
    let waits = |config: &GroupConfig, member, term, lsn| {
        missing_volumes(config, |_| Some(ServerCopy { member, copy: (Epoch(term), Lsn(lsn)) }))
    };
    assert_eq!(waits(&config, one, 5, 100), []);
    assert_eq!(waits(&config, one, 6, 1), []);
    assert_eq!(waits(&config, member(1, 1), 0, 0), [], "a live member has more than it found when it started");
    for (term, lsn) in [(5, 99), (4, 200), (0, 0)] {
        let [older] = waits(&config, one, term, lsn)[..] else { panic!("it passes for the volume") };
        assert_eq!((older.member, older.found), (member(1, 1), Some(VolumeId(1))));
        let told = older.explain(config.region);
        assert!(told.contains("older state") && told.contains("accept-loss --region 7 --server 1"), "{told}");
    }
    let given_up = config.without_volume(&member(1, 1));
    assert_eq!(waits(&given_up, one, 0, 0), []);
    let unsaid = GroupConfig { floor: None, ..config };
    assert_eq!(waits(&unsaid, one, 0, 0), []);
}
