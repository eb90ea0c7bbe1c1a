//! The client's record of the space in use in a ring: space is allocated in order and given back in any order (Tebis
//! 3.4.1).
//!
//! ```text
//!        tail                          head
//!         v                             v
//!  | free | taken | given back | taken | free ........ |
//! ```
//! A piece that was given back is free once everything older is. A piece never wraps: if the rest of the ring is too
//! short, the piece begins at the start, and the rest belongs to it until it is given back. A piece has at most half of
//! the ring, so an empty ring has room for it wherever the head is. The same type serves both rings. In the request
//! ring a no-op tells the server of a skipped rest; of the reply ring the server only sees slots.
//!
//! It has one owner at a time.

use super::UNIT_BYTES;
use std::collections::VecDeque;

/// The space of one ring.
#[derive(Clone, Debug)]
pub struct RingSpace {
    ring_bytes: usize,
    /// Bytes taken since the start, skipped ones included; `head % ring_bytes` is the offset of the next piece.
    head: u64,
    pieces: VecDeque<Piece>,
}

#[derive(Clone, Debug)]
struct Piece {
    /// Offset of its first byte.
    at: usize,
    /// Value of `head` before the piece, and what it skipped, was taken.
    from: u64,
    is_free: bool,
}

/// A piece that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its offset in bytes.
    pub at: usize,
    /// Offset of the skipped rest of the ring, if it was too short for the piece.
    pub skipped_at: Option<usize>,
}

impl RingSpace {
    /// A ring of `ring_bytes` with nothing taken.
    ///
    /// # Panics
    /// If `ring_bytes` is no multiple of two units.
    pub fn new(ring_bytes: usize) -> RingSpace {
        assert!(ring_bytes > 0 && ring_bytes.is_multiple_of(2 * UNIT_BYTES), "a ring of {ring_bytes} bytes");
        RingSpace { ring_bytes, head: 0, pieces: VecDeque::new() }
    }

    /// Most bytes of one piece.
    pub fn most(&self) -> usize {
        self.ring_bytes / 2
    }

    /// Whether nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether there is room for a piece of `bytes`.
    pub fn has_room(&self, bytes: usize) -> bool {
        let (from, skipped) = self.next(bytes);
        let tail = self.pieces.front().map_or(from, |piece| piece.from);
        bytes <= self.most() && from + (skipped + bytes) as u64 - tail <= self.ring_bytes as u64
    }

    /// The head, and how many bytes a piece of `bytes` skips there.
    fn next(&self, bytes: usize) -> (u64, usize) {
        let rest = self.ring_bytes - (self.head % self.ring_bytes as u64) as usize;
        (self.head, if bytes > rest { rest } else { 0 })
    }

    /// Takes a piece of `bytes`; `None` while there is no room for it.
    ///
    /// # Panics
    /// If `bytes` is 0, no multiple of a unit, or more than [`RingSpace::most`].
    pub fn take(&mut self, bytes: usize) -> Option<Taken> {
        assert!(bytes > 0 && bytes.is_multiple_of(UNIT_BYTES) && bytes <= self.most(), "a piece of {bytes} bytes");
        if !self.has_room(bytes) {
            return None;
        }
        let (from, skipped) = self.next(bytes);
        let at = (from % self.ring_bytes as u64) as usize;
        self.head = from + (skipped + bytes) as u64;
        let place = if skipped > 0 { 0 } else { at };
        self.pieces.push_back(Piece { at: place, from, is_free: false });
        Some(Taken { at: place, skipped_at: (skipped > 0).then_some(at) })
    }

    /// Gives the piece at `at` back.
    ///
    /// # Panics
    /// If no such piece is taken.
    pub fn give_back(&mut self, at: usize) {
        let piece = self.pieces.iter_mut().find(|piece| piece.at == at && !piece.is_free);
        piece.expect("a piece is given back once").is_free = true;
        while self.pieces.front().is_some_and(|piece| piece.is_free) {
            self.pieces.pop_front();
        }
    }
}
