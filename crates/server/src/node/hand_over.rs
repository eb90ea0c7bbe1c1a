//! A primary gives its office up of its own accord: a planned pause of milliseconds where a failover waits for promises to run out.
//!
//! ```text
//!   No --an heir is wished for--> Priming --little is left to replay, no compaction goes on--> Standing
//!    ^                                                                                            |
//!    |-- time is over, the group changed, or the proposal was refused --------------------------- |
//!    '-------------------------------- Proposed <-- all is answered, and durable with every member'
//! ```
//! Invariants:
//! - From `Standing` on no operation is begun: they queue ([`Serving::behind`]) and are carried out here or at the heir.
//! - The proposal leaves only once nothing is left to be answered and everything is sealed, flushed and confirmed: so the promises
//!   that this primary was given are void from then on, and its volume holds nothing that others lack.
//! - While it is not known what came of the proposal nothing is answered, however long that takes.

use super::Context;
use super::serving::Serving;
use super::slot::Slot;
use leeward_cluster::Outcome;
use leeward_engine::Tail;
use leeward_format::LogKind;
use leeward_format::cluster::Member;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::sync::Arc;

/// How long a region may stand still before the proposal leaves.
const STAND_PATIENCE: Nanos = Nanos::from_millis(150);
/// How long the region is primed while more is written than can be merged; and how long a merge that goes on is waited for.
const PRIME_PATIENCE: Nanos = Nanos::from_secs(5);
const MERGE_PATIENCE: Nanos = Nanos::from_secs(30);
/// Bytes in L0s that an heir replays in a few milliseconds.
const PRIMED_BYTES: u64 = 256 << 10;
/// How long it rests after an attempt that failed, and how often that is doubled.
const FIRST_REST: Nanos = Nanos::from_millis(500);
const MAX_REST_DOUBLINGS: u32 = 6;

/// How far a primary has come with giving its office up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    /// It does not, and may not before then, after so many attempts.
    No { rest_until: Nanos, attempts: u32 },
    /// L0s are merged, so that the heir has little to replay; everything is served.
    Priming { since: Nanos, attempts: u32 },
    /// Operations queue; those under way end.
    Standing { since: Nanos, attempts: u32 },
    /// It is proposed.
    Proposed { attempts: u32 },
}

impl HandOver {
    /// No attempt was made yet.
    pub(super) const NEVER: HandOver = HandOver::No { rest_until: Nanos::ZERO, attempts: 0 };

    /// Another attempt failed. `salt` keeps regions apart that fail together.
    fn rests(now: Nanos, attempts: u32, salt: u32) -> HandOver {
        let rest = Nanos(FIRST_REST.0 << attempts.min(MAX_REST_DOUBLINGS));
        let apart = Nanos::from_millis(u64::from(salt % 16) * 20);
        HandOver::No { rest_until: now + rest + apart, attempts: attempts + 1 }
    }
}

/// What upkeep may merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merging {
    /// What is due.
    Due,
    /// L0s at once.
    Hastily,
    /// Nothing that has not begun.
    Nothing,
}

impl Serving {
    /// Operations are begun.
    pub(super) fn is_moving(&self) -> bool {
        !matches!(self.hand_over, HandOver::Standing { .. } | HandOver::Proposed { .. })
    }

    /// What may be merged now.
    pub(super) fn merging(&self, now: Nanos) -> Merging {
        match self.hand_over {
            HandOver::No { .. } => Merging::Due,
            HandOver::Priming { since, .. } if now - since < PRIME_PATIENCE && !self.is_primed() => Merging::Hastily,
            _ => Merging::Nothing,
        }
    }

    fn is_primed(&self) -> bool {
        self.region.promotion_bytes() <= PRIMED_BYTES
    }

    /// Nothing that was begun is left: every answer has left, and no job runs.
    fn is_drained(&self) -> bool {
        let has_ended = self.locked.is_empty() && self.pending.is_empty() && self.stalled.is_empty();
        let has_answered = self.held.is_empty() && self.answers.is_empty();
        has_ended && has_answered && self.lookups.is_none() && self.jobs == 0
    }

    /// All of it is durable with every member: sealed tails are let go of when they are flushed everywhere.
    fn is_flushed(&self) -> bool {
        let last = self.region.last_lsn();
        self.primary.is_with_all(last) && LogKind::APPENDED.iter().all(|log| self.region.tails(*log).is_empty())
    }

