//! The mirror follows the tree, and keeps the old tree while a new one is told.

use super::*;
use crate::bootstrap_op;
use crate::{SessionId, Tree};
use bytes::Bytes;
use leeward_format::cluster::{CopyFound, DesiredState, PriorMember, encode_value};
use leeward_format::coordinator::CoordinatorOp;
use leeward_format::routing::Routing;
use leeward_format::{Epoch, Incarnation, Lsn, TableId, VolumeId};

fn info(server: u32, incarnation: u64) -> ServerInfo {
    ServerInfo::of(Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(incarnation) })
}

fn changed(path: &str, version: u64, value: Option<Bytes>) -> CoordinatorEvent {
    CoordinatorEvent::Changed(vec![Change { path: path.into(), version, value }])
}

pub(crate) const UP: CoordinatorEvent = CoordinatorEvent::Up { session: SessionId(1) };

pub(crate) fn member(server: u32, incarnation: u64) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(incarnation) }
}

/// A view of a cluster with nothing but this table.
pub(crate) fn synced(table: &TableOptions, splits: &[Bytes]) -> View {
    let mut tree = Tree::new();
    tree.apply(None, &bootstrap_op(table, TableId(1), splits)).unwrap();
    let mut view = View::default();
    view.handle(&UP);
    view.handle(&CoordinatorEvent::Changed(tree.changes().collect()));
    view.handle(&CoordinatorEvent::Synced { version: tree.version() });
    view
}

pub(crate) fn change(view: &mut View, path: ClusterPath, value: Option<Bytes>) {
    let version = view.version() + 1;
    view.handle(&CoordinatorEvent::Changed(vec![Change { path: path.to_string(), version, value }]));
}

pub(crate) fn register(view: &mut View, member: Member, copy: Option<(u32, u64)>) {
    let copies = copy.map(|(term, lsn)| CopyFound::new(RegionId(1), Epoch(term), Lsn(lsn)));
    let info = ServerInfo { copies: copies.into_iter().collect(), ..ServerInfo::of(member) };
    change(view, ClusterPath::Server(member.server), Some(encode_value(&info)));
}

pub(crate) fn configure(view: &mut View, config: &GroupConfig) {
    change(view, ClusterPath::Region(config.region), Some(encode_value(config)));
}

#[test]
fn reads_what_bootstrap_makes_and_sorts_regions_by_key() {
    let mut tree = Tree::new();
    let splits = [Bytes::from("g"), Bytes::from("p")];
    let table = TableOptions::default();
    tree.apply(None, &bootstrap_op(&table, TableId(1), &splits)).unwrap();
    let again = tree.apply(None, &bootstrap_op(&table, TableId(1), &splits[..1]));
    assert!(matches!(again, Err(crate::CoordinatorError::Exists { .. })), "a cluster is made once: {again:?}");

    let mut view = View::default();
    view.handle(&UP);
    for change in tree.changes() {
        view.handle(&CoordinatorEvent::Changed(vec![change]));
    }
    assert!(!view.is_synced() && view.regions().count() == 0);
    view.handle(&CoordinatorEvent::Synced { version: 9 });
    assert!(view.is_synced());
    assert_eq!(view.table("default"), Some(&table));
    let map = view.routes().region_map();
    assert_eq!(map.version, 9);
    let bounds: Vec<(&[u8], Option<&[u8]>)> =
        map.regions.iter().map(|region| (&region.start[..], region.end.as_deref())).collect();
    assert_eq!(bounds, [(&b""[..], Some(&b"g"[..])), (b"g", Some(b"p")), (b"p", None)]);
    assert_eq!(view.routes().region_of("default", b"h").map(|region| region.region), Some(RegionId(2)));
    let changed = view.take_changed();
    assert_eq!(changed.regions, (1..=3).map(RegionId).collect());
    assert!(changed.servers && changed.tables.contains("default"));
    assert!(view.take_changed().is_empty());
}

