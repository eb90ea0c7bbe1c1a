//! Reading consecutive leaf segments for a merge: leaves one after the other, in large sequential chunks that do not pass
//! through the cache.

use super::plan::Counters;
use crate::cache::Leaf;
use crate::error::Result;
use crate::tree::LeafSegment;
use crate::version::Reads;
use bytes::Bytes;
use leeward_format::Lsn;
use leeward_format::leaf_segment::LeafPlace;
use leeward_format::node::Entry;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that are read at once; a jumbo leaf may be more.
const CHUNK_BYTES: usize = 512 << 10;

/// The entries of a run of leaf segments.
pub(super) struct Run {
    reads: Arc<Reads>,
    segments: VecDeque<Arc<LeafSegment>>,
    /// The segment that is being read, its leaves, and the position of the next one.
    open: Option<(Arc<LeafSegment>, Arc<[LeafPlace]>, usize)>,
    /// Where the chunk begins in that segment.
    chunk_at: u32,
    chunk: Bytes,
    here: Option<(Leaf, usize)>,
    key: Vec<u8>,
}

impl Run {
    /// Stands on the first entry of `segments`.
    pub(super) fn new(reads: &Arc<Reads>, segments: &[Arc<LeafSegment>], counters: &mut Counters) -> Result<Run> {
        let mut run = Run {
            reads: Arc::clone(reads),
            segments: segments.iter().cloned().collect(),
            open: None,
            chunk_at: 0,
            chunk: Bytes::new(),
            here: None,
            key: Vec::new(),
        };
        run.next_leaf(counters)?;
        Ok(run)
    }

    #[inline]
    pub(super) fn key(&self) -> Option<&[u8]> {
        self.here.is_some().then_some(&self.key[..])
    }

    #[inline]
    pub(super) fn current(&self) -> Option<(&[u8], Lsn, Entry<'_>)> {
        let (leaf, slot) = self.here.as_ref()?;
        let (lsn, entry) = leaf.entry(*slot);
        Some((&self.key, lsn, entry))
    }

    pub(super) fn step(&mut self, counters: &mut Counters) -> Result<()> {
        let Some((leaf, slot)) = &mut self.here else { return Ok(()) };
        *slot += 1;
        if *slot < leaf.len() {
            leaf.key_into(*slot, &mut self.key);
            return Ok(());
        }
        self.next_leaf(counters)
    }

    fn next_leaf(&mut self, counters: &mut Counters) -> Result<()> {
        self.here = None;
        while self.open.as_ref().is_none_or(|(_, places, next)| *next == places.len()) {
            let Some(segment) = self.segments.pop_front() else { return Ok(()) };
            let places = Arc::clone(segment.index_from_device(&self.reads)?.leaves());
            self.open = Some((segment, places, 0));
            (self.chunk_at, self.chunk) = (0, Bytes::new());
        }
        let (segment, places, next) = self.open.as_mut().expect("a segment is open");
        let place = places[*next];
        if (place.offset - self.chunk_at) as usize >= self.chunk.len() {
            let mut bytes = vec![0; chunk_bytes(&places[*next..])];
            self.reads.volume.read(segment.segment().no(), place.offset, &mut bytes)?;
            counters.bytes_read += bytes.len() as u64;
            (self.chunk_at, self.chunk) = (place.offset, bytes.into());
        }
        let at = (place.offset - self.chunk_at) as usize;
        let leaf = segment.parse_leaf(&self.reads, self.chunk.slice(at..at + place.bytes as usize), place)?;
        *next += 1;
        counters.entries_read += leaf.len() as u64;
        leaf.key_into(0, &mut self.key);
        self.here = Some((leaf, 0));
        Ok(())
    }
}

/// Length of as many of the next leaves as make a chunk; of one at least.
fn chunk_bytes(places: &[LeafPlace]) -> usize {
    let mut bytes = 0;
    for place in places {
        if bytes > 0 && bytes + place.bytes as usize > CHUNK_BYTES {
            break;
        }
        bytes += place.bytes as usize;
    }
    bytes
}
