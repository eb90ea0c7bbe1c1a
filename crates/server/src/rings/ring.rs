//! The rings of one client: the place of its next message, the answers on their way, and the answers that are kept.

use super::Effect;
use super::answers::Answers;
use bytes::Bytes;
use leeward_fabric::{Descriptor, Fabric, Memory, PeerId};
use leeward_format::frame::DecodeError;
use leeward_format::op::Reply;
use leeward_format::ring::{Cursor, Identity, Next, RingKind, RingMessage, Slot, message_bytes, write_message};
use leeward_platform::Nanos;
use std::sync::Arc;

/// Number of a write of the word that says whether the server is awake. Other writes have the number of their place.
const AWAKE_OP: u64 = u64::MAX;
/// Bytes of answers that are kept until they are fetched. Beyond that, answers go over the stream, with its limits.
const KEPT_BYTES: usize = 4 << 20;
/// Bytes of answers under way, from which on nothing more is taken from the ring.
const PAUSE_BYTES: usize = 4 << 20;
/// Bytes of an answer's buffer that are kept for the next answer.
const MESSAGE_BYTES: usize = 64 << 10;

/// The message, and the slot for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyPath {
    /// The message's number.
    pub sequence: u64,
    /// Where its answer goes.
    pub slot: Slot,
}

/// The result of a look into a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Messages that were taken.
    pub messages: usize,
    /// There may be more messages.
    pub has_more: bool,
    /// Something was posted.
    pub(super) has_posted: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) request: u64,
    pub(super) reply: u64,
}

/// Whether the server is awake, as the client was last told or is being told.
#[derive(Default)]
struct Awake {
    is_wanted: bool,
    is_posted: bool,
    is_under_way: bool,
}

pub(super) struct Ring {
    pub(super) peer: PeerId,
    /// The client has its rings.
    pub(super) is_open: bool,
    /// When the client asked for them.
    pub(super) since: Nanos,
    memory: Arc<dyn Memory>,
    request_bytes: usize,
    cursor: Cursor,
    reply: Descriptor,
    reply_bytes: usize,
    keys: Keys,
    answers: Answers,
    /// No message is taken until some answers have arrived.
    is_paused: bool,
    /// [`Effect::Quiet`] is to be reported when all answers have arrived.
    is_answering: bool,
    /// The last sleep that the client was woken from.
    rung: u64,
    awake: Awake,
    message: Vec<u8>,
}

impl Ring {
    pub(super) fn new(
        peer: PeerId,
        memory: Arc<dyn Memory>,
        request_bytes: usize,
        (reply, reply_bytes): (Descriptor, usize),
        keys: Keys,
        since: Nanos,
    ) -> Ring {
        Ring {
            peer,
            is_open: false,
            since,
            memory,
            request_bytes,
            cursor: Cursor::new(request_bytes, keys.request),
            reply,
            reply_bytes,
            keys,
            answers: Answers::default(),
            is_paused: false,
            is_answering: false,
            rung: 0,
            awake: Awake::default(),
            message: Vec::new(),
        }
    }

    pub(super) fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    /// Opens the ring: the link to the client is up. Returns the reply to the client.
    pub(super) fn opened(&mut self) -> Reply {
        self.is_open = true;
        Reply::RingOpen {
            request: Bytes::from(self.memory.descriptor().0),
            request_key: self.keys.request,
            reply_key: self.keys.reply,
        }
    }

    /// Whether the next message has begun to arrive.
    pub(super) fn has_something(&self) -> bool {
        self.cursor.has_begun(self.memory.load_u64(self.cursor.rendezvous()))
    }

    pub(super) fn receive(
        &mut self,
        fabric: &dyn Fabric,
        most: usize,
        buffer: &mut Vec<u8>,
        mut take: impl FnMut(ReplyPath, &[u8]) -> bool,
    ) -> Result<Received, DecodeError> {
        let mut received = Received::default();
        while received.messages < most {
            self.is_paused = self.answers.bytes() > PAUSE_BYTES;
            if self.is_paused {
                return Ok(received);
            }
            let memory = &*self.memory;
            let word = |at| memory.load_u64(at);
            let copy = |at, bytes: &mut [u8]| memory.read(at, bytes);
            let (sequence, message) = match self.cursor.take(word, copy, buffer)? {
                Next::Nothing => return Ok(received),
                Next::Message(sequence, message) => (sequence, message),
            };
            received.messages += 1;
            let reply_path = ReplyPath { sequence, slot: message.slot };
            if !reply_path.slot.fits(self.reply_bytes) {
                return Err(DecodeError::invalid(
                    "ring message",
                    format!("a slot outside of the ring: {:?}", reply_path.slot),
                ));
            }
            match message.kind {
                RingKind::Fetch => {
                    let kept = self.fetch(&message)?;
                    received.has_posted = true;
                    if self.answer(fabric, reply_path, kept)?.is_some() {
                        return Err(DecodeError::invalid("ring message", "it fetches what no slot can hold"));
                    }
                }
                _ if take(reply_path, message.payload) => {}
                _ => break,
            }
        }
        received.has_more = true;
        Ok(received)
    }

