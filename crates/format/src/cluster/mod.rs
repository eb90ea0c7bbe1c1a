//! The coordinator's data: servers, regions and their replica groups, tables.
//!
//! ```text
//! /leeward/table/<name>    TableOptions                       created together with the table's regions
//! /leeward/region/<id>     GroupConfig                        compare-and-set only
//! /leeward/server/<id>     ServerInfo      ephemeral          one live process a server
//! /leeward/intent/<id>     Intent                             a server that should be a member of no group
//! /leeward/regions         RegionNumbers                      numbers that were given to regions
//! /leeward/cluster         TreeIdentity                       of which cluster this is the tree
//! /leeward/making/<name>   Member          ephemeral          the node that makes a table in several operations
//! /leeward/users           u64                                how often users were changed
//! /leeward/user/<name>     User                               changed together with /leeward/users
//! /leeward/master          Member          ephemeral          the node that created this path is the master
//! ```
//! Values are postcard. The types are plain data; any thread may use them.

use crate::user::UserName;
use crate::{DecodeError, Epoch, Incarnation, Lsn, RegionId, SegmentId, ServerId, TableId, VolumeId};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::fmt;

mod backups;
mod desired;
mod either;
mod identity;
mod location;
mod numbers;
mod options;
mod preset;
mod reads;
pub use backups::BackupMode;
pub use desired::{DesiredState, Intent, Plan, RegionRequest};
pub use identity::{Contradiction, CopyIdentity, TreeIdentity};
pub use location::{Location, SharedPlaces};
pub use numbers::RegionNumbers;
pub use options::{Acknowledge, Addressing, CompactionMode, Placement, Posting, SizeClass, TableOptions};
pub use preset::Preset;
pub use reads::{IndexKind, ReadPaths, Reads, Scans};

/// The path that the master holds.
pub const MASTER_PATH: &str = "/leeward/master";
const NUMBERS_PATH: &str = "/leeward/regions";
const PROTOCOL_PATH: &str = "/leeward/protocol";
const CLUSTER_PATH: &str = "/leeward/cluster";
const TABLE_PREFIX: &str = "/leeward/table/";
const REGION_PREFIX: &str = "/leeward/region/";
const SERVER_PREFIX: &str = "/leeward/server/";
const INTENT_PREFIX: &str = "/leeward/intent/";
const MAKING_PREFIX: &str = "/leeward/making/";
const USERS_PATH: &str = "/leeward/users";
const USER_PREFIX: &str = "/leeward/user/";

/// A path of the coordinator, parsed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterPath {
    /// Options of the table of this name.
    Table(String),
    /// Configuration of a region's replica group.
    Region(RegionId),
    /// A live server.
    Server(ServerId),
    /// The [`Intent`] for a server.
    Intent(ServerId),
    /// The [`Member`] that is master. The path is ephemeral.
    Master,
    /// The numbers that were given to regions.
    Numbers,
    /// [Version](crate::frame::PROTOCOL_VERSION) of the values of all other paths.
    Protocol,
    /// The [`TreeIdentity`]: of which cluster this is the tree.
    Cluster,
    /// The node that makes the table of this name.
    Making(String),
    /// How often users were changed. Each change of a user changes it too, so that no two changes pass each other.
    Users,
    /// The user of this name.
    User(UserName),
}

impl ClusterPath {
    /// Parses `path`; `None` if it is not one of Leeward's.
    pub fn parse(path: &str) -> Option<ClusterPath> {
        // Only the spelling that `to_string` writes: "/leeward/server/01" is not another name of server 1.
        let number = |rest: &str| rest.parse::<u32>().ok().filter(|number| number.to_string() == rest);
        if path == MASTER_PATH {
            Some(ClusterPath::Master)
        } else if path == NUMBERS_PATH {
            Some(ClusterPath::Numbers)
        } else if path == PROTOCOL_PATH {
            Some(ClusterPath::Protocol)
        } else if path == CLUSTER_PATH {
            Some(ClusterPath::Cluster)
        } else if path == USERS_PATH {
            Some(ClusterPath::Users)
        } else if let Some(name) = path.strip_prefix(USER_PREFIX) {
            name.parse().ok().map(ClusterPath::User)
        } else if let Some(name) = path.strip_prefix(TABLE_PREFIX) {
            Some(ClusterPath::Table(name.to_owned()))
        } else if let Some(name) = path.strip_prefix(MAKING_PREFIX) {
            Some(ClusterPath::Making(name.to_owned()))
        } else if let Some(rest) = path.strip_prefix(REGION_PREFIX) {
            number(rest).map(|id| ClusterPath::Region(RegionId(id)))
        } else if let Some(rest) = path.strip_prefix(INTENT_PREFIX) {
            number(rest).map(|id| ClusterPath::Intent(ServerId(id)))
        } else {
            number(path.strip_prefix(SERVER_PREFIX)?).map(|id| ClusterPath::Server(ServerId(id)))
        }
    }
}

