//! One region on this node, whether the node is its primary or not: which role the node has, and how the role changes.
//!
//! ```text
//!            config names me, lease grants ran out, no work running           opened for serving
//!  Following ------------------------------------------------------> Promoting -----------------> Serving
//!      ^                                                                                             |
//!      '----- Retiring (waits for its jobs, then becomes a copy again) <------- a newer term --------'
//! ```
//! Invariant: exactly one of the replica, a job that has it, and the serving region exists. A node that lost the primary role
//! keeps nothing of what it had in memory. Its copy is as its volume has it, and is brought in sync like any other.

use super::catch_up::Wanted;
use super::job::{Job, JobClass, Opened, Outcome, PromotionFailed};
use super::joining::Session;
use super::serving::{Answer, Serving};
use super::stale::SafeLsns;
use super::waiting::WaitingRoom;
use super::{Context, link};
use leeward_engine::compaction::{Compaction, CompactionDone, CompactionTotals};
use leeward_engine::{Error, Region, Replica, Unopened};
use leeward_format::cluster::GroupConfig;
use leeward_format::control::{Control, ToBackup, ToPrimary};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Account, Activity};
use leeward_platform::planted::{Bug, planted};
use leeward_replication::backup::{Backup, BackupAction, PrimarySession, Undone, Work};
use leeward_replication::candidate::{self, Candidate, Verdict};
use leeward_replication::peer::PeerAction;
use leeward_replication::primary::{Primary, PrimaryAction};
use std::sync::Arc;

/// How long after a promotion without room the node tries again, and for how long before it steps aside for another.
const OUT_OF_SPACE_PAUSE: Nanos = Nanos::from_millis(500);
const OUT_OF_SPACE_TIMEOUT: Nanos = Nanos::from_secs(3);

pub(super) enum Holding {
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

pub(super) struct Slot {
    pub(super) id: RegionId,
    pub(super) config: Option<GroupConfig>,
    pub(super) backup: Backup,
    pub(super) holding: Holding,
    /// Work of the backup that waits for the copy.
    pub(super) work: Option<Work>,
    /// The region of a copy that builds its own index, as of its last piece of work.
    pub(super) building: Option<Arc<Region>>,
    /// The region from which reads can be answered, likewise.
    pub(super) reading: Option<Arc<Region>>,
    /// Safe LSNs that the primary has published.
    pub(super) safe_lsns: SafeLsns,
    /// A compaction of the index that the copy builds is under way.
    pub(super) is_building: bool,
    /// What such compactions did.
    pub(super) compacted: CompactionTotals,
    /// Set while this node, chosen as the primary, finds out which member has the longest copy.
    pub(super) candidate: Option<Candidate>,
    /// Operations that wait for it to serve.
    pub(super) waiting: WaitingRoom,
    /// Since when the device has no room for a promotion, and until when the node does not try again.
    pub(super) out_of_space: Option<(Nanos, Nanos)>,
    /// This node becomes primary of no term up to this one: it has lost it, or has followed another primary of it.
    last_ended: Epoch,
}

impl Slot {
    pub(super) fn new(id: RegionId, copy: Option<Box<Replica>>, context: &Context) -> Slot {
        Slot {
            id,
            config: None,
            backup: Backup::new(id, context.me),
            holding: Holding::Copy(copy),
            work: None,
            building: None,
            reading: None,
            safe_lsns: SafeLsns::default(),
            is_building: false,
            compacted: CompactionTotals::default(),
            candidate: None,
            waiting: WaitingRoom::default(),
            out_of_space: None,
            last_ended: Epoch(0),
        }
    }

    pub(super) fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.holding {
            Holding::Serving(serving) => Some(serving),
            _ => None,
        }
    }

    // ---- what may change the role --------------------------------------------------------------------------------

