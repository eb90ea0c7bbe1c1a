//! Memory in blocks that returns to the system when it is freed: a process takes no more memory than its blocks.
//!
//! An allocator keeps freed memory for the thread and the size that it had. The memory of a cache moves between threads
//! and purposes all the time, so a process with such an allocator comes to hold a multiple of what is in use.
//!
//! ```text
//!  sizes      4 KiB, 8, 12, 16 ... 64, 80, 96, 112, 128 ... 2 MiB    a larger block is a mapping of its own
//!  slabs      | block | block | ... 2 to 64 of them |  | block | ...   mapped once, unmapped with the pool
//!  a block    in use, idle (its pages are there), or bare (the system has them)
//! ```
//! A few idle blocks are kept for the next callers, which then need no system call. Any thread may take a block, and
//! any other may give it back.
//!
//! Invariants that the unsafe code relies on:
//! - A block in use is on no list of its size class; only its owner has its bytes. A [`Block`] keeps its pool alive,
//!   and the pool its slabs.
//! - All bytes are initialised: a mapping begins with zeroes, and is zeroes again where its pages were given back.

mod pages;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Page size of the system, in bytes. The memory of a block is a multiple of it.
pub const PAGE_BYTES: usize = 4096;
/// Pages of the blocks of each size class: a block has at most a quarter more than it needs.
const SIZE_CLASS_PAGES: [usize; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
    384, 448, 512,
];
/// Bytes of a slab, at most; but a slab has at least two blocks.
const SLAB_BYTES: usize = 4 << 20;

/// A pool of blocks of memory. Any thread may take a block and drop it.
pub struct Pool {
    size_classes: [SizeClass; SIZE_CLASS_PAGES.len()],
    /// Bytes of idle blocks that the pool keeps at most.
    most_idle: usize,
    idle: AtomicUsize,
}

/// Blocks of one size.
struct SizeClass {
    block_bytes: usize,
    /// Blocks of a slab.
    slab_blocks: usize,
    /// Bytes of its idle blocks.
    idle: AtomicUsize,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    idle: Vec<NonNull<u8>>,
    bare: Vec<NonNull<u8>>,
    slabs: Vec<NonNull<u8>>,
}

// SAFETY: the pointers lead to mappings that the pool owns; any thread may use them.
unsafe impl Send for Lists {}

/// Bytes of a pool, or of a mapping of their own, with one owner.
pub struct Block {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes of its memory.
    memory_bytes: usize,
    /// The pool and size class that it returns to; none for a mapping of its own.
    home: Option<(Arc<Pool>, usize)>,
}

// SAFETY: its bytes are its own, and hold nothing that a thread could not give to another.
unsafe impl Send for Block {}
// SAFETY: as above; shared, it is only read.
unsafe impl Sync for Block {}

impl Pool {
    /// A pool that keeps up to `most_idle` bytes of idle blocks.
    pub fn new(most_idle: usize) -> Arc<Pool> {
        let size_class = |pages: usize| {
            let block_bytes = pages * PAGE_BYTES;
            let slab_blocks = (SLAB_BYTES / block_bytes).clamp(2, 64);
            SizeClass { block_bytes, slab_blocks, idle: AtomicUsize::new(0), lists: Mutex::default() }
        };
        Arc::new(Pool { size_classes: SIZE_CLASS_PAGES.map(size_class), most_idle, idle: AtomicUsize::new(0) })
    }

    /// A block of `bytes` bytes with arbitrary contents, for a caller that is about to write to it.
    pub fn take(self: &Arc<Pool>, bytes: usize) -> Block {
        match size_class_of(bytes) {
            Some(at) => {
                let (start, home) = (self.take_of(&self.size_classes[at]), Some((Arc::clone(self), at)));
                Block { start, bytes, memory_bytes: self.size_classes[at].block_bytes, home }
            }
            None => {
                let mut block = Block::bare(bytes);
                block.make_ready(0, bytes);
                block
            }
        }
    }

    /// Bytes of memory that a block of `bytes` bytes takes.
    pub fn memory_bytes(bytes: usize) -> usize {
        size_class_of(bytes).map_or(bytes.next_multiple_of(PAGE_BYTES), |at| SIZE_CLASS_PAGES[at] * PAGE_BYTES)
    }

    /// A copy of `bytes` in a block.
    pub fn copy(self: &Arc<Pool>, bytes: &[u8]) -> Bytes {
        let mut block = self.take(bytes.len());
        block.copy_from_slice(bytes);
        block.into()
    }

