//! Ingest of sorted pairs: leaf segments and runs of the large log are built of them directly, and installed by one
//! edit.
//!
//! 1. All pairs have one LSN, which is taken first. A record stands for it in the log, and the L0 freezes: later writes
//!    are newer and lie above.
//! 2. [`SortedBuilder`] writes the segments. Nothing refers to them; a fault frees them.
//! 3. Once the earlier L0s are compacted, one edit makes the segments a part of the levels as they are: nothing is merged.
//!    They become a run of L1 at the place of their LSNs, or go deeper, as far as nothing overlaps them
//!    (`pick/ingest.rs`).
//! 4. L0s that were written meanwhile may be compacted first. They become runs that leave a position free below them, for
//!    the ingest, and that are not merged into L2 before it has come. No tombstone is dropped while an ingest is open, not
//!    even in the last level.
//!
//! Values below the large size stay in place, in every level. One thread at a time.

use super::merge::Filling;
use super::output::{Built, Outbox};
use super::plan::{Counters, Output};
use super::{AddedSegment, Context, Source};
use crate::error::{Error, Result};
use crate::reads::Reads;
use crate::tree::Level;
use crate::volume::SegmentIds;
use leeward_format::cluster::{CompactionMode, Placement, SizeClass, TableOptions};
use leeward_format::leaf_segment::Span;
use leeward_format::node::Entry;
use leeward_format::packed::Compression;
use leeward_format::{LogKind, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_KEY_BYTES, SegmentId, SegmentName, UnixMs};
use std::sync::Arc;

/// Builds segments of pairs in ascending order of their keys.
pub struct SortedBuilder {
    context: Context,
    counters: Counters,
    filling: Option<Filling>,
    outbox: Outbox,
    sorted: Sorted,
    last_key: Vec<u8>,
}

/// Segments that are built but not installed.
#[derive(Default)]
pub struct Sorted {
    pub(super) leaves: Vec<Output>,
    added: Vec<AddedSegment>,
    /// Bytes behind the last record of a run.
    pub(super) padding: Vec<(SegmentId, u32)>,
    /// LSN of all pairs.
    lsn: Lsn,
    pairs: u64,
    pair_bytes: u64,
    /// Compactions keep tombstones while this exists.
    _open: Open,
}

/// Held while an ingest is under way.
pub(crate) type Open = Arc<()>;

impl SortedBuilder {
    /// A builder for pairs with this LSN.
    pub(crate) fn new(
        reads: Arc<Reads>,
        ids: SegmentIds,
        options: &TableOptions,
        lsn: Lsn,
        open: &Open,
    ) -> SortedBuilder {
        let sorted = || Sorted { lsn, _open: Arc::clone(open), ..Sorted::default() };
        let source = Source::Sorted { sorted: Arc::new(sorted()), target: 0 };
        // Most often the segments go to the last level.
        let levels = vec![Arc::new(Level::empty())];
        SortedBuilder {
            context: context(reads, ids, (options.placement, options.compression), source, levels),
            counters: Counters::default(),
            filling: None,
            outbox: Outbox::default(),
            sorted: sorted(),
            last_key: Vec::new(),
        }
    }

    /// Takes the next pair.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its key is not above the one before, or the pair is over the limits; [`Error::NoSpace`];
    /// those of writing. The builder is unusable then.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let shown = |key: &[u8]| key[..key.len().min(64)].escape_ascii().to_string();
        if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&key.len()) || value.len() > MAX_VALUE_BYTES {
            let (bytes, key) = (value.len(), shown(key));
            return Err(Error::Invalid(format!("key \"{key}\" or its value of {bytes} bytes is over the limits")));
        }
        if key <= &self.last_key[..] {
            let (key, last) = (shown(key), shown(&self.last_key));
            return Err(Error::Invalid(format!(
                "key \"{key}\" does not come after \"{last}\": ingest takes sorted keys, each once"
            )));
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let lsn = self.sorted.lsn;
        let entry = match self.context.placement.class(key.len(), value.len()) {
            SizeClass::Large => {
                self.outbox.run(&self.context, &mut self.counters, LogKind::Large, (key, lsn.into(), value))?
            }
            _ => Entry::InPlace(value),
        };
        loop {
            let filling = match &mut self.filling {
                Some(filling) => filling,
                None => self.filling.insert(Filling::start(&self.context)?),
            };
            if filling.builder.push(key, lsn, entry) {
                break;
            }
            if filling.builder.is_empty() {
                let segment_bytes = self.context.reads.volume.segment_bytes();
                return Err(Error::Invalid(format!("a pair is too large for segments of {segment_bytes} bytes")));
            }
            self.end_segment()?;
        }
        self.sorted.pairs += 1;
        self.sorted.pair_bytes += (key.len() + value.len()) as u64;
        self.collect();
        Ok(())
    }

    fn end_segment(&mut self) -> Result<()> {
        if let Some(full) = self.filling.take() {
            let (output, built) = full.finish(&self.context, &mut self.counters)?;
            self.outbox.leaf(&self.context, &mut self.counters, output, built)?;
        }
        Ok(())
    }

    /// Collects the segments that are written, and frees their bytes in memory.
    fn collect(&mut self) {
        while let Some(built) = self.outbox.pop() {
            match built {
                Built::Run(run) => self.sorted.added.push(run.added()),
                Built::Leaf(output, leaf) => {
                    self.sorted.added.push(leaf.added());
                    self.sorted.leaves.push(output);
                }
            }
        }
    }

    /// All segments; `None` if there was no pair.
    ///
    /// # Errors
    /// As [`SortedBuilder::push`].
    pub fn finish(mut self) -> Result<Option<Arc<Sorted>>> {
        self.end_segment()?;
        self.outbox.end_runs(&self.context, &mut self.counters)?;
        self.collect();
        self.context.finish_writing()?;
        self.sorted.padding = self.counters.padding;
        Ok((self.sorted.pairs > 0).then(|| Arc::new(self.sorted)))
    }
}

impl Sorted {
    /// Number of pairs.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Bytes of keys and values.
    pub fn pair_bytes(&self) -> u64 {
        self.pair_bytes
    }

    /// LSN of all pairs.
    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    pub(super) fn span(&self) -> Span {
        let of = |output: Option<&Output>| output.expect("there is a pair").footer.span.clone();
        Span { first: of(self.leaves.first()).first, ..of(self.leaves.last()) }
    }

    /// Id of the run that pointers call `name`, if it is one of this ingest.
    pub(super) fn run(&self, reads: &Reads, name: SegmentName) -> Option<SegmentId> {
        self.added.iter().find(|(id, _, segment, _)| reads.name(*id, segment) == name).map(|(id, ..)| *id)
    }

    /// The segments of the edit.
    pub(super) fn added(&self) -> &[AddedSegment] {
        &self.added
    }
}

/// Of a step that moves ingested pairs, or builds segments of them.
pub(super) fn context(
    reads: Arc<Reads>,
    ids: SegmentIds,
    (placement, compression): (Placement, Compression),
    source: Source,
    levels: Vec<Arc<Level>>,
) -> Context {
    Context::new(reads, ids, (placement, compression, CompactionMode::Partial), source, levels, UnixMs(0))
}