    /// A configuration was read from the coordinator that is newer than the one known here.
    pub(super) fn configure(&mut self, now: Nanos, config: &GroupConfig, context: &mut Context, out: &mut Vec<Answer>) {
        let before = self.config.replace(config.clone());
        self.out_of_space.take_if(|_| before.as_ref().is_none_or(|before| before.term != config.term));
        if before.is_none_or(|before| before.inherited_below != config.inherited_below) {
            self.set_inherited_below();
        }
        self.activate_child(config);
        if planted(Bug::ReleaseEverything) {
            context.grants.release(self.id, config.term);
            self.backup.join_when_allowed(now, &context.grants);
            self.act_as_backup(context);
        }
        if config.has(context.me) && config.primary != Some(context.me) {
            self.backup.term_began(now, config.term, &context.grants);
            self.act_as_backup(context);
        }
        self.reconcile(now, context, out);
    }

    /// Brings this node's role in line with the configuration, as far as that is possible now.
    pub(super) fn reconcile(&mut self, now: Nanos, context: &mut Context, out: &mut Vec<Answer>) {
        let Some(config) = &self.config else { return self.finish_retiring(context) };
        if let Holding::Serving(serving) = &mut self.holding {
            if let Some(options) = context.agent.view().table(&config.table).filter(|o| *o != serving.primary.options())
            {
                serving.primary.set_options(options.clone());
            }
            if serving.primary.config() == config {
                return;
            }
        }
        let config = config.clone();
        let mine = config.primary == Some(context.me);
        match &mut self.holding {
            Holding::Serving(serving) if mine && serving.term == config.term => {
                serving.region.set_inherited_below(config.inherited_below);
                serving.primary.reconfigure(now, config, &context.links_up());
                self.act_as_primary(context);
            }
            Holding::Serving(serving) => {
                let term = serving.term;
                self.step_down(context, out);
                context.release_leases(&config, term);
            }
            Holding::Copy(_) if mine && config.term > self.last_ended => self.campaign(now, &config, context),
            _ => {}
        }
        self.finish_retiring(context);
    }

    /// Becomes the primary of `config`, if no other member can have a longer copy.
    fn campaign(&mut self, now: Nanos, config: &GroupConfig, context: &mut Context) {
        if config.recovery_quorum == 0 || self.is_longest(now, config, context) {
            self.promote(now, config, context);
        }
    }

    /// There was no room for the promotion to primary of `term`.
    fn note_out_of_space(&mut self, now: Nanos, term: Epoch) {
        if self.config.as_ref().is_some_and(|config| config.term == term) {
            let since = self.out_of_space.map_or(now, |(since, _)| since);
            self.out_of_space = Some((since, now + OUT_OF_SPACE_PAUSE));
        }
    }

    /// This node should serve the region, and cannot, or not soon.
    pub(super) fn is_out_of_order(&self, now: Nanos) -> bool {
        let is_out_of_space = self.out_of_space.is_some_and(|(since, _)| now - since >= OUT_OF_SPACE_TIMEOUT);
        is_out_of_space || matches!(self.holding, Holding::Broken(_))
    }

    /// Whether this copy is known to be the longest. Asks the other members, and hands the primary role to one with a longer
    /// copy.
    fn is_longest(&mut self, now: Nanos, config: &GroupConfig, context: &mut Context) -> bool {
        let Some(options) = context.table_options(&config.table) else { return false };
        let known = self.candidate.take().filter(|candidate| candidate.term() == config.term);
        let mut candidate = known.unwrap_or_else(|| Candidate::new(now, config.clone()));
        candidate.reconfigure(config);
        let (me, term, session) = (context.me.server, config.term, candidate::SESSION);
        let open = ToBackup::Open { options };
        for server in candidate.ask(now, |server| server == me || context.can_succeed(server)) {
            let body = open.clone();
            match server == me {
                true => self.backup.message(now, PrimarySession { primary: me, term, session }, body, &context.grants),
                false => context.send(server, &Control::ToBackup { region: self.id, term, session, body }),
            }
        }
        let verdict = candidate.verdict(now);
        self.candidate = Some(candidate);
        match verdict {
            Verdict::Serve => return true,
            Verdict::HandOver(target) => {
                tracing::info!(region = %self.id, %term, to = %target.server, "hands the primary role over");
                context.propose(config, config.handed_to(target));
            }
            Verdict::Open => {}
        }
        self.act_as_backup(context);
        false
    }

