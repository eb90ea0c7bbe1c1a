//! A region becomes two while it is served, without a byte being copied.
//!
//! ```text
//!  parent:  a plan --a key, a fresh epoch--> stands still -----------------------------------> Proposed ---> goes on
//!  child:                                         | divided, opened | in sync with all |  born: it opens
//! ```
//! The parent's primary comes to rest ([`super::stand_still`]), has the engine divide what it has, and brings every member in sync with
//! the child by the sessions that any region has; they find all of it on their volumes. Then one operation of the coordinator makes the
//! child's configuration and cuts the parent's.
//!
//! Invariants:
//! - Until that operation is done the child is in no configuration: it answers nothing, and nobody counts on it. Whatever comes in
//!   between ends the attempt, and the parent goes on as it was.
//! - It is proposed only once every counted member of the parent has installed the child.
//! - Each attempt begins in an epoch of the parent in which none began, so every child has a term of its own.
//! - An unborn child lives as long as its parent stands still for it, or as the proposal is under way.
//! - Of a node's regions one comes to rest for it at a time, and only if nothing is known that would be in the way then.

use super::job::{Opened, Outcome};
use super::membership::Proposer;
use super::samples::Samples;
use super::serving::Serving;
use super::slot::{Holding, Slot};
use super::stand_still::Stage;
use super::trim::Trim;
use super::{Context, Node, Unrouted};
use bytes::Bytes;
use leeward_cluster::Outcome as Answer;
use leeward_engine::{Error, Region, Replica, Volume};
use leeward_format::cluster::{GroupConfig, Plan};
use leeward_format::{Epoch, RegionId, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use leeward_replication::peer::PeerState;
use leeward_replication::primary::Primary;
use std::sync::Arc;

/// How long the child may take until it is in sync everywhere, while the parent stands still.
const BIRTH_PATIENCE: Nanos = Nanos::from_secs(1);

/// An attempt that ends early is no fault. With the bug that makes it one, the first always does.
fn birth_patience(is_first: bool) -> Nanos {
    if is_first && planted(Bug::ReuseTerm) { Nanos::from_millis(6) } else { BIRTH_PATIENCE }
}

/// How much later than a lease after an attempt has failed the last promise to the child ends: its end is looked for every tick.
const PROMISES_END: Nanos = Nanos::from_millis(100);

/// How far the primary of a region that should be two has come.
#[derive(Debug, Default)]
pub(super) struct Division {
    /// The child of the plan, and its first key.
    key: Option<(RegionId, Bytes)>,
    /// A job looks for one.
    is_choosing: bool,
    /// Epoch of the configuration in which the last attempt began.
    tried: Epoch,
    /// Since when a child comes about, while the parent stands still for it.
    begun: Option<Nanos>,
    /// For so long after that promises to the child last, which are in the way of another.
    promised: Nanos,
    /// What it waits for, and why the last attempt failed.
    waits_for: Option<&'static str>,
    failed: Option<String>,
}

impl Division {
    /// Where the region will be divided, as far as that is known.
    pub(super) fn key(&self) -> Option<&Bytes> {
        self.key.as_ref().map(|(_, key)| key)
    }

    /// An attempt has failed, for this reason.
    pub(super) fn fail(&mut self, why: String) {
        let Division { tried, is_choosing, .. } = *self;
        *self = Division { tried, is_choosing, failed: Some(why), ..Division::default() };
    }

    /// Why it is not divided yet, if anything keeps it from that.
    pub(super) fn why(&self) -> Option<String> {
        self.waits_for.map(str::to_owned).or_else(|| self.failed.clone())
    }
}

/// A child before it is born.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unborn {
    /// The region that it is made of.
    parent: RegionId,
    /// The term of its primary.
    term: Epoch,
    /// An id above those of all segments that the two share.
    below: SegmentId,
}

/// A region that was divided off, and an id above those of all segments that it shares.
type Child = (Opened, SegmentId);
/// Why there is none, and the copy that there is of it.
type Undivided = (Error, Option<Box<Replica>>);

/// What has come of dividing a region.
pub(super) struct Divided {
    parent: RegionId,
    /// The configuration that the child is to have.
    config: GroupConfig,
    result: Result<Child, Undivided>,
}

