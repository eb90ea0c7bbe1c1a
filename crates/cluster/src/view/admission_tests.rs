//! Trees that lack something of what a process knows, and trees that only look like it.

use super::*;
use crate::CoordinatorEvent;
use crate::view::tests::{UP, member};
use bytes::Bytes;
use leeward_format::cluster::{RegionNumbers, TreeIdentity};
use leeward_format::coordinator::Change;

const CLUSTER: ClusterId = ClusterId(7);

fn config(region: u32, epoch: u32) -> GroupConfig {
    let unassigned = GroupConfig::unassigned(RegionId(region), "default");
    let primary = Some(member(1, 1));
    GroupConfig { table_id: TableId(3), epoch: Epoch(epoch), term: Epoch(1), primary, ..unassigned }
}

/// A tree of the cluster with these regions, in which the numbers up to `given` were given.
fn tree(generation: u32, given: u32, regions: &[GroupConfig]) -> Vec<(ClusterPath, Bytes)> {
    let identity = TreeIdentity { cluster: CLUSTER, generation };
    let mut numbers = RegionNumbers::default();
    numbers.give((1..=given).map(RegionId));
    let mut tree =
        vec![(ClusterPath::Cluster, encode_value(&identity)), (ClusterPath::Numbers, encode_value(&numbers))];
    tree.push((ClusterPath::Table("default".into()), encode_value(&TableOptions::default())));
    tree.extend(regions.iter().map(|config| (ClusterPath::Region(config.region), encode_value(config))));
    tree
}

fn tell(view: &mut View, tree: &[(ClusterPath, Bytes)]) {
    view.handle(&UP);
    let change = |(path, value): &(ClusterPath, Bytes)| Change {
        path: path.to_string(),
        version: 9,
        value: Some(value.clone()),
    };
    view.handle(&CoordinatorEvent::Changed(tree.iter().map(change).collect()));
    view.handle(&CoordinatorEvent::Synced { version: 9 });
}

fn knowing(tree: &[(ClusterPath, Bytes)]) -> View {
    let mut view = View::default();
    tell(&mut view, tree);
    assert!(view.is_synced() && view.refusal().is_none(), "a process that knows nothing takes any tree");
    view
}

#[test]
fn a_tree_that_lacks_something_is_refused_and_what_was_known_stays() {
    let known = knowing(&tree(0, 2, &[config(1, 5)]));
    let (region, table) = (RegionId(1), "default".to_owned());
    let older = |found, known| TreeRefusal::Older { region, found: Epoch(found), known: Epoch(known) };
    let other_table = GroupConfig { table_id: TableId(4), table: "other".into(), ..config(1, 9) };
    let other_cluster = TreeIdentity { cluster: ClusterId(8), generation: 3 };
    let ended = TreeRefusal::Ended { region: RegionId(2), table: table.clone() };
    let other = TreeRefusal::OtherTable { region, found: "other".into(), known: table.clone() };
    for (found, refusal) in [
        (vec![], TreeRefusal::Lost { known: CLUSTER }),
        (
            vec![(ClusterPath::Cluster, encode_value(&other_cluster))],
            TreeRefusal::Other { found: ClusterId(8), known: CLUSTER },
        ),
        (tree(0, 2, &[config(1, 4)]), older(4, 5)),
        (tree(0, 2, &[GroupConfig { primary: Some(member(2, 1)), ..config(1, 5) }]), older(5, 5)),
        (tree(0, 0, &[]), TreeRefusal::Unknown { region, table }),
        (tree(0, 2, &[config(1, 5), config(2, 3)]), ended),
        (tree(0, 2, &[other_table]), other),
    ] {
        let mut view = View::default();
        tell(&mut view, &tree(0, 2, &[config(1, 5)]));
        tell(&mut view, &found);
        assert_eq!((view.refusal(), view.is_synced()), (Some(&refusal), false));
        assert_eq!(view.region(region), known.region(region), "what was known is still served by");
        assert!(!refusal.to_string().is_empty());
    }
}