impl fmt::Display for ClusterPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterPath::Table(name) => write!(f, "{TABLE_PREFIX}{name}"),
            ClusterPath::Region(id) => write!(f, "{REGION_PREFIX}{id}"),
            ClusterPath::Server(id) => write!(f, "{SERVER_PREFIX}{id}"),
            ClusterPath::Intent(id) => write!(f, "{INTENT_PREFIX}{id}"),
            ClusterPath::Master => f.write_str(MASTER_PATH),
            ClusterPath::Numbers => f.write_str(NUMBERS_PATH),
            ClusterPath::Protocol => f.write_str(PROTOCOL_PATH),
            ClusterPath::Cluster => f.write_str(CLUSTER_PATH),
            ClusterPath::Making(name) => write!(f, "{MAKING_PREFIX}{name}"),
            ClusterPath::Users => f.write_str(USERS_PATH),
            ClusterPath::User(name) => write!(f, "{USER_PREFIX}{name}"),
        }
    }
}

/// The bytes of a path's value.
pub fn encode_value<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).expect("serialising into memory cannot fail").into()
}

/// Reads a path's value back; `what` names it in the error.
///
/// # Errors
/// The bytes are not a value of this type, or more follows it.
pub fn decode_value<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(DecodeError::invalid(what, format!("{} bytes after the value", rest.len()))),
        Err(error) => Err(DecodeError::invalid(what, error.to_string())),
    }
}

/// One incarnation of a server on one volume. Replica groups consist of these. A restarted process is another member. A
/// process that returns with another volume lacks even the files of the earlier member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// As its operator numbered it.
    pub server: ServerId,
    /// Where its data is.
    pub volume: VolumeId,
    /// The incarnation of its process on the volume.
    pub incarnation: Incarnation,
}

impl Member {
    /// Whether `other` is the same server with the same volume, in any incarnation: it has the same files.
    pub fn has_volume_of(&self, other: &Member) -> bool {
        (self.server, self.volume) == (other.server, other.volume)
    }

    /// Whether it is an earlier process on the volume of `other`. If `other` has a copy of that volume, it may still run.
    pub fn is_earlier_than(&self, other: &Member) -> bool {
        self.has_volume_of(other) && self.incarnation < other.incarnation
    }
}

/// The configuration of one region's replica group, changed only by compare-and-set at the coordinator (PacificA).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// Unique in the cluster, never reused.
    pub region: RegionId,
    /// Its name; `table_id` tells tables of one name apart.
    pub table: String,
    /// The identity of that table.
    pub table_id: TableId,
    /// First key, or first token or slot ([`Partition`](crate::partition::Partition)), inclusive; empty for the first
    /// region.
    pub start: Bytes,
    /// Key, or token or slot, after the last; `None` for the last region.
    pub end: Option<Bytes>,
    /// Raised by every change.
    pub epoch: Epoch,
    /// Epoch at which `primary` became primary. Changes of members under the same primary keep it.
    pub term: Epoch,
    /// The member that serves the region. `None` until the region is first assigned, and after an operator has given up
    /// the volume of the last primary ([`GroupConfig::without_volume`]).
    pub primary: Option<Member>,
    /// Members in sync beside the primary. A write is committed once all of them have it, or as many as
    /// [`TableOptions::quorum`] asks for.
    pub backups: Vec<Member>,
    /// Being built by the primary; not in sync yet, and not promoted unless an operator has given up all that were.
    pub learners: Vec<Member>,
    /// Members that were in sync until the present primary was promoted, and are no longer. Until the primary has made
    /// durable what it took over, they may hold the only durable copy of an acknowledged write. So if the whole group
    /// dies, recovery also waits for their volumes. The primary clears this with [`GroupConfig::settled`] or with its
    /// first new backup.
    pub prior_members: Vec<PriorMember>,
    /// For a table with a quorum, and after an operator has given up all members in sync, until the primary has settled: from
    /// how many of the members in sync and the prior members, itself included, it must hear before it knows which copy is
    /// the longest. 0: its own copy is known to be long enough.
    pub recovery_quorum: u32,
    /// The term before this one, if its primary gave up the role of its own accord ([`GroupConfig::handed_over`]); else
    /// 0.
    pub relinquished_term: Epoch,
    /// Requests of the master or an operator that are not executed yet.
    pub desired: DesiredState,
    /// Segments with lower ids existed when the region was split, and parts of them belong to another region. 1: the
    /// region was never split, but was to become a merge target, and may hold data of the merge source. 0: it holds
    /// only its own data.
    pub inherited_below: SegmentId,
    /// The LSN up to which the volume of a primary is known to be durable. A copy of that volume that reaches less far
    /// is an older state of it.
    pub floor: Option<Floor>,
    /// A server made this configuration of its copy, after the coordinator had forgotten the region, and none was appointed
    /// primary since: the generation of the tree at that time. The region waits for a later one, in which an operator has said
    /// that the tree is complete.
    pub restored_in: Option<u32>,
}

