//! The question by which a client gets, and keeps, the right to read a [hash index](crate::hash_index). Plain data.
//!
//! A client asks before its first direct read, and every few hundred milliseconds while it reads: the answer has the
//! primary's clock, which bounds what the client may use (rule R2), and a new grant if the index has changed.

use crate::RegionId;
use crate::hash_index::{Grant, Line};
use serde::{Deserialize, Serialize};

/// A client's question for a hash index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashIndexQuestion {
    /// Only its primary answers.
    pub region: RegionId,
    /// [Nonce](crate::hash_index::GrantFields::nonce) of the grant that the client has; 0: none.
    pub nonce: u64,
    /// [Version](HashIndexState::Granted) of it.
    pub version: u32,
    /// Where records begin that the client has read since it last asked: a sample. The primary evicts others first.
    #[serde(deserialize_with = "crate::bounded::at_most::<{ super::MAX_OPERATIONS }, _, _>")]
    pub read: Vec<Line>,
}

/// The answer of the region's primary to a [`HashIndexQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashIndexAnswer {
    /// The primary's clock after the question has come, in nanoseconds.
    pub clock: u64,
    /// Compared with the grant that the question names.
    pub state: HashIndexState,
}

/// Whether a hash index may be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HashIndexState {
    /// There is none: reads are requests. The client may ask again after this many milliseconds.
    None {
        /// Not earlier than that.
        again_ms: u32,
    },
    /// The client's grant is still right.
    Unchanged,
    /// The grant from now on.
    Granted {
        /// Counts the changes of the grants with this nonce.
        version: u32,
        /// Replaces the one that the client has.
        grant: Box<Grant>,
    },
}