/// The number of region 2 counts as given since a server restored the tree that had only an older copy of it. A server that took
/// such a tree would destroy its copy.
#[test]
fn a_region_whose_number_is_given_did_not_end_unless_another_region_has_its_keys() {
    let keys = |region, start: &'static str, end: Option<&'static str>, epoch| GroupConfig {
        start: start.into(),
        end: end.map(Bytes::from),
        ..config(region, epoch)
    };
    let (one, two) = (keys(1, "", Some("m"), 5), keys(2, "m", None, 6));
    let merged = keys(1, "", None, 7);
    let making = (ClusterPath::Making("default".into()), encode_value(&member(1, 1)));
    // The table was dropped, and one of its name is being made: some of the old regions are still to be removed.
    let mut made_again = tree(0, 2, &[keys(1, "", Some("m"), 5)]);
    made_again.retain(|(path, _)| !matches!(path, ClusterPath::Table(_)));
    let dropped = made_again.clone();
    made_again.push(making);
    let held = HeldCopy { identity: CopyIdentity::of(CLUSTER, &two), options: TableOptions::default(), term: Epoch(1) };
    let cases = [
        (tree(0, 2, std::slice::from_ref(&one)), false),
        (tree(0, 2, std::slice::from_ref(&merged)), true),
        (tree(0, 3, &[keys(1, "", Some("c"), 8), keys(3, "c", None, 8)]), true),
        (tree(0, 3, &[keys(1, "", Some("t"), 6), keys(3, "t", None, 8)]), false),
        (made_again, true),
        (dropped, true),
        (tree(0, 2, &[]), true),
    ];
    for (number, (found, is_taken)) in cases.into_iter().enumerate() {
        let unknown = TreeRefusal::Unknown { region: RegionId(2), table: "default".into() };
        let refusal = (!is_taken).then_some(&unknown);
        let mut view = View::of_server([(RegionId(2), held.clone())].into());
        tell(&mut view, &found);
        assert_eq!((view.refusal(), view.is_synced()), (refusal, is_taken), "{number}");
        let mut view = knowing(&tree(0, 2, &[one.clone(), two.clone()]));
        tell(&mut view, &found);
        assert_eq!(view.is_synced(), is_taken, "{number}: {:?}", view.refusal());
    }
}

#[test]
fn a_tree_that_only_went_on_is_taken() {
    let child = config(3, 6);
    for next in [
        tree(0, 2, &[config(1, 5)]),
        tree(0, 2, &[config(1, 6)]),
        tree(0, 3, &[config(1, 6), child]),
        // The region was merged, or its table was dropped.
        tree(0, 2, &[]),
        tree(1, 2, &[config(1, 5)]),
    ] {
        let mut view = knowing(&tree(0, 2, &[config(1, 5)]));
        tell(&mut view, &next);
        assert_eq!((view.refusal(), view.is_synced()), (None, true));
    }
}

/// Servers that know less may go on with a tree that was put back. Then it looks newer, and is another history.
#[test]
fn a_tree_that_was_put_back_stays_refused_until_it_is_restored() {
    let mut view = knowing(&tree(0, 2, &[config(1, 5)]));
    tell(&mut view, &tree(0, 2, &[config(1, 4)]));
    assert!(view.refusal().is_some());
    let next = Change {
        path: ClusterPath::Region(RegionId(1)).to_string(),
        version: 10,
        value: Some(encode_value(&config(1, 7))),
    };
    view.handle(&CoordinatorEvent::Changed(vec![next]));
    assert_eq!(view.refusal(), Some(&TreeRefusal::NotRestored));
    view.handle(&CoordinatorEvent::Down);
    tell(&mut view, &tree(0, 2, &[config(1, 8)]));
    assert_eq!(view.refusal(), Some(&TreeRefusal::NotRestored));
    let identity = TreeIdentity { cluster: CLUSTER, generation: 1 };
    let restored = Change { path: ClusterPath::Cluster.to_string(), version: 11, value: Some(encode_value(&identity)) };
    view.handle(&CoordinatorEvent::Changed(vec![restored]));
    assert_eq!((view.refusal(), view.is_synced()), (None, true));
    tell(&mut view, &tree(0, 2, &[config(1, 8)]));
    assert!(!view.is_synced(), "the tree of before the restoration");
}

