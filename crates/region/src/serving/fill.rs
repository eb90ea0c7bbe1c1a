//! Fills a new hash index with what its region has (HiStore 4.3): a walk in key order, a piece at a time, until the region ends or
//! the index has no more memory. The region serves meanwhile, and what is read and written enters the index as ever.
//!
//! ```text
//!  opened --> a job reads a piece as of LSN s --> pairs that are unchanged since s enter --> the next piece, or the end
//! ```
//! Invariant (W4): a pair of a piece enters only if there is no newer version of it, committed or not. Belongs to the node's thread.

use super::Serving;
use crate::job::{IndexPiece, Outcome, UpkeepDone};
use bytes::Bytes;
use leeward_engine::hash::Offer;
use leeward_engine::{Error, ScanBounds, ScanEntry, Snapshot};
use leeward_platform::cpu::Activity;

/// A piece has at most so many pairs, and so many bytes of keys and values.
const PIECE_PAIRS: usize = 256;
const PIECE_BYTES: usize = 128 << 10;
/// A walk ends after so many pieces of which no pair could enter: all expire, or were compacted meanwhile.
const IN_VAIN: u32 = 16;

impl Serving {
    /// Begins to fill the index.
    pub(super) fn fill_index(&mut self) {
        self.read_piece(Bytes::new(), 0);
    }

    /// Reads the next piece of a walk, if the index has room for more.
    fn read_piece(&mut self, from: Bytes, in_vain: u32) {
        let Some(index) = self.direct_reads.index().filter(|index| index.has_room()) else { return };
        let (nonce, _) = index.version();
        let (first, end) = self.key_bounds();
        let moment = self.region.moment();
        let snapshot = self.region.snapshot(self.answers.acknowledged(), self.wall.now());
        let as_of = moment.at(snapshot.lsn());
        self.spawn_in_background(Activity::Engine.of_primary(), move || {
            let (start, limit) = (from.clone().max(first), Some(PIECE_PAIRS as u64 + 1));
            let read = read(&snapshot, ScanBounds { start, end, limit, ..ScanBounds::default() });
            Outcome::Upkeep(UpkeepDone::ReadForIndex(Box::new(IndexPiece { nonce, from, in_vain, as_of, read })))
        });
    }

    /// A piece was read.
    pub(super) fn walked(&mut self, piece: IndexPiece) {
        let IndexPiece { nonce, from, in_vain, as_of, read } = piece;
        let Some(index) = self.direct_reads.index().filter(|index| index.version().0 == nonce) else { return };
        let (pairs, next) = match read {
            Ok(read) => read,
            Err(error) => {
                let region = self.region.id();
                return tracing::warn!(%region, %error, "a hash index is not filled with what the region has");
            }
        };
        let (mut entered, mut refused) = (0, 0);
        for pair in pairs.iter().filter(|pair| pair.expires.is_none()) {
            if self.region.is_unchanged(&pair.key, as_of) {
                index.put(&pair.key, pair.lsn, &pair.value, Offer::Written);
                entered += 1;
            } else {
                refused += 1;
            }
        }
        let in_vain = if entered > 0 { 0 } else { in_vain + 1 };
        // All were compacted meanwhile, or written.
        let next = if entered == 0 && refused > 0 { Some(from) } else { next };
        if let Some(next) = next.filter(|_| in_vain < IN_VAIN) {
            self.read_piece(next, in_vain);
        }
    }
}

fn read(snapshot: &Snapshot, bounds: ScanBounds) -> Result<(Vec<ScanEntry>, Option<Bytes>), Error> {
    let (mut pairs, mut bytes) = (Vec::new(), 0);
    let mut cursor = snapshot.cursor(bounds);
    while let Some(entry) = cursor.next()? {
        if pairs.len() >= PIECE_PAIRS || bytes >= PIECE_BYTES {
            return Ok((pairs, Some(entry.key)));
        }
        bytes += entry.key.len() + entry.value.len();
        pairs.push(entry);
    }
    Ok((pairs, None))
}
