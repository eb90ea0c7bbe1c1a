//! A process's mirror of the coordinator's tree, read as tables, regions, servers and master.
//!
//! Invariant: between `Up` and `Synced` the mirror still answers what it knew before; the new tree is gathered aside
//! and takes its place at once, so nobody seems dead only because a connection was made anew. Pure; one thread at a
//! time.

use crate::CoordinatorEvent;
use leeward_format::cluster::{
    ClusterPath, GroupConfig, Intent, Member, RegionMap, ServerInfo, TableOptions, decode_value,
};
use leeward_format::coordinator::Change;
use leeward_format::{DecodeError, RegionId, ServerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The mirror.
#[derive(Debug, Default)]
pub struct View {
    current: Content,
    gathering: Option<Content>,
    synced: bool,
    map: Option<Arc<RegionMap>>,
}

#[derive(Debug, Default)]
struct Content {
    version: u64,
    tables: BTreeMap<String, (u64, TableOptions)>,
    regions: BTreeMap<RegionId, (u64, GroupConfig)>,
    servers: BTreeMap<ServerId, (u64, ServerInfo)>,
    intents: BTreeMap<ServerId, (u64, Intent)>,
    master: Option<(u64, Member)>,
}

impl View {
    /// Takes what the coordinator said.
    pub fn handle(&mut self, event: &CoordinatorEvent) {
        match event {
            CoordinatorEvent::Up { .. } => {
                self.synced = false;
                self.gathering = Some(Content::default());
            }
            CoordinatorEvent::Down | CoordinatorEvent::Expired => {
                self.synced = false;
                self.gathering = None;
            }
            CoordinatorEvent::Changed(changes) => {
                let content = self.gathering.as_mut().unwrap_or(&mut self.current);
                changes.iter().for_each(|change| content.take(change));
                if self.gathering.is_none() {
                    self.map = None;
                }
            }
            CoordinatorEvent::Synced { version } => {
                if let Some(mut content) = self.gathering.take() {
                    content.version = content.version.max(*version);
                    self.current = content;
                    self.map = None;
                }
                self.synced = true;
            }
            CoordinatorEvent::Reply { .. } => {}
        }
    }

    /// Whether the mirror follows the coordinator now; otherwise it is what was last known.
    pub fn is_synced(&self) -> bool {
        self.synced
    }
    /// Number of the last change that the mirror holds.
    pub fn version(&self) -> u64 {
        self.current.version
    }
    /// Options of a table.
    pub fn table(&self, name: &str) -> Option<&TableOptions> {
        self.current.tables.get(name).map(|(_, options)| options)
    }
    /// Options of every table, by name.
    pub fn tables(&self) -> impl Iterator<Item = &TableOptions> + '_ {
        self.current.tables.values().map(|(_, options)| options)
    }
    /// Every region, by id.
    pub fn regions(&self) -> impl Iterator<Item = &GroupConfig> + '_ {
        self.current.regions.values().map(|(_, config)| config)
    }
    /// A region's configuration.
    pub fn region(&self, id: RegionId) -> Option<&GroupConfig> {
        self.current.regions.get(&id).map(|(_, config)| config)
    }
    /// Every live server, by id.
    pub fn servers(&self) -> impl Iterator<Item = &ServerInfo> + '_ {
        self.current.servers.values().map(|(_, info)| info)
    }
    /// A live server.
    pub fn server(&self, id: ServerId) -> Option<&ServerInfo> {
        self.current.servers.get(&id).map(|(_, info)| info)
    }
    /// Whether exactly this life of the server has a session.
    pub fn is_live(&self, member: Member) -> bool {
        self.server(member.server).is_some_and(|info| info.member == member)
    }
    /// Servers that should be members of no group, and why.
    pub fn intents(&self) -> impl Iterator<Item = (ServerId, Intent)> + '_ {
        self.current.intents.iter().map(|(server, (_, intent))| (*server, *intent))
    }
    /// What is to become of a server.
    pub fn intent(&self, id: ServerId) -> Option<Intent> {
        self.current.intents.get(&id).map(|(_, intent)| *intent)
    }
    /// Who holds the master's path.
    pub fn master(&self) -> Option<Member> {
        self.current.master.map(|(_, member)| member)
    }
    /// Version at which a path last changed; `None` if it is not there.
    pub fn version_of(&self, path: &ClusterPath) -> Option<u64> {
        match path {
            ClusterPath::Region(id) => self.current.regions.get(id).map(|(version, _)| *version),
            ClusterPath::Server(id) => self.current.servers.get(id).map(|(version, _)| *version),
            ClusterPath::Intent(id) => self.current.intents.get(id).map(|(version, _)| *version),
            ClusterPath::Master => self.current.master.map(|(version, _)| version),
            ClusterPath::Table(name) => self.current.tables.get(name).map(|(version, _)| *version),
        }
    }
    /// Tables, regions sorted by table and start, and live servers: what routing needs. Built once a change.
    pub fn region_map(&mut self) -> Arc<RegionMap> {
        let map = self.map.get_or_insert_with(|| {
            let mut regions: Vec<GroupConfig> =
                self.current.regions.values().map(|(_, config)| config.clone()).collect();
            regions.sort_by(|left, right| (&left.table, &left.start).cmp(&(&right.table, &right.start)));
            let servers = self.current.servers.values().map(|(_, info)| info.clone()).collect();
            let tables = self.current.tables.values().map(|(_, options)| options.clone()).collect();
            Arc::new(RegionMap { version: self.current.version, tables, regions, servers })
        });
        map.clone()
    }
}

