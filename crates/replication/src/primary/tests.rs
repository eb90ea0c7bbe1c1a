//! A group whose peers answer at once, or not at all.

use super::*;
use crate::mirror::tests::append;
use crate::peer::PeerAction;
use leeward_format::cluster::{BackupMode, Posting, PriorMember};
use leeward_format::control::ToBackup;
use leeward_format::manifest::Terms;
use leeward_format::{Epoch, Incarnation, RegionId, SegmentId, SegmentNo, VolumeId};

pub(super) const ONE: Member = Member { server: ServerId(1), volume: VolumeId(1), incarnation: Incarnation(11) };
pub(super) const TWO: Member = Member { server: ServerId(2), volume: VolumeId(2), incarnation: Incarnation(22) };
pub(super) const THREE: Member = Member { server: ServerId(3), volume: VolumeId(3), incarnation: Incarnation(33) };

/// How long each lease grant lasts.
pub(super) const LEASE: Nanos = Nanos::from_millis(600);

fn config(backups: &[Member], learners: &[Member]) -> GroupConfig {
    GroupConfig {
        epoch: Epoch(5),
        term: Epoch(5),
        primary: Some(ONE),
        backups: backups.to_vec(),
        learners: learners.to_vec(),
        ..GroupConfig::unassigned(RegionId(4), "default")
    }
}

fn base() -> Base {
    Base {
        options: TableOptions::default(),
        term: Epoch(5),
        terms: Terms::default(),
        replay_from: Lsn(1),
        last_lsn: Lsn(10),
        commit: Lsn(10),
        levels: Vec::new(),
        segments: Vec::new(),
        parent: None,
    }
}

/// A primary whose peers answer at once, unless told otherwise.
pub(super) struct Group {
    pub(super) now: Nanos,
    pub(super) primary: Primary,
    pub(super) proposals: Vec<GroupConfig>,
    writes: Vec<(ServerId, u64)>,
    /// Members that took a base anew.
    pub(super) anew: Vec<Member>,
}

impl Group {
    fn new(backups: &[Member], learners: &[Member]) -> Group {
        Group::of(config(backups, learners), TableOptions::default())
    }

    fn of(config: GroupConfig, options: TableOptions) -> Group {
        let now = Nanos::from_secs(1);
        let primary = Primary::new(now, config, options, (Timing::default(), Ops::default()), &[]);
        Group { now, primary, proposals: Vec::new(), writes: Vec::new(), anew: Vec::new() }
    }

    /// All `backups` are in sync.
    pub(super) fn in_sync(backups: &[Member], options: TableOptions) -> Group {
        let mut group = Group::of(config(backups, &[]), options);
        for member in backups {
            group.link(*member, true);
            group.run(&[*member]);
        }
        group
    }

    /// Two of three are enough; both backups are in sync.
    fn with_quorum() -> Group {
        Group::in_sync(&[TWO, THREE], TableOptions { quorum: Some(2), ..TableOptions::default() })
    }

    fn answer(&mut self, member: Member, session: u64, message: &ToBackup) {
        let answer = match message {
            ToBackup::Open { .. } => {
                let reach = Some((Epoch(4), Lsn(10)));
                ToPrimary::Opened { member, buffers: vec![vec![1]; 4], slots: vec![vec![2]; 2], reach }
            }
            ToBackup::Base(_) => ToPrimary::Missing(Vec::new()),
            ToBackup::BaseAnew(_) => {
                self.anew.push(member);
                ToPrimary::Missing(Vec::new())
            }
            ToBackup::InstallBase => ToPrimary::BaseInstalled,
            _ => return,
        };
        self.primary.message(self.now, member.server, session, answer);
    }

