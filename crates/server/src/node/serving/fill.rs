//! Fills a new hash index with what its region has (HiStore 4.3): a walk in key order, a piece at a time, until the region ends or
//! the index has no more memory. The region serves meanwhile, and what is read and written enters the index as ever.
//!
//! ```text
//!  opened --> At(key) --job reads a piece as of LSN s--> Busy --> pairs that are unchanged since s enter --> At(next), or Over
//! ```
//! Invariant (W4): a pair of a piece enters only if there is no newer version of it, committed or not. Belongs to the node's thread.

use super::Serving;
use super::upkeep::UpkeepDone;
use crate::node::job::Outcome;
use bytes::Bytes;
use leeward_engine::hash::Offer;
use leeward_engine::{Error, Moment, ScanBounds, ScanEntry, Snapshot};
use leeward_platform::cpu::Activity;

/// A piece has at most so many pairs, and so many bytes of keys and values.
const PIECE_PAIRS: usize = 256;
const PIECE_BYTES: usize = 128 << 10;
/// A walk ends after so many pieces of which no pair could enter: all expire, or were compacted meanwhile.
const IN_VAIN: u32 = 16;

/// How far a walk has come.
pub(super) enum Walk {
    /// The next piece begins at this key.
    At(Bytes),
    /// A piece is being read.
    Busy,
    /// It has ended.
    Over,
}

/// Pairs that were read.
pub(crate) struct Piece {
    /// The index for which it was read.
    nonce: u64,
    from: Bytes,
    as_of: Moment,
    /// And where the next piece begins, if there is one.
    read: Result<(Vec<ScanEntry>, Option<Bytes>), Error>,
}

impl Serving {
    /// Reads the next piece, if there is one to read.
    pub(super) fn walk_on(&mut self) {
        let (acknowledged, wall) = (self.answers.acknowledged(), self.wall.now());
        let bounds = self.key_bounds();
        let Some(open) = &mut self.direct_reads.open else { return };
        if !matches!(open.walk, Walk::At(_)) {
            return;
        }
        if !open.index.has_room() {
            open.walk = Walk::Over;
            return;
        }
        let Walk::At(from) = std::mem::replace(&mut open.walk, Walk::Busy) else { unreachable!("just seen") };
        let (nonce, _) = open.index.version();
        let moment = self.region.moment();
        let snapshot = self.region.snapshot(acknowledged, wall);
        let as_of = moment.at(snapshot.lsn());
        self.spawn_in_background(Activity::Engine.of_primary(), move || {
            let start = from.clone().max(bounds.0);
            let read = read(
                &snapshot,
                ScanBounds { start, end: bounds.1, limit: Some(PIECE_PAIRS as u64 + 1), ..ScanBounds::default() },
            );
            Outcome::Upkeep(UpkeepDone::ReadForIndex(Box::new(Piece { nonce, from, as_of, read })))
        });
    }

    /// A piece was read.
    pub(super) fn walked(&mut self, piece: Piece) {
        let Piece { nonce, from, as_of, read } = piece;
        let Some(open) = self.direct_reads.open.as_mut().filter(|open| open.index.version().0 == nonce) else { return };
        let (pairs, next) = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(region = %self.region.id(), %error, "a hash index is not filled with what the region has");
                open.walk = Walk::Over;
                return;
            }
        };
        let (mut entered, mut refused) = (0, 0);
        for pair in pairs.iter().filter(|pair| pair.expires.is_none()) {
            if self.region.is_unchanged(&pair.key, as_of) {
                open.index.put(&pair.key, pair.lsn, &pair.value, Offer::Written);
                entered += 1;
            } else {
                refused += 1;
            }
        }
        open.in_vain = if entered > 0 { 0 } else { open.in_vain + 1 };
        open.walk = match next {
            _ if open.in_vain >= IN_VAIN => Walk::Over,
            // All were compacted meanwhile, or written.
            _ if entered == 0 && refused > 0 => Walk::At(from),
            Some(next) => Walk::At(next),
            None => Walk::Over,
        };
        self.walk_on();
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
