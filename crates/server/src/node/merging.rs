//! A small region becomes part of its neighbour while both are served: what it has is copied, since segments of two regions that went
//! their own ways cannot be told apart by name.
//!
//! ```text
//!  taken:   a plan ------> stands still ------------------------------------------------------------> Proposed -> is no more
//!  taker:   is marked         | LSNs skipped, range cleared | pairs appended | durable everywhere |             goes on, wider
//! ```
//! Both have their primary here: the master brings the one that is to be taken in to where the other has its own. That one comes to
//! rest ([`super::stand_still`]); the other goes on, and is written what the first one has, as records that nobody sees, since their
//! keys are not its own yet. Then one operation of the coordinator widens the one configuration and removes the other.
//!
//! Invariants:
//! - From before its first pair is read until it is known what came of the proposal, the region that is taken in is written nothing.
//!   What has queued goes to who has its keys then.
//! - The operation is proposed only once all that was copied is committed, and durable with every member of the taker: what was durable
//!   before does not hang on memory. It is refused if either configuration is not as it was when the copy began.
//! - A region that takes one in is marked before in its configuration ([`GroupConfig::holding_more`]): what is left of an attempt that
//!   failed is found there by whoever is its primary, and deleted as after a division. Meanwhile nothing is.
//! - The taker skips LSNs beyond the last one of the other, in each attempt. So a pair's version never comes a second time, and a
//!   request that is not known by then is forgotten: it may have been carried out by the other. One that wrote a pair as it is now is
//!   known, since its id is copied with the pair.
//! - Of a node's regions one is divided or taken in at a time.

use super::job::Outcome;
use super::membership::Proposer;
use super::samples::Samples;
use super::serving::Serving;
use super::slot::Slot;
use super::stand_still::Stage as Standing;
use super::trim::Trim;
use super::{Context, Node};
use bytes::Bytes;
use leeward_cluster::Outcome as Answer;
use leeward_engine::region::Piece;
use leeward_engine::{AppendError, Error, ScanBounds, ScanEntry, Snapshot, Write};
use leeward_format::cluster::GroupConfig;
use leeward_format::record::RecordKind;
use leeward_format::request::{Effect, RequestId};
use leeward_format::routing::Routing;
use leeward_format::{Epoch, LogKind, Lsn, RegionId, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use std::collections::VecDeque;

/// How long a region may stand still for being taken in.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// Bytes that are read at a time, and appended in one turn.
const CHUNK_BYTES: u64 = 256 << 10;
/// What a pair counts for besides its key and value.
const PAIR_BYTES: u64 = 32;

/// A region's part in becoming one with its neighbour.
#[derive(Debug, Default)]
pub(super) struct Joint {
    /// The neighbour for which it was found to be small enough.
    measured: Option<RegionId>,
    is_measuring: bool,
    /// What was read last, until it is appended to the neighbour.
    gathered: Option<Result<Gathered, Error>>,
    /// It is taking a neighbour in: what is not its own may be about to become that.
    pub(super) is_taking_in: bool,
}

/// Pairs of a region.
#[derive(Debug)]
pub(super) struct Gathered {
    pairs: VecDeque<(ScanEntry, Option<RequestId>)>,
    bytes: u64,
    /// The next one, if there are more.
    resume: Option<Bytes>,
}

/// How far it has come.
#[derive(Debug)]
enum Stage {
    /// The taker is to skip LSNs, and to delete what it may have of the other's keys.
    Clearing,
    /// A job reads the next pairs.
    Reading,
    /// These are appended, and it is read on from the key.
    Copying(Gathered),
    /// All is appended, up to this LSN, and the tails that it is in, below these indexes, are being flushed.
    Settling { last: Lsn, below: [u64; 2] },
    /// The operation was asked for.
    Proposed,
}

impl Stage {
    /// What it waits for.
    fn what(&self) -> &'static str {
        match self {
            Stage::Clearing | Stage::Copying(_) => "the other region has no room for it",
            Stage::Reading => "it is not read yet",
            Stage::Settling { .. } => "it is not durable with every member of the other region",
            Stage::Proposed => "the coordinator has not answered",
        }
    }
}

