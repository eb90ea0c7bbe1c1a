//! One version of a key, as it lies in the arena.
//!
//! ```text
//!         0      1                 4        6
//!  short  | kind | LSN-first u24   | key u8 | value u8  | key ... | value ... | expiry u64 |
//!  long   | kind | LSN-first u24   | key u16 | value u32    | LSN u64 | key ... | value ... | expiry u64 |
//!         0      1                 4         6              10
//! ```
//! Not aligned. LSNs count from the first one of the table. An LSN too far from it is *late*: it follows the lengths,
//! which are then long. A value in the log is replaced by its pointer, 8 bytes. A value of more than [`MOST_BESIDE`]
//! bytes lies outside the entry, and its address takes its place. An expiry is present only if the kind says so.
//!
//! Invariant that the unsafe code relies on: an entry is written completely before another thread knows its place, and
//! never again. It lives as long as its arena.

use super::Entry;
use super::arena::{Arena, At, Room};
use leeward_format::{Expiry, Lsn, Pointer, Stamp};
use std::cmp::Ordering;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const IN_PLACE: u8 = 0;
const IN_LOG: u8 = 1;
const TOMBSTONE: u8 = 2;
const KINDS: u8 = 3;
/// Flag of the kind: an expiry follows the value.
const EXPIRES: u8 = 4;
/// The value is elsewhere in memory.
const APART: u8 = 8;
const LONG: u8 = 16;
const LATE: u8 = 32;

const SHORT_HEADER_BYTES: usize = 6;
const LONG_HEADER_BYTES: usize = 10;
const WORD_BYTES: usize = 8;
/// No entry has this LSN.
const NO_LSN: u64 = u64::MAX;
/// LSNs from this one on, counted from the table's first, are late.
const LATE_LSNS: u64 = 1 << 24;
/// Largest value inside an entry, in bytes.
const MOST_BESIDE: usize = 2 << 10;

/// The arena of a table, and the base of its entries' LSNs.
pub(super) struct Entries {
    pub(super) arena: Arena,
    /// LSN of the first entry.
    first: AtomicU64,
}

/// An entry of a borrowed arena.
#[derive(Clone, Copy)]
pub(super) struct EntryRef<'a> {
    start: NonNull<u8>,
    entries: &'a Entries,
}

/// Where the parts of an entry are.
struct EntryLayout {
    kind: u8,
    key_at: usize,
    key_bytes: usize,
    value_bytes: usize,
}

impl EntryLayout {
    /// Bytes between the key and the expiry.
    #[inline]
    fn stored_bytes(&self) -> usize {
        match self.kind & (KINDS | APART) {
            IN_LOG => WORD_BYTES,
            IN_PLACE | TOMBSTONE => self.value_bytes,
            _ => size_of::<*const u8>(),
        }
    }
}

impl Entries {
    pub(super) fn new(arena: Arena) -> Entries {
        Entries { arena, first: AtomicU64::new(NO_LSN) }
    }

    /// Writes an entry that no other thread knows of yet.
    pub(super) fn write(&self, room: &mut Room, key: &[u8], stamp: Stamp, entry: Entry<'_>) -> At {
        let pointer_bytes;
        let (mut kind, mut stored, value_bytes) = match entry {
            Entry::InPlace(value) => (IN_PLACE, value, value.len()),
            Entry::InLog { pointer, value_bytes } => {
                pointer_bytes = pointer.0.to_le_bytes();
                (IN_LOG, &pointer_bytes[..], value_bytes as usize)
            }
            Entry::Tombstone => (TOMBSTONE, &[][..], 0),
        };
        debug_assert!(stamp.expires.is_none() || kind != TOMBSTONE, "a tombstone never expires");
        if self.first.load(Relaxed) == NO_LSN {
            self.first.store(stamp.lsn.0, Relaxed);
        }
        let address: *const u8;
        if stored.len() > MOST_BESIDE {
            let apart = self.arena.take_apart(room, stored.len());
            // SAFETY: fresh memory of that many bytes.
            unsafe { ptr::copy_nonoverlapping(stored.as_ptr(), apart.as_ptr(), stored.len()) };
            address = apart.as_ptr();
            // SAFETY: the bytes of a local variable. They are copied, and later read only as the pointer that they are.
            stored = unsafe { slice::from_raw_parts(ptr::from_ref(&address).cast(), size_of::<*const u8>()) };
            kind |= APART;
        }
        let mut header = [0; LONG_HEADER_BYTES + WORD_BYTES];
        let mut header_bytes = SHORT_HEADER_BYTES;
        let since = stamp.lsn.0.wrapping_sub(self.first.load(Relaxed));
        if since >= LATE_LSNS {
            kind |= LATE;
            header[LONG_HEADER_BYTES..].copy_from_slice(&stamp.lsn.0.to_le_bytes());
        }
        if let (Ok(key_bytes), Ok(value_bytes), 0) = (u8::try_from(key.len()), u8::try_from(value_bytes), kind & LATE) {
            (header[4], header[5]) = (key_bytes, value_bytes);
        } else {
            let key_bytes = u16::try_from(key.len()).expect("a key is at most 4 KiB");
            let value_bytes = u32::try_from(value_bytes).expect("a value is at most 1 MiB");
            header[4..6].copy_from_slice(&key_bytes.to_le_bytes());
            header[6..10].copy_from_slice(&value_bytes.to_le_bytes());
            header_bytes = LONG_HEADER_BYTES + if kind & LATE == 0 { 0 } else { WORD_BYTES };
            kind |= LONG;
        }
        let expires = stamp.expires.map(|expires| expires.ms().to_le_bytes());
        kind |= if expires.is_some() { EXPIRES } else { 0 };
        header[..4].copy_from_slice(&((since as u32) << 8 | u32::from(kind)).to_le_bytes());

        let expiry = expires.as_ref().map_or(&[][..], |expiry| &expiry[..]);
        let parts = [&header[..header_bytes], key, stored, expiry];
        let (at, start) = self.arena.take(room, parts.iter().map(|part| part.len()).sum(), 1);
        let mut end = start.as_ptr();
        for part in parts {
            // SAFETY: fresh memory that has room for all parts.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), end, part.len());
                end = end.add(part.len());
            }
        }
        at
    }
}

