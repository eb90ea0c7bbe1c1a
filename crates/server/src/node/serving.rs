//! A region that this node is the primary of: operations, commit, and the upkeep of its logs and levels.
//!
//! Invariants:
//! - An answer leaves only when every LSN that it shows is committed *and* the lease is held. Until then it waits ([`Held`]).
//! - A write begins, and is acknowledged, only while `min_in_sync` members are in sync. One that began before there were too few
//!   is answered with "not known": the group would lose it with this member.
//! - Operations on one key take place in the order in which they were submitted. While one of them waits for the device or for
//!   room, the later ones queue behind it ([`Serving::locked`]). A delete of a range waits for operations on keys of the range,
//!   and all later operations wait for it ([`Serving::behind`]).
//! - Nothing here blocks: what touches the device is a [`Job`]. A region is given up only when no job runs ([`Serving::jobs`]).

use super::Context;
use super::export::{Checkpoints, Exporting};
use super::for_memory::MemoryQueue;
use super::forward::Unrouted;
use super::job::{Job, JobClass, Opened, Outcome, Stepped};
use super::joining::Session;
use super::merge::MergeState;
use super::quiesce::{CompactionUrgency, Quiesce};
use super::requests::Requests;
use super::samples::Samples;
use super::split::{PendingChild, Split};
use super::trim::Trim;
use super::wall::Wall;
use crate::client_memory::ClientMemory;
use bytes::Bytes;
use leeward_engine::compaction::{Compaction, CompactionDone};
use leeward_engine::version::Version;
use leeward_engine::{Error, PinnedBase, Region, Tail};
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::request::Once;
use leeward_format::status::RegionCounters;
use leeward_format::table::TableName;
use leeward_format::{Epoch, LogKind, Lsn, RegionId, SegmentId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Account, Activity};
use leeward_platform::planted::{Bug, planted};
use leeward_replication::mirror::TailView;
use leeward_replication::primary::{Ops, Primary};
use leeward_replication::ship::Parcel;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTo {
    /// A client of this node.
    Client(super::Token),
    /// A node that forwarded the operation.
    Peer(ServerId, u64),
}

/// An answer, on its way out of the node.
pub(super) type Answer = (ReplyTo, OpResult);

pub(super) struct Held {
    pub(super) to: ReplyTo,
    pub(super) result: OpResult,
    pub(super) is_write: bool,
    pub(super) since: Nanos,
}

/// An operation that waits for a look-up of its key, or a scan.
pub(super) struct Pending {
    pub(super) to: ReplyTo,
    /// Without the region, if it named this one.
    pub(super) op: Op,
    pub(super) names_region: bool,
    /// The request's id, if the operation is to be carried out once.
    pub(super) once: Option<Once>,
    pub(super) since: Nanos,
}

/// Keys that must be read from the device: one job for all, which has several reads in flight.
pub(super) struct Lookups {
    pub(super) version: Arc<Version>,
    /// Ticket of the operation, its key, and the LSN as of which it reads.
    pub(super) keys: Vec<(u64, Bytes, Lsn)>,
}

enum Compacting {
    Idle,
    /// A step or the install runs.
    Busy,
    /// The next step waits until the backups have taken what was built.
    Parked(Box<Compaction>),
}

/// How long an answer may wait to be committed, or for the lease, before the client is told that it is not known.
pub(super) const OP_TIMEOUT: Nanos = Nanos::from_secs(5);

/// How long upkeep that allocates or reads segments backs off after it failed.
const UPKEEP_BACKOFF: Nanos = Nanos::from_secs(1);

