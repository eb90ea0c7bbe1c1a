//! Merges several sorted inputs. Of each key it has the version of the newest input with that key.

use super::input::Run;
use super::placing::Placing;
use super::plan::Counters;
use crate::error::Result;
use crate::memtable::{Entry, MemCursor, MemTable, compare};
use bytes::Bytes;
use leeward_format::leaf_segment::Span;
use leeward_format::range::NO_END;
use leeward_format::{Lsn, Stamp};
use std::cmp::Ordering;
use std::sync::Arc;

/// A sorted input, positioned on a key or at its end.
pub(super) trait Input {
    /// The key; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// Key, stamp and contents; `None` at the end.
    fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)>;
    /// Moves to the next key.
    fn step(&mut self, counters: &mut Counters) -> Result<()>;
}

impl Input for MemCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        MemCursor::key(self)
    }

    #[inline]
    fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        MemCursor::current(self)
    }

    #[inline]
    fn step(&mut self, _: &mut Counters) -> Result<()> {
        MemCursor::step(self);
        Ok(())
    }
}

/// Merged inputs, positioned on one key.
pub(super) struct Newest<I> {
    /// Newest first.
    inputs: Vec<I>,
    /// The input with the lowest key; of several, the newest.
    lowest: usize,
    /// The same among the others.
    second: Option<usize>,
    /// Both stand on the same key.
    is_tied: bool,
}

impl<I: Input> Newest<I> {
    /// Merges inputs that stand on their first keys, the newest first.
    pub(super) fn new(inputs: Vec<I>) -> Newest<I> {
        let mut merged = Newest { inputs, lowest: 0, second: None, is_tied: false };
        merged.rank();
        merged
    }

    #[inline]
    pub(super) fn key(&self) -> Option<&[u8]> {
        self.inputs.get(self.lowest)?.key()
    }

    #[inline]
    pub(super) fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        self.inputs.get(self.lowest)?.current()
    }

    /// Moves to the next key. Older inputs' versions of the current key are dropped.
    pub(super) fn step(&mut self, counters: &mut Counters) -> Result<()> {
        let Some(second) = self.second else {
            return self.inputs.get_mut(self.lowest).map_or(Ok(()), |only| only.step(counters));
        };
        if self.is_tied {
            self.step_over_older(counters)?;
            self.inputs[self.lowest].step(counters)?;
            self.rank();
            return Ok(());
        }
        self.inputs[self.lowest].step(counters)?;
        match compare_ends(self.inputs[self.lowest].key(), self.inputs[second].key()) {
            Ordering::Less => {}
            Ordering::Equal => self.rank(),
            Ordering::Greater => self.rank_behind(second),
        }
        Ok(())
    }

    fn step_over_older(&mut self, counters: &mut Counters) -> Result<()> {
        let (newer, rest) = self.inputs.split_at_mut(self.lowest);
        let (lowest, older) = rest.split_first_mut().expect("it stands on a key");
        let Some(key) = lowest.key() else { return Ok(()) };
        debug_assert!(newer.iter().all(|input| input.key().is_none_or(|other| other > key)));
        for input in older.iter_mut().filter(|input| input.key() == Some(key)) {
            let (_, stamp, entry) = input.current().expect("it has a key");
            counters.drop_entry(key, stamp, &entry);
            input.step(counters)?;
        }
        Ok(())
    }

    fn rank(&mut self) {
        let lowest = self.lowest_but(None).unwrap_or(0);
        self.rank_behind(lowest);
    }

    /// `lowest` has the lowest key, or the newest version of it: finds the next one.
    fn rank_behind(&mut self, lowest: usize) {
        self.lowest = lowest;
        self.second = self.lowest_but(Some(lowest));
        self.is_tied = self.second.is_some_and(|second| self.inputs[second].key() == self.inputs[lowest].key());
    }

    /// The newest of the inputs with the lowest key, `but` one; `None` if all are at their end.
    fn lowest_but(&self, but: Option<usize>) -> Option<usize> {
        let mut found: Option<(usize, &[u8])> = None;
        for (at, input) in self.inputs.iter().enumerate().filter(|(at, _)| Some(*at) != but) {
            if let Some(key) = input.key()
                && found.is_none_or(|(_, known)| compare(key, known).is_lt())
            {
                found = Some((at, key));
            }
        }
        found.map(|(at, _)| at)
    }
}

/// Order of two inputs by their keys; an input at its end comes last.
#[inline]
pub(super) fn compare_ends(a: Option<&[u8]>, b: Option<&[u8]>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => compare(a, b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

impl Newest<Run> {
    /// See [`Run::moved`].
    pub(super) fn moved(&mut self, placing: &Placing, counters: &mut Counters) -> Result<Bytes> {
        self.inputs[self.lowest].moved(placing, counters)
    }
}

/// Merges `l0s`, which are ordered from the oldest.
pub(super) fn of_l0s(l0s: &[Arc<MemTable>]) -> Newest<MemCursor> {
    let start = |l0: &Arc<MemTable>| {
        let mut cursor = l0.cursor(Lsn(u64::MAX));
        cursor.seek(&[]);
        cursor
    };
    Newest::new(l0s.iter().rev().map(start).collect())
}

/// Span of all keys and ranges of `l0s`.
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

#[cfg(test)]
#[path = "newest_tests.rs"]
mod tests;
