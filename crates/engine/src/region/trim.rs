//! Finds the keys that a split has left in a region that no longer owns them, piece by piece, so that no merge has to
//! handle all of them at once.

use super::Region;
use crate::error::Result;
use crate::scan::ScanBounds;
use crate::version::Version;
use bytes::Bytes;
use leeward_format::{Lsn, UnixMs};

/// Leaf segments of the largest level that a piece covers. A merge that collects the piece handles these, and the data
/// above them.
const PIECE_SEGMENTS: usize = 32;

/// Part of a range of keys: from the first key up to, but without, the second; without a second, to the end.
pub type Piece = (Bytes, Option<Bytes>);

impl Region {
    /// The first part of a range that has pairs, from its first pair on; at most 64 MiB of the largest level. `None` if
    /// the range is empty. May read from the device.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn first_piece(&self, start: &Bytes, end: Option<&Bytes>, now: UnixMs) -> Result<Option<Piece>> {
        let snapshot = self.snapshot(self.last_lsn(), now);
        let bounds =
            ScanBounds { start: start.clone(), end: end.cloned(), reverse: false, keys_only: true, limit: Some(1) };
        let Some(first) = snapshot.cursor(bounds).next()? else { return Ok(None) };
        let cut = snapshot.version().cut_behind(&first.key);
        let cut = cut.filter(|cut| end.is_none_or(|end| cut < end));
        Ok(Some((first.key, cut.or_else(|| end.cloned()))))
    }

    /// Whether everything up to `lsn` has left the L0s.
    pub fn levels_hold(&self, lsn: Lsn) -> bool {
        self.view.load().floor >= lsn
    }

    /// As [`Region::levels_hold`]; also, no range tombstone waits for a merge that collects the pairs that it hides.
    pub fn has_collected(&self, lsn: Lsn) -> bool {
        let view = self.view.load();
        view.floor >= lsn && view.version.has_met_its_ranges()
    }
}

impl Version {
    /// End of a piece that begins at `key`; `None` if at most one piece is left.
    fn cut_behind(&self, key: &[u8]) -> Option<Bytes> {
        let largest = self.levels().iter().max_by_key(|level| level.segments().len())?;
        let at = (!largest.is_empty()).then(|| largest.segment_of(key))? + PIECE_SEGMENTS;
        (at < largest.segments().len()).then(|| Bytes::copy_from_slice(largest.fence(at)))
    }

    /// Whether no level above the last has range tombstones.
    fn has_met_its_ranges(&self) -> bool {
        let last = self.levels().iter().rposition(|level| !level.is_empty()).unwrap_or(0);
        self.levels()[..last].iter().all(|level| level.ranged().is_empty())
    }
}
