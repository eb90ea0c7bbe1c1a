//! Both logs of a region in LSN order, from the device or from mirrored buffers.
//!
//! LSNs are dense over the two logs, so the merge knows the LSN that must come next. Where neither log has it, the
//! valid prefix ends, even if a log has later records. The prefix also ends with a whole batch.
//!
//! Complete segments are read as a whole, each while the records of the one before are taken; tails in parts.

use super::{decode_record, read_header};
use crate::error::Result;
use crate::memory::{Purpose, Reservation};
use crate::volume::{Reading, Volume};
use leeward_format::manifest::{RegionState, SegmentKind, SegmentState};
use leeward_format::record::{FLAG_BATCH_CONTINUES, RECORD_HEADER_BYTES, Record, RecordSeed, read_record_unchecked};
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_format::{DecodeError, LogKind, Lsn, RegionId, SegmentId, SegmentNo};
use leeward_platform::disk::DIRECT_ALIGN;
use leeward_platform::{Block, Bug, Pool, planted};
use std::collections::{BTreeMap, VecDeque};

/// A record on its way through a replay.
#[derive(Debug)]
pub(crate) struct Replayed<'a> {
    pub(crate) log: LogKind,
    pub(crate) id: SegmentId,
    pub(crate) no: SegmentNo,
    /// Offset of the record in its segment.
    pub(crate) offset: u32,
    pub(crate) record: Record<'a>,
}

/// End of the valid records of a log segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) bytes: u32,
    pub(crate) last_lsn: Lsn,
}

/// Contents of segments that are not read from the device.
pub(crate) type Overlays = BTreeMap<SegmentId, Vec<u8>>;

/// The valid prefix of both logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// Its last LSN; if it is empty, the one before the first LSN asked for.
    pub(crate) last: Lsn,
    /// Why it ends there: offset in the file, and what was found.
    pub(crate) stopped: (u64, String),
    /// Bytes that were durable when a compaction was installed are missing: offset in the file, and what was found.
    pub(crate) damage: Option<(u64, String)>,
}

/// End of the records of each segment.
pub(crate) type Ends = BTreeMap<SegmentId, End>;

/// The merge of both logs.
pub(crate) struct Replay<'a> {
    sources: [Source<'a>; 2],
    next: Lsn,
    /// Last LSN of the last whole batch.
    last: Lsn,
    /// Whether the record before `next` ends a batch.
    is_whole: bool,
    /// Positions of the sources after the last whole batch.
    marks: [Mark; 2],
}

impl<'a> Replay<'a> {
    /// Replays `state`'s logs from its `replay_from` on. Bytes of the segments in `overlays` are taken from there.
    pub(crate) fn new(volume: &'a Volume, state: &RegionState, overlays: &'a Overlays) -> Replay<'a> {
        let source = |log| Source::new(volume, state, overlays, log);
        Replay {
            sources: LogKind::APPENDED.map(source),
            next: state.replay_from,
            last: Lsn(state.replay_from.0.saturating_sub(1)),
            is_whole: true,
            marks: [Mark::default(); 2],
        }
    }

    /// The record with the next LSN; `None` where neither log has it. It counts only if its batch is whole.
    pub(crate) fn next(&mut self) -> Result<Option<Replayed<'_>>> {
        let heads = [self.sources[0].peek(self.next)?, self.sources[1].peek(self.next)?];
        if self.is_whole {
            self.marks = [self.sources[0].mark(), self.sources[1].mark()];
        }
        let mut found = heads.iter().position(|head| *head == Some(self.next));
        if found.is_none() && planted(Bug::StopReplayAtOneLog) {
            found = (0..heads.len()).filter(|at| heads[*at].is_some()).min_by_key(|at| heads[*at]);
            self.next = found.and_then(|at| heads[at]).unwrap_or(self.next);
        }
        let Some(found) = found else { return Ok(None) };
        let found = self.sources[found].take()?;
        self.next = found.record.last_lsn().next();
        self.is_whole = found.record.flags & FLAG_BATCH_CONTINUES == 0;
        if self.is_whole {
            self.last = found.record.last_lsn();
        }
        Ok(Some(found))
    }

    /// Why there is no next record: offset in the file, and what was found.
    fn stopped(&self) -> (u64, String) {
        let faults = self.sources.iter().filter_map(|source| source.fault.as_ref());
        match faults.max_by_key(|fault| fault.2) {
            Some((offset, detail, _)) => (*offset, detail.clone()),
            None => (self.sources[0].ended, "the log ends".into()),
        }
    }

    /// The valid prefix, after [`Replay::next`] has returned `None`; and for each segment, the end of the records that
    /// belong to the prefix or precede the first LSN asked for.
    pub(crate) fn finish(mut self) -> (Prefix, Ends) {
        let damage = self.sources.iter().find_map(|source| source.damage.clone());
        let prefix = Prefix { last: self.last, stopped: self.stopped(), damage };
        let mut ends = Ends::new();
        for (source, mark) in self.sources.iter_mut().zip(self.marks) {
            ends.extend(source.ends.drain(..mark.left).chain(mark.current));
        }
        (prefix, ends)
    }
}

