//! Answers of a region that this node serves, from the operation's end until they leave the node.
//!
//! Invariant: an answer leaves only when every LSN that it shows is acknowledged *and* the lease is held. Until then it is
//! held back ([`HeldAnswer`]). Reads that memory answers at once do not come here (`at_once`). An answer that shows nothing of the
//! region waits for nothing. Belongs to the node's thread.

use super::Serving;
use crate::request::{Answer, ReplyTo};
use leeward_format::op::{OpError, OpResult};
use leeward_format::{Lsn, RegionId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::Duration;

/// How long an answer may wait to be committed, or for the lease, before the client gets "not known".
pub(super) const OP_TIMEOUT: Nanos = Nanos::from_secs(5);

struct HeldAnswer {
    /// The last LSN that the answer shows.
    lsn: Lsn,
    to: ReplyTo,
    result: OpResult,
    is_write: bool,
    since: Nanos,
}

/// The lowest LSN is the first of a heap.
impl Ord for HeldAnswer {
    fn cmp(&self, other: &HeldAnswer) -> Ordering {
        other.lsn.cmp(&self.lsn)
    }
}

impl PartialOrd for HeldAnswer {
    fn partial_cmp(&self, other: &HeldAnswer) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for HeldAnswer {
    fn eq(&self, other: &HeldAnswer) -> bool {
        self.lsn == other.lsn
    }
}

impl Eq for HeldAnswer {}

/// Answers that have not left yet.
#[derive(Default)]
pub(super) struct Answers {
    /// Answers that wait for their LSN to be committed.
    held: BinaryHeap<HeldAnswer>,
    /// Answers whose LSN is committed. They wait for the end of the turn, for the lease, or, if they are of writes that are
    /// throttled, for the end of that.
    due: Vec<HeldAnswer>,
    /// Answers that wait for nothing.
    ready: Vec<Answer>,
    /// Until then no write is answered.
    slowed_until: Nanos,
    /// Answers up to here may leave: what is committed, and with last-flush more.
    acknowledged: Lsn,
}

impl Answers {
    /// None is left.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.due.is_empty() && self.ready.is_empty()
    }

    /// The last LSN up to which answers may leave.
    pub(super) fn acknowledged(&self) -> Lsn {
        self.acknowledged
    }

    /// Answers up to `lsn` may leave.
    pub(super) fn acknowledge(&mut self, lsn: Lsn) {
        self.acknowledged = self.acknowledged.max(lsn);
    }

    /// Answers at once. The answer shows nothing of the region.
    pub(super) fn reply(&mut self, to: ReplyTo, result: OpResult) {
        self.ready.push((to, result));
    }

    /// Gives out the answers that wait for nothing.
    pub(super) fn take_ready(&mut self, out: &mut Vec<Answer>) {
        out.append(&mut self.ready);
    }

    /// Writes are throttled, and some wait for that to end.
    pub(super) fn are_slowed(&self, now: Nanos) -> bool {
        now < self.slowed_until && !(self.held.is_empty() && self.due.is_empty())
    }

    /// Answers everything with "not known": the node has lost the primary role.
    pub(super) fn abandon(&mut self, region: RegionId, out: &mut Vec<Answer>) {
        for held in self.held.drain().chain(self.due.drain(..)) {
            out.push((held.to, lost_answer(region, held.is_write, "the node lost the primary role")));
        }
        out.append(&mut self.ready);
    }

    /// Gives up answers that have waited for too long.
    pub(super) fn expire(&mut self, now: Nanos, region: RegionId, out: &mut Vec<Answer>) {
        let mut held = std::mem::take(&mut self.held).into_vec();
        for answers in [&mut self.due, &mut held] {
            let late = answers.extract_if(.., |held| now - held.since > OP_TIMEOUT);
            out.extend(late.map(|held| (held.to, lost_answer(region, held.is_write, "not confirmed in time"))));
        }
        self.held = held.into();
    }
}

impl Serving {
    /// Holds an answer until `lsn` is committed.
    pub(super) fn hold(&mut self, now: Nanos, lsn: Lsn, to: ReplyTo, is_write: bool, result: OpResult) {
        let lsn = if planted(Bug::ServeUncommitted) && !is_write { Lsn(0) } else { lsn };
        let held = HeldAnswer { lsn, to, result, is_write, since: now };
        // What was committed once stays committed, also while the session of a member begins anew.
        match lsn <= self.answers.acknowledged {
            true => self.answers.due.push(held),
            false => self.answers.held.push(held),
        }
    }

    /// Delays answers of writes by another `pause`, so that compactions keep up.
    pub(super) fn slow_down(&mut self, now: Nanos, pause: Duration) {
        let pause = Nanos(pause.as_nanos() as u64);
        self.answers.slowed_until = self.answers.slowed_until.max(now) + pause;
        self.counters.stall_slowed_ns += pause.0;
    }

    /// Releases every committed answer, if no other node can be primary, but none of a write while writes are throttled.
    pub(super) fn release(&mut self, now: Nanos, out: &mut Vec<Answer>) {
        if !self.is_open()
            || !self.reshape.is_alone()
            || !(self.primary.holds_lease(now) || planted(Bug::SkipLeaseCheck))
        {
            return;
        }
        let is_slowed = now < self.answers.slowed_until && self.is_active();
        // While a write was held other members may have failed. A write that only the last member has is not acknowledged.
        let lacks = self.lacks_members().filter(|_| !planted(Bug::AcknowledgeBelowMinInSync));
        let id = self.id();
        let answer = |held: HeldAnswer| match &lacks {
            Some(_) if held.is_write => (held.to, lost_answer(id, true, "too few members are in sync")),
            _ => (held.to, stamped(held.result, now)),
        };
        let Answers { held, due, acknowledged, .. } = &mut self.answers;
        out.extend(due.extract_if(.., |held| !(held.is_write && is_slowed)).map(answer));
        while let Some(first) = held.peek_mut().filter(|first| first.lsn <= *acknowledged) {
            match PeekMut::pop(first) {
                held if held.is_write && is_slowed => due.push(held),
                held => out.push(answer(held)),
            }
        }
    }
}

/// An answer that has the clock gets that of now: the question had come before this turn's clock was read.
fn stamped(mut result: OpResult, now: Nanos) -> OpResult {
    if let OpResult::HashIndex(answer) = &mut result {
        answer.clock = now.0;
    }
    result
}

/// The answer to an operation that will not get a better one.
fn lost_answer(region: RegionId, is_write: bool, why: &str) -> OpResult {
    OpResult::Error(match is_write {
        true => OpError::Unknown(format!("region {region}: {why}")),
        false => OpError::Recovering(region),
    })
}
