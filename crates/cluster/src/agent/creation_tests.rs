//! Tables are made completely or not at all, whatever the coordinator answers and whenever it stops answering.

use super::super::tests::{Fixture, primary};
use super::*;
use crate::view::create as create_path;
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp};
use leeward_format::cluster::{TableOptions, encode_value};
use leeward_format::routing::Routing;

fn orders() -> NewTable {
    NewTable::new(TableOptions { name: "orders".into(), ..TableOptions::default() }, vec!["m".into()])
}

fn named(name: &str) -> NewTable {
    NewTable::new(TableOptions { name: name.into(), ..TableOptions::default() }, Vec::new())
}

fn create(fixture: &mut Fixture, table: NewTable) -> ProposalId {
    let id = fixture.agent.create_table(fixture.now, table).expect("it may be tried");
    fixture.asked.extend(fixture.agent.take_ops());
    id
}

/// What an operation does: `+` makes a path, `=` changes one, `-` removes one.
fn steps(op: &CoordinatorOp) -> Vec<String> {
    let CoordinatorOp::All(ops) = op else { panic!("{op:?}") };
    let step = |op: &CoordinatorOp| match op {
        CoordinatorOp::Create { path, ephemeral, .. } => {
            assert_eq!(*ephemeral, path.starts_with("/leeward/making/"), "{path}");
            format!("+{path}")
        }
        CoordinatorOp::Set { path, .. } => format!("={path}"),
        CoordinatorOp::Delete { path, version } => {
            assert!(version.is_some(), "{path}");
            format!("-{path}")
        }
        CoordinatorOp::All(_) => unreachable!("they do not nest"),
    };
    ops.iter().map(|op| step(op).replace("/leeward/", "")).collect()
}

/// The operation of another agent that makes a table whose regions have numbers from `first` on.
fn made_by_another(fixture: &Fixture, table: &NewTable, first: u32) -> CoordinatorOp {
    let regions: Vec<RegionId> = (first..).take(table.splits.len() + 1).map(RegionId).collect();
    let mut numbers = fixture.agent.view().numbers();
    numbers.give(regions.iter().copied());
    let give = create_path(ClusterPath::Numbers, encode_value(&numbers), false);
    CoordinatorOp::All(table_ops(table, TableId(9), &regions, give))
}

/// A table of more regions than one operation makes, and how many regions it has.
fn many() -> NewTable {
    let splits = (0..6_000_u32).map(|number| format!("{number:0100}").into()).collect();
    NewTable::new(TableOptions { name: "many".into(), ..TableOptions::default() }, splits)
}

fn exists_now(fixture: &mut Fixture, id: u64) {
    let error = CoordinatorError::Exists { version: fixture.version };
    fixture.tell(CoordinatorEvent::Reply { id, result: Err(error) });
}

#[test]
fn a_table_is_made_with_the_next_region_numbers_and_routes() {
    let (mut fixture, _) = primary();
    let id = create(&mut fixture, orders());
    assert_eq!(steps(&fixture.asked[0].1), ["+table/orders", "+region/2", "+region/3", "+regions"]);
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
fn an_impossible_table_is_refused_before_the_coordinator_is_asked() {
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
    let other = made_by_another(&fixture, &named("other"), 2);
    fixture.apply(other);
    exists_now(&mut fixture, op);
    assert!(fixture.outcomes().is_empty());
    assert_eq!(steps(&fixture.asked[0].1), ["+table/orders", "+region/3", "+region/4", "=regions"]);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
}

#[test]
fn of_two_tables_of_one_name_one_is_made() {
    let (mut fixture, _) = primary();
    let id = create(&mut fixture, orders());
    let (op, _) = fixture.ask();
    // Even a table with the same options: it was the request of another.
    let other = made_by_another(&fixture, &orders(), 2);
    fixture.apply(other);
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
    assert_eq!(steps(&fixture.asked[0].1), ["+table/second", "+region/4", "=regions"]);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(first, Outcome::Accepted), (second, Outcome::Accepted)]);
}

