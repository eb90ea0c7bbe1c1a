//! Writes that may be asked for more than once and are carried out once.
//!
//! A client names such a write by a [`RequestId`], and uses the same id for every attempt. The write's record carries the id, so
//! a node that has the log knows that the write was carried out. The primary remembers its last ids, and answers a request that
//! it remembers instead of carrying it out again. It also remembers attempts whose condition did not hold, because an earlier
//! attempt may still be on its way.
//!
//! The primary does not remember for ever. An attempt says since when earlier ones may have been made, by an LSN that was
//! committed before any of them. The primary refuses the attempt if that is longer ago than it remembers
//! ([`OpError::Forgotten`]). So it carries out an attempt only if certainly none was carried out before.
//!
//! [`Attempts`] is the asking side's part of the rule: what to send the next time, and what an answer means. It is a value,
//! without time or randomness; clients, nodes that forward, and the simulator use the same.

use crate::op::{Op, OpError, OpResult};
use crate::record::RecordKind;
use crate::{Lsn, RegionId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a [`RequestId`] in a record.
pub const REQUEST_ID_BYTES: usize = 12;

/// Bytes of the longest end of a range that is remembered, so that what is remembered of a write is bounded.
pub const LONGEST_END: usize = 256;

/// Bytes of the longest decimal integer of 64 bits.
const LONGEST_INTEGER: usize = 20;

/// Names one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// The client, a number drawn at random: no two clients ever have the same.
    pub client: u64,
    /// Which of its requests. Short, since it stands in records: a client that comes to the end takes another number for itself.
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

    /// The one that has these bytes.
    pub fn from_bytes(bytes: &[u8; REQUEST_ID_BYTES]) -> RequestId {
        let [client, sequence] = [&bytes[..8], &bytes[8..]];
        RequestId {
            client: u64::from_le_bytes(client.try_into().expect("8 bytes")),
            sequence: u32::from_le_bytes(sequence.try_into().expect("4 bytes")),
        }
    }
}

/// The ids that one client gives, none of them twice.
#[derive(Clone, Copy, Debug)]
pub struct RequestIds(RequestId);

impl RequestIds {
    /// Those of a client with this number, drawn at random.
    pub fn new(client: u64) -> RequestIds {
        RequestIds(RequestId { client, sequence: 0 })
    }

    /// The next one.
    pub fn next_id(&mut self) -> RequestId {
        let id = self.0;
        let (sequence, is_over) = id.sequence.overflowing_add(1);
        // Far from the numbers of others, as far as one can be.
        let client = if is_over { id.client.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1 } else { id.client };
        self.0 = RequestId { client, sequence };
        id
    }
}

/// How a write is asked for that is to be carried out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Once {
    /// Its name.
    pub request: RequestId,
    /// The region that it is in, as far as the client knows: LSNs are a region's own.
    pub region: RegionId,
    /// An LSN that was committed in that region before the write was asked for the first time; 0: nothing is known.
    pub since: Lsn,
    /// An earlier attempt may have been carried out, or may still be on its way: the primary must remember the outcome of this
    /// one even if nothing is written.
    pub is_again: bool,
}

/// What a record with a request id says of the write that it was written for.
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
    /// A range of keys was removed, up to this one; empty: up to the last.
    RangeDeleted {
        /// Key after the last; `None` if it is longer than [`LONGEST_END`].
        end: Option<Bytes>,
    },
    /// Nothing was written: the condition did not hold.
    Refused {
        /// Version of the pair that there was.
        version: Option<Lsn>,
    },
}

