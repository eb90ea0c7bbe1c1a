//! One agent. The tests feed it the events of the coordinator by hand.

use super::*;
use crate::SessionId;
use crate::master::{Balance, missing_in};
use crate::view::tests::member;
use leeward_format::cluster::{
    CopyFound, GroupConfig, Intent, RegionNumbers, TableOptions, TreeIdentity, encode_value,
};
use leeward_format::coordinator::Change;
use leeward_format::frame::PROTOCOL_VERSION;
use leeward_format::{ClusterId, Epoch, Incarnation, ServerId, VolumeId};

/// The lock of this server's data directory.
const LOCK: &str = "boot 8 15";

fn info(member: Member) -> ServerInfo {
    ServerInfo { lock: LOCK.into(), ..ServerInfo::of(member) }
}

const ME: u32 = 1;
const SERVER: &str = "/leeward/server/1";
const MASTER: &str = "/leeward/master";
const REGION: &str = "/leeward/region/1";
const PROTOCOL: &str = "/leeward/protocol";
const NUMBERS: &str = "/leeward/regions";
pub(crate) const CLUSTER: &str = "/leeward/cluster";

/// An agent in its second incarnation, and the coordinator's side of it.
pub(crate) struct Fixture {
    pub(crate) agent: Agent,
    pub(crate) now: Nanos,
    pub(crate) version: u64,
    pub(crate) asked: Vec<(u64, CoordinatorOp)>,
}

impl Fixture {
    /// Connected, and told that the tree is `tree`.
    pub(crate) fn new(tree: &[(&str, Option<bytes::Bytes>)]) -> Fixture {
        let mut fixture = Fixture::unconnected();
        fixture.connect(tree);
        fixture
    }

    pub(crate) fn unconnected() -> Fixture {
        let options = ClusterOptions { expected_servers: 2, ..ClusterOptions::default() };
        let agent = Agent::new(info(member(ME, 2)), options);
        Fixture { agent, now: Nanos::from_secs(5), version: 0, asked: Vec::new() }
    }

    pub(crate) fn tell(&mut self, event: CoordinatorEvent) {
        self.agent.handle(self.now, event);
        self.asked.extend(self.agent.take_ops());
    }

    pub(crate) fn change(&mut self, path: &str, value: Option<bytes::Bytes>) {
        self.version += 1;
        self.tell(CoordinatorEvent::Changed(vec![Change { path: path.into(), version: self.version, value }]));
    }

    /// Connected to a cluster with the same protocol version, and told that the rest of the tree is `tree`. Regions that it lacks
    /// have ended since the last time.
    pub(crate) fn connect(&mut self, tree: &[(&str, Option<bytes::Bytes>)]) {
        let identity = TreeIdentity { cluster: ClusterId(7), generation: 0 };
        let known = [(PROTOCOL, Some(encode_value(&PROTOCOL_VERSION))), (CLUSTER, Some(encode_value(&identity)))];
        let mut tree: Vec<_> = tree.iter().chain(&known).cloned().collect();
        if self.version > 0 && !tree.iter().any(|(path, _)| *path == NUMBERS) {
            let mut numbers = RegionNumbers::default();
            numbers.give(self.agent.view().regions().map(|config| config.region));
            tree.push((NUMBERS, Some(encode_value(&numbers))));
        }
        self.tell_tree(&tree);
    }

    pub(crate) fn tell_tree(&mut self, tree: &[(&str, Option<bytes::Bytes>)]) {
        self.tell(CoordinatorEvent::Up { session: SessionId(1) });
        for (path, value) in tree {
            self.change(path, value.clone());
        }
        assert!(self.asked.is_empty(), "nothing is asked for on half a tree");
        self.tell(CoordinatorEvent::Synced { version: self.version });
    }

    /// From now on it balances like this as a master.
    pub(crate) fn balance_with(&mut self, balance: Option<Balance>) {
        self.agent.options.balance = balance;
    }

    pub(crate) fn master(&self) -> &Master {
        &self.agent.master
    }

    pub(crate) fn me(&self) -> Member {
        self.agent.me.member
    }

    pub(crate) fn pass_a_second(&mut self) {
        self.pass(Nanos::from_secs(1));
    }

    pub(crate) fn pass(&mut self, time: Nanos) {
        self.now += time;
        self.agent.tick(self.now);
        self.asked.extend(self.agent.take_ops());
    }

