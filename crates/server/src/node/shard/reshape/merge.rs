//! A small region, the merge source, becomes part of its neighbour, the merge target, while both are served. Its pairs are
//! copied, since two regions with separate histories may have different segments of the same name.
//!
//! ```text
//!  source:  a plan --------> Quiesced -----------------------------------------------------------> Proposed -> is no more
//!  target:  is marked         | LSNs skipped, range cleared | pairs appended | durable everywhere |          goes on, wider
//! ```
//! Both regions have their primary on this node: the master moves the source's primary to the server of the target's primary.
//! The source quiesces ([`leeward_region::serving::reshape::quiesce`]). The target goes on, and appends the source's pairs as
//! records that no client sees, since their keys are not its own yet. Then one operation of the coordinator widens the target's
//! configuration and removes the source's.
//!
//! Invariants:
//! - The source is not written from before its first pair is read until the outcome of the proposal is known. Operations that
//!   have queued go to the region that has their keys then.
//! - The operation is proposed only once all copied pairs are committed, and durable with every member of the target. So what
//!   was durable before does not come to depend on memory. The coordinator refuses it if either configuration has changed since
//!   the copy began.
//! - The target is marked in its configuration before the copy begins ([`leeward_format::cluster::GroupConfig::holding_more`]).
//!   So any later primary of the target finds what a failed attempt has left, and deletes it as after a split. While the merge
//!   runs nothing is deleted.
//! - In each attempt the target skips LSNs beyond the last one of the source. So a pair's version never occurs twice. The
//!   target forgets requests that it does not know by then, since the source may have executed them. It knows a request that
//!   wrote a pair as the pair is now, since the request's id is copied with the pair.
//! - A node splits or merges one region at a time.

