//! Memory in a file that peers map: the owner's side and the peer's side.
//!
//! ```text
//!  0             8                16            24      4096             4096 + len, rounded up to 8
//!  | revoked u64 | written u64    | read u64    | 0     | the memory's bytes |
//! ```
//! `written` and `read` count the bytes that peers moved, for the owner's counters. The owner reads nothing else that
//! peers put into the header.
//!
//! With libfabric, the owner's side is the same, but a network card accesses the memory. `written` and `read` stay 0,
//! and a peer checks `revoked` by a read that is posted after the completion of its operation.
//!
//! The peer's side of memory that peers may only read is in [`super::readable`]. Peers cannot write its header either,
//! so `written` and `read` stay 0.
//!
//! # Revocation
//! A peer's copy cannot be stopped, so it must not matter. The owner sets `revoked`, then takes a private copy of the
//! bytes and never reads the file again. A peer copies, then checks `revoked`, and reports a completion only if it is
//! not set. Both put a sequentially consistent fence between their two steps. So either the peer sees `revoked`, or its
//! fence came first and the owner's copy holds its bytes. Hence completed writes are in the copy, and later ones land
//! in memory that is never read.
//!
//! What peers may only read needs no copy: the owner sets `revoked`, and goes on with the file.

use super::mapping::{Mapping, create, first_taken, release};
use crate::{
    Descriptor, Memory, PAGE_BYTES,
    memory::{Counters, Framed, Handle, Permission, Registry, Transport, assert_range},
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
pub(crate) const HEADER: usize = 4096;
/// Whether the memory is revoked: the header's first word.
pub(super) const REVOKED: usize = 0;
const WRITTEN: usize = 1;
const READ: usize = 2;

/// Bytes of the file of a memory of `len` bytes; `None` for a hostile length.
fn file_bytes(len: u64) -> Option<usize> {
    usize::try_from(len.checked_next_multiple_of(WORD as u64)?).ok()?.checked_add(HEADER)
}

/// Bytes of the file of the memory that a peer's `handle` names.
pub(super) fn peer_file_bytes(handle: Handle) -> io::Result<usize> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidData, "a memory of impossible length");
    file_bytes(handle.len).ok_or_else(too_long)
}

/// The data that a transport keeps with a memory.
pub(crate) trait Attachment: Send + Sync + 'static {
    /// The transport that the memory belongs to.
    const TRANSPORT: Transport;
    /// Whether pages cannot be given back, because a device uses their addresses.
    fn pins_pages(&self) -> bool;
    /// The memory was revoked, or dropped.
    fn revoked(&self);
}

/// Peers of this host map the file.
impl Attachment for () {
    const TRANSPORT: Transport = Transport::Shm;
    fn pins_pages(&self) -> bool {
        false
    }
    fn revoked(&self) {}
}

/// The owner's side.
pub(crate) struct FileMemory<A: Attachment> {
    handle: Handle,
    file: OwnedFd,
    mapping: Arc<Mapping>,
    /// The bytes, once access was revoked, if peers may write.
    settled: OnceLock<Mutex<Sparse>>,
    registry: Arc<Registry<FileMemory<A>>>,
    /// Gets the counts of peers' bytes when the memory is dropped.
    counters: Arc<Counters>,
    attachment: A,
}

/// Adds advice to the error if the process has as many files as it may.
fn explained(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(rustix::io::Errno::MFILE.raw_os_error()) {
        return error;
    }
    let advice = "shared memory takes a file a piece: raise the limit (`ulimit -Hn`), or use the TCP fabric";
    io::Error::new(error.kind(), format!("{error}; {advice}"))
}

impl<A: Attachment> FileMemory<A> {
    /// `len` zeroed bytes, known to `registry`, with the attachment that `attach` makes of their mapping.
    pub(crate) fn register(
        registry: &Arc<Registry<FileMemory<A>>>,
        counters: &Arc<Counters>,
        (permission, len): (Permission, usize),
        attach: impl FnOnce(&Arc<Mapping>) -> io::Result<A>,
    ) -> io::Result<Arc<FileMemory<A>>> {
        let bytes = file_bytes(len as u64).ok_or(io::ErrorKind::OutOfMemory)?;
        let (file, mapping) = create(bytes, permission).map_err(explained)?;
        let mapping = Arc::new(mapping);
        let memory = Arc::new(FileMemory {
            handle: registry.handle(permission, len),
            attachment: attach(&mapping)?,
            mapping,
            file,
            settled: OnceLock::new(),
            registry: Arc::clone(registry),
            counters: Arc::clone(counters),
        });
        registry.insert(memory.handle, &memory);
        Ok(memory)
    }

    /// Its file, for a peer; `None` once it is revoked.
    pub(super) fn file(&self) -> io::Result<Option<OwnedFd>> {
        if self.is_revoked() { Ok(None) } else { self.file.try_clone().map(Some) }
    }

