//! A served region changes its primary or its bounds: it quiesces, is split in two, is merged into its neighbour, and is
//! trimmed to what is its own.
//!
//! | file | holds |
//! |---|---|
//! | `quiesce` | the pause before a transfer, a split or a merge |
//! | `split`, `merge` | these two |
//! | `trim` | deletes what they leave |
//! | `samples` | which keys are in use |
//!
//! A split and a merge go the same way: a plan in the configuration, a look whether it is possible, a pause, steps, a proposal
//! to the coordinator, its answer. An attempt that fails is given up by `Serving::fail_plan`, and another one comes later.
//!
//! Invariant: a node splits or merges one region at a time. Belongs to the node's thread.

pub mod merge;
pub mod quiesce;
mod samples;
pub mod split;
mod trim;

use crate::job::ReshapeDone;
use crate::serving::Serving;
use leeward_format::RegionId;
use leeward_format::op::Op;
use leeward_platform::Nanos;
use merge::MergeState;
use quiesce::{Quiesce, QuiesceReason};
use samples::Samples;
use split::{PendingChild, Split};
use std::cell::RefCell;
use trim::Trim;

/// How far a region has come with changes of its primary or its bounds.
pub struct Reshape {
    quiesce: Quiesce,
    /// As of this turn, no other node can serve any of its keys, whatever the outcome of the proposal under way.
    is_alone: bool,
    split: Split,
    merge: MergeState,
    /// Most bytes of pairs that are copied when this region is merged into its neighbour.
    merge_bytes: u64,
    trim: Trim,
    /// In a cell, since reads that are answered at once only borrow the region.
    samples: RefCell<Samples>,
    /// Set while the region is a pending child, in no configuration yet.
    pending_child: Option<PendingChild>,
}

impl Reshape {
    pub(crate) fn new(region: RegionId, merge_bytes: u64) -> Reshape {
        Reshape {
            quiesce: Quiesce::NEVER,
            is_alone: true,
            split: Split::default(),
            merge: MergeState::default(),
            merge_bytes,
            trim: Trim::FIRST,
            samples: RefCell::new(Samples::new(region)),
            pending_child: None,
        }
    }

    /// As of this turn, no other node can serve any of its keys, whatever the outcome of the proposal under way.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// See [`Reshape::is_alone`].
    pub(crate) fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// The region is in no configuration yet.
    pub(crate) fn is_pending_child(&self) -> bool {
        self.pending_child.is_some()
    }

    /// Keys that are not its own may be about to become its own.
    pub(crate) fn is_merge_target(&self) -> bool {
        self.merge.is_target()
    }

    /// An operation comes to the region.
    pub(crate) fn note(&self, op: &Op) {
        self.samples.borrow_mut().note(op);
    }

    /// A key with about half of the latest operations below it.
    pub fn middle(&self) -> Option<bytes::Bytes> {
        self.samples.borrow().middle()
    }

    /// Why the region is not split or merged yet, if anything keeps it from that.
    pub(crate) fn waits_for(&self) -> Option<String> {
        self.split.why()
    }
}

impl Serving {
    /// The region has other bounds: what was known of its keys in use says little.
    fn forget_samples(&mut self) {
        self.reshape_mut().samples = RefCell::new(Samples::new(self.id()));
    }

    /// A job for a split or a merge ended.
    pub(crate) fn reshape_done(&mut self, now: Nanos, done: ReshapeDone) {
        match done {
            ReshapeDone::SplitKey(child, result) => self.found_split_key(now, child, result),
            ReshapeDone::ParentSplit(result) => self.was_split(now, result),
            ReshapeDone::Measured(into, is_small) => self.was_measured(now, into, is_small),
            ReshapeDone::Gathered(gathered) => self.was_read(gathered),
        }
    }

    /// An attempt to split or to merge the region ends, for the reason `why`; the next one comes later.
    fn fail_plan(&mut self, now: Nanos, reason: QuiesceReason, why: String) {
        tracing::info!(region = %self.id(), ?reason, why, "is not split or merged yet");
        let counters = self.counters_mut();
        let failed = match reason {
            QuiesceReason::Merge => &mut counters.merges_failed,
            _ => &mut counters.splits_failed,
        };
        *failed += 1;
        self.reshape_mut().merge.give_up();
        let least = self.reshape_mut().split.fail(why);
        self.abort_plan(now, least);
    }
}
