//! A zone of the manifest as one range of bytes: its own place, and the data segments that it continues in.
//!
//! ```text
//!   own place                       segment      segment
//!   | Zone, checkpoint, edits .. |M|  .. edits  |  .. edits  |      M: bytes for `Moved`, outside of the range
//! ```
//! A segment is filled with zeroes when it joins a zone, so that client data in it is never read as an entry. The zone
//! that is not current keeps its segments: they are the room for the next checkpoint. Called under the volume's
//! manifest lock.

use super::device::Device;
use super::manifest::{damaged, decode};
use super::space::{Segment, Space};
use crate::error::{Error, Result};
use leeward_format::data_key::SEALING_BYTES;
use leeward_format::frame::FRAME_HEADER_BYTES;
use leeward_format::manifest::{EntryBody, FRAME_ALIGN};
use leeward_format::superblock::Superblock;
use leeward_format::{RegionId, SegmentNo};
use leeward_platform::Block;
use leeward_platform::disk::Content;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Zeroes are written in pieces of this size.
static ZEROES: [u8; 32 << 10] = [0; 32 << 10];
/// Largest zone, in bytes: frames have lengths of 32 bits.
const MOST_BYTES: usize = 1 << 30;
/// Bytes of an encoded segment number, at most.
const NUMBER_BYTES: usize = 5;
/// Bytes of a `Zone` entry without segments, its padding included, at most.
const EMPTY_BYTES: usize =
    (FRAME_HEADER_BYTES + 3 * 10 + 1 + NUMBER_BYTES + SEALING_BYTES).next_multiple_of(FRAME_ALIGN);
/// Bytes for `Moved` at the end of a zone's own place, if the volume is encrypted: an entry and what sealing adds.
const SEALED_SLOT_BYTES: usize = 2 * FRAME_ALIGN;
/// Origin of the manifest's segments, which hold no checksums of a region.
const NO_REGION: RegionId = RegionId(0);

/// A zone of the manifest: see the module.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    /// Start and length of its own place, in bytes.
    start: u64,
    own_bytes: usize,
    /// Bytes of its own place that are kept for `Moved`.
    slot_bytes: usize,
    segment_bytes: usize,
    segments: Vec<SegmentNo>,
    /// The same segments, once they are claimed: never, if a volume is only inspected.
    held: Vec<Arc<Segment>>,
}

/// The head of a zone.
pub(super) struct Head {
    pub(super) sequence: u64,
    /// The zone was given up for the other one.
    pub(super) is_moved: bool,
    segments: Vec<SegmentNo>,
    /// Bytes before its checkpoint.
    pub(super) bytes: usize,
}

impl Zone {
    /// Both zones of a volume, without segments.
    pub(super) fn both(superblock: &Superblock) -> [Zone; 2] {
        let segment_bytes = superblock.segment_bytes as usize;
        let own_bytes = superblock.zone_segments as usize * segment_bytes;
        let slot_bytes = if superblock.is_encrypted() { SEALED_SLOT_BYTES } else { FRAME_ALIGN };
        [0, 1].map(|zone| Zone {
            start: (segment_bytes + zone * own_bytes) as u64,
            own_bytes,
            slot_bytes,
            segment_bytes,
            segments: Vec::new(),
            held: Vec::new(),
        })
    }

    /// Bytes that entries may take.
    pub(super) fn bytes(&self) -> usize {
        self.own_entries() + self.segments.len() * self.segment_bytes
    }

    /// [`Zone::bytes`] without those of its `Zone` entry.
    pub(super) fn room(&self) -> usize {
        self.bytes().saturating_sub(EMPTY_BYTES + self.segments.len() * NUMBER_BYTES)
    }

    fn own_entries(&self) -> usize {
        self.own_bytes - self.slot_bytes
    }

    pub(super) fn segments(&self) -> &[SegmentNo] {
        &self.segments
    }

    /// Offset of byte `at` in the file, and the number of bytes that follow there.
    pub(super) fn place(&self, at: usize) -> (u64, usize) {
        let own = self.own_entries();
        if at < own || self.segments.is_empty() {
            return (self.start + at as u64, own.saturating_sub(at));
        }
        let (index, offset) = ((at - own) / self.segment_bytes, (at - own) % self.segment_bytes);
        let start = self.segments.get(index).map_or(0, |no| no.start(self.segment_bytes));
        (start + offset as u64, self.segment_bytes - offset)
    }

    fn slot(&self) -> u64 {
        self.start + self.own_entries() as u64
    }

    /// Writes to the page cache.
    pub(super) fn write(&self, device: &Device, mut at: usize, mut bytes: &[u8]) -> Result<()> {
        assert!(at + bytes.len() <= self.bytes(), "the caller has looked whether it fits");
        while !bytes.is_empty() {
            let (offset, left) = self.place(at);
            let (piece, rest) = bytes.split_at(left.min(bytes.len()));
            device.write_buffered(offset, piece)?;
            (at, bytes) = (at + piece.len(), rest);
        }
        Ok(())
    }

