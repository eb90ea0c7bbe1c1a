//! Operations on a range of keys that name the region to carry them out: where keys are
//! [partitioned by hash](crate::partition::Partition::Hash), each region has some of every range. Plain data.
//!
//! It is a type of its own, not an [`Op`] inside an [`Op`], so that no message nests deeper than one may decode.

use super::{Op, OpError, Read};
use crate::RegionId;
use crate::routing::Routing;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a scan reads of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRange {
    /// First key, inclusive.
    pub start: Bytes,
    /// Key after the last, exclusive; `None` for no bound.
    pub end: Option<Bytes>,
    /// From the end down to the start.
    pub reverse: bool,
    /// At most this many entries; the server may answer fewer.
    pub limit: u32,
    /// Leave the values out.
    pub keys_only: bool,
}

/// An operation on a range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RangeOp {
    /// As [`Op::Scan`].
    Scan(ScanRange),
    /// As [`Op::DeleteRange`].
    DeleteRange {
        /// First key, inclusive.
        start: Bytes,
        /// Key after the last, exclusive; `None` for no bound.
        end: Option<Bytes>,
    },
    /// As [`Op::Approximate`].
    Approximate {
        /// First key, inclusive.
        start: Bytes,
        /// Key after the last, exclusive; `None` for no bound.
        end: Option<Bytes>,
    },
}

impl RangeOp {
    /// The same for the region with this number.
    pub fn within(self, region: RegionId) -> Op {
        Op::In { region, op: self }
    }
}

impl From<RangeOp> for Op {
    fn from(op: RangeOp) -> Op {
        match op {
            RangeOp::Scan(range) => Op::Scan(range),
            RangeOp::DeleteRange { start, end } => Op::DeleteRange { start, end },
            RangeOp::Approximate { start, end } => Op::Approximate { start, end },
        }
    }
}

impl Op {
    /// What is to be done, whichever region was named for it.
    pub fn plain(self) -> Op {
        match self {
            Op::In { op, .. } => op.into(),
            op => op,
        }
    }

    /// An operation on a range of keys, for the region with this number; another is as it was.
    pub fn within(self, region: RegionId) -> Op {
        match self {
            Op::Scan(range) => RangeOp::Scan(range).within(region),
            Op::DeleteRange { start, end } => RangeOp::DeleteRange { start, end }.within(region),
            Op::Approximate { start, end } => RangeOp::Approximate { start, end }.within(region),
            op => op,
        }
    }

    /// The range of keys that it is about, if it is about one: first key, and key after the last.
    pub fn range(&self) -> Option<(&Bytes, Option<&Bytes>)> {
        match self {
            Op::Scan(ScanRange { start, end, .. })
            | Op::DeleteRange { start, end }
            | Op::Approximate { start, end }
            | Op::Stale { read: Read::Scan(ScanRange { start, end, .. }), .. } => Some((start, end.as_ref())),
            Op::In { op, .. } => match op {
                RangeOp::Scan(ScanRange { start, end, .. })
                | RangeOp::DeleteRange { start, end }
                | RangeOp::Approximate { start, end } => Some((start, end.as_ref())),
            },
            _ => None,
        }
    }

    /// It answers entries, from the last to the first.
    pub fn is_reverse(&self) -> bool {
        match self {
            Op::Scan(range) | Op::In { op: RangeOp::Scan(range), .. } | Op::Stale { read: Read::Scan(range), .. } => {
                range.reverse
            }
            _ => false,
        }
    }

    /// It is about a range of keys of which every region of `table` has some, and names none of them.
    pub fn lacks_region<R: Routing>(&self, routes: &R, table: &str) -> bool {
        let names_none = self.range().is_some() && !matches!(self, Op::In { .. });
        names_none && routes.partition(table).is_some_and(|partition| partition.is_hash())
    }

    /// What is answered to one that [lacks a region](Op::lacks_region): part of an answer would pass for all of it.
    pub fn region_missing(table: &str) -> OpError {
        OpError::Invalid(format!(
            "table {table} is partitioned by hash: a range of its keys is asked of each region by number, and the answers are \
             merged; a client that does not do so can read and write single keys only"
        ))
    }
}