    fn fetch(&mut self, message: &RingMessage<'_>) -> Result<Vec<u8>, DecodeError> {
        let wanted = message.payload.try_into().ok().map(u64::from_le_bytes);
        let kept = wanted.and_then(|sequence| self.answers.fetch(sequence));
        kept.ok_or_else(|| DecodeError::invalid("ring message", "it fetches what is not kept"))
    }

    /// Writes an answer, or a message that it is kept or goes over the stream. Returns it if it goes over the stream.
    ///
    /// # Errors
    /// No client can have this slot.
    pub(super) fn answer(
        &mut self,
        fabric: &dyn Fabric,
        reply_path: ReplyPath,
        frames: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, DecodeError> {
        let needed = message_bytes(frames.len());
        let most = self.reply_bytes / 2;
        let (kind, slot, payload, over_stream) = if needed <= reply_path.slot.room as usize {
            (RingKind::Frames, Slot::default(), &frames[..], false)
        } else if needed <= most && self.answers.kept_bytes() + frames.len() <= KEPT_BYTES {
            (RingKind::TooSmall, Slot { at: 0, room: needed as u32 }, &[][..], false)
        } else {
            (RingKind::OnStream, Slot::default(), &[][..], true)
        };
        let identity = Identity { key: self.keys.reply, sequence: reply_path.sequence, place: reply_path.slot.at };
        self.message.clear();
        write_message(identity, kind, slot, payload, &mut self.message);
        if self.answers.place(reply_path.slot.at, &mut self.message)? {
            self.write(fabric, reply_path.slot.at, &self.message);
        }
        self.message.shrink_to(MESSAGE_BYTES);
        if kind == RingKind::TooSmall {
            self.answers.keep(reply_path.sequence, frames);
            return Ok(None);
        }
        Ok(over_stream.then_some(frames))
    }

    /// Posts a message. Its place is also its number, since nothing else is under way there.
    fn write(&self, fabric: &dyn Fabric, at: u32, message: &[u8]) {
        fabric.write(self.peer, &self.reply, at.into(), message, at.into());
    }

    /// Whether answers are on their way to the client. If so, [`Effect::Quiet`] comes when all have arrived.
    pub(super) fn is_answering(&mut self) -> bool {
        self.is_answering = self.answers.bytes() > 0;
        self.is_answering
    }

    /// Bytes of answers that the client does not have yet.
    pub(super) fn held_bytes(&self) -> usize {
        self.answers.bytes() + self.answers.kept_bytes()
    }

    /// Whether the client takes none of its answers: see [`Answers::is_stalled`].
    pub(super) fn is_stalled(&mut self, now: Nanos, timeout: Nanos) -> bool {
        self.answers.is_stalled(now, timeout)
    }

    /// Lets the client know whether it must ring. Returns whether something was posted.
    pub(super) fn set_awake(&mut self, fabric: &dyn Fabric, is_wanted: bool) -> bool {
        self.awake.is_wanted = is_wanted;
        // Two writes to one place have no order: the second waits for the first.
        if !self.is_open || self.awake.is_under_way || self.awake.is_posted == is_wanted {
            return false;
        }
        self.awake.is_posted = is_wanted;
        self.awake.is_under_way = true;
        let word = u64::from(is_wanted).to_le_bytes();
        fabric.write(self.peer, &self.reply, self.reply_bytes as u64, &word, AWAKE_OP);
        true
    }

    /// Handles a completed write. Returns whether something was posted.
    pub(super) fn completed(
        &mut self,
        fabric: &dyn Fabric,
        op: u64,
        connection: u64,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if op == AWAKE_OP {
            self.awake.is_under_way = false;
            if !self.awake.is_posted {
                effects.push(Effect::Look(connection));
            }
            return self.set_awake(fabric, self.awake.is_wanted);
        }
        let free = u32::try_from(op).map(|at| self.answers.complete(at)).unwrap_or_default();
        let has_posted = !free.is_empty();
        for (at, message) in free {
            self.write(fabric, at, &message);
        }
        if self.is_paused && self.answers.bytes() <= PAUSE_BYTES {
            self.is_paused = false;
            effects.push(Effect::Look(connection));
        }
        if self.is_answering && self.answers.bytes() == 0 {
            self.is_answering = false;
            effects.push(Effect::Quiet(connection));
        }
        let sleep = self.memory.load_u64(self.request_bytes);
        if sleep != self.rung {
            self.rung = sleep;
            effects.push(Effect::Tell(connection, Reply::RingBell { sleep }));
        }
        has_posted
    }
}