/// See the module.
pub(super) struct Serving {
    pub(super) id: RegionId,
    pub(super) term: Epoch,
    pub(super) region: Arc<Region>,
    pub(super) primary: Primary,
    /// Every member has installed its base: operations are served.
    pub(super) open: bool,
    pub(super) since: Nanos,
    pub(super) wall: Wall,
    /// Values that are read for clients are charged to it. While it is full none is read.
    pub(super) clients: ClientMemory,
    pub(super) checkpoints: Option<Checkpoints>,
    /// Checkpoints that were asked for, by name.
    pub(super) exporting: BTreeMap<String, Exporting>,
    pub(super) recovery: Nanos,
    pub(super) jobs: usize,
    pub(super) counters: RegionCounters,
    /// Answers that wait for their LSN to be committed.
    pub(super) held: BTreeMap<Lsn, Vec<Held>>,
    /// Keys with an operation under way, and the operations that queue behind it.
    pub(super) locked: HashMap<Bytes, VecDeque<Pending>>,
    /// Operations that wait for the device.
    pub(super) pending: HashMap<u64, Pending>,
    pub(super) next_ticket: u64,
    /// Keys to be looked up at the end of the turn, of one version.
    pub(super) lookups: Option<Lookups>,
    /// Reads that wait for memory.
    pub(super) for_memory: MemoryQueue,
    /// Writes that wait for room, in order.
    pub(super) stalled: VecDeque<Pending>,
    pub(super) stalled_since: Option<(Nanos, bool)>,
    pub(super) requests: Requests,
    pub(super) samples: Samples,
    /// A delete of a range that waits for keys or room, and what was submitted since, in order.
    pub(super) behind: VecDeque<Pending>,
    /// Until then no write is answered.
    slowed_until: Nanos,
    /// Answers that wait for nothing.
    pub(super) answers: Vec<Answer>,
    /// Last LSN that this volume has in its page cache: without backups, what is acknowledged.
    written: Lsn,
    /// Answers up to here may leave: what is committed, and with last-flush more.
    pub(super) acknowledged: Lsn,
    compacting: Compacting,
    pub(super) quiesce: Quiesce,
    /// As of this turn, no other node can serve any of its keys, whatever the outcome of the proposal under way.
    pub(super) is_alone: bool,
    pub(super) split: Split,
    pub(super) merge_state: MergeState,
    /// Most bytes of pairs that are copied when this region is merged into its neighbour.
    pub(super) merge_bytes: u64,
    pub(super) trim: Trim,
    /// Set while the region is a pending child, in no configuration yet.
    pub(super) pending_child: Option<PendingChild>,
    flushing: [bool; 2],
    flushed_below: [u64; 2],
    preparing: bool,
    syncing: bool,
    pub(super) unsynced_since: Option<Nanos>,
    /// Upkeep failed without harm to the volume (it is full, or a read failed). It is tried again at this time.
    pub(super) backoff_until: Nanos,
    /// Index that the next tail of each log will have, as far as tails were released or sealed.
    pub(super) next_index: [u64; 2],
    pub(super) pins: BTreeMap<ServerId, Arc<PinnedBase>>,
    /// Sessions that have begun and are not in sync yet, as counted.
    pub(super) joining: Vec<Session>,
    pub(super) new_jobs: Vec<Job>,
}

impl Serving {
    pub(super) fn new(now: Nanos, context: &Context, opened: Opened, primary: Primary) -> Serving {
        let Opened { region, requests } = opened;
        region.set_inherited_below(primary.config().inherited_below);
        Serving {
            requests,
            samples: Samples::new(primary.config().region),
            id: primary.config().region,
            term: primary.config().term,
            region,
            primary,
            open: false,
            since: now,
            wall: context.wall.clone(),
            clients: context.clients.clone(),
            checkpoints: context.checkpoints.clone(),
            exporting: BTreeMap::new(),
            recovery: Nanos::ZERO,
            jobs: 0,
            counters: RegionCounters::default(),
            held: BTreeMap::new(),
            locked: HashMap::new(),
            pending: HashMap::new(),
            next_ticket: 0,
            lookups: None,
            for_memory: MemoryQueue::default(),
            stalled: VecDeque::new(),
            stalled_since: None,
            behind: VecDeque::new(),
            slowed_until: Nanos::ZERO,
            answers: Vec::new(),
            written: Lsn(0),
            acknowledged: Lsn(0),
            compacting: Compacting::Idle,
            quiesce: Quiesce::NEVER,
            is_alone: true,
            split: Split::default(),
            merge_state: MergeState::default(),
            merge_bytes: context.merge_bytes,
            trim: Trim::FIRST,
            pending_child: None,
            flushing: [false; 2],
            flushed_below: [0; 2],
            preparing: false,
            syncing: false,
            unsynced_since: None,
            backoff_until: Nanos::ZERO,
            next_index: [0; 2],
            pins: BTreeMap::new(),
            joining: Vec::new(),
            new_jobs: Vec::new(),
        }
    }

