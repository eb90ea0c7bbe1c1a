//! One region server: the crate that binds storage, replication, cluster and fabric into a node, and that serves clients.
//!
//! ```text
//!   Redis clients      native clients      operators           peers            coordinator
//!        |                   |                 |                 |                   |
//!   resp + commands        native            admin (HTTP)     fabric threads     client thread
//!        \___________________|                 |                 |                   |
//!                            v                 v                 v                   v
//!                     runtime: one event loop <----- channel + waker <---------------+---- job pool
//!                            |
//!                     node: routing, replication, leases, cluster agent (a state machine; no thread, clock, socket)
//! ```
//!
//! [`node`] is the single-threaded core that the simulator also drives. Everything else here is the shell around it:
//! [`runtime`] owns the threads and sockets, [`resp`] and [`commands`] speak Redis, [`native`] speaks the protocol of
//! `leeward-client` (both are a [`protocol_session::ProtocolSession`]), [`rings`] carry it through shared memory, [`admin`]
//! answers HTTP, [`users`] knows who may do what, [`metrics`] counts, [`config`] is what an operator may set.

#![forbid(unsafe_code)]

pub mod admin;
mod channel;
mod clients;
pub mod commands;
pub mod config;
mod cpu_accounting;
mod cursors;
mod descriptors;
mod dying;
mod figures;
pub mod metrics;
pub mod native;
pub mod node;
mod numbered;
mod passwords;
mod places;
pub mod protocol_session;
pub mod quota;
mod redirects;
pub mod resp;
pub mod rings;
pub mod runtime;
pub mod session_context;
pub mod settings;
mod shares;
pub mod users;

pub use config::NodeConfig;
pub use runtime::{Server, StartError, start};
