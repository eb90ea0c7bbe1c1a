//! How much room the manifest's next checkpoint needs, which is kept ready at all times.
//!
//! The size of a checkpoint is not counted after each edit: it is bounded from above by what each edit may add, and measured
//! when the bound has gone far beyond it. Zones have room for twice the checkpoint, so that the next checkpoint comes only after
//! as many bytes of edits: the cost of a checkpoint is in proportion to theirs.

use leeward_format::frame::{FRAME_HEADER_BYTES, body_bytes};
use leeward_format::manifest::{Change, EntryBody, FRAME_ALIGN, VolumeState};

/// Of a segment's encoded state, which an install names in fewer bytes, at most.
const SEGMENT_BYTES: usize = 64;
/// What any change may add beside what it is itself encoded in.
const CHANGE_BYTES: usize = 256;
/// The bound may be so many bytes above what was measured, whatever that is.
const SLACK: usize = 4 << 10;
/// Of an entry beside its body.
const ENTRY_BYTES: usize = FRAME_HEADER_BYTES + 3 * 10 + FRAME_ALIGN;

/// Bytes of a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    measured: usize,
    bound: usize,
}

impl Size {
    pub(super) fn exactly(bytes: usize) -> Size {
        Size { measured: bytes, bound: bytes }
    }

    /// After an edit of `changes` in a frame of `frame_bytes`.
    pub(super) fn after(self, changes: &[Change], frame_bytes: usize) -> Size {
        Size { bound: self.bound + growth(changes, frame_bytes), ..self }
    }

    /// At most.
    pub(super) fn bytes(self) -> usize {
        self.bound
    }

    /// It should be measured.
    pub(super) fn is_vague(self) -> bool {
        self.bound > self.measured + self.measured / 2 + SLACK
    }

    /// What a zone has room for where there is space: as many bytes of edits.
    pub(super) fn comfortable(self) -> usize {
        self.bound * 2 + SLACK
    }

    /// What it must have for writes to continue: compactions name more before they name less.
    pub(super) fn for_writes(self) -> usize {
        self.bound + self.bound / 2 + SLACK
    }

    /// What it must have for anything that names more segments.
    pub(super) fn least(self) -> usize {
        self.bound + self.bound / 8 + SLACK / 2
    }
}

/// Bytes of a checkpoint of `state`, as an entry.
pub(super) fn measure(state: VolumeState) -> usize {
    body_bytes(&EntryBody::Checkpoint(state)) + ENTRY_BYTES
}

/// Bytes that a checkpoint grows by at most.
fn growth(changes: &[Change], frame_bytes: usize) -> usize {
    let of_change = |change: &Change| match change {
        Change::Install { edit, .. } => edit.added.len() + edit.logs.len() + edit.dead.len(),
        _ => 0,
    };
    let segments: usize = changes.iter().map(of_change).sum();
    frame_bytes + changes.len() * CHANGE_BYTES + segments * SEGMENT_BYTES
}

/// Whether there is more to name afterwards. What names no more is also carried out where there is no room for more: it is what
/// makes room.
pub(super) fn names_more(changes: &[Change]) -> bool {
    changes.iter().any(|change| match change {
        Change::Region(_) | Change::OpenLog { .. } | Change::Checkpoint { .. } => true,
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
