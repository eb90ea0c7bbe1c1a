//! The manifest on the device: two zones of frames, written in turn (drawing: [`leeward_format::manifest`]).
//!
//! Entries are written one after another. Before the zone is full, a checkpoint of everything begins the other zone. Once
//! that is durable, the old zone is marked as `Moved`. So the newest readable zone is the current one, unless it is
//! marked: then the other one was current, and is damaged. Edits go on meanwhile ([`super::switch`]).
//!
//! The lock is held while an edit is encoded and written to the page cache, and never across a sync. So an edit that need
//! not be durable at once waits for nobody.
//!
//! A zone continues in data segments ([`super::zone`]). The other zone always has room for the next checkpoint
//! ([`super::room`]). An edit that would use up that room is refused before anything has changed, and writes are
//! refused well before that. Called under the volume's manifest lock.

use super::device::Device;
use super::open::{file_len, reserved_segments};
use super::room::{Size, measure, names_more};
use super::space::Space;
use super::switch::{Checkpoint, Guarded, Switch};
use super::zone::{Head, Zone};
use crate::error::{Error, RESTORE, Result};
#[cfg(test)]
use leeward_format::SegmentNo;
use leeward_format::frame::{FRAME_HEADER_BYTES, FRAME_VERSION, FrameKind, read_frame, write_frame};
use leeward_format::manifest::{Change, Entry, EntryBody, FRAME_ALIGN, VolumeState};
use leeward_format::superblock::Superblock;
use leeward_format::{DecodeError, Incarnation};
use std::sync::Arc;

const LOST: &str = "the newest checkpoint cannot be read";
/// One part in this many of the room for edits is left when the next checkpoint is due: edits take it while that is
/// written.
const LEFT_SHARE: usize = 8;

/// Whether an edit is made durable before the caller continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Yes.
    Synced,
    /// No, but by the next sync of the volume: for edits that a replay would find out by itself.
    Lazy,
}

/// The manifest's writer.
#[derive(Debug)]
pub(crate) struct Manifest {
    device: Arc<Device>,
    zones: [Zone; 2],
    current: usize,
    /// Position of the next entry, in bytes from the start of the current zone.
    position: usize,
    /// Position of the first entry after the checkpoint.
    first: usize,
    /// Number of the next entry.
    sequence: u64,
    durable: u64,
    incarnation: Incarnation,
    /// Size of a checkpoint of the current state.
    size: Size,
    /// The other zone has entries and is not marked as `Moved`, because of a crash.
    is_other_open: bool,
    /// The other zone is being begun.
    switch: Option<Switch>,
}

/// An edit in its frame.
pub(super) struct Framed {
    frame: Vec<u8>,
    pub(super) changes: Vec<Change>,
}

/// Where an edit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// Behind the last one, in the page cache.
    Written,
    /// Nowhere: there was no room. It is a part of the checkpoint that must follow.
    Unwritten,
}

impl Manifest {
    fn new(device: Arc<Device>, superblock: &Superblock) -> Manifest {
        Manifest {
            device,
            zones: Zone::both(superblock),
            current: 0,
            position: 0,
            first: 0,
            sequence: 1,
            durable: 0,
            incarnation: Incarnation(0),
            size: Size::default(),
            is_other_open: false,
            switch: None,
        }
    }

    /// Writes the first checkpoint of a new volume, durably.
    pub(super) fn create(device: Arc<Device>, superblock: &Superblock) -> Result<()> {
        let mut manifest = Manifest::new(device, superblock);
        // The checkpoint goes to the zone that is not current, which must be the first. It has the number 1.
        (manifest.current, manifest.sequence) = (1, 2);
        let checkpoint = manifest.begin_switch(VolumeState::default());
        Guarded::new(manifest).switch(checkpoint).map(drop)
    }

