//! Follows a primary: its tails, as their mirror buffers are persisted, and the installs of its compactions.

use super::{OpenTail, Replica};
use crate::error::{Error, RESTORE, Result};
use crate::volume::Durability;
use leeward_format::manifest::{Change, InstallEdit, LogExtent, RegionState};
use leeward_format::{LogKind, Lsn, SegmentId, SegmentNo};
use leeward_platform::{Bug, planted};

impl Replica {
    /// A tail begins at the primary: allocates a segment for it and enters it in the log map. During a base it belongs
    /// to the state after the base. The manifest's entry for it becomes durable with the next sync, and so before any
    /// of its bytes is relied on.
    ///
    /// # Errors
    /// Those of writing; [`Error::NoSpace`]; [`Error::Protocol`] if the segment is known already.
    pub fn open_tail(&mut self, log: LogKind, id: SegmentId, primary: SegmentNo) -> Result<()> {
        let known = self.volume.segment(self.region(), id).is_some() || self.tails.contains_key(&id);
        if known {
            return Err(Error::protocol(self.region(), format!("tail {id} is opened twice")));
        }
        let segment = self.volume.allocate(self.region())?;
        if self.pending.is_none() {
            let opened = Change::OpenLog { region: self.region(), log, id, no: segment.no() };
            self.volume.commit(&self.owner, vec![opened], &[(id, segment.clone())], Durability::Lazy)?;
        }
        self.is_at_end = false;
        self.map.insert(id, primary, segment.no());
        if let Some(follower) = &self.follower {
            follower.open(log, id, &segment);
        }
        self.tails.insert(id, OpenTail { log, segment, persisted: 0, sealed: None });
        Ok(())
    }

    /// Writes bytes of an open tail, from its mirror buffer, at `offset` (buffered; see [`Replica::sync`]). Bytes that
    /// were written before are the same, and are not written again.
    ///
    /// # Errors
    /// Those of writing; [`Error::Protocol`] for an unknown tail or bytes that leave a gap.
    pub fn persist_tail(&mut self, log: LogKind, id: SegmentId, offset: u32, bytes: &[u8]) -> Result<()> {
        let (region, segment_bytes) = (self.region(), self.volume.segment_bytes());
        let tail = self.tails.get_mut(&id).filter(|tail| tail.log == log && tail.sealed.is_none());
        let Some(tail) = tail.filter(|tail| offset <= tail.persisted) else {
            let detail = format!("bytes at {offset} of {log:?} tail {id}, which do not follow on what is here");
            return Err(Error::protocol(region, detail));
        };
        let end = offset as usize + bytes.len();
        if end > segment_bytes {
            return Err(Error::protocol(region, format!("{end} bytes in tail {id}, more than a segment has")));
        }
        let new = (tail.persisted - offset) as usize;
        if new < bytes.len() {
            let (no, from) = (tail.segment.no(), std::mem::replace(&mut tail.persisted, end as u32));
            self.volume.write_buffered(no, from, &bytes[new..])?;
            if let Some(follower) = &mut self.follower {
                follower.feed(log, (id, no), from, &bytes[new..])?;
            }
        }
        Ok(())
    }

