//! An operator has a tree restored that was put back to an older state, or lost, while the server was running.

use super::super::tests::{CLUSTER, Fixture, primary};
use super::*;
use crate::view::tests::member;
use crate::{CoordinatorError, CoordinatorEvent, NotJoined, TreeRefusal};
use leeward_format::cluster::{CopyFound, GroupConfig, ServerInfo, TableOptions, TreeIdentity, encode_value};
use leeward_format::{ClusterId, Epoch, Lsn, RegionId};

const REGION: &str = "/leeward/region/1";
const SERVER: &str = "/leeward/server/1";

/// The identity of a tree that an operator has restored so often.
fn restored(generation: u32) -> Option<bytes::Bytes> {
    Some(encode_value(&TreeIdentity { cluster: ClusterId(7), generation }))
}

/// What a server registers that found a copy of the region of this term and last LSN.
fn with_copy(server: u32, incarnation: u64, term: u32, lsn: u64) -> Option<bytes::Bytes> {
    let copies = vec![CopyFound::new(RegionId(1), Epoch(term), Lsn(lsn))];
    Some(encode_value(&ServerInfo { copies, ..ServerInfo::of(member(server, incarnation)) }))
}

/// The configuration of a region of which only copies are known.
fn only_copies() -> GroupConfig {
    GroupConfig { epoch: Epoch(5), ..GroupConfig::unassigned(RegionId(1), "default") }
}

fn written<T: serde::de::DeserializeOwned>(op: &CoordinatorOp, at: &str) -> T {
    let CoordinatorOp::Set { path, value, .. } = op else { panic!("{op:?}") };
    assert_eq!(path, at);
    leeward_format::cluster::decode_value("value", value).expect("as it was encoded")
}

/// A server whose coordinator was put back to a state before the present configuration.
fn put_back() -> (Fixture, GroupConfig) {
    let (mut fixture, known) = primary();
    let older = GroupConfig { epoch: Epoch(known.epoch.0 - 1), ..known.clone() };
    fixture.tell(CoordinatorEvent::Down);
    fixture.asked.clear();
    fixture.connect(&[(REGION, Some(encode_value(&older)))]);
    (fixture, known)
}

/// An operator has the tree restored. What was asked for before is left out.
fn restore(fixture: &mut Fixture, confirms: bool) -> ProposalId {
    let id = fixture.agent.restore_tree(fixture.now, confirms).unwrap();
    fixture.asked = fixture.agent.take_ops();
    id
}

#[test]
fn a_server_that_refuses_a_tree_registers_and_asks_for_nothing_else() {
    let (mut fixture, known) = put_back();
    let (_, op) = fixture.ask();
    assert!(
        matches!(&op, CoordinatorOp::Create { path, ephemeral: true, .. } if path == "/leeward/server/1"),
        "{op:?}"
    );
    let not_joined = fixture.agent.not_joined();
    let older = TreeRefusal::Older { region: RegionId(1), found: Epoch(known.epoch.0 - 1), known: known.epoch };
    assert_eq!(not_joined, Some(NotJoined::Refuses(older)));
    fixture.apply(op);
    fixture.pass_a_second();
    assert!(fixture.asked.is_empty(), "it neither campaigns nor proposes: {:?}", fixture.asked);
    assert!(!fixture.agent.is_master() && !fixture.agent.view().is_synced());
    assert_eq!(fixture.agent.view().region(RegionId(1)), Some(&known), "it goes on as it was");
    let table = leeward_format::table::NewTable::new(Default::default(), Vec::new());
    assert!(fixture.agent.create_table(fixture.now, table).unwrap_err().contains("put back to an older state"));
}

#[test]
fn a_restoration_adds_what_is_lacking_and_confirms_at_the_end() {
    let (mut fixture, known) = put_back();
    let only_adds = restore(&mut fixture, false);
    fixture.grant();
    assert_eq!(fixture.outcomes(), []);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(only_adds, Outcome::Accepted)], "the coordinator has registered it since");
    assert!(!fixture.agent.view().is_synced(), "others may know more");
    let confirms = restore(&mut fixture, true);
    // Another server was faster with the same.
    let (id, op) = fixture.ask();
    fixture.tell(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Missing) });
    fixture.pass_a_second();
    let (id, again) = fixture.ask();
    assert_eq!(op, again);
    fixture.apply(again);
    fixture.tell(CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    assert_eq!(fixture.outcomes(), [(confirms, Outcome::Accepted)]);
    assert_eq!((fixture.agent.view().is_synced(), fixture.agent.not_joined()), (true, None), "it registered before");
    assert_eq!(fixture.agent.view().region(RegionId(1)), Some(&known));
}

