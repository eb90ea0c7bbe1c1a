//! Segments on their way to one backup, through ship slots: registered buffers of one segment each.
//!
//! ```text
//!   slot:  Free -> Writing (one-sided) -> completed -> its turn: Ship sent, Storing -> Stored answered -> Free
//! ```
//! Writes may complete in any order, but the messages about segments of compactions go in the order in which they were
//! built. An index segment points to leaf segments by the primary's segment numbers. Out of order, a reused number
//! would be taken for the segment that had it before.
//!
//! Two sources share the slots in turn. Segments of a compaction come as they are built. The primary's next step waits
//! for them ([`Ship::has_room`]), so its memory is bounded by a few segments a backup. Segments of a base, by which a
//! backup is brought in sync, are loaded one at a time. A slot is free only when the backup has stored its segment, so
//! a source that always went first could starve the other. Edits follow in order. `InstallBase` is sent once all of the
//! base was shipped. An `Install`, or the `Discard` of a compaction that was given up, is sent after `InstallBase` and
//! after its own segments.

use bytes::Bytes;
use leeward_format::control::ToBackup;
use leeward_format::manifest::{InstallEdit, SegmentKind, Shipped};
use leeward_format::packed::Codec;
use leeward_format::{SegmentId, SegmentNo, wire};
use std::collections::VecDeque;

/// A segment with its bytes, shared by all backups that it goes to.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Its identity, kind and encoding.
    pub shipped: Shipped,
    /// Its bytes as they are sent, up to the end of its used part.
    pub bytes: Bytes,
}

impl Parcel {
    /// The parcel of the segment whose bytes are `plain`, compressed if that saves enough. Compression takes long: call
    /// it in a job.
    pub fn pack(of: (SegmentId, SegmentKind, SegmentNo), plain: Bytes, codec: Codec) -> Parcel {
        let (shipped, packed) = wire::pack(of, &plain, codec);
        Parcel { shipped, bytes: packed.map_or(plain, Bytes::from) }
    }
}

/// A one-sided write to be posted: a parcel to the start of a ship slot.
#[derive(Clone, Debug)]
pub struct SlotWrite {
    /// Index among the slots that the backup has offered.
    pub slot: usize,
    /// Its bytes are shared by all backups that it goes to.
    pub parcel: Parcel,
    /// Names the write in its completion.
    pub op: u64,
}

/// A step of one backup's shipments.
#[derive(Debug)]
pub enum ShipStep {
    /// Post a write.
    Write(SlotWrite),
    /// Send a message.
    Send(ToBackup),
    /// Read a segment of the base; answer with [`Ship::loaded`].
    Load(SegmentId),
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Free,
    Writing {
        op: u64,
        number: u64,
        shipped: Shipped,
        bytes: u32,
    },
    /// Completed, but a segment that was built before it is not.
    Written {
        number: u64,
        shipped: Shipped,
        bytes: u32,
    },
    Storing,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum BaseState {
    Comparing,
    Shipping,
    Installing,
    Installed,
}

/// The segments on their way to one backup.
#[derive(Debug)]
pub struct Ship {
    slots: Vec<Slot>,
    compacted: VecDeque<(u64, Parcel)>,
    next_number: u64,
    base: VecDeque<SegmentId>,
    /// How many segments of the base the backup lacked.
    lacked: u64,
    loading: Option<SegmentId>,
    loaded: Option<Parcel>,
    /// The last segment that got a slot was of the base.
    was_base: bool,
    base_state: BaseState,
    /// `Install` and `Discard` messages, each with the number of the first segment after it.
    edits: VecDeque<(u64, ToBackup)>,
    installs_owed: usize,
}

/// Number of a parcel that belongs to the base: it precedes every edit.
const BASE: u64 = 0;

impl Ship {
    /// Begins a session with a backup that offers `slots` slots.
    pub fn new(slots: usize) -> Ship {
        Ship {
            slots: (0..slots).map(|_| Slot::Free).collect(),
            compacted: VecDeque::new(),
            next_number: BASE + 1,
            base: VecDeque::new(),
            lacked: 0,
            loading: None,
            loaded: None,
            was_base: true,
            base_state: BaseState::Comparing,
            edits: VecDeque::new(),
            installs_owed: 0,
        }
    }

