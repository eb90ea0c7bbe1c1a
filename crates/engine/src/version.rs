//! What a region is at one instant: the L0 that is being filled, the frozen ones, the levels. Immutable but for the
//! active L0, which grows; a change makes a new version, and readers keep the one they began with.
//!
//! Any thread may read. With [`Reach::Memory`] nothing here touches the device.

use crate::compaction::CompactionDone;
use crate::error::{Error, Result};
use crate::log::LogReader;
use crate::memtable::{Entry, MemTable};
use crate::scan::{Cursor, ScanBounds};
use crate::tree::{Found, Level, Probe};
use crate::volume::Volume;
use bytes::Bytes;
use leeward_format::{DecodeError, Lsn, Pointer, RegionId, filter};
use std::sync::Arc;

#[cfg(test)]
pub(crate) mod tests;

/// How far a read may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Memory only: what is neither in an L0 nor cached is answered by [`Lookup::NotInMemory`].
    Memory,
    /// To the device.
    Device,
}

/// Answer of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key has a value.
    Found {
        /// LSN of the put.
        lsn: Lsn,
        /// The value.
        value: Bytes,
    },
    /// The key was deleted.
    Deleted {
        /// LSN of the delete.
        lsn: Lsn,
    },
    /// Nothing is known of the key: it never existed, or its tombstone is gone as well.
    Absent,
    /// Only the device can tell.
    NotInMemory,
}

/// Where values in the large log are read: [`LogReader`], or a model in tests.
pub trait ValueLog: Send + Sync {
    /// The value of the record at `pointer` if it is in memory. Never touches the device.
    fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes>;
    /// The value of the record at `pointer`, which must be one of `key`.
    ///
    /// # Errors
    /// The device fails, or holds no such record.
    fn value(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Result<Bytes>;
}

impl ValueLog for LogReader {
    fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes> {
        LogReader::value_in_memory(self, pointer, key, value_bytes)
    }
    fn value(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Result<Bytes> {
        LogReader::value(self, pointer, key, value_bytes)
    }
}

/// What reading needs beside the version: the same for all versions of a region.
pub struct Reads {
    pub(crate) volume: Arc<Volume>,
    pub(crate) region: RegionId,
    pub(crate) log: Arc<dyn ValueLog>,
    /// What cached records of the log are filed under.
    pub(crate) owner: u64,
}

impl Reads {
    /// For `region` on `volume`, its large values in `log`.
    pub fn new(volume: Arc<Volume>, region: RegionId, log: Arc<dyn ValueLog>) -> Arc<Reads> {
        let owner = volume.cache().new_owner();
        Arc::new(Reads { volume, region, log, owner })
    }

    /// What was read at `pointer` cannot be decoded.
    pub(crate) fn damaged(&self, pointer: Pointer, error: &DecodeError) -> Error {
        let offset = self.volume.file_offset(pointer.segment(), pointer.offset());
        Error::damaged(self.volume.name(), offset, error)
    }

