//! Sizes of a run, the same for every engine. A plan that would prove nothing is refused. Pure.

use crate::Failure;
use crate::args::{MemoryArgs, SizeArgs};
use leeward_bench::{KEY_BYTES, Mix};

/// A data set is at least this many times as large as the cache.
const DATA_OVER_CACHE: u64 = 4;
/// Memtables that an engine keeps at most: the one being filled, and those that wait to be flushed.
pub(crate) const MEMTABLES: u64 = 4;
/// Levels, L0 included, below which a run is refused.
pub(crate) const MIN_LEVELS: u32 = 3;
/// Operations of the other workloads for each one of E, which scans 50 records on average.
const OPS_PER_SCAN: u64 = 10;

/// Sizes of one run of one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Sizes of the pairs.
    pub(crate) mix: Mix,
    /// Records that Load inserts.
    pub(crate) records: u64,
    /// Operations of A, B, C, D and F.
    pub(crate) ops: u64,
    /// Operations of E.
    pub(crate) scans: u64,
    /// Bytes of keys and values that Load inserts.
    pub(crate) data_bytes: u64,
    /// Bytes of the engine's caches, a multiple of 1 MiB.
    pub(crate) cache_bytes: u64,
    /// Size at which a memtable is full.
    pub(crate) l0_bytes: u64,
    /// Client threads.
    pub(crate) threads: u32,
}

impl Plan {
    /// The plan for `mix` by `sizes`, with the defaults filled in.
    ///
    /// # Errors
    /// The cache would hold too much of the data set, or the memtables all of it.
    pub(crate) fn new(mix: Mix, sizes: &SizeArgs) -> Result<Plan, Failure> {
        let MemoryArgs { cache_mib, l0_kib, threads } = sizes.memory;
        let records = sizes.records.unwrap_or(match mix {
            Mix::S | Mix::M => 4_000_000,
            Mix::L | Mix::SD | Mix::MD | Mix::LD | Mix::S40 | Mix::S80 => 2_000_000,
        });
        let ops = sizes.ops.unwrap_or(records / 2);
        let data_bytes = pair_bytes(mix, 0..records);
        let quarter_mib = (data_bytes / DATA_OVER_CACHE) >> 20;
        let plan = Plan {
            mix,
            records,
            ops,
            scans: (ops / OPS_PER_SCAN).max(1),
            data_bytes,
            cache_bytes: cache_mib.unwrap_or(quarter_mib).max(1) << 20,
            l0_bytes: l0_kib << 10,
            threads,
        };
        plan.check()?;
        Ok(plan)
    }

    /// The options of a run that make this plan.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let options = [
            ("--mix", self.mix.to_string()),
            ("--records", self.records.to_string()),
            ("--ops", self.ops.to_string()),
            ("--cache-mib", (self.cache_bytes >> 20).to_string()),
            ("--l0-kib", (self.l0_bytes >> 10).to_string()),
            ("--threads", self.threads.to_string()),
        ];
        options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    fn check(&self) -> Result<(), Failure> {
        let Plan { mix, records, data_bytes, cache_bytes, l0_bytes, .. } = self;
        let data_kib = data_bytes >> 10;
        if data_bytes / DATA_OVER_CACHE < *cache_bytes {
            return Err(format!(
                "refused: {records} records of mix {mix} are {data_kib} KiB, less than {DATA_OVER_CACHE} times the cache of {} \
                 KiB: give more --records or a smaller --cache-mib",
                cache_bytes >> 10
            )
            .into());
        }
        if *data_bytes <= MEMTABLES * l0_bytes {
            return Err(format!(
                "refused: {records} records of mix {mix} are {data_kib} KiB and fit the {MEMTABLES} memtables of {} KiB: give \
                 more --records or a smaller --l0-kib",
                l0_bytes >> 10
            )
            .into());
        }
        Ok(())
    }
}

/// Bytes of keys and values of these records.
pub(crate) fn pair_bytes(mix: Mix, records: std::ops::Range<u64>) -> u64 {
    records.map(|record| (KEY_BYTES + mix.value_bytes(record)) as u64).sum()
}
