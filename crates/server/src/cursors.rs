//! Cursors of `SCAN`: integers for the client, keys for the store.
//!
//! Redis clients insist on integer cursors; an ordered store continues from a key. This table maps one to the other. It is
//! bounded in bytes: when it is full, the oldest cursor is forgotten, and a client that still uses it gets an error that says
//! to start again. A cursor may be used more than once, as by a client that repeats a call. Cursors belong to the node that
//! gave them, and continue in the table in which they began.

use bytes::Bytes;
use leeward_format::table::TableName;
use std::collections::{BTreeMap, VecDeque};

/// Most bytes of keys, and of their upkeep, in the table.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Upkeep of a cursor, in bytes: both tables' entries.
const ENTRY_BYTES: usize = 96;

/// The table of one node.
#[derive(Debug)]
pub struct Cursors {
    next: u64,
    keys: BTreeMap<u64, (TableName, Bytes)>,
    oldest_first: VecDeque<u64>,
    bytes: usize,
}

impl Cursors {
    /// An empty table. `incarnation` differs between runs of a node, so that a cursor of an earlier run is not taken for
    /// another key. Cursors stay under 2^53, which every client language can hold in a number.
    pub fn new(incarnation: u64) -> Cursors {
        Cursors {
            next: (incarnation % (1 << 20)) << 32 | 1,
            keys: BTreeMap::new(),
            oldest_first: VecDeque::new(),
            bytes: 0,
        }
    }

    /// A cursor that continues in `table` from `key`.
    pub(crate) fn open(&mut self, table: &TableName, key: &[u8]) -> u64 {
        let cursor = self.next;
        self.next += 1;
        self.bytes += key.len() + ENTRY_BYTES;
        self.keys.insert(cursor, (table.clone(), Bytes::copy_from_slice(key)));
        self.oldest_first.push_back(cursor);
        while self.bytes > MAX_BYTES {
            let oldest = self.oldest_first.pop_front().expect("what takes memory is in the queue");
            let (_, key) = self.keys.remove(&oldest).expect("what is in the queue is in the table");
            self.bytes -= key.len() + ENTRY_BYTES;
        }
        cursor
    }

    /// Where `cursor` continues, if it is a cursor of `table`.
    pub(crate) fn key(&self, table: &TableName, cursor: u64) -> Option<Bytes> {
        self.keys.get(&cursor).filter(|(of, _)| of == table).map(|(_, key)| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TableName {
        TableName::default()
    }

    #[test]
    fn the_oldest_cursor_is_forgotten_when_memory_runs_out() {
        let mut cursors = Cursors::new(7);
        let first = cursors.open(&table(), b"first");
        assert_eq!(cursors.key(&table(), first).as_deref(), Some(&b"first"[..]));
        let long = vec![b'k'; 4096];
        let all: Vec<u64> = (0..5000).map(|_| cursors.open(&table(), &long)).collect();
        assert_eq!(cursors.key(&table(), first), None);
        assert_eq!(cursors.key(&table(), all[4999]).as_deref(), Some(&long[..]));
        assert!(cursors.bytes <= MAX_BYTES);
        assert!(all[4999] < 1 << 53);
    }

    #[test]
    fn cursors_of_another_incarnation_are_unknown() {
        let cursor = Cursors::new(1).open(&table(), b"a");
        assert_eq!(Cursors::new(2).key(&table(), cursor), None);
    }

    #[test]
    fn a_cursor_belongs_to_its_table() {
        let mut cursors = Cursors::new(1);
        let cursor = cursors.open(&table(), b"a");
        assert_eq!(cursors.key(&"orders".parse().expect("a name"), cursor), None);
        assert_eq!(cursors.key(&table(), cursor).as_deref(), Some(&b"a"[..]));
    }
}
