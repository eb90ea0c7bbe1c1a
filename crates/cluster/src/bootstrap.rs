//! A new table and its regions, made in one step: the first content of a new cluster, or more of it later. Pure.

use bytes::Bytes;
use leeward_format::RegionId;
use leeward_format::cluster::{ClusterPath, GroupConfig, TableOptions, encode_value};
use leeward_format::coordinator::CoordinatorOp;

/// The operation that makes `table` with one region more than there are `splits`: each split is the first key of a
/// region. Regions are numbered from `first` and wait for the master to assign them.
///
/// It is done whole or not at all; [`leeward_format::coordinator::CoordinatorError::Exists`] means that the table was
/// made before, or that a region has one of the numbers; to whoever starts a cluster it is no failure.
///
/// # Panics
/// The splits are not strictly ascending, or one is the empty key.
pub fn bootstrap_op(table: &TableOptions, first: RegionId, splits: &[Bytes]) -> CoordinatorOp {
    let starts: Vec<Bytes> = std::iter::once(Bytes::new()).chain(splits.iter().cloned()).collect();
    assert!(starts.is_sorted_by(|left, right| left < right), "splits must ascend from a key that is not empty");
    let mut ops = vec![create(ClusterPath::Table(table.name.clone()), encode_value(table))];
    for (index, start) in starts.iter().enumerate() {
        let region = RegionId(first.0 + u32::try_from(index).expect("regions are counted in 32 bits"));
        let config = GroupConfig {
            start: start.clone(),
            end: starts.get(index + 1).cloned(),
            ..GroupConfig::unassigned(region, table.name.clone())
        };
        ops.push(create(ClusterPath::Region(region), encode_value(&config)));
    }
    CoordinatorOp::All(ops)
}

fn create(path: ClusterPath, value: Bytes) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.to_string(), value, ephemeral: false }
}