/// How far the volume of a member reached while that member was primary, as it last reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// Its volume is the one that reached so far.
    pub member: Member,
    /// The term in which it was primary.
    pub term: Epoch,
    /// Everything up to here is committed, and durable on its volume.
    pub lsn: Lsn,
}

/// A member that was in sync, and left before the primary had settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorMember {
    /// It may have the longest copy.
    pub member: Member,
    /// The last term in which it was in sync: it has every write that was acknowledged in that term.
    pub term: Epoch,
}

impl GroupConfig {
    /// The first configuration of a region of `table`: it has all keys, and no member yet.
    pub fn unassigned(region: RegionId, table: impl Into<String>) -> GroupConfig {
        GroupConfig {
            region,
            table: table.into(),
            table_id: TableId(0),
            start: Bytes::new(),
            end: None,
            epoch: Epoch(0),
            term: Epoch(0),
            primary: None,
            backups: Vec::new(),
            learners: Vec::new(),
            prior_members: Vec::new(),
            recovery_quorum: 0,
            relinquished_term: Epoch(0),
            desired: DesiredState::default(),
            inherited_below: SegmentId(0),
            floor: None,
            restored_in: None,
        }
    }
    /// The promotion candidates, whose copy may be the longest: members in sync and prior members, in each known
    /// incarnation.
    pub fn candidates(&self) -> impl Iterator<Item = Member> + '_ {
        self.in_sync().chain(self.prior_members.iter().map(|former| former.member))
    }
    /// How many servers the promotion candidates run on. A server may be among them with several incarnations.
    pub fn candidate_servers(&self) -> u32 {
        self.candidates().map(|candidate| candidate.server).collect::<BTreeSet<ServerId>>().len() as u32
    }
    /// Whether `member` still has everything that it held under the last primary that settled: its process has kept
    /// running.
    pub fn kept_running(&self, member: Member) -> bool {
        let mut incarnations = self.candidates().filter(|candidate| candidate.server == member.server).peekable();
        incarnations.peek().is_some() && incarnations.all(|candidate| candidate == member)
    }
    /// Members in sync, the primary first.
    pub fn in_sync(&self) -> impl Iterator<Item = Member> + '_ {
        self.primary.into_iter().chain(self.backups.iter().copied())
    }
    /// Every member, the primary first, then backups, then learners.
    pub fn members(&self) -> impl Iterator<Item = Member> + '_ {
        self.in_sync().chain(self.learners.iter().copied())
    }
    /// Whether `member` is part of the group in any role.
    pub fn has(&self, member: Member) -> bool {
        self.members().any(|other| other == member)
    }
    /// The next configuration, without the backup or learner `member`. While it may have the longest copy, it stays a
    /// prior member.
    #[must_use]
    pub fn without(&self, member: Member) -> GroupConfig {
        let mut next = self.clone();
        next.epoch = self.epoch.next();
        if self.recovery_quorum > 0 && self.backups.contains(&member) {
            next.prior_members.push(self.as_prior_member(member));
        }
        next.backups.retain(|other| *other != member);
        next.learners.retain(|other| *other != member);
        next.desired.leaving.take_if(|leaving| *leaving == member.server);
        next
    }
    /// The next configuration, which gives up the volume of `lost`: an operator accepts the loss of data that only that
    /// volume holds. This may leave the group without a primary.
    #[must_use]
    pub fn without_volume(&self, lost: &Member) -> GroupConfig {
        let mut next = self.clone();
        next.epoch = self.epoch.next();
        next.primary = self.primary.filter(|primary| !primary.has_volume_of(lost));
        next.backups.retain(|backup| !backup.has_volume_of(lost));
        next.prior_members.retain(|former| !former.member.has_volume_of(lost));
        next.floor.take_if(|floor| floor.member.has_volume_of(lost));
        next
    }
    /// The same configuration with the floor at `lsn`: the primary's volume holds everything up to it durably. Only its
    /// primary may propose this.
    #[must_use]
    pub fn with_floor(self, lsn: Lsn) -> GroupConfig {
        let floor = self.primary.map(|member| Floor { member, term: self.term, lsn });
        GroupConfig { floor: floor.or(self.floor), ..self }
    }
    /// Whether a copy of the region that reaches up to `copy` (term and LSN) reaches the floor of `member`'s volume.
    /// `false`: the volume is an older state of the one that the member had. `true` if no floor of it is known.
    pub fn is_reached_by(&self, member: &Member, copy: (Epoch, Lsn)) -> bool {
        let floor = self.floor.filter(|floor| floor.member.has_volume_of(member));
        floor.is_none_or(|floor| copy >= (floor.term, floor.lsn))
    }
    /// The next configuration, in which `learner` is a backup. Only the primary may propose this, once it has settled
    /// ([`GroupConfig::settled`]), and once every further write waits for the learner too.
    #[must_use]
    pub fn with_backup(&self, learner: Member) -> GroupConfig {
        let mut next = self.without(learner);
        next.backups.push(learner);
        next.prior_members.clear();
        next
    }
    /// The entry for `member`, which is in sync now, when it leaves. Its term is the one before those that no primary
    /// has settled.
    fn as_prior_member(&self, member: Member) -> PriorMember {
        let term = self.prior_members.iter().map(|former| former.term).min().unwrap_or(self.term);
        PriorMember { member, term }
    }
    /// The next configuration, in which `target` becomes primary, because the present primary's copy is shorter or it
    /// hears from too few members.
    #[must_use]
    pub fn handed_to(&self, target: Member) -> GroupConfig {
        let mut next = self.clone();
        (next.epoch, next.term, next.relinquished_term) = (self.epoch.next(), self.epoch.next(), Epoch(0));
        next.prior_members.retain(|former| former.member != target);
        // An ended incarnation of the target stays as a prior member.
        let over = self.in_sync().filter(|member| member.server == target.server && *member != target);
        next.prior_members.extend(over.map(|member| self.as_prior_member(member)));
        next.backups = self.in_sync().filter(|member| member.server != target.server).collect();
        next.learners.retain(|learner| learner.server != target.server);
        next.primary = Some(target);
        next
    }
    /// The next configuration, without [`GroupConfig::prior_members`]. The primary proposes this once everything that
    /// it took over is durable on its own volume under its term, and nothing needs to wait for it. For a table with a
    /// quorum it proposes this only once every backup has all of that as well, and it serves nothing before.
    #[must_use]
    pub fn settled(&self) -> GroupConfig {
        GroupConfig { epoch: self.epoch.next(), prior_members: Vec::new(), recovery_quorum: 0, ..self.clone() }
    }
    /// Whether this [place](crate::partition::Partition::place) is within the region's bounds.
    pub fn contains(&self, place: &[u8]) -> bool {
        place >= &self.start[..] && self.end.as_ref().is_none_or(|end| place < &end[..])
    }
}

