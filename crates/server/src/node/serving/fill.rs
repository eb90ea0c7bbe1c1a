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
/// A piece is read again at most so often if none of its pairs could enter, because all were compacted meanwhile.
const RETRIES: u32 = 8;

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
    pairs: Vec<ScanEntry>,
    /// Where the next piece begins; `None`: there is none.
    next: Option<Bytes>,
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
            let read = read(&snapshot, ScanBounds { start, end: bounds.1, ..ScanBounds::default() });
            let piece = read.map(|(pairs, next)| Box::new(Piece { nonce, from, as_of, pairs, next }));
            Outcome::Upkeep(UpkeepDone::ReadForIndex(piece))
        });
    }

    /// A piece was read.
    pub(super) fn walked(&mut self, piece: Result<Box<Piece>, Error>) -> Result<(), Error> {
        let piece = match piece {
            Ok(piece) => *piece,
            Err(error) => {
                self.direct_reads.open.iter_mut().for_each(|open| open.walk = Walk::Over);
                return Err(error);
            }
        };
        let Some(open) = self.direct_reads.open.as_mut().filter(|open| open.index.version().0 == piece.nonce) else {
            return Ok(());
        };
        let mut entered = 0;
        for pair in piece.pairs.iter().filter(|pair| pair.expires.is_none()) {
            if self.region.is_unchanged(&pair.key, piece.as_of) {
                open.index.put(&pair.key, pair.lsn, &pair.value, Offer::Written);
                entered += 1;
            }
        }
        let may_retry = entered == 0 && !piece.pairs.is_empty() && open.retries < RETRIES;
        open.retries = if may_retry { open.retries + 1 } else { 0 };
        open.walk = match piece.next {
            _ if may_retry => Walk::At(piece.from),
            Some(next) => Walk::At(next),
            None => Walk::Over,
        };
        self.walk_on();
        Ok(())
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
