//! Tables that are made and dropped at random, small ones and ones that take several operations, among all other faults. And
//! copies that no group needs, which processes destroy as nodes do.
//!
//! The tests check:
//! - A number is given to one region only.
//! - When a table appears, its regions partition all keys, and it has no other regions.
//! - No region of a dropped table is left.
//! - No process destroys a copy that a group counts on.

use super::{Cluster, Copy, Process, fingerprint};
use bytes::Bytes;
use leeward_cluster::Outcome;
use leeward_format::cluster::{ClusterPath, GroupConfig, TableOptions};
use leeward_format::coordinator::Change;
use leeward_format::table::NewTable;
use leeward_format::{Epoch, MAX_KEY_BYTES, RegionId, ServerId};
use std::collections::{BTreeMap, BTreeSet};

const NAMES: [&str; 3] = ["one", "two", "three"];
/// Regions of a large table: their long keys are too much for one operation.
const MANY: usize = 66;

/// The tables that were made and dropped.
#[derive(Default)]
pub(super) struct Tables {
    /// Every number that a region has had.
    pub(super) given: BTreeSet<RegionId>,
    /// Tables that are there, and every one that ever was.
    there: BTreeSet<String>,
    ever: BTreeSet<String>,
    pub(super) made: u32,
    pub(super) destroyed: u32,
}

impl Tables {
    /// Checks the outcome of a request.
    pub(super) fn judge(&self, seed: u64, table: &str, outcome: Outcome) {
        match outcome {
            Outcome::Accepted => assert!(self.ever.contains(table), "seed {seed}: {table}"),
            Outcome::Refused(_) => {}
            Outcome::Rejected => panic!("seed {seed}: a request is refused with a reason"),
        }
    }
}

impl Process {
    /// A primary has brought the copy of a region to this state.
    pub(super) fn receive(&mut self, region: RegionId, copy: Copy) {
        self.leaving.remove(&region);
        self.memory.insert(region, copy);
    }
}

impl Cluster {
    /// An operator asks to make or to drop a table.
    pub(super) fn request_tables(&mut self) {
        let servers: Vec<ServerId> = self.processes.keys().copied().collect();
        let Some(server) = self.random.choice(servers) else { return };
        let name = self.random.choice(NAMES).expect("there are some").to_owned();
        let (regions, bytes) =
            if self.random.u32(..10) == 0 { (MANY, MAX_KEY_BYTES) } else { (self.random.usize(1..4), 4) };
        let key = |number: usize| Bytes::from(format!("{number:0bytes$}"));
        let options = TableOptions { name: name.clone(), ..TableOptions::default() };
        let table = NewTable::new(options, (1..regions).map(key).collect());
        let is_drop = self.random.bool();
        let process = self.processes.get_mut(&server).expect("just seen");
        let asked = match is_drop {
            true => process.agent.drop_table(self.now, &name.parse().expect("a name")),
            false => process.agent.create_table(self.now, table),
        };
        if let Ok(id) = asked {
            process.requests.insert(id, name);
        }
    }

    /// A table is made or dropped.
    pub(super) fn observe_table(&mut self, change: &Change) {
        let Some(ClusterPath::Table(name)) = ClusterPath::parse(&change.path) else { return };
        if change.value.is_none() {
            assert!(self.tables.there.remove(&name));
            return;
        }
        self.tables.made += 1;
        self.tables.there.insert(name.clone());
        self.tables.ever.insert(name);
    }

    /// A region is created or removed.
    pub(super) fn observe_creation_or_removal(&mut self, region: RegionId, new: Option<GroupConfig>) {
        let seed = self.seed;
        let Some(new) = new else {
            let old = self.truth.remove(&region).expect("a removed region was there");
            assert!(
                !self.tables.there.contains(&old.table),
                "seed {seed}: {old:?} is removed from a table that is there"
            );
            self.acknowledged.remove(&region);
            return;
        };
        assert!(self.tables.given.insert(region), "seed {seed}: {new:?} has a number that was given before");
        assert_eq!(new.epoch, Epoch(0), "seed {seed}");
        self.made.insert(fingerprint(&new));
        self.truth.insert(region, new);
    }

    /// After each operation: the regions of each table partition all keys.
    pub(super) fn check_tables(&self) {
        let seed = self.seed;
        for name in &self.tables.there {
            let of_it = self.truth.values().filter(|config| config.table == *name);
            let by_start: BTreeMap<&Bytes, &GroupConfig> =
                of_it.clone().map(|config| (&config.start, config)).collect();
            assert_eq!(by_start.len(), of_it.count(), "seed {seed}: two regions of {name} begin at one key");
            let mut next = Some(Bytes::new());
            for config in by_start.values() {
                assert_eq!(Some(&config.start), next.as_ref(), "seed {seed}: {name}");
                next.clone_from(&config.end);
            }
            assert_eq!(next, None, "seed {seed}: the regions of {name} end before all keys do");
        }
    }

    /// A process deregisters copies that no group needs by its view. Once that is done, it destroys those that are still not
    /// needed.
    pub(super) fn destroy_unneeded(&mut self, server: ServerId) {
        let (seed, now) = (self.seed, self.now);
        let process = self.processes.get_mut(&server).expect("it runs");
        let is_unneeded = |process: &Process, region: RegionId| {
            let view = process.agent.view();
            view.is_gone(region) || view.is_replica_garbage(region, server)
        };
        for region in process.agent.take_deregistered() {
            if !process.leaving.remove(&region) || !is_unneeded(process, region) {
                continue;
            }
            let counts =
                self.truth.get(&region).is_some_and(|config| config.in_sync().any(|one| one == process.member));
            assert!(!counts, "seed {seed}: {server} destroys its copy of {region}: {:?}", self.truth[&region]);
            process.memory.remove(&region);
            self.disks.remove(&(server, region));
            self.tables.destroyed += 1;
        }
        if self.random.u32(..20) > 0 {
            return;
        }
        let here: Vec<RegionId> = process.memory.keys().copied().collect();
        for region in here {
            if is_unneeded(process, region) && process.leaving.insert(region) {
                process.agent.deregister(now, region);
            }
        }
    }

    /// Once the cluster has settled, there is no region of a missing table, and no copy that no group names.
    pub(super) fn check_that_nothing_is_left(&self) {
        let seed = self.seed;
        for config in self.truth.values() {
            let is_there = self.tables.there.contains(&config.table) || config.table == TableOptions::default().name;
            assert!(is_there, "seed {seed}: {config:?} is left");
        }
        assert!(self.tree.changes().all(|change| !change.path.contains("/making/")), "seed {seed}");
        for (server, process) in &self.processes {
            for region in process.memory.keys() {
                let is_named = |config: &GroupConfig| config.members().any(|member| member.server == *server);
                assert!(self.truth.get(region).is_some_and(is_named), "seed {seed}: {server} has a copy of {region}");
            }
        }
    }
}
