//! A region quiesces while it is served: before its primary role is transferred, before it is split, and before it is merged
//! into its neighbour. This is a planned pause of milliseconds. A failover instead waits until lease grants run out.
//!
//! ```text
//!   Active --there is a reason--> Priming --little is left to replay, no compaction runs--> Draining
//!    ^                                                                                      |
//!    |-- timeout, the group changed, or the proposal was refused -------------------------- |
//!    |                                                                                      |
//!    '-- Proposed <-- (Quiesced: a child is built, or the region is copied) <-- all is answered, and durable with every member
//! ```
//! A transfer's target that builds its own index has L0s of its own. It is asked to compact them while the region primes, and
//! counts as "replay" too.
//!
//! Invariants:
//! - From `Draining` on no operation begins. Operations queue (`Queues::behind`), and so do writes that wait for room. This
//!   node executes them later, or the node that has their keys by then.
//! - After `Draining` nothing is left to be answered, and everything is sealed, flushed and confirmed. So nothing depends any
//!   more on the lease grants that this primary was given, its volume holds nothing that others lack, and all members have the
//!   same data. They have installed the same compactions before `Draining`, so that no segment must be shipped for a child.
//! - While the outcome of the proposal is unknown the region is not written, however long that takes. Reads resume once it
//!   takes longer than usual, if no other node can serve what is proposed. The leases of the transfer target, or of the region
//!   that would have the keys, prove that ([`Serving::doubt`]).
//! - A proposal alone ends no lease. A primary that hands its role over releases its leases when it knows that the transfer was
//!   accepted ([`leeward_format::control::Control::Released`]).

use crate::serving::Serving;
use leeward_engine::Tail;
use leeward_format::cluster::Member;
use leeward_format::{LogKind, RegionId, ServerId};
use leeward_platform::planted::{Bug, planted};
use leeward_platform::{Backoff, Nanos};
use std::sync::Arc;

/// How long a region may pause until all of it is durable with every member.
const DRAIN_TIMEOUT: Nanos = Nanos::from_millis(150);
/// How long priming lasts while clients write more than compactions keep up with.
const PRIME_TIMEOUT: Nanos = Nanos::from_secs(5);
/// How long the region waits for a compaction that runs already.
const COMPACTION_TIMEOUT: Nanos = Nanos::from_secs(30);
/// How long reads wait for the coordinator's answer before they resume without it.
const ANSWER_TIMEOUT: Nanos = Nanos::from_millis(150);
/// A promotion replays so many bytes of L0s in a few milliseconds.
pub(crate) const PRIMED_BYTES: u64 = 256 << 10;
/// The backoff after failed attempts, and the first one.
const BACKOFF: Backoff = Backoff { first: FIRST_BACKOFF, most: Nanos::from_secs(32) };
const FIRST_BACKOFF: Nanos = Nanos::from_millis(500);

/// Why a region quiesces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuiesceReason {
    /// This backup is to become the primary.
    HandOver(Member),
    /// The region is split in two.
    Split,
    /// The region is merged into its neighbour.
    Merge,
}

/// How far a region has come with quiescing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The region serves as usual. It does not quiesce before `backoff_until`.
    Active { backoff_until: Nanos },
    /// Compactions empty the L0s, so that there is little to replay. Everything is served.
    Priming { since: Nanos },
    /// New operations queue. Those under way end.
    Draining { since: Nanos },
    /// All operations have ended. A child is built, or the region's pairs are copied.
    Quiesced { since: Nanos },
    /// The transfer, the split or the merge is proposed. `transfer_target`: the server that a transfer makes the primary.
    Proposed { since: Nanos, transfer_target: Option<ServerId> },
}

/// How far a region has quiesced, and which attempts failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiesce {
    pub(crate) stage: Stage,
    /// Failed attempts since the last one that succeeded.
    failures: u32,
    /// The backoff follows a split or a merge that failed. It does not delay a transfer of the primary role.
    is_for_plan: bool,
}

impl Quiesce {
    /// No attempt was made yet.
    pub(super) const NEVER: Quiesce =
        Quiesce { stage: Stage::Active { backoff_until: Nanos::ZERO }, failures: 0, is_for_plan: false };

    /// No attempt has failed since the last one that succeeded.
    pub(crate) fn is_first(self) -> bool {
        self.failures == 0
    }
}

/// Which compactions upkeep may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionUrgency {
    /// Those that are due.
    Due,
    /// Those of L0s, at once.
    Immediate,
    /// None. A compaction that runs already continues.
    Paused,
}

