//! Tables are made whole or not at all, whatever the coordinator says and however it falls silent.

use super::super::tests::{Fixture, primary};
use super::*;
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp};
use leeward_format::cluster::{TableOptions, encode_value};
use leeward_format::routing::Routing;

fn orders() -> NewTable {
    NewTable { options: TableOptions { name: "orders".into(), ..TableOptions::default() }, splits: vec!["m".into()] }
}

fn named(name: &str) -> NewTable {
    NewTable { options: TableOptions { name: name.into(), ..TableOptions::default() }, splits: Vec::new() }
}

fn create(fixture: &mut Fixture, table: NewTable) -> ProposalId {
    let id = fixture.agent.create_table(fixture.now, table).expect("it may be tried");
    fixture.asked.extend(fixture.agent.take_ops());
    id
}

fn paths(op: &CoordinatorOp) -> Vec<&str> {
    let CoordinatorOp::All(ops) = op else { panic!("{op:?}") };
    let path = |op| match op {
        &CoordinatorOp::Create { ref path, ephemeral: false, .. } => path.as_str(),
        other => panic!("{other:?}"),
    };
    ops.iter().map(path).collect()
}

fn exists_now(fixture: &mut Fixture, id: u64) {
    let error = CoordinatorError::Exists { version: fixture.version };
    fixture.tell(CoordinatorEvent::Reply { id, result: Err(error) });
}

#[test]
fn a_table_is_made_with_the_next_region_numbers_and_routes() {
    let (mut fixture, _) = primary();
    let id = create(&mut fixture, orders());
    assert_eq!(paths(&fixture.asked[0].1), ["/leeward/table/orders", "/leeward/region/2", "/leeward/region/3"]);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let routes = fixture.agent.view().routes();
    assert_eq!(routes.table("orders"), Some(&orders().options));
    let of = |table, key: &[u8]| routes.region_of(table, key).map(|config| config.region.0);
    assert_eq!((of("default", b"x"), of("orders", b"a"), of("orders", b"x")), (Some(1), Some(2), Some(3)));
    assert_eq!((of("order", b"a"), of("zebra", b"x"), of("", b"x")), (None, None, None));
    assert_eq!((routes.regions_of("orders").count(), routes.regions_of("nothing").count()), (2, 0));
}

#[test]
fn what_cannot_be_is_refused_before_anybody_is_asked() {
    let (mut fixture, _) = primary();
    let mut refuse = |table| fixture.agent.create_table(fixture.now, table).unwrap_err();
    assert_eq!(refuse(named("default")), "there is a table default already");
    assert!(refuse(named("7")).contains("no name of a table"));
    assert!(fixture.agent.take_ops().is_empty());
    fixture.tell(CoordinatorEvent::Down);
    let reason = fixture.agent.create_table(fixture.now, orders()).unwrap_err();
    assert!(reason.contains("cannot be reached"), "{reason}");
}

#[test]
fn a_creation_that_takes_the_region_numbers_first_is_no_failure() {
    let (mut fixture, _) = primary();
    let id = create(&mut fixture, orders());
    let (op, _) = fixture.ask();
    fixture.apply(bootstrap_op(&named("other").options, RegionId(2), &[]));
    exists_now(&mut fixture, op);
    assert!(fixture.outcomes().is_empty());
    assert_eq!(paths(&fixture.asked[0].1), ["/leeward/table/orders", "/leeward/region/3", "/leeward/region/4"]);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
}

#[test]
fn of_two_tables_of_one_name_one_is_made() {
    let (mut fixture, _) = primary();
    let id = create(&mut fixture, orders());
    let (op, _) = fixture.ask();
    // Even one with the same options: it was somebody else's wish.
    fixture.apply(bootstrap_op(&orders().options, RegionId(2), &orders().splits));
    exists_now(&mut fixture, op);
    assert_eq!(fixture.outcomes(), [(id, Outcome::Refused("there is a table orders already".into()))]);
    assert!(fixture.asked.is_empty());
}

#[test]
fn creations_of_one_node_go_one_after_the_other() {
    let (mut fixture, _) = primary();
    let first = create(&mut fixture, orders());
    let second = create(&mut fixture, named("second"));
    assert_eq!(fixture.asked.len(), 1, "the second waits");
    fixture.grant();
    assert_eq!(paths(&fixture.asked[0].1), ["/leeward/table/second", "/leeward/region/4"]);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(first, Outcome::Accepted), (second, Outcome::Accepted)]);
}

#[test]
fn after_a_lost_connection_the_tree_tells_what_became_of_a_table() {
    for made in [true, false] {
        let (mut fixture, config) = primary();
        let id = create(&mut fixture, orders());
        let (op, _) = fixture.ask();
        fixture.tell(CoordinatorEvent::Down);
        fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Disconnected) });
        assert!(fixture.outcomes().is_empty() && fixture.asked.is_empty());
        let mut tree = vec![("/leeward/region/1".to_owned(), encode_value(&config))];
        let CoordinatorOp::All(ops) = bootstrap_op(&orders().options, RegionId(2), &orders().splits) else {
            unreachable!("several paths")
        };
        for op in ops.into_iter().filter(|_| made) {
            let CoordinatorOp::Create { path, value, .. } = op else { unreachable!("it only creates") };
            tree.push((path, value));
        }
        let tree: Vec<_> = tree.iter().map(|(path, value)| (path.as_str(), Some(value.clone()))).collect();
        fixture.connect(&tree);
        if made {
            assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
        } else {
            assert!(fixture.outcomes().is_empty());
            let creation = fixture.asked.iter().position(|(_, op)| matches!(op, CoordinatorOp::All(_)));
            let creation = fixture.asked.remove(creation.expect("it is asked for again"));
            assert_eq!(paths(&creation.1)[1], "/leeward/region/2");
        }
    }
}

#[test]
fn a_refusal_is_told_and_endless_contention_ends() {
    let (mut fixture, _) = primary();
    let id = create(&mut fixture, orders());
    let (op, _) = fixture.ask();
    let full = CoordinatorError::Refused("the coordinator is full".into());
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(full) });
    assert_eq!(fixture.outcomes(), [(id, Outcome::Refused("the coordinator is full".into()))]);

    // Something is there that the view cannot show.
    fixture.change("/leeward/table/second", Some(bytes::Bytes::new()));
    let id = create(&mut fixture, named("second"));
    for _ in 0..MOST_ATTEMPTS {
        assert!(fixture.outcomes().is_empty());
        let (op, _) = fixture.ask();
        exists_now(&mut fixture, op);
    }
    assert!(matches!(&fixture.outcomes()[..], [(of, Outcome::Refused(_))] if *of == id));
    assert!(fixture.asked.is_empty());
}
