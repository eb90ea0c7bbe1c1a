//! A B-link tree (Lehman and Yao 1981) over entries of an arena. One writer; readers take no lock and never wait.
//!
//! ```text
//!  level 1            [ low | . . . . ] -----> [ low | . . ]
//!                      /   |   \                  |   \
//!  level 0    [ . . . ]->[ . . ]->[ . . . ]--->[ . . ]->[ . ]
//!  arena       entries, in the order in which they were written
//! ```
//! A node has slots in order: numbers of entries, or of nodes of the level below. Each node knows its lowest entry.
//! Beside each slot is the [hint](super::hint) of its key, in the scale of the node: a search reads few entries, and an
//! insert often none.
//!
//! Readers rely on this (as in FAST and FAIR, Hwang et al. 2018):
//! - The writer inserts by moving slots to the right, one atomic store each, the last one first and before it is
//!   counted; then the hints in the same way. So a slot's content only falls, none is ever missing, and one may appear
//!   twice for a moment. A search by hints ends at the right slot or to the left of it, and continues to the right by
//!   keys.
//! - A full node gives its upper half to a new one, which is linked before the node counts fewer slots. Slots beyond
//!   the count may be overwritten after `splits` has changed: a reader that finds `splits` unchanged has seen no such
//!   slot. A reader at the end of a node checks the node to its right, which may have the entry that it searches for.
//! - A full root is replaced, and stays as it was for the readers that are in it.
//!
//! Invariants that the unsafe code relies on:
//! - Entries and nodes are written completely before a `Release` store makes their number reachable; a reader reaches
//!   it by an `Acquire` load. Of a node, only atomics are written afterwards.
//! - A slot of a level-0 node is the number of an entry; a slot of a higher node is the number of a node of the level
//!   below. `low` is the number of an entry.
//! - Memory is freed by `Drop` only; every [`FoundEntry`] borrows the tree, and every [`Position`] owns it.

mod load;

pub(super) use load::Unsorted;

use super::Entry;
use super::arena::{Arena, At, NOWHERE, Room};
use super::entry::{Entries, EntryRef};
use super::hint::Scale;
use leeward_format::{Lsn, Stamp};
use leeward_platform::Pool;
use parking_lot::Mutex;
use std::array;
use std::cmp::Ordering;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Hints are compared in pieces of this many. Few under Miri, so that small tables have several levels.
const PIECE: usize = if cfg!(miri) { 2 } else { 8 };
/// Slots of a node.
const SLOTS: usize = PIECE * PIECE - 1;
/// Nodes have far more than two slots on average: enough for every number of the arena.
const MAX_LEVELS: usize = 16;
/// Least number of slots for an estimate.
const LEAST_SAMPLE: u64 = 64;
/// A walk prefetches the entry this many slots ahead.
const AHEAD: usize = 2;

struct Node {
    scale: Scale,
    level: u8,
    /// The lowest entry of the node. In the first node of a level any of the first entries, because lower ones may
    /// come.
    low: At,
    /// The node to the right.
    next: AtomicU32,
    /// Number of times that it gave slots away.
    splits: AtomicU32,
    count: AtomicU16,
    /// Slots that were never in use have the greatest hint.
    hints: [AtomicU16; SLOTS + 1],
    slots: [AtomicU32; SLOTS],
}

/// A sorted set of entries.
pub(super) struct BLink {
    entries: Entries,
    root: AtomicU32,
    /// Nodes of each level.
    nodes: [AtomicU32; MAX_LEVELS],
    len: AtomicU64,
    /// Upper bound of the number of entries that are not the only version of their key.
    versions: AtomicU64,
    last_lsn: AtomicU64,
    writer: Mutex<Room>,
}

/// The entries on both sides of the position of `(key, lsn)`.
struct Gap<'a> {
    before: Option<FoundEntry<'a>>,
    after: Option<FoundEntry<'a>>,
}

/// An entry of a borrowed tree, and its place.
#[derive(Clone, Copy)]
pub(super) struct FoundEntry<'a> {
    tree: &'a BLink,
    leaf: &'a Node,
    slot: usize,
    at: At,
    entry: EntryRef<'a>,
}

