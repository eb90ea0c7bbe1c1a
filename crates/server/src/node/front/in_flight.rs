//! Flow control between this node and the nodes that it forwards operations to. It bounds the bytes of operations and answers
//! that are in flight. So clients do not fill a link, which leases and mirroring share; and no more answers come than there is
//! memory for.
//!
//! An operation counts with its own bytes and the expected bytes of its answer. These are unknown before the answer comes: the
//! largest recent answer stands for them. An operation that does not fit [waits](FairQueue), and is sent when answers have
//! come. If an answer is larger than recent ones, and there is no memory for it, it is dropped, and the read is sent again.
//!
//! Belongs to the node; pure.

use super::fair_queue::FairQueue;
use leeward_format::ServerId;
use leeward_format::op::{Op, OpResult};
use leeward_region::client_memory::{ClientMemory, SMALL_BYTES};
use leeward_region::request::Request;
use std::collections::BTreeMap;

/// Most bytes in flight to one server and back.
const MOST_BYTES: u64 = 16 << 20;
/// Fewest bytes that an answer counts for. This bounds the number of operations in flight.
const LEAST_ANSWER_BYTES: u64 = 8 << 10;
/// Most bytes of an answer: a value, or a page of a scan.
const MOST_ANSWER_BYTES: u64 = (1 << 20) + (64 << 10);
/// Bytes of an operation besides its keys and values; also bytes of an answer without a value.
const OVERHEAD_BYTES: u64 = 512;

/// Bytes of forwarded operations, and of their answers, that are in flight to each node.
pub(super) struct InFlight {
    memory: ClientMemory,
    most: u64,
    peers: BTreeMap<ServerId, Peer>,
}

struct Peer {
    bytes: u64,
    /// Bytes of its largest recent answer.
    largest: u64,
    waiting: FairQueue,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer { bytes: 0, largest: MOST_ANSWER_BYTES, waiting: FairQueue::default() }
    }
}

impl Peer {
    /// How many bytes an operation counts for.
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
    /// Nothing is in flight.
    pub(super) fn new(memory: ClientMemory) -> InFlight {
        let most = MOST_BYTES.min(memory.most_at_once() as u64);
        InFlight { memory, most, peers: BTreeMap::new() }
    }

    /// An operation goes to `server`. Answers how many bytes it counts for.
    pub(super) fn sent(&mut self, server: ServerId, op: &Op) -> u64 {
        let peer = self.peers.entry(server).or_default();
        let bytes = peer.bytes_of(op);
        peer.bytes += bytes;
        bytes
    }

    /// An operation of so many bytes was answered, if there is a `result`, or will not be.
    pub(super) fn ended(&mut self, server: ServerId, bytes: u64, result: Option<&OpResult>) {
        let Some(peer) = self.peers.get_mut(&server) else { return };
        peer.bytes -= bytes;
        if let Some(result) = result {
            let found = leeward_region::client_memory::result_bytes(result) as u64;
            peer.largest = (peer.largest - peer.largest / 64).max(found).max(LEAST_ANSWER_BYTES);
        }
    }

    /// Whether an operation that comes now for `server` must wait.
    pub(super) fn must_wait(&self, server: ServerId) -> bool {
        self.peers.get(&server).is_some_and(|peer| !peer.waiting.is_empty() || self.is_full(peer))
    }

    fn is_full(&self, peer: &Peer) -> bool {
        // One operation may always be in flight, so that its answer wakes those that wait.
        peer.bytes > 0 && (peer.bytes >= self.most || self.memory.is_full())
    }

    /// An operation waits for its turn.
    pub(super) fn wait(&mut self, server: ServerId, request: Request) {
        self.peers.entry(server).or_default().waiting.push(request);
    }

    /// The answer to a read is dropped. The read waits for memory, before all others.
    pub(super) fn wait_again(&mut self, server: ServerId, request: Request) {
        self.peers.entry(server).or_default().waiting.push_front(request);
    }

    /// Whether there is no memory for `result`, which is charged already.
    pub(super) fn lacks_memory_for(&self, result: &OpResult) -> bool {
        self.memory.is_overdrawn() && leeward_region::client_memory::result_bytes(result) > SMALL_BYTES
    }

    /// Servers for which operations wait that can be sent now.
    pub(super) fn ready(&self) -> Vec<ServerId> {
        let ready = self.peers.iter().filter(|(_, peer)| !peer.waiting.is_empty() && !self.is_full(peer));
        ready.map(|(server, _)| *server).collect()
    }

    /// All that waits for `server`.
    pub(super) fn take(&mut self, server: ServerId) -> FairQueue {
        self.peers.get_mut(&server).map(|peer| std::mem::take(&mut peer.waiting)).unwrap_or_default()
    }

    /// The next of the operations that were [taken](InFlight::take), if it can be sent now.
    pub(super) fn next(&self, server: ServerId, waiting: &mut FairQueue) -> Option<Request> {
        let peer = self.peers.get(&server)?;
        if self.is_full(peer) { None } else { waiting.pop(|request| peer.bytes_of(&request.op)) }
    }

    /// Puts back the operations that were taken and not sent, before those that have come since.
    pub(super) fn put_back(&mut self, server: ServerId, mut waiting: FairQueue) {
        let peer = self.peers.entry(server).or_default();
        let came_since = std::mem::take(&mut peer.waiting);
        came_since.into_all().for_each(|request| waiting.push(request));
        peer.waiting = waiting;
    }

    /// Takes out the operations that are late.
    pub(super) fn late(&mut self, is_late: impl Fn(&Request) -> bool) -> Vec<Request> {
        let mut late = Vec::new();
        for peer in self.peers.values_mut() {
            late.extend(peer.waiting.late(&is_late));
        }
        late
    }

    /// Whether no operation waits.
    pub(super) fn is_empty(&self) -> bool {
        self.peers.values().all(|peer| peer.waiting.is_empty())
    }
}

/// Bytes of the keys and values of an operation.
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
