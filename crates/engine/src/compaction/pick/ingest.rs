//! The place of an ingest among the levels: that of its LSNs.
//!
//! ```text
//!  position   .. 50     51     52        53    54    55   | 56 (L2)
//!                newer  newer  the hole  older older older  older
//! ```
//! While an ingest is open, L0s of later writes become runs above a position that stays free. Those runs are newer than
//! the ingest, and are not merged into L2, where they would be below it. If there are many, they are merged into one of
//! them. All other compactions go on, and so do writers: the ingest itself merges nothing.

use super::fill::MOST_RUNS;
use super::picture::{L0Picture, Levels, Picture, pictures};
use super::{Picker, padded};
use crate::compaction::plan::{Counters, overlap};
use crate::compaction::runs::{NewRun, runs};
use crate::compaction::sorted::{Open, Sorted, context};
use crate::compaction::{Compaction, Source};
use crate::error::Result;
use crate::version::Version;
use leeward_format::Lsn;
use leeward_format::manifest::{L1_RUNS, PIECES};
use std::sync::{Arc, Weak};

/// An ingest that is not installed.
pub(super) struct OpenIngest {
    /// Last of its LSNs.
    last: Lsn,
    open: Weak<()>,
    /// The position that is kept for it, once there may be a newer run.
    pub(super) hole: Option<usize>,
}

impl Picker {
    /// An ingest has taken its LSNs, up to `last`. No later write is made yet.
    pub(crate) fn begin_ingest(&mut self, last: Lsn, open: &Open) {
        self.ingest = Some(OpenIngest { last, open: Arc::downgrade(open), hole: None });
    }

    /// The ingest that is open, if one is.
    fn open_ingest(&self) -> Option<&OpenIngest> {
        self.ingest.as_ref().filter(|ingest| ingest.open.strong_count() > 0)
    }

    /// Whether one is open: pairs may still come that are older than some in the levels.
    pub(crate) fn is_ingesting(&self) -> bool {
        self.open_ingest().is_some()
    }

    /// Of these L0s, oldest first, those that go together: all are older than the ingest that is open, or all are newer.
    pub(super) fn beside_ingest<'a>(&self, l0s: &'a [L0Picture]) -> &'a [L0Picture] {
        let (Some(ingest), Some(first)) = (self.open_ingest(), l0s.first()) else { return l0s };
        let is_newer = first.last_lsn > ingest.last;
        &l0s[..l0s.iter().take_while(|l0| (l0.last_lsn > ingest.last) == is_newer).count()]
    }

    /// Whether the ingest waits for these L0s.
    pub(super) fn ingest_waits_for(&self, l0s: &[L0Picture]) -> bool {
        let ingest = self.open_ingest();
        ingest.is_some_and(|ingest| l0s.first().is_some_and(|first| first.last_lsn <= ingest.last))
    }

    /// The run of these L0s, of about `bytes`, if they are newer than the ingest that is open; `Some(None)` if there is no
    /// position for it.
    pub(super) fn run_above_ingest(
        &self,
        picture: &Picture<'_>,
        l0s: &[L0Picture],
        bytes: u64,
    ) -> Option<Option<NewRun>> {
        let ingest = self.open_ingest()?;
        if l0s.first()?.last_lsn <= ingest.last {
            return None;
        }
        let levels = &picture.levels;
        let hole = ingest.hole.or_else(|| before(first_run(levels)));
        Some(hole.and_then(|hole| NewRun::above(hole, levels, picture.segment_bytes, bytes)))
    }

    /// These L0s become a run at `target`: from now on the position behind it is kept, if they are newer than the ingest.
    pub(super) fn keep_hole(&mut self, l0s: &[L0Picture], target: usize) {
        if let Some(ingest) = &mut self.ingest
            && l0s.first().is_some_and(|first| first.last_lsn > ingest.last)
        {
            ingest.hole.get_or_insert(target + 1);
        }
    }

    /// First position of runs that may be merged into L2.
    pub(super) fn mergeable_runs(&self) -> usize {
        self.open_ingest().and_then(|ingest| ingest.hole).map_or(PIECES, |hole| hole + 1)
    }

    /// All runs that are newer than the ingest, into the oldest of them, if they are many.
    pub(super) fn take_newer_runs(&self, picture: &Picture<'_>) -> Option<Source> {
        let newer = PIECES..self.mergeable_runs().max(PIECES);
        let mut from: Vec<_> = runs(&picture.levels, newer).map(|(at, run)| (at, 0..run.leaf_segments())).collect();
        let is_due = from.len() >= MOST_RUNS;
        let (target, _) = from.pop().filter(|_| is_due)?;
        self.unless_claimed(Source::Segments { from, target, swept: None, is_ranged: false })
    }

    /// The compaction that makes `sorted` a part of the levels of `version`, which has no earlier L0. `None` while all
    /// positions of runs are taken.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub(crate) fn pick_ingest(&mut self, version: &Version, sorted: &Arc<Sorted>) -> Result<Option<Compaction>> {
        let levels = padded(version, L1_RUNS);
        let hole = self.ingest.as_ref().and_then(|ingest| ingest.hole);
        let Some(hole) = hole.or_else(|| before(first_run(&pictures(&levels)))) else { return Ok(None) };
        let source = |target| Source::Sorted { sorted: Arc::clone(sorted), target };
        let (reads, ids) = (Arc::clone(version.reads()), Arc::clone(&self.ids));
        let mut context = context(reads, ids, (self.placement, self.compression), source(hole), levels);
        let (span, mut deepest) = (sorted.span(), hole);
        while let Some(next) = context.levels.get(deepest + 1) {
            if !overlap(&context, next, &span, &mut Counters::default())?.is_empty() {
                break;
            }
            deepest += 1;
        }
        // The hole is always free. What is deeper, other compactions may be changing.
        let found = [deepest, hole].into_iter().map(source).find_map(|source| self.unless_claimed(source));
        Ok(found.map(|source| {
            let claim = self.claims.take(source.claims(), None);
            context.source = source;
            Compaction::new(context, claim)
        }))
    }
}

/// Position of the newest run.
fn first_run(levels: &Levels<'_>) -> usize {
    runs(levels, PIECES..L1_RUNS).next().map_or(L1_RUNS, |(position, _)| position)
}

/// The position before, if it is one of a run.
fn before(position: usize) -> Option<usize> {
    position.checked_sub(1).filter(|before| *before >= PIECES)
}
