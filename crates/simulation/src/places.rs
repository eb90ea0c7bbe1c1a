//! Which region a key is in where keys are partitioned by hash: there an operation on a range names its region. Plain data.

use bytes::Bytes;
use leeward_format::RegionId;
use leeward_format::op::{Op, RangeOp};
use leeward_format::partition::Partition;

/// How the keys of the table are divided.
#[derive(Debug)]
pub(crate) struct Places {
    partition: Partition,
    /// First tokens of the regions after the first, if there are any.
    tokens: Vec<Bytes>,
}

impl Places {
    pub(crate) fn new(partition: Partition) -> Places {
        Places { partition, tokens: partition.splits().collect() }
    }

    /// `op`, on a range that has no key but `key`: for its region, which has the number that it was given in the beginning.
    pub(crate) fn ranged(&self, key: &[u8], op: RangeOp) -> Op {
        if !self.partition.is_hash() {
            return op.into();
        }
        let place = self.partition.place(key);
        let index = self.tokens.partition_point(|token| token[..] <= place[..]);
        op.within(RegionId(index as u32 + 1))
    }
}
