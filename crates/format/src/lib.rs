//! Every byte of Leeward that outlives a process or crosses a wire.
//!
//! Each structure has a module with its drawing, its encoder and its decoder, and a page in `docs/formats/`. Decoders
//! accept hostile bytes: they return an error, never panic, and never allocate by a length that they have not checked.
//! Nothing here does I/O, reads a clock or starts a thread.
#![forbid(unsafe_code)]

mod bounded;
pub mod cluster;
pub mod control;
pub mod coordinator;
pub mod data_key;
pub mod entries;
mod error_kind;
pub mod filter;
pub mod frame;
pub mod hash_index;
mod ids;
pub mod leaf_segment;
pub mod load;
pub mod manifest;
pub mod merge;
pub mod node;
pub mod nonces;
pub mod op;
pub mod packed;
pub mod part;
pub mod partition;
pub mod range;
pub mod record;
pub mod request;
pub mod ring;
pub mod routes;
pub mod routing;
pub mod safe_lsn;
pub mod segment;
pub mod slot;
mod stamp;
pub mod status;
pub mod superblock;
pub mod table;
pub mod user;
pub mod wire;
pub mod zookeeper;

pub use error_kind::ErrorKind;
pub use frame::DecodeError;
pub use ids::*;
pub use stamp::{Expiry, Stamp, UnixMs};
