//! Full servers, on hand-made views: who hands a primary role over, and which servers get roles and copies.

use super::super::decide::tests::{group, kill, view};
use super::super::decide::{Assign, Policy};
use super::super::work_queue::WorkQueue;
use super::*;
use crate::view::tests::{change, configure, member, register};
use leeward_format::cluster::{ClusterPath, DesiredState, Intent, TableOptions, encode_value};
use leeward_format::load::{Fullness, ServerLoad};
use leeward_platform::Nanos;

const GIB: u64 = 1 << 30;
const FULL: (u64, Fullness) = (GIB, Fullness::Full);
/// It refused writes, and takes some again.
const RECOVERED: (u64, Fullness) = (GIB / 2, Fullness::WasFull);
const NEARLY: (u64, Fullness) = (98 * GIB / 100, Fullness::HasRoom);
const EMPTY: (u64, Fullness) = (0, Fullness::HasRoom);

/// Servers, numbered from 1, that have so many bytes in use of a GiB.
fn rooms(servers: &[(u64, Fullness)]) -> Rooms {
    let mut rooms = Rooms::default();
    for (server, (used, fullness)) in (1..).zip(servers) {
        let load = ServerLoad { used: *used, capacity: Some(GIB), fullness: *fullness, regions: Vec::new() };
        rooms.hear(Nanos::ZERO, member(server, 1), &load);
    }
    rooms
}

/// The live servers 1 to 4, and one region, in a group of three or fewer.
fn with(primary: u32, backups: &[u32], learners: &[u32]) -> (View, GroupConfig) {
    among(4, primary, backups, learners)
}

/// The live servers from 1 up to this one, and one region.
fn among(servers: u32, primary: u32, backups: &[u32], learners: &[u32]) -> (View, GroupConfig) {
    let live: Vec<_> = (1..=servers).map(|server| (member(server, 1), None)).collect();
    let mut view = view(1, 3, &live);
    let members = |servers: &[u32]| servers.iter().map(|server| member(*server, 1)).collect::<Vec<_>>();
    let config = group(&view, 5, member(primary, 1), &members(backups), &members(learners));
    configure(&mut view, &config);
    (view, config)
}

fn decided(view: &View, rooms: &Rooms, assign: Assign) -> Option<GroupConfig> {
    let policy = Policy { assign, keeps: true };
    let next = WorkQueue::default().decide(view, rooms, policy, |_| true).next;
    next.first().map(|config| GroupConfig::clone(config))
}

fn relieved(view: &View, rooms: &Rooms) -> Option<RegionRequest> {
    relief(view, rooms, |_| true).pop().map(|(_, request)| request)
}

#[test]
fn a_full_primary_hands_over_to_a_member_in_sync_that_has_room() {
    let (view, _) = with(1, &[2, 3], &[]);
    assert_eq!(relieved(&view, &rooms(&[FULL, FULL, EMPTY])), Some(RegionRequest::Primary(ServerId(3))));
    assert_eq!(relieved(&view, &rooms(&[FULL, NEARLY, EMPTY])), Some(RegionRequest::Primary(ServerId(3))));
    assert_eq!(relieved(&view, &rooms(&[FULL, NEARLY, FULL])), Some(RegionRequest::Primary(ServerId(2))));
    assert_eq!(relieved(&view, &rooms(&[FULL, NEARLY, RECOVERED])), Some(RegionRequest::Primary(ServerId(2))));
    assert_eq!(relieved(&view, &rooms(&[RECOVERED, EMPTY, FULL])), Some(RegionRequest::Primary(ServerId(2))));
    assert_eq!(relieved(&view, &rooms(&[FULL, FULL, FULL])), None, "no member has room");
    // Seed 63246: it took no writes for a minute, while a member had room again.
    assert_eq!(relieved(&view, &rooms(&[FULL, FULL, RECOVERED])), Some(RegionRequest::Primary(ServerId(3))));
    assert_eq!(relieved(&view, &rooms(&[RECOVERED, FULL, RECOVERED])), None, "it takes writes where it is");
    assert_eq!(relieved(&view, &rooms(&[FULL])), None, "the others have not said whether they have");
    assert_eq!(relieved(&view, &rooms(&[NEARLY, EMPTY, EMPTY])), None, "it takes writes");
    assert_eq!(relieved(&view, &Rooms::default()), None);
    assert!(relief(&view, &rooms(&[FULL, EMPTY, EMPTY]), |_| false).is_empty(), "another change is under way");
    let (view, _) = with(1, &[], &[2, 3]);
    assert_eq!(relieved(&view, &rooms(&[FULL, EMPTY, EMPTY])), None, "a learner is not in sync");
}

