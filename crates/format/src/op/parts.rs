//! Parts of operations and of their results. Plain data.

use crate::manifest::SegmentKind;
use crate::user::UserName;
use crate::{Expiry, Lsn, SegmentId, UnixMs};
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// The digest of a replica's segment. It is the same on all replicas, except for segments that a backup built for
/// itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDigest {
    /// Its identity.
    pub id: SegmentId,
    /// Its kind.
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
const MAX_REMOVED: usize = 1024;

/// A list of at most [`MAX_REMOVED`] names.
pub(super) fn names<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<UserName>>, D::Error> {
    let names = Option::<Vec<UserName>>::deserialize(from)?;
    match names.as_ref().is_some_and(|names| names.len() > MAX_REMOVED) {
        true => Err(D::Error::custom(format_args!("more than {MAX_REMOVED} users"))),
        false => Ok(names),
    }
}
