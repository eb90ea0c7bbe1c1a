//! Look-ups of many keys at once: keys that memory cannot answer are read from the device in rounds, several reads in
//! flight.
//!
//! A round reads, for each open key, the one leaf that may hold it, level by level. The last round reads all values in
//! the log, a bounded number of bytes at a time. Large values, and leaves larger than a node, are read as far as there is
//! room for them. All values are memory of the budget until the look-up ends; then they are the caller's.

use super::{Lookup, Now, Reach, Version};
use crate::cache::Leaf;
use crate::error::Result;
use crate::log::ValueAt;
use crate::memory::{Purpose, Reservation};
use crate::memtable::Entry;
use crate::tree::{KeyPlace, LeafSegment, Probe, Source, search};
use leeward_format::leaf_segment::LeafPlace;
use leeward_format::node::NODE_BYTES;
use leeward_format::{Lsn, Pointer, SegmentNo, Stamp, filter};
use std::collections::HashMap;

/// Most keys of a batch: it holds a leaf in memory for each.
const MOST_KEYS: usize = 128;
/// Most bytes of values that are read at a time, except for a single larger one. Less if the budget is small.
const MOST_BYTES: usize = 2 << 20;
/// Values of up to this many bytes are read whether or not there is room for them.
pub const SMALL_VALUE_BYTES: usize = 2048;

/// A key without an answer yet.
#[derive(Clone, Copy)]
struct Pending {
    /// Its position among the keys.
    i: usize,
    hash: u64,
    /// No higher level has it.
    level: usize,
}

/// A key whose value is in the log.
struct InLog {
    i: usize,
    stamp: Stamp,
    pointer: Pointer,
    value_bytes: u32,
}

/// Bytes of large values, and of jumbo leaves, that may still be read.
struct Room {
    left: usize,
    /// Number of keys in the batches before this one.
    passed: usize,
    /// Number of the first key that took room. It may take more than there is.
    first: Option<usize>,
}

impl Room {
    /// If it is 0 at the start, no key may take more.
    fn new(bytes: usize) -> Room {
        Room { left: bytes, passed: 0, first: (bytes == 0).then_some(usize::MAX) }
    }

    /// Takes room for the key at position `i` of the batch, if it is for more than a small value. The first key always
    /// gets it, however often it asks: once for a jumbo leaf without an entry of it, and again for its value.
    fn take(&mut self, i: usize, bytes: usize) -> bool {
        if bytes <= SMALL_VALUE_BYTES {
            return true;
        }
        let number = self.passed + i;
        let fits = bytes <= self.left || *self.first.get_or_insert(number) == number;
        if fits {
            self.first.get_or_insert(number);
            self.left = self.left.saturating_sub(bytes);
        }
        fits
    }
}

/// Leaves to read, each once.
#[derive(Default)]
struct Leaves<'a> {
    reads: Vec<((SegmentNo, u32), Vec<u8>)>,
    from: Vec<(&'a LeafSegment, LeafPlace)>,
    known: HashMap<(SegmentNo, u32), usize>,
}

/// A leaf to read for a key.
struct WantedLeaf {
    /// Its position among the leaves to read.
    leaf: usize,
    /// Room that was taken for it, in bytes: enough for a value in it.
    paid: usize,
}

impl<'a> Leaves<'a> {
    /// Adds a leaf for the key at position `i` of the batch; `None` if there is no room for it.
    fn add(&mut self, segment: &'a LeafSegment, place: LeafPlace, room: &mut Room, i: usize) -> Option<WantedLeaf> {
        let (at, bytes) = ((segment.segment().no(), place.offset), place.bytes as usize);
        if let Some(leaf) = self.known.get(&at) {
            return Some(WantedLeaf { leaf: *leaf, paid: 0 });
        }
        let paid = if bytes > NODE_BYTES { bytes } else { 0 };
        if !room.take(i, paid) {
            return None;
        }
        let leaf = self.from.len();
        self.known.insert(at, leaf);
        self.reads.push((at, vec![0; bytes]));
        self.from.push((segment, place));
        Some(WantedLeaf { leaf, paid })
    }