    /// Reads the first bytes of an open tail, which were persisted. Returns `false` if the tail is not open: an adopted
    /// or sealed one is part of the copy.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read_tail(&self, id: SegmentId, bytes: &mut [u8]) -> Result<bool> {
        let tail = self.tails.get(&id).filter(|tail| bytes.len() <= tail.persisted as usize);
        tail.map_or(Ok(false), |tail| self.volume.read(tail.segment.no(), 0, bytes).map(|()| true))
    }

    /// The error for an open tail whose persisted bytes differ from what [`Replica::read_tail`] reads.
    pub fn unreadable(&self, id: SegmentId) -> Error {
        let no = self.tails.get(&id).map_or(SegmentNo(0), |tail| tail.segment.no());
        let detail = format!("region {}: what was written to tail {id} is not what is read there", self.region());
        let (file, offset) = (self.volume.name().to_owned(), self.volume.file_offset(no, 0));
        Error::Damaged { file, offset, detail, advice: RESTORE }
    }

    /// An open tail is complete, persisted up to `bytes`: makes it durable and records its end. The record of the end
    /// becomes durable with the next sync: a replay would find the end by itself.
    ///
    /// # Errors
    /// Those of writing; [`Error::Protocol`] if bytes are missing.
    pub fn seal_tail(&mut self, log: LogKind, id: SegmentId, bytes: u32, last_lsn: Lsn) -> Result<()> {
        let region = self.region();
        let Some(tail) = self.tails.get_mut(&id).filter(|tail| tail.log == log && tail.persisted >= bytes) else {
            return Err(Error::protocol(region, format!("{log:?} tail {id} ends at {bytes}, which is not here")));
        };
        self.volume.sync()?;
        if self.pending.is_some() {
            tail.sealed = Some((bytes, last_lsn));
            return Ok(());
        }
        self.tails.remove(&id);
        let sealed = Change::SealLog { region, id, bytes, last_lsn };
        self.volume.commit(&self.owner, vec![sealed], &[], Durability::Lazy)
    }

    /// Installs a compaction's result: log bytes and segments become durable, then the edit is written, then logs are
    /// trimmed.
    ///
    /// # Errors
    /// Those of writing; [`Error::Protocol`] if segments or log bytes that it needs were not shipped or persisted.
    pub fn install(&mut self, edit: &InstallEdit) -> Result<()> {
        let region = self.region();
        if let Some(lsn) = self.pending_lsn() {
            return Err(Error::protocol(region, format!("an install before the base at LSN {lsn} is complete")));
        }
        let state = self.state()?;
        state.check_install(edit).map_err(|error| Error::protocol(region, error.to_string()))?;
        let mut places = Vec::new();
        let mut added = Vec::new();
        for (id, kind) in &edit.added {
            let Some(shipment) = self.shipments.get(id).filter(|shipment| shipment.kind == *kind) else {
                return Err(Error::protocol(region, format!("segment {id} was not shipped")));
            };
            places.push((shipment.segment.no(), shipment.bytes));
            added.push((*id, shipment.segment.clone()));
        }
        if !planted(Bug::InstallBeforeLogDurable) {
            edit.logs.iter().try_for_each(|extent| self.check_persisted(&state, extent))?;
            self.volume.sync()?;
        }
        let mut local = edit.clone();
        for (_, level) in &mut local.levels {
            *level = self.local_level(level)?;
        }
        let trimmed = self.volume.trimmable(&self.owner, edit)?;
        // An L0 is compacted only after it is committed.
        let commit = Lsn(edit.replay_from.0.saturating_sub(1));
        let mut changes = vec![Change::Install { region, edit: local, places, commit }];
        if !trimmed.is_empty() {
            changes.push(Change::Forget { region, ids: trimmed.clone() });
        }
        // Readers may still follow pointers to them.
        let retired = state.with_values(&trimmed).filter_map(|id| self.volume.segment(region, id)).collect();
        self.volume.commit(&self.owner, changes, &added, Durability::Synced)?;
        self.follow_install(edit, retired)?;
        edit.removed.iter().chain(&trimmed).for_each(|id| self.map.remove(*id));
        for (id, _) in &edit.added {
            self.shipments.remove(id);
        }
        self.volume.release_space();
        Ok(())
    }

    /// Frees segments that were shipped for a compaction that the primary has given up.
    pub fn discard(&mut self, ids: &[SegmentId]) {
        for id in ids {
            if self.shipments.remove(id).is_some() {
                self.map.remove(*id);
            }
        }
    }

    /// An error unless the log bytes up to `extent` were written here.
    fn check_persisted(&self, state: &RegionState, extent: &LogExtent) -> Result<()> {
        let sealed = state.segments.get(&extent.id).and_then(|segment| segment.bytes);
        let here = self.tails.get(&extent.id).map(|tail| tail.persisted).or(sealed).unwrap_or(0);
        if here < extent.bytes {
            let (log, id, bytes) = (extent.log, extent.id, extent.bytes);
            let detail =
                format!("an install refers to {bytes} bytes of {log:?} segment {id}, of which {here} are here");
            return Err(Error::protocol(self.region(), detail));
        }
        Ok(())
    }
}
