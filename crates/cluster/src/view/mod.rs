//! What a process knows of the cluster: a mirror of the coordinator's tree, read as tables, regions, servers and master.
//!
//! - [`View`] is the mirror, [`Changed`] what is new in it.
//! - [`Routes`] are the part of it that operations are routed by, and that clients are told.
//! - `desired` says which request for a region or server is possible by a view, and which configuration records it.
//! - `operations` makes operations that fail if the view is out of date, and finds numbers for new regions.
//!
//! - `admission` says whether a tree that was told may take the place of the one that is shown; `restore` makes the operations
//!   that bring such a tree up to what this process knows.
//!
//! Invariants:
//! - A tree that lacks something of what this process knows never takes the place of what it shows. Until an operator has
//!   restored that tree, the view is as if the coordinator could not be reached.
//! - Between `Up` and `Synced` the mirror still shows what it knew before. The new tree is gathered aside and replaces the old
//!   one in one step. So no server seems dead only because a connection was made anew.
//! - [`View::take_changed`] returns every difference exactly once.
//!
//! Pure; one thread at a time.

use crate::CoordinatorEvent;
use leeward_format::cluster::{
    ClusterPath, Contradiction, GroupConfig, Intent, Member, Plan, RegionNumbers, ServerInfo, TableOptions,
    TreeIdentity, decode_value,
};
use leeward_format::coordinator::Change;
use leeward_format::routing::Routing;
use leeward_format::user::{User, UserName, Users};
use leeward_format::{DecodeError, Epoch, RegionId, ServerId};
use leeward_platform::planted::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod admission;
mod claims;
mod desired;
mod operations;
mod restore;
mod routes;

pub use admission::{HeldCopy, TreeRefusal};
pub(crate) use desired::{may_leave, merge_source_moved, requested};
pub(crate) use operations::create;
pub use routes::{MapParts, Routes};

/// From this epoch on, only failovers and other changes by the servers themselves change a region's group.
pub(crate) const LAST_ASKED_FOR: Epoch = Epoch(Epoch::LAST_TERM.0 / 2);

/// A mirror of the coordinator's tree, as tables, regions, servers and master.
#[derive(Debug, Default)]
pub struct View {
    current: Content,
    /// The tree that is being told, or was refused. It is not shown.
    aside: Option<Content>,
    /// The whole of `aside` was told.
    is_aside_whole: bool,
    /// Why the last tree that was told as a whole is not shown.
    refusal: Option<TreeRefusal>,
    /// The generation of a tree that was refused because it was put back. A process that never showed a tree has no other.
    put_back_generation: Option<u32>,
    /// The copies that this server's volume held when it started.
    held: BTreeMap<RegionId, HeldCopy>,
    synced: bool,
    changed: Changed,
    /// The users of `current`.
    users: Arc<Users>,
}

/// The changes of a mirror: paths that appeared, disappeared or have another value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Regions.
    pub regions: BTreeSet<RegionId>,
    /// Tables, and tables that are being made.
    pub tables: BTreeSet<String>,
    /// A server, the intent for one, or the master changed; or the mirror follows the coordinator again.
    pub servers: bool,
}

