//! Writes that a client may send more than once, and that are executed once.
//!
//! A client gives such a write a [`RequestId`], and uses the same id for every attempt. The write's record carries the
//! id, so a node that has the log knows that the write was executed. The primary remembers recent ids, and answers a
//! request that it remembers instead of executing it again. It also remembers writes whose condition did not hold,
//! because another attempt may still be on its way.
//!
//! The primary forgets old ids. So an attempt carries an LSN that was committed before the first attempt. The primary
//! refuses the attempt if that LSN is older than what it remembers ([`OpError::Forgotten`]). So it executes an
//! attempt only if certainly none was executed before.
//!
//! [`Attempts`] is the sender's side: what to send the next time, and what an answer means. It is a value, without time
//! or randomness. Clients, forwarding nodes and the simulator use it.

use crate::op::{Op, OpError, OpResult};
use crate::record::RecordKind;
use crate::{Lsn, RegionId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a [`RequestId`] in a record.
pub const REQUEST_ID_BYTES: usize = 12;

/// Bytes of the longest end of a range that is remembered. It bounds the memory for a write.
pub const LONGEST_END: usize = 256;

/// Bytes of the longest decimal integer of 64 bits.
const LONGEST_INTEGER: usize = 20;

/// Names one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// The client, a number drawn at random: no two clients ever have the same.
    pub client: u64,
    /// Number of the request. It is short, because records hold it. After the last one the client takes another number
    /// for itself.
    pub sequence: u32,
}

impl RequestId {
    /// Its bytes in a record, little endian.
    pub fn to_bytes(self) -> [u8; REQUEST_ID_BYTES] {
        let mut bytes = [0; REQUEST_ID_BYTES];
        bytes[..8].copy_from_slice(&self.client.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Decodes [`RequestId::to_bytes`].
    pub fn from_bytes(bytes: &[u8; REQUEST_ID_BYTES]) -> RequestId {
        let [client, sequence] = [&bytes[..8], &bytes[8..]];
        RequestId {
            client: u64::from_le_bytes(client.try_into().expect("8 bytes")),
            sequence: u32::from_le_bytes(sequence.try_into().expect("4 bytes")),
        }
    }
}

/// The request ids of one client, each used once.
#[derive(Clone, Copy, Debug)]
pub struct RequestIds(RequestId);

impl RequestIds {
    /// The ids of a client with this number, which must be drawn at random.
    pub fn new(client: u64) -> RequestIds {
        RequestIds(RequestId { client, sequence: 0 })
    }

    /// The next one.
    pub fn next_id(&mut self) -> RequestId {
        let id = self.0;
        let (sequence, is_over) = id.sequence.overflowing_add(1);
        // A number that is as unlikely to be another client's as a random one.
        let client = if is_over { id.client.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1 } else { id.client };
        self.0 = RequestId { client, sequence };
        id
    }
}

/// The part of a request that makes a write be executed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Once {
    /// The same in every attempt.
    pub request: RequestId,
    /// The region of the write, as far as the client knows. `since` is an LSN of this region.
    pub region: RegionId,
    /// An LSN that was committed in that region before the first attempt; 0: none is known.
    pub since: Lsn,
    /// An earlier attempt may have been executed, or may still be on its way. So the primary must remember the
    /// outcome of this one even if nothing is written.
    pub is_again: bool,
}

/// The effect of a write with a request id, as its record shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A pair was put.
    Put {
        /// Length of its value.
        value_bytes: u32,
        /// The value, if it is a decimal integer.
        integer: Option<i64>,
    },
    /// The key was removed.
    Deleted,
    /// A range of keys was removed.
    RangeDeleted {
        /// Exclusive end, empty for no end; `None` if it is longer than [`LONGEST_END`].
        end: Option<Bytes>,
    },
    /// Nothing was written: the condition did not hold.
    Refused {
        /// Version of the existing pair.
        version: Option<Lsn>,
    },
}

impl Effect {
    /// The effect of a record with this kind and value.
    pub fn of(kind: RecordKind, value: &[u8]) -> Effect {
        match kind {
            RecordKind::Put => Effect::Put { value_bytes: value.len() as u32, integer: integer(value) },
            RecordKind::DeleteRange => {
                let end = (value.len() <= LONGEST_END).then(|| Bytes::copy_from_slice(value));
                Effect::RangeDeleted { end }
            }
            RecordKind::Refused => {
                Effect::Refused { version: value.first_chunk().map(|lsn| Lsn(u64::from_le_bytes(*lsn))) }
            }
            RecordKind::Delete | RecordKind::Ingest => Effect::Deleted,
        }
    }

