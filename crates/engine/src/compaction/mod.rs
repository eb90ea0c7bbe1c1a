//! Compactions. They merge frozen L0s into L1, or some leaf segments of a level into the next, with what overlaps them
//! there. Or they replace leaf segments by copies with changed pointers, to move values out of log segments that are
//! mostly garbage.
//!
//! ```text
//!  pick      which level, which segments          memory only
//!  plan      what overlaps below                  first step
//!  merge     leaf segments and sorted runs, one a step; or, in their place, pointers changed (`relocate`)
//!  index     index segments of the levels that changed, one a step
//!  done      the edit and the new levels
//! ```
//! The driver of the region steps a [`Compaction`]. Each step writes at most one segment and returns it, so that it can
//! be shipped (send-index, Tebis 3.3) before the next. The merge continues while the segment is written and the next
//! leaves are read. Inputs are bounded: segments of the lower level that nothing overlaps are reused, and if nothing at
//! all overlaps, the segments move down as they are. Only the newest version of each key survives. No snapshot needs an
//! older one, because every snapshot holds the L0s and levels that it reads. Several compactions of a region may run at
//! a time, each on other levels (`claims`); one thread at a time uses each. If an unfinished one is dropped, the
//! segments that it has written are freed.

use crate::error::Result;
use crate::memory::Reservation;
use crate::memtable::MemTable;
use crate::reads::Reads;
use crate::tree::Level;
use crate::volume::{OfReserve, Segment, SegmentIds, Writing};
use bytes::Bytes;
use leeward_format::cluster::{CompactionMode, Placement};
use leeward_format::leaf_segment::Span;
use leeward_format::manifest::{InstallEdit, LogExtent, PIECES, SegmentKind, level_at};
use leeward_format::packed::{Codec, Compression};
use leeward_format::{Lsn, SegmentId, SegmentName, UnixMs};
use leeward_platform::planted::{Bug, planted};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

mod claims;
mod finish;
mod input;
mod merge;
mod newest;
mod output;
mod overlap;
mod pick;
mod placing;
mod plan;
mod ranges;
mod relocate;
mod room;
mod runs;
mod sorted;
mod sweep;
#[cfg(test)]
mod tests;

pub(crate) use pick::{Lane, Logs, Picker};
pub(crate) use sorted::Open;
pub use sorted::{Sorted, SortedBuilder};
pub(crate) use sweep::{Ledger, choose};

use claims::{Claim, What};
use finish::Finish;
use merge::Merge;
use output::Built;
use plan::{Counters, Outputs, Plan};
use relocate::Relocate;
use room::Shortage;
use runs::{Ends, NewRun};

/// Result of one step.
#[derive(Debug)]
pub enum Step {
    /// A segment was built, and is being written.
    Segment(BuiltSegment),
    /// All is written, but not synced.
    Finished(Box<CompactionDone>),
}

/// A segment that was written.
#[derive(Clone)]
pub struct BuiltSegment {
    /// Replicas that are sent the segment store it under this id.
    pub id: SegmentId,
    /// What it holds.
    pub kind: SegmentKind,
    /// Where it lies.
    pub segment: Arc<Segment>,
    /// Its bytes in use, a multiple of 4096: the ones that a backup needs.
    pub bytes: Bytes,
}

impl BuiltSegment {
    fn added(&self) -> AddedSegment {
        (self.id, self.kind, Arc::clone(&self.segment), self.bytes.len() as u32)
    }
}

impl fmt::Debug for BuiltSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuiltSegment({:?} {} in {}, {} bytes)", self.kind, self.id, self.segment.no(), self.bytes.len())
    }
}

/// A segment that [`CompactionDone::edit`] adds: id, kind, place, and bytes in use, a multiple of
/// 4096.
pub type AddedSegment = (SegmentId, SegmentKind, Arc<Segment>, u32);

