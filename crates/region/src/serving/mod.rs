//! A region that this node is the primary of: operations, commit, and the upkeep of its logs and levels.
//!
//! | file | holds |
//! |---|---|
//! | `execute`, `decide` | operations, from their begin to an answer |
//! | `at_once` | reads that memory answers at once |
//! | `queues`, `for_memory` | operations that wait |
//! | `answers` | answers that have not left yet |
//! | `upkeep` | tails and compactions; what is shipped to backups |
//! | `bases` | what members that are brought in sync get |
//! | `checkpoint` | copies on volumes of their own |
//! | `direct_reads` | the hash index, which clients read by one-sided reads |
//! | `safe_lsn_line` | the safe LSN, which backups read likewise |
//! | `fill` | the walk that fills the index |
//!
//! Invariants:
//! - An answer leaves only when every LSN that it shows is acknowledged *and* the lease is held. A read that memory answers
//!   at once is checked by a reading of the clock since it came, and may leave later (`at_once`).
//! - A write begins, and is acknowledged, only while `min_in_sync` members are in sync. One that began before there were too
//!   few is answered with "not known": the group would lose it with this member.
//! - Operations on one key take place in the order in which they were submitted. While one of them waits for the device or for
//!   room, the later ones queue behind it. A delete of a range waits for operations on keys of the range, and all later
//!   operations wait for it.
//! - Nothing here blocks: what touches the device is a [`Job`]. A region is given up only when no job runs.

mod answers;
mod at_once;
mod bases;
pub mod checkpoint;
pub mod copy_reads;
pub mod decide;
mod direct_reads;
pub mod execute;
mod fill;
mod for_memory;
mod queues;
pub mod reshape;
pub(super) mod safe_lsn_line;
mod upkeep;

use crate::client_memory::ClientMemory;
use crate::dedup::Requests;
use crate::effects::{Effect, NodeResources, Step, Wall};
use crate::job::{Job, JobClass, Opened, Outcome};
use crate::request::{Answer, Request};
use crate::serving::reshape::Reshape;
use crate::serving::reshape::quiesce::CompactionUrgency;
use answers::Answers;
use bases::Bases;
use checkpoint::Exports;
use direct_reads::DirectReads;
use leeward_engine::{Region, Tail};
use leeward_format::status::RegionCounters;
use leeward_format::{Epoch, LogKind, Lsn, RegionId, UnixMs};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Account, Activity};
use leeward_platform::planted::{Bug, planted};
use leeward_replication::primary::Primary;
use leeward_replication::tail::TailView;
use queues::Queues;
use std::cell::Cell;
use std::sync::Arc;
use upkeep::Upkeep;

/// How the region came to be served.
struct Opening {
    /// Every member has installed its base: operations are served.
    is_open: bool,
    since: Nanos,
    /// How long it took until it was open.
    recovery: Nanos,
}

/// Jobs of a region.
#[derive(Default)]
struct Jobs {
    running: usize,
    /// Those that the runtime does not have yet.
    new: Vec<Job>,
}

/// A region that this node is the primary of.
pub struct Serving {
    region: Arc<Region>,
    primary: Primary,
    opening: Opening,
    wall: Wall,
    /// Values that are read for clients are charged to it. While it is full none is read.
    clients: ClientMemory,
    queues: Queues,
    answers: Answers,
    upkeep: Upkeep,
    bases: Bases,
    exports: Exports,
    reshape: Reshape,
    requests: Requests,
    direct_reads: DirectReads,
    counters: RegionCounters,
    /// Reads of `at_once`, which `counters` lack.
    reads_at_once: Cell<u64>,
    jobs: Jobs,
}