/// A place in a tree. It keeps the tree alive.
pub(super) struct Position {
    tree: Arc<BLink>,
    place: Option<EntryPlace>,
}

/// A [`FoundEntry`] of the tree beside it.
#[derive(Clone, Copy)]
struct EntryPlace {
    leaf: NonNull<Node>,
    slot: usize,
    at: At,
    entry: NonNull<u8>,
}

// SAFETY: the pointers lead into the memory of the tree that they come with, and that is `Send` and `Sync`.
unsafe impl Send for Position {}

impl Position {
    /// At the end of `tree`.
    pub(super) fn new(tree: Arc<BLink>) -> Position {
        Position { tree, place: None }
    }

    #[inline]
    pub(super) fn get(&self) -> Option<FoundEntry<'_>> {
        let EntryPlace { leaf, slot, at, entry } = self.place?;
        let tree = &*self.tree;
        // SAFETY: they were references into this tree, which has all of its memory until it is dropped.
        let (leaf, entry) = unsafe { (leaf.as_ref(), EntryRef::new(&tree.entries, entry)) };
        Some(FoundEntry { tree, leaf, slot, at, entry })
    }

    /// Moves to the entry that `choose` finds in the tree, given the current one. The lifetime keeps `choose` from
    /// returning an entry of another tree.
    #[inline]
    pub(super) fn set(
        &mut self,
        choose: impl for<'a> FnOnce(&'a BLink, Option<FoundEntry<'a>>) -> Option<FoundEntry<'a>>,
    ) {
        let place = |FoundEntry { leaf, slot, at, entry, .. }: FoundEntry<'_>| EntryPlace {
            leaf: NonNull::from(leaf),
            slot,
            at,
            entry: entry.start(),
        };
        self.place = choose(&self.tree, self.get()).map(place);
    }
}

impl<'a> Deref for FoundEntry<'a> {
    type Target = EntryRef<'a>;

    #[inline]
    fn deref(&self) -> &EntryRef<'a> {
        &self.entry
    }
}

impl<'a> FoundEntry<'a> {
    /// The entry that follows.
    #[inline]
    pub(super) fn next(self) -> Option<FoundEntry<'a>> {
        let FoundEntry { leaf, slot, at, .. } = self;
        let splits = leaf.splits.load(Acquire);
        let next = slot + 1;
        if next < leaf.count() {
            let after = leaf.slot(next);
            self.tree.entries.arena.prefetch(leaf.slots[(next + AHEAD).min(SLOTS - 1)].load(Relaxed));
            // If the entry did not move, nothing that followed it before was skipped.
            if after != at && leaf.slot(slot) == at && leaf.splits.load(Acquire) == splits {
                return Some(self.tree.found(leaf, next, after));
            }
        }
        self.next_elsewhere()
    }

    /// The next entry after one that was moved, or is the last of its leaf.
    #[cold]
    fn next_elsewhere(self) -> Option<FoundEntry<'a>> {
        let FoundEntry { tree, leaf, mut slot, at, entry } = self;
        let splits = leaf.splits.load(Acquire);
        // It may have been moved to the right, and appear twice.
        while slot < leaf.count() && leaf.slot(slot) != at {
            slot += 1;
        }
        while slot + 1 < leaf.count() && leaf.slot(slot + 1) == at {
            slot += 1;
        }
        // The count is read after the entry was seen here, so it includes slots that moved with the entry.
        let count = leaf.count();
        if slot < count {
            let next = match slot + 1 < count {
                true => Some(tree.found(leaf, slot + 1, leaf.slot(slot + 1))),
                false => tree.first_of(leaf.next.load(Acquire)),
            };
            // During a split the next leaf may begin with entries that this one still counts.
            let follows = |next: &FoundEntry<'_>| next.at != at && !next.entry.precedes(entry.key(), entry.lsn());
            if next.as_ref().is_none_or(follows) && leaf.slot(slot) == at && leaf.splits.load(Acquire) == splits {
                return next;
            }
        }
        // The entry has moved to another leaf, or is being moved.
        tree.seek(entry.key(), Lsn(entry.lsn().0.checked_sub(1)?))
    }
}

