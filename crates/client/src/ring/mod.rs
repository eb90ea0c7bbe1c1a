//! The client's end of the rings of one connection: the space in use in both rings, the answers that are due, and
//! whether the node or the client sleeps.
//!
//! [`leeward_format::ring`] has the format, and says why it is safe. The request ring is in the node's memory, the
//! reply ring in this process's. This end tracks the space of both ([`RingSpace`]).
//!
//! - A place in the request ring is free again when its message is answered and its write has completed: a late byte
//!   must not land in another message. A slot is free again when its answer was read.
//! - [`Ends::poll`] looks into the slots that are due: answers come in any order.
//! - An answer that was too large for its slot is fetched into a slot of the size that the node says. Until there is
//!   room for that slot, no other request gets room: otherwise smaller ones could delay it for ever.
//! - A word after the reply ring says whether the node is awake. If it sleeps when a request's write has completed,
//!   this end must ring it ([`Ends::must_ring`]).
//! - Before this end sleeps, it writes the number of its sleep after the request ring, and polls once more after that
//!   write has completed ([`Ends::announce_sleep`]). The node rings once for each number. So a number that was not rung
//!   for stays valid for the next sleep.
//!
//! Belongs to the session's thread. No clock, socket or thread of its own.

mod fabrics;
mod mailbox;
mod rooms;
#[cfg(test)]
mod tests;

pub(crate) use fabrics::{SHARED_MEMORY, bind, reads_now};
pub(crate) use mailbox::Mailbox;
pub(crate) use rooms::{AnswerSizes, answers_value, value};

use crate::options::Traffic;
use leeward_fabric::{Descriptor, Fabric, LinkEvent, Memory, PeerId, ReadNow, ReadableDescriptor};
use leeward_format::RegionId;
use leeward_format::frame::DecodeError;
use leeward_format::ring::space::RingSpace;
use leeward_format::ring::{
    CONTROL_BYTES, Identity, RingKind, Slot, UNIT_BYTES, message_bytes, read_message, write_message,
};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Operation number of a write that announces a sleep. Other writes have the number of their message.
const SLEEP_OP: u64 = u64::MAX;

/// Operation numbers from here on, but [`SLEEP_OP`], are of reads that map a memory. The rest is the region.
const MAP_OPS: u64 = 1 << 63;
/// Bytes of such a read.
const MAP_BYTES: u32 = 8;

/// The region whose memory the node refuses to have mapped, if the event says so. This is no fault of the rings.
pub(crate) fn refused_map(event: &LinkEvent) -> Option<RegionId> {
    let LinkEvent::Refused { op } = event else { return None };
    op.checked_sub(MAP_OPS).and_then(|region| u32::try_from(region).ok()).map(RegionId)
}

/// The node's grant.
pub(crate) struct Grant {
    /// Descriptor of the request ring.
    pub(crate) request: Descriptor,
    pub(crate) request_key: u64,
    pub(crate) reply_key: u64,
}

/// One message that was sent, with a no-op before it if there is one.
struct Exchange {
    sequence: u64,
    request_at: usize,
    /// Writes that are not completed.
    writes: u8,
    /// The slot of its answer; `None` once that was read.
    slot: Option<Slot>,
    is_free: bool,
}

/// Both rings of one connection.
pub(crate) struct Ends {
    fabric: Arc<dyn Fabric>,
    node: PeerId,
    memory: Arc<dyn Memory>,
    reply_bytes: usize,
    request_bytes: usize,
    grant: Option<Grant>,
    is_up: bool,
    requests: RingSpace,
    replies: RingSpace,
    sequence: u64,
    /// In order of their numbers.
    exchanges: VecDeque<Exchange>,
    /// How many of them wait for an answer.
    due: usize,
    /// Answers to fetch: the number of the message, and the bytes of the slot.
    fetches: VecDeque<(u64, usize)>,
    is_posted: bool,
    /// A request's write has completed since the last [`Ends::must_ring`].
    has_unannounced_requests: bool,
    announced: u64,
    heard: u64,
    buffer: Vec<u8>,
    traffic: Traffic,
}

impl Ends {
    /// Rings of these sizes with `node`, whose fabric listens at `address`.
    pub(crate) fn new(
        fabric: Arc<dyn Fabric>,
        node: PeerId,
        address: &str,
        (request_bytes, reply_bytes): (usize, usize),
    ) -> io::Result<Ends> {
        let memory = fabric.allocate(reply_bytes + CONTROL_BYTES)?;
        fabric.admit(node);
        fabric.connect(node, address);
        Ok(Ends {
            fabric,
            node,
            memory,
            reply_bytes,
            request_bytes,
            grant: None,
            is_up: false,
            requests: RingSpace::new(request_bytes),
            replies: RingSpace::new(reply_bytes),
            sequence: 0,
            exchanges: VecDeque::new(),
            due: 0,
            fetches: VecDeque::new(),
            is_posted: false,
            has_unannounced_requests: false,
            announced: 0,
            heard: 0,
            buffer: Vec::new(),
            traffic: Traffic::default(),
        })
    }

