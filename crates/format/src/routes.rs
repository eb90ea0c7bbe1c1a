//! The routes that nodes send to clients: the parts of configurations that routing needs, which are tables, first keys,
//! primaries and backups.
//!
//! ```text
//!  node (version w)                                         client (version v)
//!    what has changed after v, or everything ---- RoutesUpdate ----> RouteCache
//!                                                               same digest, or it asks for everything
//! ```
//! A client says which version of the coordinator's state it knows, and the node sends newer routes. A region needs
//! about ten bytes, and the part of its first key that it does not share with the region before it.
//!
//! Invariant: after [`RouteCache::apply`] has applied an update, the cache has the same routes as the node. Plain data;
//! any thread may use it.

use crate::cluster::{GroupConfig, RegionMap, Scans, TableOptions};
use crate::partition::Partition;
use crate::routing::{Route, RouteIndex, Routing};
use crate::{DecodeError, Epoch, MAX_KEY_BYTES, RegionId, ServerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most bytes of first keys in one update, decoded. Shared prefixes are sent once, so a short message could otherwise
/// take much memory.
const MAX_KEYS_BYTES: usize = 64 << 20;

/// An update of routes from one version to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesUpdate {
    /// Version of the coordinator's state after the update.
    pub version: u64,
    /// It applies to this version and to any between; `None`: it has all routes.
    pub since: Option<u64>,
    /// [`RouteIndex::digest`] after the update.
    pub digest: u64,
    /// By name, tables that were added, changed or removed, and tables with regions that were added or changed.
    pub tables: Vec<TableRoutes>,
    /// Regions that were removed.
    pub gone: Vec<RegionId>,
    /// All live servers, and where native clients reach them.
    pub servers: Vec<(ServerId, String)>,
}

impl RoutesUpdate {
    /// All routes of a region map. Scripted nodes in tests use it, which have only the map.
    pub fn everything(map: &RegionMap) -> RoutesUpdate {
        let mut index = RouteIndex::default();
        map.tables.iter().for_each(|table| index.set_table(&table.name, Some(table.partition)));
        map.regions.iter().for_each(|config| index.put(Arc::new(config.clone())));
        RoutesUpdate {
            version: map.version,
            since: None,
            digest: index.digest(),
            tables: (map.tables.iter())
                .map(|table| TableRoutes::pack(&table.name, Some(table.into()), map.regions_of(&table.name)))
                .collect(),
            gone: Vec::new(),
            servers: map.servers.iter().map(|info| (info.member.server, info.native_address.clone())).collect(),
        }
    }
}

/// The options of a table that routing needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRouting {
    /// How its keys are split.
    pub partition: Partition,
    /// Which members answer scans.
    pub scans: Scans,
}

impl From<&TableOptions> for TableRouting {
    fn from(options: &TableOptions) -> TableRouting {
        TableRouting { partition: options.partition, scans: options.reads.scans }
    }
}

impl From<Partition> for TableRouting {
    fn from(partition: Partition) -> TableRouting {
        TableRouting { partition, scans: Scans::default() }
    }
}

/// The routes of a table in an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRoutes {
    /// Also the name of a table that was dropped.
    pub name: String,
    /// Its options; `None`: there is no such table.
    pub table: Option<TableRouting>,
    /// Its regions in the update, ascending by first key or token.
    regions: Vec<PackedRoute>,
}

/// A region, encoded by its difference from the one before it in its table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PackedRoute {
    /// Its number less that of the one before.
    step: i32,
    /// Bytes that its first key shares with that of the one before.
    shared: u32,
    /// The rest of its first key.
    rest: Bytes,
    epoch: Epoch,
    primary: Option<ServerId>,
    backups: Vec<ServerId>,
}

impl TableRoutes {
    /// Encodes a table and some of its `regions`, which ascend by first key or token.
    pub fn pack<'a>(
        name: &str,
        table: Option<TableRouting>,
        regions: impl IntoIterator<Item = &'a GroupConfig>,
    ) -> TableRoutes {
        let (mut number, mut key) = (0_u32, &b""[..]);
        let pack = |config: &'a GroupConfig| {
            let shared = key.iter().zip(&config.start).take_while(|(left, right)| left == right).count();
            let step = config.region.0.wrapping_sub(number).cast_signed();
            (number, key) = (config.region.0, &config.start);
            PackedRoute {
                step,
                shared: shared as u32,
                rest: config.start.slice(shared..),
                epoch: config.epoch,
                primary: config.primary.map(|primary| primary.server),
                backups: config.backups.iter().map(|backup| backup.server).collect(),
            }
        };
        TableRoutes { name: name.to_owned(), table, regions: regions.into_iter().map(pack).collect() }
    }

    /// Decodes the regions. Their first keys may take at most `room` bytes, from which they are subtracted.
    fn unpack(self, room: &mut usize) -> Result<Vec<RegionRoute>, DecodeError> {
        let table: Arc<str> = self.name.into();
        let (mut number, mut key) = (0_u32, Bytes::new());
        let unpack = |packed: PackedRoute| {
            let shared = key.get(..packed.shared as usize);
            let bytes = shared.map_or(usize::MAX, |shared| shared.len().saturating_add(packed.rest.len()));
            let (Some(shared), Some(left)) = (shared.filter(|_| bytes <= MAX_KEY_BYTES), room.checked_sub(bytes))
            else {
                return Err(DecodeError::invalid("routes", "first keys that no regions have"));
            };
            *room = left;
            number = number.wrapping_add(packed.step.cast_unsigned());
            key = if shared.is_empty() { packed.rest } else { [shared, &packed.rest].concat().into() };
            Ok(RegionRoute {
                region: RegionId(number),
                table: table.clone(),
                start: key.clone(),
                epoch: packed.epoch,
                primary: packed.primary,
                backups: packed.backups,
            })
        };
        self.regions.into_iter().map(unpack).collect()
    }
}

