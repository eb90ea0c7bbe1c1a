//! A region comes to rest while it is served: before its office is handed over, before it is divided, and before it becomes part of its
//! neighbour. A planned pause of milliseconds where a failover waits for promises to run out.
//!
//! ```text
//!   Moving --there is an aim--> Priming --little is left to replay, no compaction goes on--> Standing
//!    ^                                                                                         |
//!    |-- time is over, the group changed, or the proposal was refused ------------------------ |
//!    '------------ Proposed <-- (Still, while a child comes about, or it is copied) <-- all is answered, and durable with every member
//! ```
//! Invariants:
//! - From `Standing` on no operation is begun: they queue ([`Serving::behind`]) and are carried out here or by who has their keys then.
//! - Past `Standing` nothing is left to be answered and everything is sealed, flushed and confirmed: so the promises that this
//!   primary was given are of use to nobody, its volume holds nothing that others lack, and all members have the same.
//! - While it is not known what came of the proposal nothing is answered, however long that takes.

use super::serving::Serving;
use leeward_cluster::Outcome;
use leeward_engine::Tail;
use leeward_format::LogKind;
use leeward_format::cluster::Member;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::sync::Arc;

/// How long a region may stand until all of it is durable with every member.
const STAND_PATIENCE: Nanos = Nanos::from_millis(150);
/// How long the region is primed while more is written than can be merged; and how long a merge that goes on is waited for.
const PRIME_PATIENCE: Nanos = Nanos::from_secs(5);
const MERGE_PATIENCE: Nanos = Nanos::from_secs(30);
/// Bytes in L0s that are replayed in a few milliseconds.
const PRIMED_BYTES: u64 = 256 << 10;
/// How long it rests after an attempt that failed, and how often that is doubled.
const FIRST_REST: Nanos = Nanos::from_millis(500);
const MAX_REST_DOUBLINGS: u32 = 6;

/// What a region comes to rest for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// This backup is to have the office.
    HandOver(Member),
    /// It becomes two.
    Divide,
    /// It becomes part of its neighbour.
    Merge,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It goes on as ever, and does not rest before then.
    Moving { rest_until: Nanos },
    /// L0s are merged, so that there is little to replay; everything is served.
    Priming { since: Nanos },
    /// Operations queue; those under way end.
    Standing { since: Nanos },
    /// Everything has ended; a child comes about, or all that it has is copied.
    Still { since: Nanos },
    /// What it has come to rest for is proposed.
    Proposed,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandStill {
    pub(super) stage: Stage,
    /// That failed, since one did not.
    attempts: u32,
    /// It rests since it could not be divided, or taken in: that keeps no office from being handed over.
    is_for_division: bool,
}

impl StandStill {
    /// No attempt was made yet.
    pub(super) const NEVER: StandStill =
        StandStill { stage: Stage::Moving { rest_until: Nanos::ZERO }, attempts: 0, is_for_division: false };

    /// No attempt has failed since one did not.
    pub(super) fn is_first(self) -> bool {
        self.attempts == 0
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
        matches!(self.still.stage, Stage::Moving { .. } | Stage::Priming { .. })
    }

    /// What may be merged now.
    pub(super) fn merging(&self, now: Nanos) -> Merging {
        match self.still.stage {
            Stage::Moving { .. } if self.unborn.is_some() => Merging::Nothing,
            Stage::Moving { .. } if self.trim.is_in_haste(&self.region) => Merging::Hastily,
            Stage::Moving { .. } => Merging::Due,
            Stage::Priming { since } if now - since < PRIME_PATIENCE && !self.is_primed() => Merging::Hastily,
            _ => Merging::Nothing,
        }
    }

    fn is_primed(&self) -> bool {
        self.region.promotion_bytes() <= PRIMED_BYTES
    }

    /// Nothing that was begun is left: every answer has left, and no job runs.
    pub(super) fn is_drained(&self) -> bool {
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
        !self.exporting.is_empty() || self.primary.joining().next().is_some()
    }

    /// Goes on as before, from the next turn on, after an attempt that failed; another is made later.
    pub(super) fn move_on(&mut self, now: Nanos) {
        let StandStill { attempts, .. } = self.still;
        let rest = Nanos(FIRST_REST.0 << attempts.min(MAX_REST_DOUBLINGS));
        // Regions that fail together are kept apart.
        let apart = Nanos::from_millis(u64::from(self.id.0 % 16) * 20);
        let stage = Stage::Moving { rest_until: now + rest + apart };
        self.still = StandStill { stage, attempts: attempts + 1, is_for_division: false };
    }