    pub(super) fn spawn(&mut self, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.jobs += 1;
        self.new_jobs.push(Job::new(JobClass::Foreground, Activity::Engine.of_primary(), self.id, work));
    }

    pub(super) fn spawn_in_background(&mut self, account: Account, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.jobs += 1;
        self.new_jobs.push(Job::new(JobClass::Background, account, self.id, work));
    }

    /// The end of a turn: makes new records durable enough here, sends them to the backups, finds out what is
    /// committed, releases answers, and starts the upkeep that is due.
    pub(super) fn turn(&mut self, now: Nanos, ops: &mut Ops, flush_interval: Nanos, out: &mut Vec<Answer>) {
        self.run_next(now);
        self.start_lookups(now);
        let last = self.region.last_lsn();
        // It fails only with the volume, which logs that itself.
        if self.region.write_tails().is_ok() {
            self.written = last;
        }
        self.post(last, ops);
        let commit = self.primary.commit(self.written);
        if !self.open && self.pending_child.is_none() && self.primary.may_open() {
            self.open = true;
            self.recovery = now - self.since;
            tracing::info!(region = %self.id, term = %self.term, lsn = %last, "serving");
        }
        if self.open {
            self.region.set_commit(commit);
            self.acknowledged = self.acknowledged.max(self.primary.acknowledged(self.written));
        }
        out.append(&mut self.answers);
        self.release(now, out);
        self.maintain(now, flush_interval);
    }

    fn post(&mut self, last: Lsn, ops: &mut Ops) {
        if self.primary.peers().next().is_some() {
            let _at = cpu::at(Activity::Mirroring.of_primary());
            let tails: Vec<Arc<Tail>> = LogKind::APPENDED.into_iter().flat_map(|log| self.region.tails(log)).collect();
            let views: Vec<TailView<'_>> = tails.iter().map(|tail| tail_view(tail)).collect();
            self.primary.post(&views, last, ops);
        }
    }

    /// Holds an answer until `lsn` is committed.
    pub(super) fn hold(&mut self, now: Nanos, lsn: Lsn, to: ReplyTo, is_write: bool, result: OpResult) {
        let lsn = if planted(Bug::ServeUncommitted) && !is_write { Lsn(0) } else { lsn };
        self.held.entry(lsn).or_default().push(Held { to, result, is_write, since: now });
    }

    /// Delays answers of writes by another `pause`, so that compactions keep up.
    pub(super) fn slow_down(&mut self, now: Nanos, pause: Duration) {
        let pause = Nanos(pause.as_nanos() as u64);
        self.slowed_until = self.slowed_until.max(now) + pause;
        self.counters.stall_slowed_ns += pause.0;
    }

    /// The region waits for something that comes soon with time alone, so it wants each turn.
    pub(super) fn wants_turn(&self, now: Nanos) -> bool {
        let is_slowed = now < self.slowed_until && !self.held.is_empty();
        is_slowed
            || !self.for_memory.is_empty()
            || !self.stalled.is_empty()
            || !self.behind.is_empty() && self.is_active()
    }

