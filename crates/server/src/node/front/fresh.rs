//! Reads that a backup answers as of an instant after their call: it asks the primary how far it must have its log, and reads as of
//! just that (HiStore 3.2.2, 4.2). Scans of tables [whose scans backups answer](leeward_format::cluster::Scans), and reads that
//! [any member answers](super::stale) and that accept no staleness.
//!
//! ```text
//!   backup                                  primary
//!     r  reads have come                       |
//!     |  --- SafeLsnQuestion, after r ------>  q
//!     |  <-- SafeLsnAnswer, LSN c -----------  t  Its lease is valid at t, which it reads after q, and it has acknowledged up to c.
//!     a  the copy has its records up to c      |
//!     n  the reads as of exactly c, and of the primary's wall time at t, by which pairs expire
//! ```
//! Over shared memory it does not ask, but reads the line in which the primary shows the same
//! ([`safe_lsn_line`](leeward_region::serving::safe_lsn_line), [`safe_lsn_lines`](super::safe_lsn_lines)): t is when it reads the line,
//! and it answers only if the line counts at the end of the turn. An answer to a question brings the right to read the line, and
//! bounds the primary's clock. The bound gets wider with time, so that a question is due about once a second.
//!
//! Each answer is the state of the region at t, which is after the call of the read and before its answer:
//! - What any primary acknowledged before r, it acknowledged before t: it is within c, by the reasons of [`super::stale`].
//! - Nothing beyond c was acknowledged or shown by anybody before t.
//!
//! A read that cannot be answered so in [`TIMEOUT`] goes to the primary: it does not answer, or does not hold its lease; the copy
//! does not get its records; the region has another configuration by now.
//!
//! Invariants:
//! - The question for a read is sent, and the line for it read, after the read has come. Neither counts for reads that came later.
//! - The session and the configuration are the same when the question is sent and when the read begins; the primary answers for
//!   the same configuration.

use super::forward::Travel;
use super::safe_lsn_lines::{Lines, Shown, Subject};
use super::{Front, Reach};
use leeward_engine::Region;
use leeward_fabric::Fabric;
use leeward_format::cluster::{GroupConfig, Scans};
use leeward_format::control::{Control, SafeLsnOf};
use leeward_format::op::Read;
use leeward_format::routing::Routing;
use leeward_format::safe_lsn::SafeLsnLineGrant;
use leeward_format::{Lsn, RegionId, ServerId, UnixMs};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_region::input::Input as RegionInput;
use leeward_region::machine::RegionMachine;
use leeward_region::request::Request;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long a read waits for the primary's answer and for the copy.
const TIMEOUT: Nanos = Nanos::from_millis(200);
/// Most reads of a region that wait at a backup. More go to the primary.
const MOST_READS: usize = 1024;
/// How long no scan is sent to a backup that could not answer one.
const REST: Nanos = Nanos::from_millis(100);

/// Reads of a region that have come in the same turn, and their question.
struct Batch {
    region: RegionId,
    reads: Vec<(Request, Travel)>,
    subject: Subject,
    /// When the question was sent, or the line read.
    asked: Nanos,
    /// c, and the primary's wall time at t, by which pairs expire; once they are known.
    state: Option<(Lsn, UnixMs)>,
}

/// A copy that can be read, and what it follows.
struct Followed {
    config: Arc<GroupConfig>,
    copy: Arc<Region>,
    subject: Subject,
}

/// Reads of a region that have come in a turn.
#[derive(Default)]
struct Coming {
    reads: Vec<(Request, Travel)>,
    /// The line, which was read after the last of them came.
    shown: Option<Shown>,
}

/// A question of a backup.
pub(in crate::node) struct Question {
    pub(in crate::node) from: ServerId,
    pub(in crate::node) id: u64,
    pub(in crate::node) region: RegionId,
    pub(in crate::node) wants_line: bool,
}

/// The primary's answer to a question.
pub(in crate::node) struct Answer {
    pub(in crate::node) wall: UnixMs,
    pub(in crate::node) safe_lsn: Option<SafeLsnOf>,
    pub(in crate::node) line: Option<SafeLsnLineGrant>,
}

/// The reads that wait, at a backup, and questions of backups, at a primary.
#[derive(Default)]
pub(in crate::node) struct FreshReads {
    /// Those that have come in this turn.
    coming: BTreeMap<RegionId, Coming>,
    lines: Lines,
    /// By the id of the question.
    batches: BTreeMap<u64, Batch>,
    questions: Vec<Question>,
    /// How many questions this node has sent.
    asked: u64,
    /// How many scans this node has sent to backups.
    turns: usize,
    /// Until when none of a region are sent to a server.
    resting: BTreeMap<(RegionId, ServerId), Nanos>,
    /// How many reads of each region wait.
    waiting: BTreeMap<RegionId, usize>,
}

impl FreshReads {
    /// Whether this node waits for nothing.
    pub(in crate::node) fn is_empty(&self) -> bool {
        self.coming.is_empty() && self.batches.is_empty()
    }