impl Changed {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.tables.is_empty() && !self.servers
    }

    /// Adds the changes of `other`.
    pub(crate) fn add(&mut self, other: Changed) {
        self.regions.extend(other.regions);
        self.tables.extend(other.tables);
        self.servers |= other.servers;
    }

    fn add_path(&mut self, path: ClusterPath) {
        match path {
            ClusterPath::Region(id) => drop(self.regions.insert(id)),
            ClusterPath::Table(name) | ClusterPath::Making(name) => drop(self.tables.insert(name)),
            ClusterPath::Server(_) | ClusterPath::Intent(_) | ClusterPath::Master => self.servers = true,
            ClusterPath::Protocol | ClusterPath::Cluster => self.servers = true,
            ClusterPath::Numbers | ClusterPath::Users | ClusterPath::User(_) => {}
        }
    }

    /// The differences between two contents.
    fn between(old: &Content, new: &Content) -> Changed {
        let is_other = old.master != new.master
            || old.intents != new.intents
            || old.protocol != new.protocol
            || old.identity != new.identity;
        let made =
            old.making.keys().chain(new.making.keys()).filter(|name| old.making.get(*name) != new.making.get(*name));
        let (old, new) = (&old.routes, &new.routes);
        let (tables, others) = (old.versioned_tables(), new.versioned_tables());
        let regions = old.regions().chain(new.regions()).map(|config| config.region);
        let names = tables.keys().chain(others.keys());
        Changed {
            regions: regions.filter(|id| old.versioned(*id) != new.versioned(*id)).collect(),
            tables: names.filter(|name| tables.get(*name) != others.get(*name)).chain(made).cloned().collect(),
            servers: old.versioned_servers() != new.versioned_servers() || is_other,
        }
    }
}

#[derive(Debug, Default)]
struct Content {
    routes: Routes,
    intents: BTreeMap<ServerId, (u64, Intent)>,
    master: Option<(u64, Member)>,
    numbers: Option<(u64, RegionNumbers)>,
    protocol: Option<(u64, u8)>,
    identity: Option<(u64, TreeIdentity)>,
    making: BTreeMap<String, (u64, Member)>,
    /// Paths whose values this version cannot read: perhaps another version wrote them.
    unread: BTreeSet<ClusterPath>,
    /// Children of planned splits, each with the region that is to be split. In a tree that was put back two may name one child.
    planned: BTreeSet<(RegionId, RegionId)>,
    /// Sources of planned merges, each with its target.
    merging: BTreeMap<RegionId, RegionId>,
    /// How often users were changed.
    user_changes: Option<(u64, u64)>,
    /// Versions of the paths of users.
    user_versions: BTreeMap<UserName, u64>,
    users: Users,
    /// The users differ from those that the view shows.
    has_new_users: bool,
}

impl View {
    /// Handles an event of the coordinator.
    pub fn handle(&mut self, event: &CoordinatorEvent) {
        match event {
            CoordinatorEvent::Up { .. } => {
                (self.synced, self.is_aside_whole) = (false, false);
                self.aside = Some(Content::default());
            }
            CoordinatorEvent::Down | CoordinatorEvent::Expired => {
                (self.synced, self.is_aside_whole) = (false, false);
                self.aside = None;
            }
            CoordinatorEvent::Changed(changes) => {
                let mut unseen = Changed::default();
                let (content, changed) = match &mut self.aside {
                    Some(aside) => (aside, &mut unseen),
                    None => (&mut self.current, &mut self.changed),
                };
                changes.iter().for_each(|change| content.take(change, changed));
                if self.is_aside_whole {
                    self.admit();
                }
                self.show_users();
            }
            CoordinatorEvent::Synced { version } => {
                if let Some(content) = &mut self.aside {
                    content.keep_users(&self.current);
                    content.routes.reach(*version);
                    content.routes.is_whole();
                    self.is_aside_whole = true;
                }
                self.admit();
            }
            CoordinatorEvent::Reply { .. } => {}
        }
    }

    /// Shows the users of the current content, if they have changed.
    fn show_users(&mut self) {
        if std::mem::take(&mut self.current.has_new_users) {
            let mut users = self.current.users.clone();
            (users.revision, users.is_known) = (self.users.revision, self.users.is_known || self.synced);
            if *self.users != users {
                users.revision += 1;
                self.users = Arc::new(users);
            }
        }
    }

