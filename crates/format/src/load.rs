//! The load that a server reports to the master. The master balances copies and primary roles by it.

use crate::RegionId;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The load of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLoad {
    /// Bytes of segments in use on its volume.
    pub used: u64,
    /// Declared capacity of the volume in bytes; `None`: limited only by the device.
    pub capacity: Option<u64>,
    /// Whether its volume takes writes.
    pub fullness: Fullness,
    /// The regions that it serves.
    pub regions: Vec<RegionLoad>,
}

/// Whether a volume takes writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fullness {
    /// It takes writes.
    #[default]
    HasRoom,
    /// It takes writes, and has refused some within the last minute for lack of room.
    WasFull,
    /// It takes no writes for lack of room.
    Full,
}

/// The load of a region on its primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionLoad {
    /// The reporting server is its primary.
    pub region: RegionId,
    /// Bytes of the segments of one copy, in whole segments. Segments that are shared with another region of the volume
    /// count in full: on another server the copy would need them for itself.
    pub bytes: u64,
    /// Operations a second, reads and writes, since the server's last report.
    pub ops: u64,
    /// Bytes of keys and values written a second, since then.
    pub written: u64,
    /// The part of `bytes` that is accounted to other regions of the volume: each region with a shared segment counts
    /// an equal part.
    pub shared: u64,
    /// Garbage in the rest that a split has left, and that will be collected anyway.
    pub inherited: u64,
    /// It no longer holds data of a region that was split off.
    pub is_trimmed: bool,
    /// A key with about half of the recent operations below it; `None` if there were few, or most were on few keys.
    pub middle: Option<Bytes>,
    /// Estimated bytes of keys and values. Overwritten pairs count until they are merged; unused space in segments does
    /// not.
    pub pair_bytes: u64,
}
