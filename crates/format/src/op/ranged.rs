//! Operations on a range of keys that name their region. If keys are [partitioned by
//! hash](crate::partition::Partition::Hash), each region has a part of every range. Plain data.
//!
//! [`RangeOp`] is a type of its own, not an [`Op`] inside an [`Op`], so that messages cannot nest.

use super::{Op, OpError, Read};
use crate::RegionId;
use crate::routing::Routing;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The range and the options of a scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRange {
    /// First key, inclusive.
    pub start: Bytes,
    /// Key after the last, exclusive; `None` for no bound.
    pub end: Option<Bytes>,
    /// Descending, from the end to the start.
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
    /// This operation for one region.
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
    /// The operation without the region that it names.
    pub fn plain(self) -> Op {
        match self {
            Op::In { op, .. } => op.into(),
            op => op,
        }
    }

    /// For an operation on a range of keys: the same for one region. Other operations are unchanged.
    pub fn within(self, region: RegionId) -> Op {
        match self {
            Op::Scan(range) => RangeOp::Scan(range).within(region),
            Op::DeleteRange { start, end } => RangeOp::DeleteRange { start, end }.within(region),
            Op::Approximate { start, end } => RangeOp::Approximate { start, end }.within(region),
            op => op,
        }
    }

    /// Its range of keys, if it is about one: first key, and exclusive end.
    pub fn range(&self) -> Option<(&Bytes, Option<&Bytes>)> {
        match self {
            Op::Scan(ScanRange { start, end, .. })
            | Op::DeleteRange { start, end }
            | Op::Approximate { start, end } => Some((start, end.as_ref())),
            Op::Stale { read, .. } => read.range().map(|range| (&range.start, range.end.as_ref())),
            Op::In { op, .. } => match op {
                RangeOp::Scan(ScanRange { start, end, .. })
                | RangeOp::DeleteRange { start, end }
                | RangeOp::Approximate { start, end } => Some((start, end.as_ref())),
            },
            _ => None,
        }
    }

    /// Whether it is a scan, of one region or not.
    pub fn is_scan(&self) -> bool {
        matches!(self, Op::Scan(_) | Op::In { op: RangeOp::Scan(_), .. })
    }

    /// Whether it returns entries in descending order.
    pub fn is_reverse(&self) -> bool {
        match self {
            Op::Scan(range) | Op::In { op: RangeOp::Scan(range), .. } => range.reverse,
            Op::Stale { read, .. } => read.range().is_some_and(|range| range.reverse),
            _ => false,
        }
    }

    /// Whether it must name a region, because `table` is partitioned by hash or slots and it is about a range, but does not.
    pub fn lacks_region<R: Routing>(&self, routes: &R, table: &str) -> bool {
        let names_one = matches!(self, Op::In { .. } | Op::Stale { read: Read::ScanIn { .. }, .. });
        let names_none = self.range().is_some() && !names_one;
        names_none && routes.partition(table).is_some_and(|partition| partition.is_hash())
    }

    /// The error for an operation that [lacks a region](Op::lacks_region): a partial answer would be taken for a
    /// complete one.
    pub fn region_missing(table: &str) -> OpError {
        OpError::Invalid(format!(
            "table {table} is partitioned by hash or slots: a range of its keys is asked of each region by number, and the \
             answers are merged; a client that does not do so can read and write single keys only"
        ))
    }
}
