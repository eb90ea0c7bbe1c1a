//! A small region, the merge source, becomes part of its neighbour, the merge target, while both are served. Its pairs are
//! copied, since two regions with separate histories may have different segments of the same name.
//!
//! ```text
//!  source:  a plan --------> Quiesced -----------------------------------------------------------> Proposed -> is no more
//!  target:  is marked         | LSNs skipped, range cleared | pairs appended | durable everywhere |          goes on, wider
//! ```
//! Both regions have their primary on this node: the master moves the source's primary to the server of the target's primary.
//! The source quiesces ([`crate::node::reshape::quiesce`]). The target goes on, and appends the source's pairs as records that
//! no client sees, since their keys are not its own yet. Then one operation of the coordinator widens the target's
//! configuration and removes the source's.
//!
//! Invariants:
//! - The source is not written from before its first pair is read until the outcome of the proposal is known. Operations that
//!   have queued go to the region that has their keys then.
//! - The operation is proposed only once all copied pairs are committed, and durable with every member of the target. So what
//!   was durable before does not come to depend on memory. The coordinator refuses it if either configuration has changed since
//!   the copy began.
//! - The target is marked in its configuration before the copy begins ([`GroupConfig::holding_more`]). So any later primary of
//!   the target finds what a failed attempt has left, and deletes it as after a split. While the merge runs nothing is deleted.
//! - In each attempt the target skips LSNs beyond the last one of the source. So a pair's version never occurs twice. The
//!   target forgets requests that it does not know by then, since the source may have executed them. It knows a request that
//!   wrote a pair as the pair is now, since the request's id is copied with the pair.
//! - A node splits or merges one region at a time.

use crate::node::Node;
use crate::node::job::Outcome;
use crate::node::region::Slot;
use crate::node::reshape::ReshapeDone;
use crate::node::reshape::quiesce::{QuiesceReason, Stage as QuiesceStage};
use crate::node::reshape::trim::Trim;
use crate::node::serving::Serving;
use bytes::Bytes;
use leeward_engine::region::Piece;
use leeward_engine::{AppendError, Error, ScanBounds, ScanEntry, Snapshot, Write};
use leeward_format::record::RecordKind;
use leeward_format::request::{Effect, RequestId};
use leeward_format::routing::Routing;
use leeward_format::{Epoch, LogKind, Lsn, RegionId, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use std::collections::VecDeque;

/// How long the source may be quiesced until the merge is proposed.
const TIMEOUT: Nanos = Nanos::from_secs(1);
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

/// Pairs that were read of a region.
#[derive(Debug)]
pub(crate) struct Gathered {
    pairs: VecDeque<(ScanEntry, Option<RequestId>)>,
    bytes: u64,
    /// The key of the next pair, if there are more.
    resume: Option<Bytes>,
}

/// How far a merge has come.
#[derive(Debug)]
enum Stage {
    /// The target is to skip LSNs, and to delete what it may have of the source's keys.
    Clearing,
    /// A job reads the next pairs.
    Reading,
    /// The target appends these pairs. Reading then resumes at their `resume` key.
    Copying(Gathered),
    /// All pairs are appended, up to LSN `last`. Their tails, with indexes below `below`, are being flushed.
    Flushing { last: Lsn, below: [u64; 2] },
    /// The operation was proposed to the coordinator.
    Proposed,
}

impl Stage {
    /// What this stage waits for.
    fn what(&self) -> &'static str {
        match self {
            Stage::Clearing | Stage::Copying(_) => "the merge target has no room for its pairs",
            Stage::Reading => "its pairs are not read yet",
            Stage::Flushing { .. } => "the copy is not durable with every member of the merge target",
            Stage::Proposed => "the coordinator has not answered",
        }
    }
}

/// A merge that is under way.
#[derive(Debug)]
pub(super) struct RegionMerge {
    source: RegionId,
    target: RegionId,
    /// Epochs of the source's and the target's configuration when the merge began.
    epochs: (Epoch, Epoch),
    since: Nanos,
    /// Bytes of pairs that were read so far.
    bytes: u64,
    stage: Stage,
}