/// The data was lost for a moment only: an empty directory was given, and then the right one.
#[test]
fn a_tree_that_was_lost_and_is_back_is_taken() {
    let mut view = knowing(&tree(0, 2, &[config(1, 5)]));
    tell(&mut view, &[]);
    assert_eq!(view.refusal(), Some(&TreeRefusal::Lost { known: CLUSTER }));
    view.handle(&CoordinatorEvent::Down);
    assert_eq!(view.refusal(), None, "nothing is told");
    tell(&mut view, &tree(0, 2, &[config(1, 5)]));
    assert!(view.is_synced());
}

/// The coordinator lost its data, and a server that knew nothing began another cluster in it. Then an operator has the tree
/// restored.
#[test]
fn a_restored_tree_of_another_cluster_is_taken_if_it_has_all_that_is_known() {
    let other = |generation, regions: &[GroupConfig]| {
        let mut tree = tree(0, 2, regions);
        tree[0].1 = encode_value(&TreeIdentity { cluster: ClusterId(8), generation });
        tree
    };
    let refusal = TreeRefusal::Other { found: ClusterId(8), known: CLUSTER };
    let of_other_table = GroupConfig { table_id: TableId(4), ..config(1, 9) };
    let cases = [
        (other(2, &[config(1, 5)]), false),
        (other(3, &[config(1, 4)]), false),
        (other(3, &[of_other_table]), false),
        (other(3, &[config(1, 5)]), true),
    ];
    for (number, (found, is_taken)) in cases.into_iter().enumerate() {
        let mut view = knowing(&tree(2, 2, &[config(1, 5)]));
        tell(&mut view, &found);
        assert_eq!((view.refusal(), view.is_synced()), ((!is_taken).then_some(&refusal), is_taken), "{number}");
    }
    let identity = CopyIdentity::of(CLUSTER, &config(1, 5));
    let held = HeldCopy { identity, options: TableOptions::default(), term: Epoch(1) };
    for (generation, is_taken) in [(0, false), (1, true)] {
        let mut view = View::of_server([(RegionId(1), held.clone())].into());
        tell(&mut view, &other(generation, &[config(1, 5)]));
        assert_eq!(view.is_synced(), is_taken, "a process that just started, generation {generation}");
    }
}

/// A process that has shown no tree yet, and knows only what its copies belong to.
#[test]
fn a_process_that_just_started_waits_for_the_restoration_too() {
    let identity = CopyIdentity::of(CLUSTER, &config(1, 5));
    let held = HeldCopy { identity, options: TableOptions::default(), term: Epoch(1) };
    let mut view = View::of_server([(RegionId(1), held)].into());
    tell(&mut view, &tree(3, 2, &[config(1, 4)]));
    assert!(matches!(view.refusal(), Some(TreeRefusal::Older { .. })), "{:?}", view.refusal());
    // What this server knew was added, and others have still to add what they know.
    tell(&mut view, &tree(3, 2, &[config(1, 6)]));
    assert_eq!(view.refusal(), Some(&TreeRefusal::NotRestored));
    tell(&mut view, &tree(4, 2, &[config(1, 6)]));
    assert_eq!((view.refusal(), view.is_synced()), (None, true));
}

#[test]
fn a_server_that_just_started_knows_what_its_copies_belong_to() {
    let identity = CopyIdentity::of(CLUSTER, &config(1, 5));
    let held = HeldCopy { identity, options: TableOptions::default(), term: Epoch(1) };
    let other = GroupConfig { table_id: TableId(4), ..config(1, 9) };
    for (found, is_taken) in [
        (vec![], false),
        (tree(0, 2, &[config(1, 4)]), false),
        (tree(0, 0, &[]), false),
        (tree(0, 2, &[other]), false),
        (tree(0, 2, &[config(1, 5)]), true),
        (tree(0, 2, &[config(1, 8)]), true),
        (tree(0, 1, &[]), true),
    ] {
        let mut view = View::of_server([(RegionId(1), held.clone())].into());
        tell(&mut view, &found);
        assert_eq!(view.is_synced(), is_taken, "{:?}", view.refusal());
        assert!(view.users().is_known, "an operator must be let in to restore it");
    }
    // A copy of a time without identities says nothing.
    let unknown = HeldCopy { identity: CopyIdentity::default(), ..held };
    let mut view = View::of_server([(RegionId(1), unknown)].into());
    tell(&mut view, &[]);
    assert!(view.is_synced());
}
