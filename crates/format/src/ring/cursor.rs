//! The reader's place in a request ring: where the next message must be, and its number.

use super::{Identity, RingKind, RingMessage, UNIT_BYTES, read_message};
use crate::frame::DecodeError;

/// Where a server is in the request ring of one client. It owns no memory: it asks for words and copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    ring_bytes: usize,
    pub(super) next: Identity,
}

/// What a look at the ring found.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// No message, or not all of it.
    Nothing,
    /// A message, and its number.
    Message(u64, RingMessage<'a>),
}

impl Cursor {
    /// At the start of a ring of `ring_bytes`, whose messages have `key`.
    pub fn new(ring_bytes: usize, key: u64) -> Cursor {
        Cursor { ring_bytes, next: Identity { key, sequence: 1, place: 0 } }
    }

    /// Offset of the word that tells whether a message is there, in bytes.
    pub fn rendezvous(&self) -> usize {
        self.next.place as usize
    }

    /// Whether the first word there is that of the next message.
    pub fn has_begun(&self, first_word: u64) -> bool {
        self.next.begun(first_word, self.left()).is_some()
    }

    /// Bytes from there to the end of the ring.
    fn left(&self) -> usize {
        self.ring_bytes - self.next.place as usize
    }

    /// Takes the next message if it is whole: a no-op leads on to the message after it. `word` loads the word at an offset,
    /// `copy` copies bytes from an offset on; both stay inside of the ring. After an error the ring is of no use any more.
    ///
    /// # Errors
    /// The bytes are those of no client that keeps to the format.
    pub fn take<'a>(
        &mut self,
        word: impl Fn(usize) -> u64,
        copy: impl Fn(usize, &mut [u8]),
        buffer: &'a mut Vec<u8>,
    ) -> Result<Next<'a>, DecodeError> {
        if self.skip_noop(&word, &copy, buffer)? {
            // One after the other is no client's: the second would be at the start of the ring.
            self.next = Identity { sequence: self.next.sequence + 1, place: 0, ..self.next };
        }
        let Some(message) = self.whole(&word, &copy, buffer)? else { return Ok(Next::Nothing) };
        let (sequence, bytes) = (self.next.sequence, buffer_bytes(&message));
        if matches!(message.kind, RingKind::Noop | RingKind::TooSmall | RingKind::OnStream) {
            return Err(DecodeError::invalid("ring message", format!("{:?} where a request must be", message.kind)));
        }
        let end = self.next.place as usize + bytes;
        let place = if end == self.ring_bytes { 0 } else { end as u32 };
        self.next = Identity { sequence: sequence + 1, place, ..self.next };
        Ok(Next::Message(sequence, message))
    }

    fn skip_noop(
        &self,
        word: &impl Fn(usize) -> u64,
        copy: &impl Fn(usize, &mut [u8]),
        buffer: &mut Vec<u8>,
    ) -> Result<bool, DecodeError> {
        if self.next.place == 0 {
            return Ok(false);
        }
        let place = self.next.place as usize;
        // A no-op has no payload, so its length tells it from all others but empty ones, without a copy of those.
        if self.next.begun(word(place), self.left()) != Some(UNIT_BYTES) {
            return Ok(false);
        }
        let message = self.whole(word, copy, buffer)?;
        Ok(message.is_some_and(|message| message.kind == RingKind::Noop))
    }

    fn whole<'a>(
        &self,
        word: &impl Fn(usize) -> u64,
        copy: &impl Fn(usize, &mut [u8]),
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<RingMessage<'a>>, DecodeError> {
        let place = self.next.place as usize;
        let Some(bytes) = self.next.begun(word(place), self.left()) else { return Ok(None) };
        if !self.next.ended(word(place + bytes - 8)) {
            return Ok(None);
        }
        buffer.resize(bytes, 0);
        copy(place, buffer);
        read_message(self.next, buffer)
    }
}

fn buffer_bytes(message: &RingMessage<'_>) -> usize {
    super::message_bytes(message.payload.len())
}
