//! One node's data: regions on a volume, each an L0, two logs and levels of copy-on-write B+-trees in segments.
//!
//! The engine knows neither network nor replicas, and outside [`embedded`] starts no thread and reads no clock: calls
//! are synchronous, and a compaction is an object that is stepped. The program that drives the engine decides what runs where.
//!
//! - [`Volume`]: a file in segments, with the manifest of what they hold.
//! - [`Region`]: a copy that serves: writes, reads, snapshots, compactions.
//! - [`Replica`]: a copy that does not serve: that of a volume after a start, or that of a backup.
//! - [`embedded::Db`]: one region with threads of its own, as a library.
//! - [`image::Image`]: a volume that is inspected and not opened.
#![deny(unsafe_code)]

pub mod cache;
pub mod compaction;
pub mod embedded;
pub mod error;
pub mod image;
pub mod log;
pub mod memory;
pub mod memtable;
mod proof;
pub mod region;
pub mod replica;
pub mod scan;
pub mod tree;
pub mod verify;
pub mod version;
pub mod volume;

pub use error::{Error, Result};
pub use log::Tail;
pub use memory::{Memory, MemoryStats, Purpose, Reservation};
pub use region::{
    AppendError, Appended, Checkpoint, CheckpointInfo, Export, MOST_REQUESTS, Moment, PinnedBase, Region, RegionStats,
    Requests, Write,
};
pub use replica::{Replica, Stored, Unopened};
pub use scan::{Cursor, ScanBounds, ScanEntry};
pub use version::{Approximation, Lookup, Reach, SMALL_VALUE_BYTES, Snapshot};
pub use volume::{Segment, VOLUME_NAME, Volume, VolumeOptions};
