//! The messages between processes and the embedded coordinator, and the entries of its log.
//!
//! The coordinator keeps a flat set of paths. Each holds a value and the **version** at which it was last changed: one
//! counter numbers every change of the whole tree, so versions rise in time, and a path that is deleted and made again
//! never repeats a version.
//!
//! ```text
//! process -> coordinator    Attach, then Heartbeat | Submit | Leave ...     frames of kind CoordinatorRequest
//! coordinator -> process    Attached | Unknown, Changed ... Synced, then    frames of kind CoordinatorReply
//!                           Changed | Heartbeat | Done ...
//! log file                  LogBatch(Snapshot), LogBatch ...                frames of kind CoordinatorLog
//! ```
//! `docs/formats/coordinator.md` describes the exchange and the file. The types are plain data; any thread may use
//! them.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};

/// Longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 256;
/// Longest value of one path, in bytes, within ZooKeeper's default limit.
pub const MAX_NODE_BYTES: usize = 1024 * 1024 - 1024;
/// Most operations that one [`CoordinatorOp::All`] holds.
pub const MAX_ALL_OPS: usize = 16 * 1024;
/// Longest request or reply, in bytes of body.
pub const MAX_COORDINATOR_BYTES: usize = 8 * 1024 * 1024;
/// Longest batch of the log, in bytes of body. A snapshot of the largest tree fits.
pub const MAX_LOG_BATCH_BYTES: usize = 128 * 1024 * 1024;

/// One session of a process with the coordinator. Ephemeral paths are removed with the session that made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// A change that a process asks for. Each is atomic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorOp {
    /// Make a path that does not exist.
    Create {
        /// Where.
        path: String,
        /// With which value.
        value: Bytes,
        /// It is removed with the session that made it.
        ephemeral: bool,
    },
    /// Compare-and-set: replace the value of a path that was last changed at `version`.
    Set {
        /// Where.
        path: String,
        /// The new value.
        value: Bytes,
        /// Version that the writer has seen.
        version: u64,
    },
    /// Remove a path.
    Delete {
        /// Where.
        path: String,
        /// Only if it was last changed at this version.
        version: Option<u64>,
    },
    /// All of these in order, or none if one is refused. They do not nest.
    All(#[serde(deserialize_with = "singles")] Vec<CoordinatorOp>),
}

/// An operation within [`CoordinatorOp::All`], encoded like a [`CoordinatorOp`]. It cannot nest, so hostile bytes
/// cannot exhaust the stack.
#[derive(Deserialize)]
enum Single {
    Create { path: String, value: Bytes, ephemeral: bool },
    Set { path: String, value: Bytes, version: u64 },
    Delete { path: String, version: Option<u64> },
}

impl From<Single> for CoordinatorOp {
    fn from(single: Single) -> CoordinatorOp {
        match single {
            Single::Create { path, value, ephemeral } => CoordinatorOp::Create { path, value, ephemeral },
            Single::Set { path, value, version } => CoordinatorOp::Set { path, value, version },
            Single::Delete { path, version } => CoordinatorOp::Delete { path, version },
        }
    }
}

fn singles<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CoordinatorOp>, D::Error> {
    let singles = Vec::<Single>::deserialize(deserializer)?;
    Ok(singles.into_iter().map(CoordinatorOp::from).collect())
}

impl CoordinatorOp {
    /// An upper bound of its encoded length, in bytes.
    pub fn bytes(&self) -> usize {
        // Kind, two lengths, a version and flags take 32 bytes at most.
        32 + match self {
            CoordinatorOp::Create { path, value, .. } | CoordinatorOp::Set { path, value, .. } => {
                path.len() + value.len()
            }
            CoordinatorOp::Delete { path, .. } => path.len(),
            CoordinatorOp::All(ops) => ops.iter().map(CoordinatorOp::bytes).sum(),
        }
    }
}