    /// Releases every committed answer, if no other node can be primary, but none of a write while writes are throttled.
    fn release(&mut self, now: Nanos, out: &mut Vec<Answer>) {
        if !self.open || !self.is_alone || !(self.primary.holds_lease(now) || planted(Bug::SkipLeaseCheck)) {
            return;
        }
        // What was committed once stays committed, also while the session of a member begins anew.
        let waiting = self.held.split_off(&self.acknowledged.next());
        let ready = std::mem::replace(&mut self.held, waiting);
        // While a write was held other members may have failed. A write that only the last member has is not acknowledged.
        let lacks = self.lacks_members().filter(|_| !planted(Bug::AcknowledgeBelowMinInSync));
        let id = self.id;
        let answer = |held: Held| match &lacks {
            Some(_) if held.is_write => (held.to, lost_answer(id, true, "too few members are in sync")),
            _ => (held.to, held.result),
        };
        if now >= self.slowed_until || !self.is_active() {
            return out.extend(ready.into_values().flatten().map(answer));
        }
        for (lsn, answers) in ready {
            let (delayed, immediate): (Vec<Held>, Vec<Held>) = answers.into_iter().partition(|held| held.is_write);
            out.extend(immediate.into_iter().map(answer));
            if !delayed.is_empty() {
                self.held.insert(lsn, delayed);
            }
        }
    }

    /// Gives up answers and operations that have waited for too long.
    pub(super) fn expire(&mut self, now: Nanos, out: &mut Vec<Answer>) {
        let id = self.id;
        self.held.retain(|_, held| {
            let (old, young) = std::mem::take(held).into_iter().partition(|held| now - held.since > OP_TIMEOUT);
            *held = young;
            let old: Vec<Held> = old;
            out.extend(old.into_iter().map(|held| (held.to, lost_answer(id, held.is_write, "not confirmed in time"))));
            !held.is_empty()
        });
        while let Some(stalled) = self.stalled.pop_front_if(|stalled| now - stalled.since > OP_TIMEOUT) {
            // Where the volume has room, the write waits for a compaction or for backups to flush: a retry may find that done.
            let error = match self.region.volume().why_full() {
                Some(why) => OpError::Unavailable(format!("region {id}: {why}")),
                None => OpError::Overloaded(id),
            };
            out.push((stalled.to, OpResult::Error(error)));
            let key = stalled.op.key().expect("only writes stall").clone();
            self.unlock(now, &key);
        }
        while let Some(first) = self.behind.pop_front_if(|first| now - first.since > OP_TIMEOUT) {
            let why = || format!("region {id}: no room for writes, or keys of the range are in use");
            let error = if self.is_active() { OpError::Unavailable(why()) } else { OpError::Recovering(id) };
            out.push((first.to, OpResult::Error(error)));
            self.run_next(now);
        }
        self.expire_for_memory(now, out);
    }

    /// Ends every unanswered operation: this node has lost the primary role. Gives back those that were not carried out.
    pub(super) fn abandon(&mut self, out: &mut Vec<Answer>) -> Vec<Unrouted> {
        let id = self.id;
        for held in std::mem::take(&mut self.held).into_values().flatten() {
            out.push((held.to, lost_answer(id, held.is_write, "the node lost the primary role")));
        }
        let queued = std::mem::take(&mut self.locked).into_values().flatten();
        let waiting = std::mem::take(&mut self.pending).into_values();
        self.lookups = None;
        let stalled = std::mem::take(&mut self.stalled);
        let (scans, behind) = (self.for_memory.take_scans(), std::mem::take(&mut self.behind));
        let unrouted = self.unrouted(queued.chain(waiting).chain(stalled).chain(scans).chain(behind));
        out.append(&mut self.answers);
        self.compacting = Compacting::Idle;
        self.pins.clear();
        unrouted
    }

    fn unrouted(&self, operations: impl Iterator<Item = Pending>) -> Vec<Unrouted> {
        let table: TableName = self.primary.config().table.parse().expect("it is the name of a table");
        operations.map(|pending| pending.unrouted(self.id, table.clone())).collect()
    }

    /// Gives back operations that were queued and have not begun.
    pub(super) fn hand_out_queue(&mut self) -> Vec<Unrouted> {
        let behind = std::mem::take(&mut self.behind);
        self.unrouted(behind.into_iter())
    }

    // ---- upkeep -------------------------------------------------------------------------------------------------

