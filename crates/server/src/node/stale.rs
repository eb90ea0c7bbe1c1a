//! Reads that a backup answers, and how stale an answer can be, for tables that [every member answers reads of](Reads::Any).
//!
//! ```text
//!   backup                                    primary
//!     h  --- promise, my clock says h ---------->  r       Its lease is valid at t, which it reads after r: so until t nobody
//!     |                                            |       else acknowledged anything. Up to LSN c it has itself.
//!     |  <-- you said h; up to c is acknowledged - t
//!     |
//!     n  a read as of c, once the copy has it: at most n - h old
//! ```
//! What a backup answers was the region's state at some instant since h. All that anybody acknowledged before h was so before t, and so
//! is within c: by the primary of this term it was counted when c was read, those of earlier terms had handed it all over before
//! that one began to serve, and one of a later term cannot have begun, since it must wait until the promises have ended on which the
//! lease rests. Nothing beyond c was acknowledged before h. So the writes up to c are all of those before h, and some that were under
//! way then: a state that a reader at h, or a little later, could have met.
//!
//! h and n are read from one clock, so it does not matter how far those of two machines are apart, or how long messages take. A message
//! that took long, or lay in the queue of a node that was stopped, makes answers older, and they say so. That the clock may be slow is
//! added to the age. Once the clock may have stood still ([`super::doubt`]), nothing counts that was heard before.
//!
//! Invariants:
//! - A primary attests only what it could read and answer at that moment: it is open, does not stand still, and holds its lease
//!   at an instant that it read from its clock after it heard h.
//! - What is attested is about the keys of one configuration. It counts for keys that belong to the region by the same one, since
//!   others may be another region's by now.
//! - It counts in the session in which it was heard, while the copy is in sync and the configuration is of that session's term: the
//!   records up to c are the same on both.
//! - What is read is the state at exactly c: a later one may lack what a division gave to another region.
//! - The age of an answer is taken after its operation has come, from the clock that is read at the end of the turn.

use super::decide::{Decision, decide};
use super::execute::{KeyBounds, current, key_bounds, resume_within, scan, scan_within};
use super::forward::{Unrouted, Way};
use super::job::Outcome;
use super::serving::Serving;
use super::slot::Slot;
use super::{Context, Node};
use leeward_engine::version::Lookup;
use leeward_engine::{Error, Reach, Region, Snapshot};
use leeward_format::cluster::{GroupConfig, Reads};
use leeward_format::control::Attested;
use leeward_format::op::{Op, OpError, OpResult, ReadResult};
use leeward_format::{Epoch, Lsn, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use leeward_replication::backup::Office;
use std::collections::VecDeque;
use std::sync::Arc;

/// A clock that runs at 0.9 times the speed of time, which leases allow for too, lacks a ninth of what it has counted; this is more.
const SLOWNESS_PART: u64 = 8;

/// Attestations that are kept: the newest may be about records that are not in the copy yet.
const MOST_ATTESTED: usize = 8;

/// What a backup was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attestation {
    /// Its own clock, when it had said so.
    heard: Nanos,
    epoch: Epoch,
    lsn: Lsn,
}

/// What a backup was told in a session, oldest first.
#[derive(Debug, Default)]
pub(super) struct Attestations {
    office: Option<Office>,
    known: VecDeque<Attestation>,
}

impl Attestations {
    fn hear(&mut self, office: Office, attestation: Attestation) {
        if self.office != Some(office) {
            *self = Attestations { office: Some(office), known: VecDeque::new() };
        }
        if self.known.len() == MOST_ATTESTED {
            self.known.pop_front();
        }
        self.known.push_back(attestation);
    }

    /// The newest one, of which a copy has all that has taken the records up to `applied`; `None` once others were for the keys of
    /// another configuration than that of `epoch`: what is the region's may have been another one's to change since.
    fn newest(&self, office: Office, epoch: Epoch, applied: Lsn) -> Option<Attestation> {
        let mut latest = self.known.iter().rev().take_while(|known| known.epoch == epoch);
        latest.find(|known| known.lsn <= applied).copied().filter(|_| self.office == Some(office))
    }
}

/// What a server said of its clock with its last two promises, and when that was heard, by the own clock.
#[derive(Debug, Default)]
pub(super) struct ClockHeard([Option<(u64, Nanos)>; 2]);

impl ClockHeard {
    pub(super) fn hear(&mut self, theirs: u64, now: Nanos) {
        self.0 = [Some((theirs, now)), self.0[0]];
    }