    /// It would not come to rest: it is being copied, or brings a member in sync.
    fn is_restless_inside(&self) -> bool {
        !self.exporting.is_empty() || !self.primary.joining().is_empty()
    }

    /// Goes on as before, from the next turn on; another attempt is made later.
    fn move_on(&mut self, now: Nanos, attempts: u32) {
        self.hand_over = HandOver::rests(now, attempts, self.id.0);
    }

    /// Begins to hand the office over, or comes further with it, if it should; `is_synced`: the coordinator is heard. To be called
    /// after each turn; answers whether there is something to be done in another.
    pub(super) fn advance_hand_over(&mut self, now: Nanos, is_synced: bool) -> bool {
        let is_possible = self.open && is_synced && self.primary.is_settled() && !self.region.volume().is_failed();
        let heir = self.primary.heir().filter(|_| is_possible);
        loop {
            let next = match (self.hand_over, heir) {
                (HandOver::Proposed { .. }, _) => return false,
                (HandOver::No { rest_until, attempts }, Some(_)) if now >= rest_until => {
                    HandOver::Priming { since: now, attempts }
                }
                (HandOver::No { .. }, _) => return false,
                (HandOver::Priming { attempts, .. } | HandOver::Standing { attempts, .. }, None) => {
                    // The group changed, or is about to: that was no attempt.
                    self.hand_over = HandOver::No { rest_until: now + FIRST_REST, attempts };
                    return true;
                }
                (HandOver::Priming { attempts, .. }, Some(heir)) if planted(Bug::HandOverUndrained) => {
                    self.primary.hand_over(heir);
                    HandOver::rests(now, attempts, 0)
                }
                (HandOver::Priming { since, attempts }, Some(_)) => match self.is_merging() {
                    _ if self.merging(now) == Merging::Hastily => return false,
                    is_merging if now - since > MERGE_PATIENCE && (is_merging || self.is_restless_inside()) => {
                        HandOver::rests(now, attempts, self.id.0)
                    }
                    true => return false,
                    false if self.is_restless_inside() => return false,
                    false => HandOver::Standing { since: now, attempts },
                },
                (HandOver::Standing { since, attempts }, Some(heir)) => return self.stand(now, since, attempts, heir),
            };
            self.hand_over = next;
        }
    }

    /// Comes to rest, and proposes `heir` once everything has.
    fn stand(&mut self, now: Nanos, since: Nanos, attempts: u32, heir: Member) -> bool {
        if now - since > STAND_PATIENCE {
            tracing::info!(region = %self.id, to = %heir.server, "did not come to rest in time to hand the office over");
            self.move_on(now, attempts);
            return true;
        }
        if !self.is_drained() {
            return false;
        }
        let is_sealed = |tails: Vec<Arc<Tail>>| tails.iter().all(|tail| tail.sealed());
        if !LogKind::APPENDED.iter().all(|log| is_sealed(self.region.tails(*log))) {
            self.region.seal_tails();
            return true;
        }
        if self.is_flushed() {
            let stood_us = (now - since).0 / 1_000;
            tracing::info!(region = %self.id, term = %self.term, to = %heir.server, stood_us, "hands the office over");
            self.primary.hand_over(heir);
            self.hand_over = HandOver::Proposed { attempts };
        }
        false
    }

    /// It is known what came of the primary's proposal.
    pub(super) fn proposal_ended(&mut self, now: Nanos, outcome: &Outcome) {
        self.primary.proposal_ended();
        // Accepted: the configuration that says so follows, and ends the office.
        if let HandOver::Proposed { attempts } = self.hand_over
            && *outcome != Outcome::Accepted
        {
            self.move_on(now, attempts);
        }
    }
}

impl Slot {
    /// Who should leave, as the configuration and the coordinator say now.
    pub(super) fn follow_wishes(&mut self, context: &Context) {
        let Some(config) = &self.config else { return };
        let view = context.agent.view();
        let departs = |member| Some((member, view.departs(config, member)?));
        let departing = config.members().filter_map(departs).map(|(member, intent)| (member.server, intent)).collect();
        if let Some(serving) = self.serving() {
            serving.primary.set_departing(departing);
        }
    }
}