impl Effect {
    /// That of a record of this kind and value.
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
    /// [`OpError::AnswerGone`] if the answer is not known any more: the value that the operation found, or up to which key longer
    /// than [`LONGEST_END`] a range was deleted; [`OpError::Invalid`] if another operation had the id.
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

/// The decimal integer that these bytes are.
fn integer(bytes: &[u8]) -> Option<i64> {
    let text = (bytes.len() <= LONGEST_INTEGER).then(|| std::str::from_utf8(bytes))?;
    text.ok()?.parse().ok()
}

/// What is known to be committed in regions, from answers: for [`Once::since`].
#[derive(Clone, Debug, Default)]
pub struct Heard(BTreeMap<RegionId, Lsn>);

impl Heard {
    /// A node said that everything up to `lsn` is committed. The last word counts, not the highest: should a region lose its
    /// newest writes, its LSNs are given anew.
    pub fn note(&mut self, region: RegionId, lsn: Lsn) {
        self.0.insert(region, lsn);
    }

    /// The last that was heard of a region.
    pub fn of(&self, region: RegionId) -> Lsn {
        self.get(region).unwrap_or_default()
    }

    /// [`Heard::of`], if anything was.
    pub fn get(&self, region: RegionId) -> Option<Lsn> {
        self.0.get(&region).copied()
    }
}

/// What an answer means for the client that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the answer.
    Final(OpResult),
    /// Ask again at once: nothing was done, and the next attempt will succeed.
    AtOnce,
    /// Ask again after a pause, if there is time: nothing was done for the given reason, or the outcome is unknown.
    Later(OpError),
}

/// All attempts at one operation, as far as the next one depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// `None`: it has no name, and is asked for again only if that does no harm or certainly nothing was done.
    once: Option<Once>,
    is_doubtful: bool,
}

impl Attempts {
    /// At an operation that has no name.
    pub const fn unnamed() -> Attempts {
        Attempts { once: None, is_doubtful: false }
    }

    /// At a write that has one.
    pub fn named(request: RequestId) -> Attempts {
        Attempts {
            once: Some(Once { request, region: RegionId(0), since: Lsn(0), is_again: false }),
            is_doubtful: false,
        }
    }

    /// It has a name.
    pub fn is_named(&self) -> bool {
        self.once.is_some()
    }

    /// An earlier attempt may have been carried out.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// How to ask the next time, with what was heard of its region.
    pub fn ask(&mut self, region: RegionId, heard: &Heard) -> Option<Once> {
        let once = self.once.as_mut()?;
        once.is_again = self.is_doubtful;
        if !self.is_doubtful {
            (once.region, once.since) = (region, heard.of(region));
        }
        Some(*once)
    }

    /// Something else was heard of its region than when it was asked for the last time, or it is in another.
    pub fn has_news(&self, region: RegionId, heard: &Heard) -> bool {
        self.once.is_some_and(|once| once.region != region || once.since != heard.of(region))
    }

    /// How it was asked for the last time.
    pub fn once(&self) -> Option<Once> {
        self.once
    }

    /// The last attempt was answered.
    pub fn answered(&mut self, op: &Op, result: OpResult) -> Verdict {
        match result {
            OpResult::Error(OpError::Unknown(why)) => self.lost(op, why),
            OpResult::Error(OpError::Forgotten(_)) if !self.is_doubtful => Verdict::AtOnce,
            OpResult::Error(error) if error.is_passing() => Verdict::Later(error),
            // The last attempt changed nothing, but an earlier one may have. One that is known to have changed something is no
            // doubt.
            OpResult::Error(error) if self.is_doubtful && !matches!(error, OpError::AnswerGone { .. }) => {
                Verdict::Final(OpResult::Error(OpError::Unknown(error.to_string())))
            }
            result => Verdict::Final(result),
        }
    }

    /// The outcome of the last attempt will stay unknown.
    pub fn lost(&mut self, op: &Op, why: String) -> Verdict {
        self.is_doubtful |= op.is_write();
        let error = OpError::Unknown(why);
        match self.is_named() || op.is_repeatable() {
            true => Verdict::Later(error),
            false => Verdict::Final(OpResult::Error(error)),
        }
    }

    /// The answer when there is no time for another attempt, and `error` is what the last one met.
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