    /// The newest one that was heard before `now` was read: what is heard in the turn of a tick may be newer than the tick's clock.
    fn before(&self, now: Nanos) -> Option<u64> {
        self.0.iter().flatten().find(|(_, at)| *at < now).map(|(theirs, _)| *theirs)
    }
}

/// A read that a backup has begun, and can answer as of an instant.
pub(super) struct StaleRead {
    /// The operation as one for the primary.
    unrouted: Unrouted,
    heard: Nanos,
    at_most_ms: u32,
    lsn: Lsn,
}

// ---- the primary ---------------------------------------------------------------------------------------------------

impl Serving {
    /// What it vouches for now.
    pub(super) fn attest(&self, now: Nanos) -> Option<Attested> {
        let holds_lease = || self.primary.holds_lease(now) || planted(Bug::AttestWithoutLease);
        let is_wanted = self.primary.options().reads != Reads::Primary;
        let epoch = self.primary.config().epoch;
        let may_attest = is_wanted && self.open && self.is_moving() && holds_lease();
        may_attest.then_some(Attested { region: self.id, epoch, lsn: self.acknowledged })
    }
}

impl Context {
    /// What `server` said of its clock, so that something can be attested that counts from then.
    pub(super) fn heard_of(&self, server: ServerId) -> Option<u64> {
        self.links.get(&server).and_then(|link| link.clock.before(self.now))
    }
}

// ---- the backup ----------------------------------------------------------------------------------------------------

impl Node {
    /// A primary vouches for regions.
    pub(super) fn hear_attested(&mut self, now: Nanos, from: ServerId, heard: Option<u64>, attested: &[Attested]) {
        // What another process of this server said means nothing here.
        let is_mine = |heard: &Nanos| (self.context.clock_since..=now).contains(heard);
        let Some(heard) = heard.map(Nanos).filter(is_mine) else { return };
        let heard = if planted(Bug::AgeFromArrival) { now } else { heard };
        for &Attested { region, epoch, lsn } in attested {
            if let Some(slot) = self.slots.get_mut(&region) {
                slot.hear_attested(from, Attestation { heard, epoch, lsn }, &mut self.context);
                if !slot.backup.is_idle() {
                    self.touched.insert(region);
                }
            }
        }
    }

    /// A read that any member may answer: if this is one, and can, it does.
    pub(super) fn read_stale(&mut self, now: Nanos, at_most_ms: u32, unrouted: Unrouted, way: Way) {
        let table = self.context.agent.view().table(&unrouted.table);
        let reads = table.and_then(|table| Some((table.reads.at_most(at_most_ms)?, table.partition)));
        let Some((at_most_ms, partition)) = reads else {
            return self.route(now, unrouted, way);
        };
        // A scan is cut at the bounds of the region that it is found to be for.
        let may_be_cut = unrouted.op.key().is_none() && self.routes().is_ambiguous();
        let config = unrouted.op.region_in(self.routes(), &unrouted.table).filter(|_| !may_be_cut);
        let Some(config) = config.cloned() else { return self.route(now, unrouted, way) };
        let slot = self.slots.get(&config.region);
        let Some((copy, known)) = slot.and_then(|slot| slot.readable(&config)) else {
            return self.route(now, unrouted, way);
        };
        if age_ms(now, known.heard) > u64::from(at_most_ms) || self.context.clients.is_full() {
            return self.route(now, unrouted, way);
        }
        let snapshot = copy.snapshot(known.lsn, self.context.wall.now());
        if snapshot.lsn() != known.lsn {
            // What was merged since may be a trim, which deletes what another region has by now.
            return self.route(now, unrouted, way);
        }
        let read = Box::new(StaleRead { unrouted, heard: known.heard, at_most_ms, lsn: snapshot.lsn() });
        let (bounds, clients) = (key_bounds(&config, partition), self.context.clients.clone());
        match in_memory(&snapshot, &read.unrouted.op) {
            Some(result) => {
                let result = result.map(|result| clients.hold_read(result));
                self.stale.push((read, result));
            }
            None => self.context.spawn(config.region, Activity::Engine.of_backup(), move || {
                let result = from_device(&snapshot, &read.unrouted.op, bounds);
                let result = result.map(|result| clients.hold_read(result));
                Outcome::ReadStale { read, result }
            }),
        }
    }

