//! A new table and its regions, as operations of the coordinator: the first content of a new cluster, or more of it later. Pure.

use crate::View;
use bytes::Bytes;
use leeward_format::RegionId;
use leeward_format::cluster::{ClusterPath, GroupConfig, RegionNumbers, TableOptions, encode_value};
use leeward_format::coordinator::CoordinatorOp;
use leeward_format::table::NewTable;
use std::collections::BTreeSet;

/// Maximum bytes of the operations that are sent to a coordinator at once: ZooKeeper accepts 1 MiB by default.
const MAX_CHUNK_BYTES: usize = 512 << 10;
/// Maximum bytes of an operation besides [`CoordinatorOp::bytes`]: ZooKeeper is told the root path of the cluster, and the access
/// rights.
const OVERHEAD_BYTES: usize = 256;

/// The operation that makes the first table of a cluster, with one region more than there are `splits`. Each split is the first
/// key of a region. Without splits, the table has a region for each of its tokens. Regions are numbered from 1 and wait for the
/// master to assign them.
///
/// It is done completely or not at all. [`leeward_format::coordinator::CoordinatorError::Exists`] means that the cluster has
/// content already. For a process that starts a cluster that is no failure.
///
/// # Panics
/// The splits are not strictly ascending, or one is the empty key.
pub fn bootstrap_op(table: &TableOptions, splits: &[Bytes]) -> CoordinatorOp {
    let table = NewTable::new(table.clone(), splits.to_vec());
    let regions: Vec<RegionId> = (1..).take(table.starts().len()).map(RegionId).collect();
    let mut numbers = RegionNumbers::default();
    numbers.give(regions.iter().copied());
    let give = create(ClusterPath::Numbers, encode_value(&numbers), false);
    CoordinatorOp::All(table_ops(&table, &regions, give))
}

/// The operations that make a table at once: its path, its regions, and `give`, which takes their numbers. Changes may be told
/// one by one. So each comes after the change that gives it a meaning.
///
/// # Panics
/// As [`bootstrap_op`].
pub(crate) fn table_ops(table: &NewTable, numbers: &[RegionId], give: CoordinatorOp) -> Vec<CoordinatorOp> {
    let path = create(ClusterPath::Table(table.options.name.clone()), encode_value(&table.options), false);
    std::iter::once(path).chain(region_ops(table, numbers)).chain([give]).collect()
}

/// The operations that make the regions of a table, with these numbers in the order of keys.
///
/// # Panics
/// As [`bootstrap_op`].
pub(crate) fn region_ops(table: &NewTable, numbers: &[RegionId]) -> Vec<CoordinatorOp> {
    let starts = table.starts();
    assert!(starts.is_sorted_by(|left, right| left < right), "splits must ascend from a key that is not empty");
    let config = |(index, region): (usize, &RegionId)| {
        let config = GroupConfig {
            start: starts[index].clone(),
            end: starts.get(index + 1).cloned(),
            ..GroupConfig::unassigned(*region, table.options.name.clone())
        };
        create(ClusterPath::Region(*region), encode_value(&config), false)
    };
    numbers.iter().enumerate().map(config).collect()
}

/// The operation that gives these numbers to regions. It fails if another process has given numbers since the state of the view.
pub(crate) fn give(view: &View, numbers: &[RegionId]) -> CoordinatorOp {
    let (mut given, path) = (view.numbers(), ClusterPath::Numbers);
    given.give(numbers.iter().copied());
    let value = encode_value(&given);
    match view.version_of(&path) {
        Some(version) => CoordinatorOp::Set { path: path.to_string(), value, version },
        None => create(path, value, false),
    }
}

/// Numbers for so many new regions: the next numbers that were not given, and of which no live server has a copy. Lower free
/// numbers, if the highest of all is taken.
///
/// # Errors
/// There are not so many left.
pub(crate) fn free_numbers(view: &View, regions: u32) -> Result<Vec<RegionId>, String> {
    let copies = view.servers().flat_map(|info| &info.copies).map(|copy| copy.region);
    let known: BTreeSet<RegionId> = copies.chain(view.regions().map(|config| config.region)).collect();
    let (given, above) = (view.numbers(), known.last().map_or(0, |region| region.0.saturating_add(1)));
    let after = |first: RegionId| Some(first.0.max(above)..first.0.max(above).checked_add(regions)?);
    if let Some(next) = given.next().and_then(after) {
        return Ok(next.map(RegionId).collect());
    }
    let is_free = |region: &RegionId| !known.contains(region) && !view.is_planned(*region);
    let below: Vec<RegionId> = given.gaps().filter(is_free).take(regions as usize).collect();
    match below.len() == regions as usize {
        true => Ok(below),
        false => Err("there are no region numbers left".into()),
    }
}

pub(crate) fn create(path: ClusterPath, value: Bytes, ephemeral: bool) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.to_string(), value, ephemeral }
}

/// How many of these operations, from the first, fit into one request to a coordinator.
pub(crate) fn chunk(ops: &[CoordinatorOp]) -> usize {
    let mut room = MAX_CHUNK_BYTES;
    let fits = |op: &&CoordinatorOp| {
        let left = room.checked_sub(op.bytes() + OVERHEAD_BYTES);
        left.inspect(|left| room = *left).is_some()
    };
    ops.iter().take_while(fits).count().max(1)
}
