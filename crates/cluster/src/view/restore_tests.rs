//! Trees that forgot something get it back from what processes know, in any order of these processes.

use super::*;
use crate::view::HeldCopy;
use crate::view::tests::{UP, member};
use crate::{CoordinatorEvent, Tree, bootstrap_op};
use leeward_format::cluster::{CopyFound, DesiredState, Plan, ServerInfo};
use leeward_format::coordinator::{Change, TreeSnapshot};
use leeward_format::{Lsn, ServerId};

const CLUSTER: ClusterId = ClusterId(7);
const TABLE: TableId = TableId(3);

/// A cluster's coordinator with the table `default` in one region.
fn coordinator() -> Tree {
    let mut tree = Tree::new();
    tree.apply(None, &bootstrap_op(&TableOptions::default(), TABLE, &[])).unwrap();
    let identity = TreeIdentity { cluster: CLUSTER, generation: 0 };
    tree.apply(None, &create(ClusterPath::Cluster, encode_value(&identity), false)).unwrap();
    tree.apply(None, &create(ClusterPath::Protocol, encode_value(&PROTOCOL_VERSION), false)).unwrap();
    tree
}

fn tell(view: &mut View, tree: &Tree) {
    view.handle(&CoordinatorEvent::Down);
    view.handle(&UP);
    view.handle(&CoordinatorEvent::Changed(tree.changes().collect::<Vec<Change>>()));
    view.handle(&CoordinatorEvent::Synced { version: tree.version() });
}

fn knowing(tree: &Tree) -> View {
    let mut view = View::default();
    tell(&mut view, tree);
    assert!(view.is_synced());
    view
}

/// Another process changes a region.
fn change(tree: &mut Tree, by: impl FnOnce(GroupConfig) -> GroupConfig) -> GroupConfig {
    let view = knowing(tree);
    let next = by(view.regions().next().unwrap().clone());
    tree.apply(None, &view.replace_op(&next)).unwrap();
    next
}

fn with_primary(server: u32) -> impl FnOnce(GroupConfig) -> GroupConfig {
    move |config| {
        let epoch = config.epoch.next();
        GroupConfig { epoch, term: epoch, primary: Some(member(server, 1)), ..config }
    }
}

/// Seed 3219: an operator left out a server that knew the epoch of a forgotten request, and in that epoch the primary role had
/// been handed over meanwhile. Its old primary would never serve.
#[test]
fn of_two_configurations_of_an_epoch_the_one_of_the_later_term_is_kept() {
    let mut tree = coordinator();
    change(&mut tree, with_primary(1));
    let before = tree.snapshot();
    let requested = change(&mut tree, |config| {
        config.with_desired(DesiredState { primary: Some(ServerId(2)), ..DesiredState::default() })
    });
    let mut knows_request = knowing(&tree);
    let mut tree = Tree::restore(before);
    let handed_over = change(&mut tree, with_primary(2));
    assert_eq!((requested.epoch, handed_over.term > requested.term), (handed_over.epoch, true));
    let mut knows_hand_over = knowing(&tree);
    restore(&mut tree, std::slice::from_mut(&mut knows_request));
    let kept = config(&tree, 1).unwrap();
    assert_eq!(kept, GroupConfig { epoch: handed_over.epoch.next(), ..handed_over });
    for view in [&mut knows_request, &mut knows_hand_over] {
        tell(view, &tree);
        assert_eq!((view.refusal(), view.region(RegionId(1))), (None, Some(&kept)));
    }
}

/// An operator has each process add what it knows, and then the last one confirm.
fn restore(tree: &mut Tree, views: &mut [View]) {
    for view in &mut *views {
        tell(view, tree);
        let ops = view.restore_ops().unwrap();
        if !ops.is_empty() {
            tree.apply(None, &CoordinatorOp::All(ops)).unwrap();
        }
        tell(view, tree);
        assert_eq!(view.restore_ops().unwrap(), [], "nothing is left to add");
    }
    let last = views.last_mut().unwrap();
    tell(last, tree);
    tree.apply(None, &last.confirm_op().unwrap()).unwrap();
    for view in views {
        tell(view, tree);
        assert_eq!((view.refusal(), view.is_synced()), (None, true));
    }
}

fn config(tree: &Tree, region: u32) -> Option<GroupConfig> {
    knowing(tree).region(RegionId(region)).cloned()
}

