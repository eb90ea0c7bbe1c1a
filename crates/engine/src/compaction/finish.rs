//! The end of a compaction: the levels that changed, the index of each, one index segment a step, and the edit.

use super::claims::Claim;
use super::plan::{Counters, Output, Outputs, Plan, footer_of, source_ranges, source_segments};
use super::{AddedSegment, BuiltSegment, CompactionDone, Context, CutLeaf, Ingested, Source, Swept};
use crate::error::Result;
use crate::memory::Purpose;
use crate::tree::{BuiltIndexSegment, LeafSegment, Level, build_index};
use crate::version::LevelChange;
use leeward_format::SegmentId;
use leeward_format::leaf_segment::Footer;
use leeward_format::manifest::{InstallEdit, L1, LevelState, SegmentKind};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// The index segments still to be written, and the result.
pub(super) struct Finish {
    pending: std::vec::IntoIter<BuiltIndexSegment>,
    changed: Vec<(usize, Arc<Level>)>,
    added: Vec<AddedSegment>,
    removed: Vec<SegmentId>,
    dead: Vec<(SegmentId, u32)>,
    swept: Option<Swept>,
}

impl Finish {
    pub(super) fn new(context: &Context, plan: &Plan, outputs: Outputs, counters: &Counters) -> Result<Finish> {
        let mut finish = Finish {
            pending: Vec::new().into_iter(),
            changed: Vec::new(),
            added: outputs.added,
            removed: Vec::new(),
            dead: counters.dead(context)?,
            swept: None,
        };
        let kept: HashSet<*const LeafSegment> = outputs.leaves.iter().map(|output| Arc::as_ptr(&output.leaf)).collect();
        let is_kept = |leaf: &Arc<LeafSegment>| kept.contains(&Arc::as_ptr(leaf));
        if let Source::Rewrite { level, .. } = context.source {
            let contents = &context.levels[level];
            let next = (plan.swept_to < contents.segments().len()).then(|| contents.fence(plan.swept_to).to_vec());
            finish.swept = Some(Swept { sweep: context.sweep, level, next });
            if plan.below.is_empty() {
                return Ok(finish);
            }
        }
        if let Source::Segments { swept: Some(next), .. } = &context.source {
            let next = (!next.is_empty()).then(|| next.clone());
            finish.swept = Some(Swept { sweep: context.sweep, level: L1, next });
        }
        let target = context.source.target();
        let merged = &context.levels[target].segments()[plan.below.clone()];
        let source = source_segments(context).flatten();
        let gone = merged.iter().chain(source).filter(|leaf| !is_kept(leaf));
        finish.removed.extend(gone.map(|leaf| leaf.id()));
        let mut pending = Vec::new();
        for (position, range) in source_ranges(context) {
            pending.extend(finish.replace(context, *position, range.clone(), &[])?);
        }
        pending.extend(finish.replace(context, target, plan.below.clone(), &outputs.leaves)?);
        finish.pending = pending.into_iter();
        Ok(finish)
    }

    /// Builds the level in which `outputs` replace the leaf segments in `range`, and lays out its index.
    fn replace(
        &mut self,
        context: &Context,
        position: usize,
        range: Range<usize>,
        outputs: &[Output],
    ) -> Result<Vec<BuiltIndexSegment>> {
        let old = &context.levels[position];
        self.removed.extend(old.index_segments().iter().map(|(id, _)| *id));
        let mut state = LevelState { entries: old.state().entries, bytes: old.bytes(), ..LevelState::default() };
        let counted = |footer: &Footer| (u64::from(footer.entries), level_bytes(footer));
        for leaf in &old.segments()[range.clone()] {
            let (entries, bytes) = counted(leaf.index_from_device(&context.reads)?.footer());
            state.entries -= entries;
            state.bytes -= bytes;
        }
        let goes: HashSet<SegmentId> = old.segments()[range.clone()].iter().map(|leaf| leaf.id()).collect();
        state.ranged = old.state().ranged.iter().filter(|id| !goes.contains(id)).copied().collect();
        for output in outputs {
            let (entries, bytes) = counted(&output.footer);
            state.entries += entries;
            state.bytes += bytes;
            if output.footer.ranges > 0 {
                state.ranged.push(output.leaf.id());
            }
        }
        let leaves = splice(context, old, range, outputs)?;
        if leaves.is_empty() {
            self.changed.push((position, Arc::new(Level::empty())));
            return Ok(Vec::new());
        }
        let (index, root) = build_index(&context.reads, &context.ids, &leaves)?;
        state.root = Some(root);
        state.index_segments = index.iter().map(|built| built.id).collect();
        state.leaf_segments = leaves.len() as u32;
        let segments = index.iter().map(|built| (built.id, Arc::clone(&built.segment))).collect();
        self.changed.push((position, Arc::new(Level::new(context.reads.volume.memory(), leaves, segments, state))));
        Ok(index)
    }

