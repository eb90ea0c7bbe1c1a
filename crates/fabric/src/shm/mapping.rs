//! A mapped memory file.
//!
//! The file is anonymous (`memfd`), so nothing is left behind when the last process that has it has ended or crashed.
//! Its owner seals its size before any other process sees it, so no mapping can lose its pages. Processes access the
//! bytes only through atomic words ([`Mapping::words`]); see `words` for why that is sound.

use crate::{PAGE_BYTES, words::WORD};
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
    sync::atomic::AtomicU64,
};

/// Seals that a file must have before it is mapped, so that no process can shrink it under its users.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A new memory file of `bytes` zeroed bytes, with its size sealed. A page is allocated when it is first written; if
/// memory has run out by then, the process is killed.
pub(crate) fn create_file(bytes: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("leeward-fabric", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file)
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

/// A whole memory file in this process's address space, until dropped.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping is shared memory that is reached through atomics only and unmapped by its last user; no part of
// it belongs to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; `words` hands out a slice of atomics, which any number of threads may use.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `file`, which must be one of [`create_file`]'s and have exactly `bytes` bytes, a multiple of 8 above 0.
    pub(crate) fn new(file: &OwnedFd, bytes: usize) -> io::Result<Mapping> {
        let refuse = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if !rustix::fs::fcntl_get_seals(file)?.contains(SEALS) {
            return refuse("a memory file whose size is not sealed");
        }
        if bytes == 0 || !bytes.is_multiple_of(WORD) || rustix::fs::fstat(file)?.st_size as u64 != bytes as u64 {
            return refuse("a memory file of another size than its descriptor says");
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this process.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file.as_fd(), 0)? };
        let start = NonNull::new(start).expect("the kernel maps nothing at address 0 unless asked to");
        Ok(Mapping { start, bytes })
    }

    /// The whole file as words that other threads and processes use at the same time.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is page-aligned and `bytes` of the file are mapped for as long as `self` lives; the sealed
        // size keeps every page backed. Every bit pattern is a valid `AtomicU64`, and all users, this process's and
        // others', access the file by whole aligned atomic words only. A hostile process that stores otherwise can
        // change values, which are not trusted, and nothing else.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.bytes / WORD) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; slices of it borrow `self`, so none is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping is always unmapped: {unmapped:?}");
    }
}