/// A region's copy on a server's volume, as the server found it when it started, or when it was last found to be damaged
/// or sound again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyFound {
    /// Its number, as the volume knows it.
    pub region: RegionId,
    /// Term of the last primary that this copy was in sync with.
    pub term: Epoch,
    /// Last LSN of its valid prefix; [`CopyFound::DAMAGED`] if the copy is damaged.
    pub lsn: Lsn,
    /// The last configuration that named its server, as far as its volume knows; 0 if it does not.
    pub epoch: Epoch,
    /// The table that it belongs to; 0 if the volume does not say.
    pub table_id: TableId,
}

impl CopyFound {
    /// In place of the last LSN of a copy that is damaged: it may have reached to any LSN, so that no other copy of its
    /// term is known to reach further. A master that takes it for an LSN chooses the copy, which refuses to serve.
    pub const DAMAGED: Lsn = Lsn(u64::MAX);

    /// In place of the last LSN of a copy whose process is in sync and runs on: it has everything of its term.
    pub const WHOLE: Lsn = Lsn(u64::MAX - 1);

    /// A copy of which nothing is known but how far it reaches.
    pub fn new(region: RegionId, term: Epoch, lsn: Lsn) -> CopyFound {
        CopyFound { region, term, lsn, epoch: Epoch(0), table_id: TableId(0) }
    }