impl Node {
    #[inline]
    fn count(&self) -> usize {
        usize::from(self.count.load(Acquire))
    }

    #[inline]
    fn slot(&self, slot: usize) -> At {
        self.slots[slot].load(Acquire)
    }

    /// Inserts `at` before the slot `slot`; there is room. No entry disappears for readers.
    fn insert(&self, slot: usize, at: At, hint: u16) {
        let count = self.count();
        let copy = |from: usize, to: usize| {
            self.slots[to].store(self.slots[from].load(Relaxed), Release);
        };
        if slot < count {
            copy(count - 1, count);
            self.hints[count].store(self.hints[count - 1].load(Relaxed), Release);
        } else {
            self.slots[count].store(at, Release);
            self.hints[count].store(hint, Release);
        }
        self.count.store(count as u16 + 1, Release);
        for from in (slot..count.saturating_sub(1)).rev() {
            copy(from, from + 1);
        }
        self.slots[slot].store(at, Release);
        for from in (slot..count.saturating_sub(1)).rev() {
            self.hints[from + 1].store(self.hints[from].load(Relaxed), Release);
        }
        self.hints[slot].store(hint, Release);
    }
}

impl BLink {
    pub(super) fn new(pool: Arc<Pool>) -> BLink {
        let (arena, room) = Arena::new(pool);
        let tree = BLink {
            entries: Entries::new(arena),
            root: AtomicU32::new(NOWHERE),
            nodes: Default::default(),
            len: AtomicU64::new(0),
            versions: AtomicU64::new(0),
            last_lsn: AtomicU64::new(0),
            writer: Mutex::new(room),
        };
        let root = tree.new_node(&mut tree.writer.lock(), 0, &[], Scale::unknown(), NOWHERE);
        tree.root.store(root, Relaxed);
        tree
    }

