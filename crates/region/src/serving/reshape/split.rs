//! A served region as the parent of a split, and as a child that is not active yet.
//!
//! Belongs to the thread of the region. How the two act together is the node's.

use super::quiesce::{QuiesceReason, Stage};
use super::trim::Trim;
use crate::effects::{Effect, Step};
use crate::job::{Outcome, ReshapeDone};
use crate::serving::Serving;
use bytes::Bytes;
use leeward_engine::{Error, Region};
use leeward_format::cluster::{GroupConfig, Plan};
use leeward_format::{Epoch, RegionId, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use leeward_replication::peer::PeerState;
use std::sync::Arc;

/// How far the primary of a region that is to be split has come.
#[derive(Debug, Default)]
pub struct Split {
    /// The child of the plan, and its first key.
    key: Option<(RegionId, Bytes)>,
    /// A job looks for a key.
    is_choosing: bool,
    /// Epoch of the configuration in which the last attempt began.
    tried: Epoch,
    /// Since when a job makes a child, while the parent is quiesced for it.
    begun: Option<Nanos>,
    /// How long after a failed attempt lease grants to its child last. They are in the way of another attempt.
    grants_last: Nanos,
    /// What the split waits for.
    waits_for: Option<&'static str>,
    /// Why the last attempt failed.
    failed: Option<String>,
}

impl Split {
    /// Where the region will be split, as far as that is known.
    pub(crate) fn key(&self) -> Option<&Bytes> {
        self.key.as_ref().map(|(_, key)| key)
    }

    /// An attempt has failed, for the reason `why`. Answers how long the next one must wait at least.
    pub(super) fn fail(&mut self, why: String) -> Nanos {
        let Split { tried, is_choosing, begun, grants_last, .. } = *self;
        *self = Split { tried, is_choosing, failed: Some(why), ..Split::default() };
        if begun.is_some() && !planted(Bug::ReuseTerm) { grants_last } else { Nanos::ZERO }
    }

    /// Why the region is not split yet, if anything keeps it from that.
    pub(crate) fn why(&self) -> Option<String> {
        self.waits_for.map(str::to_owned).or_else(|| self.failed.clone())
    }
}

/// A child that is not active yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingChild {
    /// The region that it is split from.
    pub parent: RegionId,
    /// The term of its primary.
    pub term: Epoch,
    /// An id above those of all segments that parent and child share.
    pub(crate) below: SegmentId,
}

/// What a region that is quiesced for a split waits for.
pub enum SplitStep {
    /// Its child is to be made.
    Begin(RegionId),
    /// Its child is to be in sync with every member.
    Propose(RegionId),
    /// The child was not ready in time.
    Late(RegionId),
    /// The attempt is over, for this reason.
    Fail(String),
}

/// How long the child may take until it is in sync everywhere, while the parent is quiesced.
const CHILD_TIMEOUT: Nanos = Nanos::from_secs(1);

/// The last lease grant to the child of a failed attempt ends at most a lease and so long after the attempt: each tick looks
/// for its end.
const GRANTS_END: Nanos = Nanos::from_millis(100);

/// An attempt that ends early is no fault. With the planted bug that makes it one, the first attempt always ends early.
fn child_timeout(is_first: bool) -> Nanos {
    if is_first && planted(Bug::ReuseTerm) { Nanos::from_millis(6) } else { CHILD_TIMEOUT }
}

impl Serving {
    /// The next step of the split for which the region is quiesced; `None`: it is not.
    pub fn next_split_step(&self, now: Nanos, is_synced: bool) -> Option<SplitStep> {
        let Stage::Quiesced { since } = self.reshape().quiesce.stage else { return None };
        if self.primary().merging().is_some() {
            return None;
        }
        let Split { begun, tried, .. } = self.reshape().split;
        let is_late = now - since > child_timeout(self.reshape().quiesce.is_first());
        Some(match self.primary().planned() {
            _ if !self.can_quiesce(is_synced) => {
                SplitStep::Fail("its group is changing, or the coordinator is not heard".into())
            }
            // The pending child has the term that follows the epoch in which the attempt began.
            _ if begun.is_some() && self.primary().config().epoch != tried => {
                SplitStep::Fail("its configuration changed meanwhile".into())
            }
            None => SplitStep::Fail("the plan was cancelled".into()),
            Some((_, Some(why))) => SplitStep::Fail(why.to_owned()),
            Some((child, None)) if is_late => SplitStep::Late(child),
            Some((child, None)) if begun.is_none() => SplitStep::Begin(child),
            Some((child, None)) => SplitStep::Propose(child),
        })
    }

