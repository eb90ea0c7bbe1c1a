//! A tree built at once, from entries that come in the order of their LSNs while no reader has it: they are sorted, and
//! the nodes are made from them level by level. An insert of a random key waits for the memory of several nodes; here
//! nearly all memory is read and written in order.
//!
//! Entries are compared by *chunks* of their keys, numbers that lie beside each other in an array. A chunk is seven
//! bytes of the key, and whether the key ends there. Entries with equal chunks are sorted by their next ones, so each
//! chunk of a key is read at most once, however much the keys have in common.

use super::{At, BLink, Entry, NOWHERE, Node, Relaxed, Release, Room, SLOTS, Scale};
use leeward_format::Stamp;
use std::cmp::Reverse;

/// Bytes of a key in a chunk.
const CHUNK_BYTES: usize = 7;
/// Slots that a new node has at most: inserts that follow find room in it.
const FILLED_SLOTS: usize = SLOTS - SLOTS / 4;

/// Entries that were written, but are not in the tree yet.
#[derive(Default)]
pub(in crate::memtable) struct Unsorted {
    /// In the order of their LSNs, and so of their numbers.
    entries: Vec<At>,
    /// The key of the first, as far as all keys begin with it.
    common: Vec<u8>,
}

/// An entry on its way through the sort.
struct Keyed {
    chunk: u64,
    at: At,
}

impl Unsorted {
    /// Bytes that these entries will take in nodes.
    pub(in crate::memtable) fn node_bytes(&self) -> u64 {
        (self.entries.len().div_ceil(FILLED_SLOTS) * size_of::<Node>()) as u64
    }

    /// Bytes of memory that they take, with their sort, until they are in the tree.
    pub(in crate::memtable) fn memory_bytes(&self) -> u64 {
        (self.entries.capacity() * (size_of::<At>() + size_of::<Keyed>())) as u64
    }

    pub(in crate::memtable) fn len(&self) -> usize {
        self.entries.len()
    }

    fn push(&mut self, at: At, key: &[u8]) {
        if self.entries.is_empty() {
            self.common = key.to_vec();
        }
        if !key.starts_with(&self.common) {
            let common = self.common.iter().zip(key).take_while(|(a, b)| a == b).count();
            self.common.truncate(common);
        }
        self.entries.push(at);
    }
}

/// The chunk of a key from byte `from` on: the bytes, padded with zeroes, and below them their number, which is
/// greater than [`CHUNK_BYTES`] if the key continues. Of two keys with the same first `from` bytes the lower one has
/// the lower chunk, or an equal one.
fn chunk(key: &[u8], from: usize) -> u64 {
    let rest = &key[from..];
    if let Some(word) = rest.first_chunk() {
        return u64::from_be_bytes(*word) & !0xff | (CHUNK_BYTES as u64 + 1);
    }
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    word[CHUNK_BYTES] = rest.len() as u8;
    u64::from_be_bytes(word)
}

/// Whether the key goes on behind the chunk.
fn continues(chunk: u64) -> bool {
    chunk & 0xff > CHUNK_BYTES as u64
}

impl BLink {
    /// Writes an entry with a higher LSN than those before, which is in the tree after [`BLink::load`].
    pub(in crate::memtable) fn write(&self, unsorted: &mut Unsorted, key: &[u8], stamp: Stamp, entry: Entry<'_>) {
        let before = unsorted.entries.last().map(|at| self.entry(*at).lsn());
        assert!(before.is_none_or(|before| before < stamp.lsn), "LSN {} is loaded after {before:?}", stamp.lsn);
        let at = self.entries.write(&mut self.writer.lock(), key, stamp, entry);
        unsorted.push(at, key);
    }

    /// Puts the entries into the tree, which is empty and which no reader has. Calls `each` with the key of each entry.
    pub(in crate::memtable) fn load(&self, unsorted: Unsorted, mut each: impl FnMut(&[u8])) {
        let Unsorted { entries, common } = unsorted;
        let Some(last) = entries.last() else { return };
        assert!(self.len() == 0, "only an empty tree is loaded");
        let (last, len) = (self.entry(*last).lsn(), entries.len() as u64);
        let keyed = entries.into_iter().map(|at| {
            let key = self.entry(at).key();
            each(key);
            Keyed { chunk: chunk(key, common.len()), at }
        });
        let mut sorted: Vec<Keyed> = keyed.collect();
        let older = self.sort(&mut sorted, common.len());
        self.build(&mut self.writer.lock(), sorted.iter().map(|keyed| keyed.at).collect());
        self.versions.store(older, Relaxed);
        self.last_lsn.store(last.0, Release);
        self.len.store(len, Release);
    }

    /// Sorts entries, whose chunks begin at byte `from` of their keys, by key and from the newest to the oldest.
    /// Returns how many of them are not the newest of their key.
    fn sort(&self, entries: &mut [Keyed], from: usize) -> u64 {
        entries.sort_unstable_by_key(|keyed| (keyed.chunk, Reverse(keyed.at)));
        let mut older = 0;
        for equal in entries.chunk_by_mut(|a, b| a.chunk == b.chunk).filter(|equal| equal.len() > 1) {
            if !continues(equal[0].chunk) {
                older += equal.len() as u64 - 1;
                continue;
            }
            let from = from + CHUNK_BYTES;
            equal.iter_mut().for_each(|keyed| keyed.chunk = chunk(self.entry(keyed.at).key(), from));
            older += self.sort(equal, from);
        }
        older
    }

    /// Makes the nodes of all levels above these sorted entries.
    fn build(&self, room: &mut Room, mut below: Vec<At>) {
        let mut level = 0;
        // The empty root is left behind.
        self.nodes[0].store(0, Relaxed);
        loop {
            let nodes = below.len().div_ceil(if below.len() <= SLOTS { SLOTS } else { FILLED_SLOTS });
            let mut above = vec![NOWHERE; nodes];
            let mut next = NOWHERE;
            // From the right, because each node links to its right neighbour. All have about as many slots.
            for which in (0..nodes).rev() {
                let slots = &below[which * below.len() / nodes..(which + 1) * below.len() / nodes];
                let scale = match slots {
                    [_] => Scale::unknown(),
                    _ => self.scale(level, slots, slots[0]),
                };
                next = self.new_node(room, level, slots, scale, next);
                above[which] = next;
            }
            if nodes == 1 {
                return self.root.store(next, Release);
            }
            (below, level) = (above, level + 1);
        }
    }
}
