//! The manifest on the device: two zones of frames, written in turn ([`leeward_format::manifest`] has the drawing).
//!
//! An entry is written behind the one before; when the zone is full, a checkpoint of everything begins the other zone,
//! and once that is durable the old zone ends with `Moved`. So the newest checkpoint that can be read is the current
//! one, unless the other zone ends with `Moved`: then it was the current one and is damaged. Called under the volume's
//! manifest lock.

use super::device::{Device, Durable};
use crate::error::{Error, RESTORE, Result};
use leeward_format::DecodeError;
use leeward_format::Incarnation;
use leeward_format::frame::{FRAME_HEADER_BYTES, FRAME_VERSION, FrameKind, read_frame, write_frame};
use leeward_format::manifest::{Change, Entry, EntryBody, FRAME_ALIGN, VolumeState};
use leeward_platform::Block;
use std::sync::Arc;

/// Room at the end of a zone that only `Moved` may use, in bytes.
const MOVED_BYTES: usize = 2 * FRAME_ALIGN;

/// Whether an edit is made durable before the caller goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It is.
    Synced,
    /// It becomes so with the next sync of the volume: for what a replay would find out by itself.
    Lazy,
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Manifest {
    device: Arc<Device>,
    zone_bytes: usize,
    /// Where the zones start, in bytes.
    starts: [u64; 2],
    current: usize,
    /// Where the next entry goes, in bytes from the start of the current zone.
    position: usize,
    /// Of the next entry.
    sequence: u64,
    durable: u64,
    life: Incarnation,
}

impl Manifest {
    fn new(device: Arc<Device>, start: u64, zone_bytes: usize) -> Manifest {
        let starts = [start, start + zone_bytes as u64];
        let life = Incarnation(0);
        Manifest { device, zone_bytes, starts, current: 0, position: 0, sequence: 1, durable: 0, life }
    }

    /// Writes the first checkpoint of a new volume, durably.
    pub(super) fn create(device: Arc<Device>, start: u64, zone_bytes: usize) -> Result<()> {
        let mut manifest = Manifest::new(device, start, zone_bytes);
        // The checkpoint goes to the zone that is not current: make that the first.
        manifest.current = 1;
        manifest.checkpoint(&VolumeState::default()).map(drop)
    }

    /// Reads what the device holds and begins a life after the last one, durably.
    pub(super) fn load(device: Arc<Device>, start: u64, zone_bytes: usize) -> Result<(Manifest, VolumeState)> {
        let (mut manifest, mut state) = Manifest::read(device, start, zone_bytes)?;
        // What was read may be in the page cache only: nothing may build on it before it is durable.
        manifest.device.sync()?;
        manifest.durable = manifest.sequence - 1;
        manifest.life = Incarnation(state.incarnation.0 + 1);
        let opened = Change::Opened(manifest.life);
        state.apply(&opened).expect("an opening fits every state");
        manifest.append(vec![opened], Durability::Synced, || state.clone())?;
        Ok((manifest, state))
    }

    /// Reads what the device holds.
    pub(crate) fn read(device: Arc<Device>, start: u64, zone_bytes: usize) -> Result<(Manifest, VolumeState)> {
        let mut manifest = Manifest::new(device, start, zone_bytes);
        let first = |zone: &Block| decode(zone).ok().flatten().filter(is_checkpoint);
        // One of them in memory at a time.
        let other = first(&manifest.read_zone(1)?).map(|(entry, _)| entry.sequence);
        let mut zone = manifest.read_zone(0)?;
        let mut newest = first(&zone);
        if other > newest.as_ref().map(|(entry, _)| entry.sequence) {
            manifest.current = 1;
            drop(zone);
            zone = manifest.read_zone(1)?;
            newest = first(&zone);
        }
        let Some((first, bytes)) = newest else {
            return Err(manifest.damaged(0, "neither zone of the manifest starts with a checkpoint".into()));
        };
        let state = manifest.replay(&zone, first, bytes)?;
        Ok((manifest, state))
    }

    /// The entries that count, in order, each with its offset in the file and the length of its frame.
    pub(crate) fn entries(&self) -> Result<Vec<(u64, usize, Entry)>> {
        let zone = self.read_zone(self.current)?;
        let (mut entries, mut at) = (Vec::new(), 0);
        while at < self.position {
            let entry = decode(&zone[at..]).ok().flatten();
            let (entry, bytes) = entry.ok_or_else(|| self.damaged(self.current, "an entry has changed".into()))?;
            entries.push((self.starts[self.current] + at as u64, bytes, entry));
            at += bytes.next_multiple_of(FRAME_ALIGN);
        }
        Ok(entries)
    }

    pub(super) fn life(&self) -> Incarnation {
        self.life
    }

