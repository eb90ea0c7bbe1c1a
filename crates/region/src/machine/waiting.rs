//! Operations on a region that this node is about to serve. They wait here instead of being sent back. So a client sees a pause
//! during a change of primaries, and no error.
//!
//! Invariant: no node has begun an operation that waits here; but if it has a request id, an earlier attempt may have been
//! begun.

use crate::request::{Answer, Request};
use crate::wait_queue::WaitQueue;
use leeward_format::op::{OpError, OpResult};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;

/// How many operations of one region wait at most, and how long.
const MOST_WAITING: usize = 4_096;
const TIMEOUT: Nanos = Nanos::from_millis(1_000);

/// Operations that wait for one region to open.
pub(super) struct WaitingRoom {
    waiting: WaitQueue<Request>,
    /// Epoch of the region's configuration, as the node knew it when the last operation came.
    pub(crate) epoch: Epoch,
}

impl Default for WaitingRoom {
    fn default() -> WaitingRoom {
        WaitingRoom { waiting: WaitQueue::new(MOST_WAITING, TIMEOUT), epoch: Epoch(0) }
    }
}

impl WaitingRoom {
    /// Adds an operation, or gives it back if there is no room.
    pub(crate) fn enter(&mut self, now: Nanos, epoch: Epoch, request: Request) -> Option<Request> {
        if self.waiting.is_full() {
            return Some(request);
        }
        self.epoch = epoch;
        self.waiting.push(now, request);
        None
    }

    /// Takes out all operations, in the order in which they came.
    pub(crate) fn leave(&mut self) -> impl Iterator<Item = Request> + use<> {
        self.waiting.take()
    }

    /// Answers operations that have waited for too long.
    pub(crate) fn expire(&mut self, now: Nanos, region: RegionId, out: &mut Vec<Answer>) {
        while let Some(request) = self.waiting.pop_late(now) {
            out.push((request.to, OpResult::Error(OpError::Recovering(region))));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