    /// The users, as last known. While the coordinator cannot be reached, they stay.
    pub fn users(&self) -> &Arc<Users> {
        &self.users
    }
    /// How often users were changed.
    pub(crate) fn user_changes(&self) -> u64 {
        self.current.user_changes.map_or(0, |(_, changes)| changes)
    }
    /// The changes since the last call.
    pub fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.changed)
    }

    /// Whether the mirror follows the coordinator now. Otherwise it shows what was last known.
    pub fn is_synced(&self) -> bool {
        self.synced
    }
    /// Number of the last change that the mirror holds.
    pub fn version(&self) -> u64 {
        self.routes().tree_version()
    }
    /// Number of the last change that the coordinator told, of the tree that is shown or of one that was refused.
    pub(crate) fn told_version(&self) -> u64 {
        self.told().routes.tree_version()
    }
    /// Tables, regions and servers, for routing.
    pub fn routes(&self) -> &Routes {
        &self.current.routes
    }
    /// Options of a table.
    pub fn table(&self, name: &str) -> Option<&TableOptions> {
        self.routes().table(name)
    }
    /// Options of every table, by name.
    pub fn tables(&self) -> impl Iterator<Item = &TableOptions> + '_ {
        self.routes().versioned_tables().values().map(|(_, options)| options)
    }
    /// Every region, by id.
    pub fn regions(&self) -> impl Iterator<Item = &GroupConfig> + '_ {
        self.routes().regions().map(|config| &**config)
    }
    /// A region's configuration.
    pub fn region(&self, id: RegionId) -> Option<&GroupConfig> {
        self.routes().region(id).map(|config| &**config)
    }
    /// Every live server, by id.
    pub fn servers(&self) -> impl Iterator<Item = &ServerInfo> + '_ {
        self.routes().servers()
    }
    /// A live server.
    pub fn server(&self, id: ServerId) -> Option<&ServerInfo> {
        self.routes().server(id)
    }
    /// Whether exactly this incarnation of the server has a session.
    pub fn is_live(&self, member: Member) -> bool {
        self.server(member.server).is_some_and(|info| info.member == member)
    }
    /// Whether `member` is live, and does not say that its copy of `region` is damaged.
    pub fn is_sound(&self, member: Member, region: RegionId) -> bool {
        let is_sound = |info: &ServerInfo| !info.copy_of(region).is_some_and(|copy| copy.is_damaged());
        self.server(member.server).is_some_and(|info| info.member == member && is_sound(info))
    }
    /// A live server that has known more of the region of `config`. Nothing is decided about such a region.
    pub fn contradiction(&self, config: &GroupConfig) -> Option<Contradiction> {
        config.contradicted_by(self.servers()).filter(|_| !planted(Bug::DecideOnOlderTree))
    }
    /// A live server that has not registered anew since an operator restored the tree. Nothing is decided about any region until
    /// it has, or its session ends: what it registered before may be as old as what the tree had forgotten.
    pub(crate) fn unheard(&self) -> Option<ServerId> {
        let mut servers = self.servers().map(|info| info.member.server);
        servers.find(|server| self.current.is_unheard(*server)).filter(|_| !planted(Bug::DecideUnheard))
    }
    /// Whether a server has restored the region of `config` from its copy, and no operator has said since that the tree is
    /// complete: others may have better copies, and what the tree tells of their servers may be as old as the tree.
    pub(crate) fn is_unconfirmed(&self, config: &GroupConfig) -> bool {
        let generation = self.identity().map(|identity| identity.generation);
        config.restored_in.is_some_and(|restored_in| generation.is_none_or(|generation| generation <= restored_in))
    }
    /// Whether a region of the tree that is shown waits for that.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.regions().any(|config| self.is_unconfirmed(config))
    }
    /// Whether nothing is to be decided about a region, because a live server knows more of it, or may.
    pub(crate) fn is_contradicted(&self, region: RegionId) -> bool {
        let is_contradicted = |config| self.contradiction(config).is_some();
        self.region(region).is_some_and(is_contradicted) || self.unheard().is_some()
    }
    /// Servers that should be members of no group, and why.
    pub fn intents(&self) -> impl Iterator<Item = (ServerId, Intent)> + '_ {
        self.current.intents.iter().map(|(server, (_, intent))| (*server, *intent))
    }
    /// The intent for a server.
    pub fn intent(&self, id: ServerId) -> Option<Intent> {
        self.current.intents.get(&id).map(|(_, intent)| *intent)
    }
    /// The member that holds the master's path.
    pub fn master(&self) -> Option<Member> {
        self.current.master.map(|(_, member)| member)
    }
    /// The protocol version of the cluster; `None` before the first server has registered.
    pub fn protocol(&self) -> Option<u8> {
        self.current.protocol.map(|(_, protocol)| protocol)
    }
    /// Of which cluster the tree is, if it says so.
    pub fn identity(&self) -> Option<TreeIdentity> {
        self.current.identity.map(|(_, identity)| identity)
    }
    /// The numbers that were given to regions.
    pub fn numbers(&self) -> RegionNumbers {
        self.current.numbers.as_ref().map(|(_, numbers)| numbers.clone()).unwrap_or_default()
    }
    /// The member that makes the table of this name, if that takes several operations.
    pub fn maker(&self, table: &str) -> Option<Member> {
        self.current.making.get(table).map(|(_, member)| *member)
    }
    /// Tables that are being made, each with the member that makes it.
    pub fn making(&self) -> impl Iterator<Item = (&str, Member)> + '_ {
        self.current.making.iter().map(|(table, (_, member))| (&table[..], *member))
    }

    /// Whether the path has no value. Other methods show an unreadable value as if it were not there; this one does not.
    pub fn lacks(&self, path: &ClusterPath) -> bool {
        self.version_of(path).is_none() && !self.current.unread.contains(path)
    }

    /// Whether a region is a leftover: its table is not there and is not being made. The table was dropped, or its creation was
    /// never completed. No process needs the region.
    pub fn is_leftover(&self, region: RegionId) -> bool {
        let lacks_table = |table: &String| {
            self.lacks(&ClusterPath::Table(table.clone())) && self.lacks(&ClusterPath::Making(table.clone()))
        };
        self.region(region).is_some_and(|config| lacks_table(&config.table))
    }

    /// Whether the region existed, does not exist any more and is not planned, as far as was last known. The mere absence of a
    /// region proves nothing: a coordinator that lost its data, and began anew, knows of no region.
    pub fn has_ended(&self, region: RegionId) -> bool {
        let is_absent = self.lacks(&ClusterPath::Region(region)) && !self.is_planned(region);
        is_absent && self.current.has_given(region)
    }

    /// [`View::has_ended`], for certain.
    pub fn is_gone(&self, region: RegionId) -> bool {
        self.synced && self.has_ended(region)
    }

    /// Whether the configuration of a region names `server`, in any incarnation.
    pub fn names(&self, region: RegionId, server: ServerId) -> bool {
        let config = self.region(region).filter(|_| !planted(Bug::DestroyNamed));
        config.is_some_and(|config| config.members().any(|member| member.server == server))
    }

    /// Whether the copy of a region on `server` is not needed. The group of the region has as many members in sync as its table
    /// wants, and does not name `server`.
    pub fn is_replica_garbage(&self, region: RegionId, server: ServerId) -> bool {
        let Some(config) = self.region(region).filter(|_| self.synced) else { return false };
        let Some(table) = self.table(&config.table) else { return false };
        let is_whole = config.in_sync().count() >= table.replicas as usize;
        let is_settled = config.prior_members.is_empty() && config.recovery_quorum == 0;
        is_whole && is_settled && !self.names(region, server)
    }

    /// Whether a region is the child of a planned split. It has no configuration yet, but the copies that servers have of it are
    /// needed.
    pub fn is_planned(&self, region: RegionId) -> bool {
        self.current.plans(region)
    }

    /// The sources of planned merges, each with its target.
    pub fn merging(&self) -> impl Iterator<Item = (RegionId, RegionId)> + '_ {
        self.current.merging.iter().map(|(region, into)| (*region, *into))
    }

    /// Version at which a path last changed; `None` if it is not there.
    pub fn version_of(&self, path: &ClusterPath) -> Option<u64> {
        self.current.version_of(path)
    }
}

