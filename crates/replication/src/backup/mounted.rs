//! The registered memory of a backup that its primary writes into: mirror buffers of log tails, and ship slots.
//!
//! ```text
//!   mirror buffer:  | on the volume, given back | pages that are held | not written yet, takes no memory |
//!                   0                         saved
//! ```
//! The memory in use is reserved in the node's budget as far as the backup knows it: the primary writes without asking.
//! While the node's mirrors are close to their share, pages of tails are given back as soon as their bytes are on the
//! volume. Otherwise they are given back when the tail is quiet, or not at all: a page fault costs more than zeroing a
//! page. Slots are fewer and written more often, so they keep their pages until mirrors exceed their share.
//!
//! Invariants:
//! - Saved bytes are read from the volume, never from the buffer.
//! - A mirror buffer is zero where its tail has no bytes yet, whatever tail it held before.
//! - A buffer or slot is given back whole only before the answer that lets the primary write into it again. At other
//!   times only pages below the saved end are given back: the primary writes no byte twice.

use super::work::Undone;
use crate::mirror::buffer_of;
use leeward_engine::{Error, Memory as Budget, Purpose, Replica, Reservation};
use leeward_fabric::{Fabric, Memory, PAGE_BYTES};
use leeward_format::cluster::Member;
use leeward_format::control::{MIRROR_BUFFERS, ToPrimary};
use leeward_format::record::{RECORD_HEADER_BYTES, RecordSeed, read_record};
use leeward_format::segment::{LOG_HEADER_BYTES, LogHeader};
use leeward_format::{DecodeError, Epoch, LogKind, Lsn, RegionId, SegmentId};
use leeward_platform::disk::with_scratch;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of ship slots that a backup offers: one is written while the other is stored.
const SLOTS: usize = 2;
/// Number of mirror buffers, which come before the slots.
const BUFFERS: usize = LogKind::APPENDED.len() * MIRROR_BUFFERS as usize;
/// Bytes of a buffer that a save reads first, since most tails have few new bytes. Each further read is four times as
/// long.
const FIRST_READ_BYTES: usize = 4 << 10;
/// Most bytes that a save reads at a time, unless one record is longer.
const MOST_READ_BYTES: usize = 128 << 10;

/// Memory of a backup that its primary writes into.
pub struct Mounted {
    memories: Vec<Arc<dyn Memory>>,
    /// For each memory, the bytes that may occupy pages, as far as the backup knows.
    held: Mutex<Vec<Range<usize>>>,
    open: Mutex<BTreeMap<SegmentId, OpenTail>>,
    /// The last save found nothing new, and all saved bytes are durable and given back.
    is_settled: AtomicBool,
    budget: Budget,
    reservation: Reservation,
}

/// A tail that is being mirrored.
struct OpenTail {
    log: LogKind,
    /// Index of its buffer.
    buffer: usize,
    /// Bytes that are on the volume.
    saved: usize,
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mounted({} memories, {:?})", self.memories.len(), self.reservation)
    }
}

impl Mounted {
    /// New memory, which occupies no pages yet.
    pub(super) fn allocate(fabric: &dyn Fabric, segment_bytes: usize, budget: &Budget) -> Result<Mounted, String> {
        let memories = (0..BUFFERS + SLOTS).map(|_| fabric.allocate(segment_bytes)).collect::<io::Result<Vec<_>>>();
        let memories = memories.map_err(|error| format!("no memory can be registered: {error}"))?;
        Ok(Mounted {
            held: Mutex::new(vec![0..0; memories.len()]),
            memories,
            open: Mutex::default(),
            is_settled: AtomicBool::new(false),
            budget: budget.clone(),
            reservation: budget.reserve(Purpose::Mirrors),
        })
    }

    pub(super) fn opened(&self, member: Member, reach: Option<(Epoch, Lsn)>) -> ToPrimary {
        let descriptors =
            |memories: &[Arc<dyn Memory>]| memories.iter().map(|memory| memory.descriptor().0.clone()).collect();
        let (buffers, slots) = self.memories.split_at(BUFFERS);
        ToPrimary::Opened { member, buffers: descriptors(buffers), slots: descriptors(slots), reach }
    }

    // ---- what it takes -------------------------------------------------------------------------------------------

    fn account(&self, held: &[Range<usize>]) {
        let pages: usize = held.iter().map(ExactSizeIterator::len).sum();
        self.reservation.set((pages + held.len() * PAGE_BYTES) as u64);
    }

    /// Notes that the first `end` bytes of a memory may occupy pages.
    fn hold(&self, which: usize, end: usize) {
        let mut held = self.held.lock();
        let end = end.next_multiple_of(PAGE_BYTES).min(self.memories[which].len());
        held[which].end = held[which].end.max(end);
        self.account(&held);
    }

