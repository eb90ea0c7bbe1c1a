//! An arena skiplist (Pugh 1990): the only unsafe code of the engine.
//!
//! ```text
//!  node   | LSN u64 | value bytes u32 | key bytes u16 | kind u8 | height u8 | next[0] | ... | next[height-1] | key | value | expiry u64 |
//! ```
//! A node is one allocation, so that following a link and comparing a key touches one or two cache lines. An entry in
//! the log keeps its pointer, 8 bytes, in place of the value. The expiry is there only if the kind says so.
//!
//! Invariants that the unsafe code rests on:
//! - A node is written completely before a `Release` store makes it reachable; all of it but its links is never written
//!   again. Whoever reaches it does so by an `Acquire` load.
//! - Links are only written by the thread that holds `writer`, and only ever lead to nodes of the same list.
//! - Chunks of the arena are freed by `Drop` only; every [`NodeRef`] borrows the list, and every [`Position`] owns it.

use super::Entry;
use leeward_format::{Expiry, Lsn, Pointer, Stamp};
use parking_lot::Mutex;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Tallest tower: with one node in four reaching each next level, enough for 16 million entries.
const MAX_HEIGHT: usize = 12;
/// Entries that an estimate is made of at least.
const LEAST_SAMPLE: u64 = 256;
const FIRST_CHUNK_BYTES: usize = 4 << 10;
/// Of the towers.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const LARGEST_CHUNK_BYTES: usize = 1 << 20;
const ALIGN: usize = align_of::<Node>();

const IN_PLACE: u8 = 0;
const IN_LOG: u8 = 1;
const TOMBSTONE: u8 = 2;
/// Beside the kind: an expiry follows the value.
const EXPIRES: u8 = 4;

/// What every node starts with; see the drawing.
#[repr(C)]
struct Node {
    lsn: u64,
    value_bytes: u32,
    key_bytes: u16,
    kind: u8,
    height: u8,
    links: [AtomicPtr<Node>; 0],
}

/// A sorted list of entries.
pub(super) struct SkipList {
    /// Comes before every entry; has the full height and no key.
    head: NonNull<Node>,
    /// Levels in use.
    height: AtomicUsize,
    bytes: AtomicU64,
    /// Of all chunks.
    memory_bytes: AtomicU64,
    entries: AtomicU64,
    last_lsn: AtomicU64,
    writer: Mutex<Writer>,
}

// SAFETY: the raw pointers lead to memory that the list owns and that is freed only when it is dropped; shared access
// goes through atomics, or reads what is never written after it was published.
unsafe impl Send for SkipList {}
// SAFETY: as above; what the writer changes beside atomics is behind a mutex.
unsafe impl Sync for SkipList {}

/// What only the writer touches.
struct Writer {
    chunks: Vec<(NonNull<u8>, Layout)>,
    /// Free bytes of the last chunk.
    free: *mut u8,
    free_bytes: usize,
    /// Of all chunks.
    memory_bytes: usize,
    random: u64,
}

/// A node of a list that is borrowed.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'a> {
    node: NonNull<Node>,
    list: PhantomData<&'a SkipList>,
}

/// A place in a list, which it keeps alive.
pub(super) struct Position {
    list: Arc<SkipList>,
    node: Option<NonNull<Node>>,
}

// SAFETY: the pointer leads to a node of the list that it comes with, and that is `Send` and `Sync`.
unsafe impl Send for Position {}

impl Position {
    /// At the end of `list`.
    pub(super) fn new(list: Arc<SkipList>) -> Position {
        Position { list, node: None }
    }

    #[inline]
    pub(super) fn get(&self) -> Option<NodeRef<'_>> {
        self.node.map(|node| NodeRef { node, list: PhantomData })
    }

    /// Moves to what `choose` finds in the list, from where it is. A node of any other list does not live long enough to be
    /// answered.
    pub(super) fn set(
        &mut self,
        choose: impl for<'a> FnOnce(&'a SkipList, Option<NodeRef<'a>>) -> Option<NodeRef<'a>>,
    ) {
        self.node = choose(&self.list, self.get()).map(|found| found.node);
    }
}