    pub(crate) fn ask(&mut self) -> (u64, CoordinatorOp) {
        assert_eq!(self.asked.len(), 1, "{:?}", self.asked);
        self.asked.remove(0)
    }

    /// The coordinator does the operation: the change comes first, then the answer.
    pub(crate) fn grant(&mut self) {
        let (id, op) = self.ask();
        self.apply(op);
        self.tell(CoordinatorEvent::Reply { id, result: Ok(self.version) });
    }

    pub(crate) fn apply(&mut self, op: CoordinatorOp) {
        match op {
            CoordinatorOp::Create { path, value, .. } | CoordinatorOp::Set { path, value, .. } => {
                self.change(&path, Some(value))
            }
            CoordinatorOp::Delete { path, .. } => self.change(&path, None),
            CoordinatorOp::All(ops) => ops.into_iter().for_each(|op| self.apply(op)),
        }
    }

    pub(crate) fn outcomes(&mut self) -> Vec<(ProposalId, Outcome)> {
        self.agent.take_outcomes()
    }
}

fn config(epoch: u32, primary: Option<Member>, backups: &[Member], learners: &[Member]) -> GroupConfig {
    GroupConfig {
        epoch: Epoch(epoch),
        term: Epoch(epoch),
        primary,
        backups: backups.to_vec(),
        learners: learners.to_vec(),
        ..GroupConfig::unassigned(RegionId(1), "default")
    }
}

/// A cluster in which another server is master, and this one is registered and primary of region 1.
pub(crate) fn primary() -> (Fixture, GroupConfig) {
    let config = config(3, Some(member(ME, 2)), &[member(2, 1)], &[member(3, 1)]);
    let fixture = Fixture::new(&[
        (SERVER, Some(encode_value(&info(member(ME, 2))))),
        ("/leeward/server/2", Some(encode_value(&info(member(2, 1))))),
        ("/leeward/server/3", Some(encode_value(&info(member(3, 1))))),
        (MASTER, Some(encode_value(&member(2, 1)))),
        ("/leeward/table/default", Some(encode_value(&TableOptions::default()))),
        (REGION, Some(encode_value(&config))),
    ]);
    (fixture, config)
}

fn is_create(op: &CoordinatorOp, at: &str) -> bool {
    matches!(op, CoordinatorOp::Create { path, ephemeral: true, .. } if path == at)
}

#[test]
fn registers_then_campaigns() {
    let mut fixture = Fixture::new(&[]);
    assert!(is_create(&fixture.asked[0].1, SERVER));
    assert!(!fixture.agent.is_registered());
    fixture.grant();
    assert!(fixture.agent.is_registered() && is_create(&fixture.asked[0].1, MASTER));
    assert!(!fixture.agent.is_master());
    fixture.grant();
    assert!(fixture.agent.is_master() && fixture.asked.is_empty());
    // The master's path vanishes with the session of its holder: the agent campaigns again.
    fixture.change(MASTER, None);
    assert!(!fixture.agent.is_master() && is_create(&fixture.asked[0].1, MASTER));
}

#[test]
fn an_earlier_process_that_held_the_same_lock_is_removed_at_once() {
    let old = member(ME, 1);
    let mut fixture = Fixture::new(&[(SERVER, Some(encode_value(&info(old)))), (MASTER, Some(encode_value(&old)))]);
    let removal = CoordinatorOp::Delete { path: SERVER.into(), version: Some(1) };
    assert_eq!(fixture.asked[0].1, removal);
    fixture.grant();
    fixture.grant();
    assert_eq!(fixture.asked[0].1, CoordinatorOp::Delete { path: MASTER.into(), version: Some(2) });
    fixture.grant();
    fixture.grant();
    assert!(fixture.agent.is_master());
}

