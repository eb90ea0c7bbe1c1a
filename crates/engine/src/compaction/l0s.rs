//! Several L0s as one sorted input: of each key the newest version of the newest L0 that has one.

use super::plan::Counters;
use crate::memtable::{Entry, MemCursor, MemTable};
use bytes::Bytes;
use leeward_format::leaf_segment::Span;
use leeward_format::range::NO_END;
use leeward_format::{Lsn, Stamp};
use std::sync::Arc;

/// Stands on one key of the L0s at a time.
pub(super) struct L0s {
    /// Newest first.
    cursors: Vec<MemCursor>,
    /// The one with the lowest key, the newest of those.
    lowest: usize,
}

impl L0s {
    /// Stands on the first key of `l0s`, which are in order, the oldest first.
    pub(super) fn new(l0s: &[Arc<MemTable>]) -> L0s {
        let start = |l0: &Arc<MemTable>| {
            let mut cursor = l0.cursor(Lsn(u64::MAX));
            cursor.seek(&[]);
            cursor
        };
        let mut merged = L0s { cursors: l0s.iter().rev().map(start).collect(), lowest: 0 };
        merged.find_lowest();
        merged
    }

    #[inline]
    pub(super) fn key(&self) -> Option<&[u8]> {
        self.cursors.get(self.lowest)?.key()
    }

    #[inline]
    pub(super) fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        self.cursors.get(self.lowest)?.current()
    }

    /// Moves to the next key; older L0s' versions of this one are dropped.
    pub(super) fn step(&mut self, counters: &mut Counters) {
        let (newer, rest) = self.cursors.split_at_mut(self.lowest);
        let Some((lowest, older)) = rest.split_first_mut() else { return };
        if let Some(key) = lowest.key() {
            debug_assert!(newer.iter().all(|cursor| cursor.key().is_none_or(|other| other > key)));
            for cursor in older.iter_mut().filter(|cursor| cursor.key() == Some(key)) {
                let (_, stamp, entry) = cursor.current().expect("it has a key");
                counters.drop_entry(key, stamp, &entry);
                cursor.step();
            }
        }
        lowest.step();
        self.find_lowest();
    }

    fn find_lowest(&mut self) {
        let mut lowest: Option<(usize, &[u8])> = None;
        for (at, cursor) in self.cursors.iter().enumerate() {
            if let Some(key) = cursor.key()
                && lowest.is_none_or(|(_, known)| key < known)
            {
                lowest = Some((at, key));
            }
        }
        self.lowest = lowest.map_or(0, |(at, _)| at);
    }
}

/// What `l0s` say anything of.
pub(super) fn span(l0s: &[Arc<MemTable>]) -> Span {
    let mut all = Span { first: Bytes::from_static(NO_END), last: Bytes::new(), is_open: false };
    for l0 in l0s {
        let mut cursor = l0.cursor(Lsn(u64::MAX));
        cursor.seek(&[]);
        if let Some(key) = cursor.key().filter(|key| *key < &all.first[..]) {
            all.first = Bytes::copy_from_slice(key);
        }
        cursor.seek_before(None);
        if let Some(key) = cursor.key().filter(|key| all.is_below(key)) {
            (all.last, all.is_open) = (Bytes::copy_from_slice(key), false);
        }
        let ranges = l0.ranges(Lsn(u64::MAX));
        if let [first, .., last] | [first @ last] = ranges.as_slice() {
            all.first = all.first.min(first.start.clone());
            if last.end > all.last {
                (all.last, all.is_open) = (last.end.clone(), true);
            }
        }
    }
    all
}