    /// Whether its owner has revoked it.
    pub(crate) fn is_revoked(&self) -> bool {
        match self.permission() {
            // Peers may have written the header.
            Permission::ReadWrite => self.settled.get().is_some(),
            Permission::ReadOnly => is_revoked(&self.mapping),
        }
    }

    /// What peers may do with it.
    pub(crate) fn permission(&self) -> Permission {
        self.handle.permission
    }

    pub(crate) fn attachment(&self) -> &A {
        &self.attachment
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

    /// Calls `with` for each part of a range that is on allocated pages. To read other pages would allocate them.
    fn taken(&self, range: Range<usize>, mut with: impl FnMut(Range<usize>)) {
        let (mut from, end) = (HEADER + range.start, HEADER + range.end);
        while from < end {
            let taken = match first_taken(&self.file, from..end) {
                Ok(Some(taken)) => taken,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "memory is looked at whole");
                    from..end
                }
            };
            with(taken.start - HEADER..taken.end - HEADER);
            from = taken.end;
        }
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

/// As in a peer that maps the file: a write counts only if `revoked` is not set after it.
impl<A: Attachment> Framed for FileMemory<A> {
    fn admits(&self, offset: u64, len: u64) -> bool {
        words::within(offset, len, self.len()) && !is_revoked(&self.mapping)
    }
    fn remote_write(&self, offset: u64, bytes: &[u8]) -> bool {
        if self.permission() == Permission::ReadOnly {
            return false;
        }
        words::copy_in(self.words(), offset as usize, bytes);
        fence(Ordering::SeqCst);
        !is_revoked(&self.mapping)
    }
    fn remote_read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        words::copy_out(self.words(), offset as usize, bytes);
        !is_revoked(&self.mapping)
    }
}

impl<A: Attachment> Memory for FileMemory<A> {
    fn descriptor(&self) -> Descriptor {
        self.handle.descriptor(A::TRANSPORT)
    }
    fn len(&self) -> usize {
        self.handle.len as usize
    }
    fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert_range(self.len(), offset, bytes.len());
        match self.settled.get() {
            Some(settled) => settled.lock().copy_out(offset, bytes),
            None => words::copy_out(self.words(), offset, bytes),
        }
    }
    fn read_sparse(&self, offset: usize, bytes: &mut [u8]) {
        assert_range(self.len(), offset, bytes.len());
        if let Some(settled) = self.settled.get() {
            return settled.lock().copy_out(offset, bytes);
        }
        bytes.fill(0);
        self.taken(offset..offset + bytes.len(), |part| {
            words::copy_out(self.words(), part.start, &mut bytes[part.start - offset..part.end - offset]);
        });
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
        if first >= last {
            return;
        }
        if self.attachment.pins_pages() {
            let words = &self.mapping.words()[first / WORD..last / WORD];
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        } else if let Err(error) = release(&self.file, first..last) {
            tracing::warn!(%error, "memory is not given back");
        }
    }
    fn revoke(&self) {
        if self.permission() == Permission::ReadOnly {
            if self.mapping.words()[REVOKED].swap(1, Ordering::SeqCst) == 0 {
                self.attachment.revoked();
            }
            return;
        }
        self.settled.get_or_init(|| {
            self.mapping.words()[REVOKED].store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let copy = self.copy();
            self.attachment.revoked();
            Mutex::new(copy)
        });
    }
}

impl<A: Attachment> Drop for FileMemory<A> {
    fn drop(&mut self) {
        self.registry.remove(self.handle.id);
        // Tells peers that have the file mapped that it is revoked.
        self.mapping.words()[REVOKED].store(1, Ordering::Release);
        self.attachment.revoked();
        let (written, read) = self.moved();
        self.counters.received.fetch_add(written, Ordering::Relaxed);
        self.counters.sent.fetch_add(read, Ordering::Relaxed);
    }
}

/// Whether the owner of a memory that is mapped here has revoked or dropped it.
pub(crate) fn is_revoked(mapping: &Mapping) -> bool {
    mapping.words()[REVOKED].load(Ordering::Relaxed) != 0
}

/// A peer's side of memory that it may write.
pub(super) struct PeerMemory {
    mapping: Mapping,
    len: usize,
}

impl PeerMemory {
    /// Maps the file of the memory that `handle` names.
    pub(super) fn map(file: &OwnedFd, handle: Handle) -> io::Result<PeerMemory> {
        Ok(PeerMemory { mapping: Mapping::new(file, peer_file_bytes(handle)?)?, len: handle.len as usize })
    }

    /// Whether its owner has revoked or dropped it.
    pub(super) fn is_revoked(&self) -> bool {
        is_revoked(&self.mapping)
    }

    /// Writes. Returns false if it is refused; then some of the bytes may have landed where they are never read.
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