    /// Reads the manifest from the device, and the state that it describes.
    pub(crate) fn read(device: Arc<Device>, superblock: &Superblock) -> Result<(Manifest, VolumeState)> {
        let mut manifest = Manifest::new(device, superblock);
        // Only one zone is in memory at a time.
        let [first, second] = &manifest.zones;
        let mut heads = [first.read_head(&manifest.device)?, second.read_head(&manifest.device)?];
        let sequence = |head: &Option<Head>| head.as_ref().map(|head| head.sequence);
        manifest.current = usize::from(sequence(&heads[1]) > sequence(&heads[0]));
        manifest.is_other_open = heads[1 - manifest.current].as_ref().is_some_and(|head| !head.is_moved);
        let Some(head) = heads[manifest.current].take() else {
            return Err(manifest.damaged(0, "neither zone of the manifest starts with a checkpoint".into()));
        };
        if head.is_moved {
            return Err(manifest.damaged(1 - manifest.current, LOST.into()));
        }
        let file_bytes = file_len(&manifest.device)?;
        manifest.zones[manifest.current].follow(&manifest.device, &head, reserved_segments(superblock), file_bytes)?;
        let zone = manifest.zones[manifest.current].read(&manifest.device)?;
        let is_first = |(entry, _): &(Entry, usize)| is_checkpoint(entry) && entry.sequence == head.sequence;
        (manifest.position, manifest.first) = (head.bytes, head.bytes);
        let Some((first, bytes)) =
            zone.get(head.bytes..).and_then(|rest| decode(&manifest.device, rest).ok()?).filter(is_first)
        else {
            return Err(manifest.damaged(manifest.current, LOST.into()));
        };
        let state = manifest.replay(&zone, first, head.bytes + bytes)?;
        Ok((manifest, state))
    }

    /// Claims the data segments that the manifest continues in, before any other segment is taken.
    pub(super) fn claim(&mut self, space: &Arc<Space>) -> Result<()> {
        self.zones[self.current].claim(&self.device, space)
    }

    /// Begins the next incarnation with the random number `drawn`. `state` is the state that was read. Durable with the next
    /// sync, or the checkpoint that is returned.
    pub(super) fn begin(
        &mut self,
        space: &Arc<Space>,
        state: &mut VolumeState,
        drawn: u32,
    ) -> Result<Option<Checkpoint>> {
        let next = state.incarnation.next(drawn);
        self.incarnation = next.ok_or_else(|| self.damaged(self.current, "it says it was opened 2^32 times".into()))?;
        // The state that was read was made durable before.
        self.durable = self.sequence - 1;
        if self.is_other_open {
            let moved = self.encode(EntryBody::Moved)?;
            self.zones[1 - self.current].write_moved(&self.device, &moved)?;
            self.is_other_open = false;
        }
        let opened = Change::Opened(self.incarnation);
        state.apply(&opened).expect("an opening fits every state");
        let bytes = measure(state.clone());
        let edit = self.frame(vec![opened])?;
        self.ensure_room(&edit, space, (bytes, |_: &[Change]| Some(bytes)))?;
        Ok(match self.append(edit)? {
            Placed::Written => None,
            Placed::Unwritten => Some(self.begin_switch(state.clone())),
        })
    }

    /// The current entries, in order, each with its offset in the file and the length of its frame.
    pub(crate) fn entries(&self) -> Result<Vec<(u64, usize, Entry)>> {
        let zone = self.zones[self.current].read(&self.device)?;
        let (mut entries, mut at) = (Vec::new(), 0);
        while at < self.position {
            let entry = decode(&self.device, &zone[at..]).ok().flatten();
            let (entry, bytes) = entry.ok_or_else(|| self.damaged(self.current, "an entry has changed".into()))?;
            entries.push((self.zones[self.current].place(at).0, bytes, entry));
            at += bytes.next_multiple_of(FRAME_ALIGN);
        }
        Ok(entries)
    }

    /// Position in the current zone, and the zone's size, in bytes.
    pub(crate) fn extent(&self) -> (usize, usize) {
        (self.position, self.zones[self.current].bytes())
    }