impl<'a> NodeRef<'a> {
    #[inline]
    fn header(self) -> &'a Node {
        // SAFETY: the node was published complete, and lives as long as the list that `'a` borrows. The reference covers
        // the fixed part only, which is not written any more.
        unsafe { self.node.as_ref() }
    }

    #[inline]
    pub(super) fn lsn(self) -> Lsn {
        Lsn(self.header().lsn)
    }

    #[inline]
    pub(super) fn key(self) -> &'a [u8] {
        let header = self.header();
        // SAFETY: `allocate` made room for the links and then the key, which was written before the node was published.
        unsafe {
            let start = self.node.as_ptr().cast::<u8>().add(key_at(usize::from(header.height)));
            std::slice::from_raw_parts(start, usize::from(header.key_bytes))
        }
    }

    #[inline]
    pub(super) fn stamp(self) -> Stamp {
        let header = self.header();
        let expires = if header.kind & EXPIRES == 0 { None } else { self.expiry() };
        Stamp { lsn: Lsn(header.lsn), expires }
    }

    /// Of a node that has one.
    #[cold]
    fn expiry(self) -> Option<Expiry> {
        let stored = self.stored(self.value_stored_bytes(), size_of::<u64>());
        Expiry::from_ms(u64::from_le_bytes(stored.try_into().expect("eight bytes were stored")))
    }

    #[inline]
    pub(super) fn entry(self) -> Entry<'a> {
        let header = self.header();
        let kind = header.kind & !EXPIRES;
        if kind == TOMBSTONE {
            return Entry::Tombstone;
        }
        let stored = self.stored(0, self.value_stored_bytes());
        if kind == IN_PLACE {
            return Entry::InPlace(stored);
        }
        let pointer = Pointer(u64::from_le_bytes(stored.try_into().expect("eight bytes were stored")));
        Entry::InLog { pointer, value_bytes: header.value_bytes }
    }

    /// What the value, or the pointer to it, takes of a node that is not a tombstone.
    #[inline]
    fn value_stored_bytes(self) -> usize {
        let header = self.header();
        if header.kind & !EXPIRES == IN_LOG { size_of::<u64>() } else { header.value_bytes as usize }
    }

    /// `bytes` of what follows the key, from `offset` on; the node must have them.
    #[inline]
    fn stored(self, offset: usize, bytes: usize) -> &'a [u8] {
        let header = self.header();
        // SAFETY: as for the key, which the value follows, which the expiry follows.
        unsafe {
            let at = key_at(usize::from(header.height)) + usize::from(header.key_bytes) + offset;
            std::slice::from_raw_parts(self.node.as_ptr().cast::<u8>().add(at), bytes)
        }
    }

    #[inline]
    pub(super) fn next(self) -> Option<NodeRef<'a>> {
        self.next_at(0)
    }

    #[inline]
    fn next_at(self, level: usize) -> Option<NodeRef<'a>> {
        let next = NonNull::new(self.link(level).load(Acquire))?;
        Some(NodeRef { node: next, list: PhantomData })
    }

    /// The link of `level`, which must be below the node's height.
    #[inline]
    fn link(self, level: usize) -> &'a AtomicPtr<Node> {
        debug_assert!(level < usize::from(self.header().height));
        // SAFETY: `allocate` made room for `height` links behind the fixed part, and they were initialised before the
        // node was published. Every level passed here is one that a link of the same level led to, so it is below it.
        unsafe {
            let links = self.node.as_ptr().cast::<u8>().add(size_of::<Node>()).cast::<AtomicPtr<Node>>();
            &*links.add(level)
        }
    }

    /// Whether the node comes before `(key, lsn)`.
    #[inline]
    fn precedes(self, key: &[u8], lsn: Lsn) -> bool {
        match compare(self.key(), key) {
            Ordering::Less => true,
            Ordering::Equal => self.header().lsn > lsn.0,
            Ordering::Greater => false,
        }
    }
}

/// Byte order, word by word: most keys are a few words long, and a call of `memcmp` costs more than they do.
#[inline]
fn compare(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while let (Some((a_word, a_rest)), Some((b_word, b_rest))) =
        (a.split_first_chunk::<8>(), b.split_first_chunk::<8>())
    {
        if a_word != b_word {
            return u64::from_be_bytes(*a_word).cmp(&u64::from_be_bytes(*b_word));
        }
        (a, b) = (a_rest, b_rest);
    }
    if a.is_empty() || b.is_empty() { a.len().cmp(&b.len()) } else { a.cmp(b) }
}

/// Where the key of a node of this height begins.
#[inline]
const fn key_at(height: usize) -> usize {
    size_of::<Node>() + height * size_of::<AtomicPtr<Node>>()
}

