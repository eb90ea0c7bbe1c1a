//! A segment that is being built: consecutive bytes in a block that is as large as the segment may become. Only the
//! filled part of the block takes memory.
//!
//! One thread at a time.

use super::Reservation;
use bytes::Bytes;
use leeward_format::leaf_segment::Sink;
use leeward_platform::Block;

/// Memory is taken in multiples of this, in bytes.
const STEP_BYTES: usize = 64 << 10;

/// The built part of a segment.
#[derive(Debug)]
pub(crate) struct Buffer {
    block: Block,
    filled: usize,
    /// End of the part that is ready to be filled.
    ready: usize,
}

impl Buffer {
    /// An empty buffer with room for `most` bytes.
    pub(crate) fn new(most: usize) -> Buffer {
        Buffer { block: Block::bare(most), filled: 0, ready: 0 }
    }

    /// What was put into it.
    pub(crate) fn filled(&mut self) -> &mut [u8] {
        &mut self.block[..self.filled]
    }

    /// Bytes that are filled.
    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ready
    }

    /// Completes it. Its memory stays reserved until the last slice is dropped.
    pub(crate) fn hold(self, reservation: Reservation) -> Bytes {
        let (filled, memory_bytes) = (self.filled, self.memory_bytes());
        reservation.hold(self.block, memory_bytes).slice(..filled)
    }
}

impl Sink for Buffer {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        if end > self.ready {
            let ready = end.next_multiple_of(STEP_BYTES).min(self.block.len()).max(end);
            self.block.make_ready(self.ready, ready - self.ready);
            self.ready = ready;
        }
        self.block[self.filled..end].copy_from_slice(bytes);
        self.filled = end;
    }
}
