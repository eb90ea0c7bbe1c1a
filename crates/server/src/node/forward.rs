//! Operations for regions whose primary is another server: sent there over the control channel, answered from there.
//!
//! A read whose answer was lost is routed again. A write is not, also where that would do no harm: if its second try were
//! refused, its client would have to be told both that it was not done and that it may have been. One that was
//! certainly not carried out (the primary says that it is none) is routed again until its time is over.

use super::serving::{Answer, ReplyTo};
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::table::TableName;
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// How long an operation is tried before its client is told.
const PATIENCE: Nanos = Nanos::from_secs(5);

pub(super) struct Forwarded {
    pub(super) to: ReplyTo,
    pub(super) table: TableName,
    pub(super) op: Op,
    pub(super) since: Nanos,
    server: ServerId,
}

/// What to do with an operation whose answer was lost or no answer.
pub(super) enum Next {
    /// Route it again.
    Again(Forwarded),
    /// Answer its client.
    Answer(Answer),
}

#[derive(Default)]
pub(super) struct Forwarding {
    next: u64,
    sent: BTreeMap<u64, Forwarded>,
    pub(super) total: u64,
}

impl Forwarding {
    /// An operation goes to `server`; answers the id of its message.
    pub(super) fn send(&mut self, since: Nanos, to: ReplyTo, table: TableName, op: Op, server: ServerId) -> u64 {
        self.next += 1;
        self.total += 1;
        self.sent.insert(self.next, Forwarded { to, table, op, since, server });
        self.next
    }

    /// The answer of `server` to message `id`.
    pub(super) fn answered(&mut self, now: Nanos, server: ServerId, id: u64, result: OpResult) -> Option<Next> {
        if self.sent.get(&id)?.server != server {
            return None;
        }
        let forwarded = self.sent.remove(&id)?;
        let not_done = matches!(result, OpResult::Error(OpError::NotPrimary { .. }));
        if not_done && now - forwarded.since < PATIENCE {
            return Some(Next::Again(forwarded));
        }
        let result = match result {
            OpResult::Error(OpError::NotPrimary { region, .. }) => OpResult::Error(OpError::Recovering(region)),
            other => other,
        };
        Some(Next::Answer((forwarded.to, result)))
    }

    /// The link to `server` broke: whatever it has not answered may or may not be done.
    pub(super) fn lost(&mut self, server: ServerId) -> Vec<Next> {
        let ids: Vec<u64> =
            self.sent.iter().filter(|(_, forwarded)| forwarded.server == server).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.sent.remove(&id)).map(without_answer).collect()
    }

    /// Gives up what was not answered in time.
    pub(super) fn expire(&mut self, now: Nanos) -> Vec<Answer> {
        let old = self.sent.extract_if(.., |_, forwarded| now - forwarded.since >= PATIENCE);
        old.map(|(_, forwarded)| (forwarded.to, unknown(&forwarded.op))).collect()
    }
}

fn without_answer(forwarded: Forwarded) -> Next {
    match forwarded.op.is_write() {
        true => Next::Answer((forwarded.to, unknown(&forwarded.op))),
        false => Next::Again(forwarded),
    }
}

fn unknown(op: &Op) -> OpResult {
    OpResult::Error(match op.is_write() {
        true => OpError::Unknown("the primary's answer was lost".into()),
        false => OpError::Recovering(RegionId(0)),
    })
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
