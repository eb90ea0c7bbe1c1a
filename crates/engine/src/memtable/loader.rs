//! An L0 that a replay fills, before it has a reader.
//!
//! Its entries are sorted at the end, which takes a fraction of the time of as many inserts. One thread has it.

use super::blink::Unsorted;
use super::key_filter::KeyFilter;
use super::{Entry, MemTable, filter};
use leeward_format::Stamp;

/// An L0 that a replay fills.
pub(crate) struct Loader {
    /// Has range tombstones and unreferenced bytes already.
    table: MemTable,
    unsorted: Unsorted,
}

impl Loader {
    /// Begins to fill an empty L0.
    pub(crate) fn new(table: MemTable) -> Loader {
        Loader { table, unsorted: Unsorted::default() }
    }

    /// The L0, for what is no entry.
    pub(crate) fn table(&self) -> &MemTable {
        &self.table
    }

    /// Takes one version of `key`, with a higher LSN than all before.
    pub(crate) fn insert(&mut self, key: &[u8], stamp: Stamp, entry: Entry<'_>) {
        self.table.note(entry);
        self.table.list.write(&mut self.unsorted, key, stamp, entry);
        self.table.account(self.unsorted.memory_bytes());
    }

    /// Whether it has room for more: below `most` bytes, the arena's limit, and the limit of range tombstones.
    pub(crate) fn has_room(&self, most: u64) -> bool {
        self.table.has_room(self.unsorted.node_bytes() + 1, 1, most)
    }

    /// The L0, with all entries.
    pub(crate) fn finish(self) -> MemTable {
        let Loader { mut table, unsorted } = self;
        table.keys = KeyFilter::for_keys(unsorted.len());
        table.list.load(unsorted, |key| table.keys.add(filter::hash(key)));
        table.account(0);
        table
    }
}