    /// Writes the current entries to the same places of another device of the volume, for which they are encrypted anew.
    pub(super) fn copy(&self, to: &Device) -> Result<()> {
        let zone = &self.zones[self.current];
        let bytes = zone.read(&self.device)?;
        let mut at = 0;
        while at < self.position {
            let found = decode(&self.device, &bytes[at..]).ok().flatten();
            let (entry, len) = found.ok_or_else(|| self.damaged(self.current, "it has changed meanwhile".into()))?;
            let frame = framed(to, &entry)?;
            zone.write(to, at, &frame)?;
            at += len.next_multiple_of(FRAME_ALIGN);
        }
        Ok(())
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The current zone.
    #[cfg(test)]
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Bytes left for edits in the current zone.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.zones[self.current].bytes() - self.position
    }

    /// The data segments of each zone.
    #[cfg(test)]
    pub(super) fn segments(&self) -> [Vec<SegmentNo>; 2] {
        [0, 1].map(|zone| self.zones[zone].segments().to_vec())
    }

    /// An edit, in its frame, with the number of the next entry.
    pub(super) fn frame(&self, changes: Vec<Change>) -> Result<Framed> {
        let entry = self.entry(EntryBody::Edit(changes));
        let frame = framed(&self.device, &entry)?;
        let EntryBody::Edit(changes) = entry.body else { unreachable!("it was made one") };
        Ok(Framed { frame, changes })
    }

    /// Whether an edit must wait for the end of the move that is under way, because a zone has no room for it.
    pub(super) fn must_wait(&self, edit: &Framed) -> bool {
        let Some(switch) = &self.switch else { return false };
        let has_room = |zone: usize, taken: usize| taken + edit.frame.len() <= self.zones[zone].bytes();
        !has_room(self.current, self.position) || !has_room(1 - self.current, switch.taken())
    }

    /// Ensures room for an edit, and for a checkpoint at any time after it. A checkpoint of the present state has `bytes`;
    /// `size_after` measures one of the state after some changes; `None` if they do not fit the state. In that case
    /// applying them reports the error.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing has changed, and the volume continues to work.
    pub(super) fn ensure_room(
        &mut self,
        edit: &Framed,
        space: &Arc<Space>,
        (bytes, size_after): (usize, impl Fn(&[Change]) -> Option<usize>),
    ) -> Result<()> {
        let mut size = Size::exactly(bytes).after(&edit.changes, edit.frame.len());
        if self.is_switching() {
            // The caller has looked whether there is room.
            self.size = size;
            return Ok(());
        }
        let is_last = self.position + edit.frame.len() > self.zones[self.current].bytes();
        let mut room = self.reserve(size, space);
        if is_last || matches!(room, Err(Error::NoSpace { .. })) {
            let Some(bytes) = size_after(&edit.changes) else { return Ok(()) };
            size = Size::exactly(bytes);
            room = self.reserve(size, space);
        }
        match room {
            // An edit that names no more segments makes room.
            Err(Error::NoSpace { .. }) if !names_more(&edit.changes) && !is_last => {}
            Err(Error::NoSpace { .. }) if !names_more(&edit.changes) && size.bytes() <= self.other().room() => {}
            other => other?,
        }
        self.size = size;
        Ok(())
    }

    /// An error if writes could not continue after changes that make a checkpoint `bytes` large. No move is under way.
    pub(super) fn check_room(&mut self, bytes: usize, space: &Arc<Space>) -> Result<()> {
        let size = Size::exactly(bytes);
        self.reserve(size, space)?;
        match space.why_manifest_is_short() {
            Some(detail) => Err(Error::NoSpace { file: self.device.file().name().to_owned(), detail }),
            None => Ok(()),
        }
    }

    /// Checks again whether there is room for writes. A checkpoint of the present state has `bytes`.
    pub(super) fn look_for_room(&mut self, bytes: usize, space: &Arc<Space>) -> Result<()> {
        self.size = Size::exactly(bytes);
        if self.is_switching() {
            return Ok(());
        }
        match self.reserve(self.size, space) {
            // That is noted.
            Err(Error::NoSpace { .. }) => Ok(()),
            other => other,
        }
    }

    fn other(&self) -> &Zone {
        &self.zones[1 - self.current]
    }

