//! The tables, regions and servers that a process knows. Operations are routed by them, and clients are told what is new to them.
//! The cost of a change depends only on the size of the change: no thread looks at ten thousand regions because one of them
//! changed.
//!
//! Invariant: [`Routes::update_since`] of a version leads to the state here from any state of the tree that was shown at that
//! version, or later. Pure; one thread at a time.

use leeward_format::cluster::{ClusterPath, GroupConfig, RegionMap, ServerInfo, TableOptions};
use leeward_format::partition::Partition;
use leeward_format::routes::{RoutesUpdate, TableRoutes};
use leeward_format::routing::{Route, RouteIndex, Routing, Spread};
use leeward_format::{Epoch, RegionId, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Paths that are remembered as gone. When there are more, all are forgotten, and a client that knows less is told everything.
const MOST_GONE: usize = 4096;

/// The tables, regions and servers that a process knows, by version.
#[derive(Debug, Default)]
pub struct Routes {
    tables: BTreeMap<String, (u64, TableOptions)>,
    regions: RouteIndex<Versioned>,
    servers: BTreeMap<ServerId, (u64, ServerInfo)>,
    log: ChangeLog,
    /// The [generation](leeward_format::cluster::TreeIdentity) of the tree.
    generation: u32,
}

/// A region's configuration, and the version at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Versioned {
    pub(super) version: u64,
    pub(super) config: Arc<GroupConfig>,
}

impl Route for Versioned {
    fn region(&self) -> RegionId {
        self.config.region
    }
    fn table(&self) -> &str {
        &self.config.table
    }
    fn start(&self) -> &bytes::Bytes {
        &self.config.start
    }
    fn epoch(&self) -> Epoch {
        self.config.epoch
    }
    fn holds(&self, place: &[u8]) -> bool {
        self.config.contains(place)
    }
}

/// The version of the last change of each path.
#[derive(Debug, Default)]
struct ChangeLog {
    /// The last known change.
    version: u64,
    changes: BTreeSet<(u64, ClusterPath)>,
    gone: BTreeMap<ClusterPath, u64>,
    /// Every change after this version is in `changes`.
    complete_from: u64,
}

impl ChangeLog {
    /// `path` has a value now. It had one of the version `before`, if any.
    fn put(&mut self, path: ClusterPath, before: Option<u64>, version: u64) {
        self.forget(&path, before);
        self.changes.insert((version, path));
    }

    /// `path` has no value now. It may have had one before.
    fn remove(&mut self, path: ClusterPath, before: Option<u64>, version: u64) {
        self.forget(&path, before);
        if self.gone.len() >= MOST_GONE {
            for (path, version) in std::mem::take(&mut self.gone) {
                self.changes.remove(&(version, path));
                self.complete_from = self.complete_from.max(version);
            }
        }
        self.gone.insert(path.clone(), version);
        self.changes.insert((version, path));
    }

    fn forget(&mut self, path: &ClusterPath, before: Option<u64>) {
        if let Some(before) = before.or_else(|| self.gone.remove(path)) {
            self.changes.remove(&(before, path.clone()));
        }
    }

    /// The paths that changed after `version`.
    fn since(&self, version: u64) -> impl Iterator<Item = &ClusterPath> {
        // The least of all paths.
        let first = (version.saturating_add(1), ClusterPath::Table(String::new()));
        self.changes.range((Bound::Included(first), Bound::Unbounded)).map(|(_, path)| path)
    }
}

impl Routes {
    /// The version of the known state, as clients are told it: it rises with each change, and also where a tree was restored whose
    /// own numbers begin anew.
    pub fn version(&self) -> u64 {
        self.before_tree().saturating_add(self.log.version)
    }

    /// The number of the tree's last change, or a later one.
    pub(super) fn tree_version(&self) -> u64 {
        self.log.version
    }