    fn read(mut self, version: &Version) -> Result<ReadLeaves<'a>> {
        let bytes = self.reads.iter().map(|(_, bytes)| bytes.len()).sum();
        let _reservation = version.reads.volume.memory().take(Purpose::Reads, bytes);
        version.reads.volume.read_many(&mut self.reads)?;
        let read = self.reads.into_iter().zip(self.from).map(|((_, bytes), (segment, place))| {
            version.reads.volume.cache().count_miss();
            Ok((segment.parse_leaf(&version.reads, &bytes.into(), place)?, segment, place))
        });
        Ok(ReadLeaves { leaves: read.collect::<Result<_>>()?, _reservation })
    }
}

/// Leaves that were read, and the reservation of their memory.
struct ReadLeaves<'a> {
    leaves: Vec<(Leaf, &'a LeafSegment, LeafPlace)>,
    _reservation: Reservation,
}

impl Version {
    /// [`Version::get`] of each key, as of its LSN, from the device if necessary, several reads at a time.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes, for any of the keys.
    pub(crate) fn get_many(&self, keys: &[(&[u8], Lsn)], now: Now<'_>) -> Result<Vec<Lookup>> {
        self.get_many_within(keys, now, usize::MAX)
    }

    /// [`Version::get_many`] with at most `room` bytes of values larger than [`SMALL_VALUE_BYTES`] and of jumbo leaves,
    /// but at least one such value unless `room` is 0. A key whose value does not fit is [`Lookup::NotInMemory`].
    ///
    /// # Errors
    /// As [`Version::get_many`].
    pub fn get_many_within(&self, keys: &[(&[u8], Lsn)], now: Now<'_>, room: usize) -> Result<Vec<Lookup>> {
        let mut answers = Vec::with_capacity(keys.len());
        let mut room = Room::new(room);
        let held = self.reads.volume.memory().reserve(Purpose::Reads);
        for keys in keys.chunks(MOST_KEYS) {
            let before = held.bytes();
            let found = self.get_round(keys, now, &mut room, &held)?;
            held.set(before + value_bytes(&found));
            answers.extend(found);
            room.passed += keys.len();
        }
        Ok(answers)
    }

    fn get_round(
        &self,
        keys: &[(&[u8], Lsn)],
        now: Now<'_>,
        room: &mut Room,
        held: &Reservation,
    ) -> Result<Vec<Lookup>> {
        let in_memory = keys.iter().map(|(key, at)| self.get(key, *at, Reach::Memory, now));
        let mut answers = in_memory.collect::<Result<Vec<_>>>()?;
        held.set(held.bytes() + value_bytes(&answers));
        let (mut pending, mut in_log) = (Vec::new(), Vec::new());
        for (i, (key, at)) in keys.iter().enumerate() {
            match &answers[i] {
                Lookup::NotInMemory => {}
                Lookup::Found { value, .. } if !room.take(i, value.len()) => {
                    answers[i] = Lookup::NotInMemory;
                    continue;
                }
                _ => continue,
            }
            let hash = filter::hash(key);
            match self.in_l0(key, hash, *at) {
                Some((stamp, Entry::InLog { pointer, value_bytes })) => {
                    in_log.push(InLog { i, stamp, pointer, value_bytes });
                }
                _ => pending.push(Pending { i, hash, level: 0 }),
            }
        }
        while !pending.is_empty() {
            pending = self.next_leaves((keys, now), &pending, &mut answers, &mut in_log, room)?;
        }
        // In key order, so that the first of them is read if no other key took room.
        in_log.sort_unstable_by_key(|at| at.i);
        in_log.retain(|at| {
            answers[at.i] = Lookup::NotInMemory;
            room.take(at.i, at.value_bytes as usize)
        });
        let mut rest = &in_log[..];
        while !rest.is_empty() {
            let (some, later) = rest.split_at(at_once(rest, self.reads.volume.memory().piece(MOST_BYTES)));
            held.set(held.bytes() + some.iter().map(|at| u64::from(at.value_bytes)).sum::<u64>());
            self.read_values(keys, some, &mut answers)?;
            rest = later;
        }
        Ok(answers)
    }

