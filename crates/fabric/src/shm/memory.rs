//! Memory in a file that peers map: its owner's side, and a peer's.
//!
//! ```text
//!  0             8                16            24      4096             4096 + len, rounded up to 8
//!  | revoked u64 | written u64    | read u64    | 0     | the memory's bytes |
//! ```
//! `written` and `read` count the bytes that peers moved, for the owner's counters; nothing else is read from a peer.
//!
//! # Revocation
//! A peer's copy cannot be stopped, so it is made not to matter. The owner raises `revoked`, then takes a private
//! copy of the bytes and never looks at the file again. A peer copies, then looks at `revoked`, and reports a
//! completion only if it is not raised. Both put a sequentially consistent fence between their two steps; so either
//! the peer sees `revoked`, or its fence came first and the owner's copy holds its bytes. Hence: what was completed is
//! in the copy, and what comes later lands in memory that nobody looks at.

use super::mapping::{Mapping, create_file, next_taken, release};
use crate::{
    Descriptor, Memory, PAGE_BYTES,
    memory::{Counters, Handle, Registry, Transport, assert_range},
    sparse::Sparse,
    words::{self, WORD},
};
use parking_lot::Mutex;
use std::{
    io,
    ops::Range,
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering, fence},
    },
};

/// Bytes before the memory's own: a page.
const HEADER: usize = 4096;
const REVOKED: usize = 0;
const WRITTEN: usize = 1;
const READ: usize = 2;

/// Bytes of the file of a memory of `len` bytes; `None` for a hostile length.
fn file_bytes(len: u64) -> Option<usize> {
    usize::try_from(len.checked_next_multiple_of(WORD as u64)?).ok()?.checked_add(HEADER)
}

/// The owner's side.
pub(super) struct ShmMemory {
    handle: Handle,
    file: OwnedFd,
    mapping: Mapping,
    /// The bytes, once access was revoked.
    settled: OnceLock<Mutex<Sparse>>,
    registry: Arc<Registry<ShmMemory>>,
    /// Takes over what peers moved when the memory is dropped.
    counters: Arc<Counters>,
}

/// Says what to do where the process has as many files as it may.
fn explained(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(rustix::io::Errno::MFILE.raw_os_error()) {
        return error;
    }
    let advice = "shared memory takes a file a piece: raise the limit (`ulimit -Hn`), or use the TCP fabric";
    io::Error::new(error.kind(), format!("{error}; {advice}"))
}

impl ShmMemory {
    /// `len` zeroed bytes, known to `registry`.
    pub(super) fn register(
        registry: &Arc<Registry<ShmMemory>>,
        counters: &Arc<Counters>,
        len: usize,
    ) -> io::Result<Arc<ShmMemory>> {
        let bytes = file_bytes(len as u64).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = create_file(bytes).map_err(explained)?;
        let memory = Arc::new(ShmMemory {
            handle: registry.handle(len),
            mapping: Mapping::new(&file, bytes)?,
            file,
            settled: OnceLock::new(),
            registry: Arc::clone(registry),
            counters: Arc::clone(counters),
        });
        registry.insert(memory.handle, &memory);
        Ok(memory)
    }

    /// Its file, for a peer; none once it is revoked.
    pub(super) fn file(&self) -> io::Result<Option<OwnedFd>> {
        if self.settled.get().is_some() { Ok(None) } else { self.file.try_clone().map(Some) }
    }

    /// Bytes that peers wrote and read.
    pub(super) fn moved(&self) -> (u64, u64) {
        let header = self.mapping.words();
        (header[WRITTEN].load(Ordering::Relaxed), header[READ].load(Ordering::Relaxed))
    }

    /// The bytes that peers write.
    fn words(&self) -> &[AtomicU64] {
        &self.mapping.words()[HEADER / WORD..]
    }

    /// Calls `with` with each part of a range of the memory that lies on pages which are taken: to look at others would take
    /// them.
    fn taken(&self, range: Range<usize>, mut with: impl FnMut(Range<usize>)) {
        let (mut from, end) = (HEADER + range.start, HEADER + range.end);
        while from < end {
            let taken = match next_taken(&self.file, from) {
                Ok(Some(taken)) => taken,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "memory is looked at whole");
                    from..end
                }
            };
            if taken.start < end {
                with(taken.start - HEADER..taken.end.min(end) - HEADER);
            }
            from = taken.end;
        }
    }

    /// Copies what peers have written.
    fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        bytes.fill(0);
        self.taken(offset..offset + bytes.len(), |part| {
            words::copy_out(self.words(), part.start, &mut bytes[part.start - offset..part.end - offset]);
        });
    }

    /// A copy of all of it.
    fn copy(&self) -> Sparse {
        let mut copy = Sparse::new(self.len());
        self.taken(0..self.len(), |part| {
            let mut bytes = vec![0; part.len()];
            words::copy_out(self.words(), part.start, &mut bytes);
            copy.take(part.start, bytes.len());
            copy.copy_in(part.start, &bytes);
        });
        copy
    }
}