impl Content {
    /// Version at which a path last changed; `None` if it is not there.
    fn version_of(&self, path: &ClusterPath) -> Option<u64> {
        match path {
            ClusterPath::Region(id) => self.routes.versioned(*id).map(|region| region.version),
            ClusterPath::Server(id) => self.routes.versioned_servers().get(id).map(|(version, _)| *version),
            ClusterPath::Intent(id) => self.intents.get(id).map(|(version, _)| *version),
            ClusterPath::Master => self.master.map(|(version, _)| version),
            ClusterPath::Numbers => self.numbers.as_ref().map(|(version, _)| *version),
            ClusterPath::Protocol => self.protocol.map(|(version, _)| version),
            ClusterPath::Cluster => self.identity.map(|(version, _)| version),
            ClusterPath::Making(name) => self.making.get(name).map(|(version, _)| *version),
            ClusterPath::Users => self.user_changes.map(|(version, _)| version),
            ClusterPath::User(name) => self.user_versions.get(name).copied(),
            ClusterPath::Table(name) => self.routes.versioned_tables().get(name).map(|(version, _)| *version),
        }
    }

    fn take(&mut self, change: &Change, changed: &mut Changed) {
        self.routes.reach(change.version);
        let Some(path) = ClusterPath::parse(&change.path) else { return };
        changed.add_path(path.clone());
        if let Err(error) = self.put(path.clone(), change) {
            // The value is left out, as if it were not there: one damaged value must not take the process down.
            tracing::error!(path = change.path, version = change.version, %error, "a value of the coordinator cannot be decoded, and is ignored");
            if !matches!(path, ClusterPath::User(_)) {
                self.remove(path.clone(), change.version);
            }
            self.unread.insert(path);
        } else {
            self.unread.remove(&path);
        }
    }

