//! An operator has a tree restored that was put back to an older state, or lost, while the server was running.

use super::super::tests::{Fixture, primary};
use super::*;
use crate::{CoordinatorError, CoordinatorEvent, NotJoined, TreeRefusal};
use leeward_format::Epoch;
use leeward_format::RegionId;
use leeward_format::cluster::{CopyFound, GroupConfig, ServerInfo, encode_value};

const REGION: &str = "/leeward/region/1";

/// A server whose coordinator was put back to a state before the present configuration.
fn put_back() -> (Fixture, GroupConfig) {
    let (mut fixture, known) = primary();
    let older = GroupConfig { epoch: Epoch(known.epoch.0 - 1), ..known.clone() };
    fixture.tell(CoordinatorEvent::Down);
    fixture.asked.clear();
    fixture.connect(&[(REGION, Some(encode_value(&older)))]);
    (fixture, known)
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
    fixture.asked.clear();
    let only_adds = fixture.agent.restore_tree(fixture.now, false).unwrap();
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(only_adds, Outcome::Accepted)]);
    assert!(!fixture.agent.view().is_synced(), "others may know more");
    let confirms = fixture.agent.restore_tree(fixture.now, true).unwrap();
    fixture.asked.extend(fixture.agent.take_ops());
    // Another server was faster with the same.
    let (id, op) = fixture.ask();
    fixture.tell(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Missing) });
    fixture.pass_a_second();
    let (id, again) = fixture.ask();
    assert_eq!(op, again);
    fixture.apply(again);
    fixture.tell(CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    assert_eq!(fixture.outcomes(), [(confirms, Outcome::Accepted)]);
    assert!(fixture.agent.view().is_synced() && fixture.agent.not_joined().is_some());
    assert_eq!(fixture.agent.view().region(RegionId(1)), Some(&known));
}

#[test]
fn a_master_that_knows_less_decides_nothing_about_what_others_have_newer() {
    let (mut fixture, known) = primary();
    let newer =
        CopyFound { epoch: known.epoch.next(), ..CopyFound::new(RegionId(1), known.term, leeward_format::Lsn(1)) };
    let other = ServerInfo { copies: vec![newer], ..ServerInfo::of(crate::view::tests::member(3, 1)) };
    fixture.change("/leeward/server/3", Some(encode_value(&other)));
    fixture.pass_a_second();
    let decided = fixture.asked.iter().any(|(_, op)| matches!(op, CoordinatorOp::Set { path, .. } if path == REGION));
    assert!(!decided, "{:?}", fixture.asked);
}
