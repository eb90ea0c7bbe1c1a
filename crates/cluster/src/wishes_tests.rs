//! What can be wished for, and what is answered to what cannot.

use super::*;
use crate::bootstrap_op;
use crate::master::tests::{change, member, register};
use crate::{CoordinatorEvent, SessionId, Tree};
use leeward_format::cluster::{ClusterPath, TableOptions, encode_value};
use leeward_format::partition::Partition;

const REGION: RegionId = RegionId(1);

/// Region 1 has its primary on server 1 and a backup on server 2; server 3 lives too.
fn view() -> View {
    view_of(Partition::Range)
}

fn view_of(partition: Partition) -> View {
    let mut tree = Tree::new();
    let table = TableOptions { replicas: 2, partition, ..TableOptions::default() };
    tree.apply(None, &bootstrap_op(&table, &[])).unwrap();
    let mut view = View::default();
    view.handle(&CoordinatorEvent::Up { session: SessionId(1) });
    view.handle(&CoordinatorEvent::Changed(tree.changes().collect()));
    view.handle(&CoordinatorEvent::Synced { version: tree.version() });
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

fn configure(view: &mut View, config: &GroupConfig) {
    change(view, ClusterPath::Region(config.region), Some(encode_value(config)));
}

fn moved(from: u32, to: u32) -> RegionWish {
    RegionWish::Move { from: ServerId(from), to: ServerId(to) }
}

#[test]
fn another_primary_is_wished_for_among_the_members() {
    let mut view = view();
    let next = wished(&view, REGION, &RegionWish::Primary(ServerId(2))).unwrap().unwrap();
    assert_eq!(next.wishes, Wishes { primary: Some(ServerId(2)), leaving: None, plan: None });
    assert_eq!(next.epoch, view.region(REGION).unwrap().epoch.next());
    configure(&mut view, &next);
    assert_eq!(wished(&view, REGION, &RegionWish::Primary(ServerId(2))), Ok(None), "it is written down");
    let back = wished(&view, REGION, &RegionWish::Primary(ServerId(1))).unwrap().unwrap();
    assert_eq!(back.wishes, Wishes::default(), "it is the primary");
    let error = wished(&view, REGION, &RegionWish::Primary(ServerId(3))).unwrap_err();
    assert_eq!(error, "server 3 has no copy of region 1: members are 1, 2; move one there first");
    assert_eq!(wished(&view, RegionId(9), &RegionWish::Nothing).unwrap_err(), "there is no region 9");
}

#[test]
fn a_copy_moves_with_its_office() {
    let mut view = view();
    let next = wished(&view, REGION, &moved(1, 3)).unwrap().unwrap();
    assert_eq!(next.wishes, Wishes { primary: Some(ServerId(3)), leaving: Some(ServerId(1)), plan: None });
    assert_eq!(next.learners, [member(3, 1)]);
    let backup = wished(&view, REGION, &moved(2, 3)).unwrap().unwrap();
    assert_eq!(backup.wishes, Wishes { primary: None, leaving: Some(ServerId(2)), plan: None });
    configure(&mut view, &next);
    assert_eq!(wished(&view, REGION, &moved(1, 3)), Ok(None));
    assert!(wished(&view, REGION, &moved(2, 3)).unwrap_err().contains("server 1 is being moved"));
    let nothing = wished(&view, REGION, &RegionWish::Nothing).unwrap().unwrap();
    assert_eq!((nothing.wishes, nothing.learners), (Wishes::default(), next.learners), "the master sees to those");
}

#[test]
fn what_cannot_be_moved_is_said() {
    let mut view = view();
    assert_eq!(wished(&view, REGION, &moved(3, 2)), Ok(None), "it has been");
    assert!(wished(&view, REGION, &moved(3, 4)).unwrap_err().contains("server 3 has no copy of region 1"));
    assert!(wished(&view, REGION, &moved(1, 1)).unwrap_err().contains("to itself"));
    assert_eq!(wished(&view, REGION, &moved(1, 2)).unwrap_err(), "server 2 has a copy of region 1 already");
    assert_eq!(wished(&view, REGION, &moved(1, 4)).unwrap_err(), "server 4 is not there: live servers are 1, 2, 3");
    change(&mut view, ClusterPath::Intent(ServerId(3)), Some(encode_value(&Intent::Leave)));
    assert_eq!(wished(&view, REGION, &moved(1, 3)).unwrap_err(), "server 3 leaves: it takes no copies");
}

#[test]
fn a_server_leaves_only_where_enough_are_left() {
    let mut view = view();
    assert_eq!(may_leave(&view, ServerId(3)), Ok(()));
    change(&mut view, ClusterPath::Intent(ServerId(3)), Some(encode_value(&Intent::Leave)));
    let error = may_leave(&view, ServerId(1)).unwrap_err();
    assert!(error.contains("table default has 2 replicas, and 1 servers would be left"), "{error}");
    assert_eq!(may_leave(&view, ServerId(3)), Ok(()), "it is already counted as gone");
}

#[test]
fn who_departs_is_who_should_leave_the_group_or_the_cluster() {
    let mut view = view();
    let config = view.region(REGION).unwrap().clone();
    let leaving = config.wishing(Wishes { primary: None, leaving: Some(ServerId(2)), plan: None });
    assert_eq!(view.departs(&leaving, member(2, 1)), Some(Intent::Leave));
    assert_eq!(view.departs(&leaving, member(1, 1)), None);
    change(&mut view, ClusterPath::Intent(ServerId(1)), Some(encode_value(&Intent::Restart)));
    assert_eq!(view.departs(&config, member(1, 1)), Some(Intent::Restart));
}

fn split(at: Option<&'static str>) -> RegionWish {
    RegionWish::Split { at: at.map(Into::into) }
}

#[test]
fn a_region_is_to_become_two_with_a_number_that_nobody_has() {
    let mut view = view();
    let next = wished(&view, REGION, &split(Some("m"))).unwrap().unwrap();
    let planned = Plan::Split { at: Some("m".into()), child: RegionId(2) };
    assert_eq!(next.wishes.plan.as_ref(), Some(&planned));
    configure(&mut view, &next);
    for again in [split(Some("m")), split(None)] {
        assert_eq!(wished(&view, REGION, &again), Ok(None), "it is written down");
    }
    let other = wished(&view, REGION, &split(Some("n"))).unwrap_err();
    assert_eq!(other, "region 1 is being divided already, into it and region 2: wait for it, or cancel that");
    let moved = wished(&view, REGION, &moved(1, 3)).unwrap().unwrap();
    assert_eq!(moved.wishes.plan, Some(planned), "one wish does not forget another");
    assert_eq!(wished(&view, REGION, &RegionWish::Whole).unwrap().unwrap().wishes, Wishes::default());
    assert_eq!(wished(&view, REGION, &RegionWish::Nothing), Ok(None), "that is about members");
    let (left, right) = next.divided("m".into(), RegionId(2), leeward_format::SegmentId(9));
    configure(&mut view, &left);
    configure(&mut view, &right);
    assert_eq!(wished(&view, REGION, &split(Some("m"))), Ok(None), "it was divided there");
    for (region, at) in [(1, "n"), (1, ""), (2, "m"), (2, "a")] {
        let error = wished(&view, RegionId(region), &split(Some(at))).unwrap_err();
        assert!(error.contains("name one between"), "{region} at {at:?}: {error}");
    }
    let child = wished(&view, REGION, &split(None)).unwrap().unwrap().wishes.plan.and_then(|plan| plan.child());
    assert_eq!(child, Some(RegionId(3)));
}

#[test]
fn a_region_of_tokens_moves_and_stays_one() {
    let view = view_of(Partition::Hash { tokens: 2 });
    for at in [None, Some("m".into())] {
        let error = wished(&view, REGION, &RegionWish::Split { at }).unwrap_err();
        assert!(error.contains("partitioned by hash"), "{error}");
    }
    assert!(wished(&view, REGION, &moved(1, 3)).unwrap().is_some());
}

/// [`view`], with region 1 up to "m", and region 2, which server 3 has.
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
    wished(view, RegionId(region), &RegionWish::Merge { into: RegionId(into) })
}

