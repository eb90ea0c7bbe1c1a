//! Exclusive claims of the compactions under way: positions of levels, the frozen L0s, the sweep. Two compactions with
//! disjoint claims run in parallel, and are installed in either order.
//!
//! Any thread.

use leeward_format::manifest::MAX_LEVELS;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of claims: positions of levels, [`What::L0S`], [`What::SWEEP`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct What(u64);

impl What {
    /// The frozen L0s, which are compacted in order.
    pub(crate) const L0S: What = What(1 << 63);
    /// The sweep, which goes from part to part.
    pub(crate) const SWEEP: What = What(1 << 62);

    /// The levels at these positions.
    pub(crate) fn levels(positions: impl IntoIterator<Item = usize>) -> What {
        positions.into_iter().fold(What::default(), |all, position| {
            assert!(position < MAX_LEVELS, "no level has position {position}");
            all.and(What(1 << position))
        })
    }

    /// The union.
    #[must_use]
    pub(crate) fn and(self, other: What) -> What {
        What(self.0 | other.0)
    }
}

const _: () = assert!(MAX_LEVELS <= 62);

/// All claims in one region.
#[derive(Debug, Default)]
pub(crate) struct Claims(AtomicU64);

impl Claims {
    /// Whether no compaction claims any of `what`.
    pub(crate) fn is_free(&self, what: What) -> bool {
        self.0.load(Ordering::Acquire) & what.0 == 0
    }

    /// Claims what is free. The caller holds the picker's lock, so no other thread claims anything meanwhile.
    pub(crate) fn take(self: &Arc<Self>, what: What) -> Claim {
        let before = self.0.fetch_or(what.0, Ordering::AcqRel);
        assert_eq!(before & what.0, 0, "two compactions want the same");
        Claim { claims: Arc::clone(self), what: AtomicU64::new(what.0) }
    }
}

/// Held until the compaction is installed or dropped.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    claims: Arc<Claims>,
    what: AtomicU64,
}

impl Claim {
    /// Gives up the claim, before it is dropped.
    pub(crate) fn release(&self) {
        self.claims.0.fetch_and(!self.what.swap(0, Ordering::AcqRel), Ordering::AcqRel);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}
