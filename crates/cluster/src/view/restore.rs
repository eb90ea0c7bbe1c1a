//! The operations that bring a tree which was lost, or put back to an older state, up to what this process knows.
//!
//! ```text
//! each server in turn:   tables, regions that the tree lacks, newer configurations, numbers, users; minus what has ended
//! then, once:            cluster (its identity, in the next generation): every server compares the tree anew
//! ```
//! - What a server that kept running knows is the tree as it showed it last: complete configurations. Groups go on as they were.
//! - What a restarted server knows is what its copies belong to. Such a region gets a configuration without members, in an epoch
//!   that is no older than the copy. The master gives it to the best copy once all expected servers are there, as a region
//!   of which nothing else is known.
//!
//! Invariants:
//! - A region's number and table stay together: where the tree has given a number to another table, nothing is restored. A region
//!   that never had a primary may be replaced, as nothing was ever written to it.
//! - Regions come before what shows that they are there: a configuration that plans them, or numbers. So each part of the
//!   operations can be made from the tree that the part before left.
//!
//! Pure; any thread.

use super::{Content, View, create};
use crate::CoordinatorOp;
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, CopyIdentity, GroupConfig, TableOptions, TreeIdentity, encode_value};
use leeward_format::frame::PROTOCOL_VERSION;
use leeward_format::routing::Routing;
use leeward_format::{ClusterId, Epoch, RegionId, TableId};
use std::collections::BTreeMap;

impl View {
    /// The operations that add to the coordinator's tree what this process knows and the tree lacks, in order.
    ///
    /// # Errors
    /// The tree has given the number of a region, or the name of a table, to something else that is in use.
    pub(crate) fn restore_ops(&self) -> Result<Vec<CoordinatorOp>, String> {
        let tree = self.told();
        let mut restored = Restored { view: self, tree, tables: BTreeMap::new(), regions: BTreeMap::new() };
        if self.aside.is_some() {
            for config in self.regions() {
                restored.add_known(config)?;
            }
            restored.add_held()?;
        }
        Ok(restored.into_ops())
    }

    /// The operation that says that the tree is restored.
    ///
    /// # Errors
    /// This process does not know which cluster it belongs to.
    pub(crate) fn confirm_op(&self) -> Result<CoordinatorOp, String> {
        let tree = self.told();
        let Some(cluster) = self.cluster() else {
            return Err("this server knows nothing of the cluster: ask one that has copies of regions".into());
        };
        let found = tree.identity.map(|(_, identity)| identity);
        let before = found.into_iter().chain(self.identity()).map(|identity| identity.generation).max();
        let identity = TreeIdentity { cluster, generation: before.unwrap_or(0) + 1 };
        let mut ops = vec![tree.put_op(ClusterPath::Cluster, encode_value(&identity))];
        if tree.protocol.is_none() {
            ops.push(create(ClusterPath::Protocol, encode_value(&PROTOCOL_VERSION), false));
        }
        Ok(CoordinatorOp::All(ops))
    }
}

/// What the tree is to get.
struct Restored<'a> {
    view: &'a View,
    tree: &'a Content,
    tables: BTreeMap<String, TableOptions>,
    regions: BTreeMap<RegionId, GroupConfig>,
}