#[test]
fn a_lost_tree_is_rebuilt_from_what_running_servers_know_and_the_newest_counts() {
    let mut tree = coordinator();
    change(&mut tree, with_primary(1));
    let older = knowing(&tree);
    let newest = change(&mut tree, with_primary(2));
    let newer = knowing(&tree);
    for order in [[&older, &newer], [&newer, &older]] {
        let copies = order.map(|known| {
            let mut view = View::default();
            tell(&mut view, &tree_of(known));
            view
        });
        let mut lost = Tree::new();
        restore(&mut lost, &mut { copies });
        let view = knowing(&lost);
        assert_eq!(view.region(RegionId(1)), Some(&newest));
        assert_eq!(view.identity(), Some(TreeIdentity { cluster: CLUSTER, generation: 1 }));
        assert_eq!(view.table("default"), Some(&TableOptions::default()));
        assert!(view.numbers().has(RegionId(1)) && view.protocol() == Some(PROTOCOL_VERSION));
    }
}

/// A coordinator that has what `view` knows.
fn tree_of(view: &View) -> Tree {
    let mut tree = coordinator();
    let config = view.region(RegionId(1)).unwrap();
    let before = knowing(&tree);
    tree.apply(None, &before.replace_op(config)).unwrap();
    tree
}

#[test]
fn a_split_and_a_merge_that_the_tree_forgot_are_there_again() {
    let mut tree = coordinator();
    change(&mut tree, with_primary(1));
    let plan = Plan::Split { at: Some("m".into()), child: RegionId(2) };
    let planned = change(&mut tree, |config| {
        let mut next = config.renewed();
        next.desired.plan = Some(plan);
        next
    });
    let view = knowing(&tree);
    tree.apply(None, &view.give_op(&[RegionId(2)])).unwrap();
    let before_split = tree.snapshot();
    let (left, right) = planned.split("m".into(), RegionId(2), leeward_format::SegmentId(9));
    let view = knowing(&tree);
    let made = create(ClusterPath::Region(RegionId(2)), encode_value(&right), false);
    tree.apply(None, &CoordinatorOp::All(vec![made, view.replace_op(&left)])).unwrap();
    let after_split = knowing(&tree);
    let mut put_back = Tree::restore(before_split.clone());
    restore(&mut put_back, &mut [knowing(&Tree::restore(before_split.clone())), after_split]);
    assert_eq!((config(&put_back, 1), config(&put_back, 2)), (Some(left.clone()), Some(right.clone())));
    // And the other way round: both halves are merged, and the tree is put back to before that.
    let before_merge = tree.snapshot();
    let merged = left.merged_with(&right);
    let view = knowing(&tree);
    let end = view.remove_op(&ClusterPath::Region(RegionId(2)));
    tree.apply(None, &CoordinatorOp::All(vec![view.replace_op(&merged), end])).unwrap();
    let mut put_back = Tree::restore(before_merge.clone());
    restore(&mut put_back, &mut [knowing(&tree), knowing(&Tree::restore(before_merge.clone()))]);
    assert_eq!((config(&put_back, 1), config(&put_back, 2)), (Some(merged), None));
}

fn held(config: &GroupConfig, term: u32) -> (RegionId, HeldCopy) {
    let identity = CopyIdentity::of(CLUSTER, config);
    (config.region, HeldCopy { identity, options: TableOptions::default(), term: Epoch(term) })
}

#[test]
fn restarted_servers_rebuild_a_lost_tree_from_their_copies() {
    let whole = GroupConfig { table_id: TABLE, epoch: Epoch(5), ..GroupConfig::unassigned(RegionId(1), "default") };
    let (left, right) = whole.split("m".into(), RegionId(2), leeward_format::SegmentId(9));
    // One server went before the split.
    for lost in [Tree::new(), coordinator()] {
        let mut lost = lost;
        let mut views = [vec![held(&left, 6), held(&right, 6)], vec![held(&right, 7)], vec![held(&whole, 4)]]
            .map(|copies| View::of_server(copies.into_iter().collect()));
        restore(&mut lost, &mut views);
        let (one, two) = (config(&lost, 1).unwrap(), config(&lost, 2).unwrap());
        assert_eq!((&one.end, &two.start), (&left.end, &right.start));
        assert_eq!((one.epoch, one.term, one.primary, one.table_id), (Epoch(6), Epoch(0), None, TABLE));
        assert_eq!((two.epoch, two.inherited_below), (Epoch(7), right.inherited_below));
        let view = knowing(&lost);
        assert!(view.numbers().has(RegionId(2)) && view.table("default").is_some());
    }
}