#[test]
fn after_a_lost_connection_the_tree_shows_whether_a_table_was_made() {
    for made in [true, false] {
        let (mut fixture, config) = primary();
        let id = create(&mut fixture, orders());
        let (op, _) = fixture.ask();
        fixture.tell(CoordinatorEvent::Down);
        fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Disconnected) });
        assert!(fixture.outcomes().is_empty() && fixture.asked.is_empty());
        let mut tree = vec![("/leeward/region/1".to_owned(), encode_value(&config))];
        let CoordinatorOp::All(ops) = made_by_another(&fixture, &orders(), 2) else { unreachable!("several paths") };
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
            assert_eq!(steps(&creation.1)[1], "+region/2");
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

    // There is a path that the view cannot show.
    fixture.change("/leeward/regions", Some(bytes::Bytes::new()));
    let id = create(&mut fixture, named("second"));
    for _ in 0..MOST_ATTEMPTS {
        assert!(fixture.outcomes().is_empty());
        let (op, _) = fixture.ask();
        exists_now(&mut fixture, op);
    }
    assert!(matches!(&fixture.outcomes()[..], [(of, Outcome::Refused(_))] if *of == id));
    assert!(fixture.asked.is_empty());
}

#[test]
fn a_table_that_cannot_be_read_is_not_made_again() {
    let (mut fixture, _) = primary();
    let left = made_by_another(&fixture, &orders(), 2);
    fixture.apply(left);
    fixture.change("/leeward/table/orders", Some(bytes::Bytes::new()));
    let refused = fixture.agent.create_table(fixture.now, orders()).unwrap_err();
    assert!(refused.contains("cannot read"), "{refused}");
    // Nor if its path becomes unreadable before the next step.
    let id = create(&mut fixture, many());
    fixture.change("/leeward/table/many", Some(bytes::Bytes::new()));
    fixture.grant();
    assert!(
        matches!(&fixture.outcomes()[..], [(of, Outcome::Refused(why))] if *of == id && why.contains("cannot read"))
    );
}

/// Grants every operation until there is an outcome. Returns the steps of each operation.
fn grant_all(fixture: &mut Fixture) -> (Vec<Vec<String>>, Outcome) {
    let mut all = Vec::new();
    loop {
        all.push(steps(&fixture.asked[0].1));
        fixture.grant();
        if let Some((_, outcome)) = fixture.outcomes().pop() {
            return (all, outcome);
        }
    }
}

#[test]
fn a_large_table_is_made_in_steps_and_its_path_comes_last() {
    let (mut fixture, _) = primary();
    create(&mut fixture, many());
    let (all, outcome) = grant_all(&mut fixture);
    assert_eq!(outcome, Outcome::Accepted);
    assert_eq!(all[0], ["+making/many", "+regions"]);
    let regions: Vec<&String> = all.iter().flatten().filter(|step| step.starts_with("+region/")).collect();
    assert_eq!(regions.len(), 6_001);
    let (last, between) = all[1..].split_last().unwrap();
    assert!(!between.is_empty() && between.iter().all(|steps| steps.last().unwrap() == "=making/many"));
    assert_eq!(last[last.len() - 2..], ["+table/many", "-making/many"]);
    assert_eq!(fixture.agent.view().routes().regions_of("many").count(), 6_001);
    assert!(fixture.asked.is_empty() && fixture.agent.view().making().next().is_none());
}

#[test]
fn leftovers_in_the_way_of_a_table_are_removed_first() {
    let (mut fixture, _) = primary();
    let left = made_by_another(&fixture, &orders(), 2);
    fixture.apply(left);
    fixture.change("/leeward/table/orders", None);
    create(&mut fixture, orders());
    let (all, outcome) = grant_all(&mut fixture);
    assert_eq!(outcome, Outcome::Accepted);
    let expected = [
        vec!["+making/orders", "=regions"],
        vec!["-region/2", "-region/3", "=making/orders"],
        vec!["+region/4", "+region/5", "+table/orders", "-making/orders"],
    ];
    assert_eq!(all, expected);
}

