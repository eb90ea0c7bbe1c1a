//! Options of a table change once, whichever process is faster and whenever the coordinator stops answering.

use super::super::tests::{Fixture, primary};
use super::*;
use crate::{CoordinatorError, CoordinatorEvent};
use leeward_format::cluster::{Acknowledge, BackupMode, DesiredState, GroupConfig, TableOptions};

fn build_index() -> TableChange {
    TableChange { backups: Some(BackupMode::BuildIndex), ..TableChange::default() }
}

fn alter(fixture: &mut Fixture, change: TableChange) -> ProposalId {
    let id = fixture.agent.alter_table(fixture.now, change).expect("it may be tried");
    fixture.asked.extend(fixture.agent.take_ops());
    id
}

fn options(fixture: &Fixture) -> TableOptions {
    fixture.agent.view().table("default").expect("it is there").clone()
}

#[test]
fn a_change_is_a_compare_and_set_of_the_options() {
    let (mut fixture, _) = primary();
    let before = options(&fixture);
    let version = fixture.agent.view().version_of(&ClusterPath::Table("default".into()));
    let id = alter(&mut fixture, build_index());
    let wanted = TableOptions { backups: BackupMode::BuildIndex, ..before };
    let (path, value) = ("/leeward/table/default".to_owned(), encode_value(&wanted));
    let version = version.expect("the table has one");
    assert_eq!(fixture.asked[0].1, CoordinatorOp::Set { path, value, version });
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert_eq!(options(&fixture), wanted);
    let again = alter(&mut fixture, build_index());
    assert_eq!(fixture.outcomes(), [(again, Outcome::Accepted)], "nothing is left to ask for");
    assert!(fixture.asked.is_empty());
}

#[test]
fn the_second_change_applies_to_the_result_of_the_first() {
    let (mut fixture, _) = primary();
    let id = alter(&mut fixture, build_index());
    let (op, _) = fixture.ask();
    let other = TableOptions { acknowledge: Acknowledge::LastFlush, ..options(&fixture) };
    fixture.change("/leeward/table/default", Some(encode_value(&other)));
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    assert!(fixture.outcomes().is_empty());
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert_eq!(options(&fixture), TableOptions { backups: BackupMode::BuildIndex, ..other });
}

#[test]
fn after_a_lost_connection_a_change_is_repeated() {
    for made in [true, false] {
        let (mut fixture, config) = primary();
        let before = options(&fixture);
        let id = alter(&mut fixture, build_index());
        let (op, _) = fixture.ask();
        fixture.tell(CoordinatorEvent::Down);
        fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Disconnected) });
        assert!(fixture.outcomes().is_empty() && fixture.asked.is_empty());
        let wanted = TableOptions { backups: BackupMode::BuildIndex, ..before.clone() };
        let now = encode_value(if made { &wanted } else { &before });
        fixture.connect(&[("/leeward/table/default", Some(now)), ("/leeward/region/1", Some(encode_value(&config)))]);
        fixture.asked.retain(|(_, op)| matches!(op, CoordinatorOp::Set { path, .. } if path.contains("/table/")));
        if !made {
            fixture.now += Nanos::from_secs(1);
            fixture.agent.tick(fixture.now);
            fixture.asked.extend(fixture.agent.take_ops());
            fixture.asked.retain(|(_, op)| matches!(op, CoordinatorOp::Set { path, .. } if path.contains("/table/")));
            fixture.grant();
        }
        assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)], "{made}");
        assert_eq!(options(&fixture), wanted);
    }
}

#[test]
fn an_impossible_change_is_refused() {
    let (mut fixture, _) = primary();
    let mut refuse = |change| fixture.agent.alter_table(fixture.now, change).unwrap_err();
    let nowhere = TableChange { name: "nowhere".parse().expect("a name"), ..build_index() };
    assert!(refuse(nowhere).starts_with("there is no table nowhere"));
    let too_many = refuse(TableChange { min_in_sync: Some(4), ..TableChange::default() });
    assert_eq!(too_many, "min_in_sync is 4: it must be from 1 to 3");
    assert!(fixture.agent.take_ops().is_empty());
    let id = alter(&mut fixture, build_index());
    let (op, _) = fixture.ask();
    let error = CoordinatorError::Refused("it is full".into());
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(error) });
    assert_eq!(fixture.outcomes(), [(id, Outcome::Refused("it is full".into()))]);
    fixture.tell(CoordinatorEvent::Down);
    let reason = fixture.agent.alter_table(fixture.now, build_index()).unwrap_err();
    assert!(reason.contains("cannot be reached"), "{reason}");
}

fn name(text: &str) -> TableName {
    text.parse().expect("a name")
}

