//! ZooKeeper as the coordinator: the same paths, kept by an ensemble that survives the loss of a machine.
//!
//! ```text
//! threads of the process            thread coordinator-client                   ensemble
//!   Client::submit ---- Mailbox ----> ZooKeeperLink -- ProtocolSession -- TCP -> one server, another when that fails
//!                  <---- events ------                   Mirror, Place
//! ```
//! - `ZooKeeperLink` has the socket and keeps time. `Servers` decides which server to try next. `ProtocolSession` has the
//!   protocol, `Mirror` the known part of the tree, and `ClusterRoot` turns an operation into one request. `Comparison` finds what
//!   servers did not report, and `RequestLimit` what they answer by closing. The last five are pure.
//! - **Versions** are ZooKeeper's zxids. The version of a path is the zxid of the change that made its value, so versions have
//!   one order for the whole ensemble.
//! - **Everything is a value at a path** beneath the cluster's path. Paths above others are made as they are needed, hold no
//!   value, and are not told. A path with a value has no paths beneath it.
//! - Every path belongs to the configured user alone.
//!
//! The protocol is implemented here and not by a client library. The guarantees of [`crate::Coordinator`] depend on the order of
//! watch notifications, answers and reads on the wire, and libraries deliver these on separate paths. Libraries also consider a
//! session alive for longer than the ensemble may: here `Down` follows the process's own clock. `docs/zookeeper.md` is for
//! operators.

mod address;
mod client;
mod comparison;
#[cfg(test)]
#[path = "fake_tests.rs"]
mod fake;
mod link;
mod mirror;
mod plan;
mod protocol_session;
mod request_limit;
mod servers;

pub use address::{Credentials, Ensemble, SCHEME};
pub use client::{ClientOptions, apply_once, connect};
