//! The native client of Leeward, a replicated, persistent, ordered key-value store.
//!
//! A client knows where each region of a table is, and sends every operation straight to its primary. Until a deadline
//! it retries whatever can be retried without harm.
//!
//! ```no_run
//! use leeward_client::{Client, ClientOptions, Condition, PutOptions, Range};
//!
//! # fn main() -> Result<(), leeward_client::ClientError> {
//! // Some nodes of the cluster; `leeward dev` listens at these. The client learns the others.
//! let client = Client::connect(&["127.0.0.1:7479", "127.0.0.1:7480"], ClientOptions::default())?;
//!
//! client.put("hello", "world")?;
//! assert_eq!(client.get("hello")?.as_deref(), Some(&b"world"[..]));
//!
//! // A write on a condition.
//! let if_absent = PutOptions { when: Condition::Absent, ..PutOptions::default() };
//! assert!(!client.put_with("hello", "moon", if_absent)?.done);
//!
//! // Pairs come in the order of their keys.
//! for entry in client.scan(Range { start: "a".into(), end: Some("z".into()), ..Range::default() }) {
//!     let (key, value) = entry?;
//!     println!("{} = {}", key.escape_ascii(), value.escape_ascii());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Main types
//!
//! - [`Client`] blocks the calling thread. Clones share its connections, and any number of threads may use it.
//! - [`Session`] is pipelined: [`Session::submit`] batches of [`Op`]s, then [`Session::poll`] for those that are done.
//!   It belongs to one thread.
//! - [`ClientOptions`] has deadlines, retries, and the table. [`Client::table`] is a handle on another table.
//! - [`Range`] says what a [`Scan`] covers; [`PutOptions`], [`Condition`] and [`Lifetime`] say how a pair is written.
//! - [`Client::create_table`] makes a [`NewTable`] with [`TableOptions`]; [`Client::region_map`] shows the cluster.
//! - [`ClientError`] is why a call failed; [`OpError`] is what the cluster refused. [`ClientError::kind`] says what the caller
//!   does about it.
//! - [`Address`] names a node: `host:port` or `leeward://host:port` for TCP. With `leeward+ring://host:port` requests
//!   and answers go through [rings](RequestPath::Rings) in the memory of client and node, which costs the node less. Nothing
//!   else differs: the same calls, answers, retries and redirects. Over rings in shared memory, a client answers gets
//!   by [direct reads](ClientOptions::direct_reads) where a table allows it. `leeward+direct://host:port` insists on
//!   such rings. `leeward+tls://host:port?ca=FILE`, and the others with `+tls`, encrypt the connection, and accept only
//!   nodes whose certificates the authority in that file has signed. Rings in shared memory stay as they are: they are
//!   open to processes of the same user only. `leeward+tls://USER@host:port?ca=FILE` connects as a user of the cluster, whose
//!   password is in [`ClientOptions::password`], in `&password_file=FILE`, or in the variable `LEEWARD_PASSWORD`.
//!
//! # What it guarantees
//!
//! - **Durability.** A write that was acknowledged is on every replica in sync, or on a quorum of them, as the options
//!   of its table say.
//! - **Consistency.** Reads and writes of a key are linearizable. A read is stale only if the caller allows it:
//!   [`Client::get_stale`], [`ClientOptions::at_most_stale`].
//! - **Once.** No write is executed twice, whatever is retried.
//! - **Time.** An operation ends within [`ClientOptions::deadline`]. Then the client returns the last error.
//! - **Threads.** Neither handle has threads of its own. A connection through rings has those of its transport.
//!
//! # What is retried
//!
//! Every operation is retried if its answer says that nothing was changed and that the cause passes
//! ([`ErrorKind::RetryLater`], [`ErrorKind::AskElsewhere`]), or if the request never left this process.
//!
//! When the outcome is unknown, because the connection broke after the request was sent, the client retries
//! [reads](Op::is_repeatable) and every write with a request id. The region recognises the id and executes the write
//! once, whichever server is its primary by then. All writes have an id but plain puts, which have one if
//! [`ClientOptions::retry_puts`] says so.
//!
//! A write without an id returns [`OpError::Unknown`]. So does a write whose id the region may have forgotten. The
//! caller must find out what happened.
//!
//! # Limits
//!
//! - A key has 1 to 4096 bytes ([`MAX_KEY_BYTES`]), a value up to 1 MiB ([`MAX_VALUE_BYTES`]). Keys are ordered as
//!   bytes.
//! - [`ClientOptions::max_outstanding`] operations are in flight at most; other calls wait.
//! - A scan has no limit of its own: it fetches 512 pairs or about a MiB at a time.
//!
//! # What it does not do
//!
//! - There are no transactions over several keys. The operations of a batch succeed or fail one by one.
//! - A scan shows one instant only within a page of a region, not over regions or pages.
#![forbid(unsafe_code)]

mod access;
mod address;
mod admin;
mod client;
mod direct;
mod handshake;
mod link;
mod options;
mod ring;
mod scan;
mod session;

pub use access::{Access, read_password};
pub use address::{Address, RequestPath};
pub use client::{Client, Stale};
pub use direct::DirectStats;
pub use options::{Busy, ClientError, ClientOptions, Traffic};
pub use scan::{Range, Scan};
pub use session::{Done, Session, Ticket};

#[doc(inline)]
pub use leeward_format::cluster::{
    Acknowledge, Addressing, BackupMode, CompactionMode, GroupConfig, IndexKind, Intent, Placement, Posting, ReadPaths,
    Reads, RegionMap, RegionRequest, Scans, ServerInfo, TableOptions,
};
#[doc(inline)]
pub use leeward_format::op::{
    Condition, ExpireIf, Lifetime, Op, OpError, OpResult, Pair, PutOptions, Read, ReadResult, ScanRange, Written,
};
#[doc(inline)]
pub use leeward_format::packed::{Codec, Compression};
#[doc(inline)]
pub use leeward_format::partition::Partition;
#[doc(inline)]
pub use leeward_format::table::{NewTable, TableChange, TableName};
#[doc(inline)]
pub use leeward_format::user::{Grant, PasswordId, Presence, Rights, UserChange, UserName, UserRule, UserShown};
#[doc(inline)]
pub use leeward_format::{ErrorKind, Expiry, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, RegionId, ServerId, UnixMs};
#[doc(inline)]
pub use leeward_security::passwords::Password;

// Used by Leeward's own tools; no promise of stability.
#[doc(hidden)]
pub use handshake::Handshake;
