//! Memory that only grows. A number of 32 bits, half of a pointer, names an allocation in it.
//!
//! ```text
//!  number  0        4 KiB      8 KiB           32 KiB       40 KiB            96 KiB
//!          | chunk 0 | chunk 1 | ... chunk 7   | chunk 8    | ... chunk 15    | ...
//!          |  eight of 4 KiB                   |  eight of 8 KiB              |  eight of 16 KiB, and so on
//! ```
//! A chunk is a block of a pool, taken when the first allocation falls into it. So at most an eighth of the memory is
//! unused, and a few shifts and one load find the chunk of a number.
//!
//! Invariants that the unsafe code relies on:
//! - Only [`Room`] hands out memory, and no byte twice. Each arena has one, which is borrowed mutably for that.
//! - A chunk is in the table before any caller gets a number in it. [`Room`] keeps its block until the whole arena is
//!   freed.

use leeward_platform::{Block, Pool};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// Number of the first byte of an allocation.
pub(super) type At = u32;
/// Number of no allocation.
pub(super) const NOWHERE: At = 0;

const FIRST_CHUNK_SHIFT: u32 = 12;
/// Base-two logarithm of the number of chunks of one size.
const SIZE_SHIFT: u32 = 3;
const SIZES: usize = 18;
const CHUNKS: usize = SIZES << SIZE_SHIFT;
/// Added to a number, so that the highest bit gives the size of its chunk.
const BEFORE: usize = 1 << (FIRST_CHUNK_SHIFT + SIZE_SHIFT);
/// Alignment of chunks, and so of any allocation that asks for it.
pub(super) const ALIGN: usize = 64;

pub(super) struct Arena {
    chunks: [AtomicPtr<u8>; CHUNKS],
    used: AtomicU64,
    memory: AtomicU64,
}

/// The free memory of an arena. It belongs to the writer.
pub(super) struct Room {
    /// End of the memory that was handed out.
    end: usize,
    pool: Arc<Pool>,
    blocks: Vec<Block>,
    /// Allocations outside the chunks.
    apart: Vec<(NonNull<u8>, Layout)>,
}

// SAFETY: the pointers lead to memory that it owns; its owner may free it on any thread.
unsafe impl Send for Room {}

/// For a number: index of its chunk, offset in the chunk, and bytes of the chunk.
#[inline]
fn locate(number: usize) -> (usize, usize, usize) {
    let number = number + BEFORE;
    let size = number.ilog2() - (FIRST_CHUNK_SHIFT + SIZE_SHIFT);
    let shift = FIRST_CHUNK_SHIFT + size;
    let index = ((size as usize) << SIZE_SHIFT) + (number >> shift) - (1 << SIZE_SHIFT);
    (index, number & ((1 << shift) - 1), 1 << shift)
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGN).expect("it is far below the address space")
}

/// Uninitialised memory; `bytes` is not 0.
fn allocate(bytes: usize) -> NonNull<u8> {
    // SAFETY: the layout is not empty.
    let start = NonNull::new(unsafe { alloc(layout(bytes)) });
    start.unwrap_or_else(|| handle_alloc_error(layout(bytes)))
}

impl Arena {
    /// An arena whose chunks are blocks of `pool`.
    pub(super) fn new(pool: Arc<Pool>) -> (Arena, Room) {
        let chunks = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
        let arena = Arena { chunks, used: AtomicU64::new(0), memory: AtomicU64::new(0) };
        (arena, Room { end: ALIGN, pool, blocks: Vec::new(), apart: Vec::new() })
    }

    /// Bytes that were handed out.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Bytes of memory that it has taken.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory.load(Relaxed)
    }

    /// The memory at `at`, which this arena has handed out.
    #[inline]
    pub(super) fn at(&self, at: At) -> NonNull<u8> {
        let (index, offset, _) = locate(at as usize);
        // SAFETY: the chunk was put into the table before any caller had the number, and has the byte.
        unsafe { NonNull::new_unchecked(self.chunks[index].load(Relaxed).add(offset)) }
    }

    /// Prefetches the memory at `at` into the processor's cache.
    #[inline]
    pub(super) fn prefetch(&self, at: At) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let (index, offset, _) = locate(at as usize);
            // A thread that did not get the number from the writer may not see the chunk yet.
            let address = self.chunks[index].load(Relaxed).wrapping_add(offset);
            // SAFETY: a prefetch changes nothing and accepts any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }

    /// `bytes` of uninitialised memory, some KiB at most, at a multiple of `align`, a power of two up to [`ALIGN`].
    pub(super) fn take(&self, room: &mut Room, bytes: usize, align: usize) -> (At, NonNull<u8>) {
        let mut start = room.end.next_multiple_of(align);
        let (mut index, mut offset, mut chunk_bytes) = locate(start);
        while offset + bytes > chunk_bytes {
            start += chunk_bytes - offset;
            (index, offset, chunk_bytes) = locate(start);
        }
        let at = At::try_from(start).expect("an L0 freezes before it has 4 GiB");
        room.end = start + bytes;
        let mut chunk = self.chunks[index].load(Relaxed);
        if chunk.is_null() {
            let block = room.pool.take(chunk_bytes);
            chunk = block.start().as_ptr();
            room.blocks.push(block);
            self.chunks[index].store(chunk, Relaxed);
            self.memory.store(self.memory.load(Relaxed) + chunk_bytes as u64, Relaxed);
        }
        self.used.store(self.used.load(Relaxed) + bytes as u64, Relaxed);
        // SAFETY: the chunk has at least `bytes` from there on.
        (at, unsafe { NonNull::new_unchecked(chunk.add(offset)) })
    }

    /// `bytes` of uninitialised memory outside the chunks, without a number.
    pub(super) fn take_apart(&self, room: &mut Room, bytes: usize) -> NonNull<u8> {
        let start = allocate(bytes);
        room.apart.push((start, layout(bytes)));
        self.used.store(self.used.load(Relaxed) + bytes as u64, Relaxed);
        self.memory.store(self.memory.load(Relaxed) + bytes as u64, Relaxed);
        start
    }

    /// Frees everything.
    ///
    /// # Safety
    /// `room` is this arena's, and nothing in the arena is used any more.
    pub(super) unsafe fn free(&mut self, room: &mut Room) {
        self.chunks.iter_mut().for_each(|chunk| *chunk.get_mut() = ptr::null_mut());
        room.blocks.clear();
        for (start, layout) in room.apart.drain(..) {
            // SAFETY: it came from `allocate` with this layout; the caller says that it is not used.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