#[test]
fn a_full_primary_is_not_asked_twice_nor_in_favour_of_a_member_that_goes() {
    let (mut view, config) = with(1, &[2, 3], &[]);
    let rooms = rooms(&[FULL, EMPTY, EMPTY]);
    let desired = |primary, leaving| DesiredState { primary, leaving, plan: None };
    configure(&mut view, &config.with_desired(desired(Some(ServerId(3)), None)));
    assert_eq!(relieved(&view, &rooms), None, "somebody has asked for another already");
    let (mut view, config) = with(1, &[2, 3], &[]);
    configure(&mut view, &config.with_desired(desired(None, Some(ServerId(2)))));
    assert_eq!(relieved(&view, &rooms), Some(RegionRequest::Primary(ServerId(3))));
    kill(&mut view, 3);
    assert_eq!(relieved(&view, &rooms), None);
}

/// Seed 2527: a merge that was never done kept the role of its source on a full server.
#[test]
fn a_merge_source_leaves_a_full_server_unless_its_target_has_room() {
    let live: Vec<_> = (1..=3).map(|server| (member(server, 1), None)).collect();
    let mut view = view(2, 2, &live);
    let of = |view: &View, region: u32, primary: u32| {
        let config = group(view, 5, member(primary, 1), &[member(3, 1)], &[]);
        let known = view.region(RegionId(region)).unwrap();
        let (region, start, end) = (known.region, known.start.clone(), known.end.clone());
        GroupConfig { region, start, end, ..config }
    };
    let plan = Some(Plan::Merge { into: RegionId(2) });
    let source = of(&view, 1, 1).with_desired(DesiredState { plan, ..DesiredState::default() });
    configure(&mut view, &source);
    let target = of(&view, 2, 1);
    configure(&mut view, &target);
    let both = relief(&view, &rooms(&[FULL, FULL, EMPTY]), |_| true);
    let to = RegionRequest::Primary(ServerId(3));
    assert_eq!(both, [(RegionId(1), to.clone()), (RegionId(2), to)], "the target is full too");
    let target = of(&view, 2, 2);
    configure(&mut view, &target);
    assert_eq!(relief(&view, &rooms(&[FULL, EMPTY, EMPTY]), |_| true), [], "it follows the primary of its target");
    // It stays where it is until that server has room again, and then goes there without another event.
    let mut work_queue = WorkQueue::default();
    let policy = Policy { assign: Assign::Any, keeps: true };
    let mut decided = |rooms: &Rooms| {
        let next = work_queue.decide(&view, rooms, policy, |_| true).next;
        next.into_iter().find(|config| config.region == source.region).map(|config| config.learners.clone())
    };
    assert_eq!(decided(&rooms(&[EMPTY, FULL, EMPTY])), None);
    assert_eq!(decided(&rooms(&[EMPTY, EMPTY, EMPTY])), Some(vec![member(2, 1)]));
}

#[test]
fn the_roles_of_a_full_server_go_to_several_members_a_few_at_a_time() {
    let live: Vec<_> = (1..=3).map(|server| (member(server, 1), None)).collect();
    let mut view = view(9, 3, &live);
    for region in (1..=9).map(RegionId) {
        let config = GroupConfig { region, ..group(&view, 5, member(1, 1), &[member(2, 1), member(3, 1)], &[]) };
        let (start, end) = view.region(region).map(|known| (known.start.clone(), known.end.clone())).unwrap();
        configure(&mut view, &GroupConfig { start, end, ..config });
    }
    let rooms = rooms(&[FULL, EMPTY, EMPTY]);
    let steps = relief(&view, &rooms, |_| true);
    let to = |server| steps.iter().filter(|step| step.1 == RegionRequest::Primary(ServerId(server))).count();
    assert_eq!((steps.len(), to(2), to(3)), (HAND_OVERS as usize, 2, 2));
    for (region, request) in &steps {
        let next = crate::view::requested(&view, *region, request).unwrap().unwrap();
        configure(&mut view, &next);
    }
    assert!(relief(&view, &rooms, |_| true).is_empty(), "these come first");
}

