//! Trees that forgot something get it back from what processes know, in any order of these processes.

use super::*;
use crate::view::HeldCopy;
use crate::view::tests::{UP, member};
use crate::{CoordinatorEvent, Tree, bootstrap_op};
use leeward_format::cluster::Plan;
use leeward_format::coordinator::Change;

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
    // Only a copy of before a merge of all is left besides.
    let merged = GroupConfig { end: None, epoch: Epoch(9), ..left.clone() };
    let mut lost = Tree::new();
    let views = [vec![held(&merged, 9)], vec![held(&right, 6)]];
    let mut views = views.map(|copies| View::of_server(copies.into_iter().collect()));
    tell(&mut views[0], &lost);
    lost.apply(None, &CoordinatorOp::All(views[0].restore_ops().unwrap())).unwrap();
    tell(&mut views[1], &lost);
    assert_eq!(views[1].restore_ops().unwrap(), [], "its keys are in another region");
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
    assert!(refused.contains("belongs to another table default, which is in use"), "{refused}");
    let empty = View::default();
    assert!(empty.confirm_op().unwrap_err().contains("knows nothing of the cluster"));
}