    fn promote(&mut self, now: Nanos, config: &GroupConfig, context: &mut Context) {
        let is_blocked = context.grants.blocked_until(now, self.id, config.term).is_some() || !self.backup.is_idle();
        if is_blocked || self.out_of_space.is_some_and(|(_, until)| now < until) {
            return;
        }
        let Some(options) = context.table_options(&config.table) else { return };
        let Holding::Copy(copy) =
            std::mem::replace(&mut self.holding, Holding::Promoting { term: config.term, since: now })
        else {
            unreachable!("only a copy that no job has is promoted");
        };
        let mounted = self.backup.retire();
        (self.work, self.building, self.reading, self.candidate) = (None, None, None, None);
        let (id, term, volume, requests) = (self.id, config.term, context.volume.clone(), context.requests.clone());
        context.spawn(self.id, Activity::Engine.of_primary(), move || {
            let open = || -> Result<Arc<Region>, Unopened> {
                let copy = match copy {
                    Some(copy) => *copy,
                    None => Replica::create(&volume, id, options).map_err(|error| Unopened { copy: None, error })?,
                };
                match mounted.as_ref().map_or(Ok(Vec::new()), |mounted| mounted.give_up(&copy)) {
                    Ok(buffers) => copy.promote(buffers, term),
                    Err(error) => Err(Unopened { copy: Some(Box::new(copy)), error }),
                }
            };
            let opened = open().map(|region| Opened::new(region, requests));
            Outcome::Promoted(opened.map_err(|unopened| PromotionFailed { unopened, mounted }))
        });
    }

    fn promoted(&mut self, now: Nanos, result: Result<Opened, PromotionFailed>, context: &mut Context) {
        let Holding::Promoting { term, since } = self.holding else {
            unreachable!("only one job promotes a copy");
        };
        let result = result.inspect(|_| self.out_of_space = None);
        match (result, &self.config) {
            (Ok(opened), Some(config)) => {
                let options = context.table_options(&config.table).unwrap_or_else(|| opened.region.options().clone());
                let mut config = config.clone();
                if config.term != term {
                    // Another term began meanwhile, so the region retires at once.
                    (config.backups, config.learners, config.term) = (Vec::new(), Vec::new(), term);
                }
                let primary = Primary::new(now, config, options, context.timing, &context.links_up());
                self.holding = Holding::Serving(Box::new(Serving::new(since, context, opened, primary)));
                self.act_as_primary(context);
            }
            (
                Err(PromotionFailed { unopened: Unopened { error: error @ Error::NoSpace { .. }, copy }, mounted }),
                _,
            ) => {
                tracing::warn!(region = %self.id, %error, "cannot be opened for serving, and will be tried again");
                self.note_out_of_space(now, term);
                self.backup.reinstate(mounted);
                self.holding = Holding::Copy(copy);
            }
            (Err(PromotionFailed { unopened: Unopened { error, .. }, .. }), _) => {
                tracing::error!(region = %self.id, %error, "cannot be opened for serving");
                self.holding = Holding::Broken(error.to_string());
            }
            // The region no longer exists.
            (Ok(opened), None) => self.reopen(opened.region, context),
        }
    }

    /// A newer term has begun, or a message says so.
    pub(super) fn step_down(&mut self, context: &mut Context, out: &mut Vec<Answer>) {
        let Holding::Serving(mut serving) = std::mem::replace(&mut self.holding, Holding::Reopening) else {
            unreachable!("only a serving region steps down");
        };
        tracing::info!(region = %self.id, term = %serving.term, "no longer the primary");
        context.again.extend(serving.abandon(out));
        // Retiring waits for these jobs.
        context.jobs.append(&mut serving.new_jobs);
        context.joining.change(&serving.joining, &[]);
        self.last_ended = self.last_ended.max(serving.term);
        self.holding = Holding::Retiring(serving);
        self.finish_retiring(context);
    }