#[test]
fn a_place_is_filled_by_a_server_with_room_and_where_there_is_none_by_a_full_one() {
    let (mut view, _) = with(1, &[2], &[]);
    let learners = |view: &View, rooms: &Rooms| decided(view, rooms, Assign::Any).unwrap().learners;
    assert_eq!(learners(&view, &Rooms::default()), [member(3, 1)]);
    assert_eq!(learners(&view, &rooms(&[EMPTY, EMPTY, FULL, NEARLY])), [member(4, 1)]);
    assert_eq!(learners(&view, &rooms(&[EMPTY, EMPTY, NEARLY, EMPTY])), [member(4, 1)]);
    assert_eq!(learners(&view, &rooms(&[EMPTY, EMPTY, FULL, FULL])), [member(3, 1)], "better than none");
    // A server that has the copy needs little room for the rest.
    register(&mut view, member(3, 1), Some((5, 9)));
    let mut large = rooms(&[EMPTY, EMPTY, (GIB / 2, Fullness::HasRoom), EMPTY]);
    large.size(RegionId(1), GIB * 3 / 4);
    assert_eq!(learners(&view, &large), [member(3, 1)]);
    register(&mut view, member(3, 1), None);
    assert_eq!(learners(&view, &large), [member(4, 1)]);
}

#[test]
fn a_learner_on_a_full_server_gives_its_place_to_a_server_with_room() {
    let (view, _) = with(1, &[2], &[3]);
    assert_eq!(decided(&view, &rooms(&[EMPTY, EMPTY, EMPTY, EMPTY]), Assign::Any), None);
    assert_eq!(decided(&view, &rooms(&[EMPTY, EMPTY, FULL, FULL]), Assign::Any), None);
    assert_eq!(decided(&view, &rooms(&[EMPTY, EMPTY, FULL, NEARLY]), Assign::Any), None, "it would soon be full too");
    let next = decided(&view, &rooms(&[EMPTY, EMPTY, FULL, EMPTY]), Assign::Any).expect("another server has room");
    assert_eq!(next.learners, [member(4, 1)]);
}

/// Seed 43273: the group was too small for writes for a minute, while a server had room again.
#[test]
fn a_group_too_small_for_writes_does_not_wait_until_a_server_has_long_had_room() {
    let (mut view, _) = with(1, &[], &[3]);
    let learners = |view: &View, rooms: &Rooms| decided(view, rooms, Assign::Any).map(|next| next.learners);
    let options = |min_in_sync| TableOptions { replicas: 2, min_in_sync, ..TableOptions::default() };
    let set = |view: &mut View, options: &TableOptions| {
        change(view, ClusterPath::Table("default".into()), Some(encode_value(options)));
    };
    set(&mut view, &options(2));
    assert_eq!(learners(&view, &rooms(&[EMPTY, FULL, FULL, RECOVERED])), Some(vec![member(4, 1)]));
    assert_eq!(learners(&view, &rooms(&[EMPTY, FULL, RECOVERED, RECOVERED])), None, "it has as much room");
    assert_eq!(learners(&view, &rooms(&[EMPTY, FULL, RECOVERED, EMPTY])), Some(vec![member(4, 1)]));
    set(&mut view, &options(1));
    assert_eq!(learners(&view, &rooms(&[EMPTY, FULL, FULL, RECOVERED])), None, "it takes writes, and can wait");
}

#[test]
fn the_target_of_a_move_keeps_its_place_on_a_full_server() {
    let (mut view, config) = among(5, 1, &[2, 4], &[3]);
    let rooms = rooms(&[EMPTY, EMPTY, FULL, EMPTY, EMPTY]);
    configure(&mut view, &config.with_desired(DesiredState { leaving: Some(ServerId(2)), ..config.desired.clone() }));
    assert_eq!(decided(&view, &rooms, Assign::Any), None, "a move names its target");
}

