//! When a primary says how far its volume reaches.

use super::super::tests::{Group, ONE, TWO};
use super::*;
use leeward_format::cluster::{Floor, TableOptions};

fn group() -> Group {
    Group::in_sync(&[TWO], TableOptions { replicas: 2, ..TableOptions::default() })
}

/// Time passes, as long as from one floor to the next. `durable`: where the floor may be raised, what is durable.
fn pass(group: &mut Group, durable: Option<Lsn>) {
    group.now += group.primary.timing.floor_interval;
    durable.into_iter().for_each(|lsn| group.primary.durable(lsn));
    group.primary.tick(group.now, Lsn(0));
    group.run(&[]);
}

#[test]
fn what_is_durable_is_said_from_time_to_time_and_once() {
    let mut group = group();
    group.primary.durable(Lsn(7));
    group.primary.tick(group.now, Lsn(0));
    group.run(&[]);
    assert_eq!(group.proposals, [], "it is not time to");
    pass(&mut group, Some(Lsn(7)));
    let [raised] = &group.proposals[..] else { panic!("{:?}", group.proposals) };
    let term = group.primary.config().term;
    assert_eq!(raised.floor, Some(Floor { member: ONE, term, lsn: Lsn(7) }));
    assert_eq!((raised.term, &raised.backups[..]), (term, &[TWO][..]), "nothing else changes");
    assert_eq!(raised.epoch, group.primary.config().epoch.next());
    let raised = raised.clone();
    group.primary.reconfigure(group.now, raised, &[]);
    group.primary.proposal_ended();
    pass(&mut group, Some(Lsn(7)));
    assert_eq!(group.proposals.len(), 1, "nothing has become durable since");
    group.primary.durable(Lsn(9));
    pass(&mut group, Some(Lsn(8)));
    assert_eq!(group.proposals[1].floor.map(|floor| floor.lsn), Some(Lsn(9)));
}

#[test]
fn the_floor_is_raised_only_where_it_may_be() {
    let mut group = group();
    group.primary.durable(Lsn(7));
    group.primary.tick(group.now, Lsn(0));
    pass(&mut group, None);
    assert_eq!(group.proposals, [], "a change of the region's bounds is under way");
    pass(&mut group, Some(Lsn(7)));
    assert_eq!(group.proposals.len(), 1);
}

#[test]
fn a_primary_that_settles_says_it_at_once() {
    let mut group = group();
    group.primary.durable(Lsn(5));
    assert_eq!(group.primary.floor.raise(group.primary.config().settled()).floor.map(|floor| floor.lsn), Some(Lsn(5)));
}
