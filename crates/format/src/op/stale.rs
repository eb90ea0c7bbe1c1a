//! Reads that any member of the region may answer: with a stale answer, or as of an instant after the call. Plain data.

use super::{Op, OpResult, Pair, RangeOp, ScanRange};
use crate::RegionId;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The operations that any member may answer, by the names of their [`Op`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read {
    /// See [`Op::Get`].
    Get {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
    },
    /// See [`Op::GetPair`].
    GetPair {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
        /// Answer the value as well.
        want_value: bool,
    },
    /// See [`Op::Scan`].
    Scan(ScanRange),
    /// See [`Op::In`].
    ScanIn {
        /// The range is cut to its bounds.
        region: RegionId,
        /// May reach beyond the region.
        range: ScanRange,
    },
}

impl Read {
    /// Turns `op` into an [`Op::Stale`] with this bound. Returns it unchanged if only the primary can answer it.
    pub fn stale(op: Op, at_most_ms: u32) -> Op {
        let read = match op {
            Op::Get { key } => Read::Get { key },
            Op::GetPair { key, want_value } => Read::GetPair { key, want_value },
            Op::Scan(range) => Read::Scan(range),
            Op::In { region, op: RangeOp::Scan(range) } => Read::ScanIn { region, range },
            other => return other,
        };
        Op::Stale { at_most_ms, read }
    }

    /// The operation, as the primary executes it.
    pub fn op(self) -> Op {
        match self {
            Read::Get { key } => Op::Get { key },
            Read::GetPair { key, want_value } => Op::GetPair { key, want_value },
            Read::Scan(range) => Op::Scan(range),
            Read::ScanIn { region, range } => RangeOp::Scan(range).within(region),
        }
    }

    /// The range, if it is a scan.
    pub fn range(&self) -> Option<&ScanRange> {
        match self {
            Read::Scan(range) | Read::ScanIn { range, .. } => Some(range),
            Read::Get { .. } | Read::GetPair { .. } => None,
        }
    }
}

/// The results of these reads, by the names of their [`OpResult`]s.
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
    /// The result, as the primary would return it.
    pub fn result(self) -> OpResult {
        match self {
            ReadResult::Value(value) => OpResult::Value(value),
            ReadResult::Pair(pair) => OpResult::Pair(pair),
            ReadResult::Entries { entries, resume } => OpResult::Entries { entries, resume },
        }
    }
}

impl OpResult {
    /// The result itself, and how stale it may be in milliseconds: 0 if it is not stale.
    pub fn fresh(self) -> (OpResult, u32) {
        match self {
            OpResult::Stale { age_ms, result, .. } => (result.result(), age_ms),
            other => (other, 0),
        }
    }
}