    /// Writes the next index segment; `None` when all are written.
    pub(super) fn step(&mut self, context: &Context, counters: &mut Counters) -> Result<Option<BuiltSegment>> {
        let Some(BuiltIndexSegment { id, segment, bytes }) = self.pending.next() else { return Ok(None) };
        let reservation = context.reads.volume.memory().reserve(Purpose::Compactions);
        let memory_bytes = bytes.capacity();
        let bytes = reservation.hold(bytes, memory_bytes);
        context.write(&segment, &bytes, counters)?;
        let built = BuiltSegment { id, kind: SegmentKind::Index, segment, bytes };
        self.added.push(built.added());
        Ok(Some(built))
    }

    pub(super) fn done(self, context: &Context, counters: &Counters, claim: Claim) -> CompactionDone {
        let mut levels = context.levels.clone();
        let mut edit = InstallEdit {
            added: self.added.iter().map(|(id, kind, ..)| (*id, *kind)).collect(),
            removed: self.removed,
            dead: self.dead,
            ..InstallEdit::default()
        };
        for (position, level) in self.changed {
            levels[position] = level;
        }
        let both = context.base.iter().zip(levels).enumerate();
        let changed = both.filter(|(_, (before, after))| !Arc::ptr_eq(before, after));
        let changed: Vec<_> =
            changed.map(|(position, (before, after))| (position, Arc::downgrade(before), after)).collect();
        let states = changed.iter().map(|(position, _, after)| (*position as u8, after.state().clone()));
        edit.levels = states.collect();
        if let Some(newest) = context.l0s.last() {
            edit.replay_from = newest.last_lsn().next();
            edit.logs.clone_from(&context.extents);
        }
        let ingested = match &context.source {
            Source::Sorted { sorted, .. } => Some(Ingested { span: sorted.span(), lsn: sorted.lsn() }),
            _ => None,
        };
        let merged = match &context.source {
            Source::Segments { target, .. } => Some(target - 1),
            _ => None,
        };
        let cut = match context.source {
            Source::Cut { level, at, .. } => {
                let mut leaves = edit.added.iter().filter(|(_, kind)| *kind == SegmentKind::Leaf).map(|(id, _)| *id);
                let whole = leaves.next().filter(|_| leaves.next().is_none());
                Some(CutLeaf { level, from: context.levels[level].fence(at).to_vec(), whole })
            }
            _ => None,
        };
        CompactionDone {
            cut,
            expired_by: context.now,
            is_ranged: matches!(context.source, Source::Segments { is_ranged: true, .. }),
            merged,
            ingested,
            edit,
            added: self.added,
            l0s: context.l0s.clone(),
            bytes_read: counters.bytes_read,
            value_bytes_read: counters.value_bytes_read,
            relocated_bytes: counters.relocated_bytes,
            swept: self.swept,
            bytes_written: counters.bytes_written,
            run_bytes_written: counters.run_bytes_written,
            entries_read: counters.entries_read,
            entries_written: counters.entries_written,
            ends_run_merge: context.ends_run_merge,
            merges_pieces: matches!(context.source, Source::Pieces { .. }),
            changed,
            claim,
        }
    }
}

/// Bytes that a leaf segment adds to its level: its pairs as they would be in the last level. So levels keep their
/// proportions whatever is in runs, and runs take a bounded part of the volume (Anthus 2.4.3).
pub(super) fn level_bytes(footer: &Footer) -> u64 {
    footer.payload_bytes + footer.medium_bytes
}

/// The leaf segments of `old`, with their fences, after `outputs` have replaced `range`. A fence changes only where its
/// neighbours do.
fn splice(
    context: &Context,
    old: &Level,
    range: Range<usize>,
    outputs: &[Output],
) -> Result<Vec<(Vec<u8>, Arc<LeafSegment>)>> {
    let kept = |i: usize| (old.fence(i).to_vec(), Arc::clone(&old.segments()[i]));
    let mut leaves: Vec<_> = (0..range.start).map(kept).collect();
    let mut last = match range.start.checked_sub(1) {
        Some(before) if !outputs.is_empty() => Some(footer_of(&context.reads, &old.segments()[before])?.span),
        _ => None,
    };
    for output in outputs {
        let span = &output.footer.span;
        let fence = last.map_or(Vec::new(), |last| last.separator(&span.first).to_vec());
        leaves.push((fence, Arc::clone(&output.leaf)));
        last = Some(span.clone());
    }
    for i in range.end..old.segments().len() {
        let (mut fence, leaf) = kept(i);
        if i == range.end {
            if leaves.is_empty() {
                fence.clear();
            } else if let Some(last) = &last {
                fence = last.separator(&footer_of(&context.reads, &leaf)?.span.first).to_vec();
            }
        }
        leaves.push((fence, leaf));
    }
    Ok(leaves)
}

impl CompactionDone {
    /// What it changes for readers.
    pub(crate) fn change(&self) -> LevelChange<'_> {
        let logs = self.added.iter().filter(|(_, kind, ..)| !kind.is_index()).map(|(_, _, segment, _)| segment);
        LevelChange {
            l0s: &self.l0s,
            ingested: self.ingested.as_ref().map(|Ingested { span, .. }| span),
            levels: &self.changed,
            logs: logs.collect(),
            expired_by: self.expired_by,
        }
    }
}