    /// Answers what was read in this turn. What has become too old meanwhile, or could not be read, is the primary's.
    pub(super) fn answer_stale(&mut self, now: Nanos) {
        for (read, result) in std::mem::take(&mut self.stale) {
            let age = age_ms(now, read.heard);
            match result {
                Ok(result) if age <= u64::from(read.at_most_ms) && read.heard >= self.context.clock_since => {
                    self.stale_reads += 1;
                    let age_ms = u32::try_from(age).expect("it is below a bound");
                    self.answers.push((read.unrouted.to, OpResult::Stale { age_ms, lsn: read.lsn, result }));
                }
                Ok(_) => self.context.again.push(read.unrouted),
                Err(error) => {
                    tracing::warn!(%error, "a read of a backup failed");
                    self.context.again.push(read.unrouted);
                }
            }
        }
    }
}

impl Slot {
    fn hear_attested(&mut self, from: ServerId, attestation: Attestation, context: &mut Context) {
        let office = self.backup.office().filter(|office| office.primary == from && self.backup.is_in_sync());
        let Some(office) = office else { return };
        self.attested.hear(office, attestation);
        match &self.reading {
            None if context.wants_to_read(self, false) => self.backup.be_read(true),
            Some(copy) if copy.last_lsn() < attestation.lsn => self.backup.save_tails(false),
            _ => return,
        }
        self.act_as_backup(context);
    }

    /// Gives up the index from which reads are answered, if nobody wants that any more, or there is no memory for it.
    pub(super) fn look_after_reads(&mut self, context: &mut Context) {
        let only_read = self.reading.is_some() && self.building.is_none();
        if only_read && !context.wants_to_read(self, true) {
            self.backup.be_read(false);
            self.act_as_backup(context);
        }
    }

    /// The copy that can be read, for keys of this configuration, and what is known of it.
    fn readable(&self, config: &GroupConfig) -> Option<(Arc<Region>, Attestation)> {
        let copy = self.reading.as_ref().filter(|_| self.backup.is_in_sync())?;
        // Of another term of the same primary the copy may have other records.
        let office = self.backup.office().filter(|office| office.term == config.term)?;
        let known = self.attested.newest(office, config.epoch, copy.last_lsn())?;
        Some((copy.clone(), known))
    }
}

impl Context {
    /// A copy is to be read, and there is memory for that: for one that `is_read` more than for another to begin.
    fn wants_to_read(&self, slot: &Slot, is_read: bool) -> bool {
        let table = slot.config.as_ref().and_then(|config| self.agent.view().table(&config.table));
        let debt = self.volume.memory().l0_debt();
        let has_memory = if is_read { debt < 1.0 } else { debt <= 0.0 };
        has_memory && table.is_some_and(|table| table.reads != Reads::Primary)
    }
}

/// Milliseconds since an instant, rounded up, also if the clock is slow.
fn age_ms(now: Nanos, since: Nanos) -> u64 {
    let elapsed = (now - since).0;
    (elapsed + elapsed / SLOWNESS_PART).div_ceil(1_000_000)
}

/// What the read comes to, if memory can tell.
fn in_memory(snapshot: &Snapshot, op: &Op) -> Option<Result<ReadResult, Error>> {
    match snapshot.get(op.key()?, Reach::Memory) {
        Ok(Lookup::NotInMemory) => None,
        found => Some(found.map(|found| of_pair(snapshot, op, found))),
    }
}

fn from_device(snapshot: &Snapshot, op: &Op, bounds: KeyBounds) -> Result<ReadResult, Error> {
    if let Some(key) = op.key() {
        return Ok(of_pair(snapshot, op, snapshot.get(key, Reach::Device)?));
    }
    let Op::Scan(range) = op else { unreachable!("what any member can read is on a key, or a scan") };
    match scan(snapshot, scan_within(bounds.clone(), range), range.limit) {
        OpResult::Entries { entries, resume } => {
            let resume = resume.or_else(|| resume_within(bounds, op));
            Ok(ReadResult::Entries { entries, resume })
        }
        OpResult::Error(OpError::Unavailable(why)) => Err(Error::Invalid(why)),
        other => unreachable!("a scan comes to {other:?}"),
    }
}

/// What a read of a key comes to, of which this was found.
fn of_pair(snapshot: &Snapshot, op: &Op, found: Lookup) -> ReadResult {
    match decide(op, current(found), snapshot.now()) {
        Decision::Answer(OpResult::Value(value)) => ReadResult::Value(value),
        Decision::Answer(OpResult::Pair(pair)) => ReadResult::Pair(pair),
        _ => unreachable!("a read decides nothing"),
    }
}

#[cfg(test)]
#[path = "stale_tests.rs"]
mod tests;