/// The result of a compaction.
#[derive(Debug)]
pub struct CompactionDone {
    /// For the manifest and the backups.
    pub edit: InstallEdit,
    /// The segments of `edit.added`, in its order.
    pub added: Vec<AddedSegment>,
    /// The frozen L0s that were compacted, oldest first; none if it was a level.
    pub l0s: Vec<Arc<MemTable>>,
    /// Bytes of leaf segments read from the device.
    pub bytes_read: u64,
    /// Bytes of values in logs read from the device, to be moved.
    pub value_bytes_read: u64,
    /// Bytes of values that moved from a victim into a run.
    pub relocated_bytes: u64,
    /// Bytes of segments written to the device.
    pub bytes_written: u64,
    /// Part of these in sorted runs.
    pub run_bytes_written: u64,
    /// Entries that went in: more than came out, if versions or tombstones were dropped.
    pub entries_read: u64,
    /// Entries that came out.
    pub entries_written: u64,
    /// It ended a merge of all sorted runs of a two-layer log (DEPART 4.4).
    pub ends_run_merge: bool,
    /// It merged pieces of a two-layer log into a sorted run (DEPART 4.3).
    pub merges_pieces: bool,
    /// Pairs that had expired by then were dropped.
    pub(crate) expired_by: UnixMs,
    /// It was executed only because of range tombstones.
    pub(crate) is_ranged: bool,
    /// Position of the level that a part of was merged into the next one; for runs of L1, the last of theirs.
    pub(crate) merged: Option<usize>,
    /// A leaf segment was cut in two instead of being merged.
    pub(crate) cut: Option<CutLeaf>,
    /// The ingested pairs, if it was an ingest.
    pub(crate) ingested: Option<Ingested>,
    /// How far the sweep has come, if it was part of one.
    pub(crate) swept: Option<Swept>,
    /// The levels that it changed: position, the level before (weak, so that it can go), and the level from now on.
    pub(crate) changed: Vec<(usize, Weak<Level>, Arc<Level>)>,
    /// Its claim until it is installed.
    pub(crate) claim: Claim,
}

/// A leaf segment that was cut.
#[derive(Clone, Debug)]
pub(crate) struct CutLeaf {
    /// Position of its level.
    pub(crate) level: usize,
    /// Lower bound of its keys.
    pub(crate) from: Vec<u8>,
    /// All of it, if that was not possible.
    pub(crate) whole: Option<SegmentId>,
}

/// Pairs that were ingested.
#[derive(Clone, Debug)]
pub(crate) struct Ingested {
    /// Span of their keys.
    pub(crate) span: Span,
    /// Their LSN.
    pub(crate) lsn: Lsn,
}

/// Sums over all installed compactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionTotals {
    /// Compactions that were installed, ingests and parts of sweeps included.
    pub installed: u64,
    /// Bytes of leaf segments read from the device.
    pub bytes_read: u64,
    /// Bytes of values in logs read from the device, to be moved.
    pub value_bytes_read: u64,
    /// Bytes of segments written to the device.
    pub bytes_written: u64,
    /// Bytes of values that sweeps have moved, to collect garbage or into key order.
    pub relocated_bytes: u64,
    /// Entries that went in.
    pub entries_read: u64,
    /// Entries that came out.
    pub entries_written: u64,
    /// Merges of all sorted runs of a two-layer log that ended, each of several compactions.
    pub run_merges: u64,
    /// Merges of pieces of a two-layer log into a sorted run.
    pub piece_merges: u64,
}

impl CompactionTotals {
    /// Adds the counters of `done`.
    #[doc(hidden)]
    pub fn add(&mut self, done: &CompactionDone) {
        self.installed += 1;
        self.bytes_read += done.bytes_read;
        self.value_bytes_read += done.value_bytes_read;
        self.bytes_written += done.bytes_written;
        self.relocated_bytes += done.relocated_bytes;
        self.entries_read += done.entries_read;
        self.entries_written += done.entries_written;
        self.run_merges += u64::from(done.ends_run_merge);
        self.piece_merges += u64::from(done.merges_pieces);
    }
}

/// Progress of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Number of the sweep.
    pub(crate) sweep: u64,
    /// Position of the level; that of L1 for all of its runs.
    pub(crate) level: usize,
    /// Key at which the next part begins; `None`: it begins with the next level.
    pub(crate) next: Option<Vec<u8>>,
}

