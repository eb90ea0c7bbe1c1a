//! Driver of Leeward, as an embedded library.

use super::Engine;
use crate::Failure;
use crate::measurement::DeviceBytes;
use crate::plan::{MEMTABLES, Plan};
use bytes::Bytes;
use leeward_engine::embedded::{Db, DbOptions, Placement};
use leeward_engine::{ScanBounds, VolumeOptions};
use std::path::Path;

struct Leeward(Db);

/// The option that differs from the defaults.
pub(super) enum Tuning {
    Default,
    /// The growth factor.
    Growth(u32),
    /// All values in leaves.
    InPlace,
}

pub(super) fn open(directory: &Path, plan: &Plan, tuning: Tuning) -> Result<Box<dyn Engine>, Failure> {
    // As much as the others have for their caches and memtables. Here it includes the buffers of compactions.
    let memory_budget = plan.cache_bytes + MEMTABLES * plan.l0_bytes;
    let volume = VolumeOptions { memory_budget, ..VolumeOptions::default() };
    let mut options = DbOptions { volume, l0_bytes: plan.l0_bytes, ..DbOptions::default() };
    match tuning {
        Tuning::Default => {}
        Tuning::Growth(factor) => options.growth_factor = factor,
        Tuning::InPlace => options.placement = Placement::IN_PLACE,
    }
    Ok(Box::new(Leeward(Db::open(directory, options)?)))
}

impl Engine for Leeward {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        Ok(self.0.put(key, value)?)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let value = self.0.get(key)?;
        Ok(value.inspect(|value| see(value)).is_some())
    }

    fn scan(&self, start: &[u8], limit: u32, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Failure> {
        let (start, limit) = (Bytes::copy_from_slice(start), Some(u64::from(limit)));
        let mut cursor = self.0.scan(ScanBounds { start, limit, ..ScanBounds::default() });
        while let Some(entry) = cursor.next()? {
            see(&entry.key, &entry.value);
        }
        Ok(())
    }

    fn levels(&self) -> Result<u32, Failure> {
        Ok(1 + self.0.stats().data.depth() as u32)
    }

    fn device_bytes(&self) -> Option<DeviceBytes> {
        let counters = self.0.stats().device;
        Some(DeviceBytes { read: counters.bytes_read, written: counters.bytes_written })
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.0.close()?)
    }
}