    /// The configurations of this region and of `child` after the split, as far as they are known. The region quiesces only with
    /// a key.
    pub fn halves(&self, child: RegionId, below: SegmentId) -> (GroupConfig, GroupConfig) {
        let key = self.reshape().split.key().expect("it quiesces only with a key").clone();
        self.primary().config().split(key, child, below)
    }

    /// A job makes the child from now on. Answers what it is made of. The job is the child's, and
    /// [`ReshapeDone::ParentSplit`] follows here.
    pub fn begin_split(&mut self, now: Nanos, lease: Nanos) -> Arc<Region> {
        let epoch = self.primary().config().epoch;
        let split = &mut self.reshape_mut().split;
        (split.tried, split.begun, split.grants_last) = (epoch, Some(now), lease + GRANTS_END);
        self.job_begins();
        self.region().clone()
    }

    /// The child is in sync with every member: proposes the split.
    pub(crate) fn propose_split(&mut self, now: Nanos, child: RegionId, below: SegmentId) {
        let (left, right) = self.halves(child, below);
        self.primary_mut().split(left, right);
        self.reshape_mut().quiesce.stage = Stage::Proposed { since: now, transfer_target: None };
    }

    /// This attempt to split the region ends.
    pub fn fail_split(&mut self, now: Nanos, why: String) {
        self.fail_plan(now, QuiesceReason::Split, why);
    }

    /// The region is a pending child from now on.
    pub(crate) fn be_pending(&mut self, child: PendingChild) {
        self.reshape_mut().pending_child = Some(child);
    }

    /// What is known of the region as a pending child, if it is one.
    pub fn pending_child(&self) -> Option<PendingChild> {
        self.reshape().pending_child
    }

    /// The coordinator has a configuration of this pending child.
    pub(crate) fn activate(&mut self) {
        self.reshape_mut().pending_child = None;
        self.primary_mut().activated();
    }

    /// For a pending child that is in sync with every member: an id above those of all segments that it shares.
    pub fn ready_child(&self, now: Nanos) -> Option<SegmentId> {
        let is_ready = self.primary().may_open() && self.primary().holds_lease(now);
        let child = self.reshape().pending_child.filter(|_| is_ready || planted(Bug::ActivateBeforeInstalled));
        child.map(|child| child.below)
    }

    /// Why a pending child was not ready in time.
    pub fn why_late(&self) -> String {
        let late = self.primary().peers().filter(|peer| peer.state() != PeerState::InSync);
        let late: Vec<String> = late
            .map(|peer| {
                let (lacked, left) = peer.progress();
                format!("server {} did not follow in time (it lacks {left} of {lacked} segments)", peer.member.server)
            })
            .collect();
        if late.is_empty() { "not every member granted a lease in time".into() } else { late.join(", ") }
    }

    /// The child of a split of this region that is proposed.
    pub(crate) fn proposed_child(&self) -> Option<RegionId> {
        self.reshape().split.key.as_ref().filter(|_| self.is_proposed()).map(|(child, _)| *child)
    }