/// What a compaction merges or rewrites: the answer of a picker.
enum Source {
    /// The oldest frozen L0s, as many as `count`, into the run of L1 that they become or are merged with.
    L0s { count: usize, run: NewRun },
    /// All pieces, the newest first, into a new run.
    Pieces { from: Vec<(usize, Range<usize>)>, run: NewRun },
    /// Leaf segments of levels, by position, the newest level first, into the one at `target`, below them all. Between
    /// the first and the last key nothing else is in those levels, nor in any other level above `target` and below one
    /// of them.
    Segments {
        from: Vec<(usize, Range<usize>)>,
        target: usize,
        /// Set for a part of a sweep: the key of the runs of L1 at which the sweep continues; if empty, it continues
        /// below them.
        swept: Option<Vec<u8>>,
        /// It is merged only because it has range tombstones.
        is_ranged: bool,
    },
    /// The next leaf segments of a level, from `first` on and at `most` so many, that point into victims. They are
    /// replaced by copies: values move out of the victims, and pointers follow.
    Rewrite { level: usize, first: usize, most: usize },
    /// One leaf segment of a level in two, of which the first can be merged into the next level with the room that there is.
    /// No pick asks for it: it is what becomes of a merge without enough room.
    Cut { level: usize, at: usize, ends: Ends },
    /// Segments of ingested pairs into `target`, as they are. Nothing in the target overlaps them. What overlaps them above
    /// is newer, and what does below is older.
    Sorted { sorted: Arc<Sorted>, target: usize },
}

impl Source {
    /// How many of the oldest frozen L0s it compacts.
    fn l0s(&self) -> usize {
        if let Source::L0s { count, .. } = self { *count } else { 0 }
    }

    /// The run of L1 that it becomes, or is merged with.
    fn new_run(&self) -> Option<&NewRun> {
        match self {
            Source::L0s { run, .. } | Source::Pieces { run, .. } => Some(run),
            Source::Segments { .. } | Source::Rewrite { .. } | Source::Cut { .. } | Source::Sorted { .. } => None,
        }
    }

    /// Position of the level that it goes to.
    fn target(&self) -> usize {
        match self {
            Source::L0s { run, .. } | Source::Pieces { run, .. } => run.target,
            Source::Segments { target, .. } | Source::Sorted { target, .. } => *target,
            Source::Rewrite { level, .. } | Source::Cut { level, .. } => *level,
        }
    }

    /// Whether it is part of a sweep.
    fn sweeps(&self) -> bool {
        matches!(self, Source::Rewrite { .. } | Source::Segments { swept: Some(_), .. })
    }

    /// The parts that no other compaction may change meanwhile.
    fn claims(&self) -> What {
        let target = What::levels([self.target()]);
        match self {
            Source::L0s { run, .. } => What::L0S.and(What::levels(run.shift.clone())).and(target),
            Source::Pieces { run, .. } => What::levels(0..PIECES).and(What::levels(run.shift.clone())).and(target),
            Source::Segments { from, swept, .. } => {
                let all = target.and(What::levels(from.iter().map(|(position, _)| *position)));
                if swept.is_some() { What::SWEEP.and(all) } else { all }
            }
            Source::Rewrite { .. } => What::SWEEP.and(target),
            Source::Cut { .. } | Source::Sorted { .. } => target,
        }
    }
}

/// Inputs and settings of all phases.
struct Context {
    reads: Arc<Reads>,
    ids: SegmentIds,
    placement: Placement,
    /// Pairs that have expired by then are dropped.
    now: UnixMs,
    compression: Compression,
    mode: CompactionMode,
    /// Log segments that values move out of wherever a merge passes.
    victims: Arc<HashSet<SegmentName>>,
    /// The sweep that chose the victims.
    sweep: u64,
    source: Source,
    /// The frozen L0s that it compacts, oldest first, and the furthest extents of their logs, for the edit.
    l0s: Vec<Arc<MemTable>>,
    extents: Vec<LogExtent>,
    /// The levels that it begins with, the target included.
    levels: Vec<Arc<Level>>,
    /// An ingest that is not installed yet may put older pairs above the last level.
    keeps_tombstones: bool,
    /// Room is short. Then medium values that are in runs stay there, also in the last level: it would take room to move
    /// them, and a run gives some back only when all of its values have moved.
    shortage: Option<Shortage>,
    /// The levels of the version.
    base: Vec<Arc<Level>>,
    /// The segment that is being written while the next is filled.
    writing: Mutex<Option<Writing>>,
    /// Likely upper bound of the bytes of an output segment.
    output_bytes: usize,
    /// See [`CompactionDone::ends_run_merge`].
    ends_run_merge: bool,
}

