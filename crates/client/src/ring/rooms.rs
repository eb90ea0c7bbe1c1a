//! Guesses of the size of answers, because a slot is taken before the answer is known (Tebis 3.4.1). A slot that is too
//! small costs a round trip, one that is too large costs room in the ring. The guesses follow the largest answers so
//! far.

use bytes::Bytes;
use leeward_format::op::{Op, OpResult, RangeOp, Read, ReadResult};

/// Bytes of an answer besides its results.
const FRAME_BYTES: usize = 64;
/// Bytes of a result besides keys and values.
const RESULT_BYTES: usize = 48;

/// Largest answers so far.
pub(crate) struct AnswerSizes {
    value_bytes: usize,
    page_bytes: usize,
    most: usize,
}

impl AnswerSizes {
    /// Guesses of up to `most` bytes for each operation.
    pub(crate) fn new(most: usize) -> AnswerSizes {
        AnswerSizes { value_bytes: 256.min(most), page_bytes: 4096.min(most), most }
    }

    /// Room for an answer without results.
    pub(crate) fn least() -> usize {
        FRAME_BYTES
    }

    /// Room for the result of `op`.
    pub(crate) fn of(&self, op: &Op) -> usize {
        let old = match op {
            Op::Get { .. } | Op::Delete { .. } | Op::Stale { read: Read::Get { .. }, .. } => self.value_bytes,
            Op::GetPair { want_value, .. } | Op::Stale { read: Read::GetPair { want_value, .. }, .. }
                if *want_value =>
            {
                self.value_bytes
            }
            Op::Put { want_old: true, .. } | Op::Expire { want_old: true, .. } => self.value_bytes,
            Op::Scan(_)
            | Op::In { op: RangeOp::Scan(_), .. }
            | Op::Stale { read: Read::Scan(_) | Read::ScanIn { .. }, .. } => self.page_bytes,
            _ => 0,
        };
        RESULT_BYTES + old
    }

    /// Learns from a result.
    pub(crate) fn learn(&mut self, result: &OpResult) {
        match result {
            OpResult::Value(value)
            | OpResult::Put { old: value, .. }
            | OpResult::Deleted { old: value, .. }
            | OpResult::Stale { result: ReadResult::Value(value), .. } => self.learn_value(value.as_ref()),
            OpResult::Pair(Some(pair)) | OpResult::Stale { result: ReadResult::Pair(Some(pair)), .. } => {
                self.learn_value(pair.value.as_ref());
            }
            OpResult::Entries { entries, .. } | OpResult::Stale { result: ReadResult::Entries { entries, .. }, .. } => {
                let bytes = entries.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
                self.page_bytes = self.page_bytes.max(bytes).min(self.most);
            }
            _ => {}
        }
    }

    fn learn_value(&mut self, value: Option<&Bytes>) {
        self.value_bytes = self.value_bytes.max(value.map_or(0, Bytes::len)).min(self.most);
    }
}
