//! How large an answer will be: a guess, since its slot is taken before it is known (Tebis 3.4.1). One that was too small
//! costs a round trip, one that is too large costs room in the ring; answers teach it.

use leeward_format::op::{Op, OpResult, RangeOp};

/// What an answer takes besides the results, in bytes.
const FRAME_BYTES: usize = 64;
/// What a result takes besides keys and values, in bytes.
const RESULT_BYTES: usize = 48;

/// Largest answers so far.
pub(crate) struct Rooms {
    value_bytes: usize,
    page_bytes: usize,
    most: usize,
}

impl Rooms {
    /// Guesses up to `most` bytes an operation.
    pub(crate) fn new(most: usize) -> Rooms {
        Rooms { value_bytes: 256.min(most), page_bytes: 4096.min(most), most }
    }

    /// Room for an answer without results.
    pub(crate) fn least() -> usize {
        FRAME_BYTES
    }

    /// Room for the result of `op`.
    pub(crate) fn of(&self, op: &Op) -> usize {
        let old = match op {
            Op::Get { .. } | Op::Delete { .. } => self.value_bytes,
            Op::GetPair { want_value: true, .. } => self.value_bytes,
            Op::Put { want_old: true, .. } | Op::Expire { want_old: true, .. } => self.value_bytes,
            Op::Scan(_) | Op::In { op: RangeOp::Scan(_), .. } => self.page_bytes,
            _ => 0,
        };
        RESULT_BYTES + old
    }

    /// Learns from a result.
    pub(crate) fn learn(&mut self, result: &OpResult) {
        let value = |value: &Option<bytes::Bytes>| value.as_ref().map_or(0, |value| value.len());
        match result {
            OpResult::Value(found) => self.value_bytes = self.value_bytes.max(value(found)),
            OpResult::Put { old, .. } | OpResult::Deleted { old, .. } => {
                self.value_bytes = self.value_bytes.max(value(old));
            }
            OpResult::Pair(Some(pair)) => self.value_bytes = self.value_bytes.max(value(&pair.value)),
            OpResult::Entries { entries, .. } => {
                let bytes = entries.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
                self.page_bytes = self.page_bytes.max(bytes);
            }
            _ => {}
        }
        (self.value_bytes, self.page_bytes) = (self.value_bytes.min(self.most), self.page_bytes.min(self.most));
    }
}
