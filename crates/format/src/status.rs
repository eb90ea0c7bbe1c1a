//! The status of a node: the figures behind `/status`, `/metrics`, `leeward status` and the benchmark's table.
//!
//! Counters are totals since the process started. A reader may be of another version than the node: a field that the
//! node does not send has its default. A field is an `Option` if the reader must tell a missing figure from 0.

use crate::{Epoch, Incarnation, Lsn, RegionId, ServerId, VolumeId};
use serde::{Deserialize, Serialize};

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;

/// What a node reports of itself and its copies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its server id.
    pub server: ServerId,
    /// Another one than before if the server has lost its data.
    pub volume: VolumeId,
    /// The incarnation of this process on the volume.
    pub incarnation: Incarnation,
    /// Its process id; `None` if not sent.
    pub pid: Option<u32>,
    /// It is the master.
    pub is_master: bool,
    /// Its session with the coordinator is alive.
    pub coordinator_up: bool,
    /// What the operator should change at the coordinator although there is a session; `None` if nothing is known.
    pub coordinator_concern: Option<String>,
    /// Why it is not part of the cluster; `None` while it is.
    pub not_joined: Option<String>,
    /// Why it should be a member of no group, if so: `leaves` or `restarts`.
    pub intent: Option<String>,
    /// It is the master, and balances servers.
    pub balances: bool,
    /// Why its volume takes no writes, after a failure.
    pub volume_failure: Option<String>,
    /// Why its volume has no room, if it is full.
    pub volume_full: Option<String>,
    /// Why it has said to the master that it is full: the master gives it no copies and no primary roles while it can.
    pub gets_no_roles: Option<String>,
    /// How settings that are to be the same on all nodes differ from those of live servers: a sentence each.
    pub settings_differ: Vec<String>,
    /// Bytes read from and written to the volume, counted by the engine; `None` if not sent.
    pub device: Option<DeviceStatus>,
    /// Bytes moved over the fabric; `None` if not sent.
    pub network: Option<NetworkStatus>,
    /// Look-ups and contents of the cache.
    pub cache: CacheStatus,
    /// How its memory is split.
    pub memory: MemoryStatus,
    /// Its regions, in key order.
    pub regions: Vec<RegionStatus>,
    /// Operations forwarded to other nodes.
    pub forwarded: u64,
    /// Idle regions that had work to do although no event had woken them: a bug.
    pub missed_wakeups: u64,
    /// Reads that it answered as a backup, which may be stale.
    pub stale_reads: u64,
    /// Reads that it answered as a backup, none of them stale.
    pub fresh_reads: u64,
    /// How often it asked a primary for a safe LSN, for such reads.
    pub safe_lsn_questions: u64,
    /// Its CPU time by activity; `None` if that is not measured, as in the simulator.
    pub cpu: Option<CpuStatus>,
}

/// CPU time of a node's process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuStatus {
    /// User and system time of all of its threads, in nanoseconds.
    pub process_ns: u64,
    /// CPU time by activity and role.
    pub spent: Vec<CpuSpent>,
}

/// CPU time that was spent on one activity.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuSpent {
    /// The activity, for example `compaction`.
    pub activity: String,
    /// The role: `primary`, `backup` or `node`.
    pub role: String,
    /// Nanoseconds.
    pub nanos: u64,
}

/// Bytes moved to and from the volume.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes of segments in use.
    pub segment_bytes_used: u64,
    /// Declared capacity of the volume in bytes; `None`: limited only by the device.
    pub capacity_bytes: Option<u64>,
}

/// Bytes moved over the fabric, headers included.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkStatus {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

/// Look-ups and contents of the cache.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// Look-ups answered.
    pub hits: u64,
    /// Look-ups that went to the device.
    pub misses: u64,
    /// Bytes of indexes and filters that stay as long as their segments.
    pub index_bytes: u64,
    /// Bytes of leaves, further indexes, and long values.
    pub object_bytes: u64,
    /// Bytes of single pairs.
    pub record_bytes: u64,
}

