//! Operations on a region that this node serves that must wait: where each waits, for how long, and how many may.
//!
//! - A key that is looked up on the device is *locked*: later operations on it that write, or follow a write, wait in its
//!   queue.
//! - *At the device*: operations whose look-up or scan is under way, by ticket.
//! - *Stalled*: writes that wait for room, in order.
//! - *Behind*: a delete of a range that waits for keys or room, or a region that quiesces, and what was submitted since, in
//!   order. Writes that stalled when the region quiesced are in front of that.
//! - *For memory*: reads that wait until values can be charged to the clients' account ([`super::for_memory`]).
//!
//! Invariant: an operation is in one of these. Belongs to the node's thread.

use super::Serving;
use super::answers::OP_TIMEOUT;
use super::for_memory::MemoryQueue;
use crate::job::Lookups;
use crate::request::{Answer, Pending, Request};
use crate::wait_queue::WaitQueue;
use bytes::Bytes;
use leeward_format::op::{OpError, OpResult};
use leeward_format::table::TableName;
use leeward_platform::Nanos;
use rustc_hash::FxHashMap;
use std::collections::HashMap;

/// Operations that may wait for one thing: for a delete of a range, for room, for one key, for memory, at the device.
pub(super) const MOST_WAITING: usize = 16_384;

type Queue = WaitQueue<Pending>;

/// The operations on a region that wait.
pub(super) struct Queues {
    /// Keys with an operation under way, and the operations that wait for it.
    pub(super) locked: HashMap<Bytes, Queue>,
    /// Operations whose look-up or scan is under way.
    pub(super) at_device: FxHashMap<u64, Pending>,
    last_ticket: u64,
    /// Keys to be looked up at the end of the turn, of one version.
    pub(super) lookups: Option<Lookups>,
    pub(super) for_memory: MemoryQueue,
    pub(super) stalled: Queue,
    /// Since when writes stall, and whether they do for lack of room in L0.
    stalled_since: Option<(Nanos, bool)>,
    pub(super) behind: Queue,
}

/// An empty queue of a region's operations.
pub(super) const fn queue() -> Queue {
    WaitQueue::new(MOST_WAITING, OP_TIMEOUT)
}

impl Queues {
    /// Whether no operation waits that an operation on `key` would have to wait for.
    pub(super) fn has_none_before(&self, key: &[u8]) -> bool {
        self.behind.is_empty() && !self.locked.contains_key(key)
    }

    pub(super) fn new() -> Queues {
        Queues {
            locked: HashMap::new(),
            at_device: FxHashMap::default(),
            last_ticket: 0,
            lookups: None,
            for_memory: MemoryQueue::new(),
            stalled: queue(),
            stalled_since: None,
            behind: queue(),
        }
    }

    /// Nothing that has begun is left.
    pub(super) fn is_drained(&self) -> bool {
        let has_ended = self.locked.is_empty() && self.at_device.is_empty() && self.stalled.is_empty();
        has_ended && self.lookups.is_none() && self.for_memory.is_empty()
    }

    /// The device works for this operation. Answers its ticket.
    pub(super) fn ticket(&mut self, pending: Pending) -> u64 {
        self.last_ticket += 1;
        self.at_device.insert(self.last_ticket, pending);
        self.last_ticket
    }

    /// Later operations on `key` wait.
    pub(super) fn lock(&mut self, key: &Bytes) {
        self.locked.entry(key.clone()).or_insert_with(queue);
    }

    /// A write on `key` is at the device.
    fn is_looking_up(&self, key: &Bytes) -> bool {
        self.at_device.values().any(|pending| pending.op.is_write() && pending.op.key() == Some(key))
    }

    /// Writes that wait for room have not begun. They queue in front of what was submitted since, with what waits for their keys.
    fn defer_stalled(&mut self) {
        let mut deferred: Vec<Pending> = Vec::new();
        for pending in self.stalled.take() {
            let key = pending.op.key().expect("only writes stall");
            let later = self.locked.remove(key);
            deferred.push(pending);
            deferred.extend(later.into_iter().flat_map(|mut queue| queue.take()));
        }
        // The oldest is the first of a queue. Operations on one key are in order already, and stay so.
        deferred.sort_by_key(|pending| pending.since);
        for pending in deferred.into_iter().rev() {
            self.behind.put_back(pending.since, pending);
        }
    }

