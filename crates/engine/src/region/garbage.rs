//! Space of a region on its volume: its garbage in the large log, and whether that is too much.
//!
//! After a split segments are shared, so other regions of the volume count too. Any thread.

use super::Region;
use crate::compaction::Ledger;
use crate::error::Result;
use crate::volume::{Accounts, Figures};
use leeward_format::SegmentId;
use leeward_format::manifest::SegmentState;
use std::sync::atomic::Ordering;

/// Space of a region on its volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of its segments, in whole segments, shared ones included.
    pub bytes: u64,
    /// Part of these that the other regions count: each counts an equal part of a segment.
    pub shared_bytes: u64,
    /// Part of the rest that is garbage of the large log in segments that existed when the region was last split.
    pub inherited_bytes: u64,
}

impl Region {
    /// Its space on the volume. Examines no segment.
    pub fn space(&self) -> Space {
        if self.must_look_at_sharing() {
            // The change stays unseen: it calls the region to look for garbage that is worth a compaction.
            drop(self.count_garbage());
        }
        let bytes = self.volume.figures(&self.owner).unwrap_or_default().segments * self.volume.segment_bytes() as u64;
        // Both are from the last count.
        let shared_bytes = self.shared_bytes.load(Ordering::Acquire).min(bytes);
        let inherited_bytes = self.accounts.lock().inherited_garbage_bytes.min(bytes - shared_bytes);
        Space { bytes, shared_bytes, inherited_bytes }
    }

    /// The region was split: segments with ids below this one existed at the split; 0: it never was. Once a region that
    /// shares these segments has left the volume or is on another, they have garbage. That garbage does not slow
    /// writers down, and is collected slowly.
    ///
    /// The engine does not store the id. The caller sets it for each region that serves, and for each that builds the
    /// index of a backup ([`crate::Replica::building`]), when the region is split and after each start. Until then all
    /// garbage counts.
    pub fn set_inherited_below(&self, id: SegmentId) {
        self.inherited_below.store(id.0, Ordering::Release);
        // If this object has lost the region there is nothing to count.
        drop(self.volume.set_inherited_below(&self.owner, id).and_then(|()| self.count_garbage()));
    }

    /// Whether the large log takes more space than it may, and has enough garbage: then collecting that goes first.
    pub(super) fn is_beyond_space(&self) -> bool {
        let accounts = *self.accounts.lock();
        let worth = Accounts::LEAST_SEGMENTS * self.volume.segment_bytes() as u64;
        accounts.own().garbage_bytes() >= worth && accounts.is_beyond(self.options.max_space_percent)
    }

    /// Counts the garbage.
    ///
    /// # Errors
    /// [`crate::Error::Superseded`].
    pub(super) fn count_garbage(&self) -> Result<()> {
        let Figures { accounts, shared_bytes, .. } = self.volume.figures(&self.owner)?;
        *self.accounts.lock() = accounts;
        self.shared_bytes.store(shared_bytes, Ordering::Release);
        Ok(())
    }

    /// Calls `with` with the basis of the garbage accounts. That may walk over all segments: a sweep begins. No lock is
    /// held meanwhile.
    ///
    /// # Errors
    /// [`crate::Error::Superseded`].
    pub(super) fn with_ledger<T>(&self, with: impl FnOnce(Ledger<'_>) -> T) -> Result<T> {
        let (inherited_below, segment_bytes) = (self.inherited_below(), self.volume.segment_bytes());
        let state = &*self.volume.shared_region(&self.owner)?;
        let sharing = &|segment: &SegmentState| self.volume.sharing(segment);
        Ok(with(Ledger { state, segment_bytes, inherited_below, sharing }))
    }

    fn inherited_below(&self) -> SegmentId {
        SegmentId(self.inherited_below.load(Ordering::Acquire))
    }

    /// Whether other regions have changed shared segments since the last count.
    pub(super) fn must_look_at_sharing(&self) -> bool {
        let seen = || self.seen_sharing.load(Ordering::Acquire);
        self.inherited_below() > SegmentId(0) && self.volume.sharing_serial() != seen()
    }

    /// Counts garbage anew if other regions have changed shared segments.
    pub(super) fn look_at_sharing(&self) {
        if self.must_look_at_sharing() {
            // Before the count: later changes are counted the next time.
            self.seen_sharing.store(self.volume.sharing_serial(), Ordering::Release);
            drop(self.count_garbage());
        }
    }
}