#[test]
fn a_process_that_may_still_run_is_left_alone() {
    let me = member(ME, 2);
    let other_volume = |incarnation| Member { volume: VolumeId(77), incarnation: Incarnation(incarnation), ..me };
    // An earlier process that held another lock: this is a copy of its volume, or its machine was started anew.
    let copied = [(member(ME, 1), "boot 8 16"), (member(ME, 1), "reboot 8 15"), (member(ME, 1), "")];
    let others = [member(ME, 3), other_volume(1), other_volume(2), other_volume(3)].map(|holder| (holder, LOCK));
    for (holder, lock) in others.into_iter().chain(copied) {
        let address = "host:1".to_owned();
        let held = ServerInfo { native_address: address.clone(), lock: lock.into(), ..info(holder) };
        let held = [(SERVER, Some(encode_value(&held))), (MASTER, Some(encode_value(&holder)))];
        let mut fixture = Fixture::new(&held);
        fixture.pass(Nanos::from_secs(9));
        assert!(fixture.asked.is_empty() && !fixture.agent.is_registered());
        assert_eq!(
            fixture.agent.not_joined(),
            Some(NotJoined::DuplicateId { holder, address, is_copy: holder.has_volume_of(&me) })
        );
        // Its session ends: this process is the server now.
        fixture.change(SERVER, None);
        assert!(is_create(&fixture.asked[0].1, SERVER));
        fixture.grant();
        assert_eq!(fixture.agent.not_joined(), None);
    }
}

#[test]
fn a_loss_is_accepted_only_for_a_server_that_the_region_waits_for() {
    let dead = Member { volume: VolumeId(77), incarnation: Incarnation(9), ..member(2, 9) };
    let waiting = config(3, Some(dead), &[member(3, 1)], &[]);
    let mut fixture = Fixture::new(&[
        (SERVER, Some(encode_value(&info(member(ME, 2))))),
        ("/leeward/server/2", Some(encode_value(&info(member(2, 1))))),
        ("/leeward/server/3", Some(encode_value(&info(member(3, 2))))),
        (MASTER, Some(encode_value(&member(2, 1)))),
        (REGION, Some(encode_value(&waiting))),
    ]);
    let now = fixture.now;
    let mut refuse = |region, server| fixture.agent.accept_loss(now, RegionId(region), ServerId(server)).unwrap_err();
    assert_eq!(refuse(9, 2), "there is no region 9");
    assert_eq!(refuse(1, 3), "region 1 does not wait for server 3: it waits for server 2");
    let id = fixture.agent.accept_loss(now, RegionId(1), ServerId(2)).unwrap();
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let made = fixture.agent.view().region(RegionId(1)).unwrap().clone();
    assert_eq!((made.epoch, made.primary, &made.backups[..]), (Epoch(4), None, &[member(3, 1)][..]));
    let again = fixture.agent.accept_loss(now, RegionId(1), ServerId(2)).unwrap_err();
    assert_eq!(again, "region 1 does not wait for server 2: it waits for no server");
}

#[test]
fn with_a_quorum_all_members_that_are_left_after_a_loss_are_needed() {
    let dead = Member { volume: VolumeId(77), incarnation: Incarnation(9), ..member(2, 9) };
    let table = TableOptions { quorum: Some(2), ..TableOptions::default() };
    let mut fixture = Fixture::new(&[
        (SERVER, Some(encode_value(&info(member(ME, 2))))),
        ("/leeward/server/2", Some(encode_value(&info(member(2, 1))))),
        ("/leeward/server/3", Some(encode_value(&info(member(3, 2))))),
        (MASTER, Some(encode_value(&member(2, 1)))),
        ("/leeward/table/default", Some(encode_value(&table))),
        (REGION, Some(encode_value(&config(3, Some(dead), &[member(3, 1), member(ME, 1)], &[])))),
    ]);
    fixture.agent.accept_loss(fixture.now, RegionId(1), ServerId(2)).unwrap();
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    let made = fixture.agent.view().region(RegionId(1)).unwrap().clone();
    assert_eq!(
        (made.primary, made.backups.len(), made.recovery_quorum),
        (None, 2, 2),
        "any of them may have an acknowledged write"
    );
}

#[test]
fn without_a_member_in_sync_the_learner_with_the_longest_copy_is_what_is_left_after_a_loss() {
    let dead = Member { volume: VolumeId(77), incarnation: Incarnation(9), ..member(2, 9) };
    let mut fixture = Fixture::new(&[
        (SERVER, Some(encode_value(&info(member(ME, 2))))),
        ("/leeward/server/2", Some(encode_value(&info(member(2, 1))))),
        (MASTER, Some(encode_value(&member(2, 1)))),
        ("/leeward/table/default", Some(encode_value(&TableOptions::default()))),
        (REGION, Some(encode_value(&config(3, Some(dead), &[], &[member(3, 1), member(ME, 2)])))),
    ]);
    fixture.agent.accept_loss(fixture.now, RegionId(1), ServerId(2)).unwrap();
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    let made = fixture.agent.view().region(RegionId(1)).unwrap().clone();
    assert_eq!((made.primary, &made.backups[..]), (None, &[member(3, 1), member(ME, 2)][..]));
    assert_eq!((made.learners.len(), made.recovery_quorum), (0, 2), "each says how far its copy reaches");
    // Server 3 is not there. Its copy may be the longest, so that it must be given up too.
    fixture.agent.accept_loss(fixture.now, RegionId(1), ServerId(3)).unwrap();
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    let made = fixture.agent.view().region(RegionId(1)).unwrap().clone();
    assert_eq!((&made.backups[..], made.recovery_quorum), (&[member(ME, 2)][..], 1));
}

