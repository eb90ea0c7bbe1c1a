//! Reads consecutive leaf segments for a merge: leaf after leaf, in large sequential chunks that bypass the cache.
//! Values in logs that the merge moves are fetched ahead.

use super::newest::Input;
use super::placing::{Move, Placing};
use super::plan::Counters;
use crate::cache::Leaf;
use crate::error::Result;
use crate::log::WantedRecord;
use crate::memory::{Purpose, Reservation};
use crate::reads::Reads;
use crate::tree::LeafSegment;
use crate::volume::Reading;
use bytes::Bytes;
use leeward_format::leaf_segment::LeafPlace;
use leeward_format::node::{Decoded, Entry};
use leeward_format::{Pointer, Stamp};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a chunk, unless memory is short; a jumbo leaf may be larger.
const CHUNK_BYTES: usize = 512 << 10;
/// Bytes of values fetched at once, likewise; a single value may be larger. They belong to leaves of one chunk.
const AHEAD_BYTES: usize = 4 << 20;

/// The entries of a run of leaf segments.
pub(super) struct Run {
    reads: Arc<Reads>,
    segments: VecDeque<Arc<LeafSegment>>,
    /// The segment that is being read, its leaves, and the position of the next one.
    open: Option<(Arc<LeafSegment>, Arc<[LeafPlace]>, usize)>,
    /// Bytes of a chunk, at most; a jumbo leaf may be more.
    most_chunk_bytes: usize,
    /// Offset of the chunk in that segment.
    chunk_at: u32,
    chunk: Bytes,
    /// The chunk after it, which is being read.
    next_chunk: Option<(u32, Reading)>,
    /// Leaves of the chunk whose values are in `ahead` already.
    parsed: VecDeque<Leaf>,
    here: Option<Here>,
    key: Vec<u8>,
    /// Values of entries from the current one on, in their order.
    ahead: VecDeque<(Pointer, Bytes)>,
    /// For the values in `ahead`.
    reservation: Reservation,
}

/// The current entry.
struct Here {
    leaf: Leaf,
    slot: usize,
    entry: Decoded,
}

impl Input for Run {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.here.is_some().then_some(&self.key[..])
    }

    #[inline]
    fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        let Here { leaf, entry, .. } = self.here.as_ref()?;
        Some((&self.key, entry.stamp(), leaf.decoded_contents(entry)))
    }

    #[inline]
    fn step(&mut self, counters: &mut Counters) -> Result<()> {
        let Some(Here { leaf, slot, entry }) = &mut self.here else { return Ok(()) };
        *slot += 1;
        if *slot < leaf.len() {
            *entry = leaf.decode(*slot);
            self.key.truncate(leaf.prefix().len());
            self.key.extend_from_slice(leaf.decoded_suffix(entry));
            return Ok(());
        }
        self.next_leaf(counters)
    }
}

impl Run {
    /// Begins on the first entry of `segments`.
    pub(super) fn new(reads: &Arc<Reads>, segments: &[Arc<LeafSegment>], counters: &mut Counters) -> Result<Run> {
        Run::of_several(reads, segments, 1, counters)
    }

    /// [`Run::new`] for one of `runs` inputs that share the memory of one.
    pub(super) fn of_several(
        reads: &Arc<Reads>,
        segments: &[Arc<LeafSegment>],
        runs: usize,
        counters: &mut Counters,
    ) -> Result<Run> {
        let mut run = Run {
            reads: Arc::clone(reads),
            most_chunk_bytes: chunk_bytes_of(reads) / runs,
            segments: segments.iter().cloned().collect(),
            open: None,
            chunk_at: 0,
            chunk: Bytes::new(),
            next_chunk: None,
            parsed: VecDeque::new(),
            here: None,
            key: Vec::new(),
            ahead: VecDeque::new(),
            reservation: reads.volume.memory().reserve(Purpose::Compactions),
        };
        run.next_leaf(counters)?;
        Ok(run)
    }

    /// The value of the current entry, which `placing` moves out of its log.
    pub(super) fn moved(&mut self, placing: &Placing, counters: &mut Counters) -> Result<Bytes> {
        let Some((_, _, Entry::InLog { pointer, .. })) = self.current() else {
            unreachable!("only what is in a log is moved out of it");
        };
        loop {
            // Values of entries that the merge has dropped meanwhile are skipped.
            while let Some((of, value)) = self.ahead.pop_front() {
                if of == pointer {
                    return Ok(value);
                }
            }
            self.look_ahead(placing, counters)?;
        }
    }