    fn maintain(&mut self, now: Nanos, flush_interval: Nanos) {
        if self.region.volume().is_failed() {
            return self.pin_for_others();
        }
        for log in LogKind::APPENDED {
            self.maintain_log(log);
        }
        if !self.preparing && now >= self.backoff_until && self.region.wants_tails() {
            self.preparing = true;
            let region = self.region.clone();
            self.spawn(move || Outcome::Prepared(region.prepare_tails()));
        }
        self.sync_when_due(now, flush_interval);
        if now >= self.backoff_until {
            if self.open && self.is_active() {
                self.trim(now);
            }
            self.compact(now);
        }
    }

    /// The volume takes no more writes. If it is the only one that has the region, other nodes can still copy the region from it.
    fn pin_for_others(&mut self) {
        match std::mem::replace(&mut self.compacting, Compacting::Idle) {
            Compacting::Idle => self.pin_bases(),
            // Its next step fails as well, and then it is discarded everywhere.
            Compacting::Parked(compaction) => self.step(compaction),
            Compacting::Busy => self.compacting = Compacting::Busy,
        }
    }

    fn maintain_log(&mut self, log: LogKind) {
        let (index, below) = (log.index(), self.flushed_below[log.index()]);
        self.region.allow_tails(log, self.primary.window(log, below));
        let released = below.min(self.primary.flushed_below(log));
        let tails = self.region.tails(log);
        for tail in tails.iter().filter(|tail| tail.index() < released) {
            self.next_index[index] = tail.index() + 1;
            self.region.release_tail(log, tail.index());
        }
        let due = tails.iter().find(|tail| tail.sealed() && tail.index() >= below);
        if let Some(tail) = due.filter(|_| !self.flushing[index]) {
            self.flushing[index] = true;
            let (region, tail) = (self.region.clone(), tail.index());
            self.spawn(move || Outcome::Flushed { log, index: tail, result: region.flush_tail(log, tail) });
        }
    }

    fn sync_when_due(&mut self, now: Nanos, flush_interval: Nanos) {
        if self.unsynced_since.is_none() && self.region.is_unsynced() {
            self.unsynced_since = Some(now);
        }
        if !self.syncing && self.unsynced_since.is_some_and(|since| now - since >= flush_interval) {
            self.unsynced_since = None;
            self.syncing = true;
            let region = self.region.clone();
            self.spawn(move || Outcome::Synced(region.sync_tails()));
        }
    }

    /// A compaction is under way.
    pub(super) fn is_compacting(&self) -> bool {
        !matches!(self.compacting, Compacting::Idle)
    }

    fn compact(&mut self, now: Nanos) {
        match std::mem::replace(&mut self.compacting, Compacting::Idle) {
            Compacting::Idle if self.open || self.primary.is_complete() => {
                self.pin_bases();
                let next = match self.compaction_urgency(now) {
                    CompactionUrgency::Due => self.region.next_compaction(self.wall.now()),
                    CompactionUrgency::Immediate => self.region.next_compaction_of_all(self.wall.now()),
                    CompactionUrgency::Paused => None,
                };
                if let Some(compaction) = next {
                    self.step(Box::new(compaction));
                }
            }
            Compacting::Idle => self.pin_bases(),
            Compacting::Parked(compaction) if self.primary.has_room() => self.step(compaction),
            other => self.compacting = other,
        }
    }

    fn step(&mut self, mut compaction: Box<Compaction>) {
        self.compacting = Compacting::Busy;
        // Peers join between compactions, so a parcel is made if any peer needs one.
        let wire = self.primary.is_shipping().then_some(self.primary.options().wire);
        self.spawn_in_background(Activity::Compaction.of_primary(), move || {
            let step = compaction.step().map(|step| Stepped::of(step, wire));
            Outcome::Stepped { compaction, step }
        });
    }

