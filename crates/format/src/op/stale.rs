//! Reads that accept an answer that is not the newest, from any member of the region. Plain data.

use super::{Op, OpResult, Pair, ScanRange};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What can be read from any member: what [`Op`]s of the same names read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read {
    /// See [`Op::Get`].
    Get {
        /// The key.
        key: Bytes,
    },
    /// See [`Op::GetPair`].
    GetPair {
        /// The key.
        key: Bytes,
        /// Answer the value as well.
        want_value: bool,
    },
    /// See [`Op::Scan`].
    Scan(ScanRange),
}

impl Read {
    /// The operation as one for any member that answers what is at most so stale; as it is, if the primary alone can answer it.
    pub fn stale(op: Op, at_most_ms: u32) -> Op {
        let read = match op {
            Op::Get { key } => Read::Get { key },
            Op::GetPair { key, want_value } => Read::GetPair { key, want_value },
            Op::Scan(range) => Read::Scan(range),
            other => return other,
        };
        Op::Stale { at_most_ms, read }
    }

    /// The operation that the primary carries out for it.
    pub fn op(self) -> Op {
        match self {
            Read::Get { key } => Op::Get { key },
            Read::GetPair { key, want_value } => Op::GetPair { key, want_value },
            Read::Scan(range) => Op::Scan(range),
        }
    }
}

/// What was read: what [`OpResult`]s of the same names say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadResult {
    /// See [`OpResult::Value`].
    Value(Option<Bytes>),
    /// See [`OpResult::Pair`].
    Pair(Option<Pair>),
    /// See [`OpResult::Entries`].
    Entries {
        /// Keys with values.
        entries: Vec<(Bytes, Bytes)>,
        /// Where to continue.
        resume: Option<Bytes>,
    },
}

impl ReadResult {
    /// The same as the primary's answer to the operation inside.
    pub fn result(self) -> OpResult {
        match self {
            ReadResult::Value(value) => OpResult::Value(value),
            ReadResult::Pair(pair) => OpResult::Pair(pair),
            ReadResult::Entries { entries, resume } => OpResult::Entries { entries, resume },
        }
    }
}

impl OpResult {
    /// The answer itself, and how stale it may be, in milliseconds: 0 if the primary gave it.
    pub fn fresh(self) -> (OpResult, u32) {
        match self {
            OpResult::Stale { age_ms, result, .. } => (result.result(), age_ms),
            other => (other, 0),
        }
    }
}
