//! The mirror of the primary's log tails at one backup: what was written into its mirror buffers, how much of that is
//! confirmed, and which buffers may be written again.
//!
//! ```text
//!   tail n    [========== sealed, written, confirmed ==========]  -> Flush sent -> Flushed: buffer n % 2 is free
//!   tail n+1  [=== written ===|-- posted --|      room         ]     tail n+2 must not open before that
//! ```
//! Writes are posted in batches, in LSN order, each ending at a record's end. A batch is all that is new, with one
//! write for each log. With [`Posting::PerRecord`] a batch is the records of one atomic append, most often a single
//! record, with one write for each record. So no batch splits an atomic append. Writes may complete in any order;
//! [`Mirror::completed_lsn`] is the last LSN of the longest prefix of batches all of whose writes have completed. A
//! `Flush` is sent only after every write of its tail has completed: nothing else orders the fabric and the control
//! channel. Invariant: a buffer is never written for a tail while the flush of an earlier tail in it has not been
//! answered.

use crate::tail::TailView;
use crate::unposted;
use leeward_format::cluster::Posting;
use leeward_format::control::{MIRROR_BUFFERS, ToBackup};
use leeward_format::{LogKind, Lsn, SegmentId};
use leeward_platform::planted::{Bug, planted};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A one-sided write to be posted: bytes of a tail to the same offset of its mirror buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorWrite {
    /// With `index` it gives the mirror buffer.
    pub log: LogKind,
    /// Ordinal of the tail.
    pub index: u64,
    /// Bytes of the tail.
    pub range: Range<usize>,
    /// Names the write in its completion.
    pub op: u64,
}

impl MirrorWrite {
    /// Index of the backup's mirror buffer that it goes to.
    pub fn buffer(&self) -> usize {
        buffer_of(self.log, self.index)
    }
}

/// The mirror buffer of a tail.
pub fn buffer_of(log: LogKind, index: u64) -> usize {
    log.index() * MIRROR_BUFFERS as usize + (index % MIRROR_BUFFERS) as usize
}

/// With [`Posting::PerRecord`], no batch begins while this many writes are in flight. This bounds the bookkeeping to
/// some 100 KiB a backup.
const MOST_WRITES_PER_RECORD: usize = 1024;

#[derive(Debug)]
struct MirroredTail {
    log: LogKind,
    index: u64,
    id: SegmentId,
    /// Bytes in it.
    filled: usize,
    /// Last LSN in it, once nothing more will be appended.
    sealed: Option<Lsn>,
    posted: usize,
    outstanding: u32,
    flush_sent: bool,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    last: Lsn,
    bytes: u64,
    outstanding: u32,
}

#[derive(Debug)]
struct InFlight {
    log: LogKind,
    index: u64,
    batch: u64,
    bytes: usize,
}

/// The primary's tails, as far as one backup has them.
#[derive(Debug)]
pub struct Mirror {
    tails: [VecDeque<MirroredTail>; 2],
    /// Every tail below this index was flushed at the backup, or was sealed before mirroring began.
    flushed_below: [u64; 2],
    batches: VecDeque<Batch>,
    /// Writes in flight by op.
    writes: HashMap<u64, InFlight>,
    next_batch: u64,
    posted: Lsn,
    completed: Lsn,
}

impl Mirror {
    /// Begins after `base`, the last LSN that the backup gets as part of its base, with the tails from `first_index`
    /// on.
    pub fn new(base: Lsn, first_index: [u64; 2]) -> Mirror {
        Mirror {
            tails: Default::default(),
            flushed_below: first_index,
            batches: VecDeque::new(),
            writes: HashMap::new(),
            next_batch: 0,
            posted: base,
            completed: base,
        }
    }

