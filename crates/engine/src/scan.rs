//! Scans: one walk over the L0s and levels of a snapshot, merged.
//!
//! Of each key the newest version that the snapshot sees counts, and it is in the newest part that has one: the active
//! L0, then the frozen ones from the newest, then L1, L2 and so on. Tombstones hide what is below and are not answered.
//! One thread at a time; reads from the device as it goes.

use crate::error::Result;
use crate::memtable::{Entry, MemCursor};
use crate::tree::LevelCursor;
use crate::version::{Reads, Version};
use bytes::Bytes;
use leeward_format::Lsn;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// What a scan covers, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanBounds {
    /// First key, inclusive; empty for no bound.
    pub start: Bytes,
    /// Key after the last, exclusive; `None` for no bound.
    pub end: Option<Bytes>,
    /// From the last key down to the first.
    pub reverse: bool,
    /// Values are not wanted: those in the log are not fetched, and all are answered empty.
    pub keys_only: bool,
}

/// One pair of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanEntry {
    /// The key.
    pub key: Bytes,
    /// LSN of the put.
    pub lsn: Lsn,
    /// The value; empty in a scan of keys only.
    pub value: Bytes,
}

/// Walks a snapshot in key order, one way.
pub struct Cursor {
    reads: Arc<Reads>,
    /// That of the version that it walks.
    generation: u64,
    bounds: ScanBounds,
    /// Newest first.
    sources: Vec<Source>,
    /// Sources that are not at their end, that with the next key first, the newest first among equals. `None` before the
    /// first call of [`Cursor::next`].
    order: Option<Vec<usize>>,
    /// The key that is being answered.
    key: Vec<u8>,
}

enum Source {
    L0(MemCursor),
    Level(LevelCursor),
}

impl Source {
    fn start(&mut self, bounds: &ScanBounds) -> Result<()> {
        match (self, bounds.reverse) {
            (Source::L0(cursor), false) => cursor.seek(&bounds.start),
            (Source::L0(cursor), true) => cursor.seek_before(bounds.end.as_deref()),
            (Source::Level(cursor), false) => return cursor.seek(&bounds.start),
            (Source::Level(cursor), true) => return cursor.seek_before(bounds.end.as_deref()),
        }
        Ok(())
    }

    fn step(&mut self, reverse: bool) -> Result<()> {
        match (self, reverse) {
            (Source::L0(cursor), false) => cursor.step(),
            (Source::L0(cursor), true) => cursor.step_back(),
            (Source::Level(cursor), false) => return cursor.step(),
            (Source::Level(cursor), true) => return cursor.step_back(),
        }
        Ok(())
    }

    #[inline]
    fn current(&self) -> Option<(&[u8], Lsn, Entry<'_>)> {
        match self {
            Source::L0(cursor) => cursor.current(),
            Source::Level(cursor) => cursor.current(),
        }
    }
}

impl Cursor {
    pub(crate) fn new(version: &Version, at: Lsn, bounds: ScanBounds) -> Cursor {
        let l0s = std::iter::once(version.active()).chain(version.frozen()).map(|l0| Source::L0(l0.cursor(at)));
        let reads = version.reads();
        let levels = version.levels().iter().filter(|level| !level.is_empty());
        let levels = levels.map(|level| Source::Level(LevelCursor::new(Arc::clone(reads), Arc::clone(level))));
        let sources = l0s.chain(levels).collect();
        Cursor {
            reads: Arc::clone(reads),
            generation: version.generation(),
            bounds,
            sources,
            order: None,
            key: Vec::new(),
        }
    }

    /// The next pair; `None` at the end.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes. The cursor is at its end then.
    #[expect(clippy::should_implement_trait, reason = "an error ends the scan; an iterator of results would go on")]
    pub fn next(&mut self) -> Result<Option<ScanEntry>> {
        let next = self.next_live();
        if next.is_err() {
            self.order = Some(Vec::new());
        }
        next
    }

    fn next_live(&mut self) -> Result<Option<ScanEntry>> {
        if self.order.is_none() {
            self.start()?;
        }
        loop {
            let Some((key, lsn, entry)) = self.order.as_ref().and_then(|order| self.sources[*order.first()?].current())
            else {
                return Ok(None);
            };
            if !in_bounds(&self.bounds, key) {
                self.order = Some(Vec::new());
                return Ok(None);
            }
            self.key.clear();
            self.key.extend_from_slice(key);
            let value = match entry {
                Entry::Tombstone => None,
                _ if self.bounds.keys_only => Some(Bytes::new()),
                Entry::InPlace(value) => Some(Bytes::copy_from_slice(value)),
                Entry::InLog { pointer, value_bytes } => {
                    Some(self.reads.value(&self.key, lsn, (pointer, value_bytes), self.generation)?)
                }
            };
            self.pass_key()?;
            if let Some(value) = value {
                return Ok(Some(ScanEntry { key: Bytes::copy_from_slice(&self.key), lsn, value }));
            }
        }
    }

    fn start(&mut self) -> Result<()> {
        for source in &mut self.sources {
            source.start(&self.bounds)?;
        }
        let mut order: Vec<usize> = (0..self.sources.len()).filter(|i| self.sources[*i].current().is_some()).collect();
        order.sort_by(|a, b| self.compare(*a, *b));
        self.order = Some(order);
        Ok(())
    }

    /// Moves every source beyond the current key: the newest version has been seen, the others are hidden by it.
    fn pass_key(&mut self) -> Result<()> {
        let mut order = self.order.take().expect("the cursor has started");
        while let Some(&first) = order.first() {
            if self.sources[first].current().is_none_or(|(key, ..)| key != self.key) {
                break;
            }
            self.sources[first].step(self.bounds.reverse)?;
            if self.sources[first].current().is_none() {
                order.remove(0);
                continue;
            }
            // Most often the source stays first: one comparison.
            let mut at = 0;
            while at + 1 < order.len() && self.compare(order[at], order[at + 1]).is_gt() {
                order.swap(at, at + 1);
                at += 1;
            }
        }
        self.order = Some(order);
        Ok(())
    }

    /// Which of two sources comes first.
    fn compare(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let key = |source: usize| self.sources[source].current().map(|(key, ..)| key);
        let keys = if self.bounds.reverse { key(b).cmp(&key(a)) } else { key(a).cmp(&key(b)) };
        keys.then(a.cmp(&b))
    }
}

fn in_bounds(bounds: &ScanBounds, key: &[u8]) -> bool {
    key >= &bounds.start[..] && bounds.end.as_ref().is_none_or(|end| key < &end[..])
}