/// Restarted servers that found these copies.
fn restarted_with(copies: &[&[(RegionId, HeldCopy)]]) -> Vec<View> {
    copies.iter().map(|copies| View::of_server(copies.iter().cloned().collect())).collect()
}

/// Restores the tree in this order of servers and in the other.
fn in_both_orders(tree: &TreeSnapshot, copies: &[&[(RegionId, HeldCopy)]], check: impl Fn(&Tree)) {
    let turned: Vec<&[(RegionId, HeldCopy)]> = copies.iter().rev().copied().collect();
    for order in [copies, &turned[..]] {
        let mut put_back = Tree::restore(tree.clone());
        restore(&mut put_back, &mut restarted_with(order));
        check(&put_back);
    }
}

/// A region of `default` with these keys.
fn of_keys(region: u32, start: &'static str, end: Option<&'static str>, epoch: u32) -> GroupConfig {
    let (start, end) = (start.into(), end.map(Bytes::from));
    let unassigned = GroupConfig::unassigned(RegionId(region), "default");
    GroupConfig { table_id: TABLE, epoch: Epoch(epoch), start, end, ..unassigned }
}

/// What the tree has of regions: their numbers and keys.
fn keys(tree: &Tree) -> Vec<(u32, Bytes, Option<Bytes>)> {
    let view = knowing(tree);
    view.regions().map(|config| (config.region.0, config.start.clone(), config.end.clone())).collect()
}

/// Regions 1 and 2 were merged after the state that the tree was put back to, and all processes are new. Seeds 1240 and 2034: both
/// regions were there again, and region 2 was served as it had been before the merge.
#[test]
fn a_merged_region_is_not_there_again_when_all_servers_were_restarted() {
    let mut tree = coordinator();
    let view = knowing(&tree);
    let (one, two) = (of_keys(1, "", Some("m"), 3), of_keys(2, "m", None, 6));
    let (one, two) = (with_primary(1)(one), with_primary(1)(two));
    let made = create(ClusterPath::Region(RegionId(2)), encode_value(&two), false);
    tree.apply(None, &CoordinatorOp::All(vec![made, view.replace_op(&one), view.give_op(&[RegionId(2)])])).unwrap();
    let merged = one.merged_with(&two);
    let whole = |tree: &Tree| {
        assert_eq!(keys(tree), [(1, Bytes::new(), None)]);
        assert!(knowing(tree).has_ended(RegionId(2)));
    };
    for tree in [tree.snapshot(), Tree::new().snapshot(), coordinator().snapshot()] {
        // The second server still has the copy of the source, or was a member of the source only.
        in_both_orders(&tree, &[&[held(&merged, 4)], &[held(&merged, 4), held(&two, 7)]], whole);
        in_both_orders(&tree, &[&[held(&merged, 4)], &[held(&two, 7)]], whole);
    }
    let mut put_back = tree;
    restore_stepwise(&mut put_back, &mut restarted_with(&[&[held(&merged, 4), held(&two, 7)]])[0]).unwrap();
    whole(&put_back);
}

/// Each region was split or merged since one server got its copies.
#[test]
fn copies_of_before_a_split_or_a_merge_get_no_keys_that_a_newer_region_has() {
    let lost = Tree::new().snapshot();
    // Of region 1, only a copy of before the split at m is left.
    in_both_orders(&lost, &[&[held(&of_keys(1, "", None, 5), 5)], &[held(&of_keys(2, "m", None, 6), 6)]], |tree| {
        assert_eq!(keys(tree), [(1, "".into(), Some("m".into())), (2, "m".into(), None)]);
        let cut = config(tree, 1).unwrap();
        assert!(cut.epoch == Epoch(5) && cut.inherited_below > leeward_format::SegmentId(0), "it has keys to delete");
    });
    // Region 2 was merged into region 1, and that was split at t.
    let (narrower, child) = (of_keys(1, "", Some("t"), 10), of_keys(3, "t", None, 10));
    let older = of_keys(2, "m", None, 8);
    in_both_orders(&lost, &[&[held(&older, 8)], &[held(&narrower, 10)], &[held(&child, 10)]], |tree| {
        assert_eq!(keys(tree), [(1, "".into(), Some("t".into())), (3, "t".into(), None)]);
    });
    // Region 2 got the keys of region 1, and was split before its own: an older copy of it shows nothing, a newer one all.
    let (moved, child) = (of_keys(2, "", Some("g"), 10), of_keys(3, "g", None, 10));
    in_both_orders(&lost, &[&[held(&older, 8)], &[held(&child, 10)], &[held(&moved, 10)]], |tree| {
        assert_eq!(keys(tree), [(2, "".into(), Some("g".into())), (3, "g".into(), None)]);
    });
}