    /// [`Serving::move_on`], for at least so long, after an attempt at its plan.
    pub(super) fn stay_undivided(&mut self, now: Nanos, least: Nanos) {
        self.move_on(now);
        self.still.is_for_division = true;
        if let Stage::Moving { rest_until } = &mut self.still.stage {
            *rest_until = (*rest_until).max(now + least);
        }
    }

    /// It comes to rest, or has.
    pub(super) fn is_coming_to_rest(&self) -> bool {
        !matches!(self.still.stage, Stage::Moving { .. })
    }

    /// Whether it may come to rest at all; `is_synced`: the coordinator is heard.
    pub(super) fn can_rest(&self, is_synced: bool) -> bool {
        self.open && is_synced && self.primary.is_settled() && !self.region.volume().is_failed()
    }

    /// What it should come to rest for now, if it can.
    fn aim(&mut self, now: Nanos, is_synced: bool, obstacle: Option<&'static str>) -> Option<Aim> {
        let can_rest = self.can_rest(is_synced);
        if let Some(heir) = self.primary.heir().filter(|_| can_rest) {
            return Some(Aim::HandOver(heir));
        }
        let is_rested = matches!(self.still.stage, Stage::Moving { rest_until } if now >= rest_until);
        if is_rested {
            self.prepare_division(can_rest, obstacle);
        }
        match can_rest && obstacle.is_none() {
            true if self.is_to_be_divided() => Some(Aim::Divide),
            true if self.is_to_be_taken_in() => Some(Aim::Merge),
            _ => None,
        }
    }

    /// Begins to come to rest, or comes further with it, if it should; not for a plan if there is an `obstacle` to that. To be
    /// called after each turn; answers whether there is something to be done in another.
    pub(super) fn come_to_rest(&mut self, now: Nanos, is_synced: bool, obstacle: Option<&'static str>) -> bool {
        if matches!(self.still.stage, Stage::Still { .. } | Stage::Proposed) {
            return false;
        }
        let aim = self.aim(now, is_synced, obstacle);
        loop {
            self.still.stage = match (self.still.stage, aim) {
                (Stage::Moving { rest_until }, Some(_)) if now >= rest_until => Stage::Priming { since: now },
                (Stage::Moving { .. }, Some(Aim::HandOver(_))) if self.still.is_for_division => {
                    Stage::Priming { since: now }
                }
                (Stage::Moving { .. }, _) => return false,
                (_, None) => {
                    // The group changed, or is about to: that was no attempt.
                    self.still.stage = Stage::Moving { rest_until: now + FIRST_REST };
                    return true;
                }
                (Stage::Priming { .. }, Some(Aim::HandOver(heir))) if planted(Bug::HandOverUndrained) => {
                    self.primary.hand_over(heir);
                    self.move_on(now);
                    return false;
                }
                (Stage::Priming { since }, Some(_)) => match self.is_merging() {
                    _ if self.merging(now) == Merging::Hastily => return false,
                    is_merging if now - since > MERGE_PATIENCE && (is_merging || self.is_restless_inside()) => {
                        self.move_on(now);
                        return false;
                    }
                    true => return false,
                    false if self.is_restless_inside() => return false,
                    false => Stage::Standing { since: now },
                },
                (Stage::Standing { since }, Some(aim)) => return self.stand(now, since, aim),
                (Stage::Still { .. } | Stage::Proposed, Some(_)) => {
                    unreachable!("these do not come further by themselves")
                }
            };
        }
    }

    /// Ends what is under way; once everything has, goes on to what it is for.
    fn stand(&mut self, now: Nanos, since: Nanos, aim: Aim) -> bool {
        if now - since > STAND_PATIENCE {
            tracing::info!(region = %self.id, ?aim, "did not come to rest in time");
            self.move_on(now);
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
            match aim {
                Aim::HandOver(heir) => {
                    tracing::info!(region = %self.id, term = %self.term, to = %heir.server, stood_us, "hands the office over");
                    self.primary.hand_over(heir);
                    self.still.stage = Stage::Proposed;
                }
                Aim::Divide | Aim::Merge => self.still.stage = Stage::Still { since: now },
            }
        }
        false
    }

    /// It is known what came of the primary's proposal.
    pub(super) fn proposal_ended(&mut self, now: Nanos, outcome: &Outcome) {
        self.primary.proposal_ended();
        // Accepted: the configuration that says so follows, and ends the office.
        if self.still.stage == Stage::Proposed && *outcome != Outcome::Accepted {
            self.move_on(now);
        }
    }

    /// What it stood still for has come about.
    pub(super) fn moves_again(&mut self) {
        self.still = StandStill::NEVER;
    }
}
