//! Requests that are possible, and the errors for those that are not.

use super::super::tests::{change, configure, member, register, synced};
use super::*;
use leeward_format::cluster::{ClusterPath, TableOptions, encode_value};
use leeward_format::partition::Partition;

const REGION: RegionId = RegionId(1);

/// Region 1 has its primary on server 1 and a backup on server 2. Server 3 is live too.
fn view() -> View {
    view_of(Partition::Range)
}

fn view_of(partition: Partition) -> View {
    let mut view = synced(&TableOptions { replicas: 2, partition, ..TableOptions::default() }, &[]);
    for server in 1..=3 {
        register(&mut view, member(server, 1), None);
    }
    let config = GroupConfig {
        primary: Some(member(1, 1)),
        backups: vec![member(2, 1)],
        ..view.region(REGION).unwrap().clone()
    };
    configure(&mut view, &config);
    view
}

fn moved(from: u32, to: u32) -> RegionRequest {
    RegionRequest::Move { from: ServerId(from), to: ServerId(to) }
}

#[test]
fn another_primary_is_requested_among_the_members() {
    let mut view = view();
    let next = requested(&view, REGION, &RegionRequest::Primary(ServerId(2))).unwrap().unwrap();
    assert_eq!(next.desired, DesiredState { primary: Some(ServerId(2)), leaving: None, plan: None });
    assert_eq!(next.epoch, view.region(REGION).unwrap().epoch.next());
    configure(&mut view, &next);
    assert_eq!(requested(&view, REGION, &RegionRequest::Primary(ServerId(2))), Ok(None), "it is recorded already");
    let back = requested(&view, REGION, &RegionRequest::Primary(ServerId(1))).unwrap().unwrap();
    assert_eq!(back.desired, DesiredState::default(), "it is the primary");
    let error = requested(&view, REGION, &RegionRequest::Primary(ServerId(3))).unwrap_err();
    assert_eq!(error, "server 3 has no copy of region 1: members are 1, 2; move one there first");
    assert_eq!(requested(&view, RegionId(9), &RegionRequest::KeepMembers).unwrap_err(), "there is no region 9");
}

#[test]
fn the_copy_of_a_primary_moves_with_its_role() {
    let mut view = view();
    let next = requested(&view, REGION, &moved(1, 3)).unwrap().unwrap();
    assert_eq!(next.desired, DesiredState { primary: Some(ServerId(3)), leaving: Some(ServerId(1)), plan: None });
    assert_eq!(next.learners, [member(3, 1)]);
    let backup = requested(&view, REGION, &moved(2, 3)).unwrap().unwrap();
    assert_eq!(backup.desired, DesiredState { primary: None, leaving: Some(ServerId(2)), plan: None });
    configure(&mut view, &next);
    assert_eq!(requested(&view, REGION, &moved(1, 3)), Ok(None));
    assert!(requested(&view, REGION, &moved(2, 3)).unwrap_err().contains("server 1 is being moved"));
    let nothing = requested(&view, REGION, &RegionRequest::KeepMembers).unwrap().unwrap();
    assert_eq!(
        (nothing.desired, nothing.learners),
        (DesiredState::default(), next.learners),
        "the master sees to those"
    );
}

#[test]
fn an_impossible_move_is_refused_with_the_reason() {
    let mut view = view();
    assert_eq!(requested(&view, REGION, &moved(3, 2)), Ok(None), "it was moved already");
    assert!(requested(&view, REGION, &moved(3, 4)).unwrap_err().contains("server 3 has no copy of region 1"));
    assert!(requested(&view, REGION, &moved(1, 1)).unwrap_err().contains("to itself"));
    assert_eq!(requested(&view, REGION, &moved(1, 2)).unwrap_err(), "server 2 has a copy of region 1 already");
    assert_eq!(requested(&view, REGION, &moved(1, 4)).unwrap_err(), "server 4 is not there: live servers are 1, 2, 3");
    change(&mut view, ClusterPath::Intent(ServerId(3)), Some(encode_value(&Intent::Leave)));
    assert_eq!(requested(&view, REGION, &moved(1, 3)).unwrap_err(), "server 3 leaves: it takes no copies");
}

