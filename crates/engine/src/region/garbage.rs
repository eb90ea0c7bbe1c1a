//! What of the large log is garbage, and whether that is too much.
//!
//! After a division segments are shared: then what another region of the volume does counts too. Any thread.

use super::Region;
use crate::compaction::{Accounts, Ledger};
use crate::error::Result;
use leeward_format::SegmentId;
use std::sync::atomic::Ordering;

impl Region {
    /// The region was divided: segments with lower ids than this were there then; 0: it never was. What is garbage in those, when a
    /// region that shares them has left the volume or lies on another, is not held against writers, and is collected at leisure.
    ///
    /// The engine does not keep it: whoever knows it tells each region that serves, and each that builds the index of a backup
    /// ([`crate::Replica::building`]), when it is divided and after each start. Until then all garbage counts.
    pub fn set_inherited_below(&self, id: SegmentId) {
        self.inherited_below.store(id.0, Ordering::Release);
        // Whoever lost the region has nothing to count.
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
        *self.accounts.lock() = self.with_ledger(Accounts::of)?;
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

    /// Others have changed something of what they share since it was looked at.
    pub(super) fn must_look_at_sharing(&self) -> bool {
        let seen = || self.seen_sharing.load(Ordering::Acquire);
        self.inherited_below() > SegmentId(0) && self.volume.sharing_serial() != seen()
    }

    /// Counts garbage anew if others have changed something of what they share.
    pub(super) fn look_at_sharing(&self) {
        if self.must_look_at_sharing() {
            // Before it is counted: what changes meanwhile is looked at the next time.
            self.seen_sharing.store(self.volume.sharing_serial(), Ordering::Release);
            drop(self.count_garbage());
        }
    }
}