    /// Posts what is new in `tails` (oldest first within a log) up to `last`: fills `writes`, and `messages` about
    /// tails that begin or may be flushed. [`Posting::PerRecord`] limits the writes in flight, and leaves the rest to
    /// later calls.
    pub fn post(
        &mut self,
        (tails, last): (&[TailView<'_>], Lsn),
        posting: Posting,
        mut next_op: impl FnMut() -> u64,
        writes: &mut Vec<MirrorWrite>,
        messages: &mut Vec<ToBackup>,
    ) {
        let flushed_below = self.flushed_below;
        let tails = tails.iter().filter(|view| view.index >= flushed_below[view.log.index()]);
        for view in tails.clone() {
            let tail = self.tail(view, messages);
            (tail.filled, tail.sealed) = (view.bytes.len(), view.sealed);
        }
        match posting {
            Posting::Coalesced => self.post_coalesced(tails, last, &mut next_op, writes),
            Posting::PerRecord => self.post_per_record(tails, last, &mut next_op, writes),
        }
        self.flush_what_is_complete(messages);
    }

    fn post_coalesced<'a>(
        &mut self,
        tails: impl Iterator<Item = &'a TailView<'a>>,
        last: Lsn,
        next_op: &mut impl FnMut() -> u64,
        writes: &mut Vec<MirrorWrite>,
    ) {
        let mut batch = Batch { last, ..self.begin() };
        for view in tails {
            writes.extend(self.write(&mut batch, (view.log, view.index), view.bytes.len(), next_op));
        }
        self.end(batch);
    }

    fn post_per_record<'a>(
        &mut self,
        tails: impl Iterator<Item = &'a TailView<'a>>,
        last: Lsn,
        next_op: &mut impl FnMut() -> u64,
        writes: &mut Vec<MirrorWrite>,
    ) {
        let posted: Vec<_> = tails.map(|view| (*view, self.mirrored(view.log, view.index).posted)).collect();
        let mut batch = self.begin();
        // After `last` there may be a part of an atomic append, if the volume failed in the midst of it.
        for record in unposted::records(&posted).take_while(|record| record.last <= last) {
            if batch.outstanding == 0 && self.writes.len() >= MOST_WRITES_PER_RECORD {
                break;
            }
            assert_eq!(record.first, batch.last.next(), "LSNs are dense over both logs");
            batch.last = record.last;
            writes.extend(self.write(&mut batch, (record.log, record.index), record.end, next_op));
            if !record.continues {
                self.end(batch);
                batch = self.begin();
            }
        }
        assert!(batch.outstanding == 0, "what is appended as one is there as one");
    }

    fn begin(&self) -> Batch {
        Batch { number: self.next_batch, last: self.posted, bytes: 0, outstanding: 0 }
    }

    /// Adds a write to `batch`: the new bytes of a tail up to `end`. `None` if there are none.
    fn write(
        &mut self,
        batch: &mut Batch,
        (log, index): (LogKind, u64),
        end: usize,
        next_op: &mut impl FnMut() -> u64,
    ) -> Option<MirrorWrite> {
        let tail = self.mirrored(log, index);
        if tail.posted == end {
            return None;
        }
        let range = std::mem::replace(&mut tail.posted, end)..end;
        tail.outstanding += 1;
        batch.outstanding += 1;
        batch.bytes += range.len() as u64;
        let op = next_op();
        self.writes.insert(op, InFlight { log, index, batch: batch.number, bytes: range.len() });
        Some(MirrorWrite { log, index, range, op })
    }

    /// Ends `batch`: all its writes are posted. Does nothing if it has none.
    fn end(&mut self, batch: Batch) {
        if batch.outstanding > 0 {
            assert!(batch.last >= self.posted, "batches are posted in LSN order");
            self.next_batch += 1;
            self.posted = batch.last;
            self.batches.push_back(batch);
        }
    }

    fn mirrored(&mut self, log: LogKind, index: u64) -> &mut MirroredTail {
        let first = self.flushed_below[log.index()];
        &mut self.tails[log.index()][(index - first) as usize]
    }

    /// The tail of `view`. If it begins, a message tells the backup.
    fn tail(&mut self, view: &TailView<'_>, messages: &mut Vec<ToBackup>) -> &mut MirroredTail {
        let &TailView { log, index, id, segment, .. } = view;
        let (first, tails) = (self.flushed_below[log.index()], &mut self.tails[log.index()]);
        if index >= first + tails.len() as u64 {
            assert_eq!(index, first + tails.len() as u64, "tails open in order");
            assert!(
                tails.len() < MIRROR_BUFFERS as usize || planted(Bug::ReuseTailBeforeFlush),
                "a mirror buffer is reused only after its flush was answered"
            );
            messages.push(ToBackup::OpenTail { log, index, id, segment });
            let (filled, sealed, posted) = (0, None, 0);
            tails.push_back(MirroredTail { log, index, id, filled, sealed, posted, outstanding: 0, flush_sent: false });
        }
        self.mirrored(log, index)
    }