/// How a memory budget is used at the moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// All purposes together may take this much: `memory_budget` of a node.
    pub budget: u64,
    /// Bytes of the budget that are in use: the sum of all that follow.
    pub used: u64,
    /// Cached indexes, filters, leaves and records.
    pub cache: u64,
    /// L0s (memtables), frozen and pinned ones included.
    pub l0s: u64,
    /// Buffers of compactions. In a server also built segments, until every backup has them.
    pub compactions: u64,
    /// Read-ahead of scans, of look-ups of many keys, and of replays.
    pub reads: u64,
    /// Windows of log tails: pages that are mapped, or bytes on the heap.
    pub tails: u64,
    /// Regions themselves, fences of their levels, and state of each of their leaf segments.
    pub levels: u64,
    /// Mirror buffers and ship slots, as far as the node knows what primaries have written into them. 0 in an embedded store.
    pub mirrors: u64,
    /// Request rings of clients. 0 in an embedded store.
    pub rings: u64,
    /// Requests of clients and answers to them. 0 in an embedded store.
    pub clients: u64,
    /// Hash indexes, which clients read by one-sided reads. 0 in an embedded store.
    pub hash_indexes: u64,
}

/// The role of a node in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It serves the region.
    Primary,
    /// It holds a copy that is in sync.
    Backup,
    /// It holds a copy that is being built.
    Learner,
    /// It holds a copy that no configuration names, or it has a role that this reader does not know.
    #[default]
    #[serde(other)]
    None,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 4] = [Role::Primary, Role::Backup, Role::Learner, Role::None];

    /// The role in texts and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Primary => "primary",
            Role::Backup => "backup",
            Role::Learner => "learner",
            Role::None => "none",
        }
    }
}

/// One region on one node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionStatus {
    /// Unique in the cluster, over all tables.
    pub region: RegionId,
    /// Name of the table that it is part of.
    pub table: String,
    /// First key, lossily as text; or first token, as `#` and hexadecimal digits.
    pub start: String,
    /// Key or token after the last, as text; `None` for no bound.
    pub end: Option<String>,
    /// Role of this node in it.
    pub role: Role,
    /// `serving`, `recovering`, `in sync`, `syncing`, `waiting`.
    pub state: String,
    /// Version of the group's configuration.
    pub epoch: Epoch,
    /// Epoch at which its primary became primary.
    pub term: Epoch,
    /// Last LSN appended (primary) or persisted (others).
    pub last_lsn: Lsn,
    /// Commit LSN (primary only).
    pub commit_lsn: Lsn,
    /// Memory of the L0s, in bytes.
    pub l0_bytes: u64,
    /// Bytes of the segments of this copy, in whole segments. A shared segment counts in equal parts for each region of
    /// the volume that has it. The master balances copies by this (primary only).
    pub bytes: u64,
    /// What a backup would have to replay before it serves in place of this node, in bytes of L0s of small values
    /// (primary only).
    pub promotion_bytes: u64,
    /// Levels from L1 down.
    pub levels: Vec<LevelStatus>,
    /// Its backups and learners (primary only).
    pub peers: Vec<PeerStatus>,
    /// Time from becoming primary to serving, in milliseconds (primary only).
    pub recovery_ms: u64,
    /// Its logs to which leaves point (primary only).
    pub logs: LogStatus,
    /// Its hash index, while clients read it (primary only).
    pub hash_index: HashIndexStatus,
    /// The split or merge that is planned for the region (primary only).
    pub plan: Option<PlanStatus>,
    /// Work of this node for the region.
    pub counters: RegionCounters,
}

impl RegionStatus {
    /// Sorted runs of this copy: those of L1, and each level below.
    pub fn runs(&self) -> u64 {
        self.levels.iter().map(|level| level.runs).sum()
    }

    /// Those of the runs that are pieces of a two-layer log.
    pub fn pieces(&self) -> u64 {
        self.levels.iter().map(|level| level.pieces).sum()
    }
}

/// The hash index of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HashIndexStatus {
    /// Pairs in it now.
    pub records: u64,
    /// Its memory, in bytes; 0: there is none.
    pub bytes: u64,
    /// Pairs that were put into it since this node serves the region.
    pub published: u64,
    /// Pairs that were evicted for others since then.
    pub evicted: u64,
}