    /// Answers the keys `in_log`.
    fn read_values(&self, keys: &[(&[u8], Lsn)], in_log: &[InLog], answers: &mut [Lookup]) -> Result<()> {
        let place = |at: &InLog| {
            let (expires, value_bytes) = (at.stamp.expires, at.value_bytes);
            (ValueAt { pointer: at.pointer, key: keys[at.i].0, value_bytes, expires }, at.stamp.lsn)
        };
        let places: Vec<_> = in_log.iter().map(place).collect();
        for (at, value) in in_log.iter().zip(self.reads.values(&places, self.generation)?.values) {
            let Stamp { lsn, expires } = at.stamp;
            answers[at.i] = Lookup::Found { lsn, expires, value };
        }
        Ok(())
    }

    /// For each pending key goes down to the next leaf that may hold it, and reads those that are not in memory.
    /// Returns the keys that are still pending.
    fn next_leaves(
        &self,
        (keys, now): (&[(&[u8], Lsn)], Now<'_>),
        pending: &[Pending],
        answers: &mut [Lookup],
        in_log: &mut Vec<InLog>,
        room: &mut Room,
    ) -> Result<Vec<Pending>> {
        let mut leaves = Leaves::default();
        let (mut waiting, mut still) = (Vec::new(), Vec::new());
        let mut see = |at: Pending, probe: Probe, paid: usize, (answer, room): (&mut Lookup, &mut Room)| match self
            .seen(keys[at.i].0, at, probe, now)
        {
            Seen::Answer(Lookup::Found { value, .. }) if !room.take(at.i, value.len().saturating_sub(paid)) => {
                *answer = Lookup::NotInMemory;
            }
            Seen::Answer(found) => *answer = found,
            Seen::InLog(found) => in_log.push(found),
            Seen::Below => still.push(Pending { level: at.level + 1, ..at }),
        };
        for mut at in pending.iter().copied() {
            let (key, answer) = (keys[at.i].0, &mut answers[at.i]);
            *answer = Lookup::Absent;
            while let Some(level) = self.filled().get(at.level) {
                match level.place(&self.reads, key, at.hash)? {
                    KeyPlace::Nowhere(None) => {
                        at.level += 1;
                        continue;
                    }
                    KeyPlace::Nowhere(deleted) => see(at, Probe::absent(deleted), 0, (answer, room)),
                    KeyPlace::Leaf(leaf, deleted) => {
                        let probe = search(&leaf, key, Source::Memory);
                        see(at, probe.or_else(|| deleted), 0, (answer, room));
                    }
                    KeyPlace::Device(segment, place, deleted) => match leaves.add(segment, place, room, at.i) {
                        Some(wanted) => waiting.push((at, wanted, deleted)),
                        None => *answer = Lookup::NotInMemory,
                    },
                }
                break;
            }
        }
        let read = leaves.read(self)?;
        for (at, WantedLeaf { leaf, paid }, deleted) in waiting {
            let (leaf, segment, place) = &read.leaves[leaf];
            let probe = segment.search_read(&self.reads, leaf, *place, (keys[at.i].0, at.hash));
            see(at, probe.or_else(|| deleted), paid, (&mut answers[at.i], room));
        }
        Ok(still)
    }

    fn seen(&self, key: &[u8], at: Pending, probe: Probe, now: Now<'_>) -> Seen {
        let Probe::Found { stamp, found, from } = probe else { return Seen::Below };
        match self.found(key, at.hash, stamp, (found, from), now) {
            Ok(answer) => Seen::Answer(answer),
            Err(ValueAt { pointer, value_bytes, .. }) => Seen::InLog(InLog { i: at.i, stamp, pointer, value_bytes }),
        }
    }
}

/// How many of these values are read at once: at most `most` bytes, and at least one.
fn at_once(in_log: &[InLog], most: usize) -> usize {
    let mut bytes = 0;
    let fits = |at: &&InLog| {
        bytes += at.value_bytes as usize;
        bytes <= most
    };
    in_log.iter().take_while(fits).count().max(1)
}

/// Bytes of the values that were found.
fn value_bytes(answers: &[Lookup]) -> u64 {
    let bytes = |found: &Lookup| match found {
        Lookup::Found { value, .. } => value.len() as u64,
        _ => 0,
    };
    answers.iter().map(bytes).sum()
}

/// Result of a leaf for a key.
enum Seen {
    Answer(Lookup),
    InLog(InLog),
    /// No entry: a lower level may have one.
    Below,
}

#[cfg(test)]
#[path = "many_tests.rs"]
mod tests;
