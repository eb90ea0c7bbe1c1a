//! Operations on what the view shows: each fails if another process has changed it since. Also the numbers for new regions. Pure.

use super::View;
use crate::CoordinatorOp;
use bytes::Bytes;
use leeward_format::RegionId;
use leeward_format::cluster::{ClusterPath, GroupConfig, Plan, encode_value};
use std::collections::BTreeSet;

/// The operation that makes `path`.
pub(crate) fn create(path: ClusterPath, value: Bytes, ephemeral: bool) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.to_string(), value, ephemeral }
}

impl View {
    /// The operation that removes `path`.
    pub(crate) fn remove_op(&self, path: &ClusterPath) -> CoordinatorOp {
        CoordinatorOp::Delete { path: path.to_string(), version: self.version_of(path) }
    }

    /// The operation that makes `path`, or replaces its value.
    pub(crate) fn put_op(&self, path: ClusterPath, value: Bytes) -> CoordinatorOp {
        self.current.put_op(path, value)
    }

    /// The operation that replaces the configuration of a region by `config`.
    pub(crate) fn replace_op(&self, config: &GroupConfig) -> CoordinatorOp {
        let path = ClusterPath::Region(config.region);
        let version = self.version_of(&path).expect("a configuration replaces one that the view holds");
        CoordinatorOp::Set { path: path.to_string(), value: encode_value(config), version }
    }

    /// The operation that writes `next`, which records a request. If `next` plans a new child region, the operation also takes the
    /// number of the child. If it plans a merge, the operation fails if the target has changed: so no region that has a plan of
    /// its own becomes a target, and no target gets a plan.
    pub(crate) fn request_op(&self, next: &GroupConfig) -> CoordinatorOp {
        let set = self.replace_op(next);
        let old = self.region(next.region).and_then(|config| config.desired.plan.as_ref());
        match next.desired.plan.as_ref().filter(|plan| old != Some(*plan)) {
            // In this order: a number that is taken, and that no region or plan has, belongs to a region that was removed.
            Some(Plan::Split { child, .. }) => CoordinatorOp::All(vec![set, self.give_op(&[*child])]),
            Some(Plan::Merge { into }) => match self.region(*into) {
                Some(target) => CoordinatorOp::All(vec![set, self.replace_op(target)]),
                None => set,
            },
            None => set,
        }
    }

    /// The operation that gives these numbers to regions. It fails if another process has given numbers since the state of the
    /// view.
    pub(crate) fn give_op(&self, numbers: &[RegionId]) -> CoordinatorOp {
        let mut given = self.numbers();
        given.give(numbers.iter().copied());
        self.put_op(ClusterPath::Numbers, encode_value(&given))
    }

    /// Numbers for so many new regions: the next numbers that were not given, and of which no live server has a copy. Lower free
    /// numbers, if the highest of all is taken.
    ///
    /// # Errors
    /// There are not so many left.
    pub(crate) fn free_numbers(&self, regions: u32) -> Result<Vec<RegionId>, String> {
        let copies = self.servers().flat_map(|info| &info.copies).map(|copy| copy.region);
        let known: BTreeSet<RegionId> = copies.chain(self.regions().map(|config| config.region)).collect();
        let (given, above) = (self.numbers(), known.last().map_or(0, |region| region.0.saturating_add(1)));
        let after = |first: RegionId| Some(first.0.max(above)..first.0.max(above).checked_add(regions)?);
        if let Some(next) = given.next().and_then(after) {
            return Ok(next.map(RegionId).collect());
        }
        let is_free = |region: &RegionId| !known.contains(region) && !self.is_planned(*region);
        let below: Vec<RegionId> = given.gaps().filter(is_free).take(regions as usize).collect();
        match below.len() == regions as usize {
            true => Ok(below),
            false => Err("there are no region numbers left".into()),
        }
    }
}