impl Serving {
    pub(crate) fn new(now: Nanos, node: &NodeResources, opened: Opened, primary: Primary) -> Serving {
        let Opened { region, requests } = opened;
        region.set_inherited_below(primary.config().inherited_below);
        Serving {
            reshape: Reshape::new(primary.config().region, node.merge_bytes),
            region,
            primary,
            opening: Opening { is_open: false, since: now, recovery: Nanos::ZERO },
            wall: node.wall.clone(),
            clients: node.clients.clone(),
            queues: Queues::new(),
            answers: Answers::default(),
            upkeep: Upkeep::default(),
            bases: Bases::default(),
            exports: Exports::new(node.checkpoints.clone()),
            direct_reads: DirectReads::new(
                node.readable.clone(),
                node.me.incarnation,
                Arc::clone(&node.safe_lsn_lines),
            ),
            requests,
            counters: RegionCounters::default(),
            reads_at_once: Cell::new(0),
            jobs: Jobs::default(),
        }
    }

    /// Which region of the cluster it is.
    pub fn id(&self) -> RegionId {
        self.region.id()
    }

    /// The term in which this node serves it.
    pub fn term(&self) -> Epoch {
        self.primary.config().term
    }

    /// Its copy on this node.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The primary's side of its group.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// The primary's side of its group.
    pub fn primary_mut(&mut self) -> &mut Primary {
        &mut self.primary
    }

    /// How far it has come with a transfer, a split, a merge or a trim.
    pub fn reshape(&self) -> &Reshape {
        &self.reshape
    }

    pub(crate) fn reshape_mut(&mut self) -> &mut Reshape {
        &mut self.reshape
    }