impl Serving {
    /// The region that is to be made of this one, as was proposed.
    pub(super) fn proposed_child(&self) -> Option<RegionId> {
        self.division.key.as_ref().filter(|_| self.is_proposed()).map(|(child, _)| *child)
    }

    /// Finds out what is left to be done before the region can come to rest for being divided, if it should be, and does it.
    pub(super) fn prepare_division(&mut self, can_rest: bool, obstacle: Option<&'static str>) {
        if let Some((into, waits_for)) = self.primary.merging() {
            self.division.waits_for = waits_for.or(obstacle);
            return self.prepare_merge(into, can_rest && self.division.waits_for.is_none());
        }
        let Some((child, waits_for)) = self.primary.planned() else {
            (self.division.key, self.division.waits_for, self.division.failed) = (None, None, None);
            return;
        };
        self.division.waits_for = waits_for.or(obstacle);
        if self.division.waits_for.is_some() || !can_rest {
            return;
        }
        if self.primary.config().epoch <= self.division.tried && !planted(Bug::ReuseTerm) {
            return self.primary.renew();
        }
        let is_known = self.division.key.as_ref().is_some_and(|(known, _)| *known == child);
        if is_known || self.division.is_choosing {
            return;
        }
        let GroupConfig { start, end, wishes, .. } = self.primary.config();
        let at = match &wishes.plan {
            Some(Plan::Split { at, .. }) => at.as_ref().map(|key| key.to_vec()),
            _ => None,
        };
        let (region, start, end) = (self.region.clone(), start.clone(), end.clone());
        self.division.is_choosing = true;
        self.spawn_in_background(Activity::Engine.of_primary(), move || {
            let key = region.check_room_for(child).and_then(|()| match at {
                None => region.middle(&start, end.as_deref()),
                Some(key) => Ok(Some(key)),
            });
            Outcome::Halved(child, key)
        });
    }

    /// It was looked whether there is room for a child, and, if none was named, for a key that halves the region.
    pub(super) fn halved(&mut self, now: Nanos, child: RegionId, result: Result<Option<Vec<u8>>, Error>) {
        self.division.is_choosing = false;
        if self.primary.config().wishes.plan.as_ref().and_then(Plan::child) != Some(child) {
            return;
        }
        match result {
            Ok(Some(key)) => self.division.key = Some((child, key.into())),
            Ok(None) => self.fail_division(now, "no key halves it: it has too few".into()),
            Err(error) => self.fail_division(now, error.to_string()),
        }
    }

    /// Nothing is left to be done before it can come to rest for being divided.
    pub(super) fn is_to_be_divided(&self) -> bool {
        let Some((child, None)) = self.primary.planned() else { return false };
        let GroupConfig { epoch, start, .. } = self.primary.config();
        let is_inside = |key: &Bytes| key > start && self.primary.config().contains(key);
        let is_fresh = *epoch > self.division.tried || planted(Bug::ReuseTerm);
        let key = self.division.key.as_ref().filter(|(known, key)| *known == child && is_inside(key));
        // A key says nothing of tokens.
        is_fresh && key.is_some() && !self.primary.options().partition.is_hash()
    }

    /// An attempt ends; the next one comes later.
    fn fail_division(&mut self, now: Nanos, why: String) {
        tracing::info!(region = %self.id, why, "is not divided yet");
        self.counters.divisions_failed += 1;
        let Division { begun, promised, .. } = self.division;
        self.division.fail(why);
        let least = if begun.is_some() && !planted(Bug::ReuseTerm) { promised } else { Nanos::ZERO };
        self.stay_undivided(now, least);
    }

    /// It comes to rest for a plan, or has.
    pub(super) fn is_being_reshaped(&self) -> bool {
        let is_handed_over = self.primary.heir().is_some();
        self.is_coming_to_rest() && !is_handed_over && self.primary.config().wishes.plan.is_some()
    }

    /// Stands still for the child `child`.
    fn is_awaiting(&self, child: RegionId) -> bool {
        let is_planned = self.primary.planned().is_some_and(|(planned, _)| planned == child);
        is_planned
            && self.division.begun.is_some()
            && matches!(self.still.stage, Stage::Still { .. } | Stage::Proposed { .. })
    }