#[test]
fn after_a_loss_a_learner_with_a_damaged_copy_is_given_up_by_itself() {
    let dead = Member { volume: VolumeId(77), incarnation: Incarnation(9), ..member(2, 9) };
    let copy = CopyFound::new(RegionId(1), Epoch(3), CopyFound::DAMAGED);
    let damaged = encode_value(&ServerInfo { copies: vec![copy], ..info(member(3, 1)) });
    let mut fixture = Fixture::new(&[
        (SERVER, Some(encode_value(&info(member(ME, 2))))),
        ("/leeward/server/2", Some(encode_value(&info(member(2, 1))))),
        ("/leeward/server/3", Some(damaged)),
        (MASTER, Some(encode_value(&member(2, 1)))),
        ("/leeward/table/default", Some(encode_value(&TableOptions::default()))),
        (REGION, Some(encode_value(&config(3, Some(dead), &[], &[member(3, 1), member(ME, 2)])))),
    ]);
    let mut give_up = |server| {
        fixture.agent.accept_loss(fixture.now, RegionId(1), ServerId(server)).unwrap();
        fixture.asked.extend(fixture.agent.take_ops());
        fixture.grant();
        let made = fixture.agent.view().region(RegionId(1)).unwrap().clone();
        let missing = missing_in(fixture.agent.view(), &made);
        (made, missing.into_iter().map(|one| (one.member.server.0, one.is_damaged)).collect::<Vec<_>>())
    };
    let (made, missing) = give_up(2);
    assert_eq!((&made.backups[..], made.recovery_quorum), (&[member(3, 1), member(ME, 2)][..], 2));
    assert_eq!(missing, [(3, true)], "it may be the longest, and nothing says so");
    let (made, missing) = give_up(3);
    assert_eq!((&made.backups[..], made.recovery_quorum), (&[member(ME, 2)][..], 1));
    assert!(missing.is_empty());
}

#[test]
fn a_lost_race_is_not_run_again_until_the_path_changes_or_time_passes() {
    let mut fixture = Fixture::new(&[(SERVER, Some(encode_value(&info(member(ME, 2)))))]);
    let (id, op) = fixture.ask();
    assert!(is_create(&op, MASTER));
    // This version cannot read the value of the other process: the view shows no holder.
    fixture.change(MASTER, Some(bytes::Bytes::new()));
    fixture.tell(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Exists { version: fixture.version }) });
    assert!(fixture.asked.is_empty());
    fixture.pass(Nanos::from_millis(199));
    assert!(fixture.asked.is_empty());
    fixture.pass(Nanos::from_millis(1));
    assert!(is_create(&fixture.asked[0].1, MASTER));
}

#[test]
fn assignment_waits_for_the_expected_servers_or_the_grace() {
    let tree = [
        (SERVER, Some(encode_value(&info(member(ME, 2))))),
        (MASTER, Some(encode_value(&member(ME, 2)))),
        ("/leeward/table/default", Some(encode_value(&TableOptions::default()))),
        (REGION, Some(encode_value(&config(0, None, &[], &[])))),
    ];
    let mut alone = Fixture::new(&tree);
    assert!(alone.asked.is_empty());
    alone.pass(Nanos::from_millis(1_999));
    assert!(alone.asked.is_empty());
    alone.pass(Nanos::from_millis(1));
    assert!(matches!(&alone.ask().1, CoordinatorOp::Set { path, version: 4, .. } if path == REGION));

    let mut joined = Fixture::new(&tree);
    joined.change("/leeward/server/2", Some(encode_value(&info(member(2, 1)))));
    joined.grant();
    let region = joined.agent.view().region(RegionId(1)).unwrap();
    assert_eq!((region.epoch, region.primary.is_some(), region.backups.len()), (Epoch(1), true, 1));
    assert!(joined.asked.is_empty(), "decided once");
}