/// Its knowledge may be less than that of servers which refuse the tree.
#[test]
fn a_server_that_takes_the_tree_does_not_say_that_it_is_complete() {
    let (mut fixture, _) = primary();
    let confirms = restore(&mut fixture, true);
    let (_, op) = &fixture.asked[0];
    assert!(matches!(op, CoordinatorOp::Set { path, .. } if path == SERVER), "{op:?}");
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(confirms, Outcome::Accepted)]);
}

/// A server that has not noticed that the coordinator was replaced sees a tree that lacks nothing.
#[test]
fn a_server_has_added_what_it_knows_only_once_the_coordinator_has_answered() {
    let (mut fixture, known) = primary();
    let adds = restore(&mut fixture, false);
    let (_, op) = fixture.ask();
    assert!(matches!(&op, CoordinatorOp::Set { path, .. } if path == SERVER), "{op:?}");
    assert_eq!(fixture.outcomes(), []);
    let older = GroupConfig { epoch: Epoch(known.epoch.0 - 1), ..known.clone() };
    fixture.tell(CoordinatorEvent::Down);
    fixture.connect(&[(REGION, Some(encode_value(&older)))]);
    let registered = |op: &CoordinatorOp| matches!(op, CoordinatorOp::Create { path, .. } if path == SERVER);
    fixture.asked.retain(|(_, op)| !registered(op));
    let (id, op) = fixture.ask();
    let CoordinatorOp::All(ops) = &op else { panic!("{op:?}") };
    assert!(ops.iter().any(|op| matches!(op, CoordinatorOp::Set { path, value, .. }
        if path == REGION && *value == encode_value(&known))));
    fixture.apply(op);
    fixture.tell(CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(adds, Outcome::Accepted)]);
}

#[test]
fn a_master_that_knows_less_decides_nothing_about_what_others_have_newer() {
    let (mut fixture, known) = primary();
    let newer = CopyFound { epoch: known.epoch.next(), ..CopyFound::new(RegionId(1), known.term, Lsn(1)) };
    let other = ServerInfo { copies: vec![newer], ..ServerInfo::of(member(3, 1)) };
    fixture.change("/leeward/server/3", Some(encode_value(&other)));
    fixture.pass_a_second();
    let decided = fixture.asked.iter().any(|(_, op)| matches!(op, CoordinatorOp::Set { path, .. } if path == REGION));
    assert!(!decided, "{:?}", fixture.asked);
}

/// A master that has registered since the tree was restored, and has a part of a region. What the tree says of server 2 is of the
/// time that the coordinator was put back to, when that server had no copy.
fn master_that_has_not_heard_server_2() -> Fixture {
    let mut fixture = Fixture::new(&[
        (SERVER, with_copy(1, 2, 1, 505)),
        ("/leeward/server/2", Some(encode_value(&ServerInfo::of(member(2, 1))))),
        ("/leeward/table/default", Some(encode_value(&TableOptions::default()))),
        (REGION, Some(encode_value(&only_copies()))),
    ]);
    fixture.change(CLUSTER, restored(1));
    let (_, op) = fixture.asked.pop().expect("it campaigns, and registers anew itself");
    assert_eq!(written::<ServerInfo>(&op, SERVER).member, fixture.me());
    fixture.apply(op);
    fixture.grant();
    assert!(fixture.agent.is_master());
    fixture
}

#[test]
fn a_master_decides_nothing_until_all_servers_have_registered_since_the_restoration() {
    let mut fixture = master_that_has_not_heard_server_2();
    fixture.pass_a_second();
    assert!(fixture.asked.is_empty(), "{:?}", fixture.asked);
    // Server 2 runs on and has all, or its session has ended and another process has registered.
    fixture.change("/leeward/server/2", with_copy(2, 1, 2, CopyFound::WHOLE.0));
    let (_, op) = fixture.ask();
    assert_eq!(written::<GroupConfig>(&op, REGION).primary, Some(member(2, 1)));
}

