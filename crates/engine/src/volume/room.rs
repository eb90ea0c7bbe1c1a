//! Room for the manifest's next checkpoint, which is kept ready at all times.
//!
//! The size of a checkpoint is a running sum ([`super::tally`]); an edit adds its most to it before it is executed.
//! Zones have room for twice the checkpoint, so that the next one comes only after as many bytes of edits: checkpoints
//! cost in proportion to edits.

use leeward_format::data_key::SEALING_BYTES;
use leeward_format::frame::{FRAME_HEADER_BYTES, body_bytes};
use leeward_format::manifest::{Change, EntryBody, FRAME_ALIGN, VolumeState};

/// Bytes of a segment's encoded state, at most; an install names it in fewer.
const SEGMENT_BYTES: usize = 64;
/// Bytes that any change may add besides its own encoding.
const CHANGE_BYTES: usize = 256;
/// Bytes beyond the size that a zone should have room for.
const SLACK: usize = 4 << 10;
/// Bytes of an entry besides its body, at most.
const ENTRY_BYTES: usize = FRAME_HEADER_BYTES + 3 * 10 + SEALING_BYTES + FRAME_ALIGN;

/// Upper bound of the size of a checkpoint, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size(usize);

impl Size {
    pub(super) fn exactly(bytes: usize) -> Size {
        Size(bytes)
    }

    /// The size after an edit of `changes` in a frame of `frame_bytes`.
    pub(super) fn after(self, changes: &[Change], frame_bytes: usize) -> Size {
        Size(self.0 + growth(changes, frame_bytes))
    }

    /// Upper bound, in bytes.
    pub(super) fn bytes(self) -> usize {
        self.0
    }

    /// Room that a zone gets if there is space: for the checkpoint and as many bytes of edits.
    pub(super) fn preferred(self) -> usize {
        self.0 * 2 + SLACK
    }

    /// Room that a zone must have for writes to continue: compactions name more segments before they name fewer.
    pub(super) fn for_writes(self) -> usize {
        self.0 + self.0 / 2 + SLACK
    }

    /// Room that a zone must have for any edit that names more segments.
    pub(super) fn least(self) -> usize {
        self.0 + self.0 / 8 + SLACK / 2
    }
}

/// Bytes of a checkpoint of `state`, as an entry.
pub(super) fn measure(state: VolumeState) -> usize {
    body_bytes(&EntryBody::checkpoint(state)) + ENTRY_BYTES
}

/// Bytes that a checkpoint grows by, at most.
fn growth(changes: &[Change], frame_bytes: usize) -> usize {
    let of_change = |change: &Change| match change {
        Change::Install { edit, .. } => edit.added.len() + edit.logs.len() + edit.dead.len(),
        _ => 0,
    };
    let segments: usize = changes.iter().map(of_change).sum();
    frame_bytes + changes.len() * CHANGE_BYTES + segments * SEGMENT_BYTES
}

/// Whether an edit may name more than before: segments, or what copies belong to. Other edits are executed even
/// without room for more, because they make room.
pub(super) fn names_more(changes: &[Change]) -> bool {
    changes.iter().any(|change| match change {
        Change::Region(_) | Change::OpenLog { .. } | Change::Checkpoint { .. } | Change::Identify { .. } => true,
        Change::Install { edit, .. } => !edit.added.is_empty(),
        Change::Opened(_)
        | Change::Drop(_)
        | Change::SealLog { .. }
        | Change::Forget { .. }
        | Change::DropCheckpoint { .. } => false,
    })
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