#[test]
fn copies_that_are_decided_together_share_the_room_of_a_server() {
    let live: Vec<_> = (1..=4).map(|server| (member(server, 1), None)).collect();
    let mut view = view(8, 3, &live);
    let mut rooms = rooms(&[EMPTY, EMPTY, (6 * GIB / 10, Fullness::HasRoom), EMPTY]);
    for region in (1..=8).map(RegionId) {
        let (start, end) = view.region(region).map(|known| (known.start.clone(), known.end.clone())).unwrap();
        let config = GroupConfig { region, ..group(&view, 5, member(1, 1), &[member(2, 1)], &[]) };
        configure(&mut view, &GroupConfig { start, end, ..config });
        rooms.size(region, GIB / 10);
    }
    let policy = Policy { assign: Assign::Any, keeps: true };
    let mut work_queue = WorkQueue::default();
    let decided = work_queue.decide(&view, &rooms, policy, |_| true).next;
    let on = |server| decided.iter().filter(|config| config.learners == [member(server, 1)]).count();
    assert_eq!((on(3), on(4)), (3, 5), "a tenth of the third server stays free");
    for config in &decided {
        configure(&mut view, &GroupConfig::clone(config));
        work_queue.put_back(config.region);
    }
    assert!(work_queue.decide(&view, &rooms, policy, |_| true).next.is_empty());
}

#[test]
fn a_member_with_room_is_promoted_and_a_full_one_where_there_is_no_other() {
    let (mut view, config) = with(1, &[2, 3], &[]);
    kill(&mut view, 1);
    let primary = |view: &View, rooms: &Rooms| decided(view, rooms, Assign::Any).unwrap().primary.unwrap().server;
    assert_eq!(primary(&view, &Rooms::default()), ServerId(2));
    assert_eq!(primary(&view, &rooms(&[EMPTY, FULL, NEARLY])), ServerId(3));
    assert_eq!(primary(&view, &rooms(&[EMPTY, FULL, FULL])), ServerId(2));
    configure(&mut view, &config.with_desired(DesiredState { primary: Some(ServerId(2)), ..config.desired.clone() }));
    assert_eq!(primary(&view, &rooms(&[EMPTY, FULL, EMPTY])), ServerId(3), "whatever was requested");
    change(&mut view, ClusterPath::Intent(ServerId(3)), Some(encode_value(&Intent::Leave)));
    assert_eq!(primary(&view, &rooms(&[EMPTY, FULL, EMPTY])), ServerId(2), "it would have to hand over at once");
}

#[test]
fn a_new_table_is_made_on_servers_with_room() {
    let live: Vec<_> = (1..=4).map(|server| (member(server, 1), None)).collect();
    let view = view(8, 3, &live);
    let rooms = rooms(&[FULL, EMPTY, EMPTY, EMPTY]);
    let policy = Policy { assign: Assign::Any, keeps: true };
    let decided = WorkQueue::default().decide(&view, &rooms, policy, |_| true).next;
    assert_eq!(decided.len(), 8);
    assert!(decided.iter().all(|config| !config.has(member(1, 1))), "{decided:?}");
}

#[test]
fn of_the_copies_above_the_number_of_replicas_the_one_on_a_full_server_leaves() {
    let (view, _) = with(1, &[2, 3, 4], &[]);
    let leaving = |rooms: &Rooms| decided(&view, rooms, Assign::Any).unwrap().desired.leaving;
    assert_eq!(leaving(&rooms(&[EMPTY, FULL, EMPTY, EMPTY])), Some(ServerId(2)));
    assert_eq!(leaving(&rooms(&[EMPTY, EMPTY, EMPTY, EMPTY])), Some(ServerId(4)));
}

#[test]
fn a_report_that_is_old_or_of_a_process_that_is_gone_counts_no_more() {
    let (mut view, _) = with(1, &[2, 3], &[]);
    let mut rooms = rooms(&[FULL, FULL]);
    rooms.forget_old(Nanos::from_secs(9), &view, Nanos::from_secs(10));
    assert!(rooms.is_full(member(1, 1)) && !rooms.is_full(member(1, 2)) && rooms.of(member(3, 1)).is_none());
    kill(&mut view, 2);
    rooms.forget_old(Nanos::from_secs(9), &view, Nanos::from_secs(10));
    assert!(rooms.is_full(member(1, 1)) && !rooms.is_full(member(2, 1)));
    rooms.forget_old(Nanos::from_secs(11), &view, Nanos::from_secs(10));
    assert!(!rooms.is_full(member(1, 1)));
}
