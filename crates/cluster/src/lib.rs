//! The placement of regions on servers: region map, epochs, the master's decisions, and the coordinator that stores them.
//!
//! ```text
//!              events                        ops                    changes
//!  coordinator ------> agent (view, master) ------> coordinator ------> every other process
//! ```
//! One folder for each role. Each knows only the ones before it:
//! - `coordinator`: the tree of paths that all processes see: [`Coordinator`], [`embedded`], [`zookeeper`].
//! - `view`: what a process knows of the cluster by that tree: [`View`], [`Routes`], and what may be asked for.
//! - `master`: what a master decides by a view: which server is a primary, a backup or a learner, and which load moves.
//! - `agent`: [`Agent`], one server's part in the cluster as a state machine, `(now, event) -> operations`, with no thread,
//!   clock, socket or file inside. The simulator drives the very same machine.
//!
//! A replica group's configuration changes only by compare-and-set, and every change raises its epoch (PacificA). So two masters,
//! or a master and a primary, that act on different knowledge do no harm: one of them is refused.
//!
//! Nothing here knows the engine or how replicas exchange data. `docs/reconfiguration.md` explains the rules to operators.
#![forbid(unsafe_code)]

mod agent;
mod coordinator;
mod master;
mod view;

pub use agent::{Agent, Incompatible, NotJoined, Outcome, ProposalId};
pub use coordinator::{Applied, Client, Coordinator, CoordinatorEvent, Deadlines, Outage, Tree, embedded, zookeeper};
pub use leeward_format::coordinator::{Change, CoordinatorError, CoordinatorOp, SessionId};
pub use master::{Balance, ClusterOptions, MissingVolume, ServerCopy, bootstrap_op, missing_volumes};
pub use view::{Changed, HeldCopy, MapParts, Routes, TreeRefusal, View};
