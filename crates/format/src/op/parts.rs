//! Parts of operations and of their results. Plain data.

use crate::manifest::SegmentKind;
use crate::{Expiry, Lsn, SegmentId, UnixMs};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The digest of a replica's segment. It is the same on all replicas, except for segments that a backup built for
/// itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDigest {
    /// [`Op::SegmentContent`](super::Op::SegmentContent) takes it.
    pub id: SegmentId,
    /// Log, leaves, or the nodes above leaf segments.
    pub kind: SegmentKind,
    /// Bytes in use.
    pub bytes: u32,
    /// CRC-32C of its bytes, with pointers as in logical addressing; 0 if it is damaged.
    pub crc: u32,
    /// The damage, if it has any.
    pub damage: Option<String>,
}

/// Version, expiry and value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// LSN of the put: another put of the key has a higher one.
    pub version: Lsn,
    /// When it expires, if it does.
    pub expires: Option<Expiry>,
    /// Time of the read by the primary's clock.
    pub now: UnixMs,
    /// The value, if it was asked for.
    pub value: Option<Bytes>,
}

/// Most users that one operation removes.
pub(super) const MAX_REMOVED: usize = 1024;
