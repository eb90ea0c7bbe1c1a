//! Compactions: which one is next, and the atomic install of its result.

use super::{Region, View};
use crate::compaction::{Compaction, CompactionDone};
use crate::error::Result;
use crate::volume::Durability;
use leeward_format::manifest::{Change, RegionState};
use leeward_format::{LogKind, Lsn, SegmentId};
use leeward_platform::{Bug, planted};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Region {
    /// The most urgent compaction, if any is. Of an L0 only if all of it is committed. One at a time: the next is asked
    /// for after the last one was installed or dropped.
    pub fn next_compaction(&self) -> Option<Compaction> {
        let version = self.view.load().version.clone();
        let logs: Vec<_> = self.frozen_logs.lock().iter().cloned().collect();
        self.picker.lock().pick(&version, self.commit(), &logs)
    }

    /// Installs the result of a compaction: log bytes and segments durable, then the edit, then the new version, then
    /// trim.
    ///
    /// # Errors
    /// Those of writing. Nothing is changed then.
    pub fn install(&self, done: &CompactionDone) -> Result<()> {
        let _installing = self.installing.lock();
        if !planted(Bug::InstallBeforeLogDurable) {
            self.sync_tails()?;
        }
        let commit = self.commit().min(Lsn(self.synced.load(Ordering::Acquire)));
        let region = self.id();
        let places = done.added.iter().map(|(_, _, segment, bytes)| (segment.no(), *bytes)).collect();
        let trimmed = self.volume.with_region(&self.owner, |state| self.trimmable(state, done.edit.replay_from))?;
        let mut changes = vec![Change::Install { region, edit: done.edit.clone(), places, commit }];
        if !trimmed.is_empty() {
            changes.push(Change::Forget { region, ids: trimmed });
        }
        let added: Vec<_> = done.added.iter().map(|(id, _, segment, _)| (*id, segment.clone())).collect();
        self.volume.commit(&self.owner, changes, &added, Durability::Synced)?;
        self.show(done);
        Ok(())
    }

    /// Sealed segments of the recovery log that hold nothing that a replay from `replay_from` needs, nor any reader in
    /// memory.
    fn trimmable(&self, state: &RegionState, replay_from: Lsn) -> Vec<SegmentId> {
        let tails = self.tails.of(LogKind::Recovery);
        trimmable(state, replay_from).filter(|id| tails.iter().all(|tail| tail.id() != *id)).collect()
    }

    /// Makes the new version the one that readers begin with.
    fn show(&self, done: &CompactionDone) {
        let mut frozen_logs = self.frozen_logs.lock();
        let view = self.view.load();
        let version = Arc::new(view.version.install(done));
        let floor = match done.edit.replay_from {
            Lsn(0) => view.floor,
            from => {
                frozen_logs.drain(..done.l0s.len());
                view.floor.max(Lsn(from.0.saturating_sub(1)))
            }
        };
        self.view.store(Arc::new(View { version, floor }));
    }
}

/// Sealed segments of the recovery log whose records all lie before `replay_from`.
pub(crate) fn trimmable(state: &RegionState, replay_from: Lsn) -> impl Iterator<Item = SegmentId> {
    let segments = state.log_segments(LogKind::Recovery);
    segments.filter(move |segment| segment.bytes.is_some() && segment.last_lsn < replay_from).map(|segment| segment.id)
}