#[test]
fn a_proposal_that_wins_is_accepted_once_the_view_holds_it() {
    let (mut fixture, old) = primary();
    let new = old.with_backup(member(3, 1));
    let id = fixture.agent.propose(fixture.now, old, new.clone());
    fixture.asked.extend(fixture.agent.take_ops());
    let (op_id, op) = fixture.ask();
    assert_eq!(op, CoordinatorOp::Set { path: REGION.into(), value: encode_value(&new), version: 6 });
    // Even if the answer overtook the change, the outcome would not.
    fixture.tell(CoordinatorEvent::Reply { id: op_id, result: Ok(fixture.version + 1) });
    assert!(fixture.outcomes().is_empty());
    fixture.change(REGION, Some(encode_value(&new)));
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert_eq!(fixture.agent.view().region(RegionId(1)), Some(&new));
}

#[test]
fn a_proposal_on_old_knowledge_is_rejected() {
    let (mut fixture, old) = primary();
    let first = fixture.agent.propose(fixture.now, old.clone(), old.without(member(2, 1)));
    let second = fixture.agent.propose(fixture.now, old.clone(), old.with_backup(member(3, 1)));
    fixture.asked.extend(fixture.agent.take_ops());
    let (id, _) = fixture.ask(); // At most one operation a path: the second waits.
    let other = GroupConfig { epoch: Epoch(4), term: Epoch(4), primary: Some(member(2, 1)), backups: vec![], ..old };
    fixture.change(REGION, Some(encode_value(&other)));
    fixture.tell(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Stale { version: 7 }) });
    assert_eq!(fixture.outcomes(), [(first, Outcome::Rejected), (second, Outcome::Rejected)]);
    assert!(fixture.asked.is_empty());
}

#[test]
fn after_a_lost_connection_the_tree_shows_the_outcome_of_a_proposal() {
    for made in [true, false] {
        let (mut fixture, old) = primary();
        let new = old.without(member(2, 1));
        let id = fixture.agent.propose(fixture.now, old.clone(), new.clone());
        fixture.asked.extend(fixture.agent.take_ops());
        let (op, _) = fixture.ask();
        fixture.tell(CoordinatorEvent::Down);
        fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Disconnected) });
        assert!(fixture.outcomes().is_empty() && fixture.asked.is_empty());
        let config = if made { &new } else { &old };
        fixture.connect(&[
            (SERVER, Some(encode_value(&info(member(ME, 2))))),
            (MASTER, Some(encode_value(&member(2, 1)))),
            (REGION, Some(encode_value(config))),
        ]);
        if made {
            assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
        } else {
            assert!(fixture.outcomes().is_empty());
            fixture.grant();
            assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
        }
    }
}

#[test]
fn a_master_does_not_decide_on_a_region_that_its_own_primary_proposes() {
    let (mut fixture, old) = primary();
    fixture.agent.propose(fixture.now, old.clone(), old.without(member(2, 1)));
    fixture.asked.extend(fixture.agent.take_ops());
    assert_eq!(fixture.asked.len(), 1);
    // The backup dies, and the master with it: this server takes over while its proposal is on its way.
    fixture.change("/leeward/server/2", None);
    fixture.change(MASTER, Some(encode_value(&member(ME, 2))));
    assert!(fixture.agent.is_master());
    fixture.grant();
    assert!(fixture.asked.is_empty(), "the proposal has changed all that had to change");
}

#[test]
#[should_panic(expected = "a primary does not propose another")]
fn a_primary_cannot_propose_another_primary() {
    let (mut fixture, old) = primary();
    let new = GroupConfig { primary: Some(member(2, 1)), ..old.without(member(2, 1)) };
    fixture.agent.propose(fixture.now, old, new);
}