impl Context {
    /// A merge of `levels` that moves nothing out of victims, and whose output segments may be full.
    fn new(
        reads: Arc<Reads>,
        ids: SegmentIds,
        (placement, compression, mode): (Placement, Compression, CompactionMode),
        source: Source,
        levels: Vec<Arc<Level>>,
        now: UnixMs,
    ) -> Context {
        Context {
            output_bytes: reads.volume.segment_bytes(),
            reads,
            ids,
            placement,
            now,
            compression,
            mode,
            victims: Arc::default(),
            sweep: 0,
            source,
            l0s: Vec::new(),
            extents: Vec::new(),
            base: levels.clone(),
            levels,
            keeps_tombstones: false,
            shortage: None,
            writing: Mutex::default(),
            ends_run_merge: false,
        }
    }

    /// Begins to write a segment, after the previous one is written.
    fn write(&self, segment: &Arc<Segment>, bytes: &Bytes, counters: &mut Counters) -> Result<()> {
        self.finish_writing()?;
        counters.bytes_written += bytes.len() as u64;
        *self.writing.lock() = Some(self.reads.volume.begin_write(segment, bytes.clone())?);
        Ok(())
    }

    fn finish_writing(&self) -> Result<()> {
        let writing = self.writing.lock().take();
        writing.map_or(Ok(()), Writing::wait)
    }

    /// Whether nothing lies below the target.
    fn is_into_last(&self) -> bool {
        // A cut only changes where segments end.
        !matches!(self.source, Source::Cut { .. })
            && self.levels[self.source.target() + 1..].iter().all(|level| level.is_empty())
    }

    /// Whether medium values are brought into the leaves.
    fn places_medium(&self) -> bool {
        self.is_into_last() && self.shortage.is_none()
    }

    fn of_reserve(&self) -> OfReserve {
        if self.shortage.is_some() { OfReserve::All } else { OfReserve::None }
    }

    /// Whether tombstones are dropped: there is no older pair that they could hide.
    fn drops_tombstones(&self) -> bool {
        let is_last =
            self.is_into_last() || planted(Bug::DropTombstoneAboveRuns) && matches!(self.source, Source::Pieces { .. });
        is_last && !self.keeps_tombstones
    }

    /// Codec of the output.
    fn codec(&self) -> Codec {
        if self.is_into_last() { self.compression.last } else { self.compression.upper }
    }
}

/// A compaction under way.
pub struct Compaction {
    context: Context,
    phase: Phase,
    counters: Counters,
    outputs: Outputs,
    built: Vec<SegmentId>,
    /// Memory that it uses as long as it runs.
    reservation: Option<Reservation>,
    claim: Claim,
}

enum Phase {
    Picked,
    Merge(Plan, Box<Merge>),
    Relocate(Relocate),
    Index(Box<Finish>),
    Over,
}

impl Compaction {
    fn new(context: Context, claim: Claim) -> Compaction {
        Compaction {
            context,
            phase: Phase::Picked,
            counters: Counters::default(),
            outputs: Outputs::default(),
            built: Vec::new(),
            reservation: None,
            claim,
        }
    }

