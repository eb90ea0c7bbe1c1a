//! The server's position in a request ring: the place and the number of the next message.

use super::{HEADER_BYTES, Identity, RingKind, RingMessage, Slot, read_message};
use crate::frame::DecodeError;

/// A server's position in the request ring of one client. It owns no memory: it reads through functions of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    ring_bytes: usize,
    pub(super) next: Identity,
}

/// The result of a look at the ring.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// No message, or not all of it.
    Nothing,
    /// A message, and its number.
    Message(u64, RingMessage<'a>),
}

/// A whole message, in the buffer.
struct Whole {
    kind: RingKind,
    slot: Slot,
    /// Bytes of its payload.
    payload: usize,
}

impl Cursor {
    /// Begins at the start of a ring of `ring_bytes`, whose messages have `key`.
    pub fn new(ring_bytes: usize, key: u64) -> Cursor {
        Cursor { ring_bytes, next: Identity { key, sequence: 1, place: 0 } }
    }

    /// Offset in bytes of the word that shows whether a message has arrived.
    pub fn rendezvous(&self) -> usize {
        self.next.place as usize
    }

    /// Whether `first_word`, from that offset, is that of the next message.
    pub fn has_begun(&self, first_word: u64) -> bool {
        self.next.begun(first_word, self.left()).is_some()
    }

    /// Bytes to the end of the ring.
    fn left(&self) -> usize {
        self.ring_bytes - self.next.place as usize
    }

    /// Takes the next message if it is whole, and skips a no-op. `word` loads the word at an offset, `copy` copies
    /// bytes from an offset on. Offsets stay inside the ring. After an error the ring must not be used any more.
    ///
    /// # Errors
    /// The client breaks the format.
    pub fn take<'a>(
        &mut self,
        word: impl Fn(usize) -> u64,
        copy: impl Fn(usize, &mut [u8]),
        buffer: &'a mut Vec<u8>,
    ) -> Result<Next<'a>, DecodeError> {
        let mut found = self.whole(&word, &copy, buffer)?;
        if self.next.place > 0 && matches!(found, Some(Whole { kind: RingKind::Noop, .. })) {
            // No client sends two no-ops in a row: the second would be at the start of the ring.
            self.next = Identity { sequence: self.next.sequence + 1, place: 0, ..self.next };
            found = self.whole(&word, &copy, buffer)?;
        }
        let Some(Whole { kind, slot, payload }) = found else { return Ok(Next::Nothing) };
        if matches!(kind, RingKind::Noop | RingKind::TooSmall | RingKind::OnStream) {
            return Err(DecodeError::invalid("ring message", format!("{kind:?} where a request must be")));
        }
        let (sequence, end) = (self.next.sequence, self.next.place as usize + buffer.len());
        let place = if end == self.ring_bytes { 0 } else { end as u32 };
        self.next = Identity { sequence: sequence + 1, place, ..self.next };
        let payload = &buffer[HEADER_BYTES..HEADER_BYTES + payload];
        Ok(Next::Message(sequence, RingMessage { kind, slot, payload }))
    }

    /// Copies the next message into `buffer`, if it is whole. It looks once: bytes that land later are found the next
    /// time.
    fn whole(
        &self,
        word: &impl Fn(usize) -> u64,
        copy: &impl Fn(usize, &mut [u8]),
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Whole>, DecodeError> {
        let place = self.next.place as usize;
        let Some(bytes) = self.next.begun(word(place), self.left()) else { return Ok(None) };
        if !self.next.ended(word(place + bytes - 8)) {
            return Ok(None);
        }
        buffer.resize(bytes, 0);
        copy(place, buffer);
        let message = read_message(self.next, buffer)?;
        Ok(message.map(|message| Whole { kind: message.kind, slot: message.slot, payload: message.payload.len() }))
    }
}