    /// The descriptor of the reply ring's memory.
    pub(crate) fn descriptor(&self) -> Descriptor {
        self.memory.descriptor()
    }

    /// The address of this end's fabric.
    pub(crate) fn address(&self) -> String {
        self.fabric.local_address()
    }

    /// The node has opened its end.
    pub(crate) fn granted(&mut self, grant: Grant) {
        self.grant = Some(grant);
    }

    /// Requests can be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.is_up && self.grant.is_some()
    }

    /// How many answers are due, fetches included.
    pub(crate) fn due(&self) -> usize {
        self.due + self.fetches.len()
    }

    /// Copies bytes of a memory of the node in this thread, if it is mapped.
    #[inline]
    pub(crate) fn read_now(&self, memory: &ReadableDescriptor, offset: u64, bytes: &mut [u8]) -> ReadNow {
        self.fabric.read_now(self.node, memory, offset, bytes)
    }

    /// Posts a read that maps a memory of the node, for the index of a region. [`refused_map`] knows if it fails.
    pub(crate) fn map(&mut self, memory: &ReadableDescriptor, region: RegionId) {
        self.fabric.read(self.node, memory, 0, MAP_BYTES, MAP_OPS | u64::from(region.0));
        self.is_posted = true;
    }

    /// Bytes of messages sent and received.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Longest payload of a request.
    pub(crate) fn most_request(&self) -> usize {
        self.requests.most() - 2 * UNIT_BYTES
    }

    /// Largest room for an answer.
    pub(crate) fn most_room(&self) -> usize {
        self.replies.most() - 2 * UNIT_BYTES
    }

    /// Whether a request with this much payload, and this much room for its answer, can be sent now.
    pub(crate) fn has_room(&self, payload: usize, room: usize) -> bool {
        self.fetches.is_empty()
            && self.requests.has_room(message_bytes(payload))
            && self.replies.has_room(message_bytes(room))
    }

    /// Posts a request with room for an answer of `room` bytes; [`Ends::flush`] sends it.
    ///
    /// # Panics
    /// Without [`Ends::has_room`].
    pub(crate) fn send(&mut self, payload: &[u8], room: usize) {
        self.post(RingKind::Frames, payload, message_bytes(room));
    }

    fn post(&mut self, kind: RingKind, payload: &[u8], slot_bytes: usize) {
        let grant = self.grant.as_ref().expect("the rings are open");
        let slot = self.replies.take(slot_bytes).expect("there is room");
        let slot = Slot { at: slot.at as u32, room: slot_bytes as u32 };
        let piece = self.requests.take(message_bytes(payload.len())).expect("there is room");
        let mut writes = 0;
        let noop = piece.skipped_at.map(|at| (at, RingKind::Noop, Slot::default(), &[][..]));
        for (at, kind, slot, payload) in noop.into_iter().chain([(piece.at, kind, slot, payload)]) {
            self.sequence += 1;
            let identity = Identity { key: grant.request_key, sequence: self.sequence, place: at as u32 };
            self.buffer.clear();
            write_message(identity, kind, slot, payload, &mut self.buffer);
            self.fabric.write(self.node, &grant.request, at as u64, &self.buffer, self.sequence);
            self.traffic.sent += self.buffer.len() as u64;
            writes += 1;
        }
        let (sequence, request_at) = (self.sequence, piece.at);
        self.exchanges.push_back(Exchange { sequence, request_at, writes, slot: Some(slot), is_free: false });
        self.due += 1;
        self.is_posted = true;
    }

    /// An answer has begun to arrive.
    pub(crate) fn has_answer(&self) -> bool {
        let Some(grant) = &self.grant else { return false };
        self.exchanges.iter().any(|exchange| {
            exchange.slot.is_some_and(|slot| {
                let identity = Identity { key: grant.reply_key, sequence: exchange.sequence, place: slot.at };
                identity.begun(self.memory.load_u64(slot.at as usize), slot.room as usize).is_some()
            })
        })
    }

    /// Looks for answers. Frames go to `answers`; one that comes over the connection is only no longer due here.
    ///
    /// # Errors
    /// The node breaks the format.
    pub(crate) fn poll(&mut self, mut answers: impl FnMut(&[u8])) -> Result<(), DecodeError> {
        let Some(grant) = &self.grant else { return Ok(()) };
        if self.due() == 0 {
            return Ok(());
        }
        let key = grant.reply_key;
        for index in 0..self.exchanges.len() {
            let Exchange { sequence, slot: Some(slot), .. } = self.exchanges[index] else { continue };
            let identity = Identity { key, sequence, place: slot.at };
            let Some(bytes) = identity.begun(self.memory.load_u64(slot.at as usize), slot.room as usize) else {
                continue;
            };
            if !identity.ended(self.memory.load_u64(slot.at as usize + bytes - 8)) {
                continue;
            }
            self.buffer.resize(bytes, 0);
            self.memory.read(slot.at as usize, &mut self.buffer);
            let Some(message) = read_message(identity, &self.buffer)? else { continue };
            match message.kind {
                RingKind::Frames => answers(message.payload),
                RingKind::TooSmall => {
                    let needed = message.slot.room as usize;
                    if needed > self.replies.most() || needed == 0 || !needed.is_multiple_of(UNIT_BYTES) {
                        return Err(DecodeError::invalid("ring message", format!("an answer of {needed} bytes")));
                    }
                    self.fetches.push_back((sequence, needed));
                }
                RingKind::OnStream => {}
                RingKind::Noop | RingKind::Fetch => {
                    return Err(DecodeError::invalid("ring message", "a request where an answer is due"));
                }
            }
            self.traffic.received += bytes as u64;
            self.replies.give_back(slot.at as usize);
            self.exchanges[index].slot = None;
            self.due -= 1;
            self.free(index);
        }
        self.drop_free();
        self.fetch();
        Ok(())
    }

    /// Fetches answers that were too large, as far as there is room.
    fn fetch(&mut self) {
        while let Some(&(sequence, room)) = self.fetches.front()
            && self.requests.has_room(message_bytes(8))
            && self.replies.has_room(room)
        {
            self.fetches.pop_front();
            self.post(RingKind::Fetch, &sequence.to_le_bytes(), room);
        }
    }

    /// Gives the place of an exchange back, if its writes have completed and its answer was read.
    fn free(&mut self, index: usize) {
        let exchange = &mut self.exchanges[index];
        if exchange.writes == 0 && exchange.slot.is_none() && !exchange.is_free {
            exchange.is_free = true;
            self.requests.give_back(exchange.request_at);
        }
    }

    fn drop_free(&mut self) {
        while self.exchanges.front().is_some_and(|exchange| exchange.is_free) {
            self.exchanges.pop_front();
        }
    }

    /// Flushes posts. Their events come to [`Ends::hear`].
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.is_posted) {
            self.fabric.flush();
        }
    }

    /// Handles an event of the link. Returns false if the rings are lost.
    #[must_use]
    pub(crate) fn hear(&mut self, event: &LinkEvent) -> bool {
        match event {
            LinkEvent::Up => !std::mem::replace(&mut self.is_up, true),
            LinkEvent::Down | LinkEvent::Refused { .. } => false,
            LinkEvent::Completed { op: SLEEP_OP } => true,
            LinkEvent::Completed { op } => {
                // A no-op has the number before its message's.
                let index = self.exchanges.partition_point(|exchange| exchange.sequence < *op);
                if let Some(exchange) = self.exchanges.get_mut(index) {
                    exchange.writes = exchange.writes.saturating_sub(1);
                    self.free(index);
                    self.drop_free();
                }
                self.has_unannounced_requests = true;
                true
            }
            LinkEvent::Message(_) | LinkEvent::ReadDone { .. } => true,
        }
    }

    /// Whether the node must be rung: it sleeps, and has new requests in its ring. The caller rings it if this returns
    /// true.
    pub(crate) fn must_ring(&mut self) -> bool {
        std::mem::take(&mut self.has_unannounced_requests) && self.memory.load_u64(self.reply_bytes) == 0
    }

    /// Notes that the node has rung for this sleep.
    pub(crate) fn rung(&mut self, sleep: u64) {
        self.heard = sleep;
    }

    /// Tells the node that it must ring, unless it knows. It is safe to sleep if an [`Ends::poll`] after the completion
    /// finds nothing.
    pub(crate) fn announce_sleep(&mut self) {
        // Each number is written once, and the next only after the node has seen it: two writes to one place have no
        // order.
        if self.heard == self.announced
            && let Some(grant) = &self.grant
        {
            self.announced += 1;
            let word = self.announced.to_le_bytes();
            self.fabric.write(self.node, &grant.request, self.request_bytes as u64, &word, SLEEP_OP);
            self.is_posted = true;
        }
    }
}
