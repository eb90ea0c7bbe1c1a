//! When a primary is idle, and what ends that.

use super::super::tests::{Group, ONE, THREE, TWO};
use super::*;
use leeward_format::ServerId;
use leeward_format::cluster::{Intent, TableOptions};

/// Every member has everything up to LSN 10.
fn group() -> Group {
    let options = TableOptions { min_in_sync: 2, replicas: 3, ..TableOptions::default() };
    let mut group = Group::in_sync(&[TWO, THREE], options);
    group.primary.commit(Lsn(10));
    group
}

fn grant(group: &mut Group, server: ServerId) {
    let now = group.now;
    group.primary.lease_granted(server, now, super::super::tests::LEASE);
}

#[test]
fn it_is_idle_when_every_member_has_everything() {
    let mut group = group();
    assert!(group.primary.is_idle(group.now, Lsn(10)));
    group.append(12);
    for member in [TWO, THREE] {
        assert!(!group.primary.is_idle(group.now, Lsn(12)));
        group.complete(member);
    }
    assert!(!group.primary.is_idle(group.now, Lsn(12)), "not committed yet");
    group.primary.commit(Lsn(12));
    assert!(group.primary.is_idle(group.now, Lsn(12)));
}

#[test]
fn it_is_not_idle_while_a_change_is_desired() {
    let mut group = group();
    group.primary.set_departing([(TWO.server, Intent::Leave)].into());
    assert!(!group.primary.is_idle(group.now, Lsn(10)));
    group.primary.set_departing([].into());
    assert!(group.primary.is_idle(group.now, Lsn(10)));
    let config = group.primary.config().clone();
    let requested = config.with_desired(DesiredState { primary: Some(THREE.server), ..DesiredState::default() });
    group.primary.reconfigure(group.now, requested.clone(), &[]);
    assert!(!group.primary.is_idle(group.now, Lsn(10)));
    group.primary.reconfigure(group.now, requested.with_desired(DesiredState::default()), &[]);
    assert!(group.primary.is_idle(group.now, Lsn(10)));
    assert_eq!(group.primary.config().primary, Some(ONE));
}

#[test]
fn it_is_not_idle_while_a_lease_is_not_renewed() {
    let mut group = group();
    let idle = (0..20).take_while(|_| {
        group.now += Nanos::from_millis(50);
        grant(&mut group, TWO.server);
        let mut scheduling_gap = SchedulingGap::new(Nanos::ZERO);
        scheduling_gap.look(group.now, Nanos::MAX);
        group.primary.note_idle(group.now, scheduling_gap);
        group.primary.is_idle(group.now, Lsn(10))
    });
    assert!((4..=7).contains(&idle.count()), "a member that grants nothing is found before its last grant expires");
    group.wait(100);
    group.run(&[]);
    assert_eq!(group.proposals.len(), 1);
    assert_eq!(group.proposals[0].backups, [TWO]);
}

#[test]
fn a_link_that_goes_down_ends_idleness() {
    let mut group = group();
    assert!(group.primary.is_idle(group.now, Lsn(10)));
    group.link(THREE, false);
    assert!(!group.primary.is_idle(group.now, Lsn(10)));
}

#[test]
fn what_a_peer_owes_after_an_idle_time_is_new() {
    let mut group = group();
    let mut scheduling_gap = SchedulingGap::new(group.now);
    for _ in 0..200 {
        group.now += Nanos::from_millis(50);
        scheduling_gap.look(group.now, Nanos::from_millis(150));
    }
    [TWO, THREE].iter().for_each(|member| grant(&mut group, member.server));
    group.primary.note_idle(group.now, scheduling_gap);
    group.append(12);
    group.wait(50);
    group.run(&[]);
    assert!(group.proposals.is_empty(), "no peer was silent for long");
}