#[test]
fn differences_that_a_new_connection_shows_are_changes() {
    let mut tree = Tree::new();
    let table = TableOptions::default();
    tree.apply(None, &bootstrap_op(&table, TableId(1), &[Bytes::from("g"), Bytes::from("p")])).unwrap();
    let mut view = View::default();
    let connect = |view: &mut View, tree: &Tree| {
        view.handle(&UP);
        view.handle(&CoordinatorEvent::Changed(tree.changes().collect()));
        assert!(view.take_changed().is_empty(), "nothing has changed until the new tree is complete");
        view.handle(&CoordinatorEvent::Synced { version: tree.version() });
        view.take_changed()
    };
    assert_eq!(connect(&mut view, &tree).regions.len(), 3);
    assert!(connect(&mut view, &tree).regions.is_empty());
    // Region 3 was merged into region 2.
    let config = GroupConfig { epoch: Epoch(1), end: None, ..view.region(RegionId(2)).unwrap().clone() };
    let (path, value) = (ClusterPath::Region(RegionId(2)).to_string(), encode_value(&config));
    let version = tree.get(&path).unwrap().0;
    tree.apply(None, &CoordinatorOp::Set { path, value, version }).unwrap();
    let path = ClusterPath::Region(RegionId(3)).to_string();
    tree.apply(None, &CoordinatorOp::Delete { path, version: None }).unwrap();
    let changed = connect(&mut view, &tree);
    assert_eq!(changed.regions, [RegionId(2), RegionId(3)].into());
    assert!(changed.tables.is_empty() && changed.servers, "servers always count as changed");
}

#[test]
fn a_new_connection_replaces_the_old_tree_at_once() {
    let mut view = View::default();
    view.handle(&UP);
    for server in [1, 2] {
        view.handle(&changed(
            &format!("/leeward/server/{server}"),
            server.into(),
            Some(encode_value(&info(server, 5))),
        ));
    }
    view.handle(&CoordinatorEvent::Synced { version: 2 });
    view.handle(&CoordinatorEvent::Down);
    assert!(!view.is_synced() && view.is_live(info(1, 5).member));
    view.handle(&UP);
    view.handle(&changed("/leeward/server/2", 7, Some(encode_value(&info(2, 6)))));
    assert!(view.is_live(info(1, 5).member), "as before, until the new tree is complete");
    view.handle(&CoordinatorEvent::Synced { version: 8 });
    assert!(!view.is_live(info(1, 5).member) && !view.is_live(info(2, 5).member) && view.is_live(info(2, 6).member));
    assert_eq!((view.version(), view.version_of(&ClusterPath::Server(ServerId(2)))), (8, Some(7)));
    view.handle(&changed("/leeward/server/2", 9, None));
    assert!(!view.is_live(info(2, 6).member));
    assert_eq!(view.version(), 9);
}

/// Seed 54135: in a tree that was put back, and restored since, a region of before and one of now named one child.
#[test]
fn a_child_is_planned_until_no_region_plans_it() {
    let mut view = synced(&TableOptions::default(), &[]);
    let planning = |region, plan| {
        let desired = DesiredState { plan, ..DesiredState::default() };
        GroupConfig { desired, ..GroupConfig::unassigned(RegionId(region), "default") }
    };
    let split = Some(Plan::Split { at: None, child: RegionId(9) });
    configure(&mut view, &planning(2, split.clone()));
    configure(&mut view, &planning(4, split));
    configure(&mut view, &planning(2, None));
    assert!(view.is_planned(RegionId(9)), "region 4 is to be split");
    configure(&mut view, &planning(4, None));
    assert!(!view.is_planned(RegionId(9)));
}

#[test]
fn unreadable_values_are_left_out() {
    let mut view = View::default();
    view.handle(&UP);
    view.handle(&CoordinatorEvent::Synced { version: 0 });
    view.handle(&changed("/leeward/server/1", 1, Some(encode_value(&info(1, 5)))));
    view.handle(&changed("/leeward/server/2", 2, Some(encode_value(&info(1, 5)))));
    view.handle(&changed("/leeward/region/1", 3, Some(Bytes::from_static(b"\xff\xff\xff\xff\xff"))));
    view.handle(&changed("/leeward/master", 4, Some(Bytes::new())));
    view.handle(&changed("/another/path", 5, Some(Bytes::new())));
    assert_eq!((view.servers().count(), view.regions().count(), view.master()), (1, 0, None));
    view.handle(&changed("/leeward/server/1", 6, Some(Bytes::from_static(b"damage"))));
    assert_eq!((view.servers().count(), view.version()), (0, 6));
    let op = CoordinatorOp::Delete { path: ClusterPath::Region(RegionId(7)).to_string(), version: None };
    assert!(
        matches!(op, CoordinatorOp::Delete { path, .. } if ClusterPath::parse(&path) == Some(ClusterPath::Region(RegionId(7))))
    );
}

/// A view of two regions, each with a complete group. Server 9 is no member of either.
fn whole() -> View {
    let mut view = View::default();
    view.handle(&UP);
    let table = TableOptions { replicas: 2, ..TableOptions::default() };
    let mut tree = Tree::new();
    tree.apply(None, &bootstrap_op(&table, TableId(1), &[Bytes::from("m")])).unwrap();
    view.handle(&CoordinatorEvent::Changed(tree.changes().collect()));
    view.handle(&CoordinatorEvent::Synced { version: tree.version() });
    put_group(&mut view, |_| {});
    view
}