impl RegionMerge {
    /// Source, target, and the epochs of their configurations when the merge began.
    pub(crate) fn attempt(&self) -> (RegionId, RegionId, (Epoch, Epoch)) {
        (self.source, self.target, self.epochs)
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

impl Serving {
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
    fn mergeable_bytes(&self) -> u64 {
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
    fn read_pairs(&mut self, start: Bytes) {
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
    fn clear_for(&mut self, last: Lsn, (start, end): &Piece) -> Result<bool, Error> {
        let Some(skipped) = with_room(self.region().skip_lsns(last))? else { return Ok(false) };
        self.requests_mut().forget_up_to(skipped);
        let clear = Write::delete_range(start, end.as_deref());
        with_room(self.region().append(&[clear])).map(|appended| appended.is_some())
    }

    /// Appends a pair of another region, and the id of the request that wrote it. `false`: there is no room for it yet.
    fn append_pair(&mut self, (pair, request): &(ScanEntry, Option<RequestId>)) -> Result<bool, Error> {
        let request = request.filter(|_| !planted(Bug::ForgetMergeSource));
        let write = Write { expires: pair.expires, request, ..Write::put(&pair.key, &pair.value) };
        let Some(appended) = with_room(self.region().append(&[write]))? else { return Ok(false) };
        if let Some(request) = request {
            self.requests_mut().remember(request, appended.last, Effect::of(RecordKind::Put, &pair.value));
        }
        Ok(true)
    }

    /// Seals the tails. Answers the stage that lasts until all that was appended is durable everywhere.
    fn begin_flushing(&mut self) -> Stage {
        self.region().seal_tails();
        let next = |log| self.region().tails(log).last().map_or(0, |tail| tail.index() + 1);
        Stage::Flushing { last: self.region().last_lsn(), below: LogKind::APPENDED.map(next) }
    }

    /// Everything up to `last`, which is in tails below these indexes, is committed, and durable with every member.
    fn has_flushed(&self, last: Lsn, below: [u64; 2]) -> bool {
        let is_old =
            |log: LogKind| self.region().tails(log).first().is_none_or(|tail| tail.index() >= below[log.index()]);
        self.primary().is_with_all(last) && LogKind::APPENDED.into_iter().all(is_old)
    }

    /// Why this region cannot be a merge target now, if it cannot. `is_synced`: this node hears the coordinator.
    fn target_obstacle(&self, is_synced: bool) -> Option<&'static str> {
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

fn too_large(most: u64) -> String {
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

impl Node {
    /// What keeps `source` from quiescing to be merged into `target`, besides what its own primary sees. Has the target marked,
    /// if it is not.
    pub(super) fn merge_obstacle(&mut self, source: RegionId, target: RegionId) -> Option<&'static str> {
        let (known, is_synced) = (self.routes(), self.context.agent.view().is_synced());
        let is_neighbour = known.region(source).zip(known.region(target)).is_some_and(|(one, two)| one.is_next_to(two));
        let merge_bytes = self.context.resources.merge_bytes;
        if self.is_another_reshaped(source) {
            return Some("its server splits or merges another region first");
        }
        let serving = self.serving(source)?;
        let (is_hash, is_ready) = (serving.primary().options().partition.is_hash(), serving.can_quiesce(is_synced));
        let Some(other) = self.serving(target).filter(|other| other.is_open()) else {
            return Some(
                "its primary is not on the server of the merge target's primary, or the merge target is not served",
            );
        };
        if merge_bytes == 0 {
            Some("its server copies no regions (merge_bytes is 0)")
        } else if is_hash || !is_neighbour {
            Some("the merge target is no neighbour of it")
        } else if let Some(why) = other.target_obstacle(is_synced) {
            Some(why)
        } else if other.primary().config().inherited_below == SegmentId(0) {
            if is_ready {
                other.primary_mut().hold_more();
                self.step(target, Slot::act_as_primary);
                self.idle.touch(target);
            }
            Some("the merge target is being marked in its configuration")
        } else {
            None
        }
    }

    /// Advances the merge that is under way, or begins one, if there is one to begin. To be called at the end of each turn.
    pub(crate) fn merge(&mut self, now: Nanos) {
        self.begin_merge(now);
        while let Some(mut merging) = self.reshaping.merging.take() {
            let (source, target) = (merging.source, merging.target);
            match self.step_merge(now, &mut merging) {
                Ok(true) => self.reshaping.merging = Some(merging),
                Ok(false) => {
                    self.reshaping.merging = Some(merging);
                    return;
                }
                Err(why) => self.give_up_merge(now, (source, target), why),
            }
            for region in [target, source] {
                self.wake(now, region);
                self.idle.touch(region);
                self.end_turn_of(now, region);
            }
        }
    }

    /// Begins the merge of a region that is quiesced for it, if there is one.
    fn begin_merge(&mut self, now: Nanos) {
        let Some(source) = self.reshaping.region.filter(|_| self.reshaping.merging.is_none()) else { return };
        let Some(serving) = self.serving(source) else { return };
        let (QuiesceStage::Quiesced { .. }, Some((target, _))) =
            (serving.reshape().quiesce.stage, serving.primary().merging())
        else {
            return;
        };
        // No job of the region runs, so pairs that may still be here are of an attempt that failed.
        serving.reshape_mut().merge.gathered = None;
        let epoch = serving.primary().config().epoch;
        let Some(other) = self.serving(target) else {
            let serving = self.serving(source).expect("just seen");
            return serving.fail_plan(
                now,
                QuiesceReason::Merge,
                "the merge target has its primary on another server".into(),
            );
        };
        other.reshape_mut().merge.is_target = true;
        let epochs = (epoch, other.primary().config().epoch);
        tracing::info!(region = %source, into = %target, "is being merged");
        self.reshaping.merging =
            Some(RegionMerge { source, target, epochs, since: now, bytes: 0, stage: Stage::Clearing });
    }

    /// Checks that source and target are as they were when the merge began, and that it may continue.
    fn check_merge(&mut self, now: Nanos, merging: &RegionMerge) -> Result<(), String> {
        let is_synced = self.context.agent.view().is_synced();
        let is_quiesced = self.serving(merging.source).is_some_and(|source| {
            let is_as_before = source.primary().config().epoch == merging.epochs.0 && source.can_quiesce(is_synced);
            let is_meant = matches!(source.primary().merging(), Some((into, None)) if into == merging.target);
            is_as_before && is_meant && matches!(source.reshape().quiesce.stage, QuiesceStage::Quiesced { .. })
        });
        if !is_quiesced {
            return Err("its configuration changed meanwhile, or the coordinator is not heard".into());
        }
        match self.serving(merging.target) {
            Some(target) if target.primary().config().epoch == merging.epochs.1 => {
                match target.target_obstacle(is_synced) {
                    Some(why) => Err(why.into()),
                    None if now - merging.since > TIMEOUT => Err(format!(
                        "copying it took too long, after {} bytes: {}",
                        merging.bytes,
                        merging.stage.what()
                    )),
                    None => Ok(()),
                }
            }
            _ => Err("the merge target's configuration changed meanwhile".into()),
        }
    }

    /// Advances the merge by a step. `false`: something must happen first.
    fn step_merge(&mut self, now: Nanos, merging: &mut RegionMerge) -> Result<bool, String> {
        if matches!(merging.stage, Stage::Proposed) {
            return Ok(false);
        }
        self.check_merge(now, merging)?;
        let failed = |error: Error| error.to_string();
        let from = self.serving(merging.source).expect("just looked at");
        match &mut merging.stage {
            Stage::Clearing => {
                let (last, bounds) = (from.region().last_lsn(), from.key_bounds());
                let into = self.serving(merging.target).expect("just looked at");
                if !into.clear_for(last, &bounds).map_err(failed)? {
                    return Ok(false);
                }
                self.serving(merging.source).expect("just looked at").read_pairs(bounds.0);
                merging.stage = Stage::Reading;
            }
            Stage::Reading => {
                let Some(gathered) = from.reshape_mut().merge.gathered.take() else { return Ok(false) };
                let gathered = gathered.map_err(failed)?;
                merging.bytes += gathered.bytes;
                if merging.bytes > from.mergeable_bytes() {
                    return Err(too_large(from.mergeable_bytes()));
                }
                merging.stage = Stage::Copying(gathered);
            }
            Stage::Copying(gathered) => {
                let into = self.serving(merging.target).expect("just looked at");
                while let Some(pair) = gathered.pairs.front() {
                    if !into.append_pair(pair).map_err(failed)? {
                        return Ok(false);
                    }
                    gathered.pairs.pop_front();
                }
                merging.stage = match gathered.resume.take() {
                    None => into.begin_flushing(),
                    Some(next) => {
                        self.serving(merging.source).expect("just looked at").read_pairs(next);
                        Stage::Reading
                    }
                };
            }
            &mut Stage::Flushing { last, below } => {
                let source = from.primary().config().clone();
                let into = self.serving(merging.target).expect("just looked at");
                if !into.has_flushed(last, below) && !planted(Bug::MergeUnsettled) {
                    return Ok(false);
                }
                into.primary_mut().propose_merge(source);
                let from = self.serving(merging.source).expect("just looked at");
                from.primary_mut().be_merged();
                from.reshape_mut().quiesce.stage = QuiesceStage::Proposed { since: now, transfer_target: None };
                merging.stage = Stage::Proposed;
            }
            Stage::Proposed => unreachable!("looked at above"),
        }
        Ok(true)
    }

    /// Gives the merge up for now. Source and target serve as before, and the target deletes the copied pairs.
    fn give_up_merge(&mut self, now: Nanos, (source, target): (RegionId, RegionId), why: String) {
        if let Some(into) = self.serving(target) {
            into.reshape_mut().merge.is_target = false;
            into.reshape_mut().trim = Trim::FIRST;
        }
        let from = self.serving(source);
        if let Some(from) = from.filter(|from| {
            matches!(from.reshape().quiesce.stage, QuiesceStage::Quiesced { .. } | QuiesceStage::Proposed { .. })
        }) {
            from.fail_plan(now, QuiesceReason::Merge, why);
        }
    }

    /// The coordinator has answered whether a region was merged into another. Each is given with the term in which it was
    /// served here.
    pub(crate) fn merge_ended(
        &mut self,
        now: Nanos,
        source: (RegionId, Epoch),
        target: (RegionId, Epoch),
        is_done: bool,
    ) {
        let merging =
            self.reshaping.merging.take_if(|merging| (merging.source, merging.target) == (source.0, target.0));
        if let Some(into) = self.serving(target.0).filter(|into| into.term() == target.1) {
            into.primary_mut().proposal_ended();
            if is_done {
                let paused_us = merging.as_ref().map(|merging| (now - merging.since).0 / 1_000);
                let bytes = merging.as_ref().map(|merging| merging.bytes);
                tracing::info!(region = %source.0, into = %target.0, paused_us, bytes, "was merged");
                into.counters_mut().merges += 1;
                into.forget_samples();
            }
            into.reshape_mut().merge.is_target = false;
            into.reshape_mut().trim = Trim::FIRST;
        }
        if let Some(from) = self.serving(source.0).filter(|from| from.term() == source.1) {
            from.primary_mut().proposal_ended();
            if !is_done && from.is_proposed() {
                from.fail_plan(now, QuiesceReason::Merge, "a configuration changed meanwhile".into());
            }
        }
        self.idle.touch_each([source.0, target.0]);
    }

    /// The merge that is under way here: source, target, and the epochs of their configurations when it began.
    pub fn merging(&self) -> Option<(RegionId, RegionId, (Epoch, Epoch))> {
        self.reshaping.merging.as_ref().map(RegionMerge::attempt)
    }
}