    /// The answer to another attempt at `op`, which the record at `lsn` decided with this effect.
    ///
    /// # Errors
    /// [`OpError::AnswerGone`] if the answer needs what the record does not show: the value before, or a range's end
    /// that is longer than [`LONGEST_END`]. [`OpError::Invalid`] if another operation had the id.
    pub fn answer(&self, lsn: Lsn, op: &Op) -> Result<OpResult, OpError> {
        let put = |version| OpResult::Put { done: true, old: None, version };
        if let Op::Put { want_old: true, .. } | Op::Expire { want_old: true, .. } = op {
            return Err(OpError::AnswerGone { done: !matches!(self, Effect::Refused { .. }) });
        }
        Ok(match (op, self) {
            (Op::Put { .. } | Op::Expire { .. }, Effect::Refused { version }) => {
                OpResult::Put { done: false, old: None, version: *version }
            }
            (Op::Delete { .. }, Effect::Refused { version }) => {
                OpResult::Deleted { done: false, old: None, version: *version }
            }
            (Op::Put { .. } | Op::Expire { .. }, Effect::Put { .. }) => put(Some(lsn)),
            (Op::Expire { .. }, Effect::Deleted) => put(None),
            (Op::Delete { .. }, Effect::Deleted) => OpResult::Deleted { done: true, old: None, version: None },
            (Op::Add { .. }, Effect::Put { integer: Some(sum), .. }) => OpResult::Integer(*sum),
            (Op::Append { .. }, Effect::Put { value_bytes, .. }) => OpResult::Integer(i64::from(*value_bytes)),
            (Op::DeleteRange { .. }, Effect::RangeDeleted { end: None }) => {
                return Err(OpError::AnswerGone { done: true });
            }
            (Op::DeleteRange { end: wanted, .. }, Effect::RangeDeleted { end: Some(end) }) => {
                let is_all = end.is_empty() || wanted.as_ref().is_some_and(|wanted| wanted <= end);
                OpResult::RangeDeleted { resume: (!is_all).then(|| end.clone()) }
            }
            _ => return Err(OpError::Invalid("another write had this request id".into())),
        })
    }
}

/// The value of a decimal integer.
fn integer(bytes: &[u8]) -> Option<i64> {
    let text = (bytes.len() <= LONGEST_INTEGER).then(|| std::str::from_utf8(bytes))?;
    text.ok()?.parse().ok()
}

/// The commit LSNs of regions, from answers of nodes: for [`Once::since`].
#[derive(Clone, Debug, Default)]
pub struct Heard(BTreeMap<RegionId, Lsn>);

impl Heard {
    /// Notes that everything up to `lsn` is committed. The last note counts, not the highest LSN: if a region loses its
    /// newest writes, their LSNs are assigned again.
    pub fn note(&mut self, region: RegionId, lsn: Lsn) {
        self.0.insert(region, lsn);
    }

    /// The last noted LSN of a region; 0 if there is none.
    pub fn of(&self, region: RegionId) -> Lsn {
        self.get(region).unwrap_or_default()
    }

    /// The last noted LSN of a region.
    pub fn get(&self, region: RegionId) -> Option<Lsn> {
        self.0.get(&region).copied()
    }
}

/// What the client does after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Take it as the final answer.
    Final(OpResult),
    /// Retry at once: nothing was done, and the next attempt carries a newer LSN.
    AtOnce,
    /// Retry after a pause, if there is time: nothing was done for the given reason, or the outcome is unknown.
    Later(OpError),
}

/// The state of the attempts at one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// `None`: it has no request id, and is retried only if it is repeatable or certainly nothing was done.
    once: Option<Once>,
    is_doubtful: bool,
}

impl Attempts {
    /// Attempts at an operation without a request id.
    pub const fn unnamed() -> Attempts {
        Attempts { once: None, is_doubtful: false }
    }

    /// Attempts at a write with a request id.
    pub fn named(request: RequestId) -> Attempts {
        Attempts {
            once: Some(Once { request, region: RegionId(0), since: Lsn(0), is_again: false }),
            is_doubtful: false,
        }
    }

    /// Whether it has a request id.
    pub fn is_named(&self) -> bool {
        self.once.is_some()
    }

    /// Whether an earlier attempt may have been executed.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// The [`Once`] of the next attempt, in `region`; `None` without a request id.
    pub fn ask(&mut self, region: RegionId, heard: &Heard) -> Option<Once> {
        let once = self.once.as_mut()?;
        once.is_again = self.is_doubtful;
        if !self.is_doubtful {
            (once.region, once.since) = (region, heard.of(region));
        }
        Some(*once)
    }

    /// Whether its region, or the noted LSN of the region, has changed since the last attempt.
    pub fn has_news(&self, region: RegionId, heard: &Heard) -> bool {
        self.once.is_some_and(|once| once.region != region || once.since != heard.of(region))
    }

    /// The [`Once`] of the last attempt.
    pub fn once(&self) -> Option<Once> {
        self.once
    }

    /// The last attempt was answered. Returns what to do.
    pub fn answered(&mut self, op: &Op, result: OpResult) -> Verdict {
        match result {
            OpResult::Error(OpError::Unknown(why)) => self.lost(op, why),
            OpResult::Error(OpError::Forgotten(_)) if !self.is_doubtful => Verdict::AtOnce,
            OpResult::Error(error) if error.kind().is_passing() => Verdict::Later(error),
            // The last attempt changed nothing, but an earlier one may have. With `AnswerGone` the outcome is known.
            OpResult::Error(error) if self.is_doubtful && !matches!(error, OpError::AnswerGone { .. }) => {
                Verdict::Final(OpResult::Error(OpError::Unknown(error.to_string())))
            }
            result => Verdict::Final(result),
        }
    }

    /// The outcome of the last attempt will stay unknown. Returns what to do.
    pub fn lost(&mut self, op: &Op, why: String) -> Verdict {
        self.is_doubtful |= op.is_write();
        let error = OpError::Unknown(why);
        match self.is_named() || op.is_repeatable() {
            true => Verdict::Later(error),
            false => Verdict::Final(OpResult::Error(error)),
        }
    }

    /// The answer if there is no time for another attempt. `error` is that of the last one.
    pub fn give_up(&self, error: OpError) -> OpResult {
        OpResult::Error(match error {
            OpError::Unknown(_) => error,
            error if self.is_doubtful => OpError::Unknown(error.to_string()),
            error => error,
        })
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