    /// The backup compared the base with its copy: it lacks `missing`. Returns false if the backup was not asked to
    /// compare.
    pub fn compared(&mut self, missing: Vec<SegmentId>) -> bool {
        let asked = self.base_state == BaseState::Comparing;
        if asked {
            self.lacked = missing.len() as u64;
            self.base = missing.into();
            self.base_state = BaseState::Shipping;
        }
        asked
    }

    /// Queues a segment that a compaction built.
    pub fn segment(&mut self, parcel: Parcel) {
        self.compacted.push_back((self.next_number, parcel));
        self.next_number += 1;
    }

    /// Queues the edit that makes the segments queued before it visible.
    pub fn install(&mut self, edit: InstallEdit) {
        self.edits.push_back((self.next_number, ToBackup::Install(edit)));
    }

    /// Queues the message that segments queued before will never be installed.
    pub fn discard(&mut self, ids: Vec<SegmentId>) {
        self.edits.push_back((self.next_number, ToBackup::Discard(ids)));
    }

    /// A base segment asked for by [`ShipStep::Load`] was read.
    pub fn loaded(&mut self, parcel: Parcel) {
        if self.loading == Some(parcel.shipped.id) {
            self.loading = None;
            self.loaded = Some(parcel);
        }
    }

    /// Returns what can be done now.
    pub fn pump(&mut self, mut next_op: impl FnMut() -> u64) -> Vec<ShipStep> {
        let mut steps = Vec::new();
        while let Some(slot) = self.slots.iter().position(|slot| matches!(slot, Slot::Free)) {
            let Some((number, parcel)) = self.next_parcel() else { break };
            self.was_base = number == BASE;
            let op = next_op();
            let bytes = u32::try_from(parcel.bytes.len()).expect("a parcel is at most one segment");
            self.slots[slot] = Slot::Writing { op, number, shipped: parcel.shipped, bytes };
            steps.push(ShipStep::Write(SlotWrite { slot, parcel, op }));
        }
        if self.loading.is_none() && self.loaded.is_none() {
            self.loading = self.base.pop_front();
            steps.extend(self.loading.map(ShipStep::Load));
        }
        self.edits_that_are_due(&mut steps);
        steps
    }

    /// The next segment for a slot: of the source whose turn it is, else of the other.
    fn next_parcel(&mut self) -> Option<(u64, Parcel)> {
        let of_base = if self.was_base { None } else { self.loaded.take() };
        of_base
            .map(|parcel| (BASE, parcel))
            .or_else(|| self.compacted.pop_front())
            .or_else(|| self.loaded.take().map(|parcel| (BASE, parcel)))
    }

    fn edits_that_are_due(&mut self, steps: &mut Vec<ShipStep>) {
        if self.base_state == BaseState::Shipping && self.base_is_sent() {
            self.base_state = BaseState::Installing;
            steps.push(ShipStep::Send(ToBackup::InstallBase));
        }
        while matches!(self.base_state, BaseState::Installing | BaseState::Installed) {
            let unsent = self.oldest_unsent();
            let Some((_, edit)) = self.edits.pop_front_if(|(number, _)| *number <= unsent) else { break };
            self.installs_owed += usize::from(matches!(edit, ToBackup::Install(_)));
            steps.push(ShipStep::Send(edit));
        }
    }

    fn base_is_sent(&self) -> bool {
        self.base.is_empty()
            && self.loading.is_none()
            && self.loaded.is_none()
            && !self.slots.iter().any(|slot| matches!(slot, Slot::Writing { number: BASE, .. }))
    }