/// Finds the valid prefix of `state`'s logs from its `replay_from` on, and its end in each segment.
pub(crate) fn find_prefix(volume: &Volume, state: &RegionState, overlays: &Overlays) -> Result<(Prefix, Ends)> {
    let mut replay = Replay::new(volume, state, overlays);
    while replay.next()?.is_some() {}
    Ok(replay.finish())
}

/// End of the valid records of one segment on the device; 0 if it has none.
pub(crate) fn segment_end(volume: &Volume, segment: &SegmentState) -> Result<End> {
    let overlays = Overlays::new();
    let Some(log) = log_of(segment) else { return Ok(End::default()) };
    let mut source = Source { segments: VecDeque::from([*segment]), ..Source::empty(volume, &overlays, log) };
    source.peek(Lsn(u64::MAX))?;
    Ok(source.ends.first().map_or(End::default(), |(_, end)| *end))
}

/// The log of a segment, if records are appended to that log. Runs of it are included.
pub(crate) fn log_of(segment: &SegmentState) -> Option<LogKind> {
    LogKind::APPENDED.into_iter().find(|log| segment.kind == SegmentKind::Log(*log))
}

/// Bytes of a tail that are read first; each further read makes that four times as much. So the tails of a thousand
/// regions that were hardly written to cost a thousand such reads, not a thousand segments.
const FIRST_READ_BYTES: usize = 64 << 10;

/// The bytes of a segment known so far, from its start.
enum Contents<'a> {
    Overlay(&'a [u8]),
    Read {
        /// Has room for all of them.
        block: Block,
        /// Bytes read so far.
        bytes: usize,
        /// Bytes that may be read.
        most: usize,
        /// For the bytes read so far.
        reservation: Reservation,
    },
}

impl Contents<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Contents::Overlay(bytes) => bytes,
            Contents::Read { block, bytes, .. } => &block[..*bytes],
        }
    }

    /// Whether there is more to read.
    fn has_more(&self) -> bool {
        matches!(self, Contents::Read { bytes, most, .. } if bytes < most)
    }

    /// Reads on; `false` if there is no more.
    fn read_on(&mut self, volume: &Volume, no: SegmentNo) -> Result<bool> {
        let Contents::Read { block, bytes, most, reservation } = self else { return Ok(false) };
        let (from, to) = (*bytes, (4 * *bytes).max(FIRST_READ_BYTES).min(*most));
        if from == to {
            return Ok(false);
        }
        reservation.set(to as u64);
        block.make_ready(from, to - from);
        volume.read(no, from as u32, &mut block[from..to])?;
        *bytes = to;
        Ok(true)
    }
}

/// Bytes of a complete segment, and how many of whole blocks of the device; `None`: it is a tail.
fn bytes_of(volume: &Volume, segment: &SegmentState) -> Option<(usize, usize)> {
    let most = volume.bytes_of(segment.no);
    let bytes = (segment.bytes? as usize).min(most);
    Some((bytes, bytes.next_multiple_of(DIRECT_ALIGN).min(most)))
}

/// A complete segment that is being read.
struct ReadAhead {
    id: SegmentId,
    /// Its bytes that are wanted.
    bytes: usize,
    reading: Reading,
    reservation: Reservation,
}

