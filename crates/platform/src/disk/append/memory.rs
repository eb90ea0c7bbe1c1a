//! Memory that one thread appends to while others read the filled part.
//!
//! ```text
//!  0             filled                 capacity
//!  | [u8] of any |  [u8] of the one     |
//!  | reader      |  [`Spare`]           |
//! ```
//! Invariants that the unsafe code relies on:
//! - There is one [`Spare`] of each [`AppendBuffer`]; it alone hands out bytes beyond `filled`, and only while it is
//!   borrowed mutably.
//! - `filled` never falls. What is below it is never written again.
//! - A mapped buffer is a range of a file that belongs to the engine alone. The directory's lock keeps other processes
//!   out. While the range is mapped, nothing in this process writes to it, except zeroes beyond the bytes that were
//!   handed out. (The file's `sync` may hold a buffer during [`AppendBuffer::detach`] after all other owners are gone;
//!   it touches none of its bytes.) The kernel reads the pages when it writes them back. If a page is lost,
//!   [`bus`](super::bus) puts zeroes in its place.
//! - Every byte is initialised: the heap's by `alloc_zeroed`, a file's by the file.

use super::bus::Watched;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of buffers on the heap, in bytes.
const ALIGN: usize = 64;

/// The readers' side: the bytes that were filled so far.
#[derive(Debug)]
pub struct AppendBuffer {
    start: NonNull<u8>,
    capacity: usize,
    filled: AtomicUsize,
    /// End of the pages that [`AppendBuffer::detach`] has released from a mapped buffer: a multiple of the page size.
    detached: AtomicUsize,
    /// Set for a mapped buffer.
    watched: Option<Watched>,
}

// SAFETY: the memory belongs to the buffer and is freed by its last owner; what two threads may reach at the same time
// is not written any more.
unsafe impl Send for AppendBuffer {}
// SAFETY: as above. `filled` is atomic, and stored with `Release` after the bytes below it.
unsafe impl Sync for AppendBuffer {}

impl AppendBuffer {
    /// Bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of bytes filled so far.
    #[inline]
    pub fn filled(&self) -> usize {
        self.filled.load(Ordering::Acquire)
    }

    /// The bytes filled so far.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: bytes below `filled` were written before the `Release` store that this `Acquire` load has seen, and
        // are never written again; the memory lives as long as `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.filled()) }
    }

    /// Releases the filled pages of a mapped buffer. A later read finds them in the page cache.
    pub(in crate::disk) fn detach(&self) {
        let page_bytes = rustix::param::page_size();
        let (from, to) = (self.detached.load(Ordering::Relaxed), self.filled() / page_bytes * page_bytes);
        if self.watched.is_none() || from >= to {
            return;
        }
        self.detached.store(to, Ordering::Relaxed);
        // SAFETY: the range lies within the mapping. Of a shared mapping of a file, the advice drops the entries of the
        // page table and no byte of the file's pages: the next access finds what was stored before.
        let advised = unsafe {
            let start = self.start.as_ptr().add(from).cast();
            rustix::mm::madvise(start, to - from, Advice::LinuxDontNeed)
        };
        debug_assert!(advised.is_ok(), "pages of a mapping: {advised:?}");
    }

    /// For a mapped buffer: makes the page-aligned range `at..at + bytes` present and writable. A failure is an error
    /// here, instead of a signal at the first access.
    pub(in crate::disk) fn populate(&self, at: usize, bytes: usize) -> io::Result<()> {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.capacity), "{bytes} bytes at {at}");
        // SAFETY: the range lies within the buffer. The advice changes no byte; that the pages become present is all.
        unsafe {
            let start = self.start.as_ptr().add(at).cast();
            rustix::mm::madvise(start, bytes, Advice::LinuxPopulateWrite)?;
        }
        Ok(())
    }

    /// Whether the buffer has all that this thread stored so far, and no page of a mapped buffer was lost.
    #[inline]
    pub(in crate::disk) fn is_sound(&self) -> bool {
        self.watched.as_ref().is_none_or(Watched::is_sound)
    }

    /// Bytes that [`AppendBuffer::detach`] has released so far.
    pub(in crate::disk) fn detached(&self) -> usize {
        self.detached.load(Ordering::Relaxed)
    }
}

impl Drop for AppendBuffer {
    fn drop(&mut self) {
        if self.watched.take().is_some() {
            // SAFETY: exactly the range that `Spare::map` mapped; slices of it borrow `self`, so none is left.
            let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.capacity) };
            debug_assert!(unmapped.is_ok(), "a whole mapping is always unmapped: {unmapped:?}");
        } else {
            // SAFETY: it came from `alloc_zeroed` with this layout, and nothing that borrows it is left.
            unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) };
        }
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGN).expect("a buffer is far below the address space")
}

/// The writer's side: the bytes beyond the filled ones. Each buffer has one.
#[derive(Debug)]
pub(super) struct Spare {
    buffer: Arc<AppendBuffer>,
}

impl Spare {
    /// On the heap.
    pub(super) fn heap(capacity: usize) -> Spare {
        assert!(capacity > 0, "an empty buffer holds nothing");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(capacity)) });
        let Some(start) = start else { handle_alloc_error(layout(capacity)) };
        Spare::new(start, capacity, None)
    }

    /// A range of `file`, shared with its page cache. `offset` and `capacity` are multiples of the page size, and the
    /// range lies within the file, which must never be cut.
    pub(super) fn map(file: &File, offset: u64, capacity: usize) -> io::Result<Spare> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this process.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), capacity, protection, MapFlags::SHARED, file, offset)? };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0 unless asked to");
        Ok(Spare::new(start, capacity, Some(Watched::new(start, capacity))))
    }

    fn new(start: NonNull<u8>, capacity: usize, watched: Option<Watched>) -> Spare {
        Spare {
            buffer: Arc::new(AppendBuffer {
                start,
                capacity,
                filled: AtomicUsize::new(0),
                detached: AtomicUsize::new(0),
                watched,
            }),
        }
    }

    pub(super) fn buffer(&self) -> &Arc<AppendBuffer> {
        &self.buffer
    }

    /// `bytes` bytes from `at` on, which is not below what is filled.
    #[inline]
    pub(super) fn bytes_mut(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        let end = at.checked_add(bytes);
        let is_spare = at >= self.buffer.filled() && end.is_some_and(|end| end <= self.buffer.capacity);
        assert!(is_spare, "{bytes} bytes at {at} of a buffer");
        // SAFETY: in bounds, and beyond `filled`, which only a mutable borrow of `self` raises: nothing else has a
        // reference to these bytes for as long as this one lives.
        unsafe { slice::from_raw_parts_mut(self.buffer.start.as_ptr().add(at), bytes) }
    }

    /// Makes everything below `end` visible to readers.
    #[inline]
    pub(super) fn publish(&mut self, end: usize) {
        assert!((self.buffer.filled()..=self.buffer.capacity).contains(&end), "a buffer filled up to {end}");
        self.buffer.filled.store(end, Ordering::Release);
    }
}