#[test]
fn a_server_that_steps_aside_gives_up_its_paths_until_it_is_called_back() {
    let me = member(ME, 2);
    let held = [(SERVER, Some(encode_value(&info(me)))), (MASTER, Some(encode_value(&me)))];
    let mut fixture = Fixture::new(&held);
    fixture.asked.clear();
    fixture.agent.step_aside(fixture.now, true);
    fixture.asked.extend(fixture.agent.take_ops());
    let asked = std::mem::take(&mut fixture.asked);
    let is_delete = |op: &CoordinatorOp, of: &str| matches!(op, CoordinatorOp::Delete { path, .. } if path == of);
    assert!(is_delete(&asked[0].1, SERVER) && is_delete(&asked[1].1, MASTER) && asked.len() == 2, "{asked:?}");
    for (id, op) in asked {
        fixture.apply(op);
        fixture.tell(CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    }
    fixture.pass(Nanos::from_secs(9));
    assert!(fixture.asked.is_empty(), "it does not come back by itself: {:?}", fixture.asked);
    fixture.agent.step_aside(fixture.now, false);
    let (_, back) = fixture.agent.take_ops().pop().expect("it registers");
    assert!(matches!(back, CoordinatorOp::Create { path, ephemeral: true, .. } if path == SERVER));
}

#[test]
fn a_departing_server_announces_it_and_cancels_that_when_it_is_back() {
    const INTENT: &str = "/leeward/intent/1";
    let (mut fixture, _) = primary();
    fixture.agent.depart(fixture.now);
    fixture.asked.extend(fixture.agent.take_ops());
    let value = encode_value(&Intent::Restart);
    let op = CoordinatorOp::Create { path: INTENT.into(), value: value.clone(), ephemeral: false };
    assert_eq!(fixture.asked[0].1, op);
    fixture.grant();
    fixture.pass(Nanos::from_secs(1));
    assert!(fixture.asked.is_empty(), "it is still about to end");
    // Its next incarnation.
    let mut fixture =
        Fixture::new(&[(SERVER, None), (MASTER, Some(encode_value(&member(2, 1)))), (INTENT, Some(value))]);
    assert!(is_create(&fixture.asked[0].1, SERVER));
    fixture.grant();
    let (_, op) = fixture.ask();
    assert!(matches!(op, CoordinatorOp::Delete { path, .. } if path == INTENT));
}

#[test]
fn a_drained_server_that_restarts_stays_drained() {
    let drained = encode_value(&Intent::Leave);
    let mut fixture =
        Fixture::new(&[(MASTER, Some(encode_value(&member(2, 1)))), ("/leeward/intent/1", Some(drained))]);
    fixture.grant();
    assert!(fixture.agent.is_registered() && fixture.asked.is_empty());
}

#[test]
fn a_master_removes_leftover_regions_of_tables_and_nothing_else() {
    let (mut fixture, _) = primary();
    let leftover = |number: u32, table: &str| {
        let config =
            GroupConfig { start: format!("{number}").into(), ..GroupConfig::unassigned(RegionId(number), table) };
        (format!("/leeward/region/{number}"), Some(encode_value(&config)))
    };
    fixture.change("/leeward/making/new", Some(encode_value(&member(2, 1))));
    for (path, value) in [leftover(2, "old"), leftover(3, "new"), leftover(4, "old")] {
        fixture.change(&path, value);
    }
    assert!(fixture.asked.is_empty(), "it is not the master");
    let removed = |op: &CoordinatorOp| match op {
        CoordinatorOp::All(ops) => ops
            .iter()
            .map(|op| match op {
                CoordinatorOp::Delete { path, version: Some(_) } => path.replace("/leeward/region/", ""),
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    fixture.change(MASTER, Some(encode_value(&member(ME, 2))));
    let (id, op) = fixture.ask();
    assert_eq!(removed(&op), ["2", "4"]);
    // One of them has changed in the meantime: the master looks again.
    let (path, value) = leftover(4, "old");
    fixture.change(&path, value);
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Stale { version }) });
    assert_eq!(removed(&fixture.asked[0].1), ["2", "4"]);
    fixture.grant();
    assert!(fixture.asked.is_empty());
    // The regions of an unreadable table are no leftovers.
    fixture.change("/leeward/table/new", Some(bytes::Bytes::new()));
    fixture.change("/leeward/making/new", None);
    assert!(fixture.asked.is_empty());
    fixture.change("/leeward/making/new", Some(encode_value(&member(2, 1))));
    fixture.change("/leeward/table/new", None);
    assert!(fixture.asked.is_empty());
    // The process that was making the other table is gone, and the table is not there.
    fixture.change("/leeward/making/new", None);
    assert_eq!(removed(&fixture.asked[0].1), ["3"]);
    fixture.grant();
    assert!(fixture.agent.view().regions().all(|config| config.region == RegionId(1)) && fixture.asked.is_empty());
}