impl ReadAhead {
    /// Begins to read a segment; `None` if it is a tail.
    fn begin(volume: &Volume, segment: &SegmentState) -> Option<ReadAhead> {
        let (bytes, whole) = bytes_of(volume, segment)?;
        let reservation = volume.memory().take(Purpose::Reads, Pool::memory_bytes(whole));
        Some(ReadAhead { id: segment.id, bytes, reading: volume.begin_read(segment.no, 0, whole), reservation })
    }

    fn finish<'a>(self) -> Result<Contents<'a>> {
        let ReadAhead { bytes, reading, reservation, .. } = self;
        Ok(Contents::Read { block: reading.wait()?, bytes, most: bytes, reservation })
    }
}

/// Position of a source.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Number of segments it had left behind.
    left: usize,
    /// The end in the current segment.
    current: Option<(SegmentId, End)>,
}

/// One log, segment by segment. At most two of them are in memory.
struct Source<'a> {
    volume: &'a Volume,
    overlays: &'a Overlays,
    log: LogKind,
    segments: VecDeque<SegmentState>,
    current: Option<SegmentState>,
    /// The segment after it.
    ahead: Option<ReadAhead>,
    /// Seed of the current segment's records.
    seed: RecordSeed,
    contents: Contents<'a>,
    /// Offset of the next record in `contents`.
    offset: usize,
    /// First and last LSN and length of the record at `offset`, once it is decoded.
    head: Option<(Lsn, Lsn, usize)>,
    /// LSN of the last record taken or skipped.
    last: Lsn,
    /// The latest fault at an end of records: offset in the file, what was found, and the LSN before it.
    fault: Option<(u64, String, Lsn)>,
    /// End of the last finished segment, as an offset in the file.
    ended: u64,
    /// End of the last record taken or skipped in the current segment.
    end: Option<End>,
    /// Ends of the finished segments.
    ends: Vec<(SegmentId, End)>,
    damage: Option<(u64, String)>,
}

impl<'a> Source<'a> {
    fn empty(volume: &'a Volume, overlays: &'a Overlays, log: LogKind) -> Self {
        Source {
            volume,
            overlays,
            log,
            segments: VecDeque::new(),
            current: None,
            ahead: None,
            seed: RecordSeed::new(RegionId(0), log, SegmentId(0)),
            contents: Contents::Overlay(&[]),
            offset: 0,
            head: None,
            last: Lsn(0),
            fault: None,
            ended: 0,
            end: None,
            ends: Vec::new(),
            damage: None,
        }
    }

    fn new(volume: &'a Volume, state: &RegionState, overlays: &'a Overlays, log: LogKind) -> Self {
        let segments = state.log_segments(log).filter(|segment| state.is_replayed(segment)).copied().collect();
        Source { segments, ..Source::empty(volume, overlays, log) }
    }

    /// LSN of the next record that is at least `from`.
    fn peek(&mut self, from: Lsn) -> Result<Option<Lsn>> {
        loop {
            if let Some((lsn, last, bytes)) = self.head {
                if lsn >= from {
                    return Ok(Some(lsn));
                }
                self.pass(last, bytes);
            } else if self.current.is_none() {
                let Some(segment) = self.segments.pop_front() else { return Ok(None) };
                self.load(segment)?;
            } else {
                self.decode_head()?;
            }
        }
    }