    /// Bytes of idle blocks.
    pub fn idle_bytes(&self) -> usize {
        self.idle.load(Relaxed)
    }

    fn take_of(&self, size_class: &SizeClass) -> NonNull<u8> {
        let bytes = size_class.block_bytes;
        let mut lists = size_class.lists.lock();
        if let Some(start) = lists.idle.pop() {
            size_class.idle.fetch_sub(bytes, Relaxed);
            self.idle.fetch_sub(bytes, Relaxed);
            return start;
        }
        if lists.bare.is_empty() {
            let slab = pages::map(size_class.slab_blocks * bytes);
            lists.slabs.push(slab);
            // SAFETY: all of them begin in the slab.
            lists.bare.extend((0..size_class.slab_blocks).rev().map(|i| unsafe { slab.add(i * bytes) }));
        }
        let start = lists.bare.pop().expect("there is one, or a slab of them");
        drop(lists);
        if bytes > PAGE_BYTES {
            // SAFETY: it was on the list, and is the caller's alone from now on.
            unsafe { pages::populate(start, bytes) };
        }
        start
    }

    /// # Safety
    /// `start` is a block of `size_class` in use, and its owner lets go of it.
    unsafe fn give(&self, size_class: &SizeClass, start: NonNull<u8>) {
        // Counted first: another thread may take it as soon as it is on the list.
        size_class.idle.fetch_add(size_class.block_bytes, Relaxed);
        self.idle.fetch_add(size_class.block_bytes, Relaxed);
        size_class.lists.lock().idle.push(start);
        while self.idle_bytes() > self.most_idle && self.release_pages() {}
    }

    /// Returns the pages of one idle block to the system, of the size class with the most idle bytes; `false` if there
    /// is none.
    fn release_pages(&self) -> bool {
        let most = self
            .size_classes
            .iter()
            .max_by_key(|size_class| size_class.idle.load(Relaxed))
            .expect("there are size classes");
        let Some(start) = most.lists.lock().idle.pop() else { return false };
        most.idle.fetch_sub(most.block_bytes, Relaxed);
        self.idle.fetch_sub(most.block_bytes, Relaxed);
        // SAFETY: the block is on no list, and so this function's alone.
        unsafe { pages::release_pages(start, most.block_bytes) };
        most.lists.lock().bare.push(start);
        true
    }
}

fn size_class_of(bytes: usize) -> Option<usize> {
    let pages = bytes.div_ceil(PAGE_BYTES);
    SIZE_CLASS_PAGES.iter().position(|has| pages <= *has)
}

impl Drop for Pool {
    fn drop(&mut self) {
        for size_class in &mut self.size_classes {
            for slab in std::mem::take(&mut size_class.lists.get_mut().slabs) {
                // SAFETY: it was mapped with this length; blocks in use would keep the pool.
                unsafe { pages::unmap(slab, size_class.slab_blocks * size_class.block_bytes) };
            }
        }
    }
}

impl Block {
    /// A block with a mapping of its own: zeroes, with no page present yet.
    pub fn bare(bytes: usize) -> Block {
        let memory_bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        Block { start: pages::map(memory_bytes), bytes, memory_bytes, home: None }
    }

    /// Makes the pages of `bytes` bytes from `at` on present, before they are written to: one call costs less than a
    /// fault a page.
    pub fn make_ready(&mut self, at: usize, bytes: usize) {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "{bytes} bytes at {at} of {self:?}");
        let (start, end) = (at / PAGE_BYTES * PAGE_BYTES, (at + bytes).next_multiple_of(PAGE_BYTES));
        if start < end {
            // SAFETY: its memory, which is whole pages, has the range.
            unsafe { pages::populate(self.start.add(start), end - start) };
        }
    }

    /// Address of its first byte, aligned to a page. It never changes.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes of memory that it takes, once all of it was written to.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: they are initialised and its own.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Block> for Bytes {
    fn from(block: Block) -> Bytes {
        Bytes::from_owner(block)
    }
}

impl Default for Block {
    /// No bytes and no memory.
    fn default() -> Block {
        Block { start: NonNull::dangling(), bytes: 0, memory_bytes: 0, home: None }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match &self.home {
            // SAFETY: it came from there, and is used no more.
            Some((pool, at)) => unsafe { pool.give(&pool.size_classes[*at], self.start) },
            None if self.memory_bytes == 0 => {}
            // SAFETY: it was mapped with this length, and is used no more.
            None => unsafe { pages::unmap(self.start, self.memory_bytes) },
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.bytes)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} bytes idle)", self.idle_bytes())
    }
}