    /// Takes out all operations.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Pending> + use<> {
        self.lookups = None;
        let queued = std::mem::take(&mut self.locked).into_values().flat_map(|mut queue| queue.take());
        let at_device = std::mem::take(&mut self.at_device).into_values();
        let others = self.stalled.take().chain(self.for_memory.take_scans()).chain(self.behind.take());
        queued.chain(at_device).chain(others)
    }
}

impl Serving {
    /// Nothing that has begun is left: every answer has left, and no job runs.
    pub(crate) fn is_drained(&self) -> bool {
        self.queues.is_drained() && self.answers.is_empty() && self.jobs.running == 0
    }

    /// No operation waits for another, or for the region to be active again.
    pub(super) fn has_none_behind(&self) -> bool {
        self.queues.behind.is_empty()
    }

    /// Gives up operations that have waited for too long.
    pub(super) fn expire_queues(&mut self, now: Nanos, out: &mut Vec<Answer>) {
        let id = self.id();
        while let Some(stalled) = self.queues.stalled.pop_late(now) {
            out.push((stalled.to, OpResult::Error(self.why_no_room())));
            let key = stalled.op.key().expect("only writes stall").clone();
            self.unlock(now, &key);
        }
        while let Some(first) = self.queues.behind.pop_late(now) {
            let error = match (self.is_active(), self.why_no_room()) {
                (false, _) => OpError::Recovering(id),
                (true, OpError::Overloaded(_)) => {
                    OpError::Unavailable(format!("region {id}: no room for writes, or keys of the range are in use"))
                }
                (true, full) => full,
            };
            out.push((first.to, OpResult::Error(error)));
            self.run_next(now);
        }
        self.expire_for_memory(now, out);
    }

    /// Why writes wait for room, or have waited for too long. Where the volume has room, it is a compaction, or backups that
    /// flush: a retry may find that done.
    pub(super) fn why_no_room(&self) -> OpError {
        match self.region.volume().why_full() {
            Some(why) => OpError::Unavailable(format!("region {}: {why}", self.id())),
            None => OpError::Overloaded(self.id()),
        }
    }

    /// Starts the operations that wait for `key`.
    pub(super) fn unlock(&mut self, now: Nanos, key: &Bytes) {
        let Some(mut queue) = self.queues.locked.remove(key) else { return };
        while let Some(pending) = queue.pop() {
            self.start(now, pending);
            if let Some(locked) = self.queues.locked.get_mut(key) {
                locked.append(&mut queue);
            }
        }
    }

    /// A write waits for room. `l0_full`: L0 lacks it.
    pub(super) fn stall(&mut self, now: Nanos, pending: Pending, l0_full: bool) {
        self.queues.stalled_since.get_or_insert((now, l0_full));
        self.queues.lock(pending.op.key().expect("only writes stall"));
        self.queues.stalled.push(pending.since, pending);
    }

    /// Counts the time that writes have waited for room.
    fn count_stall(&mut self, now: Nanos) {
        let (since, l0_full) = self.queues.stalled_since.take().unwrap_or((now, false));
        let waited = (now - since).0;
        *(if l0_full { &mut self.counters.stall_l0_full_ns } else { &mut self.counters.stall_tail_ns }) += waited;
    }

    /// The region quiesces: see [`Queues::defer_stalled`]. There may never be room here, and the next primary may have some.
    pub(crate) fn defer_stalled(&mut self, now: Nanos) {
        if !self.queues.stalled.is_empty() {
            self.count_stall(now);
            self.queues.defer_stalled();
        }
    }

    /// Tries the writes that waited for room again.
    pub(crate) fn resume(&mut self, now: Nanos) {
        if self.queues.stalled.is_empty() {
            return;
        }
        self.count_stall(now);
        for pending in self.queues.stalled.take() {
            let key = pending.op.key().expect("only writes stall").clone();
            if self.queues.stalled.is_empty() {
                self.start(now, pending);
                if self.queues.stalled.is_empty() && !self.queues.is_looking_up(&key) {
                    self.unlock(now, &key);
                }
            } else {
                self.queues.stalled.push(pending.since, pending);
            }
        }
    }

    /// Gives back operations that were queued and have not begun.
    pub(crate) fn hand_out_queue(&mut self) -> Vec<Request> {
        let behind = self.queues.behind.take();
        self.as_requests(behind)
    }

    /// The operations in the form in which they came to the node.
    pub(super) fn as_requests(&self, operations: impl Iterator<Item = Pending>) -> Vec<Request> {
        let table: TableName = self.primary.config().table.parse().expect("it is the name of a table");
        operations.map(|pending| pending.into_request(self.id(), table.clone())).collect()
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
