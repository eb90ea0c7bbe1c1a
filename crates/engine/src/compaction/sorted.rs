//! Ingest of sorted pairs: leaf segments and runs of the large log are built of them directly, and installed by one
//! edit.
//!
//! 1. All pairs have one LSN, which is taken first. A record stands for it in the log, and the L0 freezes: later writes
//!    are newer and lie above.
//! 2. [`SortedBuilder`] writes the segments. Nothing refers to them; a fault frees them.
//! 3. Once the earlier L0s are compacted, the segments go into the deepest level that they do not overlap, with no
//!    overlap above it either. If there is none, they are merged into L1, like those of a level above it.
//! 4. L0s that were written meanwhile may be compacted first. Then the ingest is *late*: it leaves out pairs of which
//!    levels have newer versions. To keep those findable, no tombstone is dropped while an ingest is open, not even in
//!    the last level.
//!
//! Values below the large size stay in place, in every level. One thread at a time.

use super::claims::Claim;
use super::input::Run;
use super::merge::Filling;
use super::newest::Input;
use super::output::{Built, Outbox};
use super::pick::padded;
use super::plan::{Counters, Output, overlap};
use super::{AddedSegment, Compaction, Context, SegmentIds, Source, runs};
use crate::error::{Error, Result};
use crate::tree::{Level, Probe};
use crate::version::{Reach, Reads, Version};
use leeward_format::cluster::{CompactionMode, SizeClass, TableOptions};
use leeward_format::leaf_segment::Span;
use leeward_format::manifest::{L1, L1_RUNS, SegmentKind};
use leeward_format::node::Entry;
use leeward_format::{
    LogKind, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_KEY_BYTES, SegmentId, SegmentName, Stamp, UnixMs, filter,
};
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
        let source = Source::Sorted { sorted: Arc::new(sorted()), target: 0, is_late: false };
        // Most often the segments go to the last level.
        let levels = vec![Arc::new(Level::empty())];
        SortedBuilder {
            context: context(reads, ids, options, UnixMs(0), source, levels),
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

    /// The segments of the edit: all if the leaf segments go into a level unchanged, otherwise only the runs.
    pub(super) fn added(&self, moves: bool) -> impl Iterator<Item = AddedSegment> + '_ {
        self.added.iter().filter(move |(_, kind, ..)| moves || *kind != SegmentKind::Leaf).cloned()
    }
}

/// Ingested pairs in a merge, without those of which a level has a newer version.
pub(super) struct Pairs {
    run: Run,
    reads: Arc<Reads>,
    /// Levels that may have newer versions.
    levels: Vec<Arc<Level>>,
}

impl Pairs {
    pub(super) fn new(context: &Context, sorted: &Sorted, is_late: bool, counters: &mut Counters) -> Result<Pairs> {
        let leaves: Vec<_> = sorted.leaves.iter().map(|output| Arc::clone(&output.leaf)).collect();
        let run = Run::new(&context.reads, &leaves, counters)?;
        let levels = if is_late { context.levels.clone() } else { Vec::new() };
        let mut pairs = Pairs { run, reads: Arc::clone(&context.reads), levels };
        pairs.skip_outdated(counters)?;
        Ok(pairs)
    }

    fn skip_outdated(&mut self, counters: &mut Counters) -> Result<()> {
        while let Some((key, stamp, entry)) = self.run.current()
            && self.has_newer(key, stamp.lsn)?
        {
            counters.drop_entry(key, stamp, &entry);
            self.run.step(counters)?;
        }
        Ok(())
    }

    fn has_newer(&self, key: &[u8], lsn: Lsn) -> Result<bool> {
        let hash = filter::hash(key);
        for level in &self.levels {
            if let Probe::Found { stamp, .. } = level.get(&self.reads, key, hash, Reach::Device)? {
                return Ok(stamp.lsn > lsn);
            }
        }
        Ok(false)
    }
}

impl Input for Pairs {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.run.key()
    }

    #[inline]
    fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        self.run.current()
    }

    fn step(&mut self, counters: &mut Counters) -> Result<()> {
        self.run.step(counters)?;
        self.skip_outdated(counters)
    }
}

/// The compaction that brings `sorted` into the levels of `version`, whose L0s are all newer. The levels hold the
/// writes up to LSN `floor`.
pub(crate) fn ingest(
    (version, floor): (&Version, Lsn),
    ids: SegmentIds,
    options: &TableOptions,
    sorted: &Arc<Sorted>,
    now: UnixMs,
) -> Result<Compaction> {
    let levels = padded(version, L1_RUNS);
    // A table whose L1 is one run has it in the last position.
    let top = if options.l1_runs > 1 || runs::has_others(&levels) { 0 } else { L1 };
    let deepest = levels.iter().rposition(|level| !level.is_empty()).unwrap_or(0).max(L1_RUNS);
    let source = |target, is_late| Source::Sorted { sorted: Arc::clone(sorted), target, is_late };
    let mut context = context(Arc::clone(version.reads()), ids, options, now, source(deepest, false), levels);
    let span = sorted.span();
    for at in top..=deepest {
        if !overlap(&context, &context.levels[at], &span, &mut Counters::default())?.is_empty() {
            context.source = source(at.saturating_sub(1).max(top), floor > sorted.lsn());
            break;
        }
    }
    Ok(Compaction::new(context, Claim::default()))
}

fn context(
    reads: Arc<Reads>,
    ids: SegmentIds,
    options: &TableOptions,
    now: UnixMs,
    source: Source,
    levels: Vec<Arc<Level>>,
) -> Context {
    // It is merged only with the segments that it overlaps.
    let way = (options.placement, options.compression, CompactionMode::Partial);
    Context::new(reads, ids, way, source, levels, now)
}
