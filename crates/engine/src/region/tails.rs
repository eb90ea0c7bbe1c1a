//! Life cycle of the tails: prepared, written, sealed, flushed and released.

use super::{Region, Writer};
use crate::error::{Error, Result};
use crate::log::{OpenTail, Prepared, Tail};
use crate::memory::Purpose;
use crate::volume::{Durability, TailUse, Volume};
use leeward_format::manifest::Change;
use leeward_format::{LogKind, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Region {
    /// Allows tails of `log` up to index `highest`. At first that is 1: two mirror buffers.
    pub fn allow_tails(&self, log: LogKind, highest: u64) {
        self.allowed[log.index()].fetch_max(highest, Ordering::AcqRel);
    }

    /// Tails of `log` in memory, oldest first. Each holds at least one record, once the append that opened it has
    /// finished.
    pub fn tails(&self, log: LogKind) -> Vec<Arc<Tail>> {
        self.tails.of(log).to_vec()
    }

    /// The tail of `log` with this index, if it is in memory.
    pub fn tail(&self, log: LogKind, index: u64) -> Option<Arc<Tail>> {
        self.tails.find(log, index)
    }

    /// Frees the memory of a tail that is durable here, by [`Region::flush_tail`], and on every other member that must
    /// have it.
    pub fn release_tail(&self, log: LogKind, index: u64) {
        self.tails.remove(log, index);
    }

    /// Whether any append was not made durable by [`Region::sync_tails`] yet.
    pub fn is_unsynced(&self) -> bool {
        self.last_lsn() > self.synced_lsn()
    }

    /// Highest LSN up to which everything survives a power loss.
    pub fn synced_lsn(&self) -> Lsn {
        Lsn(self.synced.load(Ordering::Acquire))
    }

    /// Writes the tails' bytes to the page cache; those of mapped tails are there at once. Earlier appends then survive
    /// `kill -9`.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write_tails(&self) -> Result<()> {
        self.tails.all().try_for_each(|tail| tail.write_new(&self.volume))
    }

    /// [`Region::write_tails`] and a sync: earlier appends survive a power loss. Returns the last LSN of them.
    ///
    /// # Errors
    /// Those of writing.
    pub fn sync_tails(&self) -> Result<Lsn> {
        let last = self.write_to_last()?;
        self.volume.sync()?;
        Ok(self.note_synced(last))
    }

    /// [`Region::write_tails`]; returns the last LSN of what was written.
    fn write_to_last(&self) -> Result<Lsn> {
        let last = self.last_lsn();
        self.write_tails().map(|()| last)
    }

    fn note_synced(&self, last: Lsn) -> Lsn {
        self.synced.fetch_max(last.0, Ordering::AcqRel);
        last
    }

    /// [`Region::sync_tails`] of several regions of `volume`, with one sync. Also makes everything else durable that was written
    /// to it before.
    pub fn sync_tails_of(volume: &Volume, regions: &[Arc<Region>]) -> Vec<Result<Lsn>> {
        let written: Vec<Result<Lsn>> = regions.iter().map(|region| region.write_to_last()).collect();
        let synced = volume.sync();
        let end = |(region, written): (&Arc<Region>, Result<Lsn>)| {
            let last = written?;
            synced.clone().map(|()| region.note_synced(last))
        };
        regions.iter().zip(written).map(end).collect()
    }

    /// Makes a sealed tail durable and records its end. The record of the end becomes durable with the next sync: a
    /// replay would find the end by itself.
    ///
    /// # Errors
    /// Those of writing; [`Error::Invalid`] for a tail that is not sealed.
    pub fn flush_tail(&self, log: LogKind, index: u64) -> Result<()> {
        let Some(tail) = self.tails.find(log, index) else { return Ok(()) };
        if !tail.sealed() {
            return Err(Error::Invalid(format!("tail {index} of the {log:?} log is flushed before it is sealed")));
        }
        tail.write_new(&self.volume)?;
        self.volume.sync()?;
        let (bytes, last_lsn) = (tail.filled(), tail.last_lsn());
        let sealed = Change::SealLog { region: self.id(), id: tail.id(), bytes, last_lsn };
        self.volume.commit(&self.owner, vec![sealed], &[], Durability::Lazy)
    }

    /// Whether [`Region::prepare_tails`] has something to do.
    pub fn wants_tails(&self) -> bool {
        LogKind::APPENDED.into_iter().any(|log| self.wants_tail(log))
    }

    /// Logs with few writes get no segment ahead: where regions are many, most logs are such.
    fn wants_tail(&self, log: LogKind) -> bool {
        let is_half_full = self.tails.newest(log).is_some_and(|tail| tail.is_half_full() || tail.sealed());
        is_half_full && self.prepared.lock()[log.index()].is_none()
    }

    /// Allocates and records a segment for the next tail of each log whose newest tail is half full, so that the writer
    /// need not.
    ///
    /// # Errors
    /// Those of writing; [`Error::NoSpace`].
    pub fn prepare_tails(&self) -> Result<()> {
        LogKind::APPENDED
            .into_iter()
            .filter(|log| self.wants_tail(*log))
            .try_for_each(|log| self.prepare_tail(log, TailUse::Writes))
    }

    /// Prepares a segment for the next tail of `log` unless there is one. The manifest's entry for it becomes durable
    /// with the next sync, and so before any of its bytes is relied on.
    ///
    /// One at a time: if the thread with the lower id came second, the log would be filled out of order.
    pub(super) fn prepare_tail(&self, log: LogKind, of: TailUse) -> Result<()> {
        let _preparing = self.preparing.lock();
        if self.prepared.lock()[log.index()].is_some() {
            return Ok(());
        }
        let segment = self.volume.allocate_tail(self.id(), of).inspect_err(|_| {
            // Overwritten values in the L0 become known as garbage only when it is compacted.
            let view = self.view.load();
            let active = view.version.active();
            if active.may_free(self.volume.segment_bytes() as u64) {
                active.ask_to_freeze();
            }
        })?;
        let appender = self.volume.appender(&segment)?;
        let reservation = self.volume.memory().take(Purpose::Tails, appender.resident_bytes());
        let id = (self.ids)()?;
        let opened = Change::OpenLog { region: self.id(), log, id, no: segment.no() };
        self.volume.commit(&self.owner, vec![opened], &[(id, segment.clone())], Durability::Lazy)?;
        if log == LogKind::Large {
            self.opens_log(id, &segment);
        }
        let name = self.options.addressing.name(id, segment.no());
        self.prepared.lock()[log.index()] = Some(Prepared { id, name, segment, appender, reservation, of });
        if of == TailUse::Writes {
            self.volume.writes_have_room(self.id());
        }
        Ok(())
    }

    /// Seals the open tails, so that the logs' contents can be listed by segment: see [`Region::base`]. For the writer.
    pub fn seal_tails(&self) {
        seal(&mut self.writer.lock());
    }
}

/// Seals the open tails.
pub(super) fn seal(writer: &mut Writer) {
    writer.current.iter_mut().filter_map(Option::take).for_each(OpenTail::seal);
}
