//! A region is split in two while it is served. No byte is copied.
//!
//! ```text
//!  parent:  a plan --a key, a fresh epoch--> Quiesced ------------------------------> Proposed ---> Active
//!  child:                                       | split, opened | in sync with all |    activated: it opens
//! ```
//! The parent's primary quiesces ([`crate::node::reshape::quiesce`]), and has the engine split its region. It brings every
//! member in sync with the child by the sessions that any region has. The members find all of the child on their volumes. Then
//! one operation of the coordinator makes the child's configuration and cuts the parent's.
//!
//! Invariants:
//! - Until that operation is done the child is in no configuration. It answers nothing, and no node relies on it. Any event in
//!   between ends the attempt, and the parent goes on as it was.
//! - The parent's primary proposes the split only once every counted member of the parent has installed the child.
//! - Each attempt begins in an epoch of the parent in which no other began, so every child has a term of its own.
//! - A pending child exists as long as its parent is quiesced for it, or the proposal is under way.
//! - A node quiesces one region at a time for a split, and only if it knows of nothing that would be in the way then.

use crate::node::Node;
use crate::node::job::Outcome;
use crate::node::membership::Proposer;
use crate::node::region::Opened;
use crate::node::region::effects::{Effect, Step};
use crate::node::region::{Holding, Slot};
use crate::node::reshape::ReshapeDone;
use crate::node::reshape::quiesce::{QuiesceReason, Stage};
use crate::node::reshape::trim::Trim;
use crate::node::serving::Serving;
use bytes::Bytes;
use leeward_engine::{Error, Region, Replica, Volume};
use leeward_format::cluster::{GroupConfig, Plan};
use leeward_format::{Epoch, RegionId, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use leeward_replication::peer::PeerState;
use leeward_replication::primary::Primary;
use std::sync::Arc;

/// How long the child may take until it is in sync everywhere, while the parent is quiesced.
const CHILD_TIMEOUT: Nanos = Nanos::from_secs(1);

/// An attempt that ends early is no fault. With the planted bug that makes it one, the first attempt always ends early.
fn child_timeout(is_first: bool) -> Nanos {
    if is_first && planted(Bug::ReuseTerm) { Nanos::from_millis(6) } else { CHILD_TIMEOUT }
}

/// The last lease grant to the child of a failed attempt ends at most a lease and so long after the attempt: each tick looks
/// for its end.
const GRANTS_END: Nanos = Nanos::from_millis(100);

/// How far the primary of a region that is to be split has come.
#[derive(Debug, Default)]
pub(crate) struct Split {
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
pub(super) struct PendingChild {
    /// The region that it is split from.
    parent: RegionId,
    /// The term of its primary.
    term: Epoch,
    /// An id above those of all segments that parent and child share.
    below: SegmentId,
}

/// A region that was split off, and an id above those of all segments that it shares.
type Child = (Opened, SegmentId);
/// Why a split failed, and the copy of the child that the volume has, if any.
type SplitFailed = (Error, Option<Box<Replica>>);

/// The result of a job that splits a region.
pub(crate) struct SplitOff {
    parent: RegionId,
    /// The configuration that the child is to have.
    config: GroupConfig,
    result: Result<Child, SplitFailed>,
}

impl Serving {
    /// The child of a split of this region that is proposed.
    pub(super) fn proposed_child(&self) -> Option<RegionId> {
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
    pub(crate) fn is_being_reshaped(&self) -> bool {
        let is_handed_over = self.primary().transfer_target().is_some();
        self.is_quiescing() && !is_handed_over && self.primary().config().desired.plan.is_some()
    }

    /// The region is quiesced for the child `child`.
    fn waits_for_child(&self, child: RegionId) -> bool {
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
    fn split_ended(&mut self, now: Nanos, is_accepted: bool, step: &mut Step<'_>) {
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
        self.hand_out_queue().into_iter().for_each(|unrouted| step.ask(Effect::RouteAgain(unrouted)));
    }
}

impl Slot {
    /// Has a job split a region off `parent`. This slot is to hold it.
    fn create_child(&mut self, parent: &Arc<Region>, config: GroupConfig, step: &mut Step<'_>) {
        let before = std::mem::replace(&mut self.holding, Holding::Working);
        drop((before, self.backup.retire()));
        (self.work, self.building, self.candidate) = (None, None, None);
        let (parent, volume, id, requests) =
            (parent.clone(), self.node.volume.clone(), self.id, self.node.requests.clone());
        tracing::info!(region = %parent.id(), into = %id, at = ?config.start, "is being split");
        step.spawn(Activity::Engine.of_primary(), move || {
            let made = split(&parent, &volume, id, config.term);
            let result = made.map(|(region, below)| (Opened::new(region, requests), below));
            Outcome::SplitOff(Box::new(SplitOff { parent: parent.id(), config, result }))
        });
    }

    /// The job of [`Slot::create_child`] has ended.
    fn created_child(&mut self, term: Epoch, split: SplitOff, step: &mut Step<'_>) -> Result<(), String> {
        let now = step.now;
        let SplitOff { parent, config, result } = split;
        let (opened, below) = match result {
            Ok(made) => made,
            Err((error, copy)) => {
                self.holding = Holding::Copy(copy);
                return Err(error.to_string());
            }
        };
        let options = step.table_of(&config).unwrap_or_else(|| opened.region.options().clone());
        let primary = Primary::pending_child(
            now,
            config,
            options,
            (self.node.timing, self.node.ops.clone()),
            &step.facts.linked(),
        );
        let mut serving = Serving::new(now, &self.node, opened, primary);
        serving.reshape_mut().pending_child = Some(PendingChild { parent, term, below });
        self.holding = Holding::Serving(Box::new(serving));
        self.act_as_primary(step);
        Ok(())
    }

    /// The coordinator has a configuration of this region. If the region is a pending child here, it becomes active.
    pub(crate) fn activate_child(&mut self, config: &GroupConfig) {
        let pending_child =
            self.serving().filter(|serving| serving.reshape().pending_child.is_some() && serving.term() == config.term);
        if let Some(serving) = pending_child {
            tracing::info!(region = %config.region, term = %config.term, "was split off");
            serving.reshape_mut().pending_child = None;
            serving.primary_mut().activated();
        }
    }

    fn pending_child(&self) -> Option<PendingChild> {
        match &self.holding {
            Holding::Serving(serving) => serving.reshape().pending_child,
            _ => None,
        }
    }
}

fn split(
    parent: &Region,
    volume: &Arc<Volume>,
    child: RegionId,
    term: Epoch,
) -> Result<(Arc<Region>, SegmentId), SplitFailed> {
    let split = parent.split(child).and_then(|(copy, below)| Ok((copy.serve(term)?, below)));
    // The volume may have a copy of the child, from before or from this attempt.
    split.map_err(|error| (error, Replica::open(volume, child).ok().flatten().map(Box::new)))
}

impl Node {
    /// What keeps a region from quiescing for its plan, besides what its primary sees.
    pub(crate) fn plan_obstacle(&mut self, now: Nanos, parent: RegionId) -> Option<&'static str> {
        let serving = self.slots.get_mut(&parent).and_then(Slot::serving)?;
        if let Some((into, _)) = serving.primary().merging() {
            return self.merge_obstacle(parent, into);
        }
        let (child, _) = serving.primary().planned()?;
        let term = serving.primary().config().epoch.next();
        let is_in_use = self.slots.get(&child).is_some_and(|slot| !slot.is_idle());
        if is_in_use || self.context.grants.blocked_until(now, child, term).is_some() {
            return Some("the copy of the new region on its server is in use");
        }
        self.is_another_reshaped(parent).then_some("its server splits or merges another region first")
    }

    /// Advances the split of a region that is quiesced for it. To be called after each turn of that region.
    pub(crate) fn advance_split(&mut self, now: Nanos, parent: RegionId) {
        let is_synced = self.context.agent.view().is_synced();
        let Some(serving) = self.slots.get_mut(&parent).and_then(Slot::serving) else { return };
        let Stage::Quiesced { since } = serving.reshape().quiesce.stage else { return };
        if serving.primary().merging().is_some() {
            return;
        }
        let child = match serving.primary().planned() {
            _ if !serving.can_quiesce(is_synced) => {
                Err("its group is changing, or the coordinator is not heard".to_owned())
            }
            // The pending child has the term that follows the epoch in which the attempt began.
            _ if serving.reshape().split.begun.is_some()
                && serving.primary().config().epoch != serving.reshape().split.tried =>
            {
                Err("its configuration changed meanwhile".to_owned())
            }
            None => Err("the plan was cancelled".into()),
            Some((_, Some(why))) => Err(why.to_owned()),
            Some((child, None)) if now - since > child_timeout(serving.reshape().quiesce.is_first()) => {
                Err(self.why_late(child))
            }
            Some((child, None)) => Ok(child),
        };
        let serving = self.slots.get_mut(&parent).and_then(Slot::serving).expect("just seen");
        match child {
            Err(why) => serving.fail_plan(now, QuiesceReason::Split, why),
            Ok(child) if serving.reshape().split.begun.is_none() => return self.begin_split(now, parent, child),
            Ok(child) => return self.propose_split(now, parent, child),
        }
        self.idle.touch(parent);
    }

    /// Why a child was not ready in time.
    fn why_late(&mut self, child: RegionId) -> String {
        let serving = self.slots.get_mut(&child).and_then(Slot::serving);
        let Some(serving) = serving else { return "splitting the primary's copy took too long".into() };
        let late = serving.primary().peers().filter(|peer| peer.state() != PeerState::InSync);
        let late: Vec<String> = late
            .map(|peer| {
                let (lacked, left) = peer.progress();
                format!("server {} did not follow in time (it lacks {left} of {lacked} segments)", peer.member.server)
            })
            .collect();
        if late.is_empty() { "not every member granted a lease in time".into() } else { late.join(", ") }
    }

    fn begin_split(&mut self, now: Nanos, parent: RegionId, child: RegionId) {
        let new = || Slot::new(child, None, Arc::clone(&self.context.resources));
        let slot = self.slots.entry(child).or_insert_with(new);
        let is_idle = slot.is_idle();
        let Some(serving) = self.slots.get_mut(&parent).and_then(Slot::serving) else { return };
        let config = serving.primary().config();
        let key = serving.reshape().split.key.clone().expect("it quiesces only with a key").1;
        let (_, right) = config.split(key, child, SegmentId(0));
        if !is_idle || self.context.grants.blocked_until(now, child, right.term).is_some() {
            return serving.fail_plan(
                now,
                QuiesceReason::Split,
                format!("the copy of region {child} on this server is in use"),
            );
        }
        serving.reshape_mut().split.tried = config.epoch;
        serving.reshape_mut().split.begun = Some(now);
        serving.reshape_mut().split.grants_last = self.context.timing.lease + GRANTS_END;
        serving.job_begins();
        let region = serving.region().clone();
        self.step(child, |slot, step| slot.create_child(&region, right, step));
    }

    /// Proposes the split, if the child is in sync with every member.
    fn propose_split(&mut self, now: Nanos, parent: RegionId, child: RegionId) {
        let Some(serving) = self.slots.get_mut(&child).and_then(Slot::serving) else { return };
        let is_ready = serving.primary().may_open() && serving.primary().holds_lease(now);
        let Some(pending_child) =
            serving.reshape().pending_child.filter(|_| is_ready || planted(Bug::ActivateBeforeInstalled))
        else {
            return;
        };
        let serving = self.serving(parent).expect("its caller has seen it");
        let key = serving.reshape().split.key().expect("it quiesces only with a key").clone();
        let (left, right) = serving.primary().config().split(key, child, pending_child.below);
        serving.primary_mut().split(left, right);
        serving.reshape_mut().quiesce.stage = Stage::Proposed { since: now, transfer_target: None };
        self.step(parent, Slot::act_as_primary);
    }

    /// The job that splits a region has ended.
    pub(crate) fn split(&mut self, child: RegionId, split: SplitOff) {
        let parent = split.parent;
        self.idle.touch_each([parent, child]);
        let term = self.slots.get_mut(&parent).and_then(Slot::serving).map_or(Epoch(0), |serving| serving.term());
        let result = self.step(child, |slot, step| {
            let result = slot.created_child(term, split, step);
            slot.act_as_backup(step);
            slot.reconcile(step);
            result
        });
        let result = result.expect("a slot is given up when no job has its copy");
        self.step(parent, |slot, step| slot.job_done(Outcome::Reshape(ReshapeDone::ParentSplit(result)), step));
    }

    /// Pending children of this node, each with the term that it is to begin with.
    pub fn pending_child(&self) -> impl Iterator<Item = (RegionId, Epoch)> {
        self.slots.values().filter_map(|slot| match &slot.holding {
            Holding::Serving(serving) if serving.reshape().pending_child.is_some() => Some((slot.id, serving.term())),
            _ => None,
        })
    }

    /// The coordinator has answered whether a region was split.
    pub(crate) fn split_ended(&mut self, now: Nanos, (parent, term): (RegionId, Epoch), is_accepted: bool) {
        self.step(parent, |slot, step| {
            if let Some(serving) = slot.serving().filter(|serving| serving.term() == term) {
                serving.split_ended(now, is_accepted, step);
            }
        });
        self.idle.touch(parent);
    }

    /// Gives up pending children whose parent is no longer quiesced for them.
    pub(crate) fn end_pending_child(&mut self, now: Nanos) {
        // A pending child is never idle, so these include all of them.
        let looked_at = self.idle.looked_at().iter();
        let pending = looked_at.filter_map(|child| Some((*child, self.slots.get(child)?.pending_child()?)));
        for (child, PendingChild { parent, term, .. }) in pending.collect::<Vec<_>>() {
            let parent = self.slots.get_mut(&parent).and_then(Slot::serving);
            let is_wanted = parent.is_some_and(|serving| serving.term() == term && serving.waits_for_child(child));
            let is_proposed =
                |proposer: &Proposer| matches!(proposer, Proposer::Split { child: it, .. } if *it == child);
            if is_wanted || self.context.proposals.values().any(is_proposed) {
                continue;
            }
            self.step(child, Slot::step_down);
            // Where the plan was cancelled, the copy of the child is of no use any more.
            self.look_for_replica_garbage(now, child);
        }
    }
}
