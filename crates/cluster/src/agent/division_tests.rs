//! A region is planned to be two, and becomes so, or not at all, whatever becomes of answers.

use super::tests::{Fixture, primary};
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp, Outcome, ProposalId};
use leeward_format::cluster::{ClusterPath, GroupConfig, Plan, RegionNumbers, RegionWish, decode_value, encode_value};
use leeward_format::{RegionId, SegmentId};

const PARENT: RegionId = RegionId(1);
const CHILD: RegionId = RegionId(2);

fn wish(fixture: &mut Fixture, wish: RegionWish) -> ProposalId {
    let id = fixture.agent.wish_of_region(fixture.now, PARENT, wish).expect("it may be tried");
    fixture.asked.extend(fixture.agent.take_ops());
    id
}

fn split(at: Option<&'static str>) -> RegionWish {
    RegionWish::Split { at: at.map(Into::into) }
}

/// Region 1 is to be divided by this server.
fn planned() -> (Fixture, GroupConfig) {
    let (mut fixture, _) = primary();
    let id = wish(&mut fixture, split(Some("m")));
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let config = fixture.agent.view().region(PARENT).expect("it is there").clone();
    (fixture, config)
}

fn divide(fixture: &mut Fixture, config: &GroupConfig) -> (ProposalId, GroupConfig, GroupConfig) {
    let (left, right) = config.divided("m".into(), CHILD, SegmentId(77));
    let id = fixture.agent.divide(fixture.now, config.clone(), left.clone(), right.clone());
    fixture.asked.extend(fixture.agent.take_ops());
    (id, left, right)
}

#[test]
fn a_plan_has_a_number_that_is_given_with_it() {
    let (mut fixture, config) = primary();
    let id = wish(&mut fixture, split(None));
    let (_, op) = &fixture.asked[0];
    let CoordinatorOp::All(ops) = op else { panic!("{op:?}") };
    let [CoordinatorOp::Set { path, value, .. }, CoordinatorOp::Create { path: numbers, value: given, .. }] = &ops[..]
    else {
        panic!("the plan first, then the number: {ops:?}");
    };
    assert_eq!((&path[..], &numbers[..]), ("/leeward/region/1", "/leeward/regions"));
    let written: GroupConfig = decode_value("region", value).expect("a configuration");
    assert_eq!(written.wishes.plan, Some(Plan::Split { at: None, child: CHILD }));
    assert_eq!(GroupConfig { epoch: config.epoch, wishes: config.wishes.clone(), ..written }, config);
    assert!(decode_value::<RegionNumbers>("numbers", given).expect("numbers").has(CHILD));
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert!(fixture.agent.view().is_planned(CHILD) && !fixture.agent.view().is_planned(PARENT));
    let id = wish(&mut fixture, RegionWish::Whole);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert!(!fixture.agent.view().is_planned(CHILD));
    wish(&mut fixture, split(None));
    fixture.grant();
    let plan = fixture.agent.view().region(PARENT).and_then(|config| config.wishes.plan.clone());
    assert_eq!(plan.and_then(|plan| plan.child()), Some(RegionId(3)), "a number is given once");
}

#[test]
fn both_configurations_are_made_or_neither() {
    let (mut fixture, config) = planned();
    let (id, left, right) = divide(&mut fixture, &config);
    let version = fixture.agent.view().version_of(&ClusterPath::Region(PARENT)).expect("it is there");
    let make =
        CoordinatorOp::Create { path: "/leeward/region/2".into(), value: encode_value(&right), ephemeral: false };
    let cut = CoordinatorOp::Set { path: "/leeward/region/1".into(), value: encode_value(&left), version };
    assert_eq!(fixture.asked[0].1, CoordinatorOp::All(vec![make, cut]), "no key is without a region in between");
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let view = fixture.agent.view();
    assert_eq!((view.region(PARENT), view.region(CHILD)), (Some(&left), Some(&right)));
    assert!(!view.is_planned(CHILD));
}

#[test]
fn who_comes_too_late_divides_nothing() {
    let (mut fixture, config) = planned();
    let (id, ..) = divide(&mut fixture, &config);
    let (op, _) = fixture.ask();
    fixture.change("/leeward/region/1", Some(encode_value(&config.renewed())));
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    assert_eq!(fixture.outcomes(), [(id, Outcome::Rejected)]);
    assert_eq!(fixture.agent.view().region(CHILD), None);
}

/// Whether it was done is known by the region that was made, however far the configurations have gone on.
#[test]
fn a_lost_answer_is_known_by_the_region_that_was_made() {
    for made in [true, false] {
        let (mut fixture, config) = planned();
        let (id, left, right) = divide(&mut fixture, &config);
        fixture.asked.clear();
        fixture.tell(CoordinatorEvent::Down);
        assert!(fixture.outcomes().is_empty());
        let (parent, child) = (left.renewed(), right.renewed());
        let tree = match made {
            true => vec![
                ("/leeward/region/1", Some(encode_value(&parent))),
                ("/leeward/region/2", Some(encode_value(&child))),
            ],
            false => vec![("/leeward/region/1", Some(encode_value(&config.renewed())))],
        };
        fixture.connect(&tree);
        let outcome = if made { Outcome::Accepted } else { Outcome::Rejected };
        assert_eq!(fixture.outcomes(), [(id, outcome)]);
    }
}

/// The answer to the wish was lost, and the region has been divided since.
#[test]
fn a_wish_whose_answer_was_lost_does_not_divide_twice() {
    let (mut fixture, config) = primary();
    let id = wish(&mut fixture, split(None));
    fixture.asked.clear();
    fixture.tell(CoordinatorEvent::Down);
    let planned = config.wishing(leeward_format::cluster::Wishes {
        plan: Some(Plan::Split { at: None, child: CHILD }),
        ..config.wishes.clone()
    });
    let (left, right) = planned.divided("m".into(), CHILD, SegmentId(77));
    fixture.connect(&[
        ("/leeward/region/1", Some(encode_value(&left))),
        ("/leeward/region/2", Some(encode_value(&right))),
    ]);
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert!(!fixture.asked.iter().any(|(_, op)| format!("{op:?}").contains("/region/1")), "{:?}", fixture.asked);
}