/// The route to a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionRoute {
    /// Unique in the cluster, never reused.
    pub region: RegionId,
    /// Name of the table, shared by all of its routes.
    pub table: Arc<str>,
    /// Its first key or token. It ends where the next one of its table begins.
    pub start: Bytes,
    /// The version of its configuration.
    pub epoch: Epoch,
    /// The server that serves it.
    pub primary: Option<ServerId>,
    /// The servers that are in sync with the primary.
    pub backups: Vec<ServerId>,
}

impl Route for Arc<RegionRoute> {
    fn region(&self) -> RegionId {
        self.region
    }
    fn table(&self) -> &str {
        &self.table
    }
    fn start(&self) -> &Bytes {
        &self.start
    }
    fn epoch(&self) -> Epoch {
        self.epoch
    }
    fn holds(&self, _: &[u8]) -> bool {
        true
    }
}

/// The routes that a client knows.
#[derive(Clone, Debug, Default)]
pub struct RouteCache {
    version: u64,
    regions: RouteIndex<Arc<RegionRoute>>,
    scanned_at_backups: BTreeSet<String>,
    servers: BTreeMap<ServerId, String>,
}

/// The outcome of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was applied, and is newer than the routes before.
    Newer,
    /// It has nothing new.
    Known,
    /// It does not apply to the known version. Ask for all routes; [`RouteCache::version`] is 0 now. The routes may
    /// still be used.
    Unfit,
}

impl RouteCache {
    /// Version of the coordinator's state whose routes are known; 0: none.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Applies an update of a node, unless it is older than the known state.
    ///
    /// # Errors
    /// The update is not valid. The routes are unchanged.
    pub fn apply(&mut self, update: RoutesUpdate) -> Result<Applied, DecodeError> {
        let RoutesUpdate { version, since, digest, tables, gone, servers } = update;
        if version < self.version {
            return Ok(Applied::Known);
        }
        if since.is_some_and(|since| since > self.version) {
            self.version = 0;
            return Ok(Applied::Unfit);
        }
        let mut room = MAX_KEYS_BYTES;
        let unpack = |table: TableRoutes| Ok((table.name.clone(), table.table, table.unpack(&mut room)?));
        let tables = tables.into_iter().map(unpack).collect::<Result<Vec<_>, DecodeError>>()?;
        if since.is_none() {
            (self.regions, self.scanned_at_backups) = Default::default();
        }
        for region in gone {
            self.regions.remove(region);
        }
        for (name, table, routes) in tables {
            self.regions.set_table(&name, table.map(|table| table.partition));
            match table {
                Some(TableRouting { scans: Scans::Backups, .. }) => drop(self.scanned_at_backups.insert(name)),
                _ => drop(self.scanned_at_backups.remove(&name)),
            }
            routes.into_iter().for_each(|route| self.regions.put(Arc::new(route)));
        }
        self.servers = servers.into_iter().collect();
        if self.regions.digest() != digest {
            self.version = 0;
            return Ok(Applied::Unfit);
        }
        let before = std::mem::replace(&mut self.version, version);
        Ok(if version > before { Applied::Newer } else { Applied::Known })
    }

    /// Which members answer scans of `table`.
    pub fn scans(&self, table: &str) -> Scans {
        if self.scanned_at_backups.contains(table) { Scans::Backups } else { Scans::Primary }
    }

    /// The live servers and their addresses.
    pub fn servers(&self) -> impl Iterator<Item = (ServerId, &str)> {
        self.servers.iter().map(|(server, address)| (*server, &address[..]))
    }

    /// Address of a server, if it is live.
    pub fn address(&self, server: ServerId) -> Option<&str> {
        self.servers.get(&server).map(|address| &address[..])
    }

    /// The regions and tables.
    pub fn regions(&self) -> &RouteIndex<Arc<RegionRoute>> {
        &self.regions
    }
}

impl Routing for RouteCache {
    type Region = Arc<RegionRoute>;

    fn partition(&self, table: &str) -> Option<Partition> {
        self.regions.partition(table)
    }
    fn region_of(&self, table: &str, key: &[u8]) -> Option<&Arc<RegionRoute>> {
        self.regions.region_of(table, key)
    }
    fn region_below(&self, table: &str, end: Option<&[u8]>) -> Option<&Arc<RegionRoute>> {
        self.regions.region_below(table, end)
    }
    fn region(&self, id: RegionId) -> Option<&Arc<RegionRoute>> {
        self.regions.region(id)
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
