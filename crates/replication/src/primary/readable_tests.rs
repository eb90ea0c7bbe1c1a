//! What is published to clients never outlives a grant that is needed.

use super::super::tests::{Group, THREE, TWO};
use super::*;
use crate::Timing;
use leeward_format::Lsn;
use leeward_format::cluster::{Member, TableOptions};

fn lasts() -> Nanos {
    Timing::relied_on(Timing::default().lease)
}

impl Group {
    fn grants(&mut self, member: Member) -> Nanos {
        self.primary.lease_granted(member.server, self.now, Timing::default().lease);
        self.now + lasts()
    }
    /// A learner is brought in sync beside the backup.
    fn build(&mut self, learner: Member) {
        let now = self.primary.config().clone();
        let config = GroupConfig { epoch: now.epoch.next(), learners: vec![learner], ..now };
        self.primary.reconfigure(self.now, config, &[]);
        self.link(learner, true);
        self.run(&[TWO, learner]);
    }
    /// What is proposed at a tick.
    fn tick(&mut self) -> Vec<GroupConfig> {
        self.primary.tick(self.now, Lsn(10));
        self.run(&[]);
        std::mem::take(&mut self.proposals)
    }
    fn readable(&mut self) -> Nanos {
        self.primary.readable_until(self.now)
    }
}

#[test]
fn the_earliest_grant_that_is_needed_bounds_what_clients_may_read() {
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions::default());
    group.grants(TWO);
    assert_eq!(group.readable(), Nanos::ZERO, "one of both grants is missing");
    let until = group.grants(THREE);
    assert_eq!(group.readable(), until);
    group.now += Nanos::from_millis(100);
    group.grants(TWO);
    assert_eq!(group.readable(), until, "the other grant is older");
    group.primary.clock_doubted(group.now);
    assert_eq!(group.readable(), until, "what is published cannot be taken back");
    group.primary.readable_ended();
    assert_eq!(group.readable(), Nanos::ZERO);
}

#[test]
fn of_a_long_grant_only_as_much_counts_as_a_new_process_waits_for() {
    let mut group = Group::in_sync(&[TWO], TableOptions::default());
    group.primary.lease_granted(TWO.server, group.now, *Timing::LEASES.end());
    let until = group.now + Timing::relied_on(Timing::READABLE);
    assert_eq!(group.readable(), until);
    group.now += Nanos::from_secs(10);
    assert!(group.primary.holds_lease(group.now));
    assert_eq!(group.readable(), until, "what the member's process granted long ago, the next one does not know");
}

#[test]
fn with_a_quorum_the_latest_grants_count() {
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions { quorum: Some(2), ..TableOptions::default() });
    let until = group.grants(THREE);
    assert_eq!(group.readable(), until, "a successor has to hear from two, one of which has granted");
}

#[test]
fn without_backups_an_instant_is_not_later_than_a_lease() {
    let mut group = Group::in_sync(&[], TableOptions { replicas: 1, min_in_sync: 1, ..TableOptions::default() });
    assert_eq!(group.readable(), group.now + lasts());
}

#[test]
fn a_learner_without_a_grant_waits_until_nobody_relies_on_it() {
    let mut group = Group::in_sync(&[TWO], TableOptions::default());
    let published = group.grants(TWO);
    assert_eq!(group.readable(), published);
    group.build(THREE);
    assert_eq!(group.tick(), [], "it has granted nothing, and could serve before {published:?}");
    group.grants(TWO);
    assert_eq!(group.readable(), published, "the member that is to come bounds it already");
    group.grants(THREE);
    let proposals = group.tick();
    assert_eq!(proposals.len(), 1);
    assert!(proposals[0].backups.contains(&THREE));
}

#[test]
fn once_the_instant_has_passed_no_grant_is_needed() {
    let mut group = Group::in_sync(&[TWO], TableOptions::default());
    group.grants(TWO);
    group.readable();
    group.build(THREE);
    group.now += lasts();
    assert_eq!(group.tick().len(), 1);
}