#[test]
fn an_agent_that_lost_the_right_to_make_a_table_begins_anew() {
    let (mut fixture, _) = primary();
    let id = create(&mut fixture, many());
    fixture.grant();
    fixture.grant();
    // The session ended, and the next step finds that the agent does not hold the path any more.
    let (op, _) = fixture.ask();
    fixture.change("/leeward/making/many", None);
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Missing) });
    assert!(fixture.asked.is_empty() && fixture.outcomes().is_empty());
    fixture.pass_a_second();
    // Another process makes the table now.
    let other = encode_value(&leeward_format::cluster::Member { server: leeward_format::ServerId(2), ..fixture.me() });
    let (op, asked) = fixture.ask();
    assert_eq!(steps(&asked), ["+making/many", "=regions"]);
    fixture.change("/leeward/making/many", Some(other));
    exists_now(&mut fixture, op);
    fixture.pass_a_second();
    assert!(fixture.asked.is_empty() && fixture.outcomes().is_empty(), "it waits for the other");
    fixture.change("/leeward/making/many", None);
    let (all, outcome) = grant_all(&mut fixture);
    assert_eq!(outcome, Outcome::Accepted, "{id:?}");
    assert_eq!(all[0], ["+making/many", "=regions"]);
    assert!(all[1][0].starts_with("-region/"), "the regions made by then are in the way");
    assert_eq!(fixture.agent.view().regions().filter(|config| config.table == "many").count(), 6_001);
}

#[test]
fn a_right_that_is_not_needed_any_more_is_given_up() {
    let (mut fixture, _) = primary();
    let me = encode_value(&fixture.me());
    fixture.change("/leeward/making/orders", Some(me));
    let (_, op) = fixture.ask();
    assert!(matches!(op, CoordinatorOp::Delete { path, .. } if path == "/leeward/making/orders"));
}

#[test]
fn numbers_of_copies_are_skipped() {
    let (mut fixture, _) = primary();
    let copies =
        vec![leeward_format::cluster::CopyFound::new(RegionId(40), leeward_format::Epoch(3), leeward_format::Lsn(9))];
    let info = fixture.agent.view().server(leeward_format::ServerId(2)).unwrap().clone();
    let info = leeward_format::cluster::ServerInfo { copies, ..info };
    fixture.change("/leeward/server/2", Some(encode_value(&info)));
    create(&mut fixture, named("new"));
    assert_eq!(steps(&fixture.asked[0].1), ["+table/new", "+region/41", "+regions"]);
    fixture.grant();
    let numbers = fixture.agent.view().numbers();
    assert!(numbers.has(RegionId(41)) && !numbers.has(RegionId(40)), "a skipped number was not given");
}

#[test]
fn regions_of_an_earlier_claim_are_made_anew_with_numbers_of_their_own() {
    let (mut fixture, _) = primary();
    create(&mut fixture, many());
    fixture.grant();
    fixture.grant();
    let made = |fixture: &Fixture| -> Vec<RegionId> {
        let of_it = fixture.agent.view().regions().filter(|config| config.table == "many");
        of_it.map(|config| config.region).collect()
    };
    let earlier = made(&fixture);
    assert!(!earlier.is_empty() && earlier.len() < 6_001);
    // The session ended. A master treats the regions as leftovers, and their removal is still on its way.
    let (op, _) = fixture.ask();
    let region = ClusterPath::Region(earlier[0]);
    let version = fixture.agent.view().version_of(&region);
    fixture.change("/leeward/making/many", None);
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Missing) });
    fixture.pass_a_second();
    fixture.asked.retain(|(_, op)| matches!(op, CoordinatorOp::All(_)));
    let (all, outcome) = grant_all(&mut fixture);
    assert_eq!(outcome, Outcome::Accepted);
    let removed: Vec<&String> = all.iter().flatten().filter(|step| step.starts_with("-region/")).collect();
    assert_eq!(removed.len(), earlier.len());
    assert_eq!(made(&fixture).len(), 6_001);
    assert_ne!(
        fixture.agent.view().version_of(&region),
        version,
        "a removal of the earlier regions removes none of these"
    );
}

/// A server may have a copy of the highest number of all. Later regions still find free numbers.
#[test]
fn numbers_continue_below_the_highest_of_all() {
    let (mut fixture, _) = primary();
    let mut numbers = fixture.agent.view().numbers();
    numbers.give([RegionId(1), RegionId::LAST]);
    fixture.change("/leeward/regions", Some(encode_value(&numbers)));
    let id = create(&mut fixture, orders());
    assert_eq!(steps(&fixture.asked[0].1), ["+table/orders", "+region/2", "+region/3", "=regions"]);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
}
