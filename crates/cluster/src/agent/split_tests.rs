//! A planned split happens completely or not at all, whatever happens to the answers.

use super::tests::{Fixture, primary};
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp, Outcome, ProposalId};
use leeward_format::cluster::{
    ClusterPath, GroupConfig, Plan, RegionNumbers, RegionRequest, decode_value, encode_value,
};
use leeward_format::{RegionId, SegmentId};

const PARENT: RegionId = RegionId(1);
const CHILD: RegionId = RegionId(2);

fn request(fixture: &mut Fixture, request: RegionRequest) -> ProposalId {
    let id = fixture.agent.request_for_region(fixture.now, PARENT, request).expect("it may be tried");
    fixture.asked.extend(fixture.agent.take_ops());
    id
}

fn split_request(at: Option<&'static str>) -> RegionRequest {
    RegionRequest::Split { at: at.map(Into::into) }
}

/// Region 1, which this server is to split.
fn planned() -> (Fixture, GroupConfig) {
    let (mut fixture, _) = primary();
    let id = request(&mut fixture, split_request(Some("m")));
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let config = fixture.agent.view().region(PARENT).expect("it is there").clone();
    (fixture, config)
}

fn split(fixture: &mut Fixture, config: &GroupConfig) -> (ProposalId, GroupConfig, GroupConfig) {
    let (left, right) = config.split("m".into(), CHILD, SegmentId(77));
    let id = fixture.agent.split(fixture.now, config.clone(), left.clone(), right.clone());
    fixture.asked.extend(fixture.agent.take_ops());
    (id, left, right)
}

#[test]
fn a_split_plan_takes_the_number_of_its_child() {
    let (mut fixture, config) = primary();
    let id = request(&mut fixture, split_request(None));
    let (_, op) = &fixture.asked[0];
    let CoordinatorOp::All(ops) = op else { panic!("{op:?}") };
    let [CoordinatorOp::Set { path, value, .. }, CoordinatorOp::Create { path: numbers, value: given, .. }] = &ops[..]
    else {
        panic!("the plan first, then the number: {ops:?}");
    };
    assert_eq!((&path[..], &numbers[..]), ("/leeward/region/1", "/leeward/regions"));
    let written: GroupConfig = decode_value("region", value).expect("a configuration");
    assert_eq!(written.desired.plan, Some(Plan::Split { at: None, child: CHILD }));
    assert_eq!(GroupConfig { epoch: config.epoch, desired: config.desired.clone(), ..written }, config);
    assert!(decode_value::<RegionNumbers>("numbers", given).expect("numbers").has(CHILD));
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert!(fixture.agent.view().is_planned(CHILD) && !fixture.agent.view().is_planned(PARENT));
    let id = request(&mut fixture, RegionRequest::KeepBounds);
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert!(!fixture.agent.view().is_planned(CHILD));
    request(&mut fixture, split_request(None));
    fixture.grant();
    let plan = fixture.agent.view().region(PARENT).and_then(|config| config.desired.plan.clone());
    assert_eq!(plan.and_then(|plan| plan.child()), Some(RegionId(3)), "a number is given once");
}

#[test]
fn both_configurations_are_written_or_neither() {
    let (mut fixture, config) = planned();
    let (id, left, right) = split(&mut fixture, &config);
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
fn a_late_split_changes_nothing() {
    let (mut fixture, config) = planned();
    let (id, ..) = split(&mut fixture, &config);
    let (op, _) = fixture.ask();
    fixture.change("/leeward/region/1", Some(encode_value(&config.renewed())));
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    assert_eq!(fixture.outcomes(), [(id, Outcome::Rejected)]);
    assert_eq!(fixture.agent.view().region(CHILD), None);
}

/// The existence of the child shows whether the split was done, whatever changes of the configurations followed.
#[test]
fn the_child_shows_the_result_of_a_split_whose_answer_was_lost() {
    for made in [true, false] {
        let (mut fixture, config) = planned();
        let (id, left, right) = split(&mut fixture, &config);
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

/// The answer to the request was lost, and the region was split since.
#[test]
fn a_request_whose_answer_was_lost_does_not_split_twice() {
    let (mut fixture, config) = primary();
    let id = request(&mut fixture, split_request(None));
    fixture.asked.clear();
    fixture.tell(CoordinatorEvent::Down);
    let planned = config.with_desired(leeward_format::cluster::DesiredState {
        plan: Some(Plan::Split { at: None, child: CHILD }),
        ..config.desired.clone()
    });
    let (left, right) = planned.split("m".into(), CHILD, SegmentId(77));
    fixture.connect(&[
        ("/leeward/region/1", Some(encode_value(&left))),
        ("/leeward/region/2", Some(encode_value(&right))),
    ]);
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    assert!(!fixture.asked.iter().any(|(_, op)| format!("{op:?}").contains("/region/1")), "{:?}", fixture.asked);
}