/// A region that is to be split, or merged into its neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanStatus {
    /// Number of the new region, if it is to be split.
    pub child: Option<RegionId>,
    /// First key of the new region, lossily as text; `None`: a key that halves the region.
    pub at: Option<String>,
    /// The neighbour that it is to be merged into.
    pub into: Option<RegionId>,
    /// Why the plan must wait, if it must.
    pub waits_for: Option<String>,
}

/// Space of the logs to which leaves point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStatus {
    /// Bytes of the volume that complete segments of the large log take.
    pub large_bytes: u64,
    /// Bytes of records in them that leaves point to; the rest is garbage.
    pub large_live_bytes: u64,
    /// Bytes of the volume that sorted runs of the medium log take.
    pub medium_bytes: u64,
    /// Bytes of values that garbage collection has moved since the term began.
    pub relocated_bytes: u64,
    /// Bytes that compactions have read from logs, to move values, since the term began.
    pub value_bytes_read: u64,
}

/// A level of the node's copy of a region.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelStatus {
    /// Its number, from 1.
    pub level: u32,
    /// Leaf segments.
    pub leaf_segments: u64,
    /// Bytes of its leaf segments.
    pub bytes: u64,
    /// Its sorted runs: 1 below L1. Those of a two-layer log are L1's runs, and its last level is one more.
    pub runs: u64,
    /// How many of those are pieces of a two-layer log.
    pub pieces: u64,
}

/// A backup or learner, as its primary sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    /// Where the backup or learner runs.
    pub server: ServerId,
    /// `in sync`, `syncing`, `joining`; without a session `refused`, and `away` if there is no link either.
    pub state: String,
    /// It is a member in sync in the configuration, and counts for the commit LSN.
    pub member: bool,
    /// Log bytes that it has not confirmed.
    pub lag_bytes: u64,
    /// Segments still to be sent to it.
    pub segments_to_ship: u64,
    /// Segments that it lacked when its session began.
    pub segments_lacked: u64,
    /// How many of those were sent.
    pub segments_sent: u64,
}

/// Work of a node for a region, in any role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionCounters {
    /// Reads that were begun, as primary.
    pub reads: u64,
    /// Writes that were begun, as primary.
    pub writes: u64,
    /// Compactions finished. Always 0 at a backup with send-index.
    pub compactions: u64,
    /// Bytes that compactions read from the device. Always 0 at a backup with send-index.
    pub compaction_bytes_read: u64,
    /// Bytes that compactions wrote.
    pub compaction_bytes_written: u64,
    /// Merges of all sorted runs of a two-layer log into one that ended. Always 0 with other modes of backups.
    pub run_merges: u64,
    /// Merges of pieces of a two-layer log into a sorted run. Always 0 with other modes of backups.
    pub piece_merges: u64,
    /// Bytes of user keys and values appended.
    pub user_bytes: u64,
    /// Bytes of leaf and index segments sent to backups by compactions.
    pub index_bytes_shipped: u64,
    /// Bytes of sorted runs sent to backups by compactions.
    pub run_bytes_shipped: u64,
    /// Bytes of leaf and index segments received from a primary.
    pub index_bytes_received: u64,
    /// Bytes of those segments whose pointers were translated.
    pub index_bytes_rewritten: u64,
    /// Bytes that a backup read from its device for its index. Always 0 with send-index.
    pub index_bytes_read: u64,
    /// Bytes of segments sent to bring a backup in sync.
    pub sync_bytes_shipped: u64,
    /// Installs of compactions that were shipped to this node.
    pub installs: u64,
    /// Nanoseconds during which writes waited because the L0s were full.
    pub stall_l0_full_ns: u64,
    /// Nanoseconds during which writes waited for a log tail.
    pub stall_tail_ns: u64,
    /// Nanoseconds by which answers to writes were delayed, so that compactions keep up and L0s do not fill.
    pub stall_slowed_ns: u64,
    /// Regions that were split off.
    pub splits: u64,
    /// Splits that were given up.
    pub splits_failed: u64,
    /// Regions that were merged into this one.
    pub merges: u64,
    /// Merges of this region into its neighbour that were given up.
    pub merges_failed: u64,
    /// Ranges that were deleted after a split, because they belong to another region.
    pub trims: u64,
}
