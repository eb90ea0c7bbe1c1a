//! The status that a node reports on its admin port, as far as the benchmark and `leeward status` need it. Fields that a node
//! does not send are `None` here and are reported as absent, never as zero.

use leeward_client::admin;
use leeward_format::RegionId;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// A node. Counters are totals since its process started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its server id.
    pub server: u32,
    /// Its incarnation.
    #[serde(default)]
    pub incarnation: Option<u64>,
    /// Its process.
    #[serde(default)]
    pub pid: Option<u32>,
    /// It is the master.
    #[serde(default)]
    pub is_master: Option<bool>,
    /// Its session with the coordinator is alive.
    #[serde(default)]
    pub coordinator_up: Option<bool>,
    /// Why it is not part of the cluster; `None` while it is.
    #[serde(default)]
    pub not_joined: Option<String>,
    /// Why it gets no copies: it is being drained, or it restarts. `None`: it may have copies.
    #[serde(default)]
    pub intent: Option<String>,
    /// As the master, it balances what servers have.
    #[serde(default)]
    pub balances: Option<bool>,
    /// Why its volume takes no writes; `None` while it does.
    #[serde(default)]
    pub volume_failure: Option<String>,
    /// Why its volume has no more space; `None` while it has.
    #[serde(default)]
    pub volume_full: Option<String>,
    /// Bytes moved to and from its volume, by the engine's own count.
    #[serde(default)]
    pub device: DeviceStatus,
    /// Bytes moved over the fabric.
    #[serde(default)]
    pub network: NetworkStatus,
    /// Its regions, in key order.
    #[serde(default)]
    pub regions: Vec<RegionStatus>,
    /// What its CPU time is spent on.
    #[serde(default)]
    pub cpu: Option<CpuStatus>,
}

/// CPU time of a node's process, user and system time together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CpuStatus {
    /// Where it went.
    pub spent: Vec<CpuSpent>,
}

/// CPU time that went into one thing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CpuSpent {
    /// What was done.
    pub activity: String,
    /// The role that it was done in: `primary`, `backup` or `node`.
    pub role: String,
    /// Nanoseconds.
    pub nanos: u64,
}

/// Bytes moved to and from the volume.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// Bytes read.
    pub bytes_read: Option<u64>,
    /// Bytes written.
    pub bytes_written: Option<u64>,
    /// Bytes of the segments in use.
    pub segment_bytes_used: Option<u64>,
    /// Bytes that the volume may reach.
    pub capacity_bytes: Option<u64>,
}

/// Bytes moved over the fabric, headers included.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkStatus {
    /// Bytes sent.
    pub bytes_sent: Option<u64>,
    /// Bytes received.
    pub bytes_received: Option<u64>,
}

/// One region on one node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionStatus {
    /// The region.
    pub region: RegionId,
    /// First key, lossily as text.
    pub start: String,
    /// Key after the last, lossily as text; `None` for no bound.
    pub end: Option<String>,
    /// `primary`, `backup`, `learner` or `none`.
    pub role: String,
    /// What it is doing in that role.
    pub state: String,
    /// Version of the group's configuration.
    pub epoch: u32,
    /// Last LSN appended (primary) or persisted (others).
    pub last_lsn: u64,
    /// Last LSN that every member in sync holds (primary only).
    pub commit_lsn: u64,
    /// Bytes of the segments of its copy (primary only).
    pub bytes: Option<u64>,
    /// Memory of its L0s, in bytes.
    pub l0_bytes: Option<u64>,
    /// Bytes that a backup would have to replay before it serves in its place (primary only).
    pub promotion_bytes: Option<u64>,
    /// Levels from L1 down.
    pub levels: Vec<LevelStatus>,
    /// Its backups and learners (primary only).
    pub peers: Vec<PeerStatus>,
    /// Time from becoming primary to serving, in milliseconds (primary only).
    pub recovery_ms: Option<u64>,
    /// Its planned split or merge (primary only).
    pub plan: Option<PlanStatus>,
    /// What was done for it.
    pub counters: RegionCounters,
}

/// A region that is to become two.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanStatus {
    /// Why it is not so yet, if anything but time keeps it from that.
    pub waits_for: Option<String>,
}

/// A level.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelStatus {
    /// Its number, from 1.
    pub level: u32,
    /// Leaf segments.
    pub leaf_segments: u64,
    /// Bytes of its leaf segments.
    pub bytes: u64,
}

/// A backup or learner, as its primary sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    /// The server.
    pub server: u32,
    /// What it is doing.
    pub state: String,
    /// No write is acknowledged without it.
    pub member: bool,
    /// Log bytes that it has not confirmed.
    pub lag_bytes: u64,
    /// Segments still to be sent to it.
    pub segments_to_ship: u64,
    /// Segments that it lacked when its session began.
    pub segments_lacked: u64,
    /// Of those, the ones that were sent.
    pub segments_sent: u64,
}

/// What a node did for a region, in the role it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionCounters {
    /// Compactions finished.
    pub compactions: Option<u64>,
    /// Bytes that compactions read from the device.
    pub compaction_bytes_read: Option<u64>,
    /// Bytes that compactions wrote.
    pub compaction_bytes_written: Option<u64>,
    /// Bytes of leaf and index segments sent to backups by compactions.
    pub index_bytes_shipped: Option<u64>,
    /// Bytes of leaf and index segments received from a primary.
    pub index_bytes_received: Option<u64>,
    /// Bytes of them whose pointers were translated.
    pub index_bytes_rewritten: Option<u64>,
    /// Bytes that a backup read from its device for its index.
    pub index_bytes_read: Option<u64>,
    /// Bytes of segments sent to bring a backup in sync.
    pub sync_bytes_shipped: Option<u64>,
    /// Nanoseconds during which writes waited because the L0s were full.
    pub stall_l0_full_ns: Option<u64>,
    /// Nanoseconds during which writes waited for a log tail.
    pub stall_tail_ns: Option<u64>,
}

/// Asks the admin port at `address` for the node's status.
///
/// # Errors
/// The node cannot be reached, or answers something else than a status.
pub fn fetch_status(address: &str, timeout: Duration) -> io::Result<NodeStatus> {
    match admin::get(address, "/status", timeout)? {
        (200, body) => serde_json::from_slice(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        (status, _) => Err(io::Error::other(format!("/status answers {status}"))),
    }
}
