//! The index by which nodes and clients find the region of an operation: regions by number, and those of a table by
//! first key.
//!
//! Invariant: results depend on the present regions and tables, not on the order in which they were added. Nothing is
//! found in a table that does not exist, even if regions name it. Plain data; any thread may use it.

use crate::cluster::GroupConfig;
use crate::partition::Partition;
use crate::{Epoch, RegionId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The properties of a region that routing needs.
pub trait Route {
    /// Unique in the cluster, over all tables.
    fn region(&self) -> RegionId;
    /// Name of the table that it is part of.
    fn table(&self) -> &str;
    /// Its first key or token.
    fn start(&self) -> &Bytes;
    /// The version of its configuration.
    fn epoch(&self) -> Epoch;
    /// Whether this [place](Partition::place), which is not below its start, is within its bounds.
    fn holds(&self, place: &[u8]) -> bool;
}

impl Route for Arc<GroupConfig> {
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
    fn holds(&self, place: &[u8]) -> bool {
        self.contains(place)
    }
}

/// A source of routes: see [`crate::op::Op::region_in`].
pub trait Routing {
    /// The route to a region.
    type Region: Route;
    /// How the keys of `table` are split; `None`: there is no such table.
    fn partition(&self, table: &str) -> Option<Partition>;
    /// The region of `table` that holds `key`.
    fn region_of(&self, table: &str, key: &[u8]) -> Option<&Self::Region>;
    /// The region with the greatest keys below `end`, or of all; the first region if no key is below `end`. Only for a
    /// `table` that is split by keys.
    fn region_below(&self, table: &str, end: Option<&[u8]>) -> Option<&Self::Region>;
    /// The region with this number, of any table.
    fn region(&self, id: RegionId) -> Option<&Self::Region>;
}

/// The regions that an operation on a range of keys goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The region of its bound, then the next ones; or the table does not exist.
    InOrder,
    /// All of these, because keys are partitioned by hash.
    All(Vec<RegionId>),
    /// All regions of the table, but not all are known.
    Unknown,
}

/// Regions by number, and by table and first key.
#[derive(Clone, Debug)]
pub struct RouteIndex<R> {
    regions: BTreeMap<RegionId, R>,
    tables: BTreeMap<String, Table<R>>,
    /// Regions that begin at the same key as one with a higher number. This occurs only while tables are made or bounds
    /// change.
    hidden: BTreeSet<RegionId>,
    digest: u64,
}

#[derive(Clone, Debug)]
struct Table<R> {
    /// `None`: the table does not exist.
    partition: Option<Partition>,
    regions: BTreeMap<Bytes, R>,
}

impl<R> Default for RouteIndex<R> {
    fn default() -> Self {
        RouteIndex { regions: BTreeMap::new(), tables: BTreeMap::new(), hidden: BTreeSet::new(), digest: 0 }
    }
}

impl<R: Route + Clone> RouteIndex<R> {
    /// Adds a region, in place of one with the same number.
    pub fn put(&mut self, route: R) {
        self.remove(route.region());
        self.digest = self.digest.wrapping_add(digest_of(&route));
        self.regions.insert(route.region(), route.clone());
        self.show(route);
    }

    /// Forgets a region.
    pub fn remove(&mut self, id: RegionId) -> Option<R> {
        let route = self.regions.remove(&id)?;
        self.digest = self.digest.wrapping_sub(digest_of(&route));
        if self.hidden.remove(&id) {
            return Some(route);
        }
        let table = self.tables.get_mut(route.table()).expect("a region that is not hidden is in its table");
        table.regions.remove(route.start());
        self.forget_if_empty(route.table());
        let is_beneath = |other: &&R| other.table() == route.table() && other.start() == route.start();
        let beneath = self.hidden.iter().rev().filter_map(|id| self.regions.get(id)).find(is_beneath).cloned();
        if let Some(beneath) = beneath {
            self.hidden.remove(&beneath.region());
            self.show(beneath);
        }
        Some(route)
    }

    /// Makes a region be found by key, unless one with a higher number begins at the same key.
    fn show(&mut self, route: R) {
        let regions = &mut self.table(route.table()).regions;
        let hidden = match regions.get(route.start()).map(R::region) {
            Some(other) if other > route.region() => Some(route.region()),
            other => {
                regions.insert(route.start().clone(), route);
                other
            }
        };
        self.hidden.extend(hidden);
    }

