//! Driver of RocksDB, configured as a RocksDB expert would for flash and for the memory that every engine gets. `docs/rivals.md`
//! gives the reason of each option.

use super::Engine;
use crate::Failure;
use crate::plan::{MEMTABLES, Plan};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, LogLevel, Options, ReadOptions, WaitForCompactOptions,
    WriteOptions,
};
use std::path::Path;

/// Bits of the Bloom filters for each key.
const BLOOM_BITS: f64 = 10.0;
/// Files of L0 that start a compaction: RocksDB's own default, which the size of L1 follows.
const L0_FILES: u64 = 4;
/// Ratio of L1 to a file of it.
const FILES_PER_L1: u64 = 4;
/// Flushes and compactions at a time.
const BACKGROUND_JOBS: i32 = 4;
/// Values of this many bytes and more go to blob files, in the variant that has them.
const MIN_BLOB_BYTES: u64 = 512;
/// Size of a blob file: small enough that a few percent of garbage free some.
const BLOB_FILE_BYTES: u64 = 16 << 20;
/// Written bytes of the WAL after which the kernel is asked to write them back, so that they do not pile up.
const WAL_BYTES_PER_SYNC: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// No compression, values in place.
    Plain,
    /// LZ4.
    Lz4,
    /// BlobDB.
    Blob,
}

struct RocksDb {
    db: DB,
    write: WriteOptions,
}

pub(super) fn open(directory: &Path, plan: &Plan, variant: Variant) -> Result<Box<dyn Engine>, Failure> {
    let cache = Cache::new_hyper_clock_cache(usize::try_from(plan.cache_bytes)?, 0);
    let mut options = options(plan, &cache)?;
    match variant {
        Variant::Plain => {}
        Variant::Lz4 => options.set_compression_type(DBCompressionType::Lz4),
        Variant::Blob => {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(MIN_BLOB_BYTES);
            options.set_blob_file_size(BLOB_FILE_BYTES);
            options.set_enable_blob_gc(true);
            options.set_blob_cache(&cache);
        }
    }
    let db = DB::open(&options, directory)?;
    // The WAL is written and never synced: acknowledged writes are in the page cache, as in the other engines.
    Ok(Box::new(RocksDb { db, write: WriteOptions::default() }))
}

fn options(plan: &Plan, cache: &Cache) -> Result<Options, Failure> {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_bloom_filter(BLOOM_BITS, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_write_buffer_size(usize::try_from(plan.l0_bytes)?);
    options.set_max_write_buffer_number(i32::try_from(MEMTABLES)?);
    let l1_bytes = L0_FILES * plan.l0_bytes;
    options.set_level_zero_file_num_compaction_trigger(i32::try_from(L0_FILES)?);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_max_bytes_for_level_base(l1_bytes);
    options.set_target_file_size_base(l1_bytes / FILES_PER_L1);
    options.set_max_background_jobs(BACKGROUND_JOBS);
    options.set_enable_pipelined_write(true);
    options.set_wal_bytes_per_sync(WAL_BYTES_PER_SYNC);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    Ok(options)
}

impl Engine for RocksDb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let value = self.db.get_pinned(key)?;
        Ok(value.inspect(|value| see(value)).is_some())
    }

    fn scan(&self, start: &[u8], limit: u32, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Failure> {
        let mut iterator = self.db.raw_iterator_opt(ReadOptions::default());
        iterator.seek(start);
        for _ in 0..limit {
            let Some((key, value)) = iterator.item() else { break };
            see(key, value);
            iterator.next();
        }
        Ok(iterator.status()?)
    }

    fn levels(&self) -> Result<u32, Failure> {
        let mut levels: Vec<i32> = self.db.live_files()?.into_iter().map(|file| file.level).collect();
        // The memtables belong to L0.
        levels.push(0);
        levels.sort_unstable();
        levels.dedup();
        Ok(levels.len() as u32)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }
}
