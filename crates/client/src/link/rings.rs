//! A link whose requests go through rings: the handshake for rings, and the choice of requests that go into them.
//!
//! - No operation is sent before the rings are open: a client that asks for rings gets an error if there are none.
//! - Operations keep their order. A request that no ring can hold goes over the connection. It is sent when nothing
//!   else is in flight, and nothing else is sent until it is answered.
//! - A request that was put into a ring may have been executed, whatever happens afterwards: its outcome is unknown
//!   until it is answered.
//! - Once the rings are open, only such requests and bells go over the connection, and the node reads it less often.

use super::{Link, REQUEST_BYTES, REQUEST_OPS, op_bytes};
use crate::options::Traffic;
use crate::ring::{AnswerSizes, Ends, Grant, Mailbox, SHARED_MEMORY, bind, reads_now};
use leeward_fabric::{Descriptor, LinkEvent, PeerId};
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_format::op::{MAX_MESSAGE_BYTES, Op, Reply, Request};
use leeward_format::ring::{MAX_RING_BYTES, MIN_RING_BYTES, UNIT_BYTES};
use mio::Token;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of an operation in a frame, besides its keys and values.
const OP_OVERHEAD_BYTES: usize = 48;
/// Most bytes of its request id, and of the answer's part about the id.
const NAME_BYTES: usize = 40;
/// Most bytes of an operation that creates a table, with its options.
const TABLE_OVERHEAD_BYTES: usize = 512;
/// Most bytes of a request, besides its operations.
const REQUEST_OVERHEAD_BYTES: usize = 128;
/// Room for a region map, or routes, of a small cluster. Larger ones are fetched.
const MAP_ROOM_BYTES: usize = 4 << 10;

/// The common options of the rings of a session's links.
#[derive(Clone)]
pub(crate) struct RingOptions {
    pub(crate) ring_bytes: usize,
    pub(crate) mailbox: Arc<Mailbox>,
}

pub(super) struct Rings {
    options: RingOptions,
    token: Token,
    pub(super) ends: Option<Ends>,
    rooms: AnswerSizes,
    /// The request that was sent over the connection and is not answered.
    over_stream: Option<u64>,
    /// Requests besides operations that are not sent yet.
    questions: VecDeque<Request>,
    frame: Vec<u8>,
    /// Their fabric lets this process read the node's memory by itself.
    pub(super) reads_now: bool,
}

impl Rings {
    pub(super) fn new(options: RingOptions, token: Token) -> Rings {
        let rooms = AnswerSizes::new(0);
        let (questions, frame) = (VecDeque::new(), Vec::new());
        Rings { options, token, ends: None, rooms, over_stream: None, questions, frame, reads_now: false }
    }

    /// The rings, if they are open.
    pub(super) fn open(&mut self) -> Option<&mut Ends> {
        self.ends.as_mut().filter(|ends| ends.is_open())
    }

    /// Sends questions as far as there is room.
    fn send_questions(&mut self) {
        while let Some(question) = self.questions.front() {
            let mut frame = Vec::new();
            write_frame(FrameKind::Request, question, &mut frame);
            let Some(ends) = self.open() else { return };
            let room = MAP_ROOM_BYTES.min(ends.most_room());
            if !ends.has_room(frame.len(), room) {
                return;
            }
            ends.send(&frame, room);
            self.questions.pop_front();
        }
    }
}