    fn finish_retiring(&mut self, context: &mut Context) {
        if !matches!(&self.holding, Holding::Retiring(serving) if serving.jobs == 0) {
            return;
        }
        let Holding::Retiring(serving) = std::mem::replace(&mut self.holding, Holding::Reopening) else {
            unreachable!("just seen");
        };
        self.reopen(serving.region, context);
    }

    /// Makes a copy again of what was open.
    fn reopen(&mut self, region: Arc<Region>, context: &mut Context) {
        self.holding = Holding::Reopening;
        let retire = move || Outcome::Retired(region.into_replica().map(Box::new));
        context.spawn(self.id, Activity::Engine.of_primary(), retire);
    }

    // ---- a backup's side -----------------------------------------------------------------------------------------

    /// A primary's message.
    pub(super) fn hear_primary(
        &mut self,
        now: Nanos,
        session: PrimarySession,
        body: ToBackup,
        context: &mut Context,
        out: &mut Vec<Answer>,
    ) {
        let superseded = match &self.holding {
            Holding::Serving(serving) => serving.term < session.term,
            Holding::Promoting { term, .. } => *term >= session.term,
            _ => false,
        };
        match &self.holding {
            Holding::Serving(_) if superseded => self.step_down(context, out),
            Holding::Serving(_) => return,
            Holding::Promoting { .. } if superseded => return,
            _ => {}
        }
        if self.config.as_ref().is_some_and(|config| config.term > session.term) {
            return;
        }
        self.last_ended = self.last_ended.max(session.term);
        self.backup.message(now, session, body, &context.grants);
        self.act_as_backup(context);
    }

    pub(super) fn act_as_backup(&mut self, context: &mut Context) {
        for action in self.backup.take_actions() {
            match action {
                BackupAction::Start(work) => self.work = Some(work),
                BackupAction::Send(to, body) if to.primary == context.me.server => self.hear_itself(to.term, body),
                BackupAction::Send(to, body) => {
                    let message = Control::ToPrimary { region: self.id, term: to.term, session: to.session, body };
                    context.send(to.primary, &message);
                }
            }
        }
        self.run_work(context);
    }

    fn run_work(&mut self, context: &mut Context) {
        if self.work.is_none() || !matches!(self.holding, Holding::Copy(_)) {
            return;
        }
        let Holding::Copy(mut replica) = std::mem::replace(&mut self.holding, Holding::Working) else {
            unreachable!("just seen");
        };
        let work = self.work.take().expect("just seen");
        let (mounted, fabric) = (self.backup.mounted().cloned(), context.fabric.clone());
        let (id, volume) = (self.id, context.volume.clone());
        context.spawn(self.id, work.account(), move || {
            let result = work.run(&volume, id, &mut replica, mounted.as_deref(), fabric.as_ref());
            Outcome::Followed { replica, result }
        });
    }

    /// Starts a compaction of the index that the copy builds, if one is due and none is under way.
    pub(super) fn build(&mut self, context: &mut Context) {
        if self.is_building {
            return;
        }
        let Some(region) = self.building.clone() else { return };
        let Some(compaction) = region.next_compaction(context.wall.now()) else { return };
        self.is_building = true;
        let build = move || Outcome::Built(compact(&region, compaction));
        context.spawn_in_background(self.id, Activity::Compaction.of_backup(), build);
    }

    fn built(&mut self, result: Result<Box<CompactionDone>, Error>) {
        self.is_building = false;
        match result {
            Ok(done) => self.compacted.add(&done),
            // The copy was taken away from the index meanwhile.
            Err(Error::Superseded(_)) => {}
            Err(error) => tracing::warn!(region = %self.id, %error, "a compaction of the backup failed"),
        }
        self.backup.save_tails(false);
    }

    // ---- a primary's side ----------------------------------------------------------------------------------------

