//! Maps, populates, strips and unmaps pages of the system.
//!
//! Miri knows no such calls: there the pages are on the heap.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, super::PAGE_BYTES).expect("it is far below the address space")
}

/// Maps zeroes, which take memory once they are written to. `bytes` is a multiple of the page size and not 0.
#[cfg(not(miri))]
pub(super) fn map(bytes: usize) -> NonNull<u8> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this process.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
    start.ok().and_then(|start| NonNull::new(start.cast())).unwrap_or_else(|| handle_alloc_error(layout(bytes)))
}

/// Makes the pages present. Linux before 5.14 cannot: there each page becomes present at the first write to it.
///
/// # Safety
/// They lie in a mapping of [`map`], and begin at a page.
#[cfg(not(miri))]
pub(super) unsafe fn populate(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller says so; the advice changes no byte.
    let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxPopulateWrite) };
}

/// Gives the pages back; the bytes are zeroes from now on.
///
/// # Safety
/// They lie in a mapping of [`map`], begin at a page, and no other thread uses them meanwhile.
#[cfg(not(miri))]
pub(super) unsafe fn release_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller says so.
    let advised = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxDontNeed) };
    debug_assert!(advised.is_ok(), "pages of a mapping: {advised:?}");
}

/// # Safety
/// It is a whole mapping of [`map`], and is not used any more.
#[cfg(not(miri))]
pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller says so.
    let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
    debug_assert!(unmapped.is_ok(), "a whole mapping is always unmapped: {unmapped:?}");
}

#[cfg(miri)]
pub(super) fn map(bytes: usize) -> NonNull<u8> {
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)) })
        .unwrap_or_else(|| handle_alloc_error(layout(bytes)))
}

#[cfg(miri)]
pub(super) unsafe fn populate(_: NonNull<u8>, _: usize) {}

#[cfg(miri)]
pub(super) unsafe fn release_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller says that no other thread uses them.
    unsafe { start.write_bytes(0, bytes) };
}

#[cfg(miri)]
pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: it came from `map` with this layout.
    unsafe { std::alloc::dealloc(start.as_ptr(), layout(bytes)) };
}
