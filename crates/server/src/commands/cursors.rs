//! Cursors of `SCAN`: integers for the client, keys for the store.
//!
//! Redis clients insist on integer cursors, an ordered store goes on from a key. This table maps one to the other. It
//! is bounded in bytes: when it is full the oldest cursor is forgotten, and whoever still uses it gets an error that
//! says to start again. A cursor may be used more than once, as a client does that repeats a call. Cursors belong to
//! the node that gave them.

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// What the table may hold, in bytes of keys and their upkeep.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Upkeep of a cursor, in bytes: both tables' entries.
const ENTRY_BYTES: usize = 96;

/// The table of one node.
#[derive(Debug)]
pub struct Cursors {
    next: u64,
    keys: BTreeMap<u64, Bytes>,
    oldest_first: VecDeque<u64>,
    bytes: usize,
}

impl Cursors {
    /// An empty table. `life` tells apart the lives of a process, so that a cursor of an earlier one is not taken for
    /// another key. Cursors stay under 2^53, which every client language can hold in a number.
    pub fn new(life: u64) -> Cursors {
        Cursors { next: (life % (1 << 20)) << 32 | 1, keys: BTreeMap::new(), oldest_first: VecDeque::new(), bytes: 0 }
    }

    /// A cursor that goes on from `key`.
    pub(super) fn open(&mut self, key: &[u8]) -> u64 {
        let cursor = self.next;
        self.next += 1;
        self.bytes += key.len() + ENTRY_BYTES;
        self.keys.insert(cursor, Bytes::copy_from_slice(key));
        self.oldest_first.push_back(cursor);
        while self.bytes > MAX_BYTES {
            let oldest = self.oldest_first.pop_front().expect("what takes memory is in the queue");
            let key = self.keys.remove(&oldest).expect("what is in the queue is in the table");
            self.bytes -= key.len() + ENTRY_BYTES;
        }
        cursor
    }

    /// Where `cursor` goes on.
    pub(super) fn key(&self, cursor: u64) -> Option<Bytes> {
        self.keys.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_cursor_is_forgotten_when_memory_runs_out() {
        let mut cursors = Cursors::new(7);
        let first = cursors.open(b"first");
        assert_eq!(cursors.key(first).as_deref(), Some(&b"first"[..]));
        let long = vec![b'k'; 4096];
        let all: Vec<u64> = (0..5000).map(|_| cursors.open(&long)).collect();
        assert_eq!(cursors.key(first), None);
        assert_eq!(cursors.key(all[4999]).as_deref(), Some(&long[..]));
        assert!(cursors.bytes <= MAX_BYTES);
        assert!(all[4999] < 1 << 53);
    }

    #[test]
    fn cursors_of_another_life_are_unknown() {
        let cursor = Cursors::new(1).open(b"a");
        assert_eq!(Cursors::new(2).key(cursor), None);
    }
}
