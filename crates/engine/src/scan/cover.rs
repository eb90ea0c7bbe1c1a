//! Range tombstones in a scan. For each source with range tombstones, the cursor keeps the window of keys around its
//! place in which the same tombstone, or none, applies. A key costs a comparison for each such source; a hidden part is
//! skipped by a seek.
//!
//! Belongs to one cursor.

use crate::error::Result;
use crate::reads::Reads;
use crate::tree::Level;
use crate::version::Version;
use leeward_format::Lsn;
use leeward_format::range::{RangeTombstones, Window};
use std::sync::Arc;

/// The range tombstones of one source.
pub(super) struct Cover {
    /// Position of the source: later ones are older throughout.
    pub(super) source: usize,
    ranges: Ranges,
    here: Option<Window>,
}

enum Ranges {
    L0(Arc<RangeTombstones>),
    Level(Arc<Level>),
}

/// The covers of the sources of `version` as of `at`, newest first; empty levels are no sources.
pub(super) fn covers(version: &Version, at: Lsn) -> Vec<Cover> {
    let l0s = std::iter::once(version.active()).chain(version.frozen());
    let l0s = l0s.map(|l0| l0.has_ranges().then(|| Ranges::L0(l0.ranges(at))));
    let levels = version.filled().iter();
    let levels = levels.map(|level| (!level.ranged().is_empty()).then(|| Ranges::Level(Arc::clone(level))));
    let all = l0s.chain(levels).enumerate();
    all.filter_map(|(source, ranges)| ranges.map(|ranges| Cover { source, ranges, here: None })).collect()
}

impl Cover {
    /// The window around `key`.
    pub(super) fn window(&mut self, reads: &Reads, key: &[u8]) -> Result<&Window> {
        if self.here.as_ref().is_none_or(|here| !here.has(key)) {
            self.here = Some(match &self.ranges {
                Ranges::L0(ranges) => ranges.window(key),
                Ranges::Level(level) => level.window(reads, key)?,
            });
        }
        Ok(self.here.as_ref().expect("it was just made"))
    }
}
