//! Range tombstones of an L0, beside its tree.
//!
//! One writer at a time replaces an immutable set by one with another range; readers load the current set without a
//! lock. An L0 without range tombstones costs a reader one load and a branch.
//!
//! The combined set serves every reader whose LSN is not below the last tombstone's. Readers of older snapshots search
//! all tombstones: an L0 freezes before it has more than [`MOST_RANGES`].

use arc_swap::ArcSwap;
use leeward_format::Lsn;
use leeward_format::range::{RangeTombstone, RangeTombstones};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Range tombstones after which an L0 freezes.
pub(crate) const MOST_RANGES: usize = 1024;

/// Memory of one beside its bounds, in bytes, at most: itself, and two fragments.
const RANGE_BYTES: usize = 3 * size_of::<RangeTombstone>();

#[derive(Default)]
pub(super) struct Ranges {
    /// LSN of the last one; 0 while there is none.
    last: AtomicU64,
    bytes: AtomicU64,
    set: ArcSwap<Set>,
}

#[derive(Default)]
struct Set {
    /// In order of their LSNs.
    all: Vec<RangeTombstone>,
    newest: Arc<RangeTombstones>,
}

impl Ranges {
    /// Adds one that is newer than all others.
    pub(super) fn insert(&self, range: RangeTombstone) {
        let set = self.set.load();
        let lsn = range.lsn;
        debug_assert!(lsn.0 > self.last.load(Ordering::Relaxed), "range tombstones come in order of their LSNs");
        let bytes = RANGE_BYTES + range.start.len() + range.end.len();
        let mut all = Vec::with_capacity(set.all.len() + 1);
        all.extend_from_slice(&set.all);
        all.push(range.clone());
        let newest = Arc::new(set.newest.with(range));
        self.set.store(Arc::new(Set { all, newest }));
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.last.store(lsn.0, Ordering::Release);
    }

    /// LSN of the last one; 0 while there is none.
    #[inline]
    pub(super) fn last_lsn(&self) -> Lsn {
        Lsn(self.last.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn len(&self) -> usize {
        if self.last_lsn() == Lsn(0) { 0 } else { self.set.load().all.len() }
    }

    /// LSN of the newest one of at most `at` that covers `key`.
    pub(super) fn covering(&self, key: &[u8], at: Lsn) -> Option<Lsn> {
        let set = self.set.load();
        match set.all.last() {
            Some(last) if last.lsn <= at => set.newest.covering(key).map(|range| range.lsn),
            _ => set.all.iter().rev().find(|range| range.lsn <= at && range.covers(key)).map(|range| range.lsn),
        }
    }

    /// The range tombstones that a reader at `at` sees.
    pub(super) fn as_of(&self, at: Lsn) -> Arc<RangeTombstones> {
        let set = self.set.load();
        if set.all.last().is_none_or(|last| last.lsn <= at) {
            return Arc::clone(&set.newest);
        }
        let visible = set.all.iter().take_while(|range| range.lsn <= at);
        Arc::new(visible.fold(RangeTombstones::default(), |seen, range| seen.with(range.clone())))
    }
}