impl Link {
    /// Whether requests can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        let is_open = |rings: &Rings| rings.ends.as_ref().is_some_and(Ends::is_open);
        self.connected && self.rings.as_ref().is_none_or(is_open)
    }

    /// Why it is not ready, as text.
    pub(crate) fn lacks(&self) -> String {
        match &self.rings {
            Some(rings) if self.connected && rings.ends.is_some() => {
                "its fabric is not connected in time (shared memory joins processes of one host and network namespace only)"
                    .into()
            }
            _ => "no connection in time".into(),
        }
    }

    pub(super) fn ring_traffic(&self) -> Traffic {
        let ends = self.rings.as_ref().and_then(|rings| rings.ends.as_ref());
        ends.map(Ends::traffic).unwrap_or_default()
    }

    /// Handles a reply of the node about rings.
    ///
    /// # Errors
    /// The reason why this client gets no rings.
    pub(crate) fn handle_ring_reply(&mut self, reply: Reply) -> Result<(), String> {
        let Some(rings) = &mut self.rings else { return Err("it speaks of rings that were not asked for".into()) };
        match reply {
            Reply::RingOffer { fabric, node, client, address, most_bytes } if rings.ends.is_none() => {
                let bytes = ring_bytes(rings.options.ring_bytes, most_bytes as usize)?;
                if self.stream.is_encrypted() && fabric != SHARED_MEMORY {
                    return Err(format!("the node's rings are over {fabric}, which is not encrypted: use leeward+tls"));
                }
                rings.reads_now = reads_now(&fabric);
                let local = self.stream.stream().local_addr().map_err(|error| error.to_string())?.ip();
                let fabric = bind(&fabric, PeerId(client), local, rings.options.mailbox.sink(rings.token))?;
                let ends = Ends::new(fabric, PeerId(node), &address, (bytes, bytes));
                let ends = ends.map_err(|error| format!("this process has no memory for a ring: {error}"))?;
                let open = Request::RingOpen {
                    address: ends.address(),
                    request_bytes: bytes as u32,
                    reply_bytes: bytes as u32,
                    reply: ends.descriptor().0.into(),
                };
                rings.rooms = AnswerSizes::new(ends.most_room() / 4);
                rings.ends = Some(ends);
                self.push(&open);
                self.write().map_err(|error| error.to_string())
            }
            Reply::RingOpen { request, request_key, reply_key } if let Some(ends) = &mut rings.ends => {
                ends.granted(Grant { request: Descriptor(request.to_vec()), request_key, reply_key });
                Ok(())
            }
            Reply::RingBell { sleep } if let Some(ends) = &mut rings.ends => {
                ends.rung(sleep);
                Ok(())
            }
            Reply::RingRefused { reason } => Err(reason),
            _ => Err("it answers about rings what was not asked".into()),
        }
    }

    /// Queues a question for the ring. Returns it if there is no open ring.
    pub(super) fn ask_in_ring(&mut self, question: Request) -> Option<Request> {
        let Some(rings) = self.rings.as_mut().filter(|rings| rings.ends.as_ref().is_some_and(Ends::is_open)) else {
            return Some(question);
        };
        if !rings.questions.contains(&question) {
            rings.questions.push_back(question);
        }
        None
    }

    /// Whether an answer, or the rings' handshake, is due over the connection.
    pub(crate) fn expects_on_stream(&self) -> bool {
        !self.is_ready() || self.flights.len() > self.due_in_rings()
    }

    /// Puts waiting operations into the ring, as far as there is room. A request that fits no ring goes over the
    /// connection.
    pub(super) fn flush_into_rings(&mut self, now: Instant) {
        if let Some(rings) = &mut self.rings {
            rings.send_questions();
        }
        while !self.waiting.is_empty() {
            let has_flights = !self.flights.is_empty();
            let Some(rings) = &mut self.rings else { return };
            if rings.over_stream.is_some() {
                return;
            }
            let Some(ends) = rings.ends.as_mut().filter(|ends| ends.is_open()) else { return };
            let (count, bytes, room) = batch(&self.waiting, ends, &rings.rooms);
            if bytes > ends.most_request() {
                if has_flights {
                    return;
                }
                rings.over_stream = Some(self.next_id);
                let request = self.request(count);
                self.push(&request);
                self.move_to_flight(count, self.queued, now);
                return;
            }
            if !ends.has_room(bytes, room) {
                return;
            }
            let mut frame = std::mem::take(&mut rings.frame);
            frame.clear();
            write_frame(FrameKind::Request, &self.request(count), &mut frame);
            let Some(rings) = &mut self.rings else { return };
            let sent = match rings.open() {
                Some(ends) if ends.has_room(frame.len(), room) => {
                    ends.send(&frame, room);
                    true
                }
                _ => false,
            };
            rings.frame = frame;
            if !sent {
                return;
            }
            self.move_to_flight(count, 0, now);
        }
    }

    /// How many answers are due in slots.
    pub(crate) fn due_in_rings(&self) -> usize {
        self.rings.as_ref().and_then(|rings| rings.ends.as_ref()).map_or(0, Ends::due)
    }

    /// Whether an answer has begun to arrive.
    pub(crate) fn has_answer(&self) -> bool {
        self.rings.as_ref().and_then(|rings| rings.ends.as_ref()).is_some_and(Ends::has_answer)
    }

    /// Takes answers out of the ring.
    ///
    /// # Errors
    /// The node breaks the format.
    pub(crate) fn poll_rings(&mut self, replies: &mut Vec<Reply>) -> io::Result<()> {
        let Some(rings) = &mut self.rings else { return Ok(()) };
        let Some(ends) = rings.ends.as_mut().filter(|ends| ends.is_open()) else { return Ok(()) };
        let mut bad = None;
        let rooms = &mut rings.rooms;
        let polled = ends.poll(|mut frames| {
            while !frames.is_empty() {
                match read_frame(FrameKind::Reply, frames, MAX_MESSAGE_BYTES) {
                    Ok(Some((reply, bytes))) => {
                        if let Reply::Results { results, .. } = &reply {
                            results.iter().for_each(|result| rooms.learn(result));
                        }
                        replies.push(reply);
                        frames = &frames[bytes..];
                    }
                    Ok(None) => return bad = Some("an answer that ends in the middle of a frame".to_string()),
                    Err(error) => return bad = Some(error.to_string()),
                }
            }
        });
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        polled.map_err(|error| invalid(error.to_string()))?;
        bad.map_or(Ok(()), |why| Err(invalid(why)))
    }

    /// Flushes the messages that were put into the ring.
    pub(crate) fn flush_rings(&mut self) {
        if let Some(ends) = self.rings.as_mut().and_then(|rings| rings.ends.as_mut()) {
            ends.flush();
        }
    }

    /// Handles an event of the fabric. Returns false if the rings are lost.
    #[must_use]
    pub(crate) fn hear_fabric(&mut self, event: &LinkEvent) -> bool {
        self.rings.as_mut().and_then(|rings| rings.ends.as_mut()).is_none_or(|ends| ends.hear(event))
    }

    /// Rings the node if it sleeps and something was put into its ring.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) fn ring_bell(&mut self) -> io::Result<()> {
        if self.rings.as_mut().and_then(Rings::open).is_some_and(Ends::must_ring) {
            self.push(&Request::RingBell);
            self.write()?;
        }
        Ok(())
    }

    /// Tells the node that this thread sleeps, if the node owes answers.
    pub(crate) fn announce_sleep(&mut self) {
        if let Some(ends) = self.rings.as_mut().and_then(Rings::open).filter(|ends| ends.due() > 0) {
            ends.announce_sleep();
        }
    }

    /// Request `id` was answered. If it had to be alone in flight, others may be sent again.
    pub(super) fn answered_over_stream(&mut self, id: u64) {
        if let Some(rings) = &mut self.rings {
            rings.over_stream.take_if(|over| *over == id);
        }
    }
}