    /// A write completed: its bytes are in the backup's memory. Returns whether the write was one of this mirror's.
    /// Fills `messages` with flushes that have become possible.
    pub fn complete(&mut self, op: u64, messages: &mut Vec<ToBackup>) -> bool {
        let Some(InFlight { log, index, batch, .. }) = self.writes.remove(&op) else {
            return false;
        };
        if let Some(tail) = self.tails[log.index()].iter_mut().find(|tail| tail.index == index) {
            tail.outstanding -= 1;
        }
        let first = self.batches.front().map_or(batch, |batch| batch.number);
        self.batches[(batch - first) as usize].outstanding -= 1;
        while self.batches.front().is_some_and(|batch| batch.outstanding == 0) {
            self.completed = self.batches.pop_front().expect("just seen").last;
        }
        self.flush_what_is_complete(messages);
        true
    }

    fn flush_what_is_complete(&mut self, messages: &mut Vec<ToBackup>) {
        for tails in &mut self.tails {
            // Writes may complete in any order; tails of a log are flushed, and answered, in order.
            let is_complete = |tail: &&mut MirroredTail| tail.outstanding == 0 && tail.posted == tail.filled;
            for tail in tails.iter_mut().skip_while(|tail| tail.flush_sent).take_while(is_complete) {
                let Some(last_lsn) = tail.sealed else { break };
                tail.flush_sent = true;
                messages.push(ToBackup::Flush {
                    log: tail.log,
                    index: tail.index,
                    id: tail.id,
                    bytes: u32::try_from(tail.filled).expect("a tail is at most one segment"),
                    last_lsn,
                });
            }
        }
    }

    /// The backup persisted a tail. Returns false if it was not asked to: the peer breaks the protocol.
    pub fn flushed(&mut self, log: LogKind, index: u64) -> bool {
        let tails = &mut self.tails[log.index()];
        if tails.front().is_none_or(|tail| tail.index != index || !tail.flush_sent) {
            return false;
        }
        tails.pop_front();
        self.flushed_below[log.index()] = index + 1;
        true
    }

    /// Whether the write is one of this mirror's, in flight.
    pub fn owns(&self, op: u64) -> bool {
        self.writes.contains_key(&op)
    }
    /// Last LSN that the backup certainly holds, with all before it.
    pub fn completed_lsn(&self) -> Lsn {
        self.completed
    }
    /// The last posted LSN such that at most `most` bytes up to it are not confirmed.
    pub fn posted_within(&self, most: u64) -> Lsn {
        let mut bytes = 0;
        let fits = |batch: &&Batch| {
            bytes += batch.bytes;
            bytes <= most
        };
        self.batches.iter().take_while(fits).last().map_or(self.completed, |batch| batch.last)
    }
    /// Last LSN posted.
    pub fn posted_lsn(&self) -> Lsn {
        self.posted
    }
    /// Highest index of a tail of `log` that may open without overwriting a buffer whose flush was not answered.
    pub fn window(&self, log: LogKind) -> u64 {
        if planted(Bug::ReuseTailBeforeFlush) {
            return u64::MAX;
        }
        self.flushed_below[log.index()] + MIRROR_BUFFERS - 1
    }
    /// Index of the newest tail of `log` that is open; one below the first if none is.
    pub fn newest(&self, log: LogKind) -> u64 {
        (self.flushed_below[log.index()] + self.tails[log.index()].len() as u64).saturating_sub(1)
    }
    /// Every tail of `log` below this index is durable at the backup.
    pub fn flushed_below(&self, log: LogKind) -> u64 {
        self.flushed_below[log.index()]
    }
    /// Whether the backup owes an answer: a completion, or the answer to a flush.
    pub fn owes_answer(&self) -> bool {
        !self.writes.is_empty() || self.tails.iter().flatten().any(|tail| tail.flush_sent)
    }
    /// Bytes that are posted and not confirmed.
    pub fn lag_bytes(&self) -> u64 {
        self.writes.values().map(|write| write.bytes as u64).sum()
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
pub(crate) mod tests;