    /// A server refuses that its memory is mapped.
    pub(in crate::node) fn map_refused(&mut self, now: Nanos, server: ServerId) {
        self.lines.refused(now, server);
    }

    /// The link to a server goes up or down.
    pub(in crate::node) fn link_changed(&mut self, server: ServerId) {
        self.lines.link_changed(server);
    }

    /// This node's clock may have stopped until now.
    pub(in crate::node) fn doubt_clock(&mut self) {
        self.lines.doubt_clock();
        self.coming.values_mut().for_each(|coming| coming.shown = None);
        // Some were read in lines. Their reads go to the primary.
        self.batches.values_mut().for_each(|batch| batch.state = None);
    }

    /// A read waits, unless too many of its region do.
    fn wait(&mut self, fabric: &dyn Fabric, region: RegionId, read: (Request, Travel)) -> Option<(Request, Travel)> {
        let waiting = self.waiting.entry(region).or_default();
        if *waiting >= MOST_READS {
            return Some(read);
        }
        *waiting += 1;
        let coming = self.coming.entry(region).or_default();
        coming.reads.push(read);
        coming.shown = self.lines.read(fabric, region);
        None
    }

    /// So many reads of a region wait no more.
    fn ended(&mut self, region: RegionId, reads: usize) {
        if let Some(waiting) = self.waiting.get_mut(&region) {
            *waiting -= reads;
        }
        self.waiting.retain(|_, waiting| *waiting > 0);
    }

    /// A backup could not answer a scan.
    pub(super) fn rest(&mut self, now: Nanos, region: RegionId, backup: ServerId) {
        self.resting.retain(|_, until| *until > now);
        self.resting.insert((region, backup), now + REST);
    }

    /// Whether scans may be sent to a backup.
    fn may_ask(&self, now: Nanos, region: RegionId, backup: ServerId) -> bool {
        self.resting.get(&(region, backup)).is_none_or(|until| *until <= now)
    }

    /// Ends a batch. Returns its reads.
    fn take(&mut self, id: u64) -> Vec<(Request, Travel)> {
        let Some(Batch { region, reads, .. }) = self.batches.remove(&id) else { return Vec::new() };
        self.ended(region, reads.len());
        reads
    }
}

// ---- the primary ---------------------------------------------------------------------------------------------------

impl Front {
    /// A backup asks for a safe LSN. It is answered at the end of the turn, with a lease that was valid after the question came.
    pub(in crate::node) fn safe_lsn_asked(&mut self, reach: &mut Reach, question: Question) {
        reach.shard.idle.touch(question.region);
        self.fresh.questions.push(question);
    }

    /// Answers the questions of this turn.
    pub(in crate::node) fn answer_questions(&mut self, reach: &mut Reach) {
        let now = reach.now();
        for Question { from, id, region, wants_line } in std::mem::take(&mut self.fresh.questions) {
            let (safe_lsn, line) = reach.shard.serving(region).map_or((None, None), |serving| {
                let safe_lsn = serving.safe_lsn(now);
                let may_grant = wants_line && safe_lsn.is_some();
                (safe_lsn, may_grant.then(|| serving.grant_safe_lsn_line(now)).flatten())
            });
            let wall = reach.shard.resources.wall.now();
            reach.links.send(from, &Control::SafeLsnAnswer { id, now: wall, safe_lsn, line });
        }
    }
}

// ---- the backup ----------------------------------------------------------------------------------------------------

impl Reach<'_> {
    /// Whether backups answer this scan, so that this node sends it to one of them, or asks the primary itself if it is one.
    pub(super) fn is_for_backups(&self, request: &Request, travel: Travel) -> bool {
        let table = || self.control.view().table(&request.table);
        travel == Travel::Any
            && request.op.is_scan()
            && table().is_some_and(|table| table.reads.scans == Scans::Backups)
    }

    /// The copy here that can be read and is in sync with the primary of the region's configuration.
    fn followed(&self, region: RegionId) -> Option<Followed> {
        let config = self.control.routes().region(region)?;
        let (copy, session) = self.shard.machine(region)?.followed(config)?;
        let subject = Subject { session, epoch: config.epoch };
        Some(Followed { config: Arc::clone(config), copy: Arc::clone(copy), subject })
    }
}

impl Front {
    /// How many questions for a safe LSN this node has sent to primaries.
    pub(in crate::node) fn safe_lsn_questions(&self) -> u64 {
        self.fresh.asked
    }

    /// A link comes up, or goes down.
    pub(in crate::node) fn forget_lines(&mut self, server: ServerId) {
        self.fresh.link_changed(server);
    }