/// Bytes of each ring of a client that asks for `wanted`, at a node that offers `most`.
fn ring_bytes(wanted: usize, most: usize) -> Result<usize, String> {
    let bytes = wanted.min(most).min(MAX_RING_BYTES) / (2 * UNIT_BYTES) * (2 * UNIT_BYTES);
    if bytes < MIN_RING_BYTES {
        return Err(format!(
            "a ring has at least {MIN_RING_BYTES} bytes, but the client's ring_bytes is {wanted} and the node offers {most}"
        ));
    }
    Ok(bytes)
}

/// How many waiting operations go into one request, the most bytes of the request, and the room for its answer.
fn batch(waiting: &[super::Pending], ends: &Ends, rooms: &AnswerSizes) -> (usize, usize, usize) {
    let (mut count, mut bytes, mut room) = (0, REQUEST_OVERHEAD_BYTES, AnswerSizes::least());
    let (most_bytes, most_room) = (ends.most_request().min(REQUEST_BYTES), ends.most_room());
    for pending in waiting.iter().take(REQUEST_OPS) {
        let overhead = match pending.op {
            Op::CreateTable { .. } | Op::AlterTable { .. } => TABLE_OVERHEAD_BYTES,
            _ => OP_OVERHEAD_BYTES,
        };
        let name = if pending.attempts.is_named() { NAME_BYTES } else { 0 };
        let (more_bytes, more_room) = (op_bytes(&pending.op) + overhead + name, rooms.of(&pending.op) + name);
        let fits =
            pending.table == waiting[0].table && bytes + more_bytes <= most_bytes && room + more_room <= most_room;
        if count > 0 && !fits {
            break;
        }
        (count, bytes, room) = (count + 1, bytes + more_bytes, room + more_room);
    }
    (count, bytes, room.min(most_room))
}
