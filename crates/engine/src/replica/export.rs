//! Export: copies a region as of an instant to a volume of its own, segment by segment, for `leeward verify`, `inspect`
//! and [`crate::embedded::Db`]. The copy of an encrypted volume is encrypted with the same key of the operator's, and a
//! data key of its own. The region continues to serve meanwhile. One thread at a time.

use super::Replica;
use crate::error::{Error, Result};
use crate::region::{Checkpoint, PinnedBase};
use crate::volume::{VOLUME_NAME, Volume, VolumeOptions};
use leeward_format::packed::Codec;
use leeward_format::{Lsn, RegionId, SegmentId, VolumeId, wire};
use leeward_platform::Disk;
use leeward_platform::disk::DiskLock;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;

/// An export under way: see the module.
#[derive(Debug)]
pub struct Export {
    pinned: Arc<PinnedBase>,
    copy: Replica,
    volume: Arc<Volume>,
    missing: VecDeque<SegmentId>,
    _lock: DiskLock,
}

impl Export {
    /// Begins to copy `pinned`, a base of `region`, to a volume with the random id `new` on `disk`. Messages call the
    /// disk `at`. If a step fails, the caller removes the partial copy with [`Export::give_up`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is a store already; [`Error::Locked`] if the directory is in use; those of writing.
    pub fn begin(
        pinned: Arc<PinnedBase>,
        region: RegionId,
        new: VolumeId,
        disk: &dyn Disk,
        at: &str,
    ) -> Result<Export> {
        let io = |action| {
            let file = at.to_owned();
            move |error| Error::Io { file, action, offset: 0, source: Arc::new(error) }
        };
        let lock = disk.lock().map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => Error::Locked(at.to_owned()),
            _ => io("lock")(error),
        })?;
        if disk.exists(VOLUME_NAME).map_err(io("open"))? {
            return Err(Error::Invalid(format!(
                "{at}: there is a store already: choose another name, or an empty directory"
            )));
        }
        let begin = || {
            let file = disk.open(VOLUME_NAME).map_err(io("open"))?;
            let (segment_bytes, encryption) = (pinned.volume().segment_bytes(), pinned.volume().encryption().cloned());
            let options = VolumeOptions { segment_bytes, encryption, ..VolumeOptions::default() };
            let (volume, _) = Volume::open(file, new, options)?;
            let mut copy = Replica::create(&volume, region, pinned.base.options.clone())?;
            let missing = copy.begin_base(&pinned.base)?.into();
            Ok((volume, copy, missing))
        };
        let begun = begin().inspect_err(|_| remove(disk, at));
        let (volume, copy, missing) = begun?;
        Ok(Export { pinned, copy, volume, missing, _lock: lock })
    }

    /// Copies one segment; after the last one makes the copy complete and durable. Returns the number of segments left,
    /// 0 once complete.
    ///
    /// # Errors
    /// Those of reading here and of writing there.
    pub fn step(&mut self) -> Result<usize> {
        if let Some(id) = self.missing.pop_front() {
            let found = self.pinned.segment(id)?;
            let mut bytes = self.pinned.read_segment(id)?;
            let (shipped, _) = wire::pack((id, found.kind, found.primary), &bytes, Codec::None);
            self.copy.store(&shipped, &mut bytes)?;
        }
        if self.missing.is_empty() {
            self.copy.install_base()?;
            self.volume.sync()?;
        }
        Ok(self.missing.len())
    }

    /// Last LSN of the copy.
    pub fn last_lsn(&self) -> Lsn {
        self.pinned.base.last_lsn
    }

    /// Removes the partial copy, before the directory is unlocked, so that no process takes it for a store.
    pub fn give_up(self, disk: &dyn Disk, at: &str) {
        let Export { copy, volume, _lock: lock, .. } = self;
        drop((copy, volume));
        remove(disk, at);
        drop(lock);
    }
}

impl Checkpoint {
    /// Copies it to a volume with the random id `new` on `disk`, which messages call `at`.
    ///
    /// # Errors
    /// As [`Export::begin`] and [`Export::step`]; nothing is left there after an error.
    pub(crate) fn copy_to(&self, new: VolumeId, disk: &dyn Disk, at: &str) -> Result<()> {
        let (region, pinned) = self.pinned();
        let mut export = Export::begin(Arc::clone(pinned), region, new, disk, at)?;
        loop {
            match export.step() {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    export.give_up(disk, at);
                    return Err(error);
                }
            }
        }
    }
}

fn remove(disk: &dyn Disk, at: &str) {
    if let Err(error) = disk.remove(VOLUME_NAME) {
        tracing::warn!(at, %error, "a partial export could not be removed");
    }
}
