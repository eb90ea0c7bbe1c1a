//! What may be under way between this node and others that it forwards operations to: operations and their answers, in bytes, so that
//! clients neither fill a link, which leases and mirroring share, nor have more sent here than there is memory for.
//!
//! An operation counts with its own bytes and with what its answer may have: as much as the largest of late, since nobody knows it
//! before. What does not fit [waits](FairQueue), and goes when answers have come. Where answers are larger than those of late, and
//! there is no memory for them, they are dropped, and the reads are asked for again.
//!
//! Belongs to the node; pure.

use super::fair_queue::FairQueue;
use super::forward::Unrouted;
use crate::client_memory::{ClientMemory, SMALL_BYTES};
use leeward_format::ServerId;
use leeward_format::op::{Op, OpResult};
use std::collections::BTreeMap;

/// Most bytes under way to one server and back.
const MOST_BYTES: u64 = 16 << 20;
/// What any answer may have, at least: so many operations under way are the most.
const LEAST_ANSWER_BYTES: u64 = 8 << 10;
/// What an answer may have at most: a value, or a page of a scan.
const MOST_ANSWER_BYTES: u64 = (1 << 20) + (64 << 10);
/// What an operation takes besides its bytes, and an answer without a value.
const OVERHEAD_BYTES: u64 = 512;

/// See the module.
pub(super) struct InFlight {
    memory: ClientMemory,
    most: u64,
    peers: BTreeMap<ServerId, Peer>,
}

struct Peer {
    bytes: u64,
    /// Of its answers, of late.
    largest: u64,
    waiting: FairQueue,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer { bytes: 0, largest: MOST_ANSWER_BYTES, waiting: FairQueue::default() }
    }
}

impl Peer {
    /// What an operation counts for.
    fn bytes_of(&self, op: &Op) -> u64 {
        let answer = match op {
            op if op.is_plain_put() => OVERHEAD_BYTES,
            op if op.key().is_some() => self.largest,
            _ => MOST_ANSWER_BYTES,
        };
        OVERHEAD_BYTES + op_bytes(op) + answer
    }
}

impl InFlight {
    /// Nothing is under way.
    pub(super) fn new(memory: ClientMemory) -> InFlight {
        let most = MOST_BYTES.min(memory.most_at_once() as u64);
        InFlight { memory, most, peers: BTreeMap::new() }
    }

    /// An operation goes to `server`; answers what it counts for.
    pub(super) fn sent(&mut self, server: ServerId, op: &Op) -> u64 {
        let peer = self.peers.entry(server).or_default();
        let bytes = peer.bytes_of(op);
        peer.bytes += bytes;
        bytes
    }

    /// It was answered, if there is a `result`, or will not be.
    pub(super) fn ended(&mut self, server: ServerId, bytes: u64, result: Option<&OpResult>) {
        let Some(peer) = self.peers.get_mut(&server) else { return };
        peer.bytes -= bytes;
        if let Some(result) = result {
            let found = crate::commands::result_bytes(result) as u64;
            peer.largest = (peer.largest - peer.largest / 64).max(found).max(LEAST_ANSWER_BYTES);
        }
    }

    /// An operation that comes now for `server` must wait.
    pub(super) fn must_wait(&self, server: ServerId) -> bool {
        self.peers.get(&server).is_some_and(|peer| !peer.waiting.is_empty() || self.is_full(peer))
    }

    fn is_full(&self, peer: &Peer) -> bool {
        // Something is always under way, so that what waits goes on.
        peer.bytes > 0 && (peer.bytes >= self.most || self.memory.is_full())
    }

    /// An operation waits for its turn.
    pub(super) fn wait(&mut self, server: ServerId, unrouted: Unrouted) {
        self.peers.entry(server).or_default().waiting.push(unrouted);
    }

    /// The answer to a read is dropped, and the read waits for memory, before all others.
    pub(super) fn wait_again(&mut self, server: ServerId, unrouted: Unrouted) {
        self.peers.entry(server).or_default().waiting.push_front(unrouted);
    }

    /// There is no memory for `result`, which is charged already.
    pub(super) fn lacks_memory_for(&self, result: &OpResult) -> bool {
        self.memory.is_overdrawn() && crate::commands::result_bytes(result) > SMALL_BYTES
    }

    /// Servers for which operations wait that may go now.
    pub(super) fn ready(&self) -> Vec<ServerId> {
        let ready = self.peers.iter().filter(|(_, peer)| !peer.waiting.is_empty() && !self.is_full(peer));
        ready.map(|(server, _)| *server).collect()
    }

    /// All that waits for `server`.
    pub(super) fn take(&mut self, server: ServerId) -> FairQueue {
        self.peers.get_mut(&server).map(|peer| std::mem::take(&mut peer.waiting)).unwrap_or_default()
    }

    /// The next of those that were [taken](InFlight::take), if it may go now.
    pub(super) fn next(&self, server: ServerId, waiting: &mut FairQueue) -> Option<Unrouted> {
        let peer = self.peers.get(&server)?;
        if self.is_full(peer) { None } else { waiting.pop(|unrouted| peer.bytes_of(&unrouted.op)) }
    }

    /// Gives back what was taken and did not go, before what has come since.
    pub(super) fn put_back(&mut self, server: ServerId, mut waiting: FairQueue) {
        let peer = self.peers.entry(server).or_default();
        let came_since = std::mem::take(&mut peer.waiting);
        came_since.into_all().for_each(|unrouted| waiting.push(unrouted));
        peer.waiting = waiting;
    }

    /// Operations that are late.
    pub(super) fn late(&mut self, is_late: impl Fn(&Unrouted) -> bool) -> Vec<Unrouted> {
        let mut late = Vec::new();
        for peer in self.peers.values_mut() {
            late.extend(peer.waiting.late(&is_late));
        }
        late
    }

    /// Nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.peers.values().all(|peer| peer.waiting.is_empty())
    }
}

/// Bytes of what an operation names.
fn op_bytes(op: &Op) -> u64 {
    let key = op.key().map_or(0, |key| key.len());
    let range = op.range().map_or(0, |(start, end)| start.len() + end.map_or(0, |end| end.len()));
    let value = match op {
        Op::Put { value, when, .. } => value.len() + when.value_bytes(),
        Op::Delete { when, .. } => when.value_bytes(),
        Op::Append { suffix, .. } => suffix.len(),
        _ => 0,
    };
    (key + range + value) as u64
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
