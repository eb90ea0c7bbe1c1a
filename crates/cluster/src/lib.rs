//! Who serves what: region map, epochs, the master's decisions, and the coordinator that keeps them.
//!
//! ```text
//!             events                  ops                    changes
//!  Coordinator ------> Agent (View, master) ------> Coordinator ------> every other process
//! ```
//! - [`Agent`] is one server's part in the cluster as a state machine, `(now, event) -> operations`, with no thread,
//!   clock, socket or file inside. The simulator drives the very same machine.
//! - A replica group's configuration changes only by compare-and-set, and every change raises its epoch (PacificA). So
//!   two masters, or a master and a primary, that act on different knowledge do no harm: one of them is refused.
//! - [`Tree`] is the coordinator itself as a state machine; [`embedded`] gives it a log, sockets and threads. [`zookeeper`]
//!   keeps the same paths in an ensemble of ZooKeeper servers.
//!
//! Nothing here knows the engine or how replicas exchange data. `docs/reconfiguration.md` tells the rules to operators.
#![forbid(unsafe_code)]

mod agent;
mod awaited;
mod balance;
mod bootstrap;
mod client;
mod connection;
mod deadlines;
mod docket;
pub mod embedded;
mod mailbox;
mod master;
mod routes;
mod tree;
mod view;
mod wishes;
pub mod zookeeper;

pub use agent::{Absence, Agent, Balance, ClusterOptions, Misfit, Outcome, ProposalId};
pub use awaited::{Awaited, Found, awaited};
pub use bootstrap::bootstrap_op;
pub use client::Client;
pub use deadlines::Deadlines;
pub use leeward_format::coordinator::{Change, CoordinatorError, CoordinatorOp, SessionId};
pub use routes::Routes;
pub use tree::{Applied, Tree};
pub use view::{Changed, View};

use leeward_platform::Nanos;

/// A service that keeps a small tree of paths for the whole cluster, with sessions, ephemeral paths and
/// compare-and-set.
///
/// What it promises to each process, as [`CoordinatorEvent`]s in this order:
/// - The process is shown the tree as it was at one version, then as it was at a later one, and so on: versions are one
///   order for all. It need not be shown each: changes that follow on one another may be told in one
///   [`CoordinatorEvent::Changed`], and of several changes of one path then only the last, which may be the removal of a
///   path that was never shown.
/// - What an operation changed, or was refused for, was shown before its `Reply`, or something later was. One that names a
///   version that this process was not shown yet may be refused for what it was shown last.
/// - Versions rise. A path is shown with the version of its last change, a removed one with any version from its removal to
///   the state that is shown. Changes that were made in one step may share a version, and are told together. What two
///   processes hold at the same version is the same.
///
/// A path has a value, or others beneath it: to make one beneath a value, or a value above others, is refused. A
/// [`CoordinatorOp::All`] that removes the one and makes the other may be refused as well.
///
/// Whoever decides on the states that he is shown, and changes them by compare-and-set, as [`Agent`] does, is as
/// well off without those in between: he is like one who was told a little later.
pub trait Coordinator: Send + Sync {
    /// Asks for `op`; the answer comes as [`CoordinatorEvent::Reply`] with the same `id`. Never blocks. While no
    /// session is up, the answer is [`CoordinatorError::Disconnected`].
    fn submit(&self, id: u64, op: CoordinatorOp);

    /// Why no session is up, for the operator; `None` while one is, or where nobody can tell.
    fn outage(&self) -> Option<Outage> {
        None
    }
}

/// A coordinator that cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Where it should listen.
    pub address: String,
    /// When it was last heard, or first looked for, by the process's boot clock.
    pub since: Nanos,
    /// What the last attempt met.
    pub reason: String,
}

/// What a process hears from its coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorEvent {
    /// The session is attached; the whole tree follows as changes, then `Synced`.
    Up {
        /// The session: the same as before, unless `Expired` came in between.
        session: SessionId,
    },
    /// The coordinator no longer answers. The session may or may not live on; what was asked and not answered may or
    /// may not be done.
    Down,
    /// The session is over and its ephemeral paths are gone. `Up` with another follows.
    Expired,
    /// Paths changed, ascending by version; between `Up` and `Synced`, they are part of the tree. Never empty, and each
    /// path at most once.
    Changed(Vec<Change>),
    /// The whole tree was told; what follows are changes.
    Synced {
        /// Number of the last change that it holds.
        version: u64,
    },
    /// Answer to an operation.
    Reply {
        /// Id that [`Coordinator::submit`] got.
        id: u64,
        /// The version of what it changed last.
        result: Result<u64, CoordinatorError>,
    },
}
