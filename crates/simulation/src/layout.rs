//! The region of a key where keys are partitioned by hash. There, an operation on a range names its region. Plain data.

use bytes::Bytes;
use leeward_format::RegionId;
use leeward_format::op::{Op, RangeOp};
use leeward_format::partition::Partition;

/// How the keys of the table are split.
#[derive(Debug)]
pub(crate) struct Layout {
    partition: Partition,
    /// First tokens of the regions after the first, if there are any.
    tokens: Vec<Bytes>,
}

impl Layout {
    pub(crate) fn new(partition: Partition) -> Layout {
        Layout { partition, tokens: partition.splits().collect() }
    }

    /// `op`, on a range that has no key but `key`. It names the region of the key, by the number that the table began with.
    pub(crate) fn ranged(&self, key: &[u8], op: RangeOp) -> Op {
        if !self.partition.is_hash() {
            return op.into();
        }
        let place = self.partition.place(key);
        let index = self.tokens.partition_point(|token| token[..] <= place[..]);
        op.within(RegionId(index as u32 + 1))
    }
}