    /// Finds out what is left to be done before the region can quiesce for a split or a merge, if it should, and does it.
    pub(super) fn prepare_split(&mut self, can_quiesce: bool, obstacle: Option<&'static str>) {
        if let Some((into, waits_for)) = self.primary().merging() {
            self.reshape_mut().split.waits_for = waits_for.or(obstacle);
            return self.prepare_merge(into, can_quiesce && self.reshape().split.waits_for.is_none());
        }
        let Some((child, waits_for)) = self.primary().planned() else {
            (self.reshape_mut().split.key, self.reshape_mut().split.waits_for, self.reshape_mut().split.failed) =
                (None, None, None);
            return;
        };
        self.reshape_mut().split.waits_for = waits_for.or(obstacle);
        if self.reshape().split.waits_for.is_some() || !can_quiesce {
            return;
        }
        if self.primary().config().epoch <= self.reshape().split.tried && !planted(Bug::ReuseTerm) {
            return self.primary_mut().renew();
        }
        let is_known = self.reshape().split.key.as_ref().is_some_and(|(known, _)| *known == child);
        if is_known || self.reshape().split.is_choosing {
            return;
        }
        let GroupConfig { start, end, desired, .. } = self.primary().config();
        let at = match &desired.plan {
            Some(Plan::Split { at, .. }) => at.as_ref().map(|key| key.to_vec()),
            _ => None,
        };
        let (region, start, end) = (self.region().clone(), start.clone(), end.clone());
        self.reshape_mut().split.is_choosing = true;
        self.spawn_in_background(Activity::Engine.of_primary(), move || {
            let key = region.check_room_for(child).and_then(|()| match at {
                None => region.middle(&start, end.as_deref()),
                Some(key) => Ok(Some(key)),
            });
            Outcome::Reshape(ReshapeDone::SplitKey(child, key))
        });
    }

    /// A job has looked whether there is room for a child, and, if the plan names no key, for one that halves the region.
    pub(super) fn found_split_key(&mut self, now: Nanos, child: RegionId, result: Result<Option<Vec<u8>>, Error>) {
        self.reshape_mut().split.is_choosing = false;
        if self.primary().config().desired.plan.as_ref().and_then(Plan::child) != Some(child) {
            return;
        }
        match result {
            Ok(Some(key)) => self.reshape_mut().split.key = Some((child, key.into())),
            Ok(None) => self.fail_plan(now, QuiesceReason::Split, "no key halves it: it has too few".into()),
            Err(error) => self.fail_plan(now, QuiesceReason::Split, error.to_string()),
        }
    }

    /// Nothing is left to be done before the region can quiesce for a split.
    pub(super) fn is_to_be_split(&self) -> bool {
        let Some((child, None)) = self.primary().planned() else { return false };
        let GroupConfig { epoch, start, .. } = self.primary().config();
        let is_inside = |key: &Bytes| key > start && self.primary().config().contains(key);
        let is_fresh = *epoch > self.reshape().split.tried || planted(Bug::ReuseTerm);
        let key = self.reshape().split.key.as_ref().filter(|(known, key)| *known == child && is_inside(key));
        // A key says nothing of tokens.
        is_fresh && key.is_some() && !self.primary().options().partition.is_hash()
    }

    /// The region is quiescing for a split or a merge, or has quiesced for it.
    pub fn is_being_reshaped(&self) -> bool {
        let is_handed_over = self.primary().transfer_target().is_some();
        self.is_quiescing() && !is_handed_over && self.primary().config().desired.plan.is_some()
    }

    /// The region is quiesced for the child `child`.
    pub fn waits_for_child(&self, child: RegionId) -> bool {
        let is_planned = self.primary().planned().is_some_and(|(planned, _)| planned == child);
        is_planned
            && self.reshape().split.begun.is_some()
            && matches!(self.reshape().quiesce.stage, Stage::Quiesced { .. } | Stage::Proposed { .. })
    }

    /// The job that splits this region has ended.
    pub(super) fn was_split(&mut self, now: Nanos, result: Result<(), String>) {
        if let (Err(why), Stage::Quiesced { .. }) = (result, self.reshape().quiesce.stage) {
            self.fail_plan(now, QuiesceReason::Split, why);
        }
    }

    /// The outcome of the proposed split is known.
    pub(crate) fn split_ended(&mut self, now: Nanos, is_accepted: bool, step: &mut Step<'_>) {
        self.primary_mut().proposal_ended();
        if !self.is_proposed() {
            return;
        }
        if !is_accepted {
            return self.fail_plan(now, QuiesceReason::Split, "its configuration changed meanwhile".into());
        }
        self.counters_mut().splits += 1;
        let paused_us = self.reshape().split.begun.map(|begun| (now - begun).0 / 1_000);
        tracing::info!(region = %self.id(), paused_us, "was split");
        self.reshape_mut().split = Split { tried: self.reshape().split.tried, ..Split::default() };
        self.forget_samples();
        self.reshape_mut().trim = Trim::FIRST;
        self.resume_service();
        self.hand_out_queue().into_iter().for_each(|request| step.ask(Effect::RouteAgain(request)));
    }
}
