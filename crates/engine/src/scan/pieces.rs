//! Memory that keys and small values of a scan share: one allocation for many of them.
//!
//! Invariant: a slice that was handed out is never written again. One thread at a time.

use bytes::{Bytes, BytesMut};

/// Size of a shared allocation. So much stays allocated for the longest-lived of the slices in it.
const PIECE_BYTES: usize = 4 << 10;
/// Longer slices have an allocation of their own: they would waste the rest of a piece.
const MOST_SHARED_BYTES: usize = PIECE_BYTES / 4;

/// Makes copies.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The unused rest of the last piece.
    rest: BytesMut,
}

impl Pieces {
    /// A copy of `bytes`.
    #[inline]
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Bytes {
        // An empty one needs no memory, and must keep none.
        if bytes.is_empty() || bytes.len() > MOST_SHARED_BYTES {
            return Bytes::copy_from_slice(bytes);
        }
        if self.rest.capacity() < bytes.len() {
            self.rest = BytesMut::with_capacity(PIECE_BYTES);
        }
        self.rest.extend_from_slice(bytes);
        self.rest.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_whole_and_most_share_a_piece() {
        let mut pieces = Pieces::default();
        let lens = [0, 1, 30, MOST_SHARED_BYTES, MOST_SHARED_BYTES + 1, 3 * PIECE_BYTES, 7, MOST_SHARED_BYTES, 0, 40];
        let originals: Vec<Vec<u8>> = (0..).zip(lens.iter().cycle().take(100)).map(|(i, len)| vec![i; *len]).collect();
        let copies: Vec<Bytes> = originals.iter().map(|bytes| pieces.copy(bytes)).collect();
        assert_eq!(copies, originals, "no copy is written over");
        let small: Vec<Bytes> = (0..50).map(|i| pieces.copy(&[i; 30])).collect();
        let follows = |pair: &[Bytes]| pair[0].as_ptr_range().end == pair[1].as_ptr();
        assert!(small.windows(2).filter(|pair| follows(pair)).count() >= 48, "one behind the other");
    }
}