    /// The tree has been restored so often.
    pub(super) fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// What is added to the numbers of the tree's changes. These have 48 bits to themselves, which ZooKeeper's reach after 65,536
    /// elections.
    fn before_tree(&self) -> u64 {
        u64::from(self.generation.min(u32::from(u16::MAX))) << 48
    }

    /// The known state is also the state at `version`.
    pub(super) fn reach(&mut self, version: u64) {
        self.log.version = self.log.version.max(version);
    }

    /// The whole tree was told, as of some version. The changes before that version are unknown.
    pub(super) fn is_whole(&mut self) {
        self.log.complete_from = self.log.version;
    }

    pub(super) fn put_table(&mut self, version: u64, options: TableOptions) {
        let path = ClusterPath::Table(options.name.clone());
        self.regions.set_table(&options.name, Some(options.partition));
        let before = self.tables.insert(options.name.clone(), (version, options));
        self.log.put(path, before.map(|(version, _)| version), version);
    }

    pub(super) fn remove_table(&mut self, version: u64, name: &str) {
        self.regions.set_table(name, None);
        let before = self.tables.remove(name);
        self.log.remove(ClusterPath::Table(name.to_owned()), before.map(|(version, _)| version), version);
    }

    pub(super) fn put_region(&mut self, version: u64, config: GroupConfig) {
        let path = ClusterPath::Region(config.region);
        let before = self.regions.region(config.region).map(|before| before.version);
        self.regions.put(Versioned { version, config: Arc::new(config) });
        self.log.put(path, before, version);
    }

    pub(super) fn remove_region(&mut self, version: u64, id: RegionId) {
        let before = self.regions.remove(id);
        self.log.remove(ClusterPath::Region(id), before.map(|before| before.version), version);
    }

    pub(super) fn put_server(&mut self, version: u64, info: ServerInfo) {
        self.servers.insert(info.member.server, (version, info));
    }

    pub(super) fn remove_server(&mut self, id: ServerId) {
        self.servers.remove(&id);
    }

    /// Every table, by name, with the version of its options.
    pub(super) fn versioned_tables(&self) -> &BTreeMap<String, (u64, TableOptions)> {
        &self.tables
    }
    /// Every live server, by id, with the version at which it registered.
    pub(super) fn versioned_servers(&self) -> &BTreeMap<ServerId, (u64, ServerInfo)> {
        &self.servers
    }
    /// A region, with its version.
    pub(super) fn versioned(&self, id: RegionId) -> Option<&Versioned> {
        self.regions.region(id)
    }