    /// Gives back the pages below `end`, which are read from the volume from now on.
    fn give_back(&self, which: usize, end: usize) {
        let mut held = self.held.lock();
        let range = &mut held[which];
        let end = end / PAGE_BYTES * PAGE_BYTES;
        if range.start < end {
            self.memories[which].release(range.start..end);
            (range.start, range.end) = (end, range.end.max(end));
            self.account(&held);
        }
    }

    /// Gives back all pages of a memory that is about to be written anew from its start.
    fn give_back_whole(&self, which: usize) {
        let mut held = self.held.lock();
        self.memories[which].release(0..self.memories[which].len());
        held[which] = 0..0;
        self.account(&held);
    }

    /// Zeroes a mirror buffer whose first `used` bytes were written, for its next tail. It keeps its pages if none were
    /// given back and the budget allows.
    fn clear(&self, which: usize, used: usize) {
        if self.held.lock()[which].start > 0 || self.budget.is_tight(Purpose::Mirrors) {
            return self.give_back_whole(which);
        }
        let (memory, page) = (self.memories[which].as_ref(), [0; PAGE_BYTES]);
        (0..used).step_by(PAGE_BYTES).for_each(|at| memory.write(at, &page[..PAGE_BYTES.min(used - at)]));
    }

    // ---- tails ---------------------------------------------------------------------------------------------------

    /// A tail begins.
    pub(super) fn open_tail(&self, log: LogKind, index: u64, id: SegmentId) {
        self.open.lock().insert(id, OpenTail { log, buffer: buffer_of(log, index), saved: 0 });
    }

    /// Whether a durable save would do anything: reads the header of the next record of each tail. False while a save
    /// is running.
    pub(super) fn wants_save(&self) -> bool {
        let is_quiet = |tail: &OpenTail| !self.has_more(tail.buffer, tail.saved);
        self.open.try_lock().is_some_and(|open| !self.is_settled.load(Relaxed) || !open.values().all(is_quiet))
    }

    /// Whether a record may begin at offset `saved` of a buffer: the bytes there are not all zero.
    fn has_more(&self, buffer: usize, saved: usize) -> bool {
        let (buffer, mut glance) = (self.memories[buffer].as_ref(), [0; LOG_HEADER_BYTES]);
        let glance = &mut glance[..(buffer.len() - saved).min(LOG_HEADER_BYTES)];
        buffer.read_sparse(saved, glance);
        glance.iter().any(|byte| *byte != 0)
    }

    /// Persists the valid records of every open tail. It reads only new bytes: a quiet tail costs the read of one
    /// header. The caller syncs, if the records are to be durable (`durably`).
    pub(super) fn save(&self, replica: &mut Replica, durably: bool) -> Result<(), Error> {
        let mut has_saved = false;
        for (id, tail) in &mut *self.open.lock() {
            let before = tail.saved;
            self.save_tail(replica, *id, tail)?;
            has_saved |= tail.saved > before;
            if tail.saved == before || self.budget.is_tight(Purpose::Mirrors) {
                self.give_back(tail.buffer, tail.saved);
            }
        }
        self.is_settled.store(durably && !has_saved, Relaxed);
        Ok(())
    }

    fn save_tail(&self, replica: &mut Replica, id: SegmentId, tail: &mut OpenTail) -> Result<(), Error> {
        let buffer = self.memories[tail.buffer].as_ref();
        let mut look = FIRST_READ_BYTES;
        while self.has_more(tail.buffer, tail.saved) {
            let mut content = self.budget.pool().take(look.min(buffer.len() - tail.saved));
            buffer.read(tail.saved, &mut content);
            self.hold(tail.buffer, tail.saved + content.len());
            let (valid, wanted) = valid_bytes(replica.region(), id, tail.log, &content, tail.saved == 0);
            if valid > 0 {
                replica.persist_tail(tail.log, id, tail.saved as u32, &content[..valid])?;
                tail.saved += valid;
            }
            if wanted == 0 || wanted > buffer.len() - tail.saved {
                break;
            }
            look = wanted.max(MOST_READ_BYTES.min(look * 4));
        }
        Ok(())
    }

    /// Persists the rest of a complete tail of `bytes` bytes, and seals it. Then its buffer may be written again.
    pub(super) fn flush(
        &self,
        replica: &mut Replica,
        (log, index): (LogKind, u64),
        id: SegmentId,
        (bytes, last_lsn): (u32, Lsn),
    ) -> Result<(), Error> {
        let which = buffer_of(log, index);
        let buffer = self.memories[which].as_ref();
        let end = (bytes as usize).min(buffer.len());
        let saved = self.open.lock().get(&id).map_or(0, |tail| tail.saved.min(end));
        self.hold(which, end);
        let mut content = self.budget.pool().take(end - saved);
        buffer.read(saved, &mut content);
        replica.persist_tail(log, id, saved as u32, &content)?;
        replica.seal_tail(log, id, bytes, last_lsn)?;
        self.open.lock().remove(&id);
        self.clear(which, end);
        Ok(())
    }

