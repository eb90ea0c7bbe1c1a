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
        let bytes = match op {
            op if answers_value(op) => self.value_bytes,
            Op::Scan(_)
            | Op::In { op: RangeOp::Scan(_), .. }
            | Op::Stale { read: Read::Scan(_) | Read::ScanIn { .. }, .. } => self.page_bytes,
            _ => 0,
        };
        RESULT_BYTES + bytes
    }

    /// Learns from a result.
    pub(crate) fn learn(&mut self, result: &OpResult) {
        match result {
            OpResult::Entries { entries, .. } | OpResult::Stale { result: ReadResult::Entries { entries, .. }, .. } => {
                let bytes = entries.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
                self.page_bytes = self.page_bytes.max(bytes).min(self.most);
            }
            result => {
                let bytes = value(result).map_or(0, Bytes::len);
                self.value_bytes = self.value_bytes.max(bytes).min(self.most);
            }
        }
    }
}

/// Whether the answer to `op` may have a value.
pub(crate) fn answers_value(op: &Op) -> bool {
    match op {
        Op::Get { .. } | Op::Delete { .. } | Op::Stale { read: Read::Get { .. }, .. } => true,
        Op::GetPair { want_value, .. } | Op::Stale { read: Read::GetPair { want_value, .. }, .. } => *want_value,
        Op::Put { want_old, .. } | Op::Expire { want_old, .. } => *want_old,
        _ => false,
    }
}

/// The value in a result.
pub(crate) fn value(result: &OpResult) -> Option<&Bytes> {
    match result {
        OpResult::Value(value)
        | OpResult::Put { old: value, .. }
        | OpResult::Deleted { old: value, .. }
        | OpResult::Stale { result: ReadResult::Value(value), .. } => value.as_ref(),
        OpResult::Pair(Some(pair)) | OpResult::Stale { result: ReadResult::Pair(Some(pair)), .. } => {
            pair.value.as_ref()
        }
        _ => None,
    }
}
