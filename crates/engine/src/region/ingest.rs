//! Sorted pairs that go into the levels past the logs and the L0: see `compaction/sorted.rs` for the steps.

use super::append::Need;
use super::{MAX_FROZEN_L0S, Region, Writer};
use crate::compaction::{Compaction, Open, Sorted, SortedBuilder};
use crate::error::{Error, Result};
use crate::region::AppendError;
use crate::volume::TailUse;
use leeward_format::record::{Record, RecordKind, record_bytes};
use leeward_format::{LogKind, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Region {
    /// Takes the LSN of all pairs, and freezes the L0: later writes are newer than those pairs. For the writer; other
    /// writers wait. One ingest at a time, until it is installed or given up. For a region without other replicas.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn begin_ingest(&self) -> Result<SortedBuilder, AppendError> {
        let mut writer = self.writer.lock();
        self.volume.check()?;
        self.volume.in_doubt(|| self.begin_ingest_now(&mut writer))
    }

    fn begin_ingest_now(&self, writer: &mut Writer) -> Result<SortedBuilder, AppendError> {
        let view = self.view.load();
        let freezes = !view.version.active().is_empty();
        if freezes && view.version.frozen().len() >= MAX_FROZEN_L0S {
            return Err(AppendError::L0Full);
        }
        let (_, lsn) = self.take_lsns(writer, 1, freezes)?;
        let reads = Arc::clone(self.view.load().version.reads());
        // Before any newer write.
        let open = Open::default();
        self.picker.lock().begin_ingest(lsn, &open);
        Ok(SortedBuilder::new(reads, self.ids.clone(), &self.options, lsn, &open))
    }

    /// Skips at least one LSN, and all up to `beyond`: later writes are newer than any write made elsewhere up to
    /// there, and a replay knows no earlier request. Returns the last skipped LSN. For the writer; other writers wait.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn skip_lsns(&self, beyond: Lsn) -> Result<Lsn, AppendError> {
        let mut writer = self.writer.lock();
        self.volume.check()?;
        let count = beyond.0.saturating_add(1).saturating_sub(writer.next.0).max(1);
        self.volume.in_doubt(|| self.take_lsns(&mut writer, count, false)).map(|(_, last)| last)
    }

    /// Takes `count` LSNs by one record that stands for all of them. If it `freezes`, the L0 freezes before. Returns
    /// the first and the last LSN.
    fn take_lsns(&self, writer: &mut Writer, count: u64, freezes: bool) -> Result<(Lsn, Lsn), AppendError> {
        let (key, value) = ([0], count.to_le_bytes());
        let bytes = record_bytes(key.len(), value.len(), None);
        if writer.next.0.checked_add(count).is_none_or(|end| end == u64::MAX) {
            return Err(AppendError::Engine(Error::Invalid(format!("there are no {count} LSNs left"))));
        }
        self.check_tail(writer, LogKind::Recovery, bytes, TailUse::Writes)?;
        if freezes {
            self.freeze();
        }
        self.make_room(writer, LogKind::Recovery, Need { bytes, first: Some(0) });
        let first = writer.next;
        let record =
            Record { stamp: first.into(), kind: RecordKind::Ingest, flags: 0, request: None, key: &key, value: &value };
        let open = writer.current[LogKind::Recovery.index()].as_mut().expect("room was made in this log");
        open.append(&record);
        open.publish(&self.volume)?;
        let last = record.last_lsn();
        writer.next = last.next();
        self.last.store(last.0, Ordering::Release);
        Ok((first, last))
    }

    /// The compaction that makes `sorted` a part of the levels, and merges nothing; `None` while an earlier L0 is not
    /// compacted, or all positions of runs are taken. Other compactions and writes go on meanwhile.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn ingest(&self, sorted: &Arc<Sorted>) -> Result<Option<Compaction>> {
        // The picker's lock first: see `Region::next_compaction`.
        let mut picker = self.picker.lock();
        let view = self.view.load();
        if view.version.frozen().iter().any(|l0| l0.last_lsn() < sorted.lsn()) {
            return Ok(None);
        }
        picker.pick_ingest(&view.version, sorted)
    }

    /// Counts the bytes of an installed ingest.
    pub(crate) fn count_ingested(&self, sorted: &Sorted) {
        self.user_bytes_written.fetch_add(sorted.pair_bytes(), Ordering::Relaxed);
    }
}