impl Serving {
    /// Operations begin when they are submitted.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.reshape().quiesce.stage, Stage::Active { .. } | Stage::Priming { .. })
    }

    /// Which compactions may begin now.
    pub(crate) fn compaction_urgency(&self, now: Nanos) -> CompactionUrgency {
        match self.reshape().quiesce.stage {
            Stage::Active { .. } if self.reshape().pending_child.is_some() => CompactionUrgency::Paused,
            Stage::Active { .. } if self.reshape().trim.is_urgent(self.region()) => CompactionUrgency::Immediate,
            Stage::Active { .. } => CompactionUrgency::Due,
            Stage::Priming { since } if now - since < PRIME_TIMEOUT && !self.is_primed() => {
                CompactionUrgency::Immediate
            }
            _ => CompactionUrgency::Paused,
        }
    }

    /// Little is left to replay; or compactions have no room, and the more is replayed.
    fn is_primed(&self) -> bool {
        self.region().promotion_bytes() <= PRIMED_BYTES || self.region().volume().why_full().is_some()
    }

    /// Whether the target of a transfer has little to replay. One that builds its own index has L0s of its own, and is asked
    /// to compact them. That is over when priming is, or has taken too long.
    fn is_target_primed(&mut self, now: Nanos, since: Nanos, reason: QuiesceReason) -> bool {
        let QuiesceReason::HandOver(target) = reason else { return true };
        now - since >= PRIME_TIMEOUT || self.primary_mut().prime(target, false)
    }

    /// All of the region is durable with every member. The engine releases a sealed tail once every member has flushed it.
    fn is_flushed(&self) -> bool {
        let last = self.region().last_lsn();
        self.primary().is_with_all(last) && LogKind::APPENDED.iter().all(|log| self.region().tails(*log).is_empty())
    }

    /// Ends an attempt that failed. The region serves as before from the next turn on, and tries again after a backoff.
    fn abort_quiesce(&mut self, now: Nanos) {
        self.resume_direct_reads();
        let Quiesce { failures, .. } = self.reshape().quiesce;
        let backoff = BACKOFF.after(failures);
        // Regions that fail together try again at different times.
        let spread = Nanos::from_millis(u64::from(self.id().0 % 16) * 20);
        let stage = Stage::Active { backoff_until: now + backoff + spread };
        self.reshape_mut().quiesce = Quiesce { stage, failures: failures + 1, is_for_plan: false };
    }

    /// [`Serving::abort_quiesce`] after an attempt to split or merge the region, with a backoff of at least `least`.
    pub(super) fn abort_plan(&mut self, now: Nanos, least: Nanos) {
        self.abort_quiesce(now);
        self.reshape_mut().quiesce.is_for_plan = true;
        if let Stage::Active { backoff_until } = &mut self.reshape_mut().quiesce.stage {
            *backoff_until = (*backoff_until).max(now + least);
        }
    }

    /// The region is quiescing, or has quiesced.
    pub(super) fn is_quiescing(&self) -> bool {
        !matches!(self.reshape().quiesce.stage, Stage::Active { .. })
    }

    /// Whether the region may quiesce at all. `is_synced`: this node hears the coordinator.
    pub fn can_quiesce(&self, is_synced: bool) -> bool {
        self.is_open() && is_synced && self.primary().is_settled() && !self.region().volume().is_failed()
    }

    /// Why the region should quiesce now, if it should and can.
    fn quiesce_reason(&mut self, now: Nanos, is_synced: bool, obstacle: Option<&'static str>) -> Option<QuiesceReason> {
        let can_quiesce = self.can_quiesce(is_synced);
        if let Some(target) = self.primary().transfer_target().filter(|_| can_quiesce) {
            return Some(QuiesceReason::HandOver(target));
        }
        let is_backoff_over =
            matches!(self.reshape().quiesce.stage, Stage::Active { backoff_until } if now >= backoff_until);
        if is_backoff_over {
            self.prepare_split(can_quiesce, obstacle);
        }
        match can_quiesce && obstacle.is_none() {
            true if self.is_to_be_split() => Some(QuiesceReason::Split),
            true if self.is_to_be_merged() => Some(QuiesceReason::Merge),
            _ => None,
        }
    }

    /// Begins to quiesce, or advances, if the region should. An `obstacle` rules out a split or a merge, but no transfer. To be
    /// called after each turn. Answers whether another turn has something to do.
    pub(crate) fn quiesce(&mut self, now: Nanos, is_synced: bool, obstacle: Option<&'static str>) -> bool {
        if matches!(self.reshape().quiesce.stage, Stage::Quiesced { .. } | Stage::Proposed { .. }) {
            return false;
        }
        let reason = self.quiesce_reason(now, is_synced, obstacle);
        loop {
            self.reshape_mut().quiesce.stage = match (self.reshape().quiesce.stage, reason) {
                (Stage::Active { backoff_until }, Some(reason))
                    if now >= backoff_until
                        || self.reshape().quiesce.is_for_plan && matches!(reason, QuiesceReason::HandOver(_)) =>
                {
                    if let QuiesceReason::HandOver(target) = reason {
                        self.primary_mut().prime(target, true);
                    }
                    Stage::Priming { since: now }
                }
                (Stage::Active { .. }, _) => return false,
                (_, None) => {
                    // The group changed, or is about to. That does not count as a failed attempt.
                    self.resume_direct_reads();
                    self.reshape_mut().quiesce.stage = Stage::Active { backoff_until: now + FIRST_BACKOFF };
                    return true;
                }
                (Stage::Priming { .. }, Some(QuiesceReason::HandOver(target))) if planted(Bug::ReleaseBeforeKnown) => {
                    self.primary_mut().hand_over(target);
                    self.abort_quiesce(now);
                    return false;
                }
                (Stage::Priming { since }, Some(reason)) => match self.is_compacting() {
                    _ if self.compaction_urgency(now) == CompactionUrgency::Immediate => return false,
                    _ if !self.is_target_primed(now, since, reason) => return false,
                    is_compacting if now - since > COMPACTION_TIMEOUT && (is_compacting || self.is_being_copied()) => {
                        self.abort_quiesce(now);
                        return false;
                    }
                    true => return false,
                    false if self.is_being_copied() => return false,
                    false => {
                        self.stop_direct_reads();
                        Stage::Draining { since: now }
                    }
                },
                (Stage::Draining { since }, Some(reason)) => return self.finish_drain(now, since, reason),
                (Stage::Quiesced { .. } | Stage::Proposed { .. }, Some(_)) => {
                    unreachable!("these do not advance by themselves")
                }
            };
        }
    }

    /// Ends what is under way. Once everything has ended, begins the change that the region quiesces for.
    fn finish_drain(&mut self, now: Nanos, since: Nanos, reason: QuiesceReason) -> bool {
        if now - since > DRAIN_TIMEOUT {
            tracing::info!(region = %self.id(), ?reason, "did not quiesce in time");
            self.abort_quiesce(now);
            return true;
        }
        self.defer_stalled(now);
        if !self.is_drained() {
            return false;
        }
        let is_sealed = |tails: Vec<Arc<Tail>>| tails.iter().all(|tail| tail.sealed());
        if !LogKind::APPENDED.iter().all(|log| is_sealed(self.region().tails(*log))) {
            self.region().seal_tails();
            return true;
        }
        if self.is_flushed() {
            let paused_us = (now - since).0 / 1_000;
            match reason {
                QuiesceReason::HandOver(target) => {
                    tracing::info!(
                        region = %self.id(), term = %self.term(), to = %target.server, paused_us, "hands the primary role over"
                    );
                    self.primary_mut().hand_over(target);
                    self.reshape_mut().quiesce.stage =
                        Stage::Proposed { since: now, transfer_target: Some(target.server) };
                }
                QuiesceReason::Split | QuiesceReason::Merge => {
                    self.reshape_mut().quiesce.stage = Stage::Quiesced { since: now }
                }
            }
        }
        false
    }

    /// The outcome of the primary's proposal is known.
    pub(crate) fn proposal_ended(&mut self, now: Nanos, is_accepted: bool) {
        self.primary_mut().proposal_ended();
        // Accepted: the configuration that says so follows, and ends this node's primary role.
        if self.is_proposed() && !is_accepted {
            self.abort_quiesce(now);
        }
    }

    /// Whether the change that the region quiesced for is proposed.
    pub fn is_proposed(&self) -> bool {
        matches!(self.reshape().quiesce.stage, Stage::Proposed { .. })
    }

    /// The coordinator has not answered the proposal within the usual time.
    pub(crate) fn is_overdue(&self, now: Nanos) -> bool {
        matches!(self.reshape().quiesce.stage, Stage::Proposed { since, .. } if now - since >= ANSWER_TIMEOUT)
    }

    /// Ends the quiesce: the change that the region quiesced for is done.
    pub(super) fn resume_service(&mut self) {
        self.reshape_mut().quiesce = Quiesce::NEVER;
    }

    /// On what it depends whether another node can serve a key of the region, as the outcome of a proposal is not known.
    pub fn doubt(&self, now: Nanos) -> Doubt {
        let Stage::Proposed { transfer_target, .. } = self.reshape().quiesce.stage else { return Doubt::None };
        if let Some(target) = transfer_target {
            return if self.primary().has_grant_of(now, target) { Doubt::None } else { Doubt::Certain };
        }
        let other = self.proposed_child().or_else(|| self.primary().merging().map(|(into, _)| into));
        other.map_or(Doubt::Certain, Doubt::LeaseOf)
    }
}

/// Whether another node can serve a key of a region, whatever the outcome of its primary's proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// None can. Where the proposal is a transfer, the target has granted this node a lease, and was not released from it.
    None,
    /// None can if this node holds the lease of that region, to which keys would go or from which they came.
    LeaseOf(RegionId),
    /// One may.
    Certain,
}