    /// The job has ended that divided it.
    pub(super) fn was_divided(&mut self, now: Nanos, result: Result<(), String>) {
        if let (Err(why), Stage::Still { .. }) = (result, self.still.stage) {
            self.fail_division(now, why);
        }
    }

    /// The region was made that this one was to give half of its keys to, or was not.
    fn division_ended(&mut self, now: Nanos, outcome: &Answer, again: &mut Vec<Unrouted>) {
        self.primary.proposal_ended();
        if !self.is_proposed() {
            return;
        }
        if *outcome != Answer::Accepted {
            return self.fail_division(now, "its configuration changed meanwhile".into());
        }
        self.counters.divisions += 1;
        let stood_us = self.division.begun.map(|begun| (now - begun).0 / 1_000);
        tracing::info!(region = %self.id, stood_us, "was divided");
        self.division = Division { tried: self.division.tried, ..Division::default() };
        self.samples = Samples::new(self.id);
        self.trim = Trim::FIRST;
        self.moves_again();
        again.extend(self.hand_out_queue());
    }
}

impl Slot {
    /// Has a job make a region of what `parent` has, to be this slot's.
    fn beget(&mut self, parent: &Arc<Region>, config: GroupConfig, context: &mut Context) {
        let before = std::mem::replace(&mut self.holding, Holding::Working);
        drop((before, self.backup.retire()));
        (self.work, self.building, self.candidate) = (None, None, None);
        let (parent, volume, id, requests) =
            (parent.clone(), context.volume.clone(), self.id, context.requests.clone());
        tracing::info!(region = %parent.id(), into = %id, at = ?config.start, "is being divided");
        context.spawn(id, Activity::Engine.of_primary(), move || {
            let made = divide(&parent, &volume, id, config.term);
            let result = made.map(|(region, below)| (Opened::new(region, requests), below));
            Outcome::Divided(Box::new(Divided { parent: parent.id(), config, result }))
        });
    }

    /// It was made, or not.
    fn begotten(&mut self, now: Nanos, term: Epoch, divided: Divided, context: &mut Context) -> Result<(), String> {
        let Divided { parent, config, result } = divided;
        let (opened, below) = match result {
            Ok(made) => made,
            Err((error, copy)) => {
                self.holding = Holding::Copy(copy);
                return Err(error.to_string());
            }
        };
        let options = context.table_options(&config.table).unwrap_or_else(|| opened.region.options().clone());
        let primary = Primary::unborn(now, config, options, context.timing, &context.links_up());
        let mut serving = Serving::new(now, context, opened, primary);
        serving.unborn = Some(Unborn { parent, term, below });
        self.holding = Holding::Serving(Box::new(serving));
        self.act_as_primary(context);
        Ok(())
    }

    /// A configuration was read of the region that is unborn here.
    pub(super) fn be_born(&mut self, config: &GroupConfig) {
        let unborn = self.serving().filter(|serving| serving.unborn.is_some() && serving.term == config.term);
        if let Some(serving) = unborn {
            tracing::info!(region = %config.region, term = %config.term, "was divided off");
            serving.unborn = None;
            serving.primary.born();
        }
    }

    /// The copy builds its own index in `building` from now on.
    pub(super) fn build_as(&mut self, building: Option<Arc<Region>>) {
        let is_same = match (&self.building, &building) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        self.building = building;
        if !is_same {
            self.tell_inherited();
        }
    }

    /// Has the index that is built here know what a division has left.
    pub(super) fn tell_inherited(&self) {
        if let (Some(region), Some(config)) = (&self.building, &self.config) {
            region.set_inherited_below(config.inherited_below);
        }
    }

    fn unborn(&self) -> Option<Unborn> {
        match &self.holding {
            Holding::Serving(serving) => serving.unborn,
            _ => None,
        }
    }
}

fn divide(
    parent: &Region,
    volume: &Arc<Volume>,
    child: RegionId,
    term: Epoch,
) -> Result<(Arc<Region>, SegmentId), Undivided> {
    let divided = parent.divide(child).and_then(|(copy, below)| Ok((copy.serve(term)?, below)));
    // There may be a copy by now, or still be one.
    divided.map_err(|error| (error, Replica::open(volume, child).ok().flatten().map(Box::new)))
}

