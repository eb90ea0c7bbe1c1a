//! Copies into and out of memory that others use at the same time.
//!
//! Registered memory is a slice of 64-bit atomics. Its owner, and the threads or processes that stand in for a NIC,
//! access it only as such. So a race between a copy in and a copy out is an ordinary race of relaxed atomics. The
//! reader may see any mix of old and new *words*, as the fabric's contract says, and nothing is undefined. All accesses
//! are whole aligned words (Rust leaves mixed sizes undefined), so a copy that begins or ends inside a word merges its
//! bytes by compare-and-swap and never disturbs its neighbours.
//!
//! Byte `i` of the memory is byte `i % 8`, from the low end, of word `i / 8`. Callers check ranges. A range outside the
//! slice panics by its bounds check.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a word.
pub(crate) const WORD: usize = 8;

/// `len` bytes of zeroed memory, rounded up to whole words.
pub(crate) fn zeroed(len: usize) -> Box<[AtomicU64]> {
    std::iter::repeat_with(|| AtomicU64::new(0)).take(len.div_ceil(WORD)).collect()
}

/// Copies `bytes` to `offset`. Everything that the caller saw or wrote before is visible to a thread that acquires any
/// of the words.
pub(crate) fn copy_in(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    fence(Ordering::Release);
    let mut at = offset / WORD;
    let skip = offset % WORD;
    let mut rest = bytes;
    if skip != 0 {
        let (head, tail) = rest.split_at(rest.len().min(WORD - skip));
        merge(&words[at], skip, head);
        (at, rest) = (at + 1, tail);
    }
    let (whole, tail) = rest.as_chunks::<WORD>();
    let end = at + whole.len();
    for (word, bytes) in words[at..end].iter().zip(whole) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if !tail.is_empty() {
        merge(&words[end], 0, tail);
    }
}

/// Copies `bytes.len()` bytes from `offset`. Later accesses of the caller see at least what the copied words' writers
/// had seen. All accesses are relaxed loads, so that it also works on memory that is mapped for reading only.
pub(crate) fn copy_out(words: &[AtomicU64], offset: usize, bytes: &mut [u8]) {
    let mut at = offset / WORD;
    let skip = offset % WORD;
    let mut rest = bytes;
    if skip != 0 {
        let (head, tail) = rest.split_at_mut(rest.len().min(WORD - skip));
        let word = words[at].load(Ordering::Relaxed).to_le_bytes();
        head.copy_from_slice(&word[skip..skip + head.len()]);
        (at, rest) = (at + 1, tail);
    }
    let (whole, tail) = rest.as_chunks_mut::<WORD>();
    let end = at + whole.len();
    for (word, bytes) in words[at..end].iter().zip(whole) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if !tail.is_empty() {
        let word = words[end].load(Ordering::Relaxed).to_le_bytes();
        tail.copy_from_slice(&word[..tail.len()]);
    }
    fence(Ordering::Acquire);
}

/// The word at byte `offset`, with acquire ordering.
pub(crate) fn load(words: &[AtomicU64], offset: usize) -> u64 {
    assert!(offset.is_multiple_of(WORD), "a word's offset is a multiple of 8, this is {offset}");
    words[offset / WORD].load(Ordering::Acquire)
}

/// Stores the word at byte `offset`, with release ordering.
pub(crate) fn store(words: &[AtomicU64], offset: usize, value: u64) {
    assert!(offset.is_multiple_of(WORD), "a word's offset is a multiple of 8, this is {offset}");
    words[offset / WORD].store(value, Ordering::Release);
}

/// Whether `len` bytes at `offset` are within `available`. Correct for any numbers that a peer may send.
pub(crate) fn within(offset: u64, len: u64, available: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= available as u64)
}

/// Replaces the bytes of `word` from `skip` on with `bytes`, which end within the word.
fn merge(word: &AtomicU64, skip: usize, bytes: &[u8]) {
    let (mut mask, mut value) = ([0; WORD], [0; WORD]);
    mask[skip..skip + bytes.len()].fill(0xff);
    value[skip..skip + bytes.len()].copy_from_slice(bytes);
    let (mask, value) = (u64::from_le_bytes(mask), u64::from_le_bytes(value));
    let mut old = word.load(Ordering::Relaxed);
    while let Err(now) = word.compare_exchange_weak(old, old & !mask | value, Ordering::Relaxed, Ordering::Relaxed) {
        old = now;
    }
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
