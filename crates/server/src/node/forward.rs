//! Operations for regions whose primary is another server: sent there over the control channel, answered from there.
//!
//! A read whose answer was lost is routed again. A write is not, also where that would do no harm: if its second try were
//! refused, its client would have to be told both that it was not done and that it may have been. One that was
//! certainly not carried out (the primary says that it is none) is routed again until its time is over.
//!
//! Invariant: no two processes of a server use the same id. A primary may hold an answer for seconds, and knows whom it is for by
//! server and id: if the process that asked is gone by then, the next one of that server gets it, and must not take it for the
//! answer to an operation of its own.

use super::serving::{Answer, ReplyTo};
use leeward_format::cluster::Member;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::table::TableName;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::{Nanos, Rng};
use std::collections::BTreeMap;

/// How long an operation is tried before its client is told.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// An operation that nobody has begun.
pub(super) struct Unrouted {
    pub(super) to: ReplyTo,
    pub(super) table: TableName,
    pub(super) op: Op,
    pub(super) since: Nanos,
}

/// Where an operation may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To any node that serves its region.
    Any,
    /// No further: its client wants to know of another primary.
    Direct,
    /// No further: another node sent it, which knows the region's configuration of this epoch.
    Forwarded(Epoch),
}

/// One that was sent to a server.
struct Forwarded {
    unrouted: Unrouted,
    server: ServerId,
}

/// What to do with an operation whose answer was lost or no answer.
pub(super) enum Next {
    /// Route it again.
    Again(Unrouted),
    /// Answer its client.
    Answer(Answer),
}

pub(super) struct Forwarding {
    /// Id of the message that was sent last.
    last: u64,
    sent: BTreeMap<u64, Forwarded>,
    pub(super) total: u64,
}

impl Forwarding {
    /// Nothing is sent yet by `me`, the only process that is this member.
    pub(super) fn new(me: Member) -> Forwarding {
        // Far apart: those of two lives on a volume, and those on two volumes. In a simulation, the same in every run.
        let volume = Rng::new(me.volume.0).u64();
        let last = Rng::new(volume.wrapping_add(me.incarnation.0)).u64();
        Forwarding { last, sent: BTreeMap::new(), total: 0 }
    }

    /// No answer is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// An operation goes to `server`; answers the id of its message.
    pub(super) fn send(&mut self, unrouted: Unrouted, server: ServerId) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.total += 1;
        self.sent.insert(self.last, Forwarded { unrouted, server });
        self.last
    }

    /// The answer of `server` to message `id`.
    pub(super) fn answered(&mut self, now: Nanos, server: ServerId, id: u64, result: OpResult) -> Option<Next> {
        if self.sent.get(&id)?.server != server {
            return None;
        }
        let Forwarded { unrouted, .. } = self.sent.remove(&id)?;
        let not_done = matches!(result, OpResult::Error(OpError::NotPrimary { .. }));
        if not_done && now - unrouted.since < PATIENCE {
            return Some(Next::Again(unrouted));
        }
        let result = match result {
            OpResult::Error(OpError::NotPrimary { region, .. }) => OpResult::Error(OpError::Recovering(region)),
            other => other,
        };
        Some(Next::Answer((unrouted.to, result)))
    }

    /// The link to `server` broke: whatever it has not answered may or may not be done.
    pub(super) fn lost(&mut self, server: ServerId) -> Vec<Next> {
        let ids: Vec<u64> =
            self.sent.iter().filter(|(_, forwarded)| forwarded.server == server).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.sent.remove(&id)).map(|one| without_answer(one.unrouted)).collect()
    }

    /// Gives up what was not answered in time.
    pub(super) fn expire(&mut self, now: Nanos) -> Vec<Answer> {
        let old = self.sent.extract_if(.., |_, forwarded| now - forwarded.unrouted.since >= PATIENCE);
        old.map(|(_, Forwarded { unrouted, .. })| (unrouted.to, unknown(&unrouted.op))).collect()
    }
}

fn without_answer(unrouted: Unrouted) -> Next {
    match unrouted.op.is_write() {
        true => Next::Answer((unrouted.to, unknown(&unrouted.op))),
        false => Next::Again(unrouted),
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