/// A region that is being taken in.
#[derive(Debug)]
pub(super) struct Merging {
    taken: RegionId,
    taker: RegionId,
    /// Of their configurations when it began.
    epochs: (Epoch, Epoch),
    since: Nanos,
    bytes: u64,
    stage: Stage,
}

impl Merging {
    /// Who is taken in by whom, and the configurations in which that began.
    pub(super) fn attempt(&self) -> (RegionId, RegionId, (Epoch, Epoch)) {
        (self.taken, self.taker, self.epochs)
    }
}

/// Reads pairs from `start` on up to, and without, `end`, until they have so many bytes.
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
    /// Finds out what is left to be done before the region can come to rest for being taken in by `into`, and does it.
    pub(super) fn prepare_merge(&mut self, into: RegionId, can_rest: bool) {
        if !can_rest || self.joint.is_measuring || self.joint.measured == Some(into) {
            return;
        }
        self.joint.is_measuring = true;
        let (snapshot, bounds) = (self.region.snapshot(self.region.last_lsn(), self.wall.now()), self.key_bounds());
        let most = self.mergeable_bytes();
        self.spawn_in_background(Activity::Engine.of_primary(), move || {
            Outcome::Measured(into, gather(&snapshot, bounds, most).map(|gathered| gathered.resume.is_none()))
        });
    }

    /// Bytes of pairs that it may have at most to be copied.
    fn mergeable_bytes(&self) -> u64 {
        self.primary.options().merged_up_to(self.merge_bytes)
    }

    /// It was looked whether it is small enough to be copied.
    pub(super) fn was_measured(&mut self, now: Nanos, into: RegionId, is_small: Result<bool, Error>) {
        self.joint.is_measuring = false;
        if self.primary.merging().map(|(into, _)| into) != Some(into) {
            return;
        }
        match is_small {
            Ok(true) => self.joint.measured = Some(into),
            Ok(false) => self.fail_merge(now, too_large(self.mergeable_bytes())),
            Err(error) => self.fail_merge(now, error.to_string()),
        }
    }

    /// Nothing is left to be done before it can come to rest for being taken in.
    pub(super) fn is_to_be_taken_in(&self) -> bool {
        matches!(self.primary.merging(), Some((into, None)) if self.joint.measured == Some(into))
    }

    /// An attempt ends; the next one comes later.
    fn fail_merge(&mut self, now: Nanos, why: String) {
        tracing::info!(region = %self.id, why, "does not become part of its neighbour yet");
        self.counters.merges_failed += 1;
        (self.joint.measured, self.joint.gathered) = (None, None);
        self.division.fail(why);
        self.stay_undivided(now, Nanos::ZERO);
    }

    /// Has a job read some of its pairs from `start` on.
    fn read_on(&mut self, start: Bytes) {
        let snapshot = self.region.snapshot(self.region.last_lsn(), self.wall.now());
        let bounds = (start, self.key_bounds().1);
        self.spawn(move || Outcome::Gathered(gather(&snapshot, bounds, CHUNK_BYTES)));
    }

    /// Some were read; those that requests have written are told by these.
    pub(super) fn was_read(&mut self, mut gathered: Result<Gathered, Error>) {
        for (pair, request) in gathered.iter_mut().flat_map(|gathered| &mut gathered.pairs) {
            *request = self.requests.written_at(pair.lsn);
        }
        self.joint.gathered = Some(gathered);
    }

    /// Makes place for pairs of a region that has come up to `last`, within `bounds`; `false`: there is no room for that yet.
    fn clear_for(&mut self, last: Lsn, (start, end): &Piece) -> Result<bool, Error> {
        let Some(skipped) = with_room(self.region.skip_lsns(last))? else { return Ok(false) };
        self.requests.forget_up_to(skipped);
        let clear = Write::delete_range(start, end.as_deref());
        with_room(self.region.append(&[clear])).map(|appended| appended.is_some())
    }

    /// Takes a pair of another region, and who has written it; `false`: there is no room for it yet.
    fn take_pair(&mut self, (pair, request): &(ScanEntry, Option<RequestId>)) -> Result<bool, Error> {
        let request = request.filter(|_| !planted(Bug::ForgetAbsorbed));
        let write = Write { expires: pair.expires, request, ..Write::put(&pair.key, &pair.value) };
        let Some(appended) = with_room(self.region.append(&[write]))? else { return Ok(false) };
        if let Some(request) = request {
            self.requests.remember(request, appended.last, Effect::of(RecordKind::Put, &pair.value));
        }
        Ok(true)
    }

    /// Seals the tails; answers what must be so before all that was appended is durable everywhere.
    fn settle(&mut self) -> Stage {
        self.region.seal_tails();
        let next = |log| self.region.tails(log).last().map_or(0, |tail| tail.index() + 1);
        Stage::Settling { last: self.region.last_lsn(), below: LogKind::APPENDED.map(next) }
    }

    /// Everything up to `last`, which is in tails below these indexes, is committed, and durable with every member.
    fn has_settled(&self, last: Lsn, below: [u64; 2]) -> bool {
        let is_old =
            |log: LogKind| self.region.tails(log).first().is_none_or(|tail| tail.index() >= below[log.index()]);
        self.primary.is_with_all(last) && LogKind::APPENDED.into_iter().all(is_old)
    }

    /// Why it cannot take `other` in now; `is_synced`: the coordinator is heard. Of two that are to become part of each other, the one
    /// with the lower number takes the other one in.
    fn cannot_take_in(&self, other: RegionId, is_synced: bool) -> Option<&'static str> {
        let (in_sync, needed) = self.primary.in_sync();
        let wishes = &self.primary.config().wishes;
        if !self.can_rest(is_synced) || in_sync < needed || !self.is_moving() {
            Some("the group of the region that is to take it in is changing, or the coordinator is not heard")
        } else if wishes.plan.as_ref().is_some_and(|plan| plan.neighbour() != Some(other) || other < self.id)
            || self.primary.heir().is_some()
        {
            Some("the region that is to take it in is to become another, or to have another primary, first")
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

impl Context {
    /// Proposes that a region becomes part of another.
    pub(super) fn merge(&mut self, old: &GroupConfig, wider: GroupConfig, taken: GroupConfig) {
        let (taker, proposed) = ((old.region, old.term), (taken.region, taken.term));
        let proposal = self.agent.merge(self.now, old.clone(), wider, taken);
        self.proposals.insert(proposal, Proposer::Merge { taken: proposed, taker });
    }
}

impl Node {
    fn serving(&mut self, region: RegionId) -> Option<&mut Serving> {
        self.slots.get_mut(&region).and_then(Slot::serving)
    }

    /// What is in the way of `taken` coming to rest for being taken in by `taker`, beside what its own primary sees. Has the other one
    /// marked, if it is not.
    pub(super) fn merge_obstacle(&mut self, taken: RegionId, taker: RegionId) -> Option<&'static str> {
        let (known, is_synced) = (self.routes(), self.context.agent.view().is_synced());
        let is_neighbour = known.region(taken).zip(known.region(taker)).is_some_and(|(one, two)| one.is_next_to(two));
        let merge_bytes = self.context.merge_bytes;
        if self.is_another_reshaped(taken) {
            return Some("its server divides or merges another region first");
        }
        let serving = self.serving(taken)?;
        let (is_hash, is_ready) = (serving.primary.options().partition.is_hash(), serving.can_rest(is_synced));
        let Some(other) = self.serving(taker).filter(|other| other.open) else {
            return Some("its primary is not on the server of the region that is to take it in, or that is not served");
        };
        if merge_bytes == 0 {
            Some("its server copies no regions (merge_bytes is 0)")
        } else if is_hash || !is_neighbour {
            Some("the region that is to take it in is no neighbour of it")
        } else if let Some(why) = other.cannot_take_in(taken, is_synced) {
            Some(why)
        } else if other.primary.config().inherited_below == SegmentId(0) {
            if is_ready {
                other.primary.hold_more();
                self.slots.get_mut(&taker).expect("just seen").act_as_primary(&mut self.context);
                self.touched.insert(taker);
            }
            Some("the region that is to take it in is being marked")
        } else {
            None
        }
    }

    /// Comes further with a region that is to be taken in, if there is one. To be called at the end of each turn.
    pub(super) fn merge(&mut self, now: Nanos) {
        self.begin_merge(now);
        while let Some(mut merging) = self.merging.take() {
            let (taken, taker) = (merging.taken, merging.taker);
            match self.step_merge(now, &mut merging) {
                Ok(true) => self.merging = Some(merging),
                Ok(false) => {
                    self.merging = Some(merging);
                    return;
                }
                Err(why) => self.give_up_merge(now, (taken, taker), why),
            }
            for region in [taker, taken] {
                self.wake(now, region);
                self.touched.insert(region);
                self.end_turn_of(now, region);
            }
        }
    }

    /// A region stands still for being taken in: that begins.
    fn begin_merge(&mut self, now: Nanos) {
        let Some(taken) = self.dividing.filter(|_| self.merging.is_none()) else { return };
        let Some(serving) = self.serving(taken) else { return };
        let (Standing::Still { .. }, Some((taker, _))) = (serving.still.stage, serving.primary.merging()) else {
            return;
        };
        // No job of it runs, so what may still be here is of an attempt that failed.
        serving.joint.gathered = None;
        let epoch = serving.primary.config().epoch;
        let Some(other) = self.serving(taker) else {
            let serving = self.serving(taken).expect("just seen");
            return serving.fail_merge(now, "the region that is to take it in has another primary".into());
        };
        other.joint.is_taking_in = true;
        let epochs = (epoch, other.primary.config().epoch);
        tracing::info!(region = %taken, into = %taker, "is being taken in");
        self.merging = Some(Merging { taken, taker, epochs, since: now, bytes: 0, stage: Stage::Clearing });
    }

    /// Whether both are still as they were, and may go on.
    fn look_at_merge(&mut self, now: Nanos, merging: &Merging) -> Result<(), String> {
        let is_synced = self.context.agent.view().is_synced();
        let is_still = self.serving(merging.taken).is_some_and(|taken| {
            let is_as_before = taken.primary.config().epoch == merging.epochs.0 && taken.can_rest(is_synced);
            let is_meant = matches!(taken.primary.merging(), Some((into, None)) if into == merging.taker);
            is_as_before && is_meant && matches!(taken.still.stage, Standing::Still { .. })
        });
        if !is_still {
            return Err("its configuration changed meanwhile, or the coordinator is not heard".into());
        }
        match self.serving(merging.taker) {
            Some(taker) if taker.primary.config().epoch == merging.epochs.1 => {
                match taker.cannot_take_in(merging.taken, is_synced) {
                    Some(why) => Err(why.into()),
                    None if now - merging.since > PATIENCE => Err(format!(
                        "copying it took too long, after {} bytes: {}",
                        merging.bytes,
                        merging.stage.what()
                    )),
                    None => Ok(()),
                }
            }
            _ => Err("the region that is to take it in has changed meanwhile".into()),
        }
    }

    /// Comes a step further; `false`: something must happen first.
    fn step_merge(&mut self, now: Nanos, merging: &mut Merging) -> Result<bool, String> {
        if matches!(merging.stage, Stage::Proposed) {
            return Ok(false);
        }
        self.look_at_merge(now, merging)?;
        let failed = |error: Error| error.to_string();
        let from = self.serving(merging.taken).expect("just looked at");
        match &mut merging.stage {
            Stage::Clearing => {
                let (last, bounds) = (from.region.last_lsn(), from.key_bounds());
                let into = self.serving(merging.taker).expect("just looked at");
                if !into.clear_for(last, &bounds).map_err(failed)? {
                    return Ok(false);
                }
                self.serving(merging.taken).expect("just looked at").read_on(bounds.0);
                merging.stage = Stage::Reading;
            }
            Stage::Reading => {
                let Some(gathered) = from.joint.gathered.take() else { return Ok(false) };
                let gathered = gathered.map_err(failed)?;
                merging.bytes += gathered.bytes;
                if merging.bytes > from.mergeable_bytes() {
                    return Err(too_large(from.mergeable_bytes()));
                }
                merging.stage = Stage::Copying(gathered);
            }
            Stage::Copying(gathered) => {
                let into = self.serving(merging.taker).expect("just looked at");
                while let Some(pair) = gathered.pairs.front() {
                    if !into.take_pair(pair).map_err(failed)? {
                        return Ok(false);
                    }
                    gathered.pairs.pop_front();
                }
                merging.stage = match gathered.resume.take() {
                    None => into.settle(),
                    Some(next) => {
                        self.serving(merging.taken).expect("just looked at").read_on(next);
                        Stage::Reading
                    }
                };
            }
            &mut Stage::Settling { last, below } => {
                let taken = from.primary.config().clone();
                let into = self.serving(merging.taker).expect("just looked at");
                if !into.has_settled(last, below) && !planted(Bug::MergeUnsettled) {
                    return Ok(false);
                }
                into.primary.take_in(taken);
                let from = self.serving(merging.taken).expect("just looked at");
                from.primary.be_taken_in();
                from.still.stage = Standing::Proposed { since: now, heir: None };
                merging.stage = Stage::Proposed;
            }
            Stage::Proposed => unreachable!("looked at above"),
        }
        Ok(true)
    }

    /// Nothing comes of it for now: both go on as they were, and what was copied is deleted.
    fn give_up_merge(&mut self, now: Nanos, (taken, taker): (RegionId, RegionId), why: String) {
        if let Some(into) = self.serving(taker) {
            into.joint.is_taking_in = false;
            into.trim = Trim::FIRST;
        }
        let from = self.serving(taken);
        if let Some(from) =
            from.filter(|from| matches!(from.still.stage, Standing::Still { .. } | Standing::Proposed { .. }))
        {
            from.fail_merge(now, why);
        }
    }

    /// It is known whether a region has become part of another; each has been served here in a term.
    pub(super) fn merge_ended(
        &mut self,
        now: Nanos,
        taken: (RegionId, Epoch),
        taker: (RegionId, Epoch),
        outcome: &Answer,
    ) {
        let merging = self.merging.take_if(|merging| (merging.taken, merging.taker) == (taken.0, taker.0));
        let is_done = *outcome == Answer::Accepted;
        if let Some(into) = self.serving(taker.0).filter(|into| into.term == taker.1) {
            into.primary.proposal_ended();
            if is_done {
                let stood_us = merging.as_ref().map(|merging| (now - merging.since).0 / 1_000);
                let bytes = merging.as_ref().map(|merging| merging.bytes);
                tracing::info!(region = %taken.0, into = %taker.0, stood_us, bytes, "was taken in");
                into.counters.merges += 1;
                into.samples = Samples::new(taker.0);
            }
            into.joint.is_taking_in = false;
            into.trim = Trim::FIRST;
        }
        if let Some(from) = self.serving(taken.0).filter(|from| from.term == taken.1) {
            from.primary.proposal_ended();
            if !is_done && from.is_proposed() {
                from.fail_merge(now, "a configuration changed meanwhile".into());
            }
        }
        self.touched.extend([taken.0, taker.0]);
    }

    /// The region that is being taken in here.
    pub fn merging(&self) -> Option<(RegionId, RegionId, (Epoch, Epoch))> {
        self.merging.as_ref().map(Merging::attempt)
    }
}
