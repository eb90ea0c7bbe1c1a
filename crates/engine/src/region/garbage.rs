//! What a region takes of the volume; what of the large log is garbage, and whether that is too much.
//!
//! After a split segments are shared: then what another region of the volume does counts too. Any thread.

use super::Region;
use crate::compaction::{Accounts, Ledger};
use crate::error::Result;
use leeward_format::SegmentId;
use std::sync::atomic::Ordering;

/// What a region takes of its volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of its segments, in whole segments, those included that it shares with other regions.
    pub bytes: u64,
    /// Of these, what the others count: each counts an equal part of a segment.
    pub shared_bytes: u64,
    /// Of the rest, garbage of the large log in segments that were there when the region was split last.
    pub inherited_bytes: u64,
}

impl Region {
    /// What it takes of the volume. If no region was split this looks at no segment.
    pub fn space(&self) -> Space {
        self.look_at_sharing();
        let segments = self.volume.with_region(&self.owner, |state| state.segments.len() as u64).unwrap_or(0);
        let bytes = segments * self.volume.segment_bytes() as u64;
        // Both are of the last count.
        let shared_bytes = self.shared_bytes.load(Ordering::Acquire).min(bytes);
        let inherited_bytes = self.accounts.lock().inherited_garbage_bytes.min(bytes - shared_bytes);
        Space { bytes, shared_bytes, inherited_bytes }
    }

    /// The region was split: segments with lower ids than this existed at the split; 0: it never was. Once a region that shares
    /// these segments has left the volume or lies on another, they have garbage. That garbage does not slow writers down, and is
    /// collected at leisure.
    ///
    /// The engine does not store the id. The caller sets it for each region that serves, and for each that builds the index of a
    /// backup ([`crate::Replica::building`]), when the region is split and after each start. Until then all garbage counts.
    pub fn set_inherited_below(&self, id: SegmentId) {
        self.inherited_below.store(id.0, Ordering::Release);
        // If this object has lost the region there is nothing to count.
        drop(self.count_garbage());
    }

    /// The large log takes more of the volume than it may, and has garbage enough to collect: then that goes first.
    pub(super) fn is_beyond_space(&self) -> bool {
        let accounts = *self.accounts.lock();
        let worth = Accounts::LEAST_SEGMENTS * self.volume.segment_bytes() as u64;
        accounts.own().garbage_bytes() >= worth && accounts.is_beyond(self.options.max_space_percent)
    }

    /// Counts it.
    ///
    /// # Errors
    /// [`crate::Error::Superseded`].
    pub(super) fn count_garbage(&self) -> Result<()> {
        let (accounts, shared_bytes) = self.with_ledger(|ledger| (Accounts::of(ledger), ledger.shared_bytes()))?;
        *self.accounts.lock() = accounts;
        self.shared_bytes.store(shared_bytes, Ordering::Release);
        Ok(())
    }

    /// Calls `with` with what garbage is counted from.
    ///
    /// # Errors
    /// [`crate::Error::Superseded`].
    pub(super) fn with_ledger<T>(&self, with: impl FnOnce(Ledger<'_>) -> T) -> Result<T> {
        let inherited_below = self.inherited_below();
        let segment_bytes = self.volume.segment_bytes();
        self.volume
            .with_sharing(&self.owner, |state, sharing| with(Ledger { state, segment_bytes, inherited_below, sharing }))
    }

    fn inherited_below(&self) -> SegmentId {
        SegmentId(self.inherited_below.load(Ordering::Acquire))
    }

    /// Other regions have changed shared segments since these were counted.
    pub(super) fn must_look_at_sharing(&self) -> bool {
        let seen = || self.seen_sharing.load(Ordering::Acquire);
        self.inherited_below() > SegmentId(0) && self.volume.sharing_serial() != seen()
    }

    /// Counts garbage anew if others have changed something of what they share.
    pub(super) fn look_at_sharing(&self) {
        if self.must_look_at_sharing() {
            // Before it is counted: what changes meanwhile is counted the next time.
            self.seen_sharing.store(self.volume.sharing_serial(), Ordering::Release);
            drop(self.count_garbage());
        }
    }
}
