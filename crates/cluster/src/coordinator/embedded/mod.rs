//! The embedded coordinator: [`crate::Tree`] with a log, sockets and threads, for clusters on one machine.
//!
//! - [`Host`] keeps the tree. One thread owns everything: it accepts requests, makes them durable, tells every client, and
//!   expires sessions. A change is durable before any client is told of it.
//! - [`connect`] makes a process's connection to it. One thread connects, heartbeats, reconnects with the same session, and
//!   delivers [`crate::CoordinatorEvent`]s to a closure.
//! - [`reset_admin`] changes a user in the log of a host that does not run.
//!
//! There is one host and no copy of its log. While it is down, the data path continues, and no group is reconfigured.
//! `docs/formats/coordinator.md` describes the bytes.

mod client;
mod host;
mod log;
mod offline;
mod outage;
mod service;

pub use client::{ClientOptions, connect};
pub use host::{Host, HostOptions};
pub use log::HostError;
pub use offline::{ResetError, reset_admin};

#[cfg(test)]
mod tests;
