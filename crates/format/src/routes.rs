//! The routes that nodes send to clients: tables, first keys, primaries and backups, and no more of a configuration than
//! routing needs.
//!
//! ```text
//!  node (version w)                                         client (version v)
//!    what has changed after v, or everything ---- RoutesUpdate ----> RouteCache
//!                                                               same digest, or it asks for everything
//! ```
//! A client says which version of the coordinator's state it knows, and the node sends what is newer. A region needs about ten
//! bytes and the part of its first key that it does not share with the one before it.
//!
//! Invariant: after [`RouteCache::apply`] returns that it applied an update, the cache holds what the node held. Plain data; any
//! thread may use it.

use crate::cluster::{GroupConfig, RegionMap};
use crate::partition::Partition;
use crate::routing::{Route, RouteIndex, Routing};
use crate::{DecodeError, Epoch, MAX_KEY_BYTES, RegionId, ServerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most bytes of first keys that one update may tell: what keys share is told once, so that a short message could ask for much
/// memory.
const MAX_KEYS_BYTES: usize = 64 << 20;

/// What leads from one version to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesUpdate {
    /// Version of the coordinator's state that it leads to.
    pub version: u64,
    /// It leads there from this version, and from any between; `None`: it is everything.
    pub since: Option<u64>,
    /// [`RouteIndex::digest`] of what it leads to.
    pub digest: u64,
    /// Tables that changed, came or went, and those of regions that changed or came; by name.
    pub tables: Vec<TableRoutes>,
    /// Regions that are no more.
    pub gone: Vec<RegionId>,
    /// All live servers, and where native clients reach them.
    pub servers: Vec<(ServerId, String)>,
}

impl RoutesUpdate {
    /// Everything that routing needs of a region map: what a node by script, which has nothing but the map, says in tests.
    pub fn everything(map: &RegionMap) -> RoutesUpdate {
        let mut index = RouteIndex::default();
        map.tables.iter().for_each(|table| index.set_table(&table.name, Some(table.partition)));
        map.regions.iter().for_each(|config| index.put(Arc::new(config.clone())));
        RoutesUpdate {
            version: map.version,
            since: None,
            digest: index.digest(),
            tables: (map.tables.iter())
                .map(|table| TableRoutes::pack(&table.name, Some(table.partition), map.regions_of(&table.name)))
                .collect(),
            gone: Vec::new(),
            servers: map.servers.iter().map(|info| (info.member.server, info.native_address.clone())).collect(),
        }
    }
}

/// What is told of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRoutes {
    /// Its name.
    pub name: String,
    /// How its keys are split; `None`: there is no such table.
    pub partition: Option<Partition>,
    /// Its regions, as far as they are told of, ascending by first key or token.
    regions: Vec<PackedRoute>,
}

/// A region, told by what sets it apart from the one before it in its table.
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
    /// Tells of a table, and of `regions` of it, which ascend by first key or token.
    pub fn pack<'a>(
        name: &str,
        partition: Option<Partition>,
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
        TableRoutes { name: name.to_owned(), partition, regions: regions.into_iter().map(pack).collect() }
    }

    /// The regions that it tells of, whose first keys take at most `room` bytes, of which that is taken off.
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

/// A region as a client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionRoute {
    /// Its number.
    pub region: RegionId,
    /// Its table.
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

/// What a client knows of where regions are.
#[derive(Clone, Debug, Default)]
pub struct RouteCache {
    version: u64,
    regions: RouteIndex<Arc<RegionRoute>>,
    servers: BTreeMap<ServerId, String>,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was taken, and is newer than what was known.
    Newer,
    /// There is nothing new in it.
    Known,
    /// It does not lead on from what is known: everything is to be asked for, which [`RouteCache::version`] says too. What was
    /// known may still be routed by.
    Unfit,
}

impl RouteCache {
    /// Version of the coordinator's state that is known; 0: none.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Takes what a node says. An older state than the one that is known is not taken.
    ///
    /// # Errors
    /// It makes no sense; what was known is as it was.
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
        let unpack = |table: TableRoutes| Ok((table.name.clone(), table.partition, table.unpack(&mut room)?));
        let tables = tables.into_iter().map(unpack).collect::<Result<Vec<_>, DecodeError>>()?;
        if since.is_none() {
            self.regions = RouteIndex::default();
        }
        for region in gone {
            self.regions.remove(region);
        }
        for (name, partition, routes) in tables {
            self.regions.set_table(&name, partition);
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

    /// The live servers, and where they are reached.
    pub fn servers(&self) -> impl Iterator<Item = (ServerId, &str)> {
        self.servers.iter().map(|(server, address)| (*server, &address[..]))
    }

    /// Where a server is reached, if it is alive.
    pub fn address(&self, server: ServerId) -> Option<&str> {
        self.servers.get(&server).map(|address| &address[..])
    }

    /// The regions, and which of the tables are there.
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
