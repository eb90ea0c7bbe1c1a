//! A cluster without faults is left alone.

use super::Cluster;
use leeward_cluster::{CoordinatorError, bootstrap_op};
use leeward_format::cluster::TableOptions;
use leeward_format::{ServerId, TableId};
use std::collections::BTreeSet;

#[test]
fn a_quiet_cluster_is_assigned_once_and_then_left_alone() {
    let mut cluster = Cluster::new(7, 3);
    for server in [1, 2, 3] {
        cluster.start(ServerId(server));
    }
    cluster.settle();
    let primaries: BTreeSet<ServerId> =
        cluster.truth.values().map(|config| config.primary.expect("assigned").server).collect();
    assert_eq!(primaries.len(), 3, "primaries are spread");
    let before = cluster.tree.version();
    cluster.run(5_000, false);
    assert_eq!(cluster.tree.version(), before);
    let error = cluster.tree.apply(None, &bootstrap_op(&TableOptions::default(), TableId(1), &[]));
    assert!(matches!(error, Err(CoordinatorError::Exists { .. })));
}
