//! When a primary is at rest, and what ends it.

use super::super::tests::{Group, ONE, THREE, TWO};
use super::*;
use leeward_format::ServerId;
use leeward_format::cluster::{Intent, TableOptions};

/// Everything up to LSN 10 is with everybody.
fn group() -> Group {
    let options = TableOptions { min_in_sync: 2, replicas: 3, ..TableOptions::default() };
    let mut group = Group::in_sync(&[TWO, THREE], options);
    group.primary.commit(Lsn(10));
    group
}

fn grant(group: &mut Group, server: ServerId) {
    let now = group.now;
    group.primary.lease_granted(server, now);
}

#[test]
fn it_rests_when_everybody_has_everything() {
    let mut group = group();
    assert!(group.primary.is_at_rest(group.now, Lsn(10)));
    group.append(12);
    for member in [TWO, THREE] {
        assert!(!group.primary.is_at_rest(group.now, Lsn(12)));
        group.complete(member);
    }
    assert!(!group.primary.is_at_rest(group.now, Lsn(12)), "not committed yet");
    group.primary.commit(Lsn(12));
    assert!(group.primary.is_at_rest(group.now, Lsn(12)));
}

#[test]
fn it_does_not_while_anything_is_wished_for() {
    let mut group = group();
    group.primary.set_departing([(TWO.server, Intent::Leave)].into());
    assert!(!group.primary.is_at_rest(group.now, Lsn(10)));
    group.primary.set_departing([].into());
    assert!(group.primary.is_at_rest(group.now, Lsn(10)));
    let config = group.primary.config().clone();
    let wished = config.wishing(Wishes { primary: Some(THREE.server), ..Wishes::default() });
    group.primary.reconfigure(group.now, wished.clone(), &[]);
    assert!(!group.primary.is_at_rest(group.now, Lsn(10)));
    group.primary.reconfigure(group.now, wished.wishing(Wishes::default()), &[]);
    assert!(group.primary.is_at_rest(group.now, Lsn(10)));
    assert_eq!(group.primary.config().primary, Some(ONE));
}

#[test]
fn it_does_not_while_a_promise_is_not_renewed() {
    let mut group = group();
    let rested = (0..20).take_while(|_| {
        group.now += Nanos::from_millis(50);
        grant(&mut group, TWO.server);
        let mut attention = Attention::new(Nanos::ZERO);
        attention.look(group.now, Nanos::MAX);
        group.primary.rested(group.now, attention);
        group.primary.is_at_rest(group.now, Lsn(10))
    });
    assert!((4..=7).contains(&rested.count()), "who does not promise is found before its promise ends");
    group.wait(100);
    group.run(&[]);
    assert_eq!(group.proposals.len(), 1);
    assert_eq!(group.proposals[0].backups, [TWO]);
}

#[test]
fn a_link_that_goes_down_ends_the_rest() {
    let mut group = group();
    assert!(group.primary.is_at_rest(group.now, Lsn(10)));
    group.link(THREE, false);
    assert!(!group.primary.is_at_rest(group.now, Lsn(10)));
}

#[test]
fn what_a_peer_owes_after_a_rest_is_new() {
    let mut group = group();
    let mut attention = Attention::new(group.now);
    for _ in 0..200 {
        group.now += Nanos::from_millis(50);
        attention.look(group.now, Nanos::from_millis(150));
    }
    [TWO, THREE].iter().for_each(|member| grant(&mut group, member.server));
    group.primary.rested(group.now, attention);
    group.append(12);
    group.wait(50);
    group.run(&[]);
    assert!(group.proposals.is_empty(), "nobody was silent for long");
}