    /// Every table's options, by name.
    pub fn tables(&self) -> impl Iterator<Item = &TableOptions> {
        self.tables.values().map(|(_, options)| options)
    }
    /// Options of a table.
    pub fn table(&self, name: &str) -> Option<&TableOptions> {
        self.tables.get(name).map(|(_, options)| options)
    }
    /// Every region, by id, including regions whose table is not there.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<GroupConfig>> {
        self.regions.iter().map(|region| &region.config)
    }
    /// The regions of an existing table, by first key or token.
    pub fn regions_of(&self, table: &str) -> impl DoubleEndedIterator<Item = &Arc<GroupConfig>> {
        self.regions.regions_of(table).map(|region| &region.config)
    }
    /// See [`RouteIndex::is_ambiguous`].
    pub fn is_ambiguous(&self) -> bool {
        self.regions.is_ambiguous()
    }
    /// The regions that an operation on a range of the table's keys concerns.
    pub fn spread(&self, table: &str) -> Spread {
        self.regions.spread(table)
    }
    /// Every live server, by id.
    pub fn servers(&self) -> impl Iterator<Item = &ServerInfo> {
        self.servers.values().map(|(_, info)| info)
    }
    /// A live server.
    pub fn server(&self, id: ServerId) -> Option<&ServerInfo> {
        self.servers.get(&id).map(|(_, info)| info)
    }

    /// The update for a client that knows the version `known`: the newer changes, or everything if those are not known.
    pub fn update_since(&self, known: u64) -> RoutesUpdate {
        let before = self.before_tree();
        let in_tree = known.saturating_sub(before);
        let is_whole = in_tree == 0 || in_tree < self.log.complete_from;
        let (mut regions, mut tables, mut gone) = (Vec::new(), BTreeSet::new(), Vec::new());
        let paths = (!is_whole).then(|| self.log.since(in_tree));
        for path in paths.into_iter().flatten() {
            match path {
                ClusterPath::Table(name) => drop(tables.insert(&name[..])),
                ClusterPath::Region(id) => match self.versioned(*id) {
                    Some(region) => regions.push(region),
                    None => gone.push(*id),
                },
                ClusterPath::Server(_) | ClusterPath::Intent(_) | ClusterPath::Master => {}
                ClusterPath::Numbers | ClusterPath::Protocol | ClusterPath::Cluster | ClusterPath::Making(_) => {}
                ClusterPath::Users | ClusterPath::User(_) => {}
            }
        }
        if is_whole {
            regions.extend(self.regions.iter());
            tables.extend(self.tables.keys().map(String::as_str));
        }
        regions.sort_by(|left, right| (left.table(), left.start()).cmp(&(right.table(), right.start())));
        tables.extend(regions.iter().map(|region| region.table()));
        let mut regions = &regions[..];
        let mut pack = |name: &str| {
            let (of_it, rest) = regions.split_at(regions.partition_point(|region| region.table() <= name));
            regions = rest;
            TableRoutes::pack(name, self.table(name).map(Into::into), of_it.iter().map(|region| &*region.config))
        };
        RoutesUpdate {
            version: self.version(),
            since: (!is_whole).then(|| known.min(self.version())),
            digest: self.regions.digest(),
            tables: tables.into_iter().map(&mut pack).collect(),
            gone,
            servers: self.servers().map(|info| (info.member.server, info.native_address.clone())).collect(),
        }
    }

    /// The whole region map, as operators see it: regions by table and first key.
    pub fn region_map(&self) -> RegionMap {
        self.map_parts().region_map()
    }

    /// The parts of the region map, of which the regions are not copied.
    pub fn map_parts(&self) -> MapParts {
        MapParts {
            version: self.version(),
            tables: self.tables().cloned().collect(),
            regions: self.regions().cloned().collect(),
            servers: self.servers().cloned().collect(),
        }
    }
}

/// The parts of a [`RegionMap`], which cost little to take. Making the map of them costs a copy of each region, which
/// another thread than that of the [`Routes`] may do.
#[derive(Clone, Debug, Default)]
pub struct MapParts {
    /// See [`RegionMap::version`].
    pub version: u64,
    /// See [`RegionMap::tables`].
    pub tables: Vec<TableOptions>,
    /// The regions, in any order.
    pub regions: Vec<Arc<GroupConfig>>,
    /// See [`RegionMap::servers`].
    pub servers: Vec<ServerInfo>,
}

impl MapParts {
    /// The region map: regions by table and first key.
    pub fn region_map(mut self) -> RegionMap {
        self.regions.sort_by(|left, right| (&left.table, &left.start).cmp(&(&right.table, &right.start)));
        let MapParts { version, tables, regions, servers } = self;
        RegionMap { version, tables, regions: regions.into_iter().map(Arc::unwrap_or_clone).collect(), servers }
    }
}

impl Routing for Routes {
    type Region = Arc<GroupConfig>;

    fn partition(&self, table: &str) -> Option<Partition> {
        self.regions.partition(table)
    }
    fn region_of(&self, table: &str, key: &[u8]) -> Option<&Arc<GroupConfig>> {
        self.regions.region_of(table, key).map(|region| &region.config)
    }
    fn region_below(&self, table: &str, end: Option<&[u8]>) -> Option<&Arc<GroupConfig>> {
        self.regions.region_below(table, end).map(|region| &region.config)
    }
    fn region(&self, id: RegionId) -> Option<&Arc<GroupConfig>> {
        self.versioned(id).map(|region| &region.config)
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