/// Why an operation was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CoordinatorError {
    /// The path to create exists already: read it.
    #[error("the path exists already, last changed at version {version}")]
    Exists {
        /// Version at which it was last changed.
        version: u64,
    },
    /// The path to set or delete does not exist: read again.
    #[error("the path does not exist")]
    Missing,
    /// The path was changed since it was read: read it again and decide again.
    #[error("the path was changed at version {version} in the meantime")]
    Stale {
        /// Version at which it was last changed.
        version: u64,
    },
    /// The operation breaks a limit or is malformed. Do not retry.
    #[error("refused: {0}")]
    Refused(String),
    /// The connection was lost before the answer came: the operation may or may not have been done. The tree shows it
    /// after the next synchronisation.
    #[error("the connection to the coordinator was lost before it answered")]
    Disconnected,
}

/// One change of the tree, as it is sent to every process that watches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The path that changed.
    pub path: String,
    /// Number of this change; in the first synchronisation, of the last change of the path.
    pub version: u64,
    /// Its value from now on; `None` when it was removed.
    pub value: Option<Bytes>,
}

/// Process to coordinator. The first message on a connection, and no other, is [`CoordinatorRequest::Attach`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorRequest {
    /// Begin a session, or continue one on a new connection.
    Attach {
        /// The session to continue.
        session: Option<SessionId>,
        /// For a new session: silence, in milliseconds, after which it expires.
        timeout_ms: u32,
    },
    /// The process is alive.
    Heartbeat {
        /// Echoed.
        nonce: u64,
    },
    /// Execute an operation.
    Submit {
        /// Echoed with the answer.
        id: u64,
        /// Done as a whole, or not at all.
        op: CoordinatorOp,
    },
    /// End the session now: its ephemeral paths are removed at once.
    Leave,
}

/// Coordinator to process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorReply {
    /// The session is attached to this connection; the whole tree follows as changes, then `Synced`, then every
    /// later change in order.
    Attached {
        /// The one that was to be continued, or a new one.
        session: SessionId,
        /// Its timeout in milliseconds, within what the coordinator allows.
        timeout_ms: u32,
    },
    /// The session to be continued has expired; its ephemeral paths are gone. The connection ends.
    Unknown,
    /// The tree changed.
    Changed(Change),
    /// The whole tree has been sent, as of this version.
    Synced {
        /// Number of the last change that it holds.
        version: u64,
    },
    /// Answer to a heartbeat.
    Heartbeat {
        /// Copied.
        nonce: u64,
    },
    /// Answer to `Submit`: the version of the operation's last change. Its changes were sent before.
    Done {
        /// Copied.
        id: u64,
        /// Version of the operation's last change, or why nothing was changed.
        result: Result<u64, CoordinatorError>,
    },
}

/// A path as a snapshot of the tree holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSnapshot {
    /// Where.
    pub path: String,
    /// Version of its last change.
    pub version: u64,
    /// Made by [`encode_value`](crate::cluster::encode_value).
    pub value: Bytes,
    /// The session with which it is removed, if it is ephemeral.
    pub owner: Option<SessionId>,
}

/// The whole tree with its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeSnapshot {
    /// Number of the last change.
    pub version: u64,
    /// Id that the next session gets.
    pub next_session: u64,
    /// Sessions and their timeouts in milliseconds, ascending.
    pub sessions: Vec<(SessionId, u32)>,
    /// Every path, ascending.
    pub nodes: Vec<NodeSnapshot>,
}

/// A change of the tree's state as the log records it. Replaying the same entries gives the same tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogEntry {
    /// The whole tree; first in every file, nowhere else.
    Snapshot(TreeSnapshot),
    /// A session began.
    Opened {
        /// One more than that of the session before.
        session: SessionId,
        /// Its timeout in milliseconds.
        timeout_ms: u32,
    },
    /// An operation succeeded.
    Applied {
        /// The session that submitted it; `None` for the process that hosts the coordinator.
        session: Option<SessionId>,
        /// As it was submitted: replay executes it again.
        op: CoordinatorOp,
    },
    /// A session expired or left; its ephemeral paths were removed.
    Closed {
        /// Opened by an earlier entry, or part of the snapshot.
        session: SessionId,
    },
}

/// One append to the log: entries that were decided and made durable together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogBatch {
    /// Rises by one from batch to batch, also across compactions of the log.
    pub sequence: u64,
    /// In the order in which they happened.
    pub entries: Vec<LogEntry>,
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