/// Servers add what they know one after the other. The tree has registrations of its own time: one of a server that is not back
/// yet may be among them.
#[test]
fn a_region_that_a_server_has_restored_from_its_copy_waits_until_the_tree_is_confirmed() {
    let mut fixture = master_that_has_not_heard_server_2();
    let region_of = |fixture: &Fixture| {
        let op = fixture.asked.iter().find(|(_, op)| matches!(op, CoordinatorOp::Set { path, .. } if path == REGION));
        op.map(|(_, op)| written::<GroupConfig>(op, REGION).primary)
    };
    let newer = GroupConfig { epoch: Epoch(6), restored_in: Some(1), ..only_copies() };
    fixture.change(REGION, Some(encode_value(&newer)));
    fixture.change("/leeward/server/2", with_copy(2, 1, 2, CopyFound::WHOLE.0));
    fixture.pass_a_second();
    assert_eq!(region_of(&fixture), None, "a third server may have a better copy");
    assert!(fixture.asked.is_empty(), "{:?}", fixture.asked);
    // A server that takes the tree confirms it, too: the one that restored the region may not be back.
    restore(&mut fixture, true);
    let (_, op) = fixture.asked.pop().expect("it confirms");
    let CoordinatorOp::All(ops) = &op else { panic!("{op:?}") };
    assert_eq!(written::<TreeIdentity>(&ops[0], CLUSTER).generation, 2);
    fixture.change(CLUSTER, restored(2));
    fixture.change(SERVER, Some(encode_value(&ServerInfo::of(fixture.me()))));
    // Seed 46547: what others write to it after that, like a request that is withdrawn, does not make it wait again.
    fixture.change(REGION, Some(encode_value(&GroupConfig { epoch: Epoch(7), ..newer })));
    fixture.change("/leeward/server/2", with_copy(2, 1, 2, CopyFound::WHOLE.0));
    fixture.pass_a_second();
    assert_eq!(region_of(&fixture), Some(Some(member(2, 1))));
}

/// Runs only where bugs can be planted. It breaks the rule: the region goes to the server that has a part of it.
#[cfg(feature = "planted-bugs")]
#[test]
fn the_planted_bug_decides_before_all_servers_have_registered() {
    use leeward_platform::planted::{Bug, plant};
    plant(Some(Bug::DecideUnheard));
    let mut fixture = master_that_has_not_heard_server_2();
    fixture.pass_a_second();
    plant(None);
    let asked = fixture.asked.iter().find(|(_, op)| matches!(op, CoordinatorOp::Set { path, .. } if path == REGION));
    let (_, op) = asked.expect("it decides");
    assert_eq!(written::<GroupConfig>(op, REGION).primary, Some(fixture.me()));
}

#[test]
fn a_server_registers_anew_once_after_each_restoration() {
    let (mut fixture, known) = primary();
    assert!(fixture.asked.is_empty());
    for generation in [1, 2] {
        fixture.change(CLUSTER, restored(generation));
        let copy = written::<ServerInfo>(&fixture.asked[0].1, SERVER).copies[0];
        assert_eq!((copy.term, copy.lsn, copy.epoch), (known.term, CopyFound::WHOLE, known.epoch));
        fixture.grant();
        fixture.pass_a_second();
        assert!(fixture.asked.is_empty());
    }
    // Also in a tree that it refuses.
    let (mut fixture, _) = put_back();
    fixture.grant();
    fixture.change(CLUSTER, restored(1));
    assert!(!fixture.agent.view().is_synced());
    let (_, op) = fixture.ask();
    written::<ServerInfo>(&op, SERVER);
}

/// A server that runs on has more of a region than it found when it started.
#[test]
fn what_a_server_knew_of_its_copies_counts_where_only_copies_are_known() {
    let (mut fixture, known) = primary();
    fixture.tell(CoordinatorEvent::Down);
    fixture.connect(&[
        ("/leeward/table/default", Some(encode_value(&TableOptions::default()))),
        (REGION, Some(encode_value(&only_copies()))),
    ]);
    assert!(fixture.agent.view().is_synced() && only_copies().epoch > known.epoch);
    let (_, op) = fixture.ask();
    let CoordinatorOp::Create { path, value, .. } = &op else { panic!("{op:?}") };
    let info: ServerInfo = leeward_format::cluster::decode_value("server", value).expect("as it was encoded");
    let copy = info.copies[0];
    assert_eq!((&path[..], copy.term, copy.lsn, copy.epoch), (SERVER, known.term, CopyFound::WHOLE, known.epoch));
}