    fn table(&mut self, name: &str) -> &mut Table<R> {
        if !self.tables.contains_key(name) {
            self.tables.insert(name.to_owned(), Table { partition: None, regions: BTreeMap::new() });
        }
        self.tables.get_mut(name).expect("it is there by now")
    }

    /// Adds or changes a table, whose keys are split by `partition`; removes it with `None`.
    pub fn set_table(&mut self, name: &str, partition: Option<Partition>) {
        let before = std::mem::replace(&mut self.table(name).partition, partition);
        let digest = |partition: Option<Partition>| partition.map_or(0, |partition| digest_of_table(name, partition));
        self.digest = self.digest.wrapping_sub(digest(before)).wrapping_add(digest(partition));
        self.forget_if_empty(name);
    }

    fn forget_if_empty(&mut self, name: &str) {
        if self.tables.get(name).is_some_and(|table| table.partition.is_none() && table.regions.is_empty()) {
            self.tables.remove(name);
        }
    }

    /// Whether there is a table of this name.
    pub fn has_table(&self, name: &str) -> bool {
        self.tables.get(name).is_some_and(|table| table.partition.is_some())
    }

    /// The regions of a table, ascending by first key or token; none if the table does not exist.
    pub fn regions_of(&self, table: &str) -> impl DoubleEndedIterator<Item = &R> {
        self.found(table).into_iter().flat_map(BTreeMap::values)
    }

    /// Which regions an operation on a range of the table's keys is for.
    pub fn spread(&self, table: &str) -> Spread {
        let Some(tokens) = self.partition(table).and_then(Partition::tokens) else { return Spread::InOrder };
        let regions: Vec<RegionId> = self.regions_of(table).map(R::region).collect();
        if regions.len() == tokens as usize { Spread::All(regions) } else { Spread::Unknown }
    }

    fn found(&self, table: &str) -> Option<&BTreeMap<Bytes, R>> {
        self.tables.get(table).filter(|table| table.partition.is_some()).map(|table| &table.regions)
    }

    /// All regions, by number.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.regions.values()
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether two regions seem to begin at the same key, because the route to one of them is old.
    pub fn is_ambiguous(&self) -> bool {
        !self.hidden.is_empty()
    }

    /// Whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Equal digests mean the same tables, with the same regions at the same epochs.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

impl<R: Route + Clone> Routing for RouteIndex<R> {
    type Region = R;

    fn partition(&self, table: &str) -> Option<Partition> {
        self.tables.get(table)?.partition
    }

    fn region_of(&self, table: &str, key: &[u8]) -> Option<&R> {
        let place = self.partition(table)?.place(key);
        let up_to = (Bound::Unbounded, Bound::Included(&place[..]));
        let shown = self.found(table)?.range::<[u8], _>(up_to).next_back().map(|(_, route)| route);
        // A merge target begins where its merge source does, until the source is known to be gone.
        let holds = |route: &&R| route.table() == table && route.start()[..] <= place[..] && route.holds(&place);
        let hidden = || self.hidden.iter().filter_map(|id| self.regions.get(id));
        shown.filter(holds).or_else(|| hidden().find(holds))
    }

    fn region_below(&self, table: &str, end: Option<&[u8]>) -> Option<&R> {
        let regions = self.found(table)?;
        let below = (Bound::Unbounded, end.map_or(Bound::Unbounded, Bound::Excluded));
        let last = regions.range::<[u8], _>(below).next_back();
        last.or_else(|| regions.first_key_value()).map(|(_, route)| route)
    }

    fn region(&self, id: RegionId) -> Option<&R> {
        self.regions.get(&id)
    }
}

/// For a table that is split by keys, the plain hash of its name.
fn digest_of_table(name: &str, partition: Partition) -> u64 {
    let seed = match partition {
        Partition::Range => 0,
        Partition::Hash { tokens } => tokens.into(),
        Partition::Slots { tokens } => u64::from(tokens) | 1 << 32,
    };
    xxh3_64_with_seed(name.as_bytes(), seed)
}

fn digest_of(route: &impl Route) -> u64 {
    xxh3_64_with_seed(&route.region().0.to_le_bytes(), u64::from(route.epoch().0) + 1)
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
