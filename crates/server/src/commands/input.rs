//! Bytes that a client has sent and that no command has taken yet.

use crate::quota::Quota;
use crate::resp::{Parsed, Parser, ProtocolError};
use bytes::BytesMut;

/// An empty buffer with more capacity than this is freed.
pub(super) const KEPT_INPUT_BYTES: usize = 8 * 1024;
/// Most bytes of earlier input that may share a buffer with the input that is left.
const BUFFER_BYTES: u64 = 256 * 1024;

/// The input of one connection.
pub(super) struct Input {
    parser: Parser,
    bytes: BytesMut,
    /// A large argument was taken off the buffer. The buffer gets that memory back once the argument is dropped.
    has_large: bool,
    /// Bytes that have come. `buffer_from`: how many had come when the buffer of the oldest unread bytes began.
    fed: u64,
    buffer_from: u64,
}

impl Input {
    /// An empty input.
    pub(super) fn new() -> Input {
        Input { parser: Parser::default(), bytes: BytesMut::new(), has_large: false, fed: 0, buffer_from: 0 }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let first = self.fed - self.bytes.len() as u64;
        self.buffer_from =
            if self.bytes.is_empty() { first } else { self.buffer_from.max(first.saturating_sub(BUFFER_BYTES)) };
        self.fed += bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next command off, if it is complete. It takes no more than `most` bytes.
    pub(super) fn next(&mut self, most: usize, quota: &mut Quota) -> Result<Option<Parsed>, ProtocolError> {
        self.parser.limit(most);
        self.parser.next(&mut self.bytes, quota)
    }

    /// Notes that a command took so many bytes of arguments off.
    pub(super) fn took(&mut self, bytes: usize) {
        self.has_large |= bytes > KEPT_INPUT_BYTES;
    }

    /// Frees an empty buffer that has room, or had, for more than `kept` bytes.
    pub(super) fn shrink(&mut self, kept: usize) {
        if self.bytes.is_empty() && (self.has_large || self.bytes.capacity() > kept) {
            self.discard();
        }
    }

    /// Frees the buffer, from which no command will be taken.
    pub(super) fn discard(&mut self) {
        self.bytes = BytesMut::new();
        self.has_large = false;
    }

    /// Bytes that are left.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How many bytes had come before the buffer of which a command that is taken now may hold slices.
    pub(super) fn buffer_from(&self) -> u64 {
        self.buffer_from
    }

    /// Bytes that the input takes, together with the commands that are held. `oldest` is the [`Input::buffer_from`] of
    /// the oldest command: all bytes since then may be in buffers of which commands hold slices.
    pub(super) fn memory_bytes(&self, oldest: Option<u64>) -> usize {
        let oldest = oldest.unwrap_or(self.fed - self.bytes.len() as u64);
        (self.fed - oldest) as usize + self.bytes.capacity() - self.bytes.len() + self.parser.memory_bytes()
    }
}