impl SkipList {
    pub(super) fn new() -> SkipList {
        let mut writer =
            Writer { chunks: Vec::new(), free: ptr::null_mut(), free_bytes: 0, memory_bytes: 0, random: SEED };
        let head = writer.allocate(MAX_HEIGHT, &[], Lsn(u64::MAX).into(), Entry::Tombstone).0;
        SkipList {
            head,
            height: AtomicUsize::new(1),
            bytes: AtomicU64::new(0),
            memory_bytes: AtomicU64::new(writer.memory_bytes as u64),
            entries: AtomicU64::new(0),
            last_lsn: AtomicU64::new(0),
            writer: Mutex::new(writer),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Relaxed)
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Acquire)
    }

    pub(super) fn last_lsn(&self) -> Lsn {
        Lsn(self.last_lsn.load(Acquire))
    }

    fn head(&self) -> NodeRef<'_> {
        NodeRef { node: self.head, list: PhantomData }
    }

    pub(super) fn insert(&self, key: &[u8], stamp: Stamp, entry: Entry<'_>) {
        let lsn = stamp.lsn;
        let mut writer = self.writer.lock();
        let mut before = [self.head(); MAX_HEIGHT];
        let mut level = self.height.load(Relaxed);
        let (mut at, mut beyond) = (self.head(), None::<NonNull<Node>>);
        while level > 0 {
            level -= 1;
            (at, beyond) = self.advance(at, beyond, level, key, lsn);
            before[level] = at;
        }
        debug_assert!(at.next().is_none_or(|next| next.key() != key || next.lsn() != lsn), "an LSN was inserted twice");
        let height = writer.random_height();
        let (node, bytes) = writer.allocate(height, key, stamp, entry);
        let node = NodeRef { node, list: PhantomData };
        for (level, before) in before.iter().enumerate().take(height) {
            node.link(level).store(before.link(level).load(Relaxed), Relaxed);
            before.link(level).store(node.node.as_ptr(), Release);
        }
        if height > self.height.load(Relaxed) {
            self.height.store(height, Relaxed);
        }
        self.bytes.store(self.bytes.load(Relaxed) + bytes as u64, Relaxed);
        self.memory_bytes.store(writer.memory_bytes as u64, Relaxed);
        self.last_lsn.store(self.last_lsn.load(Relaxed).max(lsn.0), Release);
        self.entries.store(self.entries.load(Relaxed) + 1, Release);
    }

    /// From `at`, the last node of `level` before `(key, lsn)`, and the node that ended the walk: on the way down it need
    /// not be compared again.
    #[inline]
    fn advance<'a>(
        &'a self,
        mut at: NodeRef<'a>,
        beyond: Option<NonNull<Node>>,
        level: usize,
        key: &[u8],
        lsn: Lsn,
    ) -> (NodeRef<'a>, Option<NonNull<Node>>) {
        loop {
            match at.next_at(level) {
                Some(next) if Some(next.node) != beyond => {
                    if !next.precedes(key, lsn) {
                        return (at, Some(next.node));
                    }
                    at = next;
                }
                _ => return (at, beyond),
            }
        }
    }

    /// The last node before `(key, lsn)`; the head if there is none.
    #[inline]
    fn last_before(&self, key: &[u8], lsn: Lsn) -> NodeRef<'_> {
        let (mut at, mut beyond) = (self.head(), None);
        for level in (0..self.height.load(Relaxed)).rev() {
            (at, beyond) = self.advance(at, beyond, level, key, lsn);
        }
        at
    }

    /// The first version of `key` with an LSN of at most `lsn`, or else what follows.
    #[inline]
    pub(super) fn seek(&self, key: &[u8], lsn: Lsn) -> Option<NodeRef<'_>> {
        let mut next = self.last_before(key, lsn).next();
        // Entries that were inserted behind the walk come before what it looked for.
        while let Some(inserted) = next.filter(|node| node.precedes(key, lsn)) {
            next = inserted.next();
        }
        next
    }

    /// The last entry before `(key, lsn)`.
    pub(super) fn before(&self, key: &[u8], lsn: Lsn) -> Option<NodeRef<'_>> {
        self.unless_head(self.last_before(key, lsn))
    }

    /// The last entry.
    pub(super) fn last(&self) -> Option<NodeRef<'_>> {
        let mut at = self.head();
        for level in (0..self.height.load(Relaxed)).rev() {
            while let Some(next) = at.next_at(level) {
                at = next;
            }
        }
        self.unless_head(at)
    }

    /// Number and bytes of the entries from `start` to before `end`: exact where they are few, otherwise counted on a level
    /// that has a sample of them, one in four of the level below.
    pub(super) fn estimate(&self, start: &[u8], end: Option<&[u8]>) -> (u64, u64) {
        let (mut at, mut beyond) = (self.head(), None);
        for level in (0..self.height.load(Relaxed)).rev() {
            (at, beyond) = self.advance(at, beyond, level, start, Lsn(u64::MAX));
            let (mut entries, mut bytes) = (0, 0);
            let mut next = at.next_at(level);
            while let Some(node) = next.filter(|node| end.is_none_or(|end| node.key() < end)) {
                entries += 1;
                bytes += u64::from(node.header().key_bytes) + u64::from(node.header().value_bytes);
                next = node.next_at(level);
            }
            if entries >= LEAST_SAMPLE || level == 0 {
                return (entries << (2 * level), bytes << (2 * level));
            }
        }
        (0, 0)
    }

    fn unless_head<'a>(&self, node: NodeRef<'a>) -> Option<NodeRef<'a>> {
        (node.node != self.head).then_some(node)
    }
}