    /// Whether the copy is damaged.
    pub fn is_damaged(&self) -> bool {
        self.lsn == CopyFound::DAMAGED
    }

    /// Whether the copy belongs to a region of the same number of another table.
    pub fn is_of_other_table(&self, config: &GroupConfig) -> bool {
        self.table_id.is_other_than(config.table_id)
    }

    /// The epoch of the last configuration that it is known to have followed.
    pub fn seen(&self) -> Epoch {
        self.epoch.max(self.term)
    }
}

/// The entry that a live server publishes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// The server, its volume and its incarnation.
    pub member: Member,
    /// Where peers reach its fabric.
    pub fabric_address: String,
    /// Where native clients reach it.
    pub native_address: String,
    /// Where Redis clients reach it.
    pub resp_address: String,
    /// Where operators reach it.
    pub admin_address: String,
    /// The lock on its data directory that it holds: the boot of its machine, and the locked file there. A process that
    /// holds the same lock proves that this one has ended. Empty: not known.
    pub lock: String,
    /// Where it stands.
    pub location: Location,
    /// The copies on its volume when it started, and which of them are damaged now. If no in-sync incarnation of a group
    /// is alive, its primary is chosen by these. Ascending by region.
    pub copies: Vec<CopyFound>,
}

impl ServerInfo {
    /// Its copy of `region`, if it has registered one.
    pub fn copy_of(&self, region: RegionId) -> Option<&CopyFound> {
        let at = self.copies.binary_search_by_key(&region, |copy| copy.region).ok()?;
        Some(&self.copies[at])
    }

    /// Whether its fabric is shared memory, which only servers of the same machine reach: its address is an abstract
    /// socket name or a path.
    pub fn shares_memory(&self) -> bool {
        let address = &self.fabric_address;
        address.starts_with('@') || address.contains('/') || !address.is_empty() && !address.contains(':')
    }

    /// Whether the process of this entry has ended, since `later` is a process of the same server that holds the same
    /// lock. A copy of the volume, on another machine or in another directory, has another lock.
    pub fn is_replaced_by(&self, later: &ServerInfo) -> bool {
        self.member.is_earlier_than(&later.member) && !self.lock.is_empty() && self.lock == later.lock
    }

    /// The entry of a server without addresses and copies.
    pub fn of(member: Member) -> ServerInfo {
        let nowhere = String::new;
        let (fabric_address, native_address, resp_address, admin_address) =
            (nowhere(), nowhere(), nowhere(), nowhere());
        let (lock, location) = (String::new(), Location::default());
        let copies = Vec::new();
        ServerInfo { member, fabric_address, native_address, resp_address, admin_address, lock, location, copies }
    }
}

/// The coordinator's state that operators look at: tables, their regions in key order, and live servers. Nodes and
/// clients [route](crate::routing) by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionMap {
    /// Version of the coordinator's state that this was read from.
    pub version: u64,
    /// Tables, sorted by name.
    pub tables: Vec<TableOptions>,
    /// Regions, sorted by table and start.
    pub regions: Vec<GroupConfig>,
    /// Live servers.
    pub servers: Vec<ServerInfo>,
}

impl RegionMap {
    /// The regions of `table`, in key order; none if there is no such table.
    pub fn regions_of(&self, table: &str) -> &[GroupConfig] {
        let from = self.regions.partition_point(|region| &region.table[..] < table);
        let regions = &self.regions[from..];
        &regions[..regions.partition_point(|region| region.table == table)]
    }
    /// Options of the table `name`.
    pub fn table(&self, name: &str) -> Option<&TableOptions> {
        self.tables.binary_search_by(|table| table.name[..].cmp(name)).ok().map(|at| &self.tables[at])
    }
    /// The member that is live as server `id`.
    pub fn member(&self, id: ServerId) -> Option<Member> {
        self.server(id).map(|info| info.member)
    }
    /// The live server `id`.
    pub fn server(&self, id: ServerId) -> Option<&ServerInfo> {
        self.servers.iter().find(|server| server.member.server == id)
    }
}
