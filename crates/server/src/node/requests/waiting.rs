//! Operations on a region that this node is about to serve. They wait here instead of being sent back. So a client sees a pause
//! during a change of primaries, and no error.
//!
//! Invariant: no node has begun an operation that waits here; but if it has a request id, an earlier attempt may have been
//! begun.

use crate::node::Node;
use crate::node::requests::forward::{Unrouted, Way};
use crate::node::requests::wait_queue::WaitQueue;
use crate::node::serving::Answer;
use leeward_format::cluster::{GroupConfig, Member};
use leeward_format::op::{OpError, OpResult};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;

/// How many operations of one region wait at most, and how long.
const MOST_WAITING: usize = 4_096;
const TIMEOUT: Nanos = Nanos::from_millis(1_000);

/// Operations that wait for one region to open.
pub(crate) struct WaitingRoom {
    waiting: WaitQueue<Unrouted>,
    /// Epoch of the region's configuration, as the node knew it when the last operation came.
    epoch: Epoch,
}

impl Default for WaitingRoom {
    fn default() -> WaitingRoom {
        WaitingRoom { waiting: WaitQueue::new(MOST_WAITING, TIMEOUT), epoch: Epoch(0) }
    }
}

impl WaitingRoom {
    /// Adds an operation, or gives it back if there is no room.
    pub(crate) fn enter(&mut self, now: Nanos, epoch: Epoch, unrouted: Unrouted) -> Option<Unrouted> {
        if self.waiting.is_full() {
            return Some(unrouted);
        }
        self.epoch = epoch;
        self.waiting.push(now, unrouted);
        None
    }

    /// Takes out all operations, in the order in which they came.
    pub(crate) fn leave(&mut self) -> impl Iterator<Item = Unrouted> + use<> {
        self.waiting.take()
    }

    /// Answers operations that have waited for too long.
    pub(crate) fn expire(&mut self, now: Nanos, region: RegionId, out: &mut Vec<Answer>) {
        while let Some(unrouted) = self.waiting.pop_late(now) {
            out.push((unrouted.to, OpResult::Error(OpError::Recovering(region))));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Node {
    /// Whether this node is about to serve a region, whose configuration it knows with this epoch and primary. It is if it is
    /// that primary, or if the node that sent an operation here knows a newer configuration.
    pub(super) fn is_about_to_serve(&self, (known, primary): (Epoch, Option<Member>), way: Way) -> bool {
        let knows_less = matches!(way, Way::Forwarded(epoch) if epoch > known);
        self.presence.is_unique() && (knows_less || primary == Some(self.context.me))
    }

    /// Resumes the operations that wait for `region`: here, if it is open; or at its new primary, if that is another node.
    /// Answers whether any was executed here.
    pub(crate) fn wake_waiters(&mut self, now: Nanos, region: RegionId) -> bool {
        let Some(slot) = self.slots.get_mut(&region).filter(|slot| !slot.waiting.is_empty()) else { return false };
        let me = self.context.me;
        let stays = |config: &GroupConfig| config.primary == Some(me) || config.epoch <= slot.waiting.epoch;
        let stays = slot.config.as_ref().is_none_or(stays);
        if slot.serving().is_some_and(|serving| serving.is_open()) {
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