    /// Writes the frame that marks this zone as given up.
    pub(super) fn write_moved(&self, device: &Device, frame: &[u8]) -> Result<()> {
        assert!(frame.len() <= self.slot_bytes, "there is no more room");
        device.write_buffered(self.slot(), frame)
    }

    /// All bytes of entries. In a block, because an allocator would keep that much memory forever.
    pub(super) fn read(&self, device: &Device) -> Result<Block> {
        let mut bytes = Block::bare(self.bytes());
        let mut at = 0;
        while at < bytes.len() {
            let (offset, left) = self.place(at);
            device.read(offset, &mut bytes[at..at + left])?;
            at += left;
        }
        Ok(bytes)
    }

    /// Its head; `None` if it does not begin with a valid entry of that kind.
    pub(super) fn read_head(&self, device: &Device) -> Result<Option<Head>> {
        let mut bytes = Block::bare(self.own_bytes);
        device.read(self.start, &mut bytes)?;
        let (entries, slot) = bytes.split_at(self.own_entries());
        let Some((first, frame)) = decode(device, entries).ok().flatten() else { return Ok(None) };
        let (segments, bytes) = match first.body {
            EntryBody::Checkpoint(_) | EntryBody::Identified(..) => (Vec::new(), 0),
            EntryBody::Zone(segments) => (segments, frame.next_multiple_of(FRAME_ALIGN)),
            EntryBody::Edit(_) | EntryBody::Moved => return Ok(None),
        };
        let moved = decode(device, slot).ok().flatten().filter(|(entry, _)| matches!(entry.body, EntryBody::Moved));
        let is_moved = moved.is_some_and(|(entry, _)| entry.sequence > first.sequence);
        Ok(Some(Head { sequence: first.sequence, is_moved, segments, bytes }))
    }

    /// Continues in the segments that `head` names. `reserved` is the first possible data segment, `file_bytes` the
    /// length of the file.
    pub(super) fn follow(&mut self, device: &Device, head: &Head, reserved: u32, file_bytes: u64) -> Result<()> {
        let ends = file_bytes / self.segment_bytes as u64;
        let (mut seen, all) = (BTreeSet::new(), &head.segments);
        let wrong = all.iter().find(|no| no.0 < reserved || u64::from(no.0) >= ends || !seen.insert(**no));
        if let Some(no) = wrong {
            let detail = format!("the manifest continues in segment {no}, which does not exist or has another use");
            return Err(damaged(device, self.start, detail));
        }
        self.segments.clone_from(all);
        Ok(())
    }

    /// Claims the segments that it continues in, which have no owner yet.
    pub(super) fn claim(&mut self, device: &Device, space: &Arc<Space>) -> Result<()> {
        for no in &self.segments {
            let Some(segment) = space.claim((*no, *no), NO_REGION) else {
                return Err(damaged(device, self.start, format!("the manifest continues in segment {no} twice")));
            };
            self.held.push(segment);
        }
        Ok(())
    }

    /// Adds segments from `allocate` until there is room for `bytes`.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of writing.
    pub(super) fn grow(
        &mut self,
        device: &Device,
        bytes: usize,
        allocate: impl Fn(RegionId) -> Result<Arc<Segment>>,
    ) -> Result<()> {
        while self.room() < bytes {
            let of_numbers = EMPTY_BYTES + (self.segments.len() + 1) * NUMBER_BYTES;
            if of_numbers * 2 > self.own_bytes || self.bytes() + self.segment_bytes > MOST_BYTES {
                let detail =
                    format!("the manifest is at its limit, {} bytes: there are too many segments", self.bytes());
                return Err(Error::NoSpace { file: device.file().name().to_owned(), detail });
            }
            let segment = allocate(NO_REGION)?;
            let start = segment.no().start(self.segment_bytes);
            device.renew(start, self.segment_bytes as u64, Content::Sealed)?;
            for at in (0..self.segment_bytes).step_by(ZEROES.len()) {
                device.write_buffered(start + at as u64, &ZEROES[..ZEROES.len().min(self.segment_bytes - at)])?;
            }
            self.segments.push(segment.no());
            self.held.push(segment);
        }
        Ok(())
    }

    /// Gives back segments that are not needed for `bytes`. For a zone whose entries are not read any more.
    pub(super) fn shrink(&mut self, bytes: usize) {
        while !self.segments.is_empty() && self.room() >= bytes.saturating_add(self.segment_bytes) {
            self.segments.pop();
            self.held.pop();
        }
    }
}

#[cfg(test)]
#[path = "zone_tests.rs"]
mod tests;
