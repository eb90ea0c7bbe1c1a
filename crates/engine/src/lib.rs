//! An embedded, persistent, ordered key-value store: a sorted map of byte strings in a directory.
//!
//! It is the storage engine of Leeward, a replicated store, with threads of its own in place of a server.
//!
//! ```
//! use leeward_engine::{Db, DbOptions, ScanBounds, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let db = Db::open(directory.path(), DbOptions::default())?;
//!
//! db.put(b"wind/bay", b"4 kn")?;
//! assert_eq!(db.get(b"wind/bay")?.as_deref(), Some(&b"4 kn"[..]));
//!
//! // A batch: all of it or nothing.
//! db.write(&[Write::delete(b"wind/bay"), Write::put(b"wind/cape", b"31 kn"), Write::put(b"wind/sound", b"12 kn")])?;
//!
//! // Pairs come in the order of their keys.
//! let mut cursor = db.scan(ScanBounds { start: "wind/".into(), end: Some("wind0".into()), ..ScanBounds::default() });
//! let mut keys = Vec::new();
//! while let Some(entry) = cursor.next()? {
//!     keys.push(entry.key);
//! }
//! assert_eq!(keys, ["wind/cape", "wind/sound"]);
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! | to | use |
//! |---|---|
//! | open and close a store | [`Db::open`], [`DbOptions`], [`Db::close`] |
//! | write | [`Db::put`], [`Db::delete`], [`Db::delete_range`], and [`Db::write`] for a batch of [`Write`]s |
//! | write if a condition holds, or for some time | [`Db::put_with`], [`Db::delete_if`], [`Condition`], [`Lifetime`] |
//! | read | [`Db::get`], [`Db::get_pair`], [`Db::multi_get`] |
//! | scan, both ways | [`Db::scan`], [`ScanBounds`], [`Cursor`] |
//! | read as of one instant | [`Db::snapshot`], [`Snapshot`] |
//! | keep an instant over restarts, or copy it | [`Db::checkpoint`], [`Checkpoint`], [`Db::export_checkpoint`] |
//! | load sorted pairs | [`Db::ingest`] |
//! | watch and check it | [`Db::stats`], [`Db::approximate`], [`Db::verify`] |
//!
//! # What it guarantees
//!
//! - **Durability.** A write that was acknowledged survives the death of the process, `kill -9` included.
//!   [`DbOptions::sync`] says what a power loss may take: nothing, or the newest writes of an interval, by default one
//!   second. No write is lost while a later one survives.
//! - **Atomic writes.** A batch is executed as a whole or not at all, whatever happens. Writes have one order, and
//!   every reader sees that order. A condition is decided on the newest pair, and no other write comes between.
//! - **Snapshots.** A snapshot, a scan and a [`Db::multi_get`] each see the store as of one instant. Later writes do
//!   not change what they answer, and they do not stop writers.
//! - **Threads.** Any number of threads may use one [`Db`] at the same time, through a reference or an [`Arc`]. Readers
//!   do not wait for writers. Writers wait while compactions or flushes are behind: [`Stats::stalls`] says for how
//!   long. A store has four threads of its own.
//! - **Errors.** Whatever can fail returns an [`Error`], which says what the caller must do. A write that returns one
//!   was not acknowledged. Damaged bytes are found by their checksums and are reported, never returned. Only a bug
//!   panics.
//!
//! # Limits
//!
//! - A key has 1 to 4096 bytes ([`MAX_KEY_BYTES`]), a value up to 1 MiB ([`MAX_VALUE_BYTES`]). Keys are ordered as
//!   bytes.
//! - What a batch writes must fit one segment of each log: at most 2 MiB, by default.
//! - A scan has no limit of its own. It reads ahead by at most 128 pairs, or about 256 KiB of values.
//! - Memory is bounded by [`VolumeOptions::memory_budget`], by default 128 MiB: caches, memtables and buffers together,
//!   and not the values that a program has been given.
//! - One process at a time has a directory.
//!
//! # What it does not do
//!
//! - There are no transactions that read several keys and then write. A batch writes several keys; a condition is on
//!   one.
//! - There is one space of keys. A program that needs more puts a prefix before its keys, or opens more stores.
//! - A snapshot does not survive a restart; a checkpoint does.
//! - Nothing is encrypted without keys: see [`VolumeOptions::encryption`].
//! - The format may change before version 1.0. A store of another version is refused with [`Error::OtherVersion`].
//!
//! [`Arc`]: std::sync::Arc
#![deny(unsafe_code)]

mod budget;
mod cache;
mod log;
mod memory;
mod proof;
mod reads;
mod replica;
mod scan;
mod tree;
mod volume;

pub use cache::CacheContents;
pub use compaction::CompactionTotals;
pub use embedded::{Db, DbOptions, Pair, Stalls, Stats, SyncMode};
pub use error::{Error, Result};
pub use leeward_format::status::MemoryStatus;
pub use reads::Reach;
pub use region::{Checkpoint, CheckpointInfo, RegionStats, Write};
pub use scan::{Cursor, ScanBounds, ScanEntry};
pub use verify::{Damage, DamagedSegment, Verification};
pub use version::{Approximation, Lookup, Snapshot};
pub use volume::{Accounts, Encryption, Scarcity, VolumeOptions};

#[doc(inline)]
pub use leeward_format::cluster::{CompactionMode, Placement};
#[doc(inline)]
pub use leeward_format::manifest::LevelState;
#[doc(inline)]
pub use leeward_format::op::{Condition, Lifetime, PutOptions, Written};
#[doc(inline)]
pub use leeward_format::packed::{Codec, Compression};
#[doc(inline)]
pub use leeward_format::{ErrorKind, Expiry, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, UnixMs};
#[doc(inline)]
pub use leeward_platform::{DeviceCounters, Secrets};

// Used by Leeward's server; no promise of stability. The same is true of all other items hidden from this page.
#[doc(hidden)]
pub mod compaction;
#[doc(hidden)]
pub mod embedded;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod hash;
#[doc(hidden)]
pub mod image;
#[doc(hidden)]
pub mod memtable;
#[doc(hidden)]
pub mod region;
#[doc(hidden)]
pub mod verify;
#[doc(hidden)]
pub mod version;
#[doc(hidden)]
pub use {
    log::Tail,
    memory::{Memory, Purpose, Reservation},
    region::{AppendError, Appended, MOST_REQUESTS, Moment, PinnedBase, Region, Requests, SnapshotAt},
    replica::{Export, Replica, Stored, Unopened},
    version::SMALL_VALUE_BYTES,
    volume::{Segment, VOLUME_NAME, Volume, rekey},
};
