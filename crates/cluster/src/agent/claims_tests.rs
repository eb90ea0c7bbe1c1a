//! A copy is deregistered by an operation of its own, whatever the coordinator answers.

use super::super::tests::{Fixture, primary};
use super::*;
use crate::{CoordinatorError, CoordinatorEvent};
use leeward_format::cluster::{CopyFound, ServerInfo, decode_value};
use leeward_format::{Epoch, Lsn};

const SERVER: &str = "/leeward/server/1";

fn copies(numbers: &[u32]) -> Vec<CopyFound> {
    numbers.iter().map(|number| CopyFound::new(RegionId(*number), Epoch(1), Lsn(1))).collect()
}

/// A server that has registered copies of regions 7, 8 and 9.
fn with_copies() -> Fixture {
    let (mut fixture, _) = primary();
    fixture.agent.me.copies = copies(&[7, 8, 9]);
    let info = encode_value(&fixture.agent.me);
    fixture.change(SERVER, Some(info));
    fixture
}

fn deregister(fixture: &mut Fixture, region: u32) {
    fixture.agent.deregister(fixture.now, RegionId(region));
    fixture.asked.extend(fixture.agent.take_ops());
}

fn registered(op: &CoordinatorOp) -> ServerInfo {
    let CoordinatorOp::Set { path, value, .. } = op else { panic!("{op:?}") };
    assert_eq!(path, SERVER);
    decode_value("server", value).expect("as it was encoded")
}

#[test]
fn a_copy_is_deregistered_once_the_coordinator_has_recorded_that() {
    let mut fixture = with_copies();
    deregister(&mut fixture, 8);
    // Requests that arrive in the meantime go together, also for a region that was not found at the start.
    deregister(&mut fixture, 7);
    deregister(&mut fixture, 30);
    assert!(fixture.agent.take_deregistered().is_empty());
    assert_eq!(registered(&fixture.asked[0].1).copies, copies(&[7, 9]));
    fixture.grant();
    assert_eq!(fixture.agent.take_deregistered(), [RegionId(8)].into());
    assert_eq!(registered(&fixture.asked[0].1).copies, copies(&[9]));
    fixture.grant();
    assert_eq!(fixture.agent.take_deregistered(), [RegionId(7), RegionId(30)].into());
    assert!(fixture.asked.is_empty());
}

#[test]
fn a_copy_is_registered_as_damaged_and_as_sound_again() {
    let mut fixture = with_copies();
    let copy = |region, lsn| CopyFound::new(RegionId(region), Epoch(1), lsn);
    assert!(!fixture.agent.says_damaged(RegionId(8)));
    fixture.agent.update_copy(fixture.now, copy(8, CopyFound::DAMAGED));
    fixture.agent.update_copy(fixture.now, copy(30, CopyFound::DAMAGED));
    fixture.asked.extend(fixture.agent.take_ops());
    assert!(fixture.agent.says_damaged(RegionId(8)) && fixture.agent.says_damaged(RegionId(30)));
    let first = registered(&fixture.asked[0].1).copies;
    assert_eq!(
        first,
        [copies(&[7]), vec![copy(8, CopyFound::DAMAGED)], copies(&[9])].concat(),
        "one operation at a time"
    );
    // The answer is lost: the last state is written in its place.
    fixture.agent.update_copy(fixture.now, copy(8, Lsn(70)));
    let (op, _) = fixture.ask();
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    fixture.pass_a_second();
    let second = registered(&fixture.asked[0].1).copies;
    let damaged = vec![copy(30, CopyFound::DAMAGED)];
    assert_eq!(second, [copies(&[7]), vec![copy(8, Lsn(70))], copies(&[9]), damaged].concat());
    fixture.grant();
    assert!(fixture.asked.is_empty() && !fixture.agent.says_damaged(RegionId(8)));
    assert!(fixture.agent.take_deregistered().is_empty());
}

#[test]
fn a_deregistration_is_repeated_until_it_is_answered() {
    let mut fixture = with_copies();
    deregister(&mut fixture, 8);
    let (op, _) = fixture.ask();
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    fixture.pass_a_second();
    let (op, _) = fixture.ask();
    fixture.tell(CoordinatorEvent::Down);
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Disconnected) });
    assert!(fixture.agent.take_deregistered().is_empty() && fixture.asked.is_empty());
    // The session ended with the connection: the server registers first, with the copies that it has.
    fixture.connect(&[]);
    let (id, create) = fixture.asked.remove(0);
    let CoordinatorOp::Create { value, .. } = &create else { panic!("{create:?}") };
    assert_eq!(decode_value::<ServerInfo>("server", value).expect("as encoded").copies, copies(&[7, 9]));
    assert!(fixture.agent.take_deregistered().is_empty());
    fixture.apply(create);
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id, result: Ok(version) });
    fixture.asked.retain(|(_, op)| matches!(op, CoordinatorOp::Set { .. }));
    fixture.grant();
    assert_eq!(fixture.agent.take_deregistered(), [RegionId(8)].into());
}
