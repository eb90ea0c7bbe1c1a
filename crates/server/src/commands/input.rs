//! What a client has sent and what no command has taken yet.

use crate::quota::Quota;
use crate::resp::{Parsed, Parser, ProtocolError};
use bytes::BytesMut;

/// A buffer that is empty gives back what it has beyond this.
pub(super) const KEPT_INPUT_BYTES: usize = 8 * 1024;
/// Input that may be in one buffer with what is left of it.
const BUFFER_BYTES: u64 = 256 * 1024;

/// The input of one connection.
pub(super) struct Input {
    parser: Parser,
    bytes: BytesMut,
    /// A large argument was taken off the buffer, which has its memory again once the argument is dropped.
    has_large: bool,
    /// Bytes that have come, and how many had when the buffer began that has the oldest of those that are left.
    fed: u64,
    buffer_from: u64,
}

impl Input {
    /// One whose commands take no more than `most`.
    pub(super) fn within(most: usize) -> Input {
        Input { parser: Parser::within(most), bytes: BytesMut::new(), has_large: false, fed: 0, buffer_from: 0 }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let first = self.fed - self.bytes.len() as u64;
        self.buffer_from =
            if self.bytes.is_empty() { first } else { self.buffer_from.max(first.saturating_sub(BUFFER_BYTES)) };
        self.fed += bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next command off, if it is all there.
    pub(super) fn next(&mut self, quota: &mut Quota) -> Result<Option<Parsed>, ProtocolError> {
        self.parser.next(&mut self.bytes, quota)
    }

    /// So many bytes of arguments were taken off with a command.
    pub(super) fn took(&mut self, bytes: usize) {
        self.has_large |= bytes > KEPT_INPUT_BYTES;
    }

    /// Gives a large buffer back that is empty, or that no command is taken from any more.
    pub(super) fn shrink(&mut self, is_stopped: bool) {
        let is_large = self.has_large || self.bytes.capacity() > KEPT_INPUT_BYTES;
        if is_stopped || self.bytes.is_empty() && is_large {
            self.bytes = BytesMut::new();
            self.has_large = false;
        }
    }

    /// Bytes that are left.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What had come before the oldest bytes that may be in one buffer with a command that is taken off now.
    pub(super) fn buffer_from(&self) -> u64 {
        self.buffer_from
    }

    /// What it takes with the commands that are held, of which the oldest has noted this of [`Input::buffer_from`]: all that has
    /// come since may be in buffers of which they hold slices.
    pub(super) fn memory_bytes(&self, oldest: Option<u64>) -> usize {
        let oldest = oldest.unwrap_or(self.fed - self.bytes.len() as u64);
        (self.fed - oldest) as usize + self.bytes.capacity() - self.bytes.len() + self.parser.memory_bytes()
    }
}
