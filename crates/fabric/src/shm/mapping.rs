//! A mapped memory file.
//!
//! The file is anonymous (`memfd`), so nothing is left behind when the last process that has it has ended or crashed.
//! Its owner seals its size before any other process sees it, so no mapping can lose its pages. Processes access the
//! bytes only through atomic words ([`Mapping::words`]); see `words` for why that is sound.
//!
//! If peers may only read, the owner also seals the file against mappings that can write, once it has its own. From
//! then on the kernel refuses them, and `write` and holes too, to every process that gets the file. Peers map it as a
//! [`ReadMapping`], which has no way to store.

use crate::{
    PAGE_BYTES,
    memory::Permission,
    words::{self, WORD},
};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom},
    io::Errno,
    mm::{MapFlags, ProtFlags},
};
use std::{
    ffi::c_void,
    io,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU64, Ordering},
};

/// Seals that a file must have before it is mapped, so that no process can shrink it under its users.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Seals of a file that no process but its owner can write (Linux 5.1 and later).
const READ_SEALS: SealFlags = SEALS.union(SealFlags::FUTURE_WRITE);

/// A new memory file of `bytes` zeroed bytes (a multiple of 8 above 0), and its owner's mapping, which can write. The
/// file is sealed. A page is allocated when it is first written; if memory has run out by then, the process is killed.
pub(crate) fn create(bytes: usize, permission: Permission) -> io::Result<(OwnedFd, Mapping)> {
    let file = rustix::fs::memfd_create("leeward-fabric", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    let mapping = Mapping(Span::map(&file, bytes, ProtFlags::READ | ProtFlags::WRITE)?);
    let seals = match permission {
        Permission::ReadWrite => SEALS,
        Permission::ReadOnly => READ_SEALS,
    };
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok((file, mapping))
}

/// Gives back the pages of `range`, which must be whole pages. They read as zeroes for every process that has the file
/// mapped.
pub(super) fn release(file: &OwnedFd, range: Range<usize>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, range.start as u64, range.len() as u64)?)
}

/// The first part of `range` with allocated pages; `None` if there is none.
pub(super) fn first_taken(file: &OwnedFd, range: Range<usize>) -> io::Result<Option<Range<usize>>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(range.start as u64)) {
        Ok(start) if (start as usize) < range.end => start as usize,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let page_end = (start / PAGE_BYTES + 1) * PAGE_BYTES;
    // The call looks at each page up to the next hole, however far that is, so it is made only if needed.
    let end =
        if page_end < range.end { rustix::fs::seek(file, SeekFrom::Hole(page_end as u64))? as usize } else { page_end };
    Ok(Some(start..end.min(range.end)))
}

/// A whole memory file in this process's address space, which may write it, until dropped.
pub(crate) struct Mapping(Span);

impl Mapping {
    /// Maps a peer's `file`, which must be one of [`create`]'s and have exactly `bytes` bytes, a multiple of 8 above 0.
    pub(crate) fn new(file: &OwnedFd, bytes: usize) -> io::Result<Mapping> {
        check(file, bytes, SEALS)?;
        Ok(Mapping(Span::map(file, bytes, ProtFlags::READ | ProtFlags::WRITE)?))
    }

    /// The whole file as words that other threads and processes use at the same time.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

/// A whole memory file in this process's address space, which may only read it, until dropped.
pub(super) struct ReadMapping(Span);

impl ReadMapping {
    /// Maps a peer's `file` as [`Mapping::new`] does. Its owner must have sealed it against writers.
    pub(super) fn new(file: &OwnedFd, bytes: usize) -> io::Result<ReadMapping> {
        check(file, bytes, READ_SEALS)?;
        Ok(ReadMapping(Span::map(file, bytes, ProtFlags::READ)?))
    }

    /// Copies `bytes.len()` bytes from `offset`, as [`words::copy_out`] does.
    pub(super) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        words::copy_out(self.0.words(), offset, bytes);
    }

    /// The word with this number, with relaxed ordering.
    pub(super) fn word(&self, number: usize) -> u64 {
        self.0.words()[number].load(Ordering::Relaxed)
    }
}

/// Checks the seals and the size of a file from a peer.
fn check(file: &OwnedFd, bytes: usize, seals: SealFlags) -> io::Result<()> {
    let refuse = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    if !rustix::fs::fcntl_get_seals(file)?.contains(seals) {
        return refuse("a memory file that is not sealed as its descriptor says");
    }
    if bytes == 0 || !bytes.is_multiple_of(WORD) || rustix::fs::fstat(file)?.st_size as u64 != bytes as u64 {
        return refuse("a memory file of another size than its descriptor says");
    }
    Ok(())
}

/// Mapped pages of a file whose size is sealed, or about to be.
struct Span {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping is shared memory that is reached through atomics only and unmapped by its last user; no part of
// it belongs to a thread.
unsafe impl Send for Span {}
// SAFETY: as above; `words` hands out a slice of atomics, which any number of threads may use.
unsafe impl Sync for Span {}

impl Span {
    /// Maps the first `bytes` bytes of `file`, a multiple of 8 above 0.
    fn map(file: &OwnedFd, bytes: usize, protection: ProtFlags) -> io::Result<Span> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this process.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file.as_fd(), 0)? };
        let start = NonNull::new(start).expect("the kernel maps nothing at address 0 unless asked to");
        Ok(Span { start, bytes })
    }

    /// The words. Those of a [`ReadMapping`] are only loaded, with relaxed ordering.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is page-aligned and `bytes` of the file are mapped for as long as `self` lives; the sealed
        // size keeps every page backed. Every bit pattern is a valid `AtomicU64`, and all users, this process's and
        // others', access the file by whole aligned atomic words only. A hostile process that stores otherwise can
        // change values, which are not trusted, and nothing else. Words that are mapped for reading only stay within
        // `ReadMapping`, which makes relaxed loads of them: those are defined on read-only memory too
        // (`std::sync::atomic`).
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.bytes / WORD) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` mapped; slices of it borrow `self`, so none is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping is always unmapped: {unmapped:?}");
    }
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
