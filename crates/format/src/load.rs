//! What a server has to do, as it tells the master: what copies and offices are spread by.

use crate::RegionId;
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionLoad {
    /// The region.
    pub region: RegionId,
    /// Bytes of the segments of one copy, in whole segments. Those that it shares with another region of the volume count too: on
    /// another server it would have them for itself.
    pub bytes: u64,
    /// Operations a second, reads and writes, since the server's last word.
    pub ops: u64,
    /// Bytes of keys and values written a second, since then.
    pub written: u64,
}