    /// The record that [`Source::peek`] has found.
    fn take(&mut self) -> Result<Replayed<'_>> {
        let (_, last, bytes) = self.head.expect("only after a look");
        let offset = self.offset;
        self.pass(last, bytes);
        let segment = self.current.as_ref().expect("the record is in a segment");
        let record =
            read_record_unchecked(&self.contents.bytes()[offset..]).ok().flatten().expect("it was decoded before");
        Ok(Replayed { log: self.log, id: segment.id, no: segment.no, offset: offset as u32, record })
    }

    fn pass(&mut self, lsn: Lsn, bytes: usize) {
        self.last = lsn;
        self.offset += bytes;
        self.head = None;
        self.end = Some(End { bytes: self.offset as u32, last_lsn: lsn });
    }

    fn mark(&self) -> Mark {
        let current = self.current.as_ref().and_then(|segment| Some((segment.id, self.end?)));
        Mark { left: self.ends.len(), current }
    }

    /// Decodes the record at `offset`; leaves the segment if there is none.
    fn decode_head(&mut self) -> Result<()> {
        while self.contents.has_more() && self.is_cut() && self.read_on()? {}
        match decode_record(self.seed, &self.contents.bytes()[self.offset..]) {
            Ok(Some(record)) if record.stamp.lsn > self.last => {
                self.head = Some((record.stamp.lsn, record.last_lsn(), record.bytes()))
            }
            Ok(Some(record)) => {
                let detail = format!("a record with LSN {} after one with {}", record.stamp.lsn, self.last);
                self.leave(Some(detail));
            }
            Ok(None) => self.leave(None),
            Err(error) => self.leave(Some(error.to_string())),
        }
        Ok(())
    }

    /// Whether a record at `offset` may continue beyond the bytes read so far.
    fn is_cut(&self) -> bool {
        let rest = &self.contents.bytes()[self.offset..];
        rest.len() < RECORD_HEADER_BYTES || matches!(read_record_unchecked(rest), Err(DecodeError::Short { .. }))
    }

    fn read_on(&mut self) -> Result<bool> {
        let Some(segment) = self.current else { return Ok(false) };
        self.contents.read_on(self.volume, segment.no)
    }

    fn leave(&mut self, fault: Option<String>) {
        let Some(segment) = self.current.take() else { return };
        self.ends.extend(self.end.take().map(|end| (segment.id, end)));
        self.ended = self.volume.file_offset(segment.no, self.offset as u32);
        if self.offset < segment.certain_bytes() as usize && self.damage.is_none() {
            self.damage = Some((self.ended, fault.clone().unwrap_or_else(|| "the records end too early".into())));
        }
        if let Some(detail) = fault {
            self.fault = Some((self.ended, detail, self.last));
        }
    }

    /// The bytes of a segment that is not an overlay. Begins to read the one after it. The first one is read on this thread:
    /// where many regions are replayed, they do not wait for the few threads that read ahead.
    fn read(&mut self, segment: &SegmentState) -> Result<Contents<'a>> {
        let (volume, overlays) = (self.volume, self.overlays);
        let begun = self.ahead.take().filter(|ahead| ahead.id == segment.id);
        let complete = bytes_of(volume, segment).filter(|_| begun.is_none());
        // Before it is decided whether there is memory for the next one.
        let reservation =
            volume.memory().take(Purpose::Reads, complete.map_or(0, |(_, whole)| Pool::memory_bytes(whole)));
        if !volume.memory().is_short(Purpose::Reads) {
            let next = self.segments.front().filter(|next| !overlays.contains_key(&next.id));
            self.ahead = next.and_then(|next| ReadAhead::begin(volume, next));
        }
        if let Some(begun) = begun {
            return begun.finish();
        }
        if let Some((bytes, whole)) = complete {
            let mut block = volume.memory().pool().take(whole);
            volume.read(segment.no, 0, &mut block)?;
            return Ok(Contents::Read { block, bytes, most: bytes, reservation });
        }
        let most = volume.bytes_of(segment.no);
        let mut contents = Contents::Read { block: Block::bare(most), bytes: 0, most, reservation };
        contents.read_on(volume, segment.no)?;
        Ok(contents)
    }

    fn load(&mut self, segment: SegmentState) -> Result<()> {
        // Before the next ones take memory.
        self.contents = Contents::Overlay(&[]);
        self.contents = match self.overlays.get(&segment.id) {
            Some(bytes) => {
                let wanted = segment.bytes.map_or(bytes.len(), |wanted| bytes.len().min(wanted as usize));
                Contents::Overlay(&bytes[..wanted])
            }
            None => self.read(&segment)?,
        };
        self.current = Some(segment);
        self.seed = RecordSeed::new(segment.origin, self.log, segment.id);
        self.offset = LOG_HEADER_BYTES;
        let bytes = self.contents.bytes();
        match read_header(bytes, segment.origin, self.log, segment.id) {
            Ok(_) => {}
            // A segment that was opened but never written to.
            Err(_) if segment.bytes.is_none() && bytes.iter().take(LOG_HEADER_BYTES).all(|byte| *byte == 0) => {
                self.leave(None);
            }
            Err(error) => {
                self.offset = 0;
                self.leave(Some(error.to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
