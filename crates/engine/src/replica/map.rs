//! Log map and index map (Tebis 3.3): the local segment for each segment of the primary's volume.
//!
//! In memory only, for one session with one primary: a base rebuilds it.

use leeward_format::{SegmentId, SegmentName, SegmentNo};
use std::collections::HashMap;

/// The map by number; and by id, to find an entry when its segment is removed.
#[derive(Debug, Default)]
pub(super) struct SegmentMap {
    local: HashMap<SegmentNo, (SegmentId, SegmentNo)>,
    primary: HashMap<SegmentId, SegmentNo>,
}

impl SegmentMap {
    /// Maps `id`, which is `primary` on the primary's volume, to `local` here.
    pub(super) fn insert(&mut self, id: SegmentId, primary: SegmentNo, local: SegmentNo) {
        self.local.insert(primary, (id, local));
        self.primary.insert(id, primary);
    }

    /// The local number of a segment of the primary.
    pub(super) fn get(&self, primary: SegmentNo) -> Option<SegmentNo> {
        self.local.get(&primary).map(|(_, local)| *local)
    }

    /// Whether a segment has this name, with logical addressing.
    pub(super) fn has(&self, name: SegmentName) -> bool {
        self.primary.keys().any(|id| id.name() == name)
    }

    /// Removes `id`. The primary may have given its number to another segment already.
    pub(super) fn remove(&mut self, id: SegmentId) {
        let Some(primary) = self.primary.remove(&id) else { return };
        if self.local.get(&primary).is_some_and(|(owner, _)| *owner == id) {
            self.local.remove(&primary);
        }
    }
}
