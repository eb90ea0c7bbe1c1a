//! Operations for a region that this node is about to serve: they wait here instead of being sent back, so that who asks during a
//! change of primaries sees a pause and no error.
//!
//! Invariant: whatever waits here was not begun by anybody, unless it is named and an earlier attempt was.

use super::Node;
use super::forward::{Unrouted, Way};
use super::serving::Answer;
use leeward_format::cluster::{GroupConfig, Member};
use leeward_format::op::{OpError, OpResult};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Operations of one region that wait at most, and how long.
const MOST_WAITING: usize = 4_096;
const PATIENCE: Nanos = Nanos::from_millis(1_000);

/// Operations that wait for one region to open.
#[derive(Default)]
pub(super) struct WaitingRoom {
    /// Each with when it came.
    waiting: VecDeque<(Nanos, Unrouted)>,
    /// Of the region's configuration, as it was known when the last one came.
    epoch: Epoch,
}

impl WaitingRoom {
    /// Lets one in; gives it back if there is no room.
    pub(super) fn enter(&mut self, now: Nanos, epoch: Epoch, unrouted: Unrouted) -> Option<Unrouted> {
        if self.waiting.len() >= MOST_WAITING {
            return Some(unrouted);
        }
        self.epoch = epoch;
        self.waiting.push_back((now, unrouted));
        None
    }

    /// All of them, in the order in which they came.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = Unrouted> + use<> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, unrouted)| unrouted)
    }

    /// Sends away who has waited for too long.
    pub(super) fn expire(&mut self, now: Nanos, region: RegionId, out: &mut Vec<Answer>) {
        while let Some((_, unrouted)) = self.waiting.pop_front_if(|(since, _)| now - *since > PATIENCE) {
            out.push((unrouted.to, OpResult::Error(OpError::Recovering(region))));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Node {
    /// Whether this node is about to serve a region with a configuration of such an epoch and primary, as far as it can know: it is
    /// that; or who sent an operation here knows a newer configuration.
    pub(super) fn is_about_to_serve(&self, (known, primary): (Epoch, Option<Member>), way: Way) -> bool {
        let knows_less = matches!(way, Way::Forwarded(epoch) if epoch > known);
        self.twin.is_none() && (knows_less || primary == Some(self.context.me))
    }

    /// What waits for `region` goes on: into it, or to whoever has it now. Answers whether anything has come into it.
    pub(super) fn call_in(&mut self, now: Nanos, region: RegionId) -> bool {
        let Some(slot) = self.slots.get_mut(&region).filter(|slot| !slot.waiting.is_empty()) else { return false };
        let me = self.context.me;
        let stays = |config: &GroupConfig| config.primary == Some(me) || config.epoch <= slot.waiting.epoch;
        let stays = slot.config.as_ref().is_none_or(stays);
        if slot.serving().is_some_and(|serving| serving.open) {
            let waiting = slot.waiting.leave();
            let serving = slot.serving().expect("just seen");
            waiting.for_each(|unrouted| serving.execute(now, unrouted.pending(now)));
            return true;
        }
        if !stays {
            slot.waiting.leave().for_each(|unrouted| self.route(now, unrouted, Way::Any));
        }
        false
    }
}
