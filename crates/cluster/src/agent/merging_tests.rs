//! A merge happens completely or not at all, whatever happens to the answers. The source moves to the server of the target's
//! primary first.

use super::tests::{Fixture, primary};
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp, Outcome, ProposalId};
use leeward_format::RegionId;
use leeward_format::cluster::{
    ClusterPath, DesiredState, GroupConfig, Plan, RegionNumbers, RegionRequest, encode_value,
};

const SOURCE: RegionId = RegionId(2);

/// Regions 1 and 2 have their primary here. Region 2 is to be merged into region 1.
fn planned() -> (Fixture, GroupConfig, GroupConfig) {
    let (mut fixture, config) = primary();
    let one = GroupConfig { end: Some("m".into()), epoch: config.epoch.next(), ..config.clone() };
    let two = GroupConfig { region: SOURCE, start: "m".into(), ..config };
    let mut numbers = RegionNumbers::default();
    numbers.give([RegionId(1), SOURCE]);
    fixture.change("/leeward/regions", Some(encode_value(&numbers)));
    fixture.change("/leeward/region/2", Some(encode_value(&two)));
    fixture.change("/leeward/region/1", Some(encode_value(&one)));
    let id = fixture
        .agent
        .request_for_region(fixture.now, SOURCE, RegionRequest::Merge { into: RegionId(1) })
        .expect("it may");
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let two = fixture.agent.view().region(SOURCE).expect("it is there").clone();
    assert_eq!(two.desired.plan, Some(Plan::Merge { into: RegionId(1) }));
    assert_eq!(fixture.agent.view().merging().collect::<Vec<_>>(), [(SOURCE, RegionId(1))]);
    (fixture, one, two)
}

/// Two operators want regions 1 and 2 merged into each other, or region 1 split, at the same time.
#[test]
fn a_region_with_a_plan_of_its_own_becomes_no_target() {
    let (mut fixture, one, two) = planned();
    let plan = |config: &GroupConfig, plan| config.with_desired(DesiredState { plan, ..config.desired.clone() });
    fixture.change("/leeward/region/2", Some(encode_value(&plan(&two, None))));
    let request = RegionRequest::Merge { into: RegionId(1) };
    let id = fixture.agent.request_for_region(fixture.now, SOURCE, request).expect("it may");
    fixture.asked.extend(fixture.agent.take_ops());
    let (op, asked) = fixture.ask();
    let CoordinatorOp::All(ops) = asked else { panic!("{asked:?}") };
    let compared = ops.iter().map(|op| match op {
        CoordinatorOp::Set { path, version, .. } => (path.as_str(), Some(*version)),
        other => panic!("{other:?}"),
    });
    let view = fixture.agent.view();
    let is = [SOURCE, RegionId(1)].map(|region| view.version_of(&ClusterPath::Region(region)));
    assert_eq!(compared.collect::<Vec<_>>(), [("/leeward/region/2", is[0]), ("/leeward/region/1", is[1])]);
    // The other operator comes first.
    fixture.change("/leeward/region/1", Some(encode_value(&plan(&one, Some(Plan::Merge { into: SOURCE })))));
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    let why = "region 1 is being merged into region 2: wait for it, or cancel that";
    assert_eq!(fixture.outcomes(), [(id, Outcome::Refused(why.into()))]);
}

/// The operation that plans a merge writes the target's configuration anew, without a change.
#[test]
fn a_proposal_whose_configuration_was_written_anew_is_sent_again() {
    let (mut fixture, one, two) = planned();
    let (id, _) = merge(&mut fixture, &one, &two);
    let (op, _) = fixture.ask();
    fixture.change("/leeward/region/1", Some(encode_value(&one)));
    let version = fixture.version;
    fixture.tell(CoordinatorEvent::Reply { id: op, result: Err(CoordinatorError::Stale { version }) });
    assert!(fixture.outcomes().is_empty());
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
}

fn merge(fixture: &mut Fixture, one: &GroupConfig, two: &GroupConfig) -> (ProposalId, GroupConfig) {
    let wider = one.merged_with(two);
    let id = fixture.agent.merge(fixture.now, one.clone(), wider.clone(), two.clone());
    fixture.asked.extend(fixture.agent.take_ops());
    (id, wider)
}

#[test]
fn the_target_grows_and_the_source_ends_or_neither() {
    let (mut fixture, one, two) = planned();
    let (id, wider) = merge(&mut fixture, &one, &two);
    let version = |fixture: &Fixture, region| fixture.agent.view().version_of(&ClusterPath::Region(region));
    let (first, second) = (version(&fixture, RegionId(1)).expect("it is there"), version(&fixture, SOURCE));
    let grow = CoordinatorOp::Set { path: "/leeward/region/1".into(), value: encode_value(&wider), version: first };
    let end = CoordinatorOp::Delete { path: "/leeward/region/2".into(), version: second };
    assert_eq!(fixture.asked[0].1, CoordinatorOp::All(vec![grow, end]), "no key is without a region in between");
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let view = fixture.agent.view();
    assert_eq!((view.region(RegionId(1)), view.region(SOURCE)), (Some(&wider), None));
    assert!(view.is_gone(SOURCE) && view.merging().next().is_none());
}

#[test]
fn a_late_merge_changes_nothing() {
    let (mut fixture, one, two) = planned();
    // The other region gets a new configuration before the operation is sent, or while it is on its way.
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

/// The absence of the source shows whether the merge was done, whatever changes of the target followed.
#[test]
fn the_ended_region_shows_the_result_of_a_merge_whose_answer_was_lost() {
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

/// The answer to the request was lost, and the region was merged since.
#[test]
fn a_fulfilled_request_is_accepted() {
    let (mut fixture, one, two) = planned();
    let whole = fixture.agent.request_for_region(fixture.now, SOURCE, RegionRequest::KeepBounds).expect("it may be");
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    assert_eq!(fixture.outcomes(), [(whole, Outcome::Accepted)]);
    let request = RegionRequest::Merge { into: RegionId(1) };
    let id = fixture.agent.request_for_region(fixture.now, SOURCE, request.clone()).expect("it may be");
    fixture.asked.clear();
    fixture.agent.take_ops();
    fixture.tell(CoordinatorEvent::Down);
    fixture.connect(&[("/leeward/region/1", Some(encode_value(&one.merged_with(&two))))]);
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let refusal = fixture.agent.request_for_region(fixture.now, SOURCE, request);
    assert_eq!(refusal, Err("there is no region 2".into()), "an operator who asks only now may mean another region");
}