    // ---- slots ---------------------------------------------------------------------------------------------------

    /// Notes that a segment of `bytes` bytes is in a slot.
    pub(super) fn shipped(&self, slot: u32, bytes: u32) {
        if (slot as usize) < SLOTS {
            self.hold(BUFFERS + slot as usize, bytes as usize);
        }
    }

    /// Calls `store` with the first `bytes` bytes of a slot. After that the slot may be written again.
    pub(super) fn take_slot<T>(
        &self,
        slot: u32,
        bytes: u32,
        store: impl FnOnce(&mut [u8]) -> Result<T, Undone>,
    ) -> Result<T, Undone> {
        let which = BUFFERS + slot as usize;
        let source = self.memories.get(which).ok_or_else(|| format!("no ship slot {slot}"))?;
        let bytes = (bytes as usize).min(source.len());
        let _copy = self.budget.take(Purpose::Mirrors, bytes);
        // The scratch memory is aligned, so `store` writes it to the device without another copy.
        let stored = with_scratch(bytes, |content| {
            source.read(0, content);
            store(content)
        })?;
        // The old bytes in the slot are never read again.
        if self.budget.is_short(Purpose::Mirrors) {
            self.give_back_whole(which);
        }
        Ok(stored)
    }

    // ---- the end -------------------------------------------------------------------------------------------------

    /// Revokes the memory, so that no old primary writes into it. Returns the content of each mirror buffer that holds
    /// a tail, from the start of the tail. With a transport that cannot revoke, the old primary may still write into
    /// memory that is no longer read.
    ///
    /// # Errors
    /// Errors of reading the saved bytes; [`Error::Damaged`] if the volume returns other bytes. They were perhaps not
    /// synced, but they were acknowledged, and this process kept running. Without them a node would lose acknowledged
    /// writes.
    pub fn give_up(&self, replica: &Replica) -> Result<Vec<Vec<u8>>, Error> {
        let (buffers, slots) = self.memories.split_at(BUFFERS);
        slots.iter().for_each(|slot| slot.release(0..slot.len()));
        self.memories.iter().for_each(|memory| memory.revoke());
        let open = self.open.lock();
        let mut contents = Vec::new();
        for (which, buffer) in buffers.iter().enumerate() {
            let saved = open.iter().find(|(_, tail)| tail.buffer == which && tail.saved > 0);
            let mut header = [0; LOG_HEADER_BYTES];
            buffer.read_sparse(0, &mut header);
            if saved.is_none() && header == [0; LOG_HEADER_BYTES] {
                continue;
            }
            let mut content = vec![0; buffer.len()];
            buffer.read_sparse(0, &mut content);
            let is_whole = match saved {
                Some((id, tail)) => {
                    let saved = &mut content[..tail.saved];
                    let is_open = replica.read_tail(*id, saved)?;
                    if is_open && valid_bytes(replica.region(), *id, tail.log, saved, true).0 < tail.saved {
                        return Err(replica.unreadable(*id));
                    }
                    is_open
                }
                None => true,
            };
            match is_whole {
                true => contents.push(content),
                // An earlier attempt to join has adopted the tail.
                false => {
                    tracing::info!(region = %replica.region(), which, "a mirror buffer is part of the copy already")
                }
            }
        }
        Ok(contents)
    }
}

/// Length of the valid records of log segment `id` at the start of `content`, which begins with the segment's header if
/// `has_header`. Also how many bytes after them are needed to decide whether another record follows: 0 if none does.
fn valid_bytes(region: RegionId, id: SegmentId, log: LogKind, content: &[u8], has_header: bool) -> (usize, usize) {
    let mut end = 0;
    if has_header {
        let header = LogHeader::decode(content).ok();
        if header.is_none_or(|header| header.id != id || header.region != region) {
            return (0, 0);
        }
        end = LOG_HEADER_BYTES;
    }
    let seed = RecordSeed::new(region, log, id);
    loop {
        let rest = &content[end..];
        match read_record(seed, rest) {
            Ok(Some(record)) => end += record.bytes(),
            Ok(None) if rest.len() < RECORD_HEADER_BYTES => return (end, RECORD_HEADER_BYTES),
            Err(DecodeError::Short { needed, .. }) => return (end, needed),
            Ok(None) | Err(_) => return (end, 0),
        }
    }
}

#[cfg(test)]
#[path = "mounted_tests.rs"]
mod tests;