impl Context {
    /// Proposes a division.
    pub(super) fn divide(&mut self, old: &GroupConfig, left: GroupConfig, right: GroupConfig) {
        let (parent, term, child) = (old.region, old.term, right.region);
        let proposal = self.agent.divide(self.now, old.clone(), left, right);
        self.proposals.insert(proposal, Proposer::Division { parent, term, child });
    }
}

impl Node {
    /// Another region of this node comes to rest for a plan, or has.
    pub(super) fn is_another_reshaped(&mut self, region: RegionId) -> bool {
        let other = self.dividing.filter(|other| *other != region);
        let other = other.and_then(|other| self.slots.get_mut(&other)).and_then(Slot::serving);
        self.merging.as_ref().is_some_and(|merging| merging.attempt().0 != region)
            || other.is_some_and(|other| other.is_being_reshaped())
    }

    /// What is in the way of a region coming to rest for its plan, beside what its primary sees.
    pub(super) fn plan_obstacle(&mut self, now: Nanos, parent: RegionId) -> Option<&'static str> {
        let serving = self.slots.get_mut(&parent).and_then(Slot::serving)?;
        if let Some((into, _)) = serving.primary.merging() {
            return self.merge_obstacle(parent, into);
        }
        let (child, _) = serving.primary.planned()?;
        let term = serving.primary.config().epoch.next();
        let is_in_use = self.slots.get(&child).is_some_and(|slot| !slot.is_at_rest());
        if is_in_use || self.context.grants.blocked_until(now, child, term).is_some() {
            return Some("what is here of the region that there is to be is in use");
        }
        self.is_another_reshaped(parent).then_some("its server divides or merges another region first")
    }

    /// Comes further with the division of a region that stands still for it. To be called after each turn of it.
    pub(super) fn advance_division(&mut self, now: Nanos, parent: RegionId) {
        let is_synced = self.context.agent.view().is_synced();
        let Some(serving) = self.slots.get_mut(&parent).and_then(Slot::serving) else { return };
        let Stage::Still { since } = serving.still.stage else { return };
        if serving.primary.merging().is_some() {
            return;
        }
        let child = match serving.primary.planned() {
            _ if !serving.can_rest(is_synced) => {
                Err("its group is changing, or the coordinator is not heard".to_owned())
            }
            // The child that comes about is of the term that follows on the epoch in which it was begun.
            _ if serving.division.begun.is_some() && serving.primary.config().epoch != serving.division.tried => {
                Err("its configuration changed meanwhile".to_owned())
            }
            None => Err("the plan was cancelled".into()),
            Some((_, Some(why))) => Err(why.to_owned()),
            Some((child, None)) if now - since > birth_patience(serving.still.is_first()) => {
                Err(self.who_is_late(child))
            }
            Some((child, None)) => Ok(child),
        };
        let serving = self.slots.get_mut(&parent).and_then(Slot::serving).expect("just seen");
        match child {
            Err(why) => serving.fail_division(now, why),
            Ok(child) if serving.division.begun.is_none() => return self.begin_division(now, parent, child),
            Ok(child) => return self.propose_division(now, parent, child),
        }
        self.touched.insert(parent);
    }

    /// Why a child has not come about in time.
    fn who_is_late(&mut self, child: RegionId) -> String {
        let serving = self.slots.get_mut(&child).and_then(Slot::serving);
        let Some(serving) = serving else { return "dividing what is here took too long".into() };
        let late = serving.primary.peers().filter(|peer| peer.state() != PeerState::InSync);
        let late: Vec<String> = late
            .map(|peer| {
                let (lacked, left) = peer.progress();
                format!("server {} did not follow in time (it lacks {left} of {lacked} segments)", peer.member.server)
            })
            .collect();
        if late.is_empty() { "not all promised in time".into() } else { late.join(", ") }
    }

    fn begin_division(&mut self, now: Nanos, parent: RegionId, child: RegionId) {
        let new = || Slot::new(child, None, &self.context);
        let slot = self.slots.entry(child).or_insert_with(new);
        let is_at_rest = slot.is_at_rest();
        let Some(serving) = self.slots.get_mut(&parent).and_then(Slot::serving) else { return };
        let config = serving.primary.config();
        let key = serving.division.key.clone().expect("it comes to rest only with one").1;
        let (_, right) = config.divided(key, child, SegmentId(0));
        if !is_at_rest || self.context.grants.blocked_until(now, child, right.term).is_some() {
            return serving.fail_division(now, format!("what is here of region {child} is in use"));
        }
        serving.division.tried = config.epoch;
        serving.division.begun = Some(now);
        serving.division.promised = self.context.timing.lease + PROMISES_END;
        serving.jobs += 1;
        let region = serving.region.clone();
        let slot = self.slots.get_mut(&child).expect("it was just made");
        slot.beget(&region, right, &mut self.context);
    }

    /// Proposes the division, if the child is in sync with every member.
    fn propose_division(&mut self, now: Nanos, parent: RegionId, child: RegionId) {
        let Some(serving) = self.slots.get_mut(&child).and_then(Slot::serving) else { return };
        let is_ready = serving.primary.may_open() && serving.primary.holds_lease(now);
        let Some(unborn) = serving.unborn.filter(|_| is_ready || planted(Bug::BearBeforeInstalled)) else { return };
        let slot = self.slots.get_mut(&parent).expect("its caller has seen it");
        let serving = slot.serving().expect("its caller has seen it");
        let key = serving.division.key().expect("it comes to rest only with one").clone();
        let (left, right) = serving.primary.config().divided(key, child, unborn.below);
        serving.primary.divide(left, right);
        serving.still.stage = Stage::Proposed { since: now, heir: None };
        slot.act_as_primary(&mut self.context);
    }

    /// The job has ended that divided a region.
    pub(super) fn divided(&mut self, now: Nanos, child: RegionId, divided: Divided) {
        let parent = divided.parent;
        self.touched.extend([parent, child]);
        let term = self.slots.get_mut(&parent).and_then(Slot::serving).map_or(Epoch(0), |serving| serving.term);
        let slot = self.slots.get_mut(&child).expect("a slot is given up when no job has its copy");
        let result = slot.begotten(now, term, divided, &mut self.context);
        slot.act_as_backup(&mut self.context);
        slot.reconcile(now, &mut self.context, &mut self.answers);
        let slot = self.slots.get_mut(&parent).expect("one of its jobs has ended just now");
        slot.job_done(now, Outcome::Parted(result), &mut self.context, &mut self.answers);
    }

    /// Regions that come about here and are not born yet, each with the term that it is to begin with.
    pub fn unborn(&self) -> impl Iterator<Item = (RegionId, Epoch)> {
        self.slots.values().filter_map(|slot| match &slot.holding {
            Holding::Serving(serving) if serving.unborn.is_some() => Some((slot.id, serving.term)),
            _ => None,
        })
    }

    /// It is known whether a region was divided.
    pub(super) fn division_ended(&mut self, now: Nanos, (parent, term): (RegionId, Epoch), outcome: &Answer) {
        let serving = self.slots.get_mut(&parent).and_then(Slot::serving);
        if let Some(serving) = serving.filter(|serving| serving.term == term) {
            serving.division_ended(now, outcome, &mut self.context.again);
        }
        self.touched.insert(parent);
    }

    /// Gives up unborn children that nobody stands still for any more.
    pub(super) fn end_unborn(&mut self, now: Nanos) {
        // These do not rest.
        let restless = self.rest.looked_at().iter();
        let unborn = restless.filter_map(|child| Some((*child, self.slots.get(child)?.unborn()?)));
        for (child, Unborn { parent, term, .. }) in unborn.collect::<Vec<_>>() {
            let parent = self.slots.get_mut(&parent).and_then(Slot::serving);
            let is_awaited = parent.is_some_and(|serving| serving.term == term && serving.is_awaiting(child));
            let is_proposed =
                |proposer: &Proposer| matches!(proposer, Proposer::Division { child: it, .. } if *it == child);
            if is_awaited || self.context.proposals.values().any(is_proposed) {
                continue;
            }
            let slot = self.slots.get_mut(&child).expect("just seen");
            slot.lose_office(&mut self.context, &mut self.answers);
            // Where the plan was cancelled, what is here is of no use any more.
            self.look_for_surplus(now, child);
        }
    }
}