    /// Makes room in the other zone for a checkpoint of `size`, and notes whether writes may continue.
    fn reserve(&mut self, size: Size, space: &Arc<Space>) -> Result<()> {
        let other = &mut self.zones[1 - self.current];
        let grown = other.grow(&self.device, size.preferred(), |origin| space.allocate_spare(origin));
        let short = match grown {
            Ok(()) => None,
            Err(Error::NoSpace { detail, .. }) => Some(detail),
            Err(error) => return Err(error),
        };
        let needed = other.grow(&self.device, size.least(), |origin| space.allocate(origin));
        space.set_manifest_short(short.filter(|_| other.room() < size.for_writes()).map(|detail| {
            format!("the manifest, of {} bytes, has no room for its next checkpoint: {detail}", size.bytes())
        }));
        needed
    }

    /// Appends an edit that was framed under the same lock, and for which [`Manifest::ensure_room`] has found room.
    pub(super) fn append(&mut self, edit: Framed) -> Result<Placed> {
        let frame = edit.frame;
        let at = self.position;
        self.sequence += 1;
        if at + frame.len() > self.zones[self.current].bytes() {
            assert!(!self.is_switching(), "the caller has waited");
            return Ok(Placed::Unwritten);
        }
        self.zones[self.current].write(&self.device, at, &frame)?;
        self.position += frame.len();
        match &mut self.switch {
            Some(Switch { position: Some(position), .. }) => {
                self.zones[1 - self.current].write(&self.device, *position, &frame)?;
                *position += frame.len();
            }
            Some(switch) => switch.remembered.extend_from_slice(&frame),
            None => {}
        }
        Ok(Placed::Written)
    }

    /// Number of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.sequence - 1
    }

    /// Entries up to `number` are durable.
    pub(super) fn synced(&mut self, number: u64) {
        self.durable = self.durable.max(number);
    }

    /// Whether so little room is left that the next checkpoint should be written.
    pub(super) fn is_due(&self) -> bool {
        !self.is_switching() && self.position > self.due_at()
    }

    /// The position behind which the next checkpoint is due.
    pub(super) fn due_at(&self) -> usize {
        let bytes = self.zones[self.current].bytes();
        bytes - (bytes - self.first) / LEFT_SHARE
    }

    /// Whether the other zone is being begun.
    pub(super) fn is_switching(&self) -> bool {
        self.switch.is_some()
    }

    /// Begins to move to the other zone. `state` is that after the last edit.
    pub(super) fn begin_switch(&mut self, state: VolumeState) -> Checkpoint {
        assert!(!self.is_switching(), "one move at a time");
        self.zones[1 - self.current].shrink(self.size.preferred());
        let [old, new] = [self.current, 1 - self.current].map(|zone| self.zones[zone].clone());
        // What the other zone does not take for numbers of segments is room for the checkpoint.
        let most_bytes = self.size.bytes() + (new.bytes() - new.room());
        self.switch = Some(Switch { most_bytes, position: None, remembered: Vec::new() });
        Checkpoint {
            device: Arc::clone(&self.device),
            old,
            new,
            sequence: self.last(),
            durable: self.durable,
            incarnation: self.incarnation,
            state,
        }
    }

    /// The checkpoint is in the first `bytes` of the new zone: the edits since follow it.
    pub(super) fn catch_up(&mut self, bytes: usize) -> Result<()> {
        let switch = self.switch.as_mut().expect("a move is under way");
        let remembered = std::mem::take(&mut switch.remembered);
        self.zones[1 - self.current].write(&self.device, bytes, &remembered)?;
        switch.position = Some(bytes + remembered.len());
        Ok(())
    }

    /// The new zone is the current one: its checkpoint, of entry `number`, is durable, and takes the first `bytes`.
    pub(super) fn end_switch(&mut self, number: u64, bytes: usize) {
        let switch = self.switch.take().expect("a move is under way");
        let old = self.current;
        self.current = 1 - old;
        (self.first, self.position) = (bytes, switch.position.expect("it has caught up"));
        self.synced(number);
        self.zones[old].shrink(self.size.preferred());
    }

    /// The other zone will not be begun now.
    pub(super) fn give_up_switch(&mut self) {
        self.switch = None;
    }

    fn entry(&self, body: EntryBody) -> Entry {
        Entry { sequence: self.sequence, durable: self.durable, incarnation: self.incarnation, body }
    }

    fn encode(&self, body: EntryBody) -> Result<Vec<u8>> {
        framed(&self.device, &self.entry(body))
    }

    /// Applies the entries of the current zone in order, from its checkpoint `first`, which ends at `end`. Finds the
    /// last entry.
    fn replay(&mut self, zone: &[u8], first: Entry, end: usize) -> Result<VolumeState> {
        let mut state = first.body.into_state().expect("the caller looked");
        let mut incarnation = first.incarnation;
        self.sequence = first.sequence + 1;
        self.position = end.next_multiple_of(FRAME_ALIGN);
        self.first = self.position;
        while let Some((entry, bytes)) =
            zone.get(self.position..).and_then(|rest| decode(&self.device, rest).ok().flatten())
        {
            let EntryBody::Edit(changes) = entry.body else {
                let is_next = entry.sequence == self.sequence && entry.incarnation >= incarnation;
                if matches!(entry.body, EntryBody::Moved) && is_next {
                    return Err(self.damaged(1 - self.current, LOST.into()));
                }
                break;
            };
            if entry.sequence != self.sequence || entry.incarnation < incarnation {
                break;
            }
            for change in &changes {
                state.apply(change).map_err(|error| self.damaged(self.current, error.to_string()))?;
            }
            incarnation = entry.incarnation;
            self.sequence += 1;
            self.position += bytes.next_multiple_of(FRAME_ALIGN);
        }
        self.refuse_damage(zone, incarnation)?;
        Ok(state)
    }

    /// The next entry cannot be read: an error if a later one says that it was durable.
    fn refuse_damage(&self, zone: &[u8], incarnation: Incarnation) -> Result<()> {
        // Most of a zone is untouched, so the version byte is checked before decoding.
        let ahead = (self.position..zone.len()).step_by(FRAME_ALIGN).filter(|at| zone[at + 4] == FRAME_VERSION);
        let mut found = ahead.filter_map(|at| decode(&self.device, &zone[at..]).ok().flatten());
        let witness = found.find(|(entry, _)| {
            entry.durable >= self.sequence && entry.incarnation >= incarnation && entry.sequence > self.sequence
        });
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
        let at = if zone == self.current { self.position } else { 0 };
        damaged(&self.device, self.zones[zone].place(at).0, detail)
    }
}