#[test]
fn what_is_in_use_under_the_same_number_is_never_replaced() {
    let mut other = Tree::new();
    other.apply(None, &bootstrap_op(&TableOptions::default(), TableId(4), &["m".into()])).unwrap();
    let mut tree = coordinator();
    let known = change(&mut tree, with_primary(1));
    let mut view = knowing(&tree);
    // Nothing was ever written to the other table: it was only made because the tree was empty.
    let mut unused = Tree::restore(other.snapshot());
    restore(&mut unused, std::slice::from_mut(&mut view));
    assert_eq!(config(&unused, 1), Some(known));
    assert_eq!(config(&unused, 2), None, "the second region of the other table");
    let mut view = knowing(&tree);
    change(&mut other, with_primary(2));
    tell(&mut view, &other);
    let refused = view.restore_ops().unwrap_err();
    assert!(refused.contains("region 1 belongs to another table default"), "{refused}");
    assert!(refused.contains("it has the same number, and was used"), "{refused}");
    let empty = View::default();
    assert!(empty.confirm_op().unwrap_err().contains("knows nothing of the cluster"));
}

/// The name `default` belongs to a table of one region, which servers 1 and 2 have. Later it is dropped, and another table has
/// the name: [`used_again`].
fn to_be_dropped() -> Tree {
    let mut tree = coordinator();
    let view = knowing(&tree);
    tree.apply(None, &view.give_op(&[RegionId(1)])).unwrap();
    change(&mut tree, |config| GroupConfig { backups: vec![member(2, 1)], ..with_primary(1)(config) });
    tree
}

const OTHER: TableId = TableId(9);

/// The other table's options, and the configuration of its region.
fn used_again(tree: &mut Tree) -> (TableOptions, GroupConfig) {
    let view = knowing(tree);
    let gone = [ClusterPath::Region(RegionId(1)), ClusterPath::Table("default".into())];
    tree.apply(None, &CoordinatorOp::All(gone.map(|path| view.remove_op(&path)).into())).unwrap();
    let options = TableOptions { replicas: 2, ..TableOptions::default() };
    assert_ne!(options, TableOptions::default());
    let first = GroupConfig { table_id: OTHER, ..GroupConfig::unassigned(RegionId(5), "default") };
    let config = GroupConfig { backups: vec![member(2, 1)], ..with_primary(1)(first) };
    let table = create(ClusterPath::Table("default".into()), encode_value(&options), false);
    let region = create(ClusterPath::Region(RegionId(5)), encode_value(&config), false);
    let view = knowing(tree);
    tree.apply(None, &CoordinatorOp::All(vec![table, region, view.give_op(&[RegionId(5)])])).unwrap();
    (options, config)
}

fn registered(tree: &mut Tree, server: u32, incarnation: u64, copies: &[CopyFound]) {
    let info = ServerInfo { copies: copies.to_vec(), ..ServerInfo::of(member(server, incarnation)) };
    let path = ClusterPath::Server(ServerId(server));
    let op = knowing(tree).put_op(path, encode_value(&info));
    tree.apply(None, &op).unwrap();
}

/// [`restore`] with one operation at a time: each is made from the tree that the one before left.
fn restore_stepwise(tree: &mut Tree, view: &mut View) -> Result<(), String> {
    tell(view, tree);
    while let Some(op) = view.restore_ops()?.into_iter().next() {
        tree.apply(None, &op).unwrap();
        tell(view, tree);
    }
    Ok(())
}

