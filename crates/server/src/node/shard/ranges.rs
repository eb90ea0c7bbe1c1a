//! Answers digests of ranges of this node's copy of a region, for a tool that compares replicas. The node may have any
//! role in the region. Belongs to the node's thread; a digest is a background job.
//!
//! The region's primary names a state: its commit LSN, and an instant [`DIGEST_AHEAD_MS`] ahead of its wall clock. Every copy
//! is read as of that state. So copies agree although they are asked one after the other, and have other levels.
//! - A backup may not have that LSN yet, and is asked again. One that is not read otherwise begins to index its records.
//! - A compaction keeps the newest version of a key. So a copy whose levels have later writes is too late.
//! - A compaction drops the pairs that have expired by the clock of its node. So a node whose clock has reached the
//!   instant says so, when it is asked and when its digests are finished. The tool asks the primary last: that covers
//!   compactions of the primary that were shipped. Where clocks are further apart than [`DIGEST_AHEAD_MS`], nothing is
//!   compared.
//! - A copy of a later term is too late, and one that is not in sync in the term is too early. Only in the primary's
//!   term are the records up to that LSN the same.
//!
//! Each question reads a bounded amount of pairs. Between two questions a node keeps no snapshot.

use super::{NodeFacts, Shard};
use leeward_format::op::{DIGEST_AHEAD_MS, DigestInstant, MOST_RANGES, OpError, OpResult, RangeAnswer, RangeQuestion};
use leeward_format::{Epoch, MAX_KEY_BYTES, RegionId, ServerId, UnixMs};
use leeward_platform::cpu::Activity;
use leeward_region::input::Input as RegionInput;
use leeward_region::job::{JobClass, Outcome};
use leeward_region::request::ReplyTo;

/// Bytes of keys and values after which an answer stops.
const MOST_BYTES: u64 = 16 << 20;

impl Shard {
    /// The primary names a state, and where its region can be cut.
    pub(in crate::node) fn range_bounds(&mut self, to: ReplyTo, region: RegionId, want_bounds: bool) {
        let wall = self.resources.wall.now();
        let result = match self.serving(region).filter(|serving| serving.is_open()) {
            Some(serving) => {
                let (term, copy) = (serving.term(), serving.region());
                // What is compacted is committed.
                let lsn = copy.snapshot(copy.commit(), wall).lsn();
                let at = DigestInstant { term, lsn, now: UnixMs(wall.0.saturating_add(DIGEST_AHEAD_MS)) };
                let bounds = if want_bounds { copy.range_bounds() } else { Vec::new() };
                OpResult::RangeBounds { at, bounds }
            }
            None => OpResult::Error(self.not_primary(region)),
        };
        self.answer(to, result);
    }

    fn not_primary(&self, region: RegionId) -> OpError {
        let config = self.machine(region).and_then(|machine| machine.config());
        OpError::NotPrimary { region, epoch: config.map_or(Epoch(0), |config| config.epoch) }
    }

    /// Answers a question about ranges of this node's copy.
    pub(in crate::node) fn range_digests(&mut self, facts: NodeFacts, to: ReplyTo, question: RangeQuestion) {
        let region = question.region;
        let Some(machine) = self.machines.get_mut(&region) else {
            let error = OpError::Invalid(format!("this node has no copy of region {region}"));
            return self.answer(to, OpResult::Error(error));
        };
        if let Err(error) = check(&question) {
            return self.answer(to, OpResult::Error(error));
        }
        match machine.copy_at(facts.control.now(), question.at) {
            Ok(snapshot) => {
                let wall = self.resources.wall.clone();
                self.spawn(JobClass::Background, region, Activity::Other.of_node(), move || {
                    let RangeQuestion { start, ends, so_far, at, .. } = question;
                    let answer = snapshot.range_digests(&start, &ends, &so_far, MOST_BYTES);
                    let has_passed = wall.now() >= at.now;
                    let answer = if has_passed { RangeAnswer::InstantPassed } else { answer };
                    Outcome::Proved { to, result: OpResult::RangeDigests(answer) }
                });
            }
            Err(why_not) => {
                if why_not == RangeAnswer::NotYet {
                    self.give(facts, region, RegionInput::ReadsWait);
                }
                self.answer(to, OpResult::RangeDigests(why_not));
            }
        }
    }

    /// The primary has a backup take its index in place of the one that the backup has built.
    pub(in crate::node) fn rebuild_index(&mut self, to: ReplyTo, region: RegionId, server: ServerId) {
        let result = match self.serving(region).filter(|serving| serving.is_open()) {
            Some(serving) => match serving.primary_mut().rebuild_index(server) {
                Ok(()) => {
                    tracing::warn!(%region, %server, "an operator has the index of this backup rebuilt");
                    OpResult::Done
                }
                Err(why) => OpResult::Error(OpError::Invalid(why)),
            },
            None => OpResult::Error(self.not_primary(region)),
        };
        self.idle.touch(region);
        self.answer(to, result);
    }
}

/// Refuses ranges that are not consecutive, or have bounds that no region has.
fn check(question: &RangeQuestion) -> Result<(), OpError> {
    let RangeQuestion { start, ends, so_far, .. } = question;
    let bounds = || std::iter::once(start).chain(ends.iter().flatten());
    let is_last = |i: usize| i + 1 == ends.len();
    let is_ascending =
        bounds().is_sorted_by(|a, b| a < b) && ends.iter().enumerate().all(|(i, end)| end.is_some() || is_last(i));
    // The successor of the longest key is a bound.
    let longest = bounds().map(|bound| bound.len()).max().unwrap_or(0);
    if !is_ascending || longest > MAX_KEY_BYTES + 1 || ends.len() > MOST_RANGES || so_far.damage.is_some() {
        return Err(OpError::Invalid("these are no consecutive ranges of keys".into()));
    }
    Ok(())
}

#[cfg(test)]
#[path = "ranges_tests.rs"]
mod tests;
