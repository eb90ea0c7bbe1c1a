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
//! - A table's name goes from one table to another only where the regions of the first are known to have ended: this server has
//!   seen the end, or all servers that had copies were restarted since and found none. Anything else is refused, as copies of
//!   the first are destroyed once its regions are out of the tree.
//! - A region that is over by the [claims](super::claims) of this process is removed, and its number counts as given. A copy of
//!   such a region is left out, and a copy of before a split has only the keys that its region kept.
//! - Regions come before what shows that they are there: a configuration that plans them, or numbers. So each part of the
//!   operations can be made from the tree that the part before left.
//!
//! Pure; any thread.

use super::claims::{Claim, Left};
use super::{Content, View, create};
use crate::CoordinatorOp;
use bytes::Bytes;
use leeward_format::cluster::{
    ClusterPath, CopyIdentity, GroupConfig, Member, ServerInfo, TableOptions, TreeIdentity, encode_value,
};
use leeward_format::frame::PROTOCOL_VERSION;
use leeward_format::routing::Routing;
use leeward_format::{ClusterId, Epoch, RegionId, TableId};
use leeward_platform::planted::{Bug, planted};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl View {
    /// The operations that add to the coordinator's tree what this process knows and the tree lacks, in order.
    ///
    /// # Errors
    /// The tree has given the number of a region, or the name of a table, to something else that may be in use.
    pub(crate) fn restore_ops(&self) -> Result<Vec<CoordinatorOp>, String> {
        let tree = self.told();
        let (tables, regions) = (BTreeMap::new(), BTreeMap::new());
        let mut restored = Restored {
            view: self,
            tree,
            tables,
            regions,
            claims: Vec::new(),
            over: BTreeSet::new(),
            known: BTreeSet::new(),
            placed: BTreeSet::new(),
        };
        if self.aside.is_some() {
            for config in self.regions() {
                restored.add_known(config)?;
            }
            restored.add_held()?;
            restored.cut_others();
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
    /// The keys that regions had, as this process knows.
    claims: Vec<Claim<'a>>,
    /// Regions that are over by that, and are left out.
    over: BTreeSet<RegionId>,
    /// The tables that names belong to, as far as this process knows.
    known: BTreeSet<(String, TableId)>,
    /// Those of which nothing is in the way.
    placed: BTreeSet<(String, TableId)>,
}

impl<'a> Restored<'a> {
    /// A configuration that this process knew last.
    fn add_known(&mut self, known: &'a GroupConfig) -> Result<(), String> {
        let claim = Claim::of(known);
        let needed = match self.tree.routes.region(known.region) {
            None => (!self.has_ended(&claim)).then(|| known.clone()),
            Some(found) if found.table_id == known.table_id => newer_of(known, found),
            Some(found) => may_take_number(found, &known.table)?.then(|| known.clone()),
        };
        let is_needed = needed.is_some();
        if let Some(config) = needed {
            self.add_table(self.view.table(&known.table), known.table_id)?;
            self.regions.insert(known.region, config);
        }
        self.claims.push(claim);
        self.note_table(is_needed, &known.table, known.region, known.table_id);
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
            let claim = Claim::of_copy(*region, copy);
            let left = claim.left(self.claims.iter().copied().chain(self.tree.claims()));
            let is_needed = match self.tree.routes.region(*region) {
                _ if left == Left::Nothing => false,
                None => !self.has_ended(&claim),
                Some(found) if found.table_id == table_id => found.epoch < epoch,
                Some(found) => may_take_number(found, table)?,
            };
            if is_needed {
                self.add_table(Some(&copy.options), table_id)?;
                let generation = self.tree.identity.map_or(0, |(_, identity)| identity.generation);
                let config = without_members(*region, table, (&copy.identity, epoch), generation);
                self.regions.insert(*region, if let Left::UpTo(end) = left { cut(&config, end) } else { config });
            }
            if left == Left::Nothing {
                self.over.insert(*region);
            }
            self.claims.push(claim);
            self.note_table(is_needed, table, *region, table_id);
        }
        Ok(())
    }

    /// Cuts the regions of the tree of which only copies are known where a newer region begins that this process knows: the copies
    /// are of a time before a split.
    fn cut_others(&mut self) {
        let is_of_copies = |config: &&Arc<GroupConfig>| {
            let has_members = config.candidates().next().is_some();
            !has_members && config.term == Epoch(0) && !was_never_used(config)
        };
        for found in self.tree.routes.regions().filter(is_of_copies) {
            if self.regions.contains_key(&found.region) {
                continue;
            }
            if let Left::UpTo(end) = Claim::of(found).left(self.claims.iter().copied()) {
                self.regions.insert(found.region, cut(found, end));
            }
        }
    }

    /// Whether a region that the tree lacks has ended. Where its table is lacking too, the tree may be of the time in which that
    /// was made. Where it has regions of the table, one of them has the keys of a region that ended.
    fn has_ended(&self, claim: &Claim<'_>) -> bool {
        let Claim { region, table, .. } = *claim;
        let is_given = self.tree.has_given(region) && !self.tree.plans(region);
        let has_table = self.tree.routes.table(table).is_some();
        match self.tree.regions_of(claim).next().is_some() {
            true => claim.left(self.tree.claims()) == Left::Nothing,
            false => is_given && has_table,
        }
    }

    /// Notes which table a name belongs to, if a region of it is restored or there.
    fn note_table(&mut self, is_restored: bool, table: &str, region: RegionId, table_id: TableId) {
        let is_there = || self.tree.routes.region(region).is_some_and(|found| found.table_id == table_id);
        if is_restored || is_there() {
            self.known.insert((table.to_owned(), table_id));
        }
    }

    fn add_table(&mut self, options: Option<&TableOptions>, table_id: TableId) -> Result<(), String> {
        let Some(options) = options else { return Ok(()) };
        let name = &options.name;
        if !self.placed.insert((name.clone(), table_id)) {
            return Ok(());
        }
        let mut is_replaced = false;
        let is_of_other = |config: &&Arc<GroupConfig>| config.table == *name && config.table_id != table_id;
        for found in self.tree.routes.regions().filter(is_of_other) {
            self.may_go(found).map_err(|why| in_the_way(found, name, &why))?;
            is_replaced = true;
        }
        let found = self.tree.routes.table(name);
        if found.is_none() || is_replaced && found != Some(options) {
            self.tables.insert(name.clone(), options.clone());
        }
        Ok(())
    }

    /// Whether no server has data of a region whose table's name belongs to another table.
    ///
    /// # Errors
    /// Why a server may have some.
    fn may_go(&self, found: &GroupConfig) -> Result<(), String> {
        if was_never_used(found) || self.view.knows_ended(found) {
            return Ok(());
        }
        // Copies are registered by a process that starts with them.
        let has_copy =
            |server: &&ServerInfo| server.copy_of(found.region).is_some_and(|copy| !copy.is_of_other_table(found));
        if let Some(holder) = self.tree.routes.servers().find(has_copy) {
            return Err(format!("server {} has a copy of it", holder.member.server));
        }
        let mut had_copies = found.members().chain(found.candidates()).peekable();
        if had_copies.peek().is_none() {
            return Err("other servers had copies of it".into());
        }
        had_copies.try_for_each(|member| self.was_restarted(member))
    }

    /// Whether the process of `member` was replaced by another one on its volume.
    fn was_restarted(&self, member: Member) -> Result<(), String> {
        let why = match self.tree.routes.server(member.server) {
            Some(now) if member.is_earlier_than(&now.member) => return Ok(()),
            Some(_) => "was not restarted since, on its volume",
            None => "is not there",
        };
        Err(format!("server {}, which had a copy of it, {why}", member.server))
    }

    /// Regions of the tree that this process knows to have ended or to be over, and those of a table in whose place another comes.
    fn removed(&self) -> Vec<RegionId> {
        let is_known = |config: &GroupConfig| self.known.contains(&(config.table.clone(), config.table_id));
        let has_other = |config: &GroupConfig| self.known.iter().any(|(table, _)| *table == config.table);
        let is_replaced = |config: &GroupConfig| {
            let is_of_other_table = !is_known(config) && has_other(config);
            is_of_other_table && !self.regions.contains_key(&config.region) && self.may_go(config).is_ok()
        };
        let is_over = |config: &GroupConfig| {
            let is_over = Claim::of(config).left(self.claims.iter().copied()) == Left::Nothing;
            is_over && !self.regions.contains_key(&config.region) && !planted(Bug::RestoreMerged)
        };
        let is_gone = |config: &GroupConfig| self.view.knows_ended(config) || is_over(config) || is_replaced(config);
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
            ops.push(tree.put_op(ClusterPath::Table(options.name.clone()), encode_value(options)));
        }
        ops.extend(self.regions.values().filter(is_new).map(put));
        ops.extend(self.regions.values().filter(|config| !is_new(config)).map(put));
        let removed = self.removed();
        for region in &removed {
            let path = region_path(region);
            ops.push(CoordinatorOp::Delete { path: path.to_string(), version: tree.version_of(&path) });
        }
        let found = tree.numbers.as_ref().map(|(_, numbers)| numbers.clone()).unwrap_or_default();
        let mut numbers = found.clone();
        numbers.give_all(&self.view.numbers());
        numbers.give(self.regions.keys().chain(&self.over).chain(&removed).copied());
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

/// The configuration to write in place of the tree's, if what is known is newer, or another of the same epoch. Of two of one epoch
/// the one of the later term is right: its primary may have served since the tree was put back. All servers take it for newer
/// than the other one in the epoch after that.
fn newer_of(known: &GroupConfig, found: &GroupConfig) -> Option<GroupConfig> {
    match found.epoch.cmp(&known.epoch) {
        Ordering::Less => Some(known.clone()),
        Ordering::Greater => None,
        Ordering::Equal if found.term > known.term => Some(GroupConfig { epoch: found.epoch.next(), ..found.clone() }),
        Ordering::Equal => (*found != *known).then(|| known.clone()),
    }
}

/// The configuration of a region whose keys end before `end`. Its copies have others too.
fn cut(config: &GroupConfig, end: &Bytes) -> GroupConfig {
    GroupConfig { epoch: config.epoch, end: Some(end.clone()), ..config.holding_more() }
}

/// Whether a region never had a primary, so that nothing was ever written to it. One that was restored from copies has no primary
/// either, but the epoch of a copy.
fn was_never_used(config: &GroupConfig) -> bool {
    (config.epoch, config.term) == (Epoch(0), Epoch(0)) && config.primary.is_none()
}

/// Whether the number of a region of another table may be taken by one of `table`.
fn may_take_number(found: &GroupConfig, table: &str) -> Result<bool, String> {
    let why = "it has the same number, and was used";
    was_never_used(found).then_some(true).ok_or_else(|| in_the_way(found, table, why))
}

/// The configuration of a region of which only copies are known, in a tree of this generation: the best of these becomes its
/// primary.
fn without_members(
    region: RegionId,
    table: &str,
    (identity, epoch): (&CopyIdentity, Epoch),
    generation: u32,
) -> GroupConfig {
    let CopyIdentity { table_id, start, end, inherited_below, .. } = identity.clone();
    let unassigned = GroupConfig::unassigned(region, table);
    GroupConfig { table_id, start, end, inherited_below, epoch, restored_in: Some(generation), ..unassigned }
}

fn in_the_way(found: &GroupConfig, table: &str, why: &str) -> String {
    format!(
        "the coordinator's region {} belongs to another table {} than the table {table} that this server knows, and may be \
         in use: {why}. Nothing of what this server knows is restored",
        found.region, found.table
    )
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
