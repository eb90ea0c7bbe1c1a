//! A served region as the source or the target of a merge: what it is asked to do while the node merges two regions.
//!
//! Belongs to the thread of the region. How the two act together is the node's.

use super::quiesce::{QuiesceReason, Stage};
use super::trim::Trim;
use crate::job::{Gathered, Outcome, ReshapeDone};
use crate::serving::Serving;
use bytes::Bytes;
use leeward_engine::region::Piece;
use leeward_engine::{AppendError, Error, ScanBounds, ScanEntry, Snapshot, Write};
use leeward_format::record::RecordKind;
use leeward_format::request::{Effect, RequestId};
use leeward_format::{Epoch, LogKind, Lsn, RegionId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use std::collections::VecDeque;

/// Bytes of pairs that one job reads, and one turn appends.
const CHUNK_BYTES: u64 = 256 << 10;
/// Bytes that a pair counts for besides its key and value.
const PAIR_BYTES: u64 = 32;

/// A region's state as merge source or merge target.
#[derive(Debug, Default)]
pub(super) struct MergeState {
    /// The target for which this region was found to be small enough.
    measured: Option<RegionId>,
    is_measuring: bool,
    /// The pairs that were read last, until they are appended to the target.
    gathered: Option<Result<Gathered, Error>>,
    /// This region is a merge target: keys that are not its own may be about to become its own.
    is_target: bool,
}

impl MergeState {
    pub(super) fn is_target(&self) -> bool {
        self.is_target
    }

    /// An attempt to merge the region into its neighbour has failed.
    pub(super) fn give_up(&mut self) {
        (self.measured, self.gathered) = (None, None);
    }
}

/// Reads pairs from `start` up to, but without, `end`, until they have `most` bytes.
fn gather(snapshot: &Snapshot, (start, end): Piece, most: u64) -> Result<Gathered, Error> {
    let mut cursor = snapshot.cursor(ScanBounds { start, end, ..ScanBounds::default() });
    let mut gathered = Gathered { pairs: VecDeque::new(), bytes: 0, resume: None };
    while let Some(pair) = cursor.next()? {
        if gathered.bytes >= most {
            gathered.resume = Some(pair.key);
            break;
        }
        gathered.bytes += (pair.key.len() + pair.value.len()) as u64 + PAIR_BYTES;
        gathered.pairs.push_back((pair, None));
    }
    Ok(gathered)
}

/// What all copied pairs of a merge lie in: the last LSN, and the index above the last tail of each log.
#[derive(Clone, Copy, Debug)]
pub struct CopiedUpTo {
    last: Lsn,
    below: [u64; 2],
}

impl Serving {
    /// The merge target for which this region is quiesced.
    pub fn quiesced_for(&self) -> Option<RegionId> {
        let is_quiesced = matches!(self.reshape().quiesce.stage, Stage::Quiesced { .. });
        self.primary().merging().filter(|_| is_quiesced).map(|(into, _)| into)
    }

    /// Whether nothing has changed since the merge of this region into `target` began, in the configuration of `epoch`.
    pub fn is_still_source(&self, target: RegionId, epoch: Epoch, is_synced: bool) -> bool {
        let is_meant = matches!(self.primary().merging(), Some((into, None)) if into == target);
        let is_as_before = self.primary().config().epoch == epoch && self.can_quiesce(is_synced);
        is_as_before && is_meant && self.quiesced_for().is_some()
    }

    /// The region begins to be copied. No job of it runs, so pairs that may still be here are of an attempt that failed.
    pub fn begin_being_copied(&mut self) {
        self.reshape_mut().merge.gathered = None;
    }

    /// The region begins to take the pairs of another one.
    pub fn begin_merging(&mut self) {
        self.reshape_mut().merge.is_target = true;
    }

    /// The merge into this region is over. Without success it deletes what it took.
    pub fn end_merging(&mut self) {
        self.reshape_mut().merge.is_target = false;
        self.reshape_mut().trim = Trim::FIRST;
    }

    /// The outcome of the merge into this region is known.
    pub fn merge_proposal_ended(&mut self, is_done: bool) {
        self.primary_mut().proposal_ended();
        if is_done {
            self.counters_mut().merges += 1;
            self.forget_samples();
        }
        self.end_merging();
    }

    /// The outcome of the merge of this region into another is known.
    pub fn source_proposal_ended(&mut self, now: Nanos, is_done: bool) {
        self.primary_mut().proposal_ended();
        if !is_done && self.is_proposed() {
            self.fail_merge(now, "a configuration changed meanwhile".into());
        }
    }

    /// The pairs that were read last.
    pub fn take_gathered(&mut self) -> Option<Result<Gathered, Error>> {
        self.reshape_mut().merge.gathered.take()
    }

    /// The target proposes that this region becomes a part of it.
    pub fn be_merged(&mut self, now: Nanos) {
        self.primary_mut().be_merged();
        self.reshape_mut().quiesce.stage = Stage::Proposed { since: now, transfer_target: None };
    }

    /// An attempt to merge the region into its neighbour ends, if one is under way.
    pub fn give_up_merge(&mut self, now: Nanos, why: String) {
        if matches!(self.reshape().quiesce.stage, Stage::Quiesced { .. } | Stage::Proposed { .. }) {
            self.fail_merge(now, why);
        }
    }

    /// This attempt to merge the region into its neighbour ends.
    pub fn fail_merge(&mut self, now: Nanos, why: String) {
        self.fail_plan(now, QuiesceReason::Merge, why);
    }

    /// Finds out what is left to be done before the region can quiesce to be merged into `into`, and does it.
    pub(super) fn prepare_merge(&mut self, into: RegionId, can_quiesce: bool) {
        if !can_quiesce || self.reshape().merge.is_measuring || self.reshape().merge.measured == Some(into) {
            return;
        }
        self.reshape_mut().merge.is_measuring = true;
        let (snapshot, bounds) = (self.region().snapshot(self.region().last_lsn(), self.wall_now()), self.key_bounds());
        let most = self.mergeable_bytes();
        self.spawn_in_background(Activity::Engine.of_primary(), move || {
            Outcome::Reshape(ReshapeDone::Measured(
                into,
                gather(&snapshot, bounds, most).map(|gathered| gathered.resume.is_none()),
            ))
        });
    }

    /// Most bytes of pairs that the region may have to be copied.
    pub fn mergeable_bytes(&self) -> u64 {
        self.primary().options().merged_up_to(self.reshape().merge_bytes)
    }

    /// A job has looked whether the region is small enough to be copied.
    pub(super) fn was_measured(&mut self, now: Nanos, into: RegionId, is_small: Result<bool, Error>) {
        self.reshape_mut().merge.is_measuring = false;
        if self.primary().merging().map(|(into, _)| into) != Some(into) {
            return;
        }
        match is_small {
            Ok(true) => self.reshape_mut().merge.measured = Some(into),
            Ok(false) => self.fail_plan(now, QuiesceReason::Merge, too_large(self.mergeable_bytes())),
            Err(error) => self.fail_plan(now, QuiesceReason::Merge, error.to_string()),
        }
    }

    /// Nothing is left to be done before the region can quiesce for a merge.
    pub(super) fn is_to_be_merged(&self) -> bool {
        matches!(self.primary().merging(), Some((into, None)) if self.reshape().merge.measured == Some(into))
    }

    /// Has a job read some of the region's pairs, from `start` on.
    pub fn read_pairs(&mut self, start: Bytes) {
        let snapshot = self.region().snapshot(self.region().last_lsn(), self.wall_now());
        let bounds = (start, self.key_bounds().1);
        self.spawn(move || Outcome::Reshape(ReshapeDone::Gathered(gather(&snapshot, bounds, CHUNK_BYTES))));
    }

    /// Some pairs were read. Notes for each the request that wrote it, if that is known.
    pub(super) fn was_read(&mut self, mut gathered: Result<Gathered, Error>) {
        for (pair, request) in gathered.iter_mut().flat_map(|gathered| &mut gathered.pairs) {
            *request = self.requests_mut().written_at(pair.lsn);
        }
        self.reshape_mut().merge.gathered = Some(gathered);
    }

    /// Prepares for pairs within these bounds of a region whose last LSN is `last`. `false`: there is no room for that yet.
    pub fn clear_for(&mut self, last: Lsn, (start, end): &Piece) -> Result<bool, Error> {
        let Some(skipped) = with_room(self.region().skip_lsns(last))? else { return Ok(false) };
        self.requests_mut().forget_up_to(skipped);
        let clear = Write::delete_range(start, end.as_deref());
        with_room(self.region().append(&[clear])).map(|appended| appended.is_some())
    }

    /// Appends a pair of another region, and the id of the request that wrote it. `false`: there is no room for it yet.
    pub fn append_pair(&mut self, (pair, request): &(ScanEntry, Option<RequestId>)) -> Result<bool, Error> {
        let request = request.filter(|_| !planted(Bug::ForgetMergeSource));
        let write = Write { expires: pair.expires, request, ..Write::put(&pair.key, &pair.value) };
        let Some(appended) = with_room(self.region().append(&[write]))? else { return Ok(false) };
        if let Some(request) = request {
            self.requests_mut().remember(request, appended.last, Effect::of(RecordKind::Put, &pair.value));
        }
        Ok(true)
    }

    /// Seals the tails. Answers what is to be durable everywhere.
    pub fn begin_flushing(&mut self) -> CopiedUpTo {
        self.region().seal_tails();
        let next = |log| self.region().tails(log).last().map_or(0, |tail| tail.index() + 1);
        CopiedUpTo { last: self.region().last_lsn(), below: LogKind::APPENDED.map(next) }
    }

    /// Everything up to there is committed, and durable with every member.
    pub fn has_flushed(&self, CopiedUpTo { last, below }: CopiedUpTo) -> bool {
        let is_old =
            |log: LogKind| self.region().tails(log).first().is_none_or(|tail| tail.index() >= below[log.index()]);
        self.primary().is_with_all(last) && LogKind::APPENDED.into_iter().all(is_old)
    }

    /// Why this region cannot be a merge target now, if it cannot. `is_synced`: this node hears the coordinator.
    pub fn target_obstacle(&self, is_synced: bool) -> Option<&'static str> {
        let (in_sync, needed) = self.primary().in_sync();
        if !self.can_quiesce(is_synced) || in_sync < needed || !self.is_active() {
            Some("the merge target's group is changing, or the coordinator is not heard")
        } else if self.primary().transfer_target().is_some() {
            Some("the merge target is to have another primary first")
        } else {
            None
        }
    }
}

/// Why a region is not copied that has more than so many bytes of pairs.
pub fn too_large(most: u64) -> String {
    format!("it has more than the {most} bytes of pairs that may be copied (merge_bytes, and eight L0s)")
}

/// `None`: there is no room for it yet.
fn with_room<T>(appended: Result<T, AppendError>) -> Result<Option<T>, Error> {
    match appended {
        Ok(appended) => Ok(Some(appended)),
        Err(AppendError::TailBusy(_) | AppendError::L0Full) => Ok(None),
        Err(AppendError::Engine(error)) => Err(error),
    }
}