    pub(crate) fn requests_mut(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// What it has done since it was opened.
    pub fn counters(&self) -> RegionCounters {
        RegionCounters { reads: self.counters.reads + self.reads_at_once.get(), ..self.counters }
    }

    pub(crate) fn counters_mut(&mut self) -> &mut RegionCounters {
        &mut self.counters
    }

    /// Operations are served.
    pub fn is_open(&self) -> bool {
        self.opening.is_open
    }

    /// Since when the node serves it or prepares to, and how long it took until it was open.
    pub fn opening(&self) -> (Nanos, Nanos) {
        (self.opening.since, self.opening.recovery)
    }

    /// The wall time, by which pairs expire.
    pub(crate) fn wall_now(&self) -> UnixMs {
        self.wall.now()
    }

    /// Answers up to here may leave.
    pub(crate) fn acknowledged(&self) -> Lsn {
        self.answers.acknowledged()
    }

    // ---- jobs -----------------------------------------------------------------------------------------------------

    pub(crate) fn spawn(&mut self, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.add_job(JobClass::Foreground, Activity::Engine.of_primary(), work);
    }

    pub(crate) fn spawn_in_background(&mut self, account: Account, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.add_job(JobClass::Background, account, work);
    }

    fn add_job(&mut self, class: JobClass, account: Account, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.job_begins();
        self.jobs.new.push(Job::new(class, account, self.id(), work));
    }

    /// A job of the region begins that is handed to the runtime elsewhere.
    pub(crate) fn job_begins(&mut self) {
        self.jobs.running += 1;
    }

    /// A job of the region has ended.
    pub(crate) fn job_ended(&mut self) {
        self.jobs.running -= 1;
    }

    pub(crate) fn has_jobs(&self) -> bool {
        self.jobs.running > 0
    }

    /// Hands new jobs out.
    pub(crate) fn take_jobs(&mut self, step: &mut Step<'_>) {
        self.jobs.new.drain(..).for_each(|job| step.ask(Effect::Spawn(job)));
    }

    // ---- turns ----------------------------------------------------------------------------------------------------

    /// The end of a turn: makes new records durable enough here, sends them to the backups, finds out what is
    /// committed, releases answers, and starts the upkeep that is due.
    pub(crate) fn turn(&mut self, now: Nanos, out: &mut Vec<Answer>) {
        self.run_next(now);
        self.start_lookups(now);
        let last = self.region.last_lsn();
        // It fails only with the volume, which logs that itself.
        if self.region.write_tails().is_ok() {
            self.upkeep.written = last;
        }
        let written = self.upkeep.written;
        self.post(last);
        let commit = self.primary.commit(written);
        if !self.is_open() && !self.reshape.is_pending_child() && self.primary.may_open() {
            self.opening.is_open = true;
            self.opening.recovery = now - self.opening.since;
            tracing::info!(region = %self.id(), term = %self.term(), lsn = %last, "serving");
        }
        if self.is_open() {
            self.region.set_commit(commit);
            if planted(Bug::AnswerUnpublished) {
                self.direct_reads.publish(self.answers.acknowledged());
            }
            if planted(Bug::AnswerUnshown) {
                self.show_safe_lsn();
            }
            self.answers.acknowledge(self.primary.acknowledged(written));
            if !planted(Bug::AnswerUnpublished) {
                self.direct_reads.publish(self.answers.acknowledged());
            }
            if !planted(Bug::AnswerUnshown) {
                self.show_safe_lsn();
            }
        }
        self.answers.take_ready(out);
        self.release(now, out);
        self.maintain(now);
    }

    fn post(&mut self, last: Lsn) {
        if self.primary.peers().next().is_some() {
            let _at = cpu::at(Activity::Mirroring.of_primary());
            let tails: Vec<Arc<Tail>> = LogKind::APPENDED.into_iter().flat_map(|log| self.region.tails(log)).collect();
            let views: Vec<TailView<'_>> = tails.iter().map(|tail| tail_view(tail)).collect();
            self.primary.post(&views, last);
        }
    }

    /// The region waits for something that comes soon with time alone, so it wants each turn.
    pub(crate) fn wants_turn(&self, now: Nanos) -> bool {
        self.answers.are_slowed(now)
            || !self.queues.for_memory.is_empty()
            || !self.queues.stalled.is_empty()
            || !self.queues.behind.is_empty() && self.is_active()
    }

    /// Whether it has nothing to do until an event comes.
    pub(crate) fn may_idle(&self, now: Nanos) -> bool {
        let has_ended = self.is_drained() && self.has_none_behind() && self.exports.is_empty();
        let is_due = self.upkeep.waits_for_time(now) || self.compaction_urgency(now) != CompactionUrgency::Due;
        has_ended
            && self.is_open()
            && !self.upkeep.is_compacting()
            && !is_due
            && self.is_trimmed()
            && self.primary.is_idle(now, self.region.last_lsn())
            && self.region.is_idle(self.wall.now())
            && !self.direct_reads.has_readers()
    }

    /// The region could not quiesce now: a checkpoint copies it, it brings a member in sync, or a member has not installed a
    /// compaction that is installed here.
    pub(crate) fn is_being_copied(&self) -> bool {
        !self.exports.is_empty() || self.primary.joining().next().is_some() || !self.primary.is_installed()
    }

    /// A compaction is under way.
    pub(crate) fn is_compacting(&self) -> bool {
        self.upkeep.is_compacting()
    }

    /// Time has passed: tells members what is durable, and gives up answers and operations that have waited for too long.
    pub(crate) fn tick(&mut self, now: Nanos, out: &mut Vec<Answer>) {
        if self.is_active() && !self.reshape.is_merge_target() {
            self.primary.durable(self.region.commit().min(self.region.synced_lsn()));
        }
        self.maintain_direct_reads(now);
        self.primary.tick(now, self.region.commit());
        self.answers.expire(now, self.id(), out);
        self.expire_queues(now, out);
    }

    /// Ends every unanswered operation: this node has lost the primary role. Gives back those that were not executed.
    pub(crate) fn abandon(&mut self, out: &mut Vec<Answer>) -> Vec<Request> {
        self.close_direct_reads();
        self.answers.abandon(self.id(), out);
        let operations = self.queues.abandon();
        self.upkeep.abandon();
        self.bases.abandon();
        self.as_requests(operations)
    }
}

fn tail_view(tail: &Tail) -> TailView<'_> {
    TailView {
        log: tail.log(),
        index: tail.index(),
        id: tail.id(),
        segment: tail.segment(),
        bytes: tail.bytes(),
        sealed: tail.sealed().then(|| tail.last_lsn()),
    }
}