    /// A job of this region ended. The operations that it was for are answered elsewhere.
    pub(super) fn job_done(&mut self, now: Nanos, outcome: Outcome, ops: &mut Ops) {
        let failed = match outcome {
            Outcome::Stepped { compaction, step } => self.stepped(compaction, step, ops),
            Outcome::Installed { done, result } => {
                self.compacting = Compacting::Idle;
                self.installed(&done, result, ops)
            }
            Outcome::Flushed { log, index, result } => {
                self.flushing[log.index()] = false;
                if result.is_ok() {
                    self.flushed_below[log.index()] = index + 1;
                }
                result
            }
            Outcome::Prepared(result) => {
                self.preparing = false;
                result
            }
            Outcome::Synced(result) => {
                self.syncing = false;
                result.map(|_| ())
            }
            Outcome::SplitKey(child, result) => {
                self.found_split_key(now, child, result);
                Ok(())
            }
            Outcome::ParentSplit(result) => {
                self.was_split(now, result);
                Ok(())
            }
            Outcome::Measured(into, is_small) => {
                self.was_measured(now, into, is_small);
                Ok(())
            }
            Outcome::Gathered(gathered) => {
                self.was_read(gathered);
                Ok(())
            }
            Outcome::LookedForForeign(found) => self.found_foreign(now, found),
            Outcome::Loaded { server, session, result } => match result {
                Ok(parcel) => {
                    self.counters.sync_bytes_shipped += parcel.bytes.len() as u64;
                    self.primary.loaded(server, session, parcel, ops);
                    Ok(())
                }
                Err(error) => {
                    self.primary.load_failed(now, server, session);
                    Err(error)
                }
            },
            _ => unreachable!("not a job of the upkeep"),
        };
        if let Err(error) = failed {
            tracing::warn!(region = %self.id, %error, "upkeep failed, and backs off");
            self.backoff_until = now + UPKEEP_BACKOFF;
        }
    }

    fn stepped(
        &mut self,
        compaction: Box<Compaction>,
        step: Result<Stepped, Error>,
        ops: &mut Ops,
    ) -> Result<(), Error> {
        self.compacting = Compacting::Idle;
        match step {
            Err(error) => {
                self.primary.ship_discard(compaction.built(), ops);
                return Err(error);
            }
            Ok(Stepped::Segment(parcel)) => {
                if let Some(parcel) = parcel {
                    self.ship(&parcel, ops);
                }
                self.compacting = Compacting::Parked(compaction);
            }
            Ok(Stepped::Finished(done)) => self.install(Arc::from(done)),
        }
        Ok(())
    }

    fn ship(&mut self, parcel: &Parcel, ops: &mut Ops) {
        let peers = self.primary.ship(parcel, ops);
        let bytes_shipped = peers * parcel.bytes.len() as u64;
        match parcel.shipped.kind.is_index() {
            true => self.counters.index_bytes_shipped += bytes_shipped,
            false => self.counters.run_bytes_shipped += bytes_shipped,
        }
    }

    fn installed(&mut self, done: &CompactionDone, result: Result<(), Error>, ops: &mut Ops) -> Result<(), Error> {
        if result.is_ok() {
            self.counters.compactions += 1;
            self.counters.compaction_bytes_read += done.bytes_read + done.value_bytes_read;
            self.counters.compaction_bytes_written += done.bytes_written;
            self.primary.ship_install(&done.edit, ops);
        } else {
            let built: Vec<SegmentId> = done.edit.added.iter().map(|(id, _)| *id).collect();
            self.primary.ship_discard(&built, ops);
        }
        result
    }

    fn install(&mut self, done: Arc<CompactionDone>) {
        self.compacting = Compacting::Busy;
        let region = self.region.clone();
        self.spawn_in_background(Activity::Compaction.of_primary(), move || {
            let result = region.install(&done);
            Outcome::Installed { done, result }
        });
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

/// The answer to an operation that will not get a better one.
pub(super) fn lost_answer(region: RegionId, is_write: bool, why: &str) -> OpResult {
    OpResult::Error(match is_write {
        true => OpError::Unknown(format!("region {region}: {why}")),
        false => OpError::Recovering(region),
    })
}