    /// The value of `key` in the log; `None` if it is not in memory and `reach` ends there.
    pub(crate) fn value(
        &self,
        key: &[u8],
        lsn: Lsn,
        pointer: Pointer,
        bytes: u32,
        reach: Reach,
    ) -> Result<Option<Bytes>> {
        let cache = self.volume.cache();
        if let Some(value) = self.log.value_in_memory(pointer, key, bytes).or_else(|| cache.value(self.owner, lsn)) {
            return Ok(Some(value));
        }
        if reach == Reach::Memory {
            return Ok(None);
        }
        let value = self.log.value(pointer, key, bytes)?;
        // A copy of its own: what was read may be a part of something larger.
        cache.insert_value(self.owner, lsn, Bytes::copy_from_slice(&value));
        Ok(Some(value))
    }
}

/// A region at one instant.
#[derive(Clone)]
pub struct Version {
    reads: Arc<Reads>,
    active: Arc<MemTable>,
    frozen: Vec<Arc<MemTable>>,
    levels: Vec<Arc<Level>>,
}

impl Version {
    /// A version of these parts; `frozen` newest first, `levels` from L1.
    pub fn new(
        reads: Arc<Reads>,
        active: Arc<MemTable>,
        frozen: Vec<Arc<MemTable>>,
        levels: Vec<Arc<Level>>,
    ) -> Version {
        Version { reads, active, frozen, levels }
    }
    /// The L0 that takes writes.
    pub fn active(&self) -> &Arc<MemTable> {
        &self.active
    }
    /// L0s that take no more, newest first.
    pub fn frozen(&self) -> &[Arc<MemTable>] {
        &self.frozen
    }
    /// L1, L2 and so on.
    pub fn levels(&self) -> &[Arc<Level>] {
        &self.levels
    }
    /// The version after the active L0 was frozen and `active` took its place.
    #[must_use]
    pub fn freeze(&self, active: Arc<MemTable>) -> Version {
        let frozen = std::iter::once(&self.active).chain(&self.frozen).cloned().collect();
        Version { reads: self.reads.clone(), active, frozen, levels: self.levels.clone() }
    }
    /// The version after a compaction, which must have begun at a version with the same levels.
    #[must_use]
    pub fn install(&self, done: &CompactionDone) -> Version {
        assert!(
            self.levels.iter().map(Arc::as_ptr).eq(done.base.iter().map(Arc::as_ptr)),
            "one compaction of a region at a time"
        );
        let compacted = |l0: &Arc<MemTable>| done.l0s.iter().any(|compacted| Arc::ptr_eq(l0, compacted));
        let frozen = self.frozen.iter().filter(|l0| !compacted(l0)).cloned().collect();
        Version { reads: self.reads.clone(), active: self.active.clone(), frozen, levels: done.levels.clone() }
    }

    /// The newest version of `key` with an LSN of at most `at`. `at` must not be below what the levels hold: that is so
    /// for every LSN that was committed when this version was current. Allocates nothing but the value.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn get(&self, key: &[u8], at: Lsn, reach: Reach) -> Result<Lookup> {
        for l0 in std::iter::once(&self.active).chain(&self.frozen) {
            if let Some((lsn, entry)) = l0.get(key, at) {
                return match entry {
                    Entry::InPlace(value) => Ok(Lookup::Found { lsn, value: Bytes::copy_from_slice(value) }),
                    Entry::InLog { pointer, value_bytes } => self.in_log(key, lsn, pointer, value_bytes, reach),
                    Entry::Tombstone => Ok(Lookup::Deleted { lsn }),
                };
            }
        }
        if self.levels.is_empty() {
            return Ok(Lookup::Absent);
        }
        let hash = filter::hash(key);
        for level in &self.levels {
            match level.get(&self.reads, key, hash, reach)? {
                Probe::Absent => {}
                Probe::NotInMemory => return Ok(Lookup::NotInMemory),
                Probe::Found(lsn, Found::InPlace(value)) => return Ok(Lookup::Found { lsn, value }),
                Probe::Found(lsn, Found::Tombstone) => return Ok(Lookup::Deleted { lsn }),
                Probe::Found(lsn, Found::InLog(pointer, bytes)) => return self.in_log(key, lsn, pointer, bytes, reach),
            }
        }
        Ok(Lookup::Absent)
    }

    fn in_log(&self, key: &[u8], lsn: Lsn, pointer: Pointer, bytes: u32, reach: Reach) -> Result<Lookup> {
        let value = self.reads.value(key, lsn, pointer, bytes, reach)?;
        Ok(value.map_or(Lookup::NotInMemory, |value| Lookup::Found { lsn, value }))
    }

    pub(crate) fn reads(&self) -> &Arc<Reads> {
        &self.reads
    }
}

/// A region as of one LSN. Pins the L0s and segments that it needs.
#[derive(Clone)]
pub struct Snapshot {
    version: Arc<Version>,
    lsn: Lsn,
}

impl Snapshot {
    /// `version` as of `lsn`: the commit LSN, or an earlier one that was committed when `version` was current.
    pub fn new(version: Arc<Version>, lsn: Lsn) -> Snapshot {
        Snapshot { version, lsn }
    }
    /// Its LSN.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }
    /// Value of `key` at that LSN.
    ///
    /// # Errors
    /// As [`Version::get`].
    pub fn get(&self, key: &[u8], reach: Reach) -> Result<Lookup> {
        self.version.get(key, self.lsn, reach)
    }
    /// A cursor over the keys within `bounds`. Reads from the device.
    pub fn cursor(&self, bounds: ScanBounds) -> Cursor {
        Cursor::new(&self.version, self.lsn, bounds)
    }
}