    fn put(&mut self, path: ClusterPath, change: &Change) -> Result<(), DecodeError> {
        let version = change.version;
        let Some(value) = &change.value else {
            self.remove(path, version);
            return Ok(());
        };
        match path {
            ClusterPath::Table(name) => {
                let options: TableOptions = decode_value("table", value)?;
                if options.name != name {
                    return Err(DecodeError::invalid("table", format!("{:?} stored as {name:?}", options.name)));
                }
                self.routes.put_table(version, options);
            }
            ClusterPath::Region(id) => {
                let config: GroupConfig = decode_value("region", value)?;
                same("region", id.0, config.region.0)?;
                possible(&config)?;
                self.forget_plan(id);
                let plan = config.desired.plan.as_ref();
                self.planned.extend(plan.and_then(Plan::child).map(|child| (child, id)));
                self.merging.extend(plan.and_then(Plan::neighbour).map(|into| (id, into)));
                self.routes.put_region(version, config);
            }
            ClusterPath::Server(id) => {
                let mut info: ServerInfo = decode_value("server", value)?;
                same("server", id.0, info.member.server.0)?;
                info.copies.sort_by_key(|copy| copy.region);
                self.routes.put_server(version, info);
            }
            ClusterPath::Intent(id) => {
                self.intents.insert(id, (version, decode_value("intent", value)?));
            }
            ClusterPath::Master => self.master = Some((version, decode_value("master", value)?)),
            ClusterPath::Numbers => self.numbers = Some((version, decode_value("numbers of regions", value)?)),
            ClusterPath::Protocol => self.protocol = Some((version, decode_value("version of the protocol", value)?)),
            ClusterPath::Cluster => {
                let identity: TreeIdentity = decode_value("identity of the cluster", value)?;
                self.routes.set_generation(identity.generation);
                self.identity = Some((version, identity));
            }
            ClusterPath::Making(name) => {
                self.making.insert(name, (version, decode_value("maker of a table", value)?));
            }
            ClusterPath::Users => {
                // The last part of each change of users: before it, a part of the change may be missing.
                self.has_new_users = true;
                self.user_changes = Some((version, decode_value("number of changes of users", value)?));
                // Users that were kept and were not written are gone.
                self.users.retain(|name| self.user_versions.contains_key(name));
            }
            ClusterPath::User(name) => {
                self.user_versions.insert(name.clone(), version);
                // One that cannot be read is still a user: without it, everybody might be let in.
                self.users.lose(name.clone());
                let user: User = decode_value("user", value)?;
                user.check().map_err(|reason| DecodeError::invalid("user", reason))?;
                if user.name != name {
                    return Err(DecodeError::invalid("user", format!("{} stored as {name}", user.name)));
                }
                self.users.put(user);
            }
        }
        Ok(())
    }

