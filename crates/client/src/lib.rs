//! The native client: routes are cached, every operation goes straight to the primary of its region, and
//! what can be retried without harm is retried until a deadline.
//!
//! Two handles, neither with threads of its own:
//! - [`Client`] blocks the calling thread; it can be shared by any number of threads.
//! - [`Session`] is pipelined: [`Session::submit`] batches, then [`Session::poll`] for those that are done. It
//!   belongs to one thread.
//!
//! **Two ways.** The client reaches an address `leeward://host:port`, or only `host:port`, over TCP. With
//! `leeward+ring://host:port` requests and answers go through [rings](Way::Rings) in the memory of client and node, which
//! costs the node less. Nothing else differs: the same calls, answers, retries and redirects.
//!
//! **What is retried.** Every operation is retried if its answer says that nothing was changed ([`OpError::NotPrimary`],
//! [`OpError::Recovering`], [`OpError::NotEnoughReplicas`], [`OpError::Overloaded`]), or if the request never left this
//! process. When the outcome is unknown, because the connection broke after the request was sent, the client retries
//! [reads](Op::is_repeatable) and every write with a [request id](leeward_format::request). The region recognises the id and
//! carries the write out once, whichever server is its primary by then. All writes have an id but plain puts, which have one
//! if [`ClientOptions::retry_puts`] says so. A write without an id returns [`OpError::Unknown`], and so does a write that the
//! region does not remember far enough back to be certain of; the caller must find out what happened. No write is carried out
//! twice. After [`ClientOptions::deadline`] the client returns the last error.
//!
//! ```no_run
//! use leeward_client::{Client, ClientOptions, Range};
//!
//! # fn main() -> Result<(), leeward_client::ClientError> {
//! let client = Client::connect(&["127.0.0.1:7479", "127.0.0.1:7480"], ClientOptions::default())?;
//! client.put("hello", "world")?;
//! assert_eq!(client.get("hello")?.as_deref(), Some(&b"world"[..]));
//! for entry in client.scan(Range { start: "a".into(), end: Some("z".into()), ..Range::default() }) {
//!     let (key, value) = entry?;
//!     println!("{} = {}", key.escape_ascii(), value.escape_ascii());
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod address;
pub mod admin;
mod client;
mod handshake;
mod link;
mod options;
mod ring;
mod scan;
mod session;

pub use address::{Address, Way};
pub use client::{Client, Stale};
pub use handshake::{Handshake, ask_node, shake_hands};
pub use leeward_format::cluster::{GroupConfig, Intent, RegionMap, RegionRequest, ServerInfo, TableOptions};
pub use leeward_format::op::{
    Condition, ExpireIf, Lifetime, Op, OpError, OpResult, Pair, PutOptions, Read, ReadResult, ScanRange, Written,
};
pub use leeward_format::table::{NewTable, TableChange, TableName};
pub use options::{Busy, ClientError, ClientOptions, Traffic};
pub use scan::{Range, Scan};
pub use session::{Done, Session, Ticket};
