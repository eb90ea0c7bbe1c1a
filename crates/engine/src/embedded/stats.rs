//! Figures of a [`Db`], for its operator. Each is exact when it is read; together they are not of one instant.

use super::Db;
use crate::cache::CacheContents;
use crate::region::RegionStats;
use leeward_format::status::MemoryStatus;
use leeward_platform::DeviceCounters;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Figures of a store, counted since it was opened unless they say "now".
#[derive(Clone, Debug)]
pub struct Stats {
    /// L0s, levels, logs and compactions.
    pub data: RegionStats,
    /// How memory is used now, in bytes.
    pub memory: MemoryStatus,
    /// Look-ups of leaves, indexes and records that memory answered.
    pub cache_hits: u64,
    /// Those that read the device.
    pub cache_misses: u64,
    /// What the cache holds now.
    pub cache: CacheContents,
    /// Bytes moved to and from the device.
    pub device: DeviceCounters,
    /// Total time that writers have waited, over all of them.
    pub stalls: Stalls,
    /// Bytes of segments in use now, the manifest's included.
    pub used_bytes: u64,
    /// Bytes that the file takes on the device now.
    pub file_bytes: u64,
}

impl Db {
    /// Figures of the store.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// db.put(b"key", b"value")?;
    /// let stats = db.stats();
    /// assert_eq!(stats.data.user_bytes_written, 8);
    /// assert!(stats.memory.used <= stats.memory.budget && stats.used_bytes <= stats.file_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> Stats {
        let StallClocks { slowed, l0_full, tail_busy } = &self.stalls;
        let (used_bytes, file_bytes) = self.volume.usage();
        Stats {
            data: self.region.stats(),
            memory: self.volume.memory().status(),
            cache_hits: self.volume.cache().hits(),
            cache_misses: self.volume.cache().misses(),
            cache: self.volume.cache().contents(),
            device: self.volume.counters(),
            stalls: Stalls { slowed: slowed.get(), l0_full: l0_full.get(), tail_busy: tail_busy.get() },
            used_bytes,
            file_bytes,
        }
    }
}

/// Time that writers have waited, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Pauses in which compactions catch up, before L0 is full.
    pub slowed: Duration,
    /// The L0 and the frozen L0s were full.
    pub l0_full: Duration,
    /// The log's next segment waited for the flush of an earlier one.
    pub tail_busy: Duration,
}

#[derive(Debug, Default)]
pub(super) struct StallClocks {
    pub(super) slowed: Stopwatch,
    pub(super) l0_full: Stopwatch,
    pub(super) tail_busy: Stopwatch,
}

/// A sum of times, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Stopwatch(AtomicU64);

impl Stopwatch {
    pub(super) fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}