impl Drop for SkipList {
    fn drop(&mut self) {
        for (chunk, layout) in self.writer.get_mut().chunks.drain(..) {
            // SAFETY: it came from `alloc` with this layout, and nothing that borrows the list is left.
            unsafe { dealloc(chunk.as_ptr(), layout) };
        }
    }
}

impl Writer {
    /// One level more for one node in four, by xorshift: the same towers for the same entries in every run.
    fn random_height(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (1 + (self.random >> 20).trailing_zeros() as usize / 2).min(MAX_HEIGHT)
    }

    /// A node that no link leads to yet, its own links null; and the bytes that it takes.
    fn allocate(&mut self, height: usize, key: &[u8], stamp: Stamp, entry: Entry<'_>) -> (NonNull<Node>, usize) {
        let pointer_bytes;
        let (kind, value, value_bytes) = match entry {
            Entry::InPlace(value) => (IN_PLACE, value, value.len()),
            Entry::InLog { pointer, value_bytes } => {
                pointer_bytes = pointer.0.to_le_bytes();
                (IN_LOG, &pointer_bytes[..], value_bytes as usize)
            }
            Entry::Tombstone => (TOMBSTONE, &[][..], 0),
        };
        debug_assert!(stamp.expires.is_none() || kind != TOMBSTONE, "a tombstone never expires");
        let header = Node {
            lsn: stamp.lsn.0,
            value_bytes: u32::try_from(value_bytes).expect("a value is at most 1 MiB"),
            key_bytes: u16::try_from(key.len()).expect("a key is at most 4 KiB"),
            kind: kind | if stamp.expires.is_some() { EXPIRES } else { 0 },
            height: height as u8,
            links: [],
        };
        let expiry_bytes = if stamp.expires.is_some() { size_of::<u64>() } else { 0 };
        let bytes = (key_at(height) + key.len() + value.len() + expiry_bytes).next_multiple_of(ALIGN);
        let node = self.take(bytes);
        // SAFETY: `node` is the start of `bytes` bytes of a chunk that nothing else uses, aligned for a node and so for
        // its links; all that is written lies within them.
        unsafe {
            node.cast::<Node>().write(header);
            let links = node.add(size_of::<Node>()).cast::<AtomicPtr<Node>>();
            for level in 0..height {
                links.add(level).write(AtomicPtr::new(ptr::null_mut()));
            }
            let key_start = node.add(key_at(height));
            ptr::copy_nonoverlapping(key.as_ptr(), key_start, key.len());
            ptr::copy_nonoverlapping(value.as_ptr(), key_start.add(key.len()), value.len());
            if let Some(expires) = stamp.expires {
                let ms = expires.ms().to_le_bytes();
                ptr::copy_nonoverlapping(ms.as_ptr(), key_start.add(key.len() + value.len()), ms.len());
            }
            (NonNull::new_unchecked(node.cast()), bytes)
        }
    }

    /// `bytes`, a multiple of the alignment, of fresh memory.
    fn take(&mut self, bytes: usize) -> *mut u8 {
        if bytes > self.free_bytes {
            // A quarter of what there is, so that not much more is ever free.
            let next_chunk = (self.memory_bytes / 4).next_power_of_two().clamp(FIRST_CHUNK_BYTES, LARGEST_CHUNK_BYTES);
            if bytes > next_chunk / 4 {
                // A large entry has a chunk to itself, and the one in use goes on.
                self.memory_bytes += bytes;
                return new_chunk(&mut self.chunks, bytes).as_ptr();
            }
            self.memory_bytes += next_chunk;
            self.free = new_chunk(&mut self.chunks, next_chunk).as_ptr();
            self.free_bytes = next_chunk;
        }
        let taken = self.free;
        // SAFETY: `free_bytes` of the chunk are left from `free` on, and `bytes` are at most that.
        self.free = unsafe { taken.add(bytes) };
        self.free_bytes -= bytes;
        taken
    }
}

fn new_chunk(chunks: &mut Vec<(NonNull<u8>, Layout)>, bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes, ALIGN).expect("a chunk is far below the address space");
    // SAFETY: the layout is not empty: a node has a header.
    let Some(chunk) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
    chunks.push((chunk, layout));
    chunk
}