impl Restored<'_> {
    /// A configuration that this process knew last.
    fn add_known(&mut self, known: &GroupConfig) -> Result<(), String> {
        let is_needed = match self.tree.routes.region(known.region) {
            None => !self.has_ended(known.region, &known.table),
            Some(found) if found.table_id == known.table_id => {
                (found.epoch, found.primary.is_some()) < (known.epoch, known.primary.is_some())
                    || found.epoch == known.epoch && **found != *known
            }
            Some(found) => was_never_used(found).then_some(true).ok_or_else(|| in_use(found, &known.table))?,
        };
        if is_needed {
            self.add_table(self.view.table(&known.table), known.table_id)?;
            self.regions.insert(known.region, known.clone());
        }
        Ok(())
    }

    /// What the copies belong to that this server found when it started. A server that has shown a tree since knows more.
    fn add_held(&mut self) -> Result<(), String> {
        if self.view.identity().is_some() {
            return Ok(());
        }
        let mut copies: Vec<_> =
            self.view.held.iter().filter(|(_, copy)| copy.identity.cluster != ClusterId(0)).collect();
        // The newest first: an older copy may be of a region that was split or merged since.
        copies.sort_by_key(|(region, copy)| (std::cmp::Reverse(copy.identity.epoch), **region));
        for (region, copy) in copies {
            let CopyIdentity { table_id, epoch, .. } = copy.identity;
            let epoch = epoch.max(copy.term);
            let table = &copy.options.name;
            let found = self.tree.routes.region(*region);
            let is_needed = match found {
                None => !self.has_ended(*region, table) && !self.is_covered(*region, &copy.identity),
                Some(found) if found.table_id == table_id => found.epoch < epoch,
                Some(found) => was_never_used(found).then_some(true).ok_or_else(|| in_use(found, table))?,
            };
            if is_needed {
                self.add_table(Some(&copy.options), table_id)?;
                self.regions.insert(*region, without_members(*region, table, &copy.identity, epoch));
            }
        }
        Ok(())
    }

    /// Whether a region that the tree lacks has ended. Where its table is lacking too, the tree may be of the time in which that
    /// was made.
    fn has_ended(&self, region: RegionId, table: &str) -> bool {
        self.tree.has_given(region) && !self.tree.planned.contains(&region) && self.tree.routes.table(table).is_some()
    }

    /// Whether another region of the table, which is no older, has keys of the copy's region.
    fn is_covered(&self, region: RegionId, identity: &CopyIdentity) -> bool {
        let overlaps = |config: &GroupConfig| {
            let begins_before_end = |start: &Bytes, end: &Option<Bytes>| end.as_ref().is_none_or(|end| start < end);
            config.table_id == identity.table_id
                && config.region != region
                && config.epoch >= identity.epoch
                && begins_before_end(&config.start, &identity.end)
                && begins_before_end(&identity.start, &config.end)
        };
        self.regions.values().any(overlaps) || self.tree.routes.regions().any(|config| overlaps(config))
    }

    fn add_table(&mut self, options: Option<&TableOptions>, table_id: TableId) -> Result<(), String> {
        let Some(options) = options else { return Ok(()) };
        let name = &options.name;
        if self.tree.routes.table(name).is_none() {
            self.tables.insert(name.clone(), options.clone());
            return Ok(());
        }
        let is_other = |config: &&std::sync::Arc<GroupConfig>| config.table_id != table_id && !was_never_used(config);
        match self.tree.routes.regions_of(name).find(is_other) {
            Some(found) => Err(in_use(found, name)),
            None => Ok(()),
        }
    }

    /// Regions of the tree that this process knows to have ended, and those of an unused table in whose place another comes.
    fn removed(&self) -> Vec<RegionId> {
        let is_replaced = |config: &GroupConfig| {
            let mut others = self.regions.values().filter(|other| other.table == config.table);
            others.any(|other| other.table_id != config.table_id) && !self.regions.contains_key(&config.region)
        };
        let is_gone = |config: &GroupConfig| self.view.knows_ended(config) || is_replaced(config);
        let all = if self.view.aside.is_some() { self.tree.routes.regions().collect() } else { Vec::new() };
        all.into_iter().filter(|config| is_gone(config)).map(|config| config.region).collect()
    }

    fn into_ops(self) -> Vec<CoordinatorOp> {
        let tree = self.tree;
        let region_path = |region: &RegionId| ClusterPath::Region(*region);
        let put = |config: &GroupConfig| tree.put_op(region_path(&config.region), encode_value(config));
        let is_new = |config: &&GroupConfig| tree.routes.region(config.region).is_none();
        let mut ops: Vec<CoordinatorOp> = Vec::new();
        for options in self.tables.values() {
            ops.push(create(ClusterPath::Table(options.name.clone()), encode_value(options), false));
        }
        ops.extend(self.regions.values().filter(is_new).map(put));
        ops.extend(self.regions.values().filter(|config| !is_new(config)).map(put));
        for region in self.removed() {
            let path = region_path(&region);
            ops.push(CoordinatorOp::Delete { path: path.to_string(), version: tree.version_of(&path) });
        }
        let found = tree.numbers.as_ref().map(|(_, numbers)| numbers.clone()).unwrap_or_default();
        let mut numbers = found.clone();
        numbers.give_all(&self.view.numbers());
        numbers.give(self.regions.keys().copied());
        if numbers != found {
            ops.push(tree.put_op(ClusterPath::Numbers, encode_value(&numbers)));
        }
        ops.extend(self.user_ops());
        ops
    }

    /// Users that this process knows, if the tree has none.
    fn user_ops(&self) -> Vec<CoordinatorOp> {
        if self.tree.user_changes.is_some() || self.view.users.is_empty() {
            return Vec::new();
        }
        let users = self.view.users.iter().map(|user| (ClusterPath::User(user.name.clone()), encode_value(&***user)));
        let lacking = users.filter(|(path, _)| self.tree.version_of(path).is_none());
        let changes = create(ClusterPath::Users, encode_value(&(self.view.user_changes() + 1)), false);
        lacking.map(|(path, value)| create(path, value, false)).chain([changes]).collect()
    }
}

impl Content {
    /// The operation that makes `path`, or replaces its value.
    pub(super) fn put_op(&self, path: ClusterPath, value: Bytes) -> CoordinatorOp {
        match self.version_of(&path) {
            Some(version) => CoordinatorOp::Set { path: path.to_string(), value, version },
            None => create(path, value, false),
        }
    }
}

/// Whether a region never had a primary, so that nothing was ever written to it.
fn was_never_used(config: &GroupConfig) -> bool {
    config.term == Epoch(0) && config.primary.is_none()
}

/// The configuration of a region of which only copies are known: the best of these becomes its primary.
fn without_members(region: RegionId, table: &str, identity: &CopyIdentity, epoch: Epoch) -> GroupConfig {
    let CopyIdentity { table_id, start, end, inherited_below, .. } = identity.clone();
    let unassigned = GroupConfig::unassigned(region, table);
    GroupConfig { table_id, start, end, inherited_below, epoch, ..unassigned }
}

fn in_use(found: &GroupConfig, table: &str) -> String {
    format!(
        "the coordinator's region {} belongs to another table {}, which is in use, and not to the table {table} that this \
         server knows: nothing of it is restored",
        found.region, found.table
    )
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