impl Memory for ShmMemory {
    fn descriptor(&self) -> Descriptor {
        self.handle.descriptor(Transport::Shm)
    }
    fn len(&self) -> usize {
        self.handle.len as usize
    }
    fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert_range(self.len(), offset, bytes.len());
        match self.settled.get() {
            Some(settled) => settled.lock().copy_out(offset, bytes),
            None => self.copy_out(offset, bytes),
        }
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_range(self.len(), offset, bytes.len());
        match self.settled.get() {
            Some(settled) => {
                let mut settled = settled.lock();
                settled.take(offset, bytes.len());
                settled.copy_in(offset, bytes);
            }
            None => words::copy_in(self.words(), offset, bytes),
        }
    }
    fn load_u64(&self, offset: usize) -> u64 {
        assert_range(self.len(), offset, WORD);
        match self.settled.get() {
            Some(settled) => settled.lock().load(offset),
            None => words::load(self.words(), offset),
        }
    }
    fn store_u64(&self, offset: usize, value: u64) {
        assert_range(self.len(), offset, WORD);
        match self.settled.get() {
            Some(_) => self.write(offset, &value.to_le_bytes()),
            None => words::store(self.words(), offset, value),
        }
    }
    fn release(&self, range: Range<usize>) {
        assert_range(self.len(), range.start, range.len());
        let first = HEADER + range.start.next_multiple_of(PAGE_BYTES);
        let last = match range.end == self.len() {
            true => file_bytes(self.handle.len).expect("it was made with so many"),
            false => HEADER + range.end / PAGE_BYTES * PAGE_BYTES,
        };
        if first < last
            && let Err(error) = release(&self.file, first..last)
        {
            tracing::warn!(%error, "memory is not given back");
        }
    }
    fn revoke(&self) {
        self.settled.get_or_init(|| {
            self.mapping.words()[REVOKED].store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            Mutex::new(self.copy())
        });
    }
}

impl Drop for ShmMemory {
    fn drop(&mut self) {
        self.registry.remove(self.handle.id);
        // Peers that have the file mapped learn that it is of no use any more.
        self.mapping.words()[REVOKED].store(1, Ordering::Release);
        let (written, read) = self.moved();
        self.counters.received.fetch_add(written, Ordering::Relaxed);
        self.counters.sent.fetch_add(read, Ordering::Relaxed);
    }
}

/// A peer's side.
pub(super) struct PeerMemory {
    mapping: Mapping,
    len: usize,
}

impl PeerMemory {
    /// Maps the file of the memory that `handle` names.
    pub(super) fn map(file: &OwnedFd, handle: Handle) -> io::Result<PeerMemory> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, "a memory of impossible length");
        let bytes = file_bytes(handle.len).ok_or_else(too_long)?;
        Ok(PeerMemory { mapping: Mapping::new(file, bytes)?, len: handle.len as usize })
    }

    /// Whether its owner has revoked or dropped it.
    pub(super) fn is_revoked(&self) -> bool {
        self.mapping.words()[REVOKED].load(Ordering::Relaxed) != 0
    }

    /// Writes; false if it is refused, and then some of the bytes may have landed where nobody looks.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if !words::within(offset, bytes.len() as u64, self.len) || self.is_revoked() {
            return false;
        }
        let (header, data) = self.mapping.words().split_at(HEADER / WORD);
        words::copy_in(data, offset as usize, bytes);
        header[WRITTEN].fetch_add(bytes.len() as u64, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.is_revoked()
    }

    /// Reads; `None` if it is refused.
    pub(super) fn read(&self, offset: u64, len: u32) -> Option<Vec<u8>> {
        if !words::within(offset, u64::from(len), self.len) || self.is_revoked() {
            return None;
        }
        let (header, data) = self.mapping.words().split_at(HEADER / WORD);
        let mut bytes = vec![0; len as usize];
        words::copy_out(data, offset as usize, &mut bytes);
        header[READ].fetch_add(u64::from(len), Ordering::Relaxed);
        (!self.is_revoked()).then_some(bytes)
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
