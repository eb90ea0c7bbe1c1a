//! A new table and its regions, as operations of the coordinator: the first content of a new cluster, or more of it later. Pure.

use crate::view::create;
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, GroupConfig, RegionNumbers, TableOptions, encode_value};
use leeward_format::coordinator::CoordinatorOp;
use leeward_format::table::NewTable;
use leeward_format::{RegionId, TableId};

/// The operation that makes the first table of a cluster, with one region more than there are `splits`. Each split is the first
/// key of a region. Without splits, the table has a region for each of its tokens. Regions are numbered from 1 and wait for the
/// master to assign them. `table_id` must be drawn at random.
///
/// It is done completely or not at all. [`leeward_format::coordinator::CoordinatorError::Exists`] means that the cluster has
/// content already. For a process that starts a cluster that is no failure.
///
/// # Panics
/// The splits are not strictly ascending, or one is the empty key.
pub fn bootstrap_op(table: &TableOptions, table_id: TableId, splits: &[Bytes]) -> CoordinatorOp {
    let table = NewTable::new(table.clone(), splits.to_vec());
    let regions: Vec<RegionId> = (1..).take(table.starts().len()).map(RegionId).collect();
    let mut numbers = RegionNumbers::default();
    numbers.give(regions.iter().copied());
    let give = create(ClusterPath::Numbers, encode_value(&numbers), false);
    CoordinatorOp::All(table_ops(&table, table_id, &regions, give))
}

/// The operations that make a table at once: its path, its regions, and `give`, which takes their numbers. Changes may be told
/// one by one. So each comes after the change that gives it a meaning.
///
/// # Panics
/// As [`bootstrap_op`].
pub(crate) fn table_ops(
    table: &NewTable,
    table_id: TableId,
    numbers: &[RegionId],
    give: CoordinatorOp,
) -> Vec<CoordinatorOp> {
    let path = create(ClusterPath::Table(table.options.name.clone()), encode_value(&table.options), false);
    std::iter::once(path).chain(region_ops(table, table_id, numbers)).chain([give]).collect()
}

/// The operations that make the regions of a table, with these numbers in the order of keys.
///
/// # Panics
/// As [`bootstrap_op`].
pub(crate) fn region_ops(table: &NewTable, table_id: TableId, numbers: &[RegionId]) -> Vec<CoordinatorOp> {
    let starts = table.starts();
    assert!(starts.is_sorted_by(|left, right| left < right), "splits must ascend from a key that is not empty");
    let config = |(index, region): (usize, &RegionId)| {
        let config = GroupConfig {
            table_id,
            start: starts[index].clone(),
            end: starts.get(index + 1).cloned(),
            ..GroupConfig::unassigned(*region, table.options.name.clone())
        };
        create(ClusterPath::Region(*region), encode_value(&config), false)
    };
    numbers.iter().enumerate().map(config).collect()
}