    /// A backup's message.
    pub(super) fn hear_backup(
        &mut self,
        now: Nanos,
        from: ServerId,
        term: Epoch,
        session: u64,
        body: ToPrimary,
        context: &mut Context,
    ) {
        if let Some(serving) = self.serving().filter(|serving| serving.term == term) {
            serving.primary.message(now, from, session, body, &mut context.ops);
            self.act_as_primary(context);
        } else if session == candidate::SESSION {
            self.hear_candidate(term, &body);
        }
    }

    /// A member has joined the term in which this node is a candidate.
    fn hear_candidate(&mut self, term: Epoch, body: &ToPrimary) {
        let candidate = self.candidate.as_mut().filter(|candidate| candidate.term() == term);
        if let (Some(candidate), ToPrimary::Opened { member, reach, .. }) = (candidate, body) {
            candidate.opened(*member, *reach);
        }
    }

    /// This node itself has joined that term, or cannot.
    fn hear_itself(&mut self, term: Epoch, body: ToPrimary) {
        self.hear_candidate(term, &body);
        if let ToPrimary::Failed(reason) = body {
            let is_over = self.config.as_ref().is_none_or(|config| config.term != term);
            if is_over || self.out_of_space.is_some() {
                // The node hears another primary by now, or the candidate asks again.
                return;
            }
            tracing::error!(region = %self.id, reason, "cannot open its copy for a promotion");
            self.holding = Holding::Broken(reason);
        }
    }

    /// A proposal of the primary, or of the candidate, ended.
    pub(super) fn proposal_ended(&mut self, now: Nanos, outcome: &leeward_cluster::Outcome) {
        match &mut self.holding {
            Holding::Serving(serving) => serving.proposal_ended(now, outcome),
            _ => self.candidate.iter_mut().for_each(Candidate::proposal_ended),
        }
    }

    /// Carries out the actions of the primary's state machine.
    pub(super) fn act_as_primary(&mut self, context: &mut Context) {
        let Holding::Serving(serving) = &mut self.holding else { return };
        context.jobs.append(&mut serving.new_jobs);
        let begun = &mut serving.joining;
        serving.primary.begin_sessions(context.now, |server, is_counted| {
            context.joining.admit(context.now, server, is_counted)?;
            begun.push(Session { server, lacked: 0, is_based: false });
            Ok(())
        });
        loop {
            let actions = serving.primary.take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    PrimaryAction::Propose(config) => {
                        if planted(Bug::ReleaseBeforeKnown) {
                            context.release_leases(&config, serving.term);
                        }
                        context.propose(serving.primary.config(), config);
                    }
                    PrimaryAction::Split { left, right } => context.split(serving.primary.config(), *left, *right),
                    PrimaryAction::Merge { wider, source } => context.merge(serving.primary.config(), *wider, *source),
                    PrimaryAction::Peer { server, session, action } => {
                        act_for_peer(serving, server, session, action, context);
                    }
                }
            }
        }
        context.jobs.append(&mut serving.new_jobs);
        let joining = serving.joining();
        context.joining.change(&serving.joining, &joining);
        serving.joining = joining;
    }

    // ---- jobs ----------------------------------------------------------------------------------------------------

    /// A job ended.
    pub(super) fn job_done(&mut self, now: Nanos, outcome: Outcome, context: &mut Context, out: &mut Vec<Answer>) {
        match outcome {
            Outcome::Promoted(result) => self.promoted(now, result, context),
            Outcome::Retired(Ok(replica)) => self.holding = Holding::Copy(Some(replica)),
            Outcome::Retired(Err(error)) => {
                tracing::error!(region = %self.id, %error, "cannot be opened again");
                self.holding = Holding::Broken(error.to_string());
            }
            Outcome::Followed { replica, result } => {
                let copy = replica.as_deref();
                self.set_building(copy.and_then(Replica::building));
                self.reading = copy.and_then(Replica::reading);
                let applied = copy.and_then(Replica::applied);
                self.holding = Holding::Copy(replica);
                let own = self.backup.primary_session().filter(|session| session.primary == context.me.server);
                if let (Err(Undone { lacks_room: true, .. }), Some(session)) = (&result, own) {
                    self.note_out_of_space(now, session.term);
                }
                self.backup.done(result);
                self.backup.applied(applied);
                self.build(context);
            }
            Outcome::Built(result) => {
                self.built(result);
                self.build(context);
            }
            Outcome::Destroyed(result) => self.destroyed(result),
            other => self.serving_job_done(now, other, context),
        }
        self.act_as_backup(context);
        self.reconcile(now, context, out);
    }

    fn serving_job_done(&mut self, now: Nanos, outcome: Outcome, context: &mut Context) {
        let (Holding::Serving(serving) | Holding::Retiring(serving)) = &mut self.holding else {
            unreachable!("a region is given up only when none of its jobs is running");
        };
        serving.jobs -= 1;
        if matches!(self.holding, Holding::Retiring(_)) {
            return;
        }
        let serving = self.serving().expect("just seen");
        match outcome {
            Outcome::LookedUp { answers, unread } => {
                serving.for_memory.push_lookups(unread);
                for (ticket, result) in answers {
                    serving.looked_up(now, ticket, result);
                }
            }
            Outcome::Exported { name, left, export } => serving.exported(now, name, left, export),
            Outcome::Scanned { ticket, at, result } => serving.scanned(now, ticket, at, result),
            upkeep => serving.job_done(now, upkeep, &mut context.ops),
        }
        self.act_as_primary(context);
    }
}