    /// Whether the region is the child of a planned split.
    fn plans(&self, child: RegionId) -> bool {
        self.planned.range((child, RegionId(0))..=(child, RegionId(u32::MAX))).next().is_some()
    }

    /// Forgets the known plan of a region.
    fn forget_plan(&mut self, id: RegionId) {
        let plan = self.routes.region(id).and_then(|config| config.desired.plan.as_ref());
        if let Some(child) = plan.and_then(Plan::child) {
            self.planned.remove(&(child, id));
        }
        self.merging.remove(&id);
    }

    fn remove(&mut self, path: ClusterPath, version: u64) {
        match path {
            ClusterPath::Table(name) => self.routes.remove_table(version, &name),
            ClusterPath::Region(id) => {
                self.forget_plan(id);
                self.routes.remove_region(version, id);
            }
            ClusterPath::Server(id) => self.routes.remove_server(id),
            ClusterPath::Intent(id) => drop(self.intents.remove(&id)),
            ClusterPath::Master => self.master = None,
            ClusterPath::Numbers => self.numbers = None,
            ClusterPath::Protocol => self.protocol = None,
            ClusterPath::Cluster => self.identity = None,
            ClusterPath::Making(name) => drop(self.making.remove(&name)),
            ClusterPath::Users => {
                self.user_changes = None;
                self.has_new_users = true;
            }
            ClusterPath::User(name) => {
                self.user_versions.remove(&name);
                self.users.remove(&name);
            }
        }
    }

    /// Keeps the users of `before` if this content has no trace of users: the coordinator has lost its data, and nobody
    /// has removed them.
    fn keep_users(&mut self, before: &Content) {
        if self.user_changes.is_none() && self.users.is_empty() && !before.users.is_empty() {
            tracing::error!("the coordinator has lost all users: this node goes on with those that it knew");
            self.users = before.users.clone();
        }
    }
}

/// Refuses a configuration that no server could serve.
fn possible(config: &GroupConfig) -> Result<(), DecodeError> {
    let GroupConfig { region, term, .. } = config;
    if !region.is_possible() {
        let range = format!("numbers of regions are from {} to {}", RegionId::FIRST, RegionId::LAST);
        return Err(DecodeError::invalid("region", format!("number {region}: {range}")));
    }
    match term.can_be_term() {
        true => Ok(()),
        false => Err(DecodeError::invalid("region", format!("term {term}: the last of all is {}", Epoch::LAST_TERM))),
    }
}

/// Refuses a value that names another id than its path.
fn same(what: &'static str, path: u32, value: u32) -> Result<(), DecodeError> {
    if path == value { Ok(()) } else { Err(DecodeError::invalid(what, format!("{value} stored as {path}"))) }
}

#[cfg(test)]
pub(crate) mod tests;
