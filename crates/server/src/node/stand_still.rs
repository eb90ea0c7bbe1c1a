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
//! - While it is not known what came of the proposal nothing is written, however long that takes. It is read once that takes longer than
//!   usual, if nobody else can serve what is proposed: the leases say so of whoever would be the next primary, or of the region that has the
//!   keys then ([`Node::is_still_alone`]). A proposal alone ends no lease: the primary that is handed over releases its leases when it
//!   knows that ([`leeward_format::control::Control::Released`]).

use super::Node;
use super::serving::Serving;
use super::slot::{Holding, Slot};
use leeward_cluster::Outcome;
use leeward_engine::Tail;
use leeward_format::cluster::Member;
use leeward_format::{LogKind, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::HashSet;
use std::sync::Arc;

/// How long a region may stand until all of it is durable with every member.
const STAND_PATIENCE: Nanos = Nanos::from_millis(150);
/// How long the region is primed while more is written than can be merged; and how long a merge that goes on is waited for.
const PRIME_PATIENCE: Nanos = Nanos::from_secs(5);
const MERGE_PATIENCE: Nanos = Nanos::from_secs(30);
/// How long the coordinator's answer is waited for before reads go on without it.
const ANSWER_PATIENCE: Nanos = Nanos::from_millis(150);
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
    /// What it has come to rest for is proposed; `heir`: whom it is handed over to.
    Proposed { since: Nanos, heir: Option<ServerId> },
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
        let has_read = self.lookups.is_none() && self.unread.is_empty() && self.starved.is_empty();
        has_ended && has_answered && has_read && self.jobs == 0
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
        if matches!(self.still.stage, Stage::Still { .. } | Stage::Proposed { .. }) {
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
                (Stage::Priming { .. }, Some(Aim::HandOver(heir))) if planted(Bug::ReleaseBeforeKnown) => {
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
                (Stage::Still { .. } | Stage::Proposed { .. }, Some(_)) => {
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
                    self.still.stage = Stage::Proposed { since: now, heir: Some(heir.server) };
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
        if self.is_proposed() && *outcome != Outcome::Accepted {
            self.move_on(now);
        }
    }

    /// It is proposed what it stood still for.
    pub(super) fn is_proposed(&self) -> bool {
        matches!(self.still.stage, Stage::Proposed { .. })
    }

    /// The coordinator should long have answered.
    fn is_overdue(&self, now: Nanos) -> bool {
        matches!(self.still.stage, Stage::Proposed { since, .. } if now - since >= ANSWER_PATIENCE)
    }

    /// Reads that have queued are carried out, but for those behind a write of their key: that is not known to have been refused. What is
    /// queued behind a delete of a range stays there, and what reads many keys behind any write.
    pub(super) fn read_on_while_proposed(&mut self, now: Nanos) {
        if !self.is_alone || !self.is_overdue(now) {
            return;
        }
        let (mut written, mut is_blocked) = (HashSet::new(), false);
        for pending in std::mem::take(&mut self.behind) {
            let must_wait = match pending.op.key() {
                _ if pending.op.is_write() || is_blocked => true,
                Some(key) => written.contains(key),
                None => !written.is_empty(),
            };
            if !must_wait {
                self.start(now, pending);
                continue;
            }
            match pending.op.key() {
                Some(key) => drop(written.insert(key.clone())),
                None => is_blocked = true,
            }
            self.behind.push_back(pending);
        }
    }

    /// What it stood still for has come about.
    pub(super) fn moves_again(&mut self) {
        self.still = StandStill::NEVER;
    }
}

impl Node {
    /// Whether nobody but this node can serve any key of a region, whatever has come of a proposal of its primary: where that is a hand-over,
    /// the one that it is handed to has granted a lease that it was not released from; where keys change their region, this node has the
    /// lease of the other region too.
    pub(super) fn is_still_alone(&mut self, now: Nanos, region: RegionId) -> bool {
        let Some(serving) = self.slots.get_mut(&region).and_then(Slot::serving) else { return false };
        let Stage::Proposed { heir, .. } = serving.still.stage else { return true };
        if let Some(heir) = heir {
            return serving.primary.has_grant_of(now, heir);
        }
        let other = serving.proposed_child().or_else(|| serving.primary.merging().map(|(into, _)| into));
        let other = other.and_then(|other| self.slots.get_mut(&other)?.serving());
        other.is_some_and(|other| other.primary.holds_lease(now))
    }

    /// Regions here of which it is not known what came of their primary's last proposal to hand them over, to divide or to merge them.
    pub fn undecided(&self) -> impl Iterator<Item = RegionId> {
        let is_undecided = |slot: &&Slot| matches!(&slot.holding, Holding::Serving(serving) if serving.is_proposed());
        self.slots.values().filter(is_undecided).map(|slot| slot.id)
    }
}