pub(super) fn damaged(device: &Device, offset: u64, detail: String) -> Error {
    let (file, offset) = (device.file().name().to_owned(), device.file().place(offset));
    Error::Damaged { file, offset, detail, advice: RESTORE }
}

/// The entry's frame, padded to the next position where a frame may start. On an encrypted volume its frame is in
/// another one, encrypted.
pub(super) fn framed(device: &Device, entry: &Entry) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    write_frame(FrameKind::ManifestEdit, entry, &mut frame);
    if let Some(sealer) = device.sealer() {
        let sealed = sealer.seal(&frame).map_err(|error| device.error("encrypt", 0, error))?;
        frame.clear();
        write_frame(FrameKind::SealedManifestEdit, &sealed, &mut frame);
    }
    frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
    Ok(frame)
}

/// The entry whose frame starts `bytes`, and the frame's length; `None` if there is none at all.
pub(super) fn decode(device: &Device, bytes: &[u8]) -> Result<Option<(Entry, usize)>, DecodeError> {
    let limit = bytes.len().saturating_sub(FRAME_HEADER_BYTES);
    let Some(sealer) = device.sealer() else { return read_frame(FrameKind::ManifestEdit, bytes, limit) };
    let Some((sealed, len)) = read_frame(FrameKind::SealedManifestEdit, bytes, limit)? else { return Ok(None) };
    let frame = sealer.open(&sealed)?;
    let entry = read_frame(FrameKind::ManifestEdit, &frame, frame.len())?;
    Ok(entry.map(|(entry, _)| (entry, len)))
}

fn is_checkpoint(entry: &Entry) -> bool {
    entry.body.is_checkpoint()
}