use crate::node::shard::{NodeFacts, Shard};
use leeward_engine::Error;
use leeward_format::routing::Routing;
use leeward_format::{Epoch, RegionId, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_region::input::Input as RegionInput;
use leeward_region::job::Gathered;
use leeward_region::serving::reshape::merge::{CopiedUpTo, too_large};

/// How long the source may be quiesced until the merge is proposed.
const TIMEOUT: Nanos = Nanos::from_secs(1);

/// How far a merge has come.
#[derive(Debug)]
enum Stage {
    /// The target is to skip LSNs, and to delete what it may have of the source's keys.
    Clearing,
    /// A job reads the next pairs.
    Reading,
    /// The target appends these pairs. Reading then resumes at their `resume` key.
    Copying(Gathered),
    /// All pairs are appended, and are being flushed.
    Flushing(CopiedUpTo),
    /// The operation was proposed to the coordinator.
    Proposed,
}

impl Stage {
    /// What this stage waits for.
    fn what(&self) -> &'static str {
        match self {
            Stage::Clearing | Stage::Copying(_) => "the merge target has no room for its pairs",
            Stage::Reading => "its pairs are not read yet",
            Stage::Flushing(_) => "the copy is not durable with every member of the merge target",
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

impl Shard {
    /// What keeps `source` from quiescing to be merged into `target`, besides what its own primary sees. Has the target marked,
    /// if it is not.
    pub(super) fn merge_obstacle(
        &mut self,
        facts: NodeFacts,
        source: RegionId,
        target: RegionId,
    ) -> Option<&'static str> {
        let (known, is_synced) = (facts.control.routes(), facts.control.view().is_synced());
        let is_neighbour = known.region(source).zip(known.region(target)).is_some_and(|(one, two)| one.is_next_to(two));
        let merge_bytes = self.resources.merge_bytes;
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
                self.give(facts, target, RegionInput::HoldMore);
                self.idle.touch(target);
            }
            Some("the merge target is being marked in its configuration")
        } else {
            None
        }
    }

    /// Advances the merge that is under way by a step. To be called at the end of each turn until it answers none. It answers
    /// the two regions that acted, whose turn goes on.
    pub(in crate::node) fn advance_merge(&mut self, facts: NodeFacts) -> Option<[RegionId; 2]> {
        let mut merging = self.reshaping.merging.take()?;
        let (source, target) = (merging.source, merging.target);
        match self.step_merge(facts, &mut merging) {
            Ok(true) => self.reshaping.merging = Some(merging),
            Ok(false) => {
                self.reshaping.merging = Some(merging);
                return None;
            }
            Err(why) => self.give_up_merge(facts.control.now(), (source, target), why),
        }
        Some([target, source])
    }

    /// Begins the merge of a region that is quiesced for it, if there is one.
    pub(in crate::node) fn begin_merge(&mut self, now: Nanos) {
        let Some(source) = self.reshaping.region.filter(|_| self.reshaping.merging.is_none()) else { return };
        let Some(serving) = self.serving(source) else { return };
        let Some(target) = serving.quiesced_for() else { return };
        serving.begin_being_copied();
        let epoch = serving.primary().config().epoch;
        let Some(other) = self.serving(target) else {
            let serving = self.serving(source).expect("just seen");
            return serving.fail_merge(now, "the merge target has its primary on another server".into());
        };
        other.begin_merging();
        let epochs = (epoch, other.primary().config().epoch);
        tracing::info!(region = %source, into = %target, "is being merged");
        self.reshaping.merging =
            Some(RegionMerge { source, target, epochs, since: now, bytes: 0, stage: Stage::Clearing });
    }

    /// Checks that source and target are as they were when the merge began, and that it may continue.
    fn check_merge(&mut self, facts: NodeFacts, merging: &RegionMerge) -> Result<(), String> {
        let (now, is_synced) = (facts.control.now(), facts.control.view().is_synced());
        let is_quiesced = self
            .serving(merging.source)
            .is_some_and(|source| source.is_still_source(merging.target, merging.epochs.0, is_synced));
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
    fn step_merge(&mut self, facts: NodeFacts, merging: &mut RegionMerge) -> Result<bool, String> {
        if matches!(merging.stage, Stage::Proposed) {
            return Ok(false);
        }
        self.check_merge(facts, merging)?;
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
                let Some(gathered) = from.take_gathered() else { return Ok(false) };
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
                    None => Stage::Flushing(into.begin_flushing()),
                    Some(next) => {
                        self.serving(merging.source).expect("just looked at").read_pairs(next);
                        Stage::Reading
                    }
                };
            }
            &mut Stage::Flushing(copied) => {
                let source = from.primary().config().clone();
                let into = self.serving(merging.target).expect("just looked at");
                if !into.has_flushed(copied) && !planted(Bug::MergeUnsettled) {
                    return Ok(false);
                }
                into.primary_mut().propose_merge(source);
                let from = self.serving(merging.source).expect("just looked at");
                from.be_merged(facts.control.now());
                merging.stage = Stage::Proposed;
            }
            Stage::Proposed => unreachable!("looked at above"),
        }
        Ok(true)
    }

    /// Gives the merge up for now. Source and target serve as before, and the target deletes the copied pairs.
    fn give_up_merge(&mut self, now: Nanos, (source, target): (RegionId, RegionId), why: String) {
        if let Some(into) = self.serving(target) {
            into.end_merging();
        }
        if let Some(from) = self.serving(source) {
            from.give_up_merge(now, why);
        }
    }

    /// The coordinator has answered whether a region was merged into another. Each is given with the term in which it was
    /// served here.
    pub(in crate::node) fn merge_ended(
        &mut self,
        now: Nanos,
        source: (RegionId, Epoch),
        target: (RegionId, Epoch),
        is_done: bool,
    ) {
        let merging =
            self.reshaping.merging.take_if(|merging| (merging.source, merging.target) == (source.0, target.0));
        if let Some(into) = self.serving(target.0).filter(|into| into.term() == target.1) {
            if is_done {
                let paused_us = merging.as_ref().map(|merging| (now - merging.since).0 / 1_000);
                let bytes = merging.as_ref().map(|merging| merging.bytes);
                tracing::info!(region = %source.0, into = %target.0, paused_us, bytes, "was merged");
            }
            into.merge_proposal_ended(is_done);
        }
        if let Some(from) = self.serving(source.0).filter(|from| from.term() == source.1) {
            from.source_proposal_ended(now, is_done);
        }
        self.idle.touch_each([source.0, target.0]);
    }

    /// The merge that is under way here: source, target, and the epochs of their configurations when it began.
    pub(in crate::node) fn merging(&self) -> Option<(RegionId, RegionId, (Epoch, Epoch))> {
        self.reshaping.merging.as_ref().map(RegionMerge::attempt)
    }
}
