//! Members that should leave, and a primary role that is handed over.

use super::super::tests::{Group, ONE, THREE, TWO};
use super::*;
use crate::peer::PeerAction;
use leeward_format::cluster::{BackupMode, DesiredState, TableOptions};
use leeward_format::control::{ToBackup, ToPrimary};

fn departing(members: &[(Member, Intent)]) -> BTreeMap<ServerId, Intent> {
    members.iter().map(|(member, intent)| (member.server, *intent)).collect()
}

fn group(min_in_sync: u32) -> Group {
    Group::in_sync(&[TWO, THREE], TableOptions { min_in_sync, replicas: 3, ..TableOptions::default() })
}

#[test]
fn a_backup_that_restarts_leaves_if_writes_can_do_without_it() {
    let mut group = group(2);
    group.primary.set_departing(departing(&[(TWO, Intent::Restart)]));
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals.len(), 1);
    assert_eq!(group.proposals[0].backups, [THREE]);
    let mut tight = self::group(3);
    tight.primary.set_departing(departing(&[(TWO, Intent::Restart)]));
    tight.wait(50);
    tight.run(&[]);
    assert!(tight.proposals.is_empty(), "writes would stop");
}

#[test]
fn one_that_leaves_for_good_is_replaced_first() {
    let mut group = group(2);
    group.primary.set_departing(departing(&[(TWO, Intent::Leave)]));
    group.wait(50);
    group.run(&[]);
    assert!(group.proposals.is_empty(), "two would stay of three that the table wants");
    let mut spare = Group::in_sync(&[TWO, THREE], TableOptions { replicas: 2, ..TableOptions::default() });
    spare.primary.set_departing(departing(&[(TWO, Intent::Leave)]));
    spare.wait(50);
    spare.run(&[]);
    assert_eq!(spare.proposals[0].backups, [THREE]);
}

#[test]
fn two_that_restart_do_not_count_on_each_other() {
    let mut group = group(2);
    group.primary.set_departing(departing(&[(TWO, Intent::Restart), (THREE, Intent::Restart)]));
    group.wait(50);
    group.run(&[]);
    assert!(group.proposals.is_empty(), "only one would stay");
}

#[test]
fn the_transfer_target_is_the_desired_primary_or_has_the_most() {
    let mut group = group(2);
    assert_eq!(group.primary.transfer_target(), None, "no other primary is desired");
    let requested =
        group.primary.config().with_desired(DesiredState { primary: Some(THREE.server), leaving: None, plan: None });
    group.primary.reconfigure(group.now, requested.clone(), &[]);
    assert_eq!(group.primary.transfer_target(), Some(THREE));
    group.primary.set_departing(departing(&[(THREE, Intent::Restart)]));
    assert_eq!(group.primary.transfer_target(), None, "it is about to leave itself");
    group.primary.set_departing(departing(&[(THREE, Intent::Restart), (ONE, Intent::Restart)]));
    assert_eq!(
        group.primary.transfer_target(),
        Some(TWO),
        "an impossible desired primary does not hold up a member that must leave"
    );
    group.append(12);
    group.complete(THREE);
    group.primary.set_departing(departing(&[(ONE, Intent::Leave)]));
    let next = requested.with_desired(DesiredState::default());
    group.primary.reconfigure(group.now, next, &[]);
    assert_eq!(group.primary.transfer_target(), Some(THREE), "it has the most");
}

#[test]
fn the_hand_over_is_proposed_and_nothing_else_meanwhile() {
    let mut group = group(2);
    group.append(12);
    group.complete(TWO);
    assert!(!group.primary.is_with_all(Lsn(12)));
    group.complete(THREE);
    group.primary.commit(Lsn(12));
    assert!(group.primary.is_with_all(Lsn(12)) && group.primary.is_settled());
    group.primary.hand_over(TWO);
    assert!(!group.primary.is_settled());
    group.primary.set_departing(departing(&[(THREE, Intent::Restart)]));
    group.wait(100);
    group.run(&[]);
    assert_eq!(group.proposals.len(), 1);
    let next = &group.proposals[0];
    assert_eq!((next.primary, &next.backups[..]), (Some(TWO), &[ONE, THREE][..]));
    assert_eq!((next.term, next.released_term()), (next.epoch, Some(group.primary.config().term)));
}

#[test]
fn a_target_that_builds_its_index_is_asked_once_to_have_little_to_replay() {
    let options = TableOptions { backups: BackupMode::BuildIndex, replicas: 3, ..TableOptions::default() };
    let mut group = Group::in_sync(&[TWO, THREE], options);
    let asked = |group: &mut Group| {
        let is_prime = |action: &PrimaryAction| {
            matches!(action, PrimaryAction::Peer { action: PeerAction::Send(ToBackup::Prime), .. })
        };
        group.primary.take_actions().iter().filter(|action| is_prime(action)).count()
    };
    let session = group.primary.peer(TWO.server).expect("a backup").session_number();
    for anew in [true, true, false] {
        assert!(!group.primary.prime(TWO, anew));
        assert_eq!(asked(&mut group), usize::from(anew));
    }
    group.primary.message(group.now, TWO.server, session, ToPrimary::Primed);
    assert!(group.primary.prime(TWO, false) && !group.primary.prime(TWO, true), "an old answer does not count");
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions { replicas: 3, ..TableOptions::default() });
    assert!(group.primary.prime(TWO, true) && asked(&mut group) == 0, "what it has is what the primary has shipped");
}