fn act_for_peer(serving: &mut Serving, server: ServerId, session: u64, action: PeerAction, context: &mut Context) {
    let peer = serving.primary.peer(server);
    match action {
        PeerAction::Send(body) => {
            let message = Control::ToBackup { region: serving.id, term: serving.term, session, body };
            context.send(server, &message);
        }
        PeerAction::Mirror(write) => {
            let _at = cpu::at(Activity::Mirroring.of_primary());
            let Some(buffer) = peer.and_then(|peer| peer.buffer(write.buffer())) else { return };
            let to = link::descriptor(buffer);
            let tail = serving.region.tail(write.log, write.index);
            let tail = tail.expect("a tail is kept until every peer has flushed it");
            let offset = write.range.start as u64;
            context.fabric.write(link::peer(server), &to, offset, &tail.bytes()[write.range], write.op);
        }
        PeerAction::Slot(write) => {
            let _apart = cpu::apart(Activity::Shipping.of_primary());
            let Some(slot) = peer.and_then(|peer| peer.slot(write.slot)) else { return };
            context.fabric.write(link::peer(server), &link::descriptor(slot), 0, &write.parcel.bytes, write.op);
        }
        // Writes wait for a counted member, so its loads start at once.
        PeerAction::Load(id) if peer.is_some_and(|peer| peer.counted) => serving.load(server, session, id),
        PeerAction::Load(id) => {
            let bytes = serving.bytes_of(server, id);
            context.catch_up.want(Wanted { region: serving.id, server, session, id, bytes });
        }
        PeerAction::AskLease => context.ask_lease(server, vec![(serving.id, serving.term)]),
        PeerAction::UnpinBase => serving.unpin(server),
        PeerAction::PinBase => {} // Pinned between compactions, by the upkeep.
    }
}

/// Carries out a compaction of a copy that builds its own index.
fn compact(region: &Region, compaction: Compaction) -> Result<Box<CompactionDone>, Error> {
    let done = compaction.finish()?;
    region.install(&done)?;
    Ok(Box::new(done))
}

impl Context {
    /// Adds a job of a region for which no client and no primary waits.
    pub(super) fn spawn_in_background(
        &mut self,
        region: RegionId,
        account: Account,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        self.jobs.push(Job::new(JobClass::Background, account, region, work));
    }

    /// Adds a job of a region.
    pub(super) fn spawn(
        &mut self,
        region: RegionId,
        account: Account,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        self.jobs.push(Job::new(JobClass::Foreground, account, region, work));
    }
}