    /// Bytes that entries and nodes take.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.arena.used_bytes()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.entries.arena.memory_bytes()
    }

    pub(super) fn len(&self) -> u64 {
        self.len.load(Acquire)
    }

    /// Whether a key may have several versions. A reader that can see two of them gets `true`.
    #[inline]
    pub(super) fn has_versions(&self) -> bool {
        self.versions.load(Relaxed) > 0
    }

    pub(super) fn last_lsn(&self) -> Lsn {
        Lsn(self.last_lsn.load(Acquire))
    }

    #[inline]
    fn entry(&self, at: At) -> EntryRef<'_> {
        // SAFETY: a number of an entry comes from a slot or a `low` of this tree, or from what was written to it and is not
        // sorted yet: `Loader`, which alone has that, has no other tree.
        unsafe { EntryRef::new(&self.entries, self.entries.arena.at(at)) }
    }

    #[inline]
    fn node(&self, at: At) -> &Node {
        // SAFETY: a number of a node comes from the root, a link or a slot of this tree; `new_node` has made it.
        unsafe { self.entries.arena.at(at).cast().as_ref() }
    }

    /// The lowest entry below a slot of this level.
    #[inline]
    fn lowest(&self, level: u8, at: At) -> EntryRef<'_> {
        self.entry(if level == 0 { at } else { self.node(at).low })
    }

    #[inline]
    fn hint(&self, node: &Node, key: &[u8]) -> u16 {
        node.scale.hint(key, || self.entry(node.low).key())
    }

    /// Number of slots before `(key, lsn)`, which has this `hint` in the node; during an insert perhaps fewer. In an
    /// inner node at least 1.
    #[inline]
    fn position(&self, node: &Node, hint: u16, key: &[u8], lsn: Lsn) -> usize {
        // Counts the lower hints: first of those that end a piece, then of one piece. No branch depends on the hints,
        // which are unpredictable, and only the loads of the second piece wait for others.
        let is_lower = |at: usize| usize::from(node.hints[at].load(Acquire) < hint);
        let piece = (1..PIECE).map(|piece| is_lower(piece * PIECE - 1)).sum::<usize>() * PIECE;
        let mut start = piece + (piece..piece + PIECE - 1).map(is_lower).sum::<usize>();
        let count = node.count();
        start = start.min(count).max(usize::from(node.level > 0));
        let mut end = start;
        while end < count && node.hints[end].load(Acquire) == hint {
            end += 1;
        }
        while start < end {
            let middle = start.midpoint(end);
            let is_before = self.lowest(node.level, node.slot(middle)).precedes(key, lsn);
            (start, end) = if is_before { (middle + 1, end) } else { (start, middle) };
        }
        start
    }

    /// The child that has `(key, lsn)`, or one to the left of it.
    #[inline]
    fn child(&self, node: &Node, key: &[u8], lsn: Lsn) -> At {
        node.slot(self.position(node, self.hint(node, key), key, lsn) - 1)
    }

    pub(super) fn insert(&self, key: &[u8], stamp: Stamp, entry: Entry<'_>) {
        let lsn = stamp.lsn;
        let mut room = self.writer.lock();
        let at = self.entries.write(&mut room, key, stamp, entry);
        let mut path = [NOWHERE; MAX_LEVELS];
        let mut here = self.root.load(Relaxed);
        loop {
            let node = self.node(here);
            path[usize::from(node.level)] = here;
            if node.level == 0 {
                break;
            }
            here = self.child(node, key, lsn);
        }
        self.add(&mut room, &path, 0, at, (key, lsn));
        self.last_lsn.store(self.last_lsn.load(Relaxed).max(lsn.0), Release);
        self.len.store(self.len.load(Relaxed) + 1, Release);
    }

    /// Adds an entry, or a node that its left neighbour already links to, to the node of `level` on the path. Its lowest
    /// entry is given: one that was just written would have to be read back from cold memory.
    fn add(&self, room: &mut Room, path: &[At; MAX_LEVELS], level: u8, at: At, (key, lsn): (&[u8], Lsn)) {
        let node = self.node(path[usize::from(level)]);
        let hint = self.hint(node, key);
        let slot = self.position(node, hint, key, lsn);
        if level == 0 {
            self.count_version(node, slot, hint, (key, lsn));
        }
        if node.count() < SLOTS {
            node.insert(slot, at, hint);
        } else if path[usize::from(level)] == self.root.load(Relaxed) {
            self.grow(room, node, slot, at);
        } else {
            let right = self.split(room, node, slot, at);
            let lowest = self.lowest(level + 1, right);
            self.add(room, path, level + 1, right, (lowest.key(), lowest.lsn()));
        }
    }

    /// Counts a version, before readers see the new entry at this slot of a leaf.
    fn count_version(&self, leaf: &Node, slot: usize, hint: u16, (key, lsn): (&[u8], Lsn)) {
        let after = if slot < leaf.count() {
            (leaf.hints[slot].load(Relaxed) == hint).then(|| self.entry(leaf.slot(slot)))
        } else {
            self.first_of(leaf.next.load(Relaxed)).map(|right| right.entry)
        };
        let older = after.filter(|after| after.key() == key);
        debug_assert!(older.is_none_or(|older| older.lsn() < lsn), "an LSN was inserted twice");
        // An entry that does not come in LSN order may have a newer version, in any place.
        if older.is_some() || lsn < self.last_lsn() {
            self.versions.store(self.versions.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Puts `at` into the full node, or into a new node to its right. Returns the new node, which takes the upper half.
    fn split(&self, room: &mut Room, node: &Node, slot: usize, at: At) -> At {
        let (level, next) = (node.level, node.next.load(Relaxed));
        let slots: [At; SLOTS] = array::from_fn(|slot| node.slots[slot].load(Relaxed));
        if slot == SLOTS {
            // Keys that are inserted in order leave full nodes behind.
            let scale = self.scale(level, &[slots[0], at], at);
            let right = self.new_node(room, level, &[at], scale, next);
            node.next.store(right, Release);
            return right;
        }
        let upper = &slots[SLOTS / 2..];
        let right = self.new_node(room, level, upper, self.scale(level, upper, upper[0]), next);
        node.next.store(right, Release);
        node.count.store((SLOTS / 2) as u16, Release);
        node.splits.store(node.splits.load(Relaxed) + 1, Release);
        let (into, slot) = if slot <= SLOTS / 2 { (node, slot) } else { (self.node(right), slot - SLOTS / 2) };
        into.insert(slot, at, self.hint(into, self.lowest(level, at).key()));
        right
    }

    /// Replaces the full root by one above two nodes of its level, which also have `at`.
    fn grow(&self, room: &mut Room, root: &Node, slot: usize, at: At) {
        let slots: [At; SLOTS + 1] = array::from_fn(|to| match to.cmp(&slot) {
            Ordering::Less => root.slots[to].load(Relaxed),
            Ordering::Equal => at,
            Ordering::Greater => root.slots[to - 1].load(Relaxed),
        });
        let level = root.level;
        let (lower, upper) = slots.split_at(if slot == SLOTS { SLOTS } else { SLOTS / 2 });
        let whole = self.scale(level, &slots, slots[0]);
        let upper_scale =
            if let [only] = upper { self.scale(level, &slots, *only) } else { self.scale(level, upper, upper[0]) };
        let right = self.new_node(room, level, upper, upper_scale, NOWHERE);
        let left = self.new_node(room, level, lower, self.scale(level, lower, lower[0]), right);
        let above = self.new_node(room, level + 1, &[left, right], whole, NOWHERE);
        self.root.store(above, Release);
        let nodes = &self.nodes[usize::from(level)];
        nodes.store(nodes.load(Relaxed) - 1, Relaxed);
    }

    /// A scale for nodes that begin with `from` and whose keys span about as much as those of `slots`.
    fn scale(&self, level: u8, slots: &[At], from: At) -> Scale {
        let (first, last) = (slots[0], slots[slots.len() - 1]);
        let key = |at| self.lowest(level, at).key();
        Scale::new(key(first), key(last), key(from))
    }

    fn new_node(&self, room: &mut Room, level: u8, slots: &[At], scale: Scale, next: At) -> At {
        let low = slots.first().map_or(NOWHERE, |first| if level == 0 { *first } else { self.node(*first).low });
        let (number, memory) = self.entries.arena.take(room, size_of::<Node>(), align_of::<Node>());
        let mut node = Node {
            scale,
            level,
            low,
            next: AtomicU32::new(next),
            splits: AtomicU32::new(0),
            count: AtomicU16::new(slots.len() as u16),
            hints: [const { AtomicU16::new(u16::MAX) }; SLOTS + 1],
            slots: [const { AtomicU32::new(NOWHERE) }; SLOTS],
        };
        if level == 0 {
            slots.iter().for_each(|at| self.entries.arena.prefetch(*at));
        }
        for (slot, at) in slots.iter().enumerate() {
            *node.slots[slot].get_mut() = *at;
            let hint = self.hint(&node, self.lowest(level, *at).key());
            *node.hints[slot].get_mut() = hint;
        }
        // SAFETY: fresh memory that is large enough and aligned; no other thread knows its number.
        unsafe { memory.cast().write(node) };
        let nodes = &self.nodes[usize::from(level)];
        nodes.store(nodes.load(Relaxed) + 1, Relaxed);
        number
    }

    #[inline]
    fn found<'a>(&'a self, leaf: &'a Node, slot: usize, at: At) -> FoundEntry<'a> {
        FoundEntry { tree: self, leaf, slot, at, entry: self.entry(at) }
    }

    /// The first entry of a leaf; the leaf is not the first of the level.
    #[inline]
    fn first_of(&self, leaf: At) -> Option<FoundEntry<'_>> {
        (leaf != NOWHERE).then(|| self.node(leaf)).map(|leaf| self.found(leaf, 0, leaf.low))
    }

    fn gap(&self, key: &[u8], lsn: Lsn) -> Gap<'_> {
        let mut node = self.node(self.root.load(Acquire));
        while node.level > 0 {
            node = self.node(self.child(node, key, lsn));
        }
        loop {
            let splits = node.splits.load(Acquire);
            let mut slot = self.position(node, self.hint(node, key), key, lsn);
            let found = |slot| self.found(node, slot, node.slot(slot));
            let mut gap = loop {
                // In this order: an entry that comes between them meanwhile is new.
                let before = slot.checked_sub(1).map(found);
                let after = (slot < node.count()).then(|| found(slot));
                match after {
                    Some(after) if after.entry.precedes(key, lsn) => slot += 1,
                    _ => break Gap { before, after },
                }
            };
            if gap.after.is_none() {
                gap.after = self.first_of(node.next.load(Acquire));
                if let Some(right) = gap.after
                    && right.entry.precedes(key, lsn)
                {
                    node = right.leaf;
                    continue;
                }
            }
            if node.splits.load(Acquire) == splits {
                return gap;
            }
        }
    }

    /// The newest version of `key` with an LSN of at most `lsn`; otherwise the next entry.
    #[inline]
    pub(super) fn seek(&self, key: &[u8], lsn: Lsn) -> Option<FoundEntry<'_>> {
        self.gap(key, lsn).after
    }

    /// The last entry before `(key, lsn)`.
    pub(super) fn before(&self, key: &[u8], lsn: Lsn) -> Option<FoundEntry<'_>> {
        self.gap(key, lsn).before
    }

    /// The last entry.
    pub(super) fn last(&self) -> Option<FoundEntry<'_>> {
        let mut here = self.root.load(Acquire);
        loop {
            let node = self.node(here);
            let (next, count) = (node.next.load(Acquire), node.count());
            if next != NOWHERE {
                here = next;
                continue;
            }
            let slot = count.checked_sub(1)?;
            let at = node.slot(slot);
            if node.level > 0 {
                here = at;
            } else if node.count() == count && node.next.load(Acquire) == NOWHERE {
                return Some(self.found(node, slot, at));
            }
        }
    }

    /// Number and bytes of the entries from `start` up to, but without, `end`: exact if they are few, otherwise
    /// extrapolated from a level that has enough nodes in the range.
    pub(super) fn estimate(&self, start: &[u8], end: Option<&[u8]>) -> (u64, u64) {
        let newest = Lsn(u64::MAX);
        let mut here = self.root.load(Acquire);
        loop {
            let node = self.node(here);
            let below = usize::from(node.level)
                .checked_sub(1)
                .map_or(self.len(), |level| self.nodes[level].load(Relaxed).into());
            let (entries, bytes) = self.sample(node, self.position(node, self.hint(node, start), start, newest), end);
            if node.level == 0 {
                return (entries, bytes);
            }
            if entries >= LEAST_SAMPLE {
                let each = self.len() as f64 / below.max(1) as f64;
                return ((entries as f64 * each) as u64, (bytes as f64 * each) as u64);
            }
            here = self.child(node, start, newest);
        }
    }

    /// Number and bytes of the lowest entries below the slots from `slot` on, up to `end`.
    fn sample<'a>(&'a self, mut node: &'a Node, mut slot: usize, end: Option<&[u8]>) -> (u64, u64) {
        let (mut entries, mut bytes) = (0, 0);
        loop {
            while slot < node.count() {
                let entry = self.lowest(node.level, node.slot(slot));
                if end.is_some_and(|end| entry.key() >= end) {
                    return (entries, bytes);
                }
                (entries, bytes) = (entries + 1, bytes + entry.pair_bytes() as u64);
                slot += 1;
            }
            match node.next.load(Acquire) {
                NOWHERE => return (entries, bytes),
                next => (node, slot) = (self.node(next), 0),
            }
        }
    }
}

impl Drop for BLink {
    fn drop(&mut self) {
        // SAFETY: the room is this arena's; nothing that borrows the tree is left.
        unsafe { self.entries.arena.free(self.writer.get_mut()) };
    }
}

#[cfg(test)]
mod tests;
