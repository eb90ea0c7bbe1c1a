//! L0, the memtable: every version of every key written since the one before it was frozen, sorted by key and, within
//! a key, from the newest version to the oldest.
//!
//! One writer at a time; any number of readers beside it, which never block and never keep the writer waiting. A
//! reader that knows an LSN as written sees every entry up to it. Nothing is ever removed: the memory goes when the last
//! [`Arc`] of the table does.

use leeward_format::Lsn;
use std::fmt;
use std::sync::Arc;

pub use leeward_format::node::Entry;

#[expect(unsafe_code, reason = "readers follow raw links into an arena that the writer appends to")]
mod skiplist;
#[cfg(test)]
mod tests;

use skiplist::{NodeRef, OwnedNode, SkipList};

/// An L0.
pub struct MemTable {
    list: Arc<SkipList>,
}

impl MemTable {
    /// An empty one. Takes little memory until it is written to.
    pub fn new() -> MemTable {
        MemTable { list: Arc::new(SkipList::new()) }
    }

    /// Inserts one version of `key`; no other may have its LSN. One writer at a time: others wait.
    pub fn insert(&self, key: &[u8], lsn: Lsn, entry: Entry<'_>) {
        self.list.insert(key, lsn, entry);
    }

    /// The newest version of `key` with an LSN of at most `at`. Allocates nothing.
    #[inline]
    pub fn get(&self, key: &[u8], at: Lsn) -> Option<(Lsn, Entry<'_>)> {
        let found = self.list.seek(key, at)?;
        (found.key() == key).then(|| (found.lsn(), found.entry()))
    }

    /// Memory in use by entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.list.bytes()
    }

    /// Number of entries, all versions.
    pub fn entries(&self) -> u64 {
        self.list.entries()
    }

    /// Highest LSN of an entry; 0 while there is none.
    pub fn last_lsn(&self) -> Lsn {
        self.list.last_lsn()
    }

    /// Nothing was inserted yet.
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// A cursor over the versions that a reader at `at` sees: of each key the newest with an LSN of at most `at`.
    pub fn cursor(&self, at: Lsn) -> MemCursor {
        MemCursor { list: Arc::clone(&self.list), at, node: None }
    }
}

impl Default for MemTable {
    fn default() -> Self {
        MemTable::new()
    }
}

impl fmt::Debug for MemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemTable({} entries, {} bytes, to LSN {})", self.entries(), self.bytes(), self.last_lsn())
    }
}

/// Walks the visible versions of an L0, tombstones included, in either direction. Entries that are inserted meanwhile
/// are newer than its LSN and are passed over.
pub struct MemCursor {
    list: Arc<SkipList>,
    at: Lsn,
    node: Option<OwnedNode>,
}

impl MemCursor {
    /// Moves to the first key at or above `key`.
    pub fn seek(&mut self, key: &[u8]) {
        let found = self.visible_from(self.list.seek(key, Lsn(u64::MAX)));
        self.node = found;
    }

    /// Moves to the last key below `bound`; the last of all without a bound.
    pub fn seek_before(&mut self, bound: Option<&[u8]>) {
        let found = self.visible_back_from(match bound {
            Some(key) => self.list.before(key, Lsn(u64::MAX)),
            None => self.list.last(),
        });
        self.node = found;
    }

    /// Moves to the next key. Does nothing at the end.
    pub fn step(&mut self) {
        let Some(here) = self.node.as_ref().map(|node| node.get(&self.list)) else { return };
        let mut next = here.next();
        while let Some(same) = next.filter(|node| node.key() == here.key()) {
            next = same.next();
        }
        self.node = self.visible_from(next);
    }

    /// Moves to the key before. Does nothing at the end.
    pub fn step_back(&mut self) {
        let Some(here) = self.node.as_ref().map(|node| node.get(&self.list)) else { return };
        self.node = self.visible_back_from(self.list.before(here.key(), Lsn(u64::MAX)));
    }

    /// Key, LSN and contents of where it is; `None` at the end.
    #[inline]
    pub fn current(&self) -> Option<(&[u8], Lsn, Entry<'_>)> {
        let node = self.node.as_ref()?.get(&self.list);
        Some((node.key(), node.lsn(), node.entry()))
    }

    /// The first visible version at or after `node`, the newest of its key.
    fn visible_from<'a>(&'a self, mut node: Option<NodeRef<'a>>) -> Option<OwnedNode> {
        while let Some(candidate) = node.filter(|node| node.lsn() > self.at) {
            node = candidate.next();
        }
        node.map(|node| OwnedNode::new(&self.list, node))
    }

    /// The newest visible version of the last key, at or before that of `node`, that has one. `node` is the last version
    /// of its key.
    fn visible_back_from<'a>(&'a self, mut node: Option<NodeRef<'a>>) -> Option<OwnedNode> {
        while let Some(oldest) = node {
            let newest_visible = self.list.seek(oldest.key(), self.at).filter(|found| found.key() == oldest.key());
            if let Some(found) = newest_visible {
                return Some(OwnedNode::new(&self.list, found));
            }
            node = self.list.before(oldest.key(), Lsn(u64::MAX));
        }
        None
    }
}