    /// Memory that it certainly needs, in bytes: for each input on the device (all runs of one level together count as
    /// one) the current chunk and the next; and the segment that is being filled. A finished segment has a reservation
    /// of its own.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let inputs = match &self.context.source {
            Source::L0s { run, .. } if self.context.levels[run.target].is_empty() => 0,
            Source::L0s { .. } | Source::Pieces { .. } | Source::Cut { .. } => 1,
            Source::Segments { .. } | Source::Sorted { .. } => 2,
            Source::Rewrite { .. } => return relocate::memory_bytes(&self.context.reads),
        };
        let chunks = 2 * inputs * input::chunk_bytes_of(&self.context.reads) as u64;
        chunks + self.context.output_bytes as u64
    }

    /// Admits it with the memory that it needs.
    pub(crate) fn admitted(&mut self, reservation: Reservation) {
        self.reservation = Some(reservation);
    }

    /// Continues until a segment is written or all is done. Uses the device.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes, or the volume is full. The compaction is unusable then: drop it, and
    /// pick anew.
    ///
    /// # Panics
    /// After it has finished or failed: that is a bug of the caller.
    pub fn step(&mut self) -> Result<Step> {
        let reads = Arc::clone(&self.context.reads);
        self.step_on().inspect_err(|error| reads.volume.compacted(reads.region, Err(error)))
    }

    fn step_on(&mut self) -> Result<Step> {
        loop {
            // A phase that fails leaves `Over` behind.
            match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Picked => self.phase = self.begin()?,
                Phase::Merge(plan, mut merge) => {
                    if let Some(built) = merge.step(&self.context, &mut self.counters)? {
                        self.phase = Phase::Merge(plan, merge);
                        return Ok(self.built_one(built));
                    }
                    self.phase = self.index(plan)?;
                }
                Phase::Relocate(mut relocate) => {
                    if let Some(built) = relocate.step(&self.context, &mut self.counters)? {
                        self.phase = Phase::Relocate(relocate);
                        return Ok(self.built_one(built));
                    }
                    let plan = relocate.done(&self.context, &mut self.outputs)?;
                    self.phase = self.index(plan)?;
                }
                Phase::Index(mut finish) => match finish.step(&self.context, &mut self.counters)? {
                    Some(built) => {
                        self.built.push(built.id);
                        self.phase = Phase::Index(finish);
                        return Ok(Step::Segment(built));
                    }
                    None => {
                        self.context.finish_writing()?;
                        let claim = std::mem::take(&mut self.claim);
                        return Ok(Step::Finished(Box::new(finish.done(&self.context, &self.counters, claim))));
                    }
                },
                Phase::Over => panic!("a compaction that is over was stepped"),
            }
        }
    }

    /// Runs all steps.
    ///
    /// # Errors
    /// As [`Compaction::step`].
    pub fn finish(mut self) -> Result<CompactionDone> {
        loop {
            if let Step::Finished(done) = self.step()? {
                return Ok(*done);
            }
        }
    }

    /// The segments that its steps have returned so far. If it is given up, replicas must drop them.
    pub fn built(&self) -> &[SegmentId] {
        &self.built
    }

    fn built_one(&mut self, built: Built) -> Step {
        let built = match built {
            Built::Run(built) => built,
            Built::Leaf(output, built) => {
                self.outputs.leaves.push(output);
                built
            }
        };
        self.outputs.added.push(built.added());
        self.built.push(built.id);
        Step::Segment(built)
    }

    fn begin(&mut self) -> Result<Phase> {
        if let Source::Rewrite { level, first, most } = self.context.source {
            return Ok(Phase::Relocate(Relocate::new(level, first, most)));
        }
        if let Some(cut) = room::cut_instead(&self.context, &mut self.counters)? {
            self.context.source = cut;
            self.context.ends_run_merge = false;
        }
        let plan = Plan::new(&self.context, &mut self.counters)?;
        match Merge::new(&self.context, &plan, &mut self.counters)? {
            Some(merge) => Ok(Phase::Merge(plan, Box::new(merge))),
            None => {
                self.outputs = Outputs::moved(&self.context)?;
                self.index(plan)
            }
        }
    }

    fn index(&mut self, plan: Plan) -> Result<Phase> {
        let outputs = std::mem::take(&mut self.outputs);
        Ok(Phase::Index(Box::new(Finish::new(&self.context, &plan, outputs, &self.counters)?)))
    }
}

impl fmt::Debug for Compaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.context.source {
            Source::L0s { .. } => write!(f, "Compaction({:?} to L1)", self.context.l0s),
            Source::Pieces { from, .. } => write!(f, "Compaction({} pieces into a run of L1)", from.len()),
            Source::Segments { from, target, .. } => {
                let segments = from.iter().map(|(_, segments)| segments.len()).sum::<usize>();
                let (runs, to) = (from.len(), level_at(*target));
                write!(f, "Compaction({segments} segments of {runs} runs of L{} to L{to})", to - 1)
            }
            Source::Cut { level, at, .. } => write!(f, "Compaction(cuts segment {at} of L{})", level_at(*level)),
            Source::Sorted { sorted, target, .. } => {
                write!(f, "Compaction({} ingested pairs into L{})", sorted.pairs(), level_at(*target))
            }
            Source::Rewrite { level, first, .. } => {
                write!(
                    f,
                    "Compaction(values out of {} segments, L{} from {first})",
                    self.context.victims.len(),
                    level_at(*level)
                )
            }
        }
    }
}