    /// Fetches the values from the current entry on, as far as the chunk goes.
    fn look_ahead(&mut self, placing: &Placing, counters: &mut Counters) -> Result<()> {
        let mut wanted = Vec::new();
        let Here { leaf, slot, .. } = self.here.as_ref().expect("there is a current entry");
        let mut room = ahead_bytes_of(&self.reads) as u64;
        let mut goes_on = want(placing, leaf, *slot, &mut room, &mut wanted);
        let mut looked_at = 0;
        while goes_on {
            if looked_at == self.parsed.len() {
                if !self.is_in_chunk() {
                    break;
                }
                let Some(leaf) = self.parse_next(counters)? else { break };
                self.parsed.push_back(leaf);
            }
            goes_on = want(placing, &self.parsed[looked_at], 0, &mut room, &mut wanted);
            looked_at += 1;
        }
        self.ahead.clear();
        let fetched = self.reads.log.fetch(&wanted)?;
        counters.value_bytes_read += fetched.bytes_read;
        self.reservation.set(fetched.bytes_read);
        self.ahead = wanted.iter().map(|wanted| wanted.pointer).zip(fetched.values).collect();
        Ok(())
    }

    fn next_leaf(&mut self, counters: &mut Counters) -> Result<()> {
        self.here = None;
        let next = match self.parsed.pop_front() {
            Some(leaf) => Some(leaf),
            None => self.parse_next(counters)?,
        };
        if let Some(leaf) = next {
            leaf.key_into(0, &mut self.key);
            self.here = Some(Here { entry: leaf.decode(0), leaf, slot: 0 });
        }
        Ok(())
    }

    /// Whether the leaf that [`Run::parse_next`] returns next is in the chunk.
    fn is_in_chunk(&self) -> bool {
        let next = self.open.as_ref().and_then(|(_, places, next)| places.get(*next));
        next.is_some_and(|place| ((place.offset - self.chunk_at) as usize) < self.chunk.len())
    }

    fn parse_next(&mut self, counters: &mut Counters) -> Result<Option<Leaf>> {
        while self.open.as_ref().is_none_or(|(_, places, next)| *next == places.len()) {
            let Some(segment) = self.segments.pop_front() else { return Ok(None) };
            let places = Arc::clone(segment.index_from_device(&self.reads)?.leaves());
            self.open = Some((segment, places, 0));
            self.next_chunk = None;
            (self.chunk_at, self.chunk) = (0, Bytes::new());
        }
        let is_in_chunk = self.is_in_chunk();
        let (segment, places, next) = self.open.as_mut().expect("a segment is open");
        let place = places[*next];
        if !is_in_chunk {
            let (volume, most) = (&self.reads.volume, self.most_chunk_bytes);
            // Freed first: it must not take memory beside two new ones.
            self.chunk = Bytes::new();
            let begin = |places: &[LeafPlace]| {
                let at = places.first()?.offset;
                Some((at, volume.begin_read(segment.segment().no(), at, chunk_bytes(places, most))))
            };
            let chunk = self.next_chunk.take().filter(|(at, _)| *at == place.offset);
            let (_, chunk) = chunk.or_else(|| begin(&places[*next..])).expect("a leaf is next");
            let bytes = chunk.wait()?;
            counters.bytes_read += bytes.len() as u64;
            (self.chunk_at, self.chunk) = (place.offset, bytes.into());
            let end = place.offset as usize + self.chunk.len();
            let after = places.partition_point(|place| (place.offset as usize) < end);
            self.next_chunk = begin(&places[after..]);
        }
        let at = (place.offset - self.chunk_at) as usize;
        let leaf = segment.parse_leaf(&self.reads, &self.chunk.slice(at..at + place.bytes as usize), place)?;
        *next += 1;
        counters.entries_read += leaf.len() as u64;
        Ok(Some(leaf))
    }
}

/// Adds the values that `placing` moves out of logs, for a leaf's entries from `slot` on. Returns `false` once there is
/// no `room`.
fn want(placing: &Placing, leaf: &Leaf, slot: usize, room: &mut u64, wanted: &mut Vec<WantedRecord>) -> bool {
    for i in slot..leaf.len() {
        let decoded = leaf.decode(i);
        let key_bytes = leaf.prefix().len() + leaf.decoded_suffix(&decoded).len();
        let (stamp, entry) = (decoded.stamp(), leaf.decoded_contents(&decoded));
        let Entry::InLog { pointer, value_bytes } = entry else { continue };
        if matches!(placing.of(key_bytes, stamp, &entry, false), Move::Stay | Move::Expire) {
            continue;
        }
        if *room == 0 {
            return false;
        }
        *room = room.saturating_sub(u64::from(value_bytes));
        wanted.push(WantedRecord { pointer, stamp, key_bytes: key_bytes as u32, value_bytes });
    }
    true
}

/// Length of a chunk.
pub(super) fn chunk_bytes_of(reads: &Reads) -> usize {
    reads.volume.memory().piece(CHUNK_BYTES)
}

/// Bytes of values that are fetched at once.
pub(super) fn ahead_bytes_of(reads: &Reads) -> usize {
    reads.volume.memory().piece(AHEAD_BYTES)
}

/// Length of the next leaves that fit into a chunk of `most` bytes; of at least one.
fn chunk_bytes(places: &[LeafPlace], most: usize) -> usize {
    let mut bytes = 0;
    for place in places {
        if bytes > 0 && bytes + place.bytes as usize > most {
            break;
        }
        bytes += place.bytes as usize;
    }
    bytes
}
