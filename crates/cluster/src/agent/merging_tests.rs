//! A region becomes part of its neighbour, or not at all, whatever becomes of answers; and goes before to where that has its primary.

use super::tests::{Fixture, primary};
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp, Outcome, ProposalId};
use leeward_format::RegionId;
use leeward_format::cluster::{ClusterPath, GroupConfig, Plan, RegionNumbers, RegionWish, encode_value};

const TAKEN: RegionId = RegionId(2);

/// Regions 1 and 2 have their primary here; the second is to become part of the first.
fn planned() -> (Fixture, GroupConfig, GroupConfig) {
    let (mut fixture, config) = primary();
    let one = GroupConfig { end: Some("m".into()), epoch: config.epoch.next(), ..config.clone() };
    let two = GroupConfig { region: TAKEN, start: "m".into(), ..config };
    let mut numbers = RegionNumbers::default();
    numbers.give([RegionId(1), TAKEN]);
    fixture.change("/leeward/regions", Some(encode_value(&numbers)));
    fixture.change("/leeward/region/2", Some(encode_value(&two)));
    fixture.change("/leeward/region/1", Some(encode_value(&one)));
    let id = fixture.agent.wish_of_region(fixture.now, TAKEN, RegionWish::Merge { into: RegionId(1) }).expect("it may");
    fixture.asked.extend(fixture.agent.take_ops());
    assert!(matches!(&fixture.asked[0].1, CoordinatorOp::Set { path, .. } if path == "/leeward/region/2"));
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let two = fixture.agent.view().region(TAKEN).expect("it is there").clone();
    assert_eq!(two.wishes.plan, Some(Plan::Merge { into: RegionId(1) }));
    assert_eq!(fixture.agent.view().merging().collect::<Vec<_>>(), [(TAKEN, RegionId(1))]);
    (fixture, one, two)
}

fn merge(fixture: &mut Fixture, one: &GroupConfig, two: &GroupConfig) -> (ProposalId, GroupConfig) {
    let wider = one.merged_with(two);
    let id = fixture.agent.merge(fixture.now, one.clone(), wider.clone(), two.clone());
    fixture.asked.extend(fixture.agent.take_ops());
    (id, wider)
}

#[test]
fn the_one_grows_and_the_other_ends_or_neither() {
    let (mut fixture, one, two) = planned();
    let (id, wider) = merge(&mut fixture, &one, &two);
    let version = |fixture: &Fixture, region| fixture.agent.view().version_of(&ClusterPath::Region(region));
    let (first, second) = (version(&fixture, RegionId(1)).expect("it is there"), version(&fixture, TAKEN));
    let grow = CoordinatorOp::Set { path: "/leeward/region/1".into(), value: encode_value(&wider), version: first };
    let end = CoordinatorOp::Delete { path: "/leeward/region/2".into(), version: second };
    assert_eq!(fixture.asked[0].1, CoordinatorOp::All(vec![grow, end]), "no key is without a region in between");
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let view = fixture.agent.view();
    assert_eq!((view.region(RegionId(1)), view.region(TAKEN)), (Some(&wider), None));
    assert!(view.is_gone(TAKEN) && view.merging().next().is_none());
}

#[test]
fn who_comes_too_late_merges_nothing() {
    let (mut fixture, one, two) = planned();
    // The other one has another configuration before it is asked for, or while that is on its way.
    let (id, _) = merge(&mut fixture, &one, &two);
    let (op, _) = fixture.ask();
    fixture.change("/leeward/region/2", Some(encode_value(&two.renewed())));
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    assert_eq!(fixture.outcomes(), [(id, Outcome::Rejected)]);
    let (id, _) = merge(&mut fixture, &one, &two);
    assert_eq!((fixture.outcomes(), fixture.asked.len()), (vec![(id, Outcome::Rejected)], 0));
    assert_eq!(fixture.agent.view().region(RegionId(1)), Some(&one));
}

/// Whether it was done is known by the region that is no more, however far the other has gone on.
#[test]
fn a_lost_answer_is_known_by_the_region_that_ended() {
    for done in [true, false] {
        let (mut fixture, one, two) = planned();
        let (id, wider) = merge(&mut fixture, &one, &two);
        fixture.asked.clear();
        fixture.tell(CoordinatorEvent::Down);
        assert!(fixture.outcomes().is_empty());
        let tree = match done {
            true => vec![("/leeward/region/1", Some(encode_value(&wider.renewed())))],
            false => vec![
                ("/leeward/region/1", Some(encode_value(&one.renewed()))),
                ("/leeward/region/2", Some(encode_value(&two))),
            ],
        };
        fixture.connect(&tree);
        let outcome = if done { Outcome::Accepted } else { Outcome::Rejected };
        assert_eq!(fixture.outcomes(), [(id, outcome)]);
    }
}

/// The answer to the wish was lost, and the region has become part of the other since.
#[test]
fn a_wish_that_has_come_about_is_accepted() {
    let (mut fixture, one, two) = planned();
    let whole = fixture.agent.wish_of_region(fixture.now, TAKEN, RegionWish::Whole).expect("it may be");
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(whole, Outcome::Accepted)]);
    let wish = RegionWish::Merge { into: RegionId(1) };
    let id = fixture.agent.wish_of_region(fixture.now, TAKEN, wish.clone()).expect("it may be");
    fixture.asked.clear();
    fixture.agent.take_ops();
    fixture.tell(CoordinatorEvent::Down);
    fixture.connect(&[("/leeward/region/1", Some(encode_value(&one.merged_with(&two))))]);
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let refusal = fixture.agent.wish_of_region(fixture.now, TAKEN, wish);
    assert_eq!(refusal, Err("there is no region 2".into()), "somebody who asks only now may mean another");
}
