//! The key that halves a region: the point of a split.
//!
//! Each level is cut into pieces, weighed by the bytes that they hold and point to. Pieces are leaf segments; parts of
//! their leaves if there are few segments; and parts of the L0s if there are no levels. Half of the pieces that contain
//! a key count as below it.

use super::Region;
use crate::error::Result;
use crate::memtable::{Entry, MemTable};
use crate::reads::{Reach, Reads};
use crate::tree::{LeafSegment, Level};
use crate::version::Version;
use leeward_format::Lsn;
use leeward_format::leaf_segment::Footer;
use std::ops::Range;
use std::sync::Arc;

/// If there are fewer leaf segments than this, their leaves are weighed.
const FEW_SEGMENTS: usize = 16;
/// Approximate number of pieces of those few segments, or of an L0.
const SAMPLES: usize = 256;
/// Approximate number of leaf segments of a level whose index is read from the device if it is not in memory.
const READ_SEGMENTS: usize = 16;

/// A part of a level: its first key, and its approximate bytes.
type Piece = (Vec<u8>, u64);

/// A key where pieces end and others begin.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cut {
    key: Vec<u8>,
    /// Bytes of the pieces that end, and of those that begin.
    bytes: (u64, u64),
}

impl Region {
    /// A key with about as many bytes below it as from it on, counting keys from `start` up to, but without, `end`;
    /// without an end, all from `start` on. It is above `start` and below `end`, and both sides have pairs, unless
    /// newer versions hide them. `None` if there is no such key.
    ///
    /// Values in logs count where their pairs are. L0s count only if there are no levels. May read from the device: one
    /// index for each sixteenth of each level; or, if there are few leaf segments, their indexes and about 256 leaves.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn middle(&self, start: &[u8], end: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let mut cuts = self.view.load_full().version.cuts(start, end)?;
        cuts.sort_unstable();
        Ok(halve(&cuts, start))
    }
}

impl Version {
    /// Keys where the range can be cut, for each level.
    fn cuts(&self, start: &[u8], end: Option<&[u8]>) -> Result<Vec<Cut>> {
        let levels = self.filled();
        let within = |level: &Level| {
            let last = end.map_or(level.segments().len() - 1, |end| level.segment_of(end));
            level.segment_of(start)..last + 1
        };
        let segments: usize = levels.iter().map(|level| within(level).len()).sum();
        let mut cuts = Vec::new();
        for level in levels {
            let range = within(level);
            let found = match segments < FEW_SEGMENTS {
                true => leaves(self.reads(), &level.segments()[range], SAMPLES.div_ceil(segments))?,
                false => whole_segments(self.reads(), level, range)?,
            };
            cuts.extend(cut(clamped(found, start, end)));
        }
        if levels.is_empty() {
            let l0s = std::iter::once(self.active()).chain(self.frozen());
            cuts.extend(l0s.flat_map(|l0| cut(keys(l0, start, end))));
        }
        Ok(cuts)
    }
}

/// The cuts between the consecutive pieces of a level.
fn cut(pieces: Vec<Piece>) -> impl Iterator<Item = Cut> {
    let mut before = 0;
    pieces.into_iter().map(move |(key, bytes)| Cut { key, bytes: (std::mem::replace(&mut before, bytes), bytes) })
}

/// The pieces of a level in a range. The piece that contains `start` begins there.
fn clamped(mut pieces: Vec<Piece>, start: &[u8], end: Option<&[u8]>) -> Vec<Piece> {
    let first = pieces.partition_point(|(key, _)| &key[..] <= start).saturating_sub(1);
    pieces.drain(..first);
    if let Some((key, _)) = pieces.first_mut().filter(|(key, _)| &key[..] < start) {
        *key = start.to_vec();
    }
    pieces.retain(|(key, _)| end.is_none_or(|end| &key[..] < end));
    pieces
}

fn bytes_of(footer: &Footer) -> u64 {
    footer.payload_bytes + footer.log_bytes
}

