//! One region on this node, whether the node is its primary or not: which role the node has, and how the role changes.
//!
//! ```text
//!            config names me, lease grants ran out, no work running           opened for serving
//!  Following ------------------------------------------------------> Promoting -----------------> Serving
//!      ^                                                                                             |
//!      '----- Retiring (waits for its jobs, then becomes a copy again) <------- a newer term --------'
//! ```
//! `promotion` is the way from a copy to a region that is served, `follower` the side of a backup, `primary` that of a primary.
//! `child` is a region that is split off, `end` one that is not needed any more, `reads` what a copy answers.
//!
//! Invariant: exactly one of the replica, a job that has it, and the serving region exists. A node that lost the primary role
//! keeps nothing of what it had in memory. Its copy is as its volume has it, and is brought in sync like any other.

mod child;
mod end;
mod follower;
pub mod identity;
mod primary;
mod promotion;
mod reads;
mod status;
mod waiting;

use crate::effects::{Effect, Effects, Facts, NodeResources, Step};
use crate::input::Input;
use crate::job::{JobClass, Outcome, RoleDone};
use crate::request::Request;
use crate::serving::Serving;
pub use identity::copy_found;
use identity::found;
use leeward_engine::compaction::CompactionTotals;
use leeward_engine::{Region, Replica};
use leeward_format::cluster::{CopyFound, GroupConfig, Intent};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_replication::backup::{Backup, Undone, Work};
use leeward_replication::candidate::Candidate;
pub use reads::SafeLsnRecord;
use reads::SafeLsns;
use std::collections::BTreeMap;
use std::sync::Arc;
use waiting::WaitingRoom;

/// What this node has of a region.
pub(crate) enum Holding {
    /// The copy, which no job has. `None`: the volume has none yet.
    Copy(Option<Box<Replica>>),
    /// A job of the backup has it.
    Working,
    /// A job is opening it for serving in a term.
    Promoting { term: Epoch, since: Nanos },
    /// It serves.
    Serving(Box<Serving>),
    /// It lost the primary role and waits for its last jobs.
    Retiring(Box<Serving>),
    /// A job is making it a copy again.
    Reopening,
    /// It could not be opened: an operator must act.
    Broken(String),
}

/// One region on this node, in any role.
pub struct RegionMachine {
    id: RegionId,
    node: Arc<NodeResources>,
    config: Option<GroupConfig>,
    backup: Backup,
    holding: Holding,
    /// Work of the backup that waits for the copy.
    work: Option<Work>,
    /// The region of a copy that builds its own index, as of its last piece of work.
    building: Option<Arc<Region>>,
    /// The region from which reads can be answered, likewise.
    reading: Option<Arc<Region>>,
    /// Safe LSNs that the primary has published.
    safe_lsns: SafeLsns,
    /// Until when the copy stays readable for digests, although its table answers no reads from it.
    digests_until: Option<Nanos>,
    /// A compaction of the index that the copy builds is under way.
    is_building: bool,
    /// Totals of these compactions.
    compacted: CompactionTotals,
    /// Set while this node, chosen as the primary, finds out which member has the longest copy.
    candidate: Option<Candidate>,
    /// Operations that wait for it to serve.
    waiting: WaitingRoom,
    /// Since when the device has no room for a promotion, and until when the node does not try again.
    out_of_space: Option<(Nanos, Nanos)>,
    /// What the cluster was last told of the copy is that it is damaged.
    says_damaged: bool,
    /// The configuration by which the volume was last told what the copy belongs to.
    identified: Option<Epoch>,
    /// This node becomes primary of no term up to this one: it has lost it, or has followed another primary of it.
    last_ended: Epoch,
}

impl RegionMachine {
    /// A region of which the volume has this copy. `None`: it has none.
    pub fn new(id: RegionId, copy: Option<Box<Replica>>, node: Arc<NodeResources>) -> RegionMachine {
        RegionMachine {
            id,
            config: None,
            backup: Backup::new(id, node.me),
            node,
            work: None,
            building: None,
            reading: None,
            safe_lsns: SafeLsns::default(),
            digests_until: None,
            is_building: false,
            compacted: CompactionTotals::default(),
            candidate: None,
            waiting: WaitingRoom::default(),
            out_of_space: None,
            says_damaged: copy.as_ref().is_some_and(|copy| copy.is_damaged()),
            holding: Holding::Copy(copy),
            identified: None,
            last_ended: Epoch(0),
        }
    }

