//! The coordinator: a small tree of paths that all processes of a cluster see in one order of changes.
//!
//! ```text
//!                     submit                     one thread a client
//!  any thread ----> Client -- Mailbox --> Link of embedded | of zookeeper -- Connection --> host | ensemble
//!             <---- CoordinatorEvents, from the client's thread
//! ```
//! - [`Coordinator`] states what a process can rely on. [`embedded`] and [`zookeeper`] implement it: the first with a
//!   host of its own, whose state is a [`Tree`], the second with an ensemble of ZooKeeper servers.
//! - Both have the same [`Client`]: one thread with a clock, which waits for its socket and its mailbox.
//! - The simulator drives [`Tree`] and [`Deadlines`] itself: they know no thread, clock or socket.
//!
//! Invariants: a submission never blocks. Every submitted operation gets exactly one reply. A process learns that it is cut off
//! well before its session can expire. Nothing here knows what the paths and values mean.

mod client;
mod connection;
mod deadlines;
pub mod embedded;
mod mailbox;
mod tree;
pub mod zookeeper;

pub use client::Client;
pub use deadlines::Deadlines;
pub use tree::{Applied, Tree};

use leeward_format::coordinator::{Change, CoordinatorError, CoordinatorOp, SessionId};
use leeward_platform::Nanos;

/// Maximum bytes of the operations that are sent to a coordinator at once: ZooKeeper accepts 1 MiB by default, and less where the
/// operator says so.
const MAX_CHUNK_BYTES: usize = 128 << 10;
/// Maximum bytes of an operation besides [`CoordinatorOp::bytes`]: ZooKeeper is told the root path of the cluster, and the access
/// rights.
const OVERHEAD_BYTES: usize = 256;

/// A service that keeps a small tree of paths for the whole cluster, with sessions, ephemeral paths and
/// compare-and-set.
///
/// It guarantees the following to each process, as [`CoordinatorEvent`]s in this order:
/// - The process is shown the tree as it was at one version, then as it was at a later version, and so on. Versions have one
///   order for all processes. The process need not be shown each version: successive changes may be told in one
///   [`CoordinatorEvent::Changed`]. Of several changes of one path it then contains only the last, which may be the removal of a
///   path that was never shown.
/// - Before the `Reply` to an operation, the process was shown what the operation changed, or the reason for its refusal, or a
///   later state. An operation that names a version that the process was not shown yet may be refused because of the state shown
///   last.
/// - Versions rise. A path is shown with the version of its last change. A removed path is shown with any version from its
///   removal to the state that is shown. Changes that were made in one step may share a version, and are told together. Two
///   processes hold the same tree at the same version.
///
/// A path has either a value or paths beneath it. The coordinator refuses to make a path beneath a value, or a value
/// above other paths. It may also refuse a [`CoordinatorOp::All`] that removes the one and makes the other.
///
/// A process that decides on the states that it is shown, and changes them by compare-and-set, does not depend on the
/// states in between. [`Agent`](crate::Agent) works like this.
pub trait Coordinator: Send + Sync {
    /// Asks for `op`. The answer comes as [`CoordinatorEvent::Reply`] with the same `id`. Never blocks. While no session is up,
    /// the answer is [`CoordinatorError::Disconnected`].
    fn submit(&self, id: u64, op: CoordinatorOp);

    /// Why no session is up, for the operator; `None` while one is, or if the reason is unknown.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// What the operator should change although a session is up, and why; `None` if nothing is known.
    fn concern(&self) -> Option<String> {
        None
    }
}

/// A coordinator that cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The address where it should listen.
    pub address: String,
    /// When it last answered, or when the process first looked for it, by the process's boot clock.
    pub since: Nanos,
    /// Why the last attempt failed.
    pub reason: String,
}

/// An event of the coordinator for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorEvent {
    /// The session is attached; the whole tree follows as changes, then `Synced`.
    Up {
        /// The session: the same as before, unless `Expired` came in between.
        session: SessionId,
    },
    /// The coordinator no longer answers. The session may or may not still exist. Operations that were not answered may or may
    /// not be done.
    Down,
    /// The session is over and its ephemeral paths are gone. `Up` with another follows.
    Expired,
    /// Paths changed, ascending by version. Between `Up` and `Synced`, they are part of the tree. Never empty, and each path
    /// occurs at most once.
    Changed(Vec<Change>),
    /// The whole tree was told. Changes follow.
    Synced {
        /// Number of the last change that it holds.
        version: u64,
    },
    /// Answer to an operation.
    Reply {
        /// Id that [`Coordinator::submit`] got.
        id: u64,
        /// The version of the last change of the operation.
        result: Result<u64, CoordinatorError>,
    },
}

/// How many of these operations, from the first, fit into one request to a coordinator.
pub(crate) fn chunk(ops: &[CoordinatorOp]) -> usize {
    let mut room = MAX_CHUNK_BYTES;
    let fits = |op: &&CoordinatorOp| {
        let left = room.checked_sub(op.bytes() + OVERHEAD_BYTES);
        left.inspect(|left| room = *left).is_some()
    };
    ops.iter().take_while(fits).count().max(1)
}
