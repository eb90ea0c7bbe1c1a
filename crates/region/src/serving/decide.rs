//! The effect and answer of an operation on a key, given the key's current pair. The functions are pure.

use bytes::Bytes;
use leeward_format::op::{Condition, Op, OpError, OpResult, Pair};
use leeward_format::{Expiry, Lsn, MAX_VALUE_BYTES, UnixMs};

/// The current pair of a key.
#[derive(Debug, Default)]
pub struct Current {
    /// LSN of the record that was read.
    pub lsn: Lsn,
    /// The key's value and expiry, if it has a value.
    pub pair: Option<(Bytes, Option<Expiry>)>,
}

impl Current {
    /// What is current at `now`: a pair may have expired since it was looked up.
    fn at(mut self, now: UnixMs) -> Current {
        self.pair.take_if(|(_, expires)| expires.is_some_and(|expires| expires.is_over(now)));
        self
    }

    fn version(&self) -> Option<Lsn> {
        self.pair.is_some().then_some(self.lsn)
    }

    fn expires(&self) -> Option<Expiry> {
        self.pair.as_ref().and_then(|(_, expires)| *expires)
    }

    fn meets(&self, when: &Condition) -> bool {
        when.holds(self.pair.as_ref().map(|(value, _)| (self.lsn, &value[..])))
    }

    fn value(self) -> Option<Bytes> {
        self.pair.map(|(value, _)| value)
    }
}

/// The effect and answer of a write operation, given the current value.
pub enum Decision {
    /// Put this value, with this expiry, then give this answer.
    Put(Bytes, Option<Expiry>, OpResult),
    /// Delete the key, then give this answer.
    Delete(OpResult),
    /// Write nothing.
    Answer(OpResult),
}

/// What `op`, an operation on a key, comes to `now`, given the pair that was looked up for the key. The caller that
/// executes a put fills its version in.
pub fn decide(op: &Op, current: Current, now: UnixMs) -> Decision {
    let current = current.at(now);
    let (version, expires) = (current.version(), current.expires());
    match op {
        Op::Get { .. } => Decision::Answer(OpResult::Value(current.value())),
        Op::GetPair { want_value, .. } => {
            let pair = |version| Pair { version, expires, now, value: current.value().filter(|_| *want_value) };
            Decision::Answer(OpResult::Pair(version.map(pair)))
        }
        Op::Put { value, when, want_old, lifetime, .. } => {
            let done = current.meets(when);
            let answer = OpResult::Put { done, old: current.value().filter(|_| *want_old), version };
            match done {
                true => Decision::Put(value.clone(), lifetime.expiry(expires, now), answer),
                false => Decision::Answer(answer),
            }
        }
        Op::Delete { when, .. } => match (current.meets(when), version) {
            (true, Some(_)) => Decision::Delete(OpResult::Deleted { done: true, old: current.value(), version: None }),
            _ => Decision::Answer(OpResult::Deleted { done: false, old: None, version }),
        },
        Op::Expire { lifetime, when, want_old, .. } => {
            let after = lifetime.expiry(expires, now);
            let done = version.is_some() && when.holds(expires, after);
            let value = current.value();
            let answer = OpResult::Put { done, old: value.clone().filter(|_| *want_old), version };
            match value {
                Some(_) if done && after.is_some_and(|after| after.is_over(now)) => Decision::Delete(answer),
                Some(value) if done => Decision::Put(value, after, answer),
                _ => Decision::Answer(answer),
            }
        }
        Op::Add { delta, .. } => match add(current.value().as_deref(), *delta) {
            Ok(sum) => Decision::Put(Bytes::from(sum.to_string()), expires, OpResult::Integer(sum)),
            Err(message) => Decision::Answer(OpResult::Error(OpError::Invalid(message.into()))),
        },
        Op::Append { suffix, .. } => append(current.value(), suffix, expires),
        // These are answered elsewhere. One that comes here all the same is a bug, and only the one client sees its effect.
        Op::Stale { .. }
        | Op::In { .. }
        | Op::Scan(_)
        | Op::DeleteRange { .. }
        | Op::Count { .. }
        | Op::Approximate { .. }
        | Op::AcceptLoss { .. }
        | Op::CreateTable { .. }
        | Op::AlterTable { .. }
        | Op::RequestRegion { .. }
        | Op::Intend { .. }
        | Op::DropTable { .. }
        | Op::ListUsers
        | Op::ChangeUser { .. }
        | Op::RemoveUsers { .. }
        | Op::RestoreTree { .. }
        | Op::Checkpoint { .. }
        | Op::Digests { .. }
        | Op::SegmentContent { .. }
        | Op::RepairSegment { .. }
        | Op::RangeBounds { .. }
        | Op::RangeDigests(_)
        | Op::RebuildIndex { .. }
        | Op::HashIndex(_) => {
            Decision::Answer(OpResult::Error(OpError::Invalid("this is no operation on a key".into())))
        }
    }
}

fn append(current: Option<Bytes>, suffix: &[u8], expires: Option<Expiry>) -> Decision {
    let value = [current.as_deref().unwrap_or_default(), suffix].concat();
    if value.len() > MAX_VALUE_BYTES {
        let message = format!("the value would have {} bytes; the most is {MAX_VALUE_BYTES}", value.len());
        return Decision::Answer(OpResult::Error(OpError::Invalid(message)));
    }
    let length = value.len() as i64;
    Decision::Put(Bytes::from(value), expires, OpResult::Integer(length))
}

fn add(current: Option<&[u8]>, delta: i64) -> Result<i64, &'static str> {
    let text = current.map_or(Ok("0"), std::str::from_utf8);
    let number = text.ok().and_then(|text| text.parse::<i64>().ok().filter(|number| number.to_string() == text));
    let number = number.ok_or("value is not an integer or out of range")?;
    number.checked_add(delta).ok_or("increment or decrement would overflow")
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
