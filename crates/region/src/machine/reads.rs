//! Reads of a copy that follows a primary: the safe LSNs that it has heard, and the index that answers reads.
//!
//! Invariant: a safe LSN counts in the session in which it was heard, while the copy is in sync.

use super::{Holding, RegionMachine};
use crate::effects::Step;
use leeward_engine::{Region, Snapshot, SnapshotAt};
use leeward_format::cluster::GroupConfig;
use leeward_format::control::SafeLsnOf;
use leeward_format::op::{DigestInstant, RangeAnswer};
use leeward_format::{Epoch, Lsn, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_replication::backup::PrimarySession;
use leeward_replication::clock::ClockReading;
use std::collections::VecDeque;
use std::sync::Arc;

/// How long a copy that is not read otherwise keeps its index after a question.
const KEPT: Nanos = Nanos::from_secs(5);

/// Safe LSNs that are kept. The newest may be about records that are not in the copy yet.
const MOST_SAFE_LSNS: usize = 8;

/// A safe LSN that a backup has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafeLsnRecord {
    /// h: the reading of the backup's own clocks that the primary answered.
    pub heard: ClockReading,
    pub(crate) epoch: Epoch,
    /// How far.
    pub lsn: Lsn,
}

/// The safe LSNs that a backup has heard in a session, oldest first.
#[derive(Debug, Default)]
pub(super) struct SafeLsns {
    session: Option<PrimarySession>,
    known: VecDeque<SafeLsnRecord>,
}

impl SafeLsns {
    fn hear(&mut self, session: PrimarySession, safe_lsn_record: SafeLsnRecord) {
        if self.session != Some(session) {
            *self = SafeLsns { session: Some(session), known: VecDeque::new() };
        }
        if self.known.len() == MOST_SAFE_LSNS {
            self.known.pop_front();
        }
        self.known.push_back(safe_lsn_record);
    }

    /// The newest safe LSN up to which a copy has all records, if it has applied those up to `applied`. `None` if the latest
    /// ones are for another configuration than that of `epoch`: since then another region may have owned some of the keys, and
    /// changed them.
    fn newest(&self, session: PrimarySession, epoch: Epoch, applied: Lsn) -> Option<SafeLsnRecord> {
        let mut latest = self.known.iter().rev().take_while(|known| known.epoch == epoch);
        latest.find(|known| known.lsn <= applied).copied().filter(|_| self.session == Some(session))
    }
}

impl RegionMachine {
    /// A primary has published a safe LSN.
    pub(super) fn hear_safe_lsn(
        &mut self,
        from: ServerId,
        heard: ClockReading,
        SafeLsnOf { epoch, lsn, .. }: SafeLsnOf,
        step: &mut Step<'_>,
    ) {
        let session =
            self.backup.primary_session().filter(|session| session.primary == from && self.backup.is_in_sync());
        let Some(session) = session else { return };
        self.safe_lsns.hear(session, SafeLsnRecord { heard, epoch, lsn });
        if self.reading.as_ref().is_none_or(|copy| copy.last_lsn() < lsn) {
            self.catch_up_reads(step);
        }
    }

    /// Has a copy in sync begin to answer reads, if that is wanted, or take the records that it has received since.
    pub(super) fn catch_up_reads(&mut self, step: &mut Step<'_>) {
        match &self.reading {
            _ if !self.backup.is_in_sync() => return,
            None if self.wants_to_be_read(false, step) => self.backup.be_read(true),
            None => return,
            Some(_) => self.backup.save_tails(false),
        }
        self.act_as_backup(step);
    }

    /// Whether this is a copy in sync that answers no reads yet.
    pub fn is_unread_backup(&self) -> bool {
        self.reading.is_none() && self.backup.is_in_sync()
    }

    /// Drops the index that answers reads, if the table no longer wants such reads, or there is no memory for it.
    pub(crate) fn look_after_reads(&mut self, step: &mut Step<'_>) {
        self.digests_until.take_if(|until| *until <= step.now);
        let only_read = self.reading.is_some() && self.building.is_none();
        if only_read && !self.wants_to_be_read(true, step) {
            self.backup.be_read(false);
            self.act_as_backup(step);
        }
    }

    /// Whether the copy should answer reads, and there is memory for that. A copy that `is_read` already may go on while memory is
    /// scarcer than another copy needs to begin.
    fn wants_to_be_read(&self, is_read: bool, step: &Step<'_>) -> bool {
        let table = self.config.as_ref().and_then(|config| step.facts.table(&config.table));
        let debt = self.node.volume.memory().l0_debt();
        let has_memory = if is_read { debt < 1.0 } else { debt <= 0.0 };
        let is_for_reads = table.is_some_and(|table| table.reads.is_at_backups());
        has_memory && (is_for_reads || self.digests_until.is_some())
    }

    /// The copy that can be read for keys of this configuration, and its safe LSN.
    pub fn readable(&self, config: &GroupConfig) -> Option<(Arc<Region>, SafeLsnRecord)> {
        let (copy, session) = self.followed(config)?;
        let known = self.safe_lsns.newest(session, config.epoch, copy.last_lsn())?;
        Some((copy.clone(), known))
    }

    /// A copy that can be read and is in sync with the primary of this configuration, and the session.
    pub fn followed(&self, config: &GroupConfig) -> Option<(&Arc<Region>, PrimarySession)> {
        let copy = self.reading.as_ref().filter(|_| self.backup.is_in_sync())?;
        // In another term of the same primary the copy may have other records.
        let session = self.backup.primary_session().filter(|session| session.term == config.term)?;
        Some((copy, session))
    }
}

impl RegionMachine {
    /// The copy in the state `at`; or why it cannot be shown. [`RangeAnswer::NotYet`]: it may lag, and [`Input::ReadsWait`] has it
    /// go on.
    ///
    /// [`Input::ReadsWait`]: crate::input::Input::ReadsWait
    pub fn copy_at(&mut self, now: Nanos, at: DigestInstant) -> Result<Snapshot, RangeAnswer> {
        let wall = self.node.wall.now();
        if wall >= at.now {
            return Err(RangeAnswer::InstantPassed);
        }
        let (term, copy) = match &self.holding {
            Holding::Serving(serving) if serving.is_open() => (serving.term(), Some(serving.region().clone())),
            Holding::Copy(_) | Holding::Working => match self.backup.primary_session() {
                Some(session) if self.backup.is_in_sync() => (session.term, self.reading.clone()),
                session => (session.map_or(Epoch(0), |session| session.term), None),
            },
            _ => return Err(RangeAnswer::NotYet),
        };
        if term != at.term {
            return Err(if term > at.term { RangeAnswer::TooLate } else { RangeAnswer::NotYet });
        }
        let instant = if planted(Bug::DigestAcrossInstants) { wall } else { at.now };
        match copy.map_or(SnapshotAt::NotYet, |copy| copy.snapshot_at(at.lsn, instant)) {
            SnapshotAt::Shown(snapshot) => {
                self.keep_for_digests(now);
                Ok(snapshot)
            }
            SnapshotAt::NotYet => {
                self.keep_for_digests(now);
                Err(RangeAnswer::NotYet)
            }
            SnapshotAt::TooLate => Err(RangeAnswer::TooLate),
        }
    }

    /// A copy that only answers reads, or none, stays readable for a while.
    fn keep_for_digests(&mut self, now: Nanos) {
        if self.backup.is_in_sync() && self.building.is_none() {
            self.digests_until = Some(now + KEPT);
        }
    }
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