#[test]
fn a_region_may_become_part_of_a_neighbour_and_of_no_other() {
    let mut view = neighbours();
    assert_eq!(merge(&view, 1, 1).unwrap_err(), "region 1 cannot become part of itself: name a neighbour");
    assert_eq!(merge(&view, 1, 3).unwrap_err(), "region 3 is no neighbour of region 1: neighbours are 2");
    assert_eq!(merge(&view, 2, 9).unwrap_err(), "region 9 is no neighbour of region 2: neighbours are 1, 3");
    assert_eq!(merge(&view, 9, 1).unwrap_err(), "there is no region 9");
    let next = merge(&view, 2, 1).unwrap().unwrap();
    assert_eq!(next.wishes, Wishes { plan: Some(Plan::Merge { into: REGION }), ..Wishes::default() });
    configure(&mut view, &next);
    assert_eq!(merge(&view, 2, 1), Ok(None), "it is written down");
    let text = "region 2 is becoming part of region 1: wait for it, or cancel that";
    assert_eq!(merge(&view, 2, 3).unwrap_err(), text);
    assert_eq!(merge(&view, 1, 2).unwrap_err(), text, "not both of each other");
    assert_eq!(merge(&view, 3, 2).unwrap_err(), text);
    let split = |region| wished(&view, RegionId(region), &RegionWish::Split { at: None });
    assert_eq!(split(2).unwrap_err(), text);
    assert_eq!(split(1).unwrap_err(), "region 1 is taking in region 2: wait for it, or cancel that");
    assert!(split(3).unwrap().is_some());
    let whole = wished(&view, RegionId(2), &RegionWish::Whole).unwrap().unwrap();
    assert_eq!(whole.wishes, Wishes::default());
    let hashed = view_of(Partition::Hash { tokens: 1 });
    assert!(merge(&hashed, 1, 2).unwrap_err().contains("partitioned by hash"));
}

#[test]
fn a_region_that_is_to_be_part_of_another_goes_where_that_has_its_primary() {
    let mut view = neighbours();
    let planned = merge(&view, 2, 1).unwrap().unwrap();
    assert_eq!(gathered(&view, view.region(RegionId(2)).unwrap()), None, "nobody wishes it");
    configure(&mut view, &planned);
    let next = gathered(&view, &planned).expect("its primary is elsewhere");
    assert_eq!((next.wishes.primary, next.wishes.leaving), (Some(ServerId(1)), Some(ServerId(3))));
    assert_eq!((&next.learners[..], &next.wishes.plan), (&[member(1, 1)][..], &planned.wishes.plan));
    assert_eq!(gathered(&view, &next), None, "one after the other");
    let there = GroupConfig { backups: vec![member(1, 1)], ..planned.clone() };
    configure(&mut view, &there);
    assert_eq!(gathered(&view, &there).expect("its office").wishes.primary, Some(ServerId(1)));
    let arrived = GroupConfig { primary: Some(member(1, 1)), backups: vec![member(3, 1)], ..planned.clone() };
    assert_eq!(gathered(&view, &arrived), None);
    let other = view.region(REGION).unwrap().clone();
    let wishes = Wishes { primary: Some(ServerId(2)), ..Wishes::default() };
    configure(&mut view, &other.wishing(wishes));
    assert_eq!(gathered(&view, &planned), None, "that one is about to have another primary");
}
