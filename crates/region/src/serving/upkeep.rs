//! The upkeep of a region that this node serves: tails are written back, flushed and released, new ones are prepared, and
//! compactions run, each step a [`Job`](crate::job::Job). What a compaction builds is shipped to the backups before its next
//! step.
//!
//! Invariants: one compaction of a region runs at a time, and it is installed at the backups after it is here. A tail is
//! released only once this volume and every backup have flushed it. Belongs to the node's thread.

use super::Serving;
use crate::job::{Outcome, Stepped, UpkeepDone};
use crate::serving::reshape::quiesce::CompactionUrgency;
use leeward_engine::compaction::{Compaction, CompactionDone};
use leeward_engine::region::CompactionBasis;
use leeward_engine::{Error, Region};
use leeward_format::{LogKind, Lsn, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_replication::ship::Parcel;
use std::sync::Arc;

/// How long upkeep that allocates or reads segments backs off after it failed.
const BACKOFF: Nanos = Nanos::from_secs(1);
/// For so long nothing is due if nothing was, unless there is something new to choose from.
const PRESUMED: Nanos = Nanos::from_millis(100);

#[derive(Default)]
enum Compacting {
    #[default]
    Idle,
    /// A step or the install runs.
    Busy,
    /// The next step waits until the backups have taken what was built.
    Parked(Box<Compaction>),
}

/// The upkeep that is under way.
#[derive(Default)]
pub(super) struct Upkeep {
    compacting: Compacting,
    flushing: [bool; 2],
    flushed_below: [u64; 2],
    is_preparing: bool,
    /// Upkeep failed without harm to the volume (it is full, or a read failed). It is tried again at this time.
    backoff_until: Nanos,
    /// The same for the next tails. Compactions, which give them room, do not wait with them.
    prepares_from: Nanos,
    /// Nothing was to be compacted of this; it is asked again then.
    nothing_due: Option<(CompactionBasis, Nanos)>,
    /// Whether a compaction is due was last answered by that.
    is_presumed: bool,
    /// Last LSN that this volume has in its page cache: without backups, what is acknowledged.
    pub(super) written: Lsn,
}

impl Upkeep {
    /// A compaction is under way.
    pub(super) fn is_compacting(&self) -> bool {
        !matches!(self.compacting, Compacting::Idle)
    }

    /// It has something to do that comes with time alone.
    pub(super) fn waits_for_time(&self, now: Nanos) -> bool {
        now < self.backoff_until.max(self.prepares_from) || self.is_presumed
    }

    /// Compactions that are under way are not continued here: the region is given up.
    pub(super) fn abandon(&mut self) {
        self.compacting = Compacting::Idle;
    }
}

impl Serving {
    /// Begins the upkeep that is due.
    pub(super) fn maintain(&mut self, now: Nanos) {
        if self.region.volume().is_failed() {
            return self.pin_for_others();
        }
        for log in LogKind::APPENDED {
            self.maintain_log(log);
        }
        if !self.upkeep.is_preparing && now >= self.upkeep.prepares_from && self.region.wants_tails() {
            self.upkeep.is_preparing = true;
            let region = self.region.clone();
            self.spawn(move || Outcome::Upkeep(UpkeepDone::Prepared(region.prepare_tails())));
        }
        if now >= self.upkeep.backoff_until {
            if self.is_open() && self.is_active() {
                self.trim(now);
            }
            self.compact(now);
        }
    }

    /// The volume takes no more writes. If it is the only one that has the region, other nodes can still copy the region from
    /// it.
    fn pin_for_others(&mut self) {
        match std::mem::replace(&mut self.upkeep.compacting, Compacting::Idle) {
            Compacting::Idle => self.pin_bases(),
            // Its next step fails as well, and then it is discarded everywhere.
            Compacting::Parked(compaction) => self.step(compaction),
            Compacting::Busy => self.upkeep.compacting = Compacting::Busy,
        }
    }

    fn maintain_log(&mut self, log: LogKind) {
        let (index, below) = (log.index(), self.upkeep.flushed_below[log.index()]);
        self.region.allow_tails(log, self.primary.window(log, below));
        let released = below.min(self.primary.flushed_below(log));
        let tails = self.region.tails(log);
        for tail in tails.iter().filter(|tail| tail.index() < released) {
            self.bases.tail_ended(log, tail.index());
            self.region.release_tail(log, tail.index());
        }
        let due = tails.iter().find(|tail| tail.sealed() && tail.index() >= below);
        if let Some(tail) = due.filter(|_| !self.upkeep.flushing[index]) {
            self.upkeep.flushing[index] = true;
            let (region, tail) = (self.region.clone(), tail.index());
            self.spawn(move || {
                let result = region.flush_tail(log, tail);
                Outcome::Upkeep(UpkeepDone::Flushed { log, index: tail, result })
            });
        }
    }

    /// The region, if something in it is not durable. A job of the node makes it so, and [`UpkeepDone::Synced`] follows.
    pub fn begin_sync(&mut self) -> Option<Arc<Region>> {
        self.region.is_unsynced().then(|| {
            self.job_begins();
            self.region.clone()
        })
    }

    fn compact(&mut self, now: Nanos) {
        match std::mem::replace(&mut self.upkeep.compacting, Compacting::Idle) {
            Compacting::Idle if self.is_open() || self.primary.is_complete() => {
                self.pin_bases();
                let next = match self.compaction_urgency(now) {
                    CompactionUrgency::Due => self.next_due(now),
                    CompactionUrgency::Immediate => self.region.next_compaction_of_all(self.wall.now()),
                    CompactionUrgency::Paused => None,
                };
                if let Some(compaction) = next {
                    self.step(Box::new(compaction));
                }
            }
            Compacting::Idle => self.pin_bases(),
            Compacting::Parked(compaction) if self.primary.has_room() => self.step(compaction),
            other => self.upkeep.compacting = other,
        }
    }

    /// The compaction that is due, if any. Where regions are many, most turns have nothing for most of them.
    fn next_due(&mut self, now: Nanos) -> Option<Compaction> {
        let is_known = |(basis, until): &(CompactionBasis, Nanos)| now < *until && self.region.has_basis(basis);
        self.upkeep.is_presumed = self.upkeep.nothing_due.as_ref().is_some_and(is_known);
        if self.upkeep.is_presumed {
            return None;
        }
        let basis = self.region.compaction_basis();
        let next = self.region.next_compaction(self.wall.now());
        self.upkeep.nothing_due = next.is_none().then_some((basis, now + PRESUMED));
        next
    }

    fn step(&mut self, mut compaction: Box<Compaction>) {
        self.upkeep.compacting = Compacting::Busy;
        // Peers join between compactions, so a parcel is made if any peer needs one.
        let wire = self.primary.is_shipping().then_some(self.primary.options().wire);
        self.spawn_in_background(Activity::Compaction.of_primary(), move || {
            let step = compaction.step().map(|step| Stepped::of(step, wire));
            Outcome::Upkeep(UpkeepDone::Stepped { compaction, step })
        });
    }

    /// A job of the upkeep ended.
    pub(crate) fn upkeep_done(&mut self, now: Nanos, done: UpkeepDone) {
        let failed = match done {
            UpkeepDone::Stepped { compaction, step } => self.stepped(compaction, step),
            UpkeepDone::Installed { done, result } => {
                self.upkeep.compacting = Compacting::Idle;
                // What it gave back is there for tails.
                self.upkeep.prepares_from = now;
                self.installed(&done, result)
            }
            UpkeepDone::Flushed { log, index, result } => {
                self.upkeep.flushing[log.index()] = false;
                if result.is_ok() {
                    self.upkeep.flushed_below[log.index()] = index + 1;
                }
                result
            }
            UpkeepDone::Prepared(result) => {
                self.upkeep.is_preparing = false;
                if result.is_err() {
                    self.upkeep.prepares_from = now + BACKOFF;
                }
                return self.warn_of(&result);
            }
            UpkeepDone::Synced(result) => result.map(|_| ()),
            UpkeepDone::LookedForForeign(found) => self.found_foreign(now, found),
            UpkeepDone::ReadForIndex(piece) => {
                self.walked(*piece);
                Ok(())
            }
            UpkeepDone::Loaded { server, session, result } => match result {
                Ok(parcel) => {
                    self.counters.sync_bytes_shipped += parcel.bytes.len() as u64;
                    self.primary.loaded(server, session, parcel);
                    Ok(())
                }
                Err(error) => {
                    self.primary.load_failed(now, server, session);
                    Err(error)
                }
            },
        };
        if failed.is_err() {
            self.upkeep.backoff_until = now + BACKOFF;
        }
        self.warn_of(&failed);
    }

    fn warn_of(&self, result: &Result<(), Error>) {
        if let Err(error) = result {
            tracing::warn!(region = %self.id(), %error, "upkeep failed, and backs off");
        }
    }

    fn stepped(&mut self, compaction: Box<Compaction>, step: Result<Stepped, Error>) -> Result<(), Error> {
        self.upkeep.compacting = Compacting::Idle;
        match step {
            Err(error) => {
                self.primary.ship_discard(compaction.built());
                return Err(error);
            }
            Ok(Stepped::Segment(parcel)) => {
                if let Some(parcel) = parcel {
                    self.ship(&parcel);
                }
                self.upkeep.compacting = Compacting::Parked(compaction);
            }
            Ok(Stepped::Finished(done)) => self.install(Arc::from(done)),
        }
        Ok(())
    }

    fn ship(&mut self, parcel: &Parcel) {
        let peers = self.primary.ship(parcel);
        let bytes_shipped = peers * parcel.bytes.len() as u64;
        match parcel.shipped.kind.is_index() {
            true => self.counters.index_bytes_shipped += bytes_shipped,
            false => self.counters.run_bytes_shipped += bytes_shipped,
        }
    }

    fn installed(&mut self, done: &CompactionDone, result: Result<(), Error>) -> Result<(), Error> {
        if result.is_ok() {
            self.counters.compactions += 1;
            self.counters.compaction_bytes_read += done.bytes_read + done.value_bytes_read;
            self.counters.compaction_bytes_written += done.bytes_written;
            self.primary.ship_install(&done.edit);
        } else {
            let built: Vec<SegmentId> = done.edit.added.iter().map(|(id, _)| *id).collect();
            self.primary.ship_discard(&built);
        }
        result
    }

    fn install(&mut self, done: Arc<CompactionDone>) {
        self.upkeep.compacting = Compacting::Busy;
        let region = self.region.clone();
        self.spawn_in_background(Activity::Compaction.of_primary(), move || {
            let result = region.install(&done);
            Outcome::Upkeep(UpkeepDone::Installed { done, result })
        });
    }
}