    /// A read that accepts no staleness, of a region with this configuration.
    pub(super) fn read_fresh(&mut self, reach: &mut Reach, config: &GroupConfig, request: Request, travel: Travel) {
        let (now, region) = (reach.now(), config.region);
        if reach.shard.machine(region).is_some_and(RegionMachine::is_unread_backup) {
            reach.give(region, RegionInput::ReadsWait);
        }
        let is_followed = reach.shard.machine(region).is_some_and(|machine| machine.followed(config).is_some());
        if is_followed && !reach.shard.resources.clients.is_full() {
            if let Some((request, travel)) = self.fresh.wait(reach.links.fabric(), region, (request, travel)) {
                self.route(reach, request, travel);
            }
            return;
        }
        let may_ask = |server: &ServerId| reach.links.is_up(*server) && self.fresh.may_ask(now, region, *server);
        let backups: Vec<ServerId> = config.backups.iter().map(|backup| backup.server).filter(may_ask).collect();
        if backups.is_empty() || is_followed || !reach.is_for_backups(&request, travel) {
            return self.route(reach, request, travel);
        }
        self.fresh.turns = self.fresh.turns.wrapping_add(1);
        let server = backups[self.fresh.turns % backups.len()];
        if self.forwarding.in_flight.must_wait(server) {
            return self.route(reach, request, travel);
        }
        let (table, op) = (request.table.clone(), Read::stale(request.op.clone(), 0));
        let id = self.forwarding.send_to_backup(request, region, server);
        reach.links.send(server, &Control::Forward { id, table, op, once: None, epoch: config.epoch });
    }

    /// The primary has answered the question `id`.
    pub(in crate::node) fn safe_lsn_answered(&mut self, reach: &mut Reach, from: ServerId, id: u64, answer: Answer) {
        let batch = self.fresh.batches.get_mut(&id);
        let Some(batch) = batch.filter(|batch| batch.subject.session.primary == from) else { return };
        match answer.safe_lsn {
            Some(safe) if (safe.region, safe.epoch) == (batch.region, batch.subject.epoch) => {
                batch.state = Some((safe.lsn, answer.wall));
                // A bound from before the clock may have stopped lacks the stop.
                if let Some(grant) = answer.line.filter(|_| batch.asked >= reach.control.valid_since()) {
                    self.fresh.lines.granted(batch.region, batch.subject, batch.asked, grant);
                }
            }
            _ => self.give_up_batch(reach, id),
        }
    }

    /// Asks for the reads that have come in this turn, and begins those that can be answered.
    pub(in crate::node) fn advance_fresh(&mut self, reach: &mut Reach) {
        if self.fresh.is_empty() {
            return;
        }
        for (region, coming) in std::mem::take(&mut self.fresh.coming) {
            self.find_safe_lsn(reach, region, coming);
        }
        for id in self.fresh.batches.keys().copied().collect::<Vec<_>>() {
            self.advance_batch(reach, id);
        }
    }

    /// Takes the safe LSN for reads from the line that was read, or else asks for it.
    fn find_safe_lsn(&mut self, reach: &mut Reach, region: RegionId, Coming { mut reads, shown }: Coming) {
        if planted(Bug::SafeLsnBeforeQuestion)
            && let Some(before) = self.fresh.batches.values_mut().find(|batch| batch.region == region)
        {
            return before.reads.append(&mut reads);
        }
        let now = reach.now();
        let Some(Followed { subject, .. }) = reach.followed(region) else {
            self.fresh.ended(region, reads.len());
            self.fresh.lines.forget(region);
            return self.route_all(reach, reads);
        };
        let wall = reach.shard.resources.wall.now();
        let shown = shown.filter(|shown| shown.subject == subject && shown.counts(now, wall));
        let state = shown.map(|shown| (shown.line.lsn, shown.line.wall));
        let id = self.forwarding.next_id();
        if state.is_none() {
            let primary = subject.session.primary;
            let wants_line = reach.links.fabric().maps_memory() && self.fresh.lines.are_wanted(now, primary);
            reach.links.send(primary, &Control::SafeLsnQuestion { id, region, wants_line });
            self.fresh.asked += 1;
        }
        self.fresh.batches.insert(id, Batch { region, reads, subject, asked: now, state });
    }

    fn advance_batch(&mut self, reach: &mut Reach, id: u64) {
        let Some(&Batch { region, subject, asked, state, .. }) = self.fresh.batches.get(&id) else { return };
        let is_same = |followed: &Followed| followed.subject == subject;
        let followed = reach.followed(region).filter(is_same).filter(|_| reach.now() - asked < TIMEOUT);
        let Some(Followed { config, copy, .. }) = followed else { return self.give_up_batch(reach, id) };
        let Some((lsn, wall)) = state else { return };
        let last = copy.last_lsn();
        if last < lsn && !planted(Bug::ScanUndrained) {
            return reach.give(region, RegionInput::ReadsWait);
        }
        let lsn = if planted(Bug::ScanBeyondSafe) { last } else { lsn.min(last) };
        for read in self.fresh.take(id) {
            self.begin_read(reach, (&copy, lsn, wall), &config, read, None);
        }
    }

    /// Sends the reads of a batch to the primary.
    fn give_up_batch(&mut self, reach: &mut Reach, id: u64) {
        let reads = self.fresh.take(id);
        self.route_all(reach, reads);
    }

    fn route_all(&mut self, reach: &mut Reach, reads: Vec<(Request, Travel)>) {
        for (request, travel) in reads {
            self.route(reach, request, travel);
        }
    }
}
