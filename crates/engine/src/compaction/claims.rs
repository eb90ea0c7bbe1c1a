//! Exclusive claims of the compactions under way: positions of levels, the frozen L0s, the sweep. Two compactions with
//! disjoint claims run in parallel, and are installed in either order.
//!
//! Any thread.

use crate::volume::Planned;
use leeward_format::manifest::MAX_LEVELS;
use parking_lot::Mutex;
use std::sync::Arc;

/// A set of claims: positions of levels, [`What::L0S`], [`What::SWEEP`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct What(u128);

impl What {
    /// The frozen L0s, which are compacted in order.
    pub(crate) const L0S: What = What(1 << 127);
    /// The sweep, which goes from part to part.
    pub(crate) const SWEEP: What = What(1 << 126);

    /// The levels at these positions.
    pub(crate) fn levels(positions: impl IntoIterator<Item = usize>) -> What {
        positions.into_iter().fold(What::default(), |all, position| {
            assert!(position < MAX_LEVELS, "no level has position {position}");
            all.and(What(1 << position))
        })
    }

    /// What either of the two names.
    #[must_use]
    pub(crate) fn and(self, other: What) -> What {
        What(self.0 | other.0)
    }
}

const _: () = assert!(MAX_LEVELS <= 126);

/// All claims in one region.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<What>);

impl Claims {
    /// Whether no compaction claims any of `what`.
    pub(crate) fn is_free(&self, what: What) -> bool {
        self.0.lock().0 & what.0 == 0
    }

    /// Claims what is free. The caller holds the picker's lock, so no other thread claims anything meanwhile.
    pub(crate) fn take(self: &Arc<Self>, what: What, room: Option<Planned>) -> Claim {
        let mut claimed = self.0.lock();
        assert_eq!(claimed.0 & what.0, 0, "two compactions want the same");
        *claimed = claimed.and(what);
        Claim { claims: Arc::clone(self), what: Mutex::new(what), room: Mutex::new(room) }
    }
}

/// Held until the compaction is installed or dropped.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    claims: Arc<Claims>,
    what: Mutex<What>,
    /// Room that it may take.
    room: Mutex<Option<Planned>>,
}

impl Claim {
    /// Gives up the claim, before it is dropped.
    pub(crate) fn release(&self) {
        let mine = std::mem::take(&mut *self.what.lock());
        self.claims.0.lock().0 &= !mine.0;
        drop(self.room.lock().take());
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}