/// One piece for each leaf segment. A segment whose index is not in memory counts as much as the one before it.
fn whole_segments(reads: &Reads, level: &Level, range: Range<usize>) -> Result<Vec<Piece>> {
    let (every, mut bytes, mut pieces) = (range.len().div_ceil(READ_SEGMENTS), 0, Vec::new());
    for (i, position) in range.enumerate() {
        let reach = if i % every == 0 { Reach::Device } else { Reach::Memory };
        if let Some(index) = level.segments()[position].index(reads, reach)? {
            bytes = bytes_of(index.footer());
        }
        pieces.push((level.fence(position).to_vec(), bytes));
    }
    Ok(pieces)
}

/// About `samples` pieces of each segment. In segments with more leaves than that, each visited leaf also stands for
/// those after it.
fn leaves(reads: &Reads, segments: &[Arc<LeafSegment>], samples: usize) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    for segment in segments {
        let index = segment.index_from_device(reads)?;
        let places = index.leaves();
        let every = places.len().div_ceil(samples);
        for (i, place) in places.iter().enumerate().step_by(every) {
            let leaf = match segment.cached_leaf(*place) {
                Some(leaf) => leaf,
                None => segment.load_leaf(reads, *place)?,
            };
            let stands_for = every.min(places.len() - i) as u64;
            let of_a_leaf = leaf.len().div_ceil(samples.div_ceil(places.len()));
            for slot in 0..leaf.len() {
                let mut key = Vec::new();
                leaf.key_into(slot, &mut key);
                let bytes = stands_for * pair_bytes(&key, &leaf.entry(slot).1);
                add(&mut pieces, slot % of_a_leaf == 0, key, bytes);
            }
        }
    }
    Ok(pieces)
}

/// Pieces of the keys of an L0 in the range.
fn keys(l0: &MemTable, start: &[u8], end: Option<&[u8]>) -> Vec<Piece> {
    let (pieces, passed) = every_so_many(l0, start, end, l0.entries() as usize / SAMPLES + 1);
    match pieces.len() < SAMPLES / 2 {
        // The range has few keys with many versions each, or is a small part of the L0.
        true => every_so_many(l0, start, end, passed / SAMPLES + 1).0,
        false => pieces,
    }
}

/// A piece for every `every` keys, and the number of keys.
fn every_so_many(l0: &MemTable, start: &[u8], end: Option<&[u8]>, every: usize) -> (Vec<Piece>, usize) {
    let (mut pieces, mut passed) = (Vec::new(), 0);
    let mut cursor = l0.cursor(Lsn(u64::MAX));
    cursor.seek(start);
    while let Some((key, _, entry)) = cursor.current().filter(|(key, ..)| end.is_none_or(|end| *key < end)) {
        add(&mut pieces, passed % every == 0, key.to_vec(), pair_bytes(key, &entry));
        passed += 1;
        cursor.step();
    }
    (pieces, passed)
}

/// Begins a piece with a pair, or adds it to the last one.
fn add(pieces: &mut Vec<Piece>, begins: bool, key: Vec<u8>, bytes: u64) {
    match pieces.last_mut().filter(|_| !begins) {
        Some((_, all)) => *all += bytes,
        None => pieces.push((key, bytes)),
    }
}

fn pair_bytes(key: &[u8], entry: &Entry<'_>) -> u64 {
    let value_bytes = match entry {
        Entry::InPlace(value) => value.len() as u64,
        Entry::InLog { value_bytes, .. } => (*value_bytes).into(),
        Entry::Tombstone => 0,
    };
    key.len() as u64 + value_bytes
}

/// The key above `start` with most nearly half of all bytes below it. `cuts` are sorted.
fn halve(cuts: &[Cut], start: &[u8]) -> Option<Vec<u8>> {
    let all: u64 = cuts.iter().map(|cut| cut.bytes.1).sum();
    // Sums are in half bytes.
    let (mut below, mut best) = (0, None);
    for same in cuts.chunk_by(|a, b| a.key == b.key) {
        below += same.iter().map(|cut| cut.bytes.0).sum::<u64>();
        let off_by = u64::abs_diff(below, all);
        let is_better = best.is_none_or(|(_, least)| off_by < least);
        if below > 0 && &same[0].key[..] > start && is_better {
            best = Some((&same[0].key, off_by));
        }
        below += same.iter().map(|cut| cut.bytes.1).sum::<u64>();
    }
    best.map(|(key, _)| key.clone())
}