impl<'a> EntryRef<'a> {
    /// The entry that begins at `start`.
    ///
    /// # Safety
    /// It is in the arena of `entries`, which have written it there.
    #[inline]
    pub(super) unsafe fn new(entries: &'a Entries, start: NonNull<u8>) -> EntryRef<'a> {
        EntryRef { start, entries }
    }

    /// Where it begins.
    #[inline]
    pub(super) fn start(self) -> NonNull<u8> {
        self.start
    }

    /// `bytes` of the entry, which it must have, from `offset` on.
    #[inline]
    fn bytes(self, offset: usize, bytes: usize) -> &'a [u8] {
        // SAFETY: they lie in the entry, which was published complete and lives as long as the arena that `'a` borrows.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(offset), bytes) }
    }

    #[inline]
    fn word(self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes(offset, WORD_BYTES).try_into().expect("eight bytes"))
    }

    #[inline]
    fn head(self) -> u32 {
        u32::from_le_bytes(self.bytes(0, 4).try_into().expect("four bytes"))
    }

    #[inline]
    fn parts(self) -> EntryLayout {
        let header = self.bytes(0, SHORT_HEADER_BYTES);
        let kind = header[0];
        if kind & LONG == 0 {
            let (key_bytes, value_bytes) = (usize::from(header[4]), usize::from(header[5]));
            return EntryLayout { kind, key_at: SHORT_HEADER_BYTES, key_bytes, value_bytes };
        }
        let header = self.bytes(0, LONG_HEADER_BYTES);
        let key_bytes = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let value_bytes = u32::from_le_bytes([header[6], header[7], header[8], header[9]]) as usize;
        let key_at = LONG_HEADER_BYTES + if kind & LATE == 0 { 0 } else { WORD_BYTES };
        EntryLayout { kind, key_at, key_bytes, value_bytes }
    }

    #[inline]
    pub(super) fn lsn(self) -> Lsn {
        let head = self.head();
        if head as u8 & LATE != 0 {
            return Lsn(self.word(LONG_HEADER_BYTES));
        }
        Lsn(self.entries.first.load(Relaxed) + u64::from(head >> 8))
    }

    #[inline]
    pub(super) fn key(self) -> &'a [u8] {
        let parts = self.parts();
        self.bytes(parts.key_at, parts.key_bytes)
    }

    #[inline]
    pub(super) fn stamp(self) -> Stamp {
        let expires = if self.head() as u8 & EXPIRES == 0 { None } else { self.expiry() };
        Stamp { lsn: self.lsn(), expires }
    }

    /// Only for an entry that has one.
    #[cold]
    fn expiry(self) -> Option<Expiry> {
        let parts = self.parts();
        Expiry::from_ms(self.word(parts.key_at + parts.key_bytes + parts.stored_bytes()))
    }

    #[inline]
    pub(super) fn entry(self) -> Entry<'a> {
        let parts = self.parts();
        let value_at = parts.key_at + parts.key_bytes;
        match parts.kind & KINDS {
            TOMBSTONE => Entry::Tombstone,
            IN_LOG => Entry::InLog { pointer: Pointer(self.word(value_at)), value_bytes: parts.value_bytes as u32 },
            _ if parts.kind & APART != 0 => {
                // SAFETY: `write` has put the address of as many bytes there, which live as long as the arena.
                Entry::InPlace(unsafe {
                    let apart = self.start.as_ptr().add(value_at).cast::<*const u8>().read_unaligned();
                    slice::from_raw_parts(apart, parts.value_bytes)
                })
            }
            _ => Entry::InPlace(self.bytes(value_at, parts.value_bytes)),
        }
    }

    /// Bytes of its key and value.
    pub(super) fn pair_bytes(self) -> usize {
        let parts = self.parts();
        parts.key_bytes + parts.value_bytes
    }

    /// Whether it comes before `(key, lsn)`.
    #[inline]
    pub(super) fn precedes(self, key: &[u8], lsn: Lsn) -> bool {
        match compare(self.key(), key) {
            Ordering::Less => true,
            Ordering::Equal => self.lsn() > lsn,
            Ordering::Greater => false,
        }
    }
}

/// Byte order, word by word: most keys are a few words long, and a call of `memcmp` costs more than comparing them.
#[inline]
pub(crate) fn compare(mut a: &[u8], mut b: &[u8]) -> Ordering {
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