    /// The zone that is written.
    #[cfg(test)]
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Bytes that edits may still take in the zone that is written.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.zone_bytes - MOVED_BYTES - self.position
    }

    /// Appends one edit. `state` answers the state after it, for a checkpoint. Answers the proof that the edit, and with it all before,
    /// is durable, if it is.
    pub(super) fn append(
        &mut self,
        changes: Vec<Change>,
        durability: Durability,
        state: impl FnOnce() -> VolumeState,
    ) -> Result<Option<Durable>> {
        let frame = self.encode(EntryBody::Edit(changes));
        if self.position + frame.len() + MOVED_BYTES > self.zone_bytes {
            return self.checkpoint(&state()).map(Some);
        }
        self.device.write_buffered(self.starts[self.current] + self.position as u64, &frame)?;
        self.position += frame.len();
        self.sequence += 1;
        if durability == Durability::Lazy {
            return Ok(None);
        }
        let durable = self.device.sync()?;
        self.durable = self.sequence - 1;
        Ok(Some(durable))
    }

    /// An error if a checkpoint whose regions take `bytes` would take more than half of a zone.
    pub(super) fn check_room(&self, bytes: usize) -> Result<()> {
        let bytes = self.encode(EntryBody::Checkpoint(VolumeState::default())).len() + bytes;
        if bytes * 2 <= self.zone_bytes {
            return Ok(());
        }
        let detail = format!("the manifest would take {bytes} of the {} bytes of its zone", self.zone_bytes);
        Err(Error::NoSpace { file: self.device.file().name().to_owned(), detail })
    }

    /// Begins the other zone with everything, durably.
    fn checkpoint(&mut self, state: &VolumeState) -> Result<Durable> {
        let frame = self.encode(EntryBody::Checkpoint(state.clone()));
        if frame.len() + MOVED_BYTES > self.zone_bytes {
            let detail = format!("a manifest of {} bytes in a zone of {} bytes", frame.len(), self.zone_bytes);
            self.device.fail(&detail);
            return Err(Error::NoSpace { file: self.device.file().name().to_owned(), detail });
        }
        let other = 1 - self.current;
        self.device.write_buffered(self.starts[other], &frame)?;
        self.device.sync()?;
        let moved = self.encode(EntryBody::Moved);
        self.device.write_buffered(self.starts[self.current] + self.position as u64, &moved)?;
        let durable = self.device.sync()?;
        (self.current, self.position) = (other, frame.len());
        self.durable = self.sequence;
        self.sequence += 1;
        Ok(durable)
    }

    /// The entry's frame, padded to the next place where a frame may start.
    fn encode(&self, body: EntryBody) -> Vec<u8> {
        let entry = Entry { sequence: self.sequence, durable: self.durable, life: self.life, body };
        let mut frame = Vec::new();
        write_frame(FrameKind::ManifestEdit, &entry, &mut frame);
        frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
        frame
    }

    /// A block: an allocator that has been given back so much would keep as much for good.
    fn read_zone(&self, zone: usize) -> Result<Block> {
        let mut bytes = Block::bare(self.zone_bytes);
        self.device.read(self.starts[zone], &mut bytes)?;
        Ok(bytes)
    }

    /// Applies the entries of the current zone in order, from its checkpoint `first` on, and finds its end.
    fn replay(&mut self, zone: &[u8], first: Entry, first_bytes: usize) -> Result<VolumeState> {
        let EntryBody::Checkpoint(mut state) = first.body else { unreachable!("the caller looked") };
        let mut life = first.life;
        self.sequence = first.sequence + 1;
        self.position = first_bytes.next_multiple_of(FRAME_ALIGN);
        while let Some((entry, bytes)) = zone.get(self.position..).and_then(|rest| decode(rest).ok().flatten()) {
            let EntryBody::Edit(changes) = entry.body else {
                if matches!(entry.body, EntryBody::Moved) && entry.sequence == self.sequence && entry.life >= life {
                    return Err(self.damaged(1 - self.current, "the newest checkpoint cannot be read".into()));
                }
                break;
            };
            if entry.sequence != self.sequence || entry.life < life {
                break;
            }
            for change in &changes {
                state.apply(change).map_err(|error| self.damaged(self.current, error.to_string()))?;
            }
            life = entry.life;
            self.sequence += 1;
            self.position += bytes.next_multiple_of(FRAME_ALIGN);
        }
        self.refuse_damage(zone, life)?;
        Ok(state)
    }

    /// The entry that should come next cannot be read: an error if a later one says that it was durable.
    fn refuse_damage(&self, zone: &[u8], life: Incarnation) -> Result<()> {
        // Most of a zone is untouched: look at its version byte before decoding.
        let ahead = (self.position..zone.len()).step_by(FRAME_ALIGN).filter(|at| zone[at + 4] == FRAME_VERSION);
        let witness = ahead
            .filter_map(|at| decode(&zone[at..]).ok().flatten())
            .find(|(entry, _)| entry.durable >= self.sequence && entry.life >= life && entry.sequence > self.sequence);
        match witness {
            None => Ok(()),
            Some((entry, _)) => {
                let detail = format!(
                    "manifest entry {} was durable (says entry {}) and cannot be read",
                    self.sequence, entry.sequence
                );
                Err(self.damaged(self.current, detail))
            }
        }
    }

    fn damaged(&self, zone: usize, detail: String) -> Error {
        let offset = self.starts[zone] + if zone == self.current { self.position as u64 } else { 0 };
        Error::Damaged { file: self.device.file().name().to_owned(), offset, detail, advice: RESTORE }
    }
}

/// The entry whose frame starts `bytes`, and the frame's length; `None` if there is none at all.
fn decode(bytes: &[u8]) -> Result<Option<(Entry, usize)>, DecodeError> {
    read_frame(FrameKind::ManifestEdit, bytes, bytes.len().saturating_sub(FRAME_HEADER_BYTES))
}

fn is_checkpoint((entry, _): &(Entry, usize)) -> bool {
    matches!(entry.body, EntryBody::Checkpoint(_))
}
