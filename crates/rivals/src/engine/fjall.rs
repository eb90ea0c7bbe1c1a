//! Driver of fjall, configured as a fjall expert would for flash and for the memory that every engine gets. `docs/rivals.md`
//! gives the reason of each option. Fjall has no direct I/O: the page cache helps it beyond its own cache.

use super::Engine;
use crate::Failure;
use crate::plan::Plan;
use fjall::compaction::Leveled;
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;
use std::sync::Arc;

/// Flushes and compactions at a time.
const WORKERS: usize = 2;
/// More levels than fjall ever has.
const MAX_LEVELS: usize = 16;

struct Fjall {
    database: Database,
    pairs: Keyspace,
}

pub(super) fn open(directory: &Path, plan: &Plan) -> Result<Box<dyn Engine>, Failure> {
    let database = Database::builder(directory).cache_size(plan.cache_bytes).worker_threads(WORKERS).open()?;
    let pairs = database.keyspace("pairs", || keyspace_options(plan))?;
    Ok(Box::new(Fjall { database, pairs }))
}

fn keyspace_options(plan: &Plan) -> KeyspaceCreateOptions {
    // A table of a level is as large as a memtable, and so L1 is as large as the tables of L0 that start a compaction.
    let strategy = Leveled::default().with_table_target_size(plan.l0_bytes);
    KeyspaceCreateOptions::default().max_memtable_size(plan.l0_bytes).compaction_strategy(Arc::new(strategy))
}

impl Engine for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        Ok(self.pairs.insert(key, value)?)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let value = self.pairs.get(key)?;
        Ok(value.inspect(|value| see(value)).is_some())
    }

    fn scan(&self, start: &[u8], limit: u32, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Failure> {
        for pair in self.pairs.range(start..).take(limit as usize) {
            let (key, value) = pair.into_inner()?;
            see(&key, &value);
        }
        Ok(())
    }

    fn levels(&self) -> Result<u32, Failure> {
        let tables = |level: &usize| self.pairs.tree.level_table_count(*level).is_some_and(|tables| tables > 0);
        Ok(1 + (1..MAX_LEVELS).filter(tables).count() as u32)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}
