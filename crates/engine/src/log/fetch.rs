//! Reads many records at once for a merge that moves values: in device order, neighbours with one read, several reads
//! in flight, past every cache (Anthus 3.6). So a sorted run is read sequentially, from its start to its end.
//!
//! Any thread may read. The caller asks only for records that were written to the device.

use super::LogReader;
use super::reader::{Neighbours, RecordAt};
use crate::error::Result;
use bytes::Bytes;
use leeward_format::node::BLOCK_BYTES;
use leeward_format::record::{Record, record_bytes};
use leeward_format::request::REQUEST_ID_BYTES;
use leeward_format::{Pointer, Stamp};

/// Records that one read takes.
const NEIGHBOURS: Neighbours = Neighbours { gap_bytes: 16 << 10, read_bytes: 256 << 10 };

/// Bytes read in parallel, unless memory is short; a single read may be larger.
const TOGETHER_BYTES: usize = 2 << 20;
/// Reads in flight: more do not make a device faster, and readers would wait behind them.
const TOGETHER: usize = 64;

/// A record whose value is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedRecord {
    /// Where it is.
    pub(crate) pointer: Pointer,
    /// Its LSN and expiry.
    pub(crate) stamp: Stamp,
    /// Length of its key, in bytes.
    pub(crate) key_bytes: u32,
    /// Length of its value, in bytes.
    pub(crate) value_bytes: u32,
}

impl WantedRecord {
    /// Bytes of the record without a request id, which it may have in addition.
    fn bytes(&self) -> u64 {
        record_bytes(self.key_bytes as usize, self.value_bytes as usize, self.stamp.expires) as u64
    }
}

/// Fetched values, in the order of the request.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    pub(crate) values: Vec<Bytes>,
    /// Bytes read from the device for them.
    pub(crate) bytes_read: u64,
}

/// The records of one read.
struct Piece<'o> {
    /// Their positions among the wanted records.
    of: &'o [usize],
    /// The first of them.
    first: RecordAt,
    /// Where the read starts in the segment.
    start: u32,
    bytes: usize,
}

impl LogReader {
    /// The values of the records in `wanted`.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] if one of them is not where it should be; [`crate::Error::Io`].
    pub(crate) fn fetch(&self, wanted: &[WantedRecord]) -> Result<Fetched> {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by_key(|i| wanted[*i].pointer);
        let mut fetched = Fetched { values: vec![Bytes::new(); wanted.len()], bytes_read: 0 };
        let mut pieces = Vec::new();
        let mut rest = &order[..];
        while !rest.is_empty() {
            let (piece, beyond) = rest.split_at(neighbours(wanted, rest));
            pieces.push(self.piece(wanted, piece)?);
            rest = beyond;
        }
        let most = self.volume.memory().piece(TOGETHER_BYTES);
        let mut pieces = &pieces[..];
        while !pieces.is_empty() {
            let (now, later) = pieces.split_at(how_many(pieces, most, |piece| piece.bytes).min(TOGETHER));
            self.fetch_pieces(wanted, now, &mut fetched)?;
            pieces = later;
        }
        Ok(fetched)
    }

    /// The read for the records `of`, which are neighbours.
    fn piece<'o>(&self, wanted: &[WantedRecord], of: &'o [usize]) -> Result<Piece<'o>> {
        let (first, last) = (&wanted[of[0]], &wanted[of[of.len() - 1]]);
        let at = self.at(first.pointer)?;
        let start = at.offset as usize / BLOCK_BYTES * BLOCK_BYTES;
        let end = (u64::from(last.pointer.offset()) + last.bytes()) as usize;
        let segment_bytes = self.volume.bytes_of(at.no);
        if end > segment_bytes {
            return Err(self.damaged(at, "a record behind this one would reach beyond its segment".into()));
        }
        let end = (end + REQUEST_ID_BYTES).next_multiple_of(BLOCK_BYTES).min(segment_bytes);
        Ok(Piece { of, first: at, start: start as u32, bytes: end - start })
    }

    /// Reads pieces in parallel, into one block.
    fn fetch_pieces(&self, wanted: &[WantedRecord], pieces: &[Piece<'_>], fetched: &mut Fetched) -> Result<()> {
        let mut block = self.volume.memory().pool().take(pieces.iter().map(|piece| piece.bytes).sum());
        fetched.bytes_read += block.len() as u64;
        let (mut reads, mut rest) = (Vec::with_capacity(pieces.len()), &mut block[..]);
        for piece in pieces {
            let (buffer, beyond) = rest.split_at_mut(piece.bytes);
            reads.push(((piece.first.no, piece.start), buffer));
            rest = beyond;
        }
        self.volume.read_many(&mut reads)?;
        let (block, mut at) = (Bytes::from(block), 0);
        for piece in pieces {
            let bytes = block.slice(at..at + piece.bytes);
            for i in piece.of {
                fetched.values[*i] = self.value_within(&wanted[*i], piece, &bytes)?;
            }
            at += piece.bytes;
        }
        Ok(())
    }

    /// The value of a record of `piece`, which has these `bytes`.
    fn value_within(&self, wanted: &WantedRecord, piece: &Piece<'_>, bytes: &Bytes) -> Result<Bytes> {
        let at = RecordAt { offset: wanted.pointer.offset(), ..piece.first };
        let is_wanted = |record: &Record<'_>| record.stamp == wanted.stamp;
        Ok(bytes.slice(self.value_place(at, (bytes, piece.start), wanted.value_bytes, is_wanted)?))
    }
}

/// Number of leading `items` whose sizes reach `most` bytes; the last one may exceed it.
pub(crate) fn how_many<T>(items: &[T], most: usize, bytes_of: impl Fn(&T) -> usize) -> usize {
    let mut bytes = 0;
    let fits = |item: &&T| {
        let has_room = bytes < most;
        bytes += bytes_of(item);
        has_room
    };
    items.iter().take_while(fits).count()
}

/// Number of leading records in `order` that one read takes: in one segment, near each other, and not too many bytes.
fn neighbours(wanted: &[WantedRecord], order: &[usize]) -> usize {
    let first = wanted[order[0]].pointer;
    let mut bytes = 0;
    let is_near = |i: &&usize| {
        let WantedRecord { pointer, .. } = wanted[**i];
        let end = pointer.offset() as usize + wanted[**i].bytes() as usize;
        let near = pointer.segment() == first.segment()
            && (pointer == first || NEIGHBOURS.are((first.offset(), bytes), (pointer.offset(), end)));
        if near {
            bytes = end - first.offset() as usize;
        }
        near
    };
    order.iter().take_while(is_near).count().max(1)
}
