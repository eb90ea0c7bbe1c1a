//! The uses of one segment: which of its bytes are encrypted with which nonce, and which bytes of the keystream have
//! been used.
//!
//! **No byte of a keystream is used for two plaintexts.** A range gets a use with a fresh random nonce; bytes are written
//! under it only where its keystream was never used. How far it was used is in memory only. So a use that was read from
//! the device counts as used up.

use leeward_format::nonces::{NONCE_BYTES, SLOT_BYTES, Use, UseKind};
use std::sync::Arc;

/// A range of the segment, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) of: Use,
    /// The slot of the use.
    slot: u16,
    /// The keystream below this offset was used.
    used: u32,
}

/// The uses of a segment.
#[derive(Debug)]
pub(super) struct Uses {
    slots: u16,
    /// Ordered by offset, without overlaps.
    extents: Arc<Vec<Extent>>,
}

/// A use that takes effect once its slot is written.
#[derive(Debug)]
pub(super) struct Begun {
    slot: u16,
    of: Use,
    extents: Vec<Extent>,
}

impl Begun {
    /// Offset of its slot in the block of nonces, and the slot.
    pub(super) fn slot(&self) -> (u64, [u8; SLOT_BYTES]) {
        (u64::from(self.slot) * SLOT_BYTES as u64, self.of.encode())
    }

    pub(super) fn of(&self) -> Use {
        self.of
    }
}

impl Uses {
    /// Of a segment whose block of nonces, of so many bytes, is zeroes.
    pub(super) fn none(nonce_bytes: usize) -> Uses {
        Uses { slots: (nonce_bytes / SLOT_BYTES) as u16, extents: Arc::default() }
    }

    /// Decodes a block of nonces.
    pub(super) fn decode(block: &[u8], segment_bytes: u32) -> Uses {
        let slots = block.as_chunks::<SLOT_BYTES>().0;
        let found = (0..).zip(slots).filter_map(|(slot, bytes)| Some((slot, Use::decode(bytes, segment_bytes)?)));
        let mut ordered: Vec<(u16, Use)> = found.collect();
        ordered.sort_by_key(|(_, of)| of.generation);
        let mut extents = Vec::new();
        for (slot, of) in ordered {
            insert(&mut extents, Extent { start: of.start, end: of.end, of, slot, used: of.end });
        }
        Uses { extents: Arc::new(extents), ..Uses::none(block.len()) }
    }

    pub(super) fn extents(&self) -> Arc<Vec<Extent>> {
        Arc::clone(&self.extents)
    }

    /// The use under which `start..end` can be written now; its keystream there counts as used from then on. `None` if
    /// there is none.
    pub(super) fn take(&mut self, start: u32, end: u32) -> Option<Use> {
        let at = self.extents.iter().position(|extent| extent.start <= start && end <= extent.end)?;
        let extent = self.extents[at];
        if extent.of.kind == UseKind::Stream {
            if start < extent.used {
                return None;
            }
            Arc::make_mut(&mut self.extents)[at].used = end;
        }
        Some(extent.of)
    }

    /// End of a use that begins at `start`, where bytes up to `end` are written: all of the range that has no other
    /// bytes behind them.
    pub(super) fn end_of(&self, start: u32, end: u32) -> u32 {
        let extent = self.extents.iter().find(|extent| extent.start <= start && end <= extent.end);
        extent.filter(|extent| extent.used <= end).map_or(end, |extent| extent.end)
    }

    /// First byte of `start..end` that has no use.
    pub(super) fn uncovered(&self, start: u32, end: u32) -> u32 {
        let mut at = start;
        for extent in self.extents.iter().filter(|extent| extent.end > start) {
            if extent.start > at || at >= end {
                break;
            }
            at = extent.end;
        }
        at.min(end)
    }

    /// Prepares a use of `range`, of which the keystream below `used` is about to be used. `None` if all
    /// slots are taken.
    pub(super) fn begin(
        &self,
        range: (u32, u32),
        (kind, nonce): (UseKind, [u8; NONCE_BYTES]),
        used: u32,
    ) -> Option<Begun> {
        // The newest use is never covered by others, so none on the device has a higher generation.
        let generation = self.extents.iter().map(|extent| extent.of.generation).max().unwrap_or(0).checked_add(1)?;
        let of = Use { start: range.0, end: range.1, kind, generation, nonce };
        let mut extents = Vec::clone(&self.extents);
        insert(&mut extents, Extent { start: range.0, end: range.1, of, slot: u16::MAX, used });
        // What a use has lost to later ones was given up, or is being overwritten.
        let mut is_needed = vec![false; self.slots.into()];
        extents
            .iter()
            .filter(|extent| extent.slot < self.slots)
            .for_each(|extent| is_needed[extent.slot as usize] = true);
        let slot = is_needed.iter().position(|is_needed| !is_needed)? as u16;
        extents.iter_mut().filter(|extent| extent.slot == u16::MAX).for_each(|extent| extent.slot = slot);
        Some(Begun { slot, of, extents })
    }

    /// The slot of `begun` is written.
    pub(super) fn commit(&mut self, begun: Begun) {
        self.extents = Arc::new(begun.extents);
    }
}

/// Adds an extent, in place of what it covers of others.
fn insert(extents: &mut Vec<Extent>, new: Extent) {
    let mut kept = Vec::with_capacity(extents.len() + 2);
    for old in extents.drain(..) {
        if old.start < new.start {
            kept.push(Extent { end: old.end.min(new.start), ..old });
        }
        if old.end > new.end {
            kept.push(Extent { start: old.start.max(new.end), ..old });
        }
    }
    kept.push(new);
    kept.sort_by_key(|extent| extent.start);
    *extents = kept;
}

#[cfg(test)]
#[path = "uses_tests.rs"]
mod tests;
