//! What a file of a [`SimDisk`](super::SimDisk) holds: its bytes, and what a power loss may leave of them instead.
//!
//! Used under the lock of the disk.

use super::sim::SECTOR_BYTES;
use super::{DIRECT_ALIGN, DeviceCounters};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;

/// Versions of a sector remembered between two syncs, the durable one included.
const MAX_VERSIONS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) bytes: Vec<u8>,
    pub(super) durable_len: usize,
    /// Older versions of the sectors written since the last sync, the durable one first.
    pub(super) unsynced: BTreeMap<usize, Vec<[u8; SECTOR_BYTES]>>,
    /// The device has refused a write, and no sync has told of it yet.
    pub(super) refused: bool,
    /// The durable contents of sectors that a failed sync gave up, and that were not written again.
    pub(super) given_up: BTreeMap<usize, [u8; SECTOR_BYTES]>,
    /// Blocks of [`DIRECT_ALIGN`] bytes that cannot be read before they are written.
    pub(super) unreadable: BTreeSet<usize>,
    /// Blocks of [`DIRECT_ALIGN`] bytes that take no space: they were released.
    pub(super) holes: BTreeSet<usize>,
    pub(super) counters: DeviceCounters,
}

/// Which blocks of `unit` bytes a range has a part of; the range is not empty.
fn parts_of(unit: usize, offset: usize, bytes: usize) -> RangeInclusive<usize> {
    offset / unit..=(offset + bytes - 1) / unit
}

impl Contents {
    /// Lost blocks that are about to be written can be read again, if they are written as a whole.
    fn replace_lost(&mut self, bytes: usize, offset: usize) -> io::Result<()> {
        let is_partial = |block: &usize| {
            let start = block * DIRECT_ALIGN;
            start < offset || offset + bytes < (start + DIRECT_ALIGN).min(self.bytes.len())
        };
        let lost: Vec<usize> = self.unreadable.range(parts_of(DIRECT_ALIGN, offset, bytes)).copied().collect();
        if lost.iter().any(is_partial) {
            return Err(Errno::IO.into());
        }
        self.unreadable.retain(|block| !lost.contains(block));
        Ok(())
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: usize) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.replace_lost(bytes.len(), offset)?;
        for sector in parts_of(SECTOR_BYTES, offset, bytes.len()) {
            let mut version = [0; SECTOR_BYTES];
            let start = sector * SECTOR_BYTES;
            let end = self.bytes.len().min(start + SECTOR_BYTES);
            version[..end - start].copy_from_slice(&self.bytes[start..end]);
            let versions = self.unsynced.entry(sector).or_default();
            versions.extend(self.given_up.remove(&sector));
            if versions.len() < MAX_VERSIONS {
                versions.push(version);
            }
        }
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.counters.bytes_written += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn read(&mut self, buffer: &mut [u8], offset: usize) -> io::Result<()> {
        let bytes = self.bytes.get(offset..offset + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        if !buffer.is_empty() && self.unreadable.range(parts_of(DIRECT_ALIGN, offset, buffer.len())).next().is_some() {
            return Err(Errno::IO.into());
        }
        buffer.copy_from_slice(bytes);
        self.counters.bytes_read += buffer.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&mut self, is_refused: bool) -> io::Result<()> {
        if std::mem::take(&mut self.refused) || is_refused {
            for (sector, versions) in std::mem::take(&mut self.unsynced) {
                self.given_up.entry(sector).or_insert(versions[0]);
            }
            return Err(io::Error::other("a simulated error"));
        }
        self.unsynced.clear();
        self.durable_len = self.bytes.len();
        Ok(())
    }

    /// Restores a sector to `version`.
    pub(super) fn put_back(&mut self, sector: usize, version: &[u8; SECTOR_BYTES]) {
        let start = sector * SECTOR_BYTES;
        let end = self.bytes.len().min(start + SECTOR_BYTES);
        self.bytes[start..end].copy_from_slice(&version[..end - start]);
    }
}