    /// Executes what the primary wants; `members` answer.
    pub(super) fn run(&mut self, members: &[Member]) {
        loop {
            for server in self.primary.wants_base() {
                self.primary.base(server, base(), Lsn(10), [0, 0]);
            }
            let actions = self.primary.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    PrimaryAction::Propose(config) => self.proposals.push(config),
                    PrimaryAction::Split { left, right } => self.proposals.extend([*left, *right]),
                    PrimaryAction::Merge { wider, .. } => self.proposals.push(*wider),
                    PrimaryAction::Peer { server, session, action: PeerAction::Send(message) } => {
                        if let Some(member) = members.iter().find(|member| member.server == server) {
                            self.answer(*member, session, &message);
                        }
                    }
                    PrimaryAction::Peer { server, action: PeerAction::Mirror(write), .. } => {
                        self.writes.push((server, write.op));
                    }
                    PrimaryAction::Peer { .. } => {}
                }
            }
        }
    }

    pub(super) fn link(&mut self, member: Member, up: bool) {
        self.primary.link(self.now, member.server, up);
        self.begin_sessions();
    }

    fn begin_sessions(&mut self) {
        for (server, _) in self.primary.due_sessions(self.now) {
            self.primary.begin_session(self.now, server, Ok(()));
        }
    }

    pub(super) fn append(&mut self, last: u64) {
        self.post(&[0; 2000][..last as usize * 100], last);
    }

    fn post(&mut self, bytes: &[u8], last: u64) {
        let log = LogKind::Recovery;
        let view = TailView { log, index: 0, id: SegmentId(1), segment: SegmentNo(1), bytes, sealed: None };
        self.primary.post(&[view], Lsn(last));
        self.run(&[]);
    }

    pub(super) fn complete(&mut self, member: Member) {
        for (server, op) in self.writes.clone() {
            if server == member.server {
                self.primary.complete(self.now, server, op);
            }
        }
    }

    pub(super) fn wait(&mut self, millis: u64) {
        for _ in 0..millis / 50 {
            self.now += Nanos::from_millis(50);
            self.primary.tick(self.now, Lsn(0));
            self.begin_sessions();
        }
    }
}

#[test]
fn nothing_is_served_before_every_member_has_its_base() {
    let mut group = Group::new(&[TWO, THREE], &[]);
    group.link(TWO, true);
    group.run(&[TWO]);
    assert!(!group.primary.is_complete());
    assert_eq!(group.primary.commit(Lsn(10)), Lsn(0));
    group.link(THREE, true);
    group.run(&[THREE]);
    assert!(group.primary.is_complete());
    assert_eq!(group.primary.commit(Lsn(10)), Lsn(10));
}

#[test]
fn a_write_is_committed_when_every_member_has_it() {
    let mut group = Group::new(&[TWO, THREE], &[]);
    for member in [TWO, THREE] {
        group.link(member, true);
        group.run(&[member]);
    }
    group.append(12);
    group.complete(TWO);
    assert_eq!(group.primary.commit(Lsn(12)), Lsn(10));
    group.complete(THREE);
    assert_eq!(group.primary.commit(Lsn(12)), Lsn(12));
}

#[test]
fn with_last_flush_a_write_is_acknowledged_on_its_way() {
    let mut group = Group::new(&[TWO, THREE], &[]);
    for member in [TWO, THREE] {
        group.link(member, true);
        group.run(&[member]);
    }
    let last_flush =
        TableOptions { acknowledge: Acknowledge::LastFlush, max_unacked_bytes: 250, ..TableOptions::default() };
    group.append(11);
    assert_eq!((group.primary.commit(Lsn(11)), group.primary.acknowledged(Lsn(11))), (Lsn(10), Lsn(10)));
    group.primary.set_options(last_flush);
    assert_eq!(group.primary.acknowledged(Lsn(11)), Lsn(10), "its 1100 bytes are too many");
    group.complete(TWO);
    group.complete(THREE);
    group.append(12);
    group.append(13);
    assert_eq!((group.primary.commit(Lsn(13)), group.primary.acknowledged(Lsn(13))), (Lsn(11), Lsn(13)));
    group.append(14);
    assert_eq!(group.primary.acknowledged(Lsn(14)), Lsn(13), "300 bytes are not confirmed");
    group.complete(TWO);
    assert_eq!(group.primary.acknowledged(Lsn(14)), Lsn(13), "by one of them");
    group.link(THREE, false);
    assert_eq!(group.primary.acknowledged(Lsn(14)), Lsn(11), "nothing more is on its way to it");
}

#[test]
fn records_are_posted_as_the_table_says_from_one_post_to_the_next() {
    let mut group = Group::new(&[TWO, THREE], &[]);
    for member in [TWO, THREE] {
        group.link(member, true);
        group.run(&[member]);
    }
    let mut bytes = Vec::new();
    let mut post = |group: &mut Group, first: u64| {
        for lsn in first..first + 3 {
            append(&mut bytes, lsn, 0);
        }
        group.writes.clear();
        group.post(&bytes, first + 2);
        group.writes.iter().map(|(server, _)| *server).collect::<Vec<_>>()
    };
    assert_eq!(post(&mut group, 11), [TWO.server, THREE.server], "all that is new is one write");
    group.complete(TWO);
    group.complete(THREE);
    group.primary.set_options(TableOptions { posting: Posting::PerRecord, ..TableOptions::default() });
    let (two, three) = ([TWO.server; 3], [THREE.server; 3]);
    assert_eq!(post(&mut group, 14), [two, three].concat());
    group.writes.truncate(4);
    group.complete(TWO);
    group.complete(THREE);
    assert_eq!(group.primary.commit(Lsn(16)), Lsn(14), "the first of three has reached both");
    group.primary.set_options(TableOptions::default());
    assert_eq!(post(&mut group, 17), [TWO.server, THREE.server]);
}