#[test]
fn a_name_that_was_used_again_belongs_to_the_newer_table() {
    let mut tree = to_be_dropped();
    let before = tree.snapshot();
    let (options, newer) = used_again(&mut tree);
    for is_stepwise in [false, true] {
        let mut put_back = Tree::restore(before.clone());
        let mut view = knowing(&tree);
        if is_stepwise {
            restore_stepwise(&mut put_back, &mut view).unwrap();
        }
        restore(&mut put_back, &mut [view, knowing(&tree)]);
        assert_eq!((config(&put_back, 1), config(&put_back, 5)), (None, Some(newer.clone())));
        assert_eq!(knowing(&put_back).table("default"), Some(&options), "its own options");
    }
}

/// The tree of `before`, with servers that were all restarted, and a view of server 1, which has a copy of the newer table.
fn restarted(before: &TreeSnapshot, newer: &GroupConfig, options: &TableOptions) -> (Tree, View) {
    let mut tree = Tree::restore(before.clone());
    let copy = CopyFound { epoch: Epoch(3), table_id: OTHER, ..CopyFound::new(RegionId(5), Epoch(3), Lsn(9)) };
    registered(&mut tree, 1, 2, &[copy]);
    registered(&mut tree, 2, 2, &[copy]);
    let held = HeldCopy { identity: CopyIdentity::of(CLUSTER, newer), options: options.clone(), term: Epoch(3) };
    (tree, View::of_server([(RegionId(5), held)].into()))
}

#[test]
fn restarted_servers_without_a_copy_prove_that_the_table_which_had_the_name_has_ended() {
    let mut tree = to_be_dropped();
    let before = tree.snapshot();
    let (options, newer) = used_again(&mut tree);
    for is_stepwise in [false, true] {
        let (mut put_back, mut view) = restarted(&before, &newer, &options);
        if is_stepwise {
            restore_stepwise(&mut put_back, &mut view).unwrap();
        }
        restore(&mut put_back, std::slice::from_mut(&mut view));
        let restored = config(&put_back, 5).unwrap();
        assert_eq!((config(&put_back, 1), restored.table_id, restored.primary), (None, OTHER, None));
        assert_eq!(knowing(&put_back).table("default"), Some(&options));
    }
    // What may be in use stays: nothing at all is restored.
    let older = CopyFound { table_id: TABLE, ..CopyFound::new(RegionId(1), Epoch(1), Lsn(3)) };
    let cases: [(u32, u64, &[CopyFound], &str); 3] = [
        (2, 1, &[], "server 2, which had a copy of it, was not restarted since"),
        (2, 2, &[older], "server 2 has a copy of it"),
        (3, 1, &[older], "server 3 has a copy of it"),
    ];
    for (server, incarnation, copies, why) in cases {
        let (mut put_back, mut view) = restarted(&before, &newer, &options);
        registered(&mut put_back, server, incarnation, copies);
        let refused = restore_stepwise(&mut put_back, &mut view).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert!(config(&put_back, 1).is_some() && config(&put_back, 5).is_none());
    }
    let (mut put_back, mut view) = restarted(&before, &newer, &options);
    let op = knowing(&put_back).remove_op(&ClusterPath::Server(ServerId(2)));
    put_back.apply(None, &op).unwrap();
    let refused = restore_stepwise(&mut put_back, &mut view).unwrap_err();
    assert!(refused.contains("server 2, which had a copy of it, is not there"), "{refused}");
}

/// A server that was away while its table was dropped has a copy of it still. Which of two tables is the newer one is not known
/// from copies alone, and neither takes the other's place: then the number of that one would count as given, its region as gone,
/// and its copies as unneeded.
#[test]
fn what_was_restored_from_copies_is_not_replaced_by_another_table_of_its_name() {
    let mut tree = to_be_dropped();
    let older = knowing(&tree).region(RegionId(1)).cloned().unwrap();
    let (_, newer) = used_again(&mut tree);
    for (first, second) in [(&older, &newer), (&newer, &older)] {
        let mut lost = Tree::new();
        restore(&mut lost, &mut [View::of_server([held(first, 1)].into())]);
        let mut view = View::of_server([held(second, 1)].into());
        let refused = restore_stepwise(&mut lost, &mut view).unwrap_err();
        assert!(refused.contains("other servers had copies of it"), "{refused}");
        assert!(config(&lost, first.region.0).is_some() && config(&lost, second.region.0).is_none());
    }
}