/// A table beside the default one.
fn with_orders() -> Fixture {
    let (mut fixture, _) = primary();
    let orders = TableOptions { name: "orders".into(), ..TableOptions::default() };
    fixture.change("/leeward/table/orders", Some(encode_value(&orders)));
    fixture
}

fn drop_orders(fixture: &mut Fixture) -> ProposalId {
    let id = fixture.agent.drop_table(fixture.now, &name("orders")).expect("it may be tried");
    fixture.asked.extend(fixture.agent.take_ops());
    id
}

#[test]
fn a_table_is_dropped_in_the_version_that_the_request_was_made_for() {
    let mut fixture = with_orders();
    let id = drop_orders(&mut fixture);
    let is_drop = |op: &CoordinatorOp, at: u64| matches!(op, CoordinatorOp::Delete { path, version } if path == "/leeward/table/orders" && *version == Some(at));
    let version = fixture.version;
    assert!(is_drop(&fixture.asked[0].1, version));
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let refused = fixture.agent.drop_table(fixture.now, &name("orders")).unwrap_err();
    assert!(refused.starts_with("there is no table orders"), "{refused}");
    let refused = fixture.agent.drop_table(fixture.now, &TableName::default()).unwrap_err();
    assert!(refused.contains("cannot be dropped"), "{refused}");
}

#[test]
fn a_table_that_has_changed_since_is_not_dropped() {
    for is_answered in [true, false] {
        let mut fixture = with_orders();
        let id = drop_orders(&mut fixture);
        let (op, _) = fixture.ask();
        let other = TableOptions { name: "orders".into(), l0_bytes: 1 << 20, ..TableOptions::default() };
        if is_answered {
            fixture.change("/leeward/table/orders", Some(encode_value(&other)));
            let version = fixture.version;
            fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
        } else {
            // The table was dropped and made again while the agent had no connection.
            fixture.tell(CoordinatorEvent::Down);
            fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Disconnected) });
            fixture.connect(&[("/leeward/table/orders", Some(encode_value(&other)))]);
        }
        let outcomes = fixture.outcomes();
        let [(of, Outcome::Refused(why))] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert!(*of == id && why.contains("changed meanwhile"), "{why}");
    }
}

/// However often operators ask, epochs are left for failovers, and the region is still served.
#[test]
fn requests_without_end_leave_epochs_to_failovers() {
    let (mut fixture, config) = primary();
    let request = |fixture: &mut Fixture, number: u32| {
        let server = ServerId(2 + number % 2);
        let asked = fixture.agent.request_for_region(fixture.now, config.region, RegionRequest::Primary(server));
        fixture.asked.extend(fixture.agent.take_ops());
        asked
    };
    let mut number = 0;
    let refused = loop {
        match request(&mut fixture, number) {
            Ok(_) => fixture.grant(),
            Err(why) => break why,
        }
        number += 1;
        assert!(number < 1_000, "nothing is refused");
    };
    assert_eq!(refused, "/leeward/region/1 was changed 60 times of late: ask again in 1 s");
    fixture.now += Nanos::from_secs(1);
    request(&mut fixture, number).expect("it was told to ask again");
    fixture.grant();

    let late = GroupConfig { epoch: crate::view::LAST_ASKED_FOR, desired: DesiredState::default(), ..config.clone() };
    fixture.change("/leeward/region/1", Some(encode_value(&late)));
    fixture.now += Nanos::from_secs(3_600);
    let refused = request(&mut fixture, number).unwrap_err();
    assert!(refused.contains("those that are left are for failovers"), "{refused}");
    let same = fixture.agent.request_for_region(fixture.now, config.region, RegionRequest::KeepMembers);
    assert!(same.is_ok(), "a request that changes nothing takes no epoch");
}

/// The primary continues in the last term, and hands the region to no other server.
#[test]
fn no_primary_begins_beyond_the_last_term() {
    let (mut fixture, config) = primary();
    let last = GroupConfig { epoch: Epoch::LAST_TERM, ..config };
    fixture.change("/leeward/region/1", Some(encode_value(&last)));
    fixture.asked.clear();
    let next = last.handed_over(last.backups[0]);
    let id = fixture.agent.propose(fixture.now, last.clone(), next);
    fixture.asked.extend(fixture.agent.take_ops());
    assert_eq!((fixture.outcomes(), fixture.asked.len()), (vec![(id, Outcome::Rejected)], 0));
    let smaller = last.without(last.backups[0]);
    fixture.agent.propose(fixture.now, last.clone(), smaller.clone());
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    assert_eq!(fixture.agent.view().region(last.region), Some(&smaller), "members come and go");
}