#[test]
fn when_the_mode_changes_members_leave_one_by_one_and_come_back() {
    let mut group = Group::new(&[TWO, THREE], &[]);
    for member in [TWO, THREE] {
        group.link(member, true);
        group.run(&[member]);
    }
    let options = TableOptions { backups: BackupMode::BuildIndex, ..TableOptions::default() };
    group.primary.set_options(options.clone());
    group.wait(50);
    group.run(&[]);
    let without_two = group.primary.config().without(TWO);
    assert_eq!(group.proposals, std::slice::from_ref(&without_two));
    assert!(group.primary.is_complete(), "both are in sync until then");
    let learning = GroupConfig { learners: vec![TWO], epoch: without_two.epoch.next(), ..without_two };
    group.primary.reconfigure(group.now, learning, &[TWO.server, THREE.server]);
    group.primary.proposal_ended();
    group.wait(100);
    group.run(&[TWO]);
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals.len(), 2, "{:?}", group.proposals);
    assert_eq!(group.proposals[1], group.primary.config().with_backup(TWO));
    group.primary.reconfigure(group.now, group.proposals[1].clone(), &[TWO.server, THREE.server]);
    group.primary.proposal_ended();
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals[2], group.primary.config().without(THREE), "now the other");
}

#[test]
fn where_no_member_can_be_spared_writes_wait_for_the_new_mode() {
    let mut group = Group::new(&[TWO], &[]);
    group.link(TWO, true);
    group.run(&[TWO]);
    group.primary.set_options(TableOptions { backups: BackupMode::BuildIndex, ..TableOptions::default() });
    group.wait(50);
    group.run(&[]);
    assert!(group.proposals.is_empty() && !group.primary.is_complete());
    group.wait(100);
    group.run(&[TWO]);
    assert!(group.primary.is_complete());
    assert!(group.primary.peer(TWO.server).is_some_and(|peer| peer.keeps_copy_as(BackupMode::BuildIndex)));
    group.wait(200);
    group.run(&[]);
    assert!(group.proposals.is_empty() && group.primary.is_complete());
}

#[test]
fn a_failed_backup_counts_until_it_is_removed() {
    let mut group = Group::new(&[TWO, THREE], &[]);
    for member in [TWO, THREE] {
        group.link(member, true);
        group.run(&[member]);
    }
    group.append(11);
    group.complete(TWO);
    group.link(THREE, false);
    group.wait(400);
    group.run(&[]);
    assert_eq!(group.primary.commit(Lsn(11)), Lsn(10), "it is gone, but still a member");
    assert_eq!(group.proposals, [group.primary.config().without(THREE)]);
    let next = group.proposals[0].clone();
    group.primary.reconfigure(group.now, next, &[]);
    assert_eq!(group.primary.commit(Lsn(11)), Lsn(11));
    assert_eq!(group.primary.in_sync(), (2, 2));
}

#[test]
fn a_silent_backup_is_given_up_and_proposed_for_removal() {
    let mut group = Group::new(&[TWO], &[]);
    group.link(TWO, true);
    group.run(&[TWO]);
    group.wait(5_000);
    group.run(&[]);
    assert!(group.proposals.is_empty(), "a backup that owes nothing may be silent");
    group.append(11);
    group.wait(5_000);
    group.run(&[]);
    assert_eq!(group.proposals, [group.primary.config().without(TWO)]);
}