    fn oldest_unsent(&self) -> u64 {
        let in_slots = self.slots.iter().filter_map(|slot| match slot {
            Slot::Writing { number, .. } | Slot::Written { number, .. } if *number != BASE => Some(*number),
            _ => None,
        });
        in_slots.chain(self.compacted.front().map(|(number, _)| *number)).min().unwrap_or(u64::MAX)
    }

    /// A write completed. Returns the messages whose turn it is now; `None` if the write is not one of this backup's
    /// shipments.
    pub fn complete(&mut self, op: u64) -> Option<Vec<ToBackup>> {
        let index = self.slots.iter().position(|slot| matches!(slot, Slot::Writing { op: o, .. } if *o == op))?;
        let Slot::Writing { number, shipped, bytes, .. } = self.slots[index] else {
            unreachable!("the position was found by its variant");
        };
        self.slots[index] = Slot::Written { number, shipped, bytes };
        let mut messages = Vec::new();
        while let Some(message) = self.tell_next() {
            messages.push(message);
        }
        Some(messages)
    }

    /// The message about a written segment whose turn it is.
    fn tell_next(&mut self) -> Option<ToBackup> {
        let turn = self.oldest_unsent();
        let has_turn = |slot: &Slot| matches!(slot, Slot::Written { number, .. } if *number == BASE || *number == turn);
        let index = self.slots.iter().position(has_turn)?;
        let Slot::Written { shipped, bytes, .. } = std::mem::replace(&mut self.slots[index], Slot::Storing) else {
            unreachable!("the position was found by its variant");
        };
        Some(ToBackup::Ship { slot: index as u32, shipped, bytes })
    }

    /// The backup has stored the segment in a slot. Returns false if it was not asked to: the peer breaks the protocol.
    pub fn stored(&mut self, slot: u32) -> bool {
        match self.slots.get_mut(slot as usize) {
            Some(state @ Slot::Storing) => {
                *state = Slot::Free;
                true
            }
            _ => false,
        }
    }

    /// The backup has installed the base. Returns false if it was not asked to.
    pub fn base_installed(&mut self) -> bool {
        let asked = self.base_state == BaseState::Installing;
        if asked {
            self.base_state = BaseState::Installed;
        }
        asked
    }

    /// The backup has installed a compaction. Returns false if it was not asked to.
    pub fn installed(&mut self) -> bool {
        let asked = self.installs_owed > 0;
        self.installs_owed -= usize::from(asked);
        asked
    }

    /// Whether the write is one of this backup's shipments, in flight.
    pub fn owns(&self, op: u64) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Writing { op: writing, .. } if *writing == op))
    }
    /// How many segments of the base the backup lacked when the session began, and how many of them were not sent yet.
    pub fn progress(&self) -> (u64, u64) {
        let on_its_way = u64::from(self.loading.is_some()) + u64::from(self.loaded.is_some());
        (self.lacked, self.base.len() as u64 + on_its_way)
    }
    /// Whether the backup has installed the base.
    pub fn is_base_installed(&self) -> bool {
        self.base_state == BaseState::Installed
    }
    /// Whether the backup has installed all compactions whose edits were queued.
    pub fn has_installed(&self) -> bool {
        self.edits.is_empty() && self.installs_owed == 0
    }
    /// Whether a compaction may build its next segment: fewer segments wait for a slot than there are slots.
    pub fn has_room(&self) -> bool {
        self.compacted.len() < self.slots.len().max(1)
    }
    /// Whether the backup owes an answer.
    pub fn owes_answer(&self) -> bool {
        self.installs_owed > 0
            || matches!(self.base_state, BaseState::Comparing | BaseState::Installing)
            || self.slots.iter().any(|slot| !matches!(slot, Slot::Free))
    }
    /// How many segments have not been stored yet.
    pub fn pending(&self) -> u64 {
        let in_slots = self.slots.iter().filter(|slot| !matches!(slot, Slot::Free)).count();
        (self.compacted.len() + self.base.len() + in_slots) as u64
            + u64::from(self.loading.is_some())
            + u64::from(self.loaded.is_some())
    }
}

#[cfg(test)]
#[path = "ship_tests.rs"]
mod tests;
