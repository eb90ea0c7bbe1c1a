//! ZooKeeper as the coordinator: the same paths, kept by an ensemble that survives the loss of a machine.
//!
//! ```text
//! threads of the process            thread coordinator-client                   ensemble
//!   Client::submit ---- Mailbox ----> ZooKeeperLink -- Conversation -- TCP ----> one server, another when that fails
//!                  <---- events ------                   Mirror, Place
//! ```
//! - `ZooKeeperLink` has the socket and keeps time, `Servers` knows whom to try next, `Conversation` has the protocol, `Mirror`
//!   what is known of the tree, and `Place` knows how an operation becomes one request. The last three are pure.
//! - **Versions** are ZooKeeper's zxids: a path's is that of the change that made its value, so they are one order for the
//!   whole ensemble.
//! - **Everything is a value at a path** beneath the cluster's; paths above others are made as they are needed, hold no
//!   value, and are not told. A path with a value has no paths beneath it.
//! - Whatever is made belongs to the configured user alone.
//!
//! The protocol is spoken here and not by a client library, because the order on the wire, of words of the watch, answers
//! and reads, is what the promises of [`crate::Coordinator`] are made of, and libraries hand these out through separate
//! doors. They also take a session for alive for longer than the ensemble may: here `Down` follows the process's own clock.
//! `docs/zookeeper.md` is for operators.

mod address;
mod client;
mod conversation;
#[cfg(test)]
#[path = "fake_tests.rs"]
mod fake;
mod link;
mod mirror;
mod plan;
mod servers;

pub use address::{Credentials, Ensemble, SCHEME};
pub use client::{ClientOptions, apply_once, connect};