/// One of three no longer renews its lease grant, though one-sided writes into its memory still complete.
#[test]
fn a_member_that_stops_renewing_leaves_before_others_wait_for_it() {
    // Lets `millis` pass while the grants of `keeping` are renewed. Returns whether the primary held its lease all the
    // time, up to when it proposed something.
    let wait = |group: &mut Group, keeping: &[Member], millis: u64| {
        let mut held = true;
        for _ in 0..millis / 50 {
            for member in keeping {
                group.primary.lease_granted(member.server, group.now, LEASE);
            }
            held &= group.primary.holds_lease(group.now) || !group.proposals.is_empty();
            group.wait(50);
            group.run(&[]);
        }
        held
    };
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions::default());
    assert!(wait(&mut group, &[TWO, THREE], 5_000) && group.proposals.is_empty());
    group.append(11);
    group.complete(TWO);
    group.complete(THREE);
    assert!(wait(&mut group, &[TWO], 400), "reads did not stop");
    assert_eq!(group.proposals, [group.primary.config().without(THREE)]);

    // Its own pause proves nothing, nor do grants that are as old as the pause.
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions::default());
    wait(&mut group, &[TWO, THREE], 1_000);
    group.now += Nanos::from_secs(3);
    wait(&mut group, &[], 300);
    wait(&mut group, &[TWO, THREE], 1_000);
    assert_eq!(group.proposals, []);

    // Without the member there are too few, or no answer waits for it.
    let two = TableOptions { replicas: 2, min_in_sync: 2, ..TableOptions::default() };
    let quorum = TableOptions { quorum: Some(2), ..TableOptions::default() };
    for (options, members) in [(two, &[TWO][..]), (quorum, &[TWO, THREE])] {
        let mut group = Group::in_sync(members, options);
        wait(&mut group, members, 1_000);
        wait(&mut group, &[], 1_000);
        assert_eq!(group.proposals, []);
    }
}

/// Two of three are silent. The second leaves as soon as the first is out: it need not be silent for as long again.
#[test]
fn all_silent_members_leave_one_right_after_the_other() {
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions::default());
    group.append(11);
    let timeout = group.primary.timing.answer_timeout.as_millis() + 100;
    for _ in 0..timeout / 50 {
        for member in [TWO, THREE] {
            group.primary.lease_granted(member.server, group.now, LEASE);
        }
        group.wait(50);
    }
    group.run(&[]);
    assert_eq!(group.proposals.len(), 1);
    let next = group.proposals[0].clone();
    group.primary.proposal_ended();
    group.primary.reconfigure(group.now, next.clone(), &[]);
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals[1..], [next.without(next.backups[0])]);
}

#[test]
fn a_learner_counts_from_its_proposal_on() {
    let mut group = Group::new(&[TWO], &[THREE]);
    for member in [TWO, THREE] {
        group.link(member, true);
        group.run(&[member]);
    }
    group.append(11);
    group.complete(TWO);
    assert_eq!(group.primary.commit(Lsn(11)), Lsn(11), "a learner does not count");
    group.append(12);
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals, [], "it does not have what is committed");
    group.complete(TWO);
    assert_eq!(group.primary.commit(Lsn(12)), Lsn(11), "nothing more is, until it has that");
    group.complete(THREE);
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals, [group.primary.config().with_backup(THREE)]);
    assert_eq!(group.primary.commit(Lsn(12)), Lsn(12));
    group.append(13);
    group.writes.retain(|(server, _)| *server != THREE.server);
    group.complete(TWO);
    assert_eq!(group.primary.commit(Lsn(13)), Lsn(12), "its admission may have succeeded");
    group.primary.proposal_ended();
    assert_eq!(group.primary.commit(Lsn(13)), Lsn(12), "an answer alone settles nothing");
}

#[test]
fn with_a_quorum_a_slow_member_holds_up_no_write() {
    let mut group = Group::with_quorum();
    group.append(11);
    assert_eq!(group.primary.commit(Lsn(11)), Lsn(10));
    group.complete(THREE);
    assert_eq!(group.primary.commit(Lsn(11)), Lsn(11));
    group.primary.lease_granted(THREE.server, group.now, LEASE);
    assert!(group.primary.holds_lease(group.now), "two of three, this one included");
    group.primary.lease_granted(TWO.server, group.now, LEASE);
    group.now += Nanos::from_secs(1);
    assert!(!group.primary.holds_lease(group.now));
}

#[test]
fn a_member_leaves_only_when_the_others_have_what_is_committed() {
    let mut group = Group::with_quorum();
    group.append(11);
    group.complete(THREE);
    assert_eq!(group.primary.commit(Lsn(11)), Lsn(11));
    group.link(THREE, false);
    group.wait(400);
    group.run(&[]);
    assert_eq!(group.proposals, [], "only it and the primary have what was committed last");
    group.append(12);
    let of_two: Vec<u64> = group.writes.iter().filter(|(server, _)| *server == TWO.server).map(|(_, op)| *op).collect();
    group.primary.complete(group.now, TWO.server, of_two[0]);
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals, [group.primary.config().without(THREE)]);
    assert_eq!(group.primary.commit(Lsn(12)), Lsn(11));
    group.complete(TWO);
    assert_eq!(group.primary.commit(Lsn(12)), Lsn(12));
}