#[test]
fn a_server_leaves_only_if_enough_others_are_left() {
    let mut view = view();
    assert_eq!(may_leave(&view, ServerId(3)), Ok(()));
    change(&mut view, ClusterPath::Intent(ServerId(3)), Some(encode_value(&Intent::Leave)));
    let error = may_leave(&view, ServerId(1)).unwrap_err();
    assert!(error.contains("table default has 2 replicas, and 1 servers would be left"), "{error}");
    assert_eq!(may_leave(&view, ServerId(3)), Ok(()), "it is already counted as gone");
}

#[test]
fn a_member_departs_if_it_should_leave_the_group_or_the_cluster() {
    let mut view = view();
    let config = view.region(REGION).unwrap().clone();
    let leaving = config.with_desired(DesiredState { primary: None, leaving: Some(ServerId(2)), plan: None });
    assert_eq!(view.departs(&leaving, member(2, 1)), Some(Intent::Leave));
    assert_eq!(view.departs(&leaving, member(1, 1)), None);
    change(&mut view, ClusterPath::Intent(ServerId(1)), Some(encode_value(&Intent::Restart)));
    assert_eq!(view.departs(&config, member(1, 1)), Some(Intent::Restart));
}

fn split(at: Option<&'static str>) -> RegionRequest {
    RegionRequest::Split { at: at.map(Into::into) }
}

#[test]
fn a_split_plan_takes_a_free_region_number() {
    let mut view = view();
    let next = requested(&view, REGION, &split(Some("m"))).unwrap().unwrap();
    let planned = Plan::Split { at: Some("m".into()), child: RegionId(2) };
    assert_eq!(next.desired.plan.as_ref(), Some(&planned));
    configure(&mut view, &next);
    for again in [split(Some("m")), split(None)] {
        assert_eq!(requested(&view, REGION, &again), Ok(None), "it is recorded already");
    }
    let other = requested(&view, REGION, &split(Some("n"))).unwrap_err();
    assert_eq!(other, "region 1 is being split already, into it and region 2: wait for it, or cancel that");
    let moved = requested(&view, REGION, &moved(1, 3)).unwrap().unwrap();
    assert_eq!(moved.desired.plan, Some(planned), "a request keeps the others");
    assert_eq!(requested(&view, REGION, &RegionRequest::KeepBounds).unwrap().unwrap().desired, DesiredState::default());
    assert_eq!(requested(&view, REGION, &RegionRequest::KeepMembers), Ok(None), "that request is about members");
    let (left, right) = next.split("m".into(), RegionId(2), leeward_format::SegmentId(9));
    configure(&mut view, &left);
    configure(&mut view, &right);
    assert_eq!(requested(&view, REGION, &split(Some("m"))), Ok(None), "it was split there");
    for (region, at) in [(1, "n"), (1, ""), (2, "m"), (2, "a")] {
        let error = requested(&view, RegionId(region), &split(Some(at))).unwrap_err();
        assert!(error.contains("name one between"), "{region} at {at:?}: {error}");
    }
    let child = requested(&view, REGION, &split(None)).unwrap().unwrap().desired.plan.and_then(|plan| plan.child());
    assert_eq!(child, Some(RegionId(3)));
}

#[test]
fn a_region_of_tokens_can_be_moved_but_not_split() {
    let view = view_of(Partition::Hash { tokens: 2 });
    for at in [None, Some("m".into())] {
        let error = requested(&view, REGION, &RegionRequest::Split { at }).unwrap_err();
        assert!(error.contains("partitioned by hash"), "{error}");
    }
    assert!(requested(&view, REGION, &moved(1, 3)).unwrap().is_some());
}

/// [`view`], with region 1 up to "m", and region 2, whose primary is server 3.
fn neighbours() -> View {
    let mut view = view();
    let one = GroupConfig { end: Some("m".into()), ..view.region(REGION).unwrap().clone() };
    let two = GroupConfig {
        region: RegionId(2),
        start: "m".into(),
        end: Some("t".into()),
        primary: Some(member(3, 1)),
        backups: vec![member(2, 1)],
        ..one.clone()
    };
    let three = GroupConfig { region: RegionId(3), start: "t".into(), end: None, ..two.clone() };
    [one, two, three].iter().for_each(|config| configure(&mut view, config));
    view
}