impl Content {
    fn take(&mut self, change: &Change) {
        self.version = self.version.max(change.version);
        let Some(path) = ClusterPath::parse(&change.path) else { return };
        if let Err(error) = self.put(path, change) {
            // Left out, as if it were not there: one damaged value must not take the process down.
            tracing::error!(path = change.path, version = change.version, %error, "the coordinator holds a value that makes no sense");
        }
    }

    fn put(&mut self, path: ClusterPath, change: &Change) -> Result<(), DecodeError> {
        let version = change.version;
        match (path, &change.value) {
            (ClusterPath::Table(name), None) => drop(self.tables.remove(&name)),
            (ClusterPath::Region(id), None) => drop(self.regions.remove(&id)),
            (ClusterPath::Server(id), None) => drop(self.servers.remove(&id)),
            (ClusterPath::Intent(id), None) => drop(self.intents.remove(&id)),
            (ClusterPath::Master, None) => self.master = None,
            (ClusterPath::Table(name), Some(value)) => {
                self.tables.remove(&name);
                let options: TableOptions = decode_value("table", value)?;
                if options.name != name {
                    return Err(DecodeError::invalid("table", format!("{:?} stored as {name:?}", options.name)));
                }
                self.tables.insert(name, (version, options));
            }
            (ClusterPath::Region(id), Some(value)) => {
                self.regions.remove(&id);
                let config: GroupConfig = decode_value("region", value)?;
                same("region", id.0, config.region.0)?;
                self.regions.insert(id, (version, config));
            }
            (ClusterPath::Server(id), Some(value)) => {
                self.servers.remove(&id);
                let info: ServerInfo = decode_value("server", value)?;
                same("server", id.0, info.member.server.0)?;
                self.servers.insert(id, (version, info));
            }
            (ClusterPath::Intent(id), Some(value)) => {
                self.intents.remove(&id);
                self.intents.insert(id, (version, decode_value("intent", value)?));
            }
            (ClusterPath::Master, Some(value)) => {
                self.master = None;
                self.master = Some((version, decode_value("master", value)?));
            }
        }
        Ok(())
    }
}

/// Refuses a value that names another id than its path.
fn same(what: &'static str, path: u32, value: u32) -> Result<(), DecodeError> {
    if path == value { Ok(()) } else { Err(DecodeError::invalid(what, format!("{value} stored as {path}"))) }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
