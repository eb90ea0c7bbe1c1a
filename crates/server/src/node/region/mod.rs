//! One region on this node, whether the node is its primary or not: which role the node has, and how the role changes.
//!
//! ```text
//!            config names me, lease grants ran out, no work running           opened for serving
//!  Following ------------------------------------------------------> Promoting -----------------> Serving
//!      ^                                                                                             |
//!      '----- Retiring (waits for its jobs, then becomes a copy again) <------- a newer term --------'
//! ```
//! `promotion` is the way from a copy to a region that is served, `follower` the side of a backup, `primary` that of a primary.
//! `effects`: what a region asks of its node. `idle`: regions that a tick skips. `saving`: when backups save what was mirrored.
//!
//! Invariant: exactly one of the replica, a job that has it, and the serving region exists. A node that lost the primary role
//! keeps nothing of what it had in memory. Its copy is as its volume has it, and is brought in sync like any other.

pub(crate) mod effects;
mod follower;
pub(crate) mod identity;
pub(crate) mod idle;
mod primary;
mod promotion;
pub(crate) mod saving;

use crate::node::job::Outcome;
use crate::node::requests::stale::SafeLsns;
use crate::node::requests::waiting::WaitingRoom;
use crate::node::serving::Serving;
use effects::{Effect, NodeResources, Step};
use identity::{copy_found, found};
use leeward_engine::compaction::{CompactionDone, CompactionTotals};
use leeward_engine::{Error, Region, Replica};
use leeward_format::cluster::{CopyFound, GroupConfig};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_replication::backup::{Backup, Done, Undone, Work};
use leeward_replication::candidate::Candidate;
pub(crate) use primary::TurnEnded;
pub(crate) use promotion::Opened;
use promotion::PromotionFailed;
use std::sync::Arc;

/// The result of a job that changes this node's role in a region, or its copy.
pub(crate) enum RoleDone {
    /// A copy was opened for serving.
    Promoted(Result<Opened, PromotionFailed>),
    /// A region whose primary role was lost is a copy again.
    Retired(Result<Box<Replica>, Error>),
    /// A piece of a backup's work is done, or failed.
    Followed { replica: Option<Box<Replica>>, result: Result<Done, Undone> },
    /// A compaction of a copy that builds its own index ended.
    Built(Result<Box<CompactionDone>, Error>),
    /// A copy that the cluster no longer needs was destroyed.
    Destroyed(Result<(), Error>),
}

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

pub(crate) struct Slot {
    pub(crate) id: RegionId,
    pub(crate) node: Arc<NodeResources>,
    pub(crate) config: Option<GroupConfig>,
    pub(crate) backup: Backup,
    pub(crate) holding: Holding,
    /// Work of the backup that waits for the copy.
    pub(crate) work: Option<Work>,
    /// The region of a copy that builds its own index, as of its last piece of work.
    pub(crate) building: Option<Arc<Region>>,
    /// The region from which reads can be answered, likewise.
    pub(crate) reading: Option<Arc<Region>>,
    /// Safe LSNs that the primary has published.
    pub(crate) safe_lsns: SafeLsns,
    /// Until when the copy stays readable for digests, although its table answers no reads from it.
    pub(crate) digests_until: Option<Nanos>,
    /// A compaction of the index that the copy builds is under way.
    pub(crate) is_building: bool,
    /// Totals of these compactions.
    pub(crate) compacted: CompactionTotals,
    /// Set while this node, chosen as the primary, finds out which member has the longest copy.
    pub(crate) candidate: Option<Candidate>,
    /// Operations that wait for it to serve.
    pub(crate) waiting: WaitingRoom,
    /// Since when the device has no room for a promotion, and until when the node does not try again.
    pub(crate) out_of_space: Option<(Nanos, Nanos)>,
    /// What the cluster was last told of the copy is that it is damaged.
    says_damaged: bool,
    /// The configuration by which the volume was last told what the copy belongs to.
    identified: Option<Epoch>,
    /// This node becomes primary of no term up to this one: it has lost it, or has followed another primary of it.
    last_ended: Epoch,
}

impl Slot {
    pub(crate) fn new(id: RegionId, copy: Option<Box<Replica>>, node: Arc<NodeResources>) -> Slot {
        Slot {
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

    pub(crate) fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.holding {
            Holding::Serving(serving) => Some(serving),
            _ => None,
        }
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

    /// Time has passed.
    pub(crate) fn tick(&mut self, step: &mut Step<'_>) {
        if let Some(serving) = self.serving() {
            serving.tick(step.now, &mut step.effects.answers);
            self.act_as_primary(step);
        }
        self.backup.join_when_allowed(step.now, step.facts.grants());
        self.build(step);
        self.act_as_backup(step);
        self.reconcile(step);
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
        operations.into_iter().for_each(|unrouted| step.ask(Effect::RouteAgain(unrouted)));
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
        step.spawn(Activity::Engine.of_primary(), retire);
    }

    /// A job of the region ended.
    pub(crate) fn job_done(&mut self, outcome: Outcome, step: &mut Step<'_>) {
        match outcome {
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
}
