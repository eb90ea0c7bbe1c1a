//! The load of a server, as it reports it to the master, which spreads copies and primary roles by it.

use crate::RegionId;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One server's share of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLoad {
    /// Bytes of segments in use on its volume.
    pub used: u64,
    /// Bytes that the volume may reach; `None`: as far as the device lets it.
    pub capacity: Option<u64>,
    /// The regions that it serves.
    pub regions: Vec<RegionLoad>,
}

/// What one region is to the server that serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionLoad {
    /// The region.
    pub region: RegionId,
    /// Bytes of the segments of one copy, in whole segments. Those that it shares with another region of the volume count too: on
    /// another server it would have them for itself.
    pub bytes: u64,
    /// Operations a second, reads and writes, since the server's last report.
    pub ops: u64,
    /// Bytes of keys and values written a second, since then.
    pub written: u64,
    /// Of its bytes, those that other regions of the volume count: of a segment that several have, each counts an equal part.
    pub shared: u64,
    /// Of the rest, garbage that a split has left: it will be collected whether or not the region is split again.
    pub inherited: u64,
    /// It holds nothing any more of a region that was split off.
    pub is_trimmed: bool,
    /// A key with about half of the latest operations below it; none if there were few, or most were on few keys.
    pub middle: Option<Bytes>,
    /// Bytes of keys and values, about: what was overwritten and is not merged yet counts, space that segments waste does not.
    pub pair_bytes: u64,
}