#[test]
fn of_two_that_failed_the_one_that_has_less_leaves_first() {
    let mut group = Group::with_quorum();
    group.append(11);
    group.complete(TWO);
    assert_eq!(group.primary.commit(Lsn(11)), Lsn(11));
    for member in [TWO, THREE] {
        group.link(member, false);
    }
    group.wait(400);
    group.run(&[]);
    assert_eq!(group.proposals, [group.primary.config().without(THREE)]);
    group.primary.reconfigure(group.now, group.proposals[0].clone(), &[]);
    group.primary.proposal_ended();
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals[1], group.primary.config().without(TWO));
}

#[test]
fn a_primary_that_had_to_hear_from_others_settles_and_serves_when_they_have_its_base() {
    let former = vec![PriorMember { member: THREE, term: Epoch(4) }];
    let taken_over = GroupConfig { prior_members: former.clone(), recovery_quorum: 2, ..config(&[TWO], &[]) };
    let mut group = Group::of(taken_over, TableOptions { quorum: Some(2), ..TableOptions::default() });
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals, []);
    group.link(TWO, true);
    group.run(&[TWO]);
    group.wait(50);
    group.run(&[]);
    assert!(!group.primary.may_open(), "its successor must still ask TWO and THREE");
    assert_eq!(group.proposals, [group.primary.config().settled()]);
    group.primary.reconfigure(group.now, group.proposals[0].clone(), &[TWO.server]);
    assert!(group.primary.may_open());
}

#[test]
fn a_primary_that_had_to_hear_of_volumes_that_were_given_up_settles_too() {
    let options = TableOptions { quorum: Some(2), ..TableOptions::default() };
    let mut group = Group::of(GroupConfig { recovery_quorum: 1, ..config(&[], &[]) }, options);
    group.wait(50);
    group.run(&[]);
    assert_eq!(group.proposals, [group.primary.config().settled()]);
}

#[test]
fn another_incarnation_of_a_server_is_not_the_member() {
    let mut group = Group::new(&[TWO], &[]);
    group.link(TWO, true);
    group.run(&[Member { incarnation: Incarnation(23), ..TWO }]);
    assert!(!group.primary.is_complete());
    assert_eq!(group.primary.peer(TWO.server).map(Peer::state), Some(PeerState::Away));
}

#[test]
fn the_lease_needs_every_counted_peer() {
    let mut group = Group::new(&[TWO, THREE], &[]);
    group.primary.lease_granted(TWO.server, group.now, LEASE);
    assert!(!group.primary.holds_lease(group.now));
    group.primary.lease_granted(THREE.server, group.now, LEASE);
    assert!(group.primary.holds_lease(group.now));
    let mut alone = Group::new(&[], &[THREE]);
    alone.run(&[]);
    assert!(alone.primary.holds_lease(alone.now), "a learner does not become primary");
}

#[test]
fn a_base_that_cannot_be_read_is_begun_anew() {
    let mut group = Group::new(&[], &[TWO]);
    group.link(TWO, true);
    let number = |group: &Group| group.primary.peer(TWO.server).expect("a learner").session_number();
    let session = number(&group);
    group.primary.load_failed(group.now, TWO.server, session + 1);
    group.wait(50);
    assert_eq!(number(&group), session, "it was not this session's");
    group.primary.load_failed(group.now, TWO.server, session);
    group.wait(50);
    assert!(number(&group) > session);
}

/// A month of per-record posting comes to the end of the counter; any number of a region has names.
#[test]
fn names_of_writes_begin_anew_and_every_region_has_its_own() {
    let per_record = TableOptions { posting: Posting::PerRecord, ..TableOptions::default() };
    let mut group = Group::in_sync(&[TWO, THREE], per_record);
    group.primary.ops = Ops::after(u32::MAX - 3);
    let mut records = Vec::new();
    for lsn in 11..=20 {
        append(&mut records, lsn, 0);
        group.post(&records, lsn);
        group.complete(TWO);
        group.complete(THREE);
        assert_eq!(group.primary.commit(Lsn(lsn)), Lsn(lsn));
    }
    assert!(group.writes.iter().all(|(_, op)| Ops::region_of(*op) == group.primary.config().region));
    let ops = Ops::after(u32::MAX);
    for region in [RegionId::FIRST, RegionId(1 << 24), RegionId::LAST] {
        assert_eq!(Ops::region_of(ops.next(region)), region);
    }
}