    /// The newest configuration that is known here; `None`: the region is in none, or has ended.
    pub fn config(&self) -> Option<&GroupConfig> {
        self.config.as_ref()
    }

    /// The region, if it is served here.
    pub fn served(&self) -> Option<&Serving> {
        match &self.holding {
            Holding::Serving(serving) => Some(serving),
            _ => None,
        }
    }

    /// The region, if it is served here.
    pub fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.holding {
            Holding::Serving(serving) => Some(serving),
            _ => None,
        }
    }

    /// Begins an operation on the region, which is open here. What is to be done for it is asked for at the end of the turn.
    pub fn execute(&mut self, now: Nanos, request: Request) {
        let serving = self.serving().expect("a region is open before it is given operations");
        serving.execute(now, request.pending(now));
    }

    /// Handles an event. What is to be done then is in `effects`, in order.
    pub fn handle(&mut self, now: Nanos, input: Input, facts: &dyn Facts, effects: &mut Effects) {
        let step = &mut Step { region: self.id, now, facts, effects };
        match input {
            Input::Tick { departing } => self.tick(departing, step),
            Input::EndOfTurn(turn) => self.end_turn(turn, step),
            Input::Configuration(config) => self.configure(&config, step),
            Input::Proposed { is_accepted } => self.proposal_ended(now, is_accepted),
            Input::SplitProposed { term, is_accepted } => self.split_ended(term, is_accepted, step),
            Input::Ended => self.end(step),
            Input::NotNeeded => self.destroy(step),
            Input::JobDone(outcome) => self.job_done(outcome, step),
            Input::Link { server, is_up } => self.link_changed(server, is_up, step),
            Input::WriteEnded { server, op, is_refused } => self.write_ended(server, op, is_refused, step),
            Input::FromPrimary(session, body) => self.hear_primary(session, body, step),
            Input::FromMember { server, term, session, body } => self.hear_backup(server, (term, session), body, step),
            Input::Places { term, places } => self.placed(term, places, step),
            Input::MayRead { server, session, id } => self.load(server, session, id, step),
            Input::LeaseGranted { server, term, lease } => self.lease_granted(server, term, lease, step),
            Input::LeaseReleased => self.leases_released(step),
            Input::SafeLsn(server, heard, safe_lsn) => self.hear_safe_lsn(server, heard, safe_lsn, step),
            Input::ReadsWait => self.catch_up_reads(step),
            Input::LookAfterReads => self.look_after_reads(step),
            Input::Save { is_round } => self.save(is_round, step),
            Input::ClockDoubted => self.doubt_clock(step),
            Input::HoldMore => self.hold_more(step),
            Input::MakeChild { parent, config } => self.create_child(parent, *config, step),
            Input::ChildReady { child } => self.propose_split(child, step),
            Input::ChildNotWanted => self.step_down(step),
        }
    }

    /// An operation waits until this node serves the region, or knows a newer configuration than that of `epoch`. Gives it back if
    /// too many wait.
    pub fn wait(&mut self, now: Nanos, epoch: Epoch, operation: Request) -> Option<Request> {
        self.waiting.enter(now, epoch, operation)
    }

    /// Whether operations wait so.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The epoch of the configuration that the node knew when the last of them came.
    pub fn waiting_since(&self) -> Epoch {
        self.waiting.epoch
    }

    /// Takes out all of them, in the order in which they came.
    pub fn take_waiting(&mut self) -> impl Iterator<Item = Request> + use<> {
        self.waiting.leave()
    }

    /// Whether the primary of `term` at this server may be granted a lease.
    pub fn may_grant(&self, server: ServerId, term: Epoch) -> bool {
        let knows_newer = self.config.as_ref().is_some_and(|config| config.term > term);
        !knows_newer && self.backup.may_grant(server, term)
    }

    /// Whether the copy saves something, or has other work.
    pub fn is_working(&self) -> bool {
        !self.backup.is_idle()
    }

    /// A configuration was read from the coordinator that is newer than the one known here.
    pub(crate) fn configure(&mut self, config: &GroupConfig, step: &mut Step<'_>) {
        let before = self.config.replace(config.clone());
        self.out_of_space.take_if(|_| before.as_ref().is_none_or(|before| before.term != config.term));
        if before.is_none_or(|before| before.inherited_below != config.inherited_below) {
            self.set_inherited_below();
        }
        self.activate_child(config);
        self.identify(step);
        if config.has(self.node.me) && config.primary != Some(self.node.me) {
            self.backup.term_began(step.now, config.term, step.facts.grants());
            self.act_as_backup(step);
        }
        self.reconcile(step);
    }

    /// This node's clock may have stopped: leases and ages that count from before are invalid.
    pub(crate) fn doubt_clock(&mut self, step: &mut Step<'_>) {
        self.safe_lsns = SafeLsns::default();
        if let Some(serving) = self.serving() {
            serving.close_direct_reads();
            serving.primary_mut().clock_doubted(step.now);
        }
    }

    /// Time has passed.
    fn tick(&mut self, departing: BTreeMap<ServerId, Intent>, step: &mut Step<'_>) {
        if let Some(serving) = self.serving() {
            serving.tick(step.now, &mut step.effects.answers);
            self.act_as_primary(step);
        }
        self.backup.join_when_allowed(step.now, step.facts.grants());
        self.build(step);
        self.act_as_backup(step);
        self.reconcile(step);
        if let Some(serving) = self.serving() {
            serving.primary_mut().set_departing(departing);
        }
        self.waiting.expire(step.now, self.id, &mut step.effects.answers);
    }

    /// Brings this node's role in line with the configuration, as far as that is possible now.
    pub(crate) fn reconcile(&mut self, step: &mut Step<'_>) {
        let Some(config) = &self.config else { return self.finish_retiring(step) };
        if let Holding::Serving(serving) = &mut self.holding {
            if let Some(options) = step.facts.table(&config.table).filter(|o| *o != serving.primary().options()) {
                serving.primary_mut().set_options(options.clone());
            }
            if serving.primary().config() == config {
                return;
            }
        }
        let config = config.clone();
        let mine = config.primary == Some(self.node.me);
        match &mut self.holding {
            Holding::Serving(serving) if mine && serving.term() == config.term => {
                serving.region().set_inherited_below(config.inherited_below);
                serving.primary_mut().reconfigure(step.now, config, &step.facts.linked());
                self.act_as_primary(step);
            }
            Holding::Serving(serving) => {
                let term = serving.term();
                self.step_down(step);
                primary::release_leases(self.node.me, &config, term, step);
            }
            Holding::Copy(_) if mine && config.term > self.last_ended => self.campaign(&config, step),
            _ => {}
        }
        self.finish_retiring(step);
    }

    /// A newer term has begun, or a message says so.
    pub(crate) fn step_down(&mut self, step: &mut Step<'_>) {
        let Holding::Serving(mut serving) = std::mem::replace(&mut self.holding, Holding::Reopening) else {
            unreachable!("only a serving region steps down");
        };
        tracing::info!(region = %self.id, term = %serving.term(), "no longer the primary");
        let operations = serving.abandon(&mut step.effects.answers);
        operations.into_iter().for_each(|request| step.ask(Effect::RouteAgain(request)));
        // Retiring waits for these jobs.
        serving.take_jobs(step);
        serving.count_sessions(Vec::new(), step);
        self.last_ended = self.last_ended.max(serving.term());
        self.holding = Holding::Retiring(serving);
        self.finish_retiring(step);
    }

    fn finish_retiring(&mut self, step: &mut Step<'_>) {
        if !matches!(&self.holding, Holding::Retiring(serving) if !serving.has_jobs()) {
            return;
        }
        let Holding::Retiring(serving) = std::mem::replace(&mut self.holding, Holding::Reopening) else {
            unreachable!("just seen");
        };
        self.reopen(serving.region().clone(), step);
    }

    /// Makes a copy again of what was open.
    fn reopen(&mut self, region: Arc<Region>, step: &mut Step<'_>) {
        self.holding = Holding::Reopening;
        let retire = move || Outcome::Role(RoleDone::Retired(region.into_replica().map(Box::new)));
        step.spawn(JobClass::Foreground, Activity::Engine.of_primary(), retire);
    }

    /// A job of the region ended.
    fn job_done(&mut self, outcome: Outcome, step: &mut Step<'_>) {
        match outcome {
            Outcome::SplitOff(split) => return self.created_child(*split, step),
            Outcome::Identified(Ok(_)) => return,
            Outcome::Identified(Err(error)) => {
                return tracing::warn!(region = %self.id, %error, "cannot note what the copy belongs to");
            }
            Outcome::Role(done) => self.role_done(done, step),
            other => self.serving_job_done(other, step),
        }
        self.register_damage(step);
        self.identify(step);
        self.act_as_backup(step);
        self.reconcile(step);
    }

    /// Tells the cluster that the copy is damaged, or no longer is.
    fn register_damage(&mut self, step: &mut Step<'_>) {
        let found = match &self.holding {
            Holding::Copy(Some(copy)) if copy.is_damaged() || self.says_damaged => copy_found(copy),
            Holding::Serving(serving) if self.says_damaged => {
                found(&self.node.volume, self.id, (serving.term(), serving.region().last_lsn()))
            }
            _ => return,
        };
        self.register(found, step);
    }

    /// Tells the cluster what this copy is.
    fn register(&mut self, found: CopyFound, step: &mut Step<'_>) {
        self.says_damaged = found.is_damaged();
        step.ask(Effect::Register(found));
    }

    fn role_done(&mut self, done: RoleDone, step: &mut Step<'_>) {
        match done {
            RoleDone::Promoted(result) => self.promoted(result, step),
            RoleDone::Retired(Ok(replica)) => self.holding = Holding::Copy(Some(replica)),
            RoleDone::Retired(Err(error)) => {
                tracing::error!(region = %self.id, %error, "the copy cannot be opened as a backup; restart the node to try again");
                self.holding = Holding::Broken(error.to_string());
            }
            RoleDone::Followed { replica, result } => {
                let copy = replica.as_deref();
                self.set_building(copy.and_then(Replica::building));
                self.reading = copy.and_then(Replica::reading);
                let applied = copy.and_then(Replica::applied);
                self.holding = Holding::Copy(replica);
                let own = self.backup.primary_session().filter(|session| session.primary == self.node.me.server);
                if let (Err(Undone { lacks_room: true, .. }), Some(session)) = (&result, own) {
                    self.note_out_of_space(step.now, session.term);
                }
                self.backup.done(result);
                self.backup.applied(applied);
                self.build(step);
            }
            RoleDone::Built(result) => {
                self.built(result);
                self.build(step);
            }
            RoleDone::Destroyed(result) => self.destroyed(result),
        }
    }

    fn serving_job_done(&mut self, outcome: Outcome, step: &mut Step<'_>) {
        let (Holding::Serving(serving) | Holding::Retiring(serving)) = &mut self.holding else {
            unreachable!("a region is given up only when none of its jobs is running");
        };
        serving.job_ended();
        if matches!(self.holding, Holding::Retiring(_)) {
            return;
        }
        let serving = self.serving().expect("just seen");
        match outcome {
            Outcome::Operation(done) => serving.operation_done(step.now, done),
            Outcome::Upkeep(done) => serving.upkeep_done(step.now, done),
            Outcome::Reshape(done) => serving.reshape_done(step.now, done),
            _ => unreachable!("the node has dealt with it"),
        }
        self.act_as_primary(step);
    }

    /// Its floor is to be recorded, for which no event wakes it.
    pub fn raises_floor(&self) -> bool {
        matches!(&self.holding, Holding::Serving(serving) if serving.primary().raises_floor())
    }

    /// Whether it has nothing to do until an event comes.
    pub fn may_idle(&self, now: Nanos) -> bool {
        let Some(config) = &self.config else { return false };
        if !self.waiting.is_empty() || self.candidate.is_some() {
            return false;
        }
        match &self.holding {
            Holding::Serving(serving) => serving.primary().config() == config && serving.may_idle(now),
            Holding::Copy(_) => {
                let builds = self.building.is_some() || self.is_building;
                config.primary != Some(self.node.me) && !builds && self.work.is_none() && self.backup.is_settled()
            }
            _ => false,
        }
    }
}