/// Gives region 1 another configuration.
fn put_group(view: &mut View, change: impl FnOnce(&mut GroupConfig)) {
    let mut config = GroupConfig {
        primary: Some(info(1, 5).member),
        backups: vec![info(2, 5).member],
        ..GroupConfig::unassigned(RegionId(1), "default")
    };
    change(&mut config);
    let version = view.version() + 1;
    view.handle(&changed("/leeward/region/1", version, Some(encode_value(&config))));
}

#[test]
fn a_copy_is_garbage_only_if_a_settled_group_is_complete_without_it() {
    let mut view = whole();
    let is_replica_garbage = |view: &View, server| view.is_replica_garbage(RegionId(1), ServerId(server));
    assert!(is_replica_garbage(&view, 9) && !is_replica_garbage(&view, 1) && !is_replica_garbage(&view, 2));
    assert!(!view.is_replica_garbage(RegionId(2), ServerId(9)), "no server has that region yet");
    assert!(!view.is_replica_garbage(RegionId(7), ServerId(9)), "that region is unknown");
    let other_incarnation = info(9, 4).member;
    let needed: [fn(&mut GroupConfig, Member); 5] = [
        |config, _| config.backups.clear(),
        |config, other| config.learners.push(other),
        |config, other| config.backups.push(other),
        |config, other| config.prior_members.push(PriorMember { member: other, term: Epoch(1) }),
        |config, _| config.recovery_quorum = 2,
    ];
    for (number, change) in needed.into_iter().enumerate() {
        put_group(&mut view, |config| change(config, other_incarnation));
        assert!(!is_replica_garbage(&view, 9), "case {number}");
        put_group(&mut view, |_| {});
        assert!(is_replica_garbage(&view, 9));
    }
    let version = view.version() + 1;
    view.handle(&changed("/leeward/table/default", version, Some(Bytes::new())));
    assert!(!is_replica_garbage(&view, 9), "its number of replicas cannot be read");
    let table = TableOptions { replicas: 3, ..TableOptions::default() };
    view.handle(&changed("/leeward/table/default", version + 1, Some(encode_value(&table))));
    assert!(!is_replica_garbage(&view, 9), "the table wants one more");
    let table = TableOptions { replicas: 1, ..table };
    view.handle(&changed("/leeward/table/default", version + 2, Some(encode_value(&table))));
    assert!(is_replica_garbage(&view, 9));
    view.handle(&CoordinatorEvent::Down);
    assert!(!is_replica_garbage(&view, 9), "the present configuration is unknown");
}

#[test]
fn a_region_is_gone_only_if_its_number_was_given() {
    let mut view = whole();
    let gone = |view: &View| (0..5).filter(|region| view.is_gone(RegionId(*region))).collect::<Vec<u32>>();
    assert!(gone(&view).is_empty());
    let version = view.version();
    view.handle(&changed("/leeward/region/2", version + 1, Some(Bytes::new())));
    assert!(
        gone(&view).is_empty() && view.region(RegionId(2)).is_none(),
        "the path is there, even if it is unreadable"
    );
    view.handle(&changed("/leeward/region/2", version + 2, None));
    assert_eq!(gone(&view), [2]);
    view.handle(&CoordinatorEvent::Down);
    assert!(gone(&view).is_empty(), "it may be there again by now");
    assert!(view.has_ended(RegionId(2)) && !view.has_ended(RegionId(1)) && !view.has_ended(RegionId(4)));
    // A coordinator that has lost its data.
    view.handle(&UP);
    view.handle(&CoordinatorEvent::Synced { version: 0 });
    assert!(view.regions().next().is_some() && gone(&view).is_empty() && view.refusal().is_some());
}

#[test]
fn a_region_that_no_server_could_serve_is_left_out() {
    let mut view = View::default();
    view.handle(&UP);
    let config =
        |region, term| GroupConfig { term: Epoch(term), ..GroupConfig::unassigned(RegionId(region), "default") };
    let beyond = Epoch::LAST_TERM.next().0;
    for (region, term) in [(0, 1), (u32::MAX, 1), (5, beyond), (6, Epoch::LAST_TERM.0), (u32::MAX - 1, 1)] {
        let path = ClusterPath::Region(RegionId(region)).to_string();
        view.handle(&changed(&path, 3, Some(encode_value(&config(region, term)))));
    }
    view.handle(&CoordinatorEvent::Synced { version: 3 });
    let regions: Vec<u32> = view.regions().map(|config| config.region.0).collect();
    assert_eq!(regions, [6, u32::MAX - 1]);
    assert!(!view.lacks(&ClusterPath::Region(RegionId(5))), "nor does it count as ended");
}
