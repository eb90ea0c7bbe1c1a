//! Log segments that were given up, but are kept for readers of older versions.
//!
//! Versions are numbered. A segment is *visible* from the version that was made when the segment was, up to the version
//! that gave it up:
//! ```text
//!  version      4     5     6     7     8     9
//!  readers      yes   -     -     -     -     yes (the current one)
//!  segment a    |-----------------|                  is kept for the reader of 4
//!  segment b                |-----------|            is free: 6 and 7 have no reader left
//! ```
//! So a reader of an old version keeps what was there when it began, and not what was written and overwritten since.
//! Leaf segments need no such numbers, because their level holds them.
//!
//! The L0 that takes writes belongs to several versions, and may point to segments that are newer than some of them. No
//! reader follows such a pointer: it reads as of an LSN that was appended before it loaded its version, or that its
//! levels have.
//!
//! Any thread may drop a version. Versions are made one after another, each from the one before.

use crate::volume::Segment;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The number of a version. Readers of the version hold it.
#[derive(Debug)]
pub(crate) struct Pin {
    number: u64,
    region: Arc<Mutex<Numbers>>,
}

/// What a region knows of its versions and segments.
#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    /// Those of versions that are read, or may be.
    pinned: BTreeSet<u64>,
    /// The first version that sees a segment, by the segment's serial number. Version 0 sees those that are not here.
    first: HashMap<u64, u64>,
    retired: Vec<Retired>,
}

/// A segment that was given up.
#[derive(Debug)]
struct Retired {
    _segment: Arc<Segment>,
    /// The first version that sees it.
    first: u64,
    /// The first version after it that does not.
    end: u64,
}

impl Numbers {
    /// Takes the segments that no pinned version sees.
    fn take_unseen(&mut self) -> Vec<Retired> {
        let pinned = &self.pinned;
        self.retired.extract_if(.., |retired| pinned.range(retired.first..retired.end).next().is_none()).collect()
    }
}

impl Pin {
    /// The number of a region's first version.
    pub(super) fn first() -> Arc<Pin> {
        Pin::of(&Arc::default())
    }

    fn of(region: &Arc<Mutex<Numbers>>) -> Arc<Pin> {
        let mut numbers = region.lock();
        let number = numbers.last;
        numbers.pinned.insert(number);
        drop(numbers);
        Arc::new(Pin { number, region: Arc::clone(region) })
    }

    /// The number of the next version, the first that sees the segments `added`.
    pub(super) fn next<'a>(&self, added: impl Iterator<Item = &'a Arc<Segment>>) -> Arc<Pin> {
        let mut numbers = self.region.lock();
        numbers.last += 1;
        let number = numbers.last;
        numbers.first.extend(added.map(|segment| (segment.serial(), number)));
        drop(numbers);
        Pin::of(&self.region)
    }

    /// Keeps `segments` for versions before this one that see them. Each is given up once.
    pub(super) fn retire(&self, segments: Vec<Arc<Segment>>) {
        self.retire_before(self.number, segments);
    }

    /// Keeps `segments` for all versions that see them, this one included.
    pub(super) fn keep(&self, segments: Vec<Arc<Segment>>) {
        self.retire_before(u64::MAX, segments);
    }

    fn retire_before(&self, end: u64, segments: Vec<Arc<Segment>>) {
        let mut numbers = self.region.lock();
        for segment in segments {
            let first = numbers.first.remove(&segment.serial()).unwrap_or(0);
            numbers.retired.push(Retired { _segment: segment, first, end });
        }
        let unseen = numbers.take_unseen();
        drop(numbers);
        drop(unseen);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut numbers = self.region.lock();
        numbers.pinned.remove(&self.number);
        let unseen = numbers.take_unseen();
        drop(numbers);
        drop(unseen);
    }
}

#[cfg(test)]
#[path = "retired_tests.rs"]
mod tests;
