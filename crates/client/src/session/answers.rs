//! The replies of nodes, and what becomes of the operations that they are about: a result, or another attempt.
//!
//! Belongs to the session's thread.

use super::Session;
use crate::link::Pending;
use crate::options::ClientError;
use leeward_format::op::{Op, OpError, OpResult, Reply};
use leeward_format::request::Verdict;
use mio::Token;
use std::time::Instant;

impl Session {
    pub(super) fn receive(&mut self, token: Token, reply: Reply) {
        let now = Instant::now();
        match reply {
            Reply::Map(map) => self.take_map(token, map),
            Reply::Routes(update) => self.take_routes(token, update, now),
            Reply::Heard { regions } => regions.into_iter().for_each(|(region, lsn)| self.heard.note(region, lsn)),
            Reply::Auth { refused: None } => {}
            Reply::Auth { refused: Some(error) } => {
                self.fail(token, &error.to_string());
                if matches!(error, OpError::Unauthenticated(_) | OpError::NotPermitted(_)) {
                    self.turned_away(error);
                }
            }
            Reply::Node { .. } => self.fail(token, "answer to a question that was not asked"),
            Reply::RingOffer { .. } | Reply::RingOpen { .. } | Reply::RingRefused { .. } | Reply::RingBell { .. } => {
                self.handle_ring_reply(token, reply);
            }
            Reply::Results { id, results } => {
                if let Some(region) = self.links.get_mut(&token).and_then(|link| link.answered_about_index(id)) {
                    return self.take_index(token, (id, region), results, now);
                }
                let Some(ops) = self.links.get_mut(&token).and_then(|link| link.answered(id)) else {
                    return self.fail(token, "answer to a request that was not made");
                };
                if ops.len() != results.len() {
                    // The operations left the link with `answered`, so they are not among those `fail` sorts.
                    for pending in ops.into_iter().flatten() {
                        self.lost(pending, "an answer of another length", now);
                    }
                    return self.fail(token, "answer of another length than its request");
                }
                for (pending, result) in ops.into_iter().zip(results) {
                    if let Some(pending) = pending {
                        self.settle(pending, result, now);
                    }
                }
            }
        }
    }

    /// Handles the answer to an attempt: it is the result, unless a retry can do better.
    fn settle(&mut self, mut pending: Pending, result: OpResult, now: Instant) {
        if let (Some(direct), OpResult::Error(OpError::NotPrimary { region, .. })) = (&mut self.direct, &result) {
            direct.not_primary(*region);
        }
        let verdict = pending.attempts.answered(&pending.op, result);
        self.follow(pending, verdict, now);
    }

    /// Handles an attempt whose outcome will never be known.
    pub(super) fn lost(&mut self, mut pending: Pending, why: &str, now: Instant) {
        let verdict = pending.attempts.lost(&pending.op, why.to_string());
        self.follow(pending, verdict, now);
    }

    fn follow(&mut self, mut pending: Pending, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Final(result) => self.answer(&pending, result),
            Verdict::AtOnce if pending.attempts.has_news(self.region_of(&pending), &self.heard) => {
                self.route(pending, now);
            }
            // The answer would be the same until the session has newer routes or commit LSNs.
            Verdict::AtOnce => self.park(pending, now),
            // The primary can answer it.
            Verdict::Later(_) if pending.tries == 1 && matches!(pending.op, Op::Stale { .. }) => {
                self.route(pending, now)
            }
            Verdict::Later(error) => {
                let least = error.kind().pause();
                if !matches!(error, OpError::Unknown(_)) {
                    pending.last = Some(error);
                }
                self.park_for(pending, least, now);
            }
        }
    }

    /// The user is not let in: operations that wait are answered by the error, and so is an attempt to connect.
    fn turned_away(&mut self, error: OpError) {
        for (_, pending) in std::mem::take(&mut self.parked) {
            let result = pending.attempts.give_up(error.clone());
            self.answer(&pending, result);
        }
        self.lack = Some(ClientError::Op(error));
    }

    /// Answers an operation whose deadline has passed.
    pub(super) fn give_up(&mut self, pending: Pending) {
        let after = self.options.deadline;
        let error = match pending.last.clone() {
            _ if pending.attempts.is_doubtful() => OpError::Unknown(format!("no answer within {after:?}")),
            Some(error) => error,
            None => OpError::Unavailable(format!("no answer within {after:?}; {}", self.last_failure)),
        };
        let result = pending.attempts.give_up(error);
        self.answer(&pending, result);
    }

    fn answer(&mut self, pending: &Pending, result: OpResult) {
        let Pending { ticket, slot, .. } = *pending;
        if let Some(direct) = &mut self.direct {
            direct.ended(&pending.op);
        }
        let batch = self.batches.get_mut(&ticket).expect("an operation belongs to a batch");
        assert!(batch.results[slot].is_none(), "an operation is answered once");
        batch.results[slot] = Some(result);
        batch.missing -= 1;
        if batch.missing == 0 {
            let batch = self.batches.remove(&ticket).expect("it was there");
            self.under_way -= batch.results.len();
            self.done.push(batch.done(ticket));
        }
    }
}