fn merge(view: &View, region: u32, into: u32) -> Result<Option<GroupConfig>, String> {
    requested(view, RegionId(region), &RegionRequest::Merge { into: RegionId(into) })
}

#[test]
fn a_region_may_be_merged_into_a_neighbour_and_into_no_other() {
    let mut view = neighbours();
    assert_eq!(merge(&view, 1, 1).unwrap_err(), "region 1 cannot be merged into itself: name a neighbour");
    assert_eq!(merge(&view, 1, 3).unwrap_err(), "region 3 is no neighbour of region 1: neighbours are 2");
    assert_eq!(merge(&view, 2, 9).unwrap_err(), "region 9 is no neighbour of region 2: neighbours are 1, 3");
    assert_eq!(merge(&view, 9, 1).unwrap_err(), "there is no region 9");
    let next = merge(&view, 2, 1).unwrap().unwrap();
    assert_eq!(next.desired, DesiredState { plan: Some(Plan::Merge { into: REGION }), ..DesiredState::default() });
    configure(&mut view, &next);
    assert_eq!(merge(&view, 2, 1), Ok(None), "it is recorded already");
    let text = "region 2 is being merged into region 1: wait for it, or cancel that";
    assert_eq!(merge(&view, 2, 3).unwrap_err(), text);
    assert_eq!(merge(&view, 1, 2).unwrap_err(), text, "not both ways");
    assert_eq!(merge(&view, 3, 2).unwrap_err(), text);
    let split = |region| requested(&view, RegionId(region), &RegionRequest::Split { at: None });
    assert_eq!(split(2).unwrap_err(), text);
    assert_eq!(split(1).unwrap_err(), "region 1 is the target of a merge with region 2: wait for it, or cancel that");
    assert!(split(3).unwrap().is_some());
    let whole = requested(&view, RegionId(2), &RegionRequest::KeepBounds).unwrap().unwrap();
    assert_eq!(whole.desired, DesiredState::default());
    let hashed = view_of(Partition::Hash { tokens: 1 });
    assert!(merge(&hashed, 1, 2).unwrap_err().contains("partitioned by hash"));
}

#[test]
fn a_merge_source_moves_to_the_server_of_the_targets_primary() {
    let mut view = neighbours();
    let moved = |view: &View, config: &GroupConfig| merge_source_moved(view, config, |_| false);
    let planned = merge(&view, 2, 1).unwrap().unwrap();
    assert_eq!(moved(&view, view.region(RegionId(2)).unwrap()), None, "there is no merge plan");
    configure(&mut view, &planned);
    let next = moved(&view, &planned).expect("its primary is elsewhere");
    assert_eq!((next.desired.primary, next.desired.leaving), (Some(ServerId(1)), Some(ServerId(3))));
    assert_eq!((&next.learners[..], &next.desired.plan), (&[member(1, 1)][..], &planned.desired.plan));
    assert_eq!(moved(&view, &next), None, "one after the other");
    assert_eq!(merge_source_moved(&view, &planned, |server| server == member(1, 1)), None, "that server is full");
    let there = GroupConfig { backups: vec![member(1, 1)], ..planned.clone() };
    configure(&mut view, &there);
    assert_eq!(moved(&view, &there).expect("its primary role moves").desired.primary, Some(ServerId(1)));
    let arrived = GroupConfig { primary: Some(member(1, 1)), backups: vec![member(3, 1)], ..planned.clone() };
    assert_eq!(moved(&view, &arrived), None);
    let other = view.region(REGION).unwrap().clone();
    let desired = DesiredState { primary: Some(ServerId(2)), ..DesiredState::default() };
    configure(&mut view, &other.with_desired(desired));
    assert_eq!(moved(&view, &planned), None, "the target is about to have another primary");
}
