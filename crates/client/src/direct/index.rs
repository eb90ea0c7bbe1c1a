//! The hash index of one region, as it was granted: one look-up, from the first read to the look at the lease.
//!
//! The lease comes last. The client's clock is read after the last read of the index. If the board that the client
//! knows does not cover it, the board is read again, once: a primary extends it all the time, and nobody tells the
//! client.
//! Without I/O and time: the caller lends both.

use super::MAP_TIMEOUT;
use bytes::Bytes;
use leeward_fabric::{ReadNow, ReadableDescriptor};
use leeward_format::hash_index::{BOARD_BYTES, Board, BytesToRead, ClockSample, Grant, Line, Reader, Reason, Step};
use leeward_platform::Nanos;
use rustc_hash::FxHashMap;
use std::time::Instant;

/// How a look-up ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The value that the key had at some instant during the look-up.
    Value { value: Bytes, line: Line },
    /// Only the primary can tell.
    Ask(Reason),
    /// There is a value, but the lease is over, as far as the client can know.
    TooOld,
    /// The memory with this position is not mapped.
    NotMapped { memory: u16 },
    /// A memory is revoked, or is not what was granted.
    Refused,
}

/// A look-up that ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LookupEnd {
    pub(super) outcome: Outcome,
    /// Tries of the reader, 1 or more, unless the key is out of bounds.
    pub(super) tries: u8,
}

/// A granted index.
#[derive(Debug)]
pub(super) struct Index {
    version: u32,
    grant: Grant,
    memories: Vec<ReadableDescriptor>,
    /// The board as it was read last.
    board: Option<Board>,
    /// When a read was posted to map a memory, by its position.
    mapping: FxHashMap<u16, Instant>,
}

impl Index {
    pub(super) fn new(version: u32, grant: Grant) -> Index {
        let memories = descriptors(&grant);
        Index { version, grant, memories, board: None, mapping: FxHashMap::default() }
    }

    /// Takes another grant of the same table.
    pub(super) fn change(&mut self, version: u32, grant: Grant) {
        self.memories = descriptors(&grant);
        (self.version, self.grant) = (version, grant);
        self.mapping.clear();
    }

    /// Nonce and version of the grant.
    pub(super) fn name(&self) -> (u64, u32) {
        (self.grant.nonce, self.version)
    }

    /// The memory to be mapped; `None` while a read for that is under way.
    pub(super) fn map(&mut self, memory: u16, now: Instant) -> Option<ReadableDescriptor> {
        let posted = self.mapping.get(&memory);
        if posted.is_some_and(|posted| now.saturating_duration_since(*posted) < MAP_TIMEOUT) {
            return None;
        }
        self.mapping.insert(memory, now);
        self.memories.get(usize::from(memory)).cloned()
    }

    /// Looks for `key`. `buffer` has room for the largest record.
    pub(super) fn get(
        &mut self,
        key: &[u8],
        clock: ClockSample,
        read: impl Fn(&ReadableDescriptor, u64, &mut [u8]) -> ReadNow,
        now: impl Fn() -> Nanos,
        buffer: &mut [u8],
    ) -> LookupEnd {
        let (mut tries, mut record) = (0, None);
        let ended = |outcome, tries| LookupEnd { outcome, tries };
        let mut step = Reader::begin(&self.grant, key);
        let value = loop {
            let reader = match step {
                Step::Read(reader) => reader,
                Step::Ask(reason) => return ended(Outcome::Ask(reason), tries),
                Step::Found { value, .. } => break Bytes::copy_from_slice(value),
            };
            (tries, record) = (reader.tries(), reader.record_line());
            let place = reader.place();
            let Some(bytes) = buffer.get_mut(..place.bytes as usize) else {
                return ended(Outcome::Refused, tries);
            };
            if let Some(failed) = copy(&self.memories, place, bytes, &read) {
                return ended(failed, tries);
            }
            step = reader.feed(bytes);
        };
        let outcome = match (self.end_of_lease(clock, read, now), record) {
            (Some(failed), _) => failed,
            (None, Some(line)) => Outcome::Value { value, line },
            (None, None) => Outcome::Ask(Reason::Changing),
        };
        ended(outcome, tries)
    }

    /// Why what was read does not count, if it does not. The last read is over.
    fn end_of_lease(
        &mut self,
        clock: ClockSample,
        read: impl Fn(&ReadableDescriptor, u64, &mut [u8]) -> ReadNow,
        now: impl Fn() -> Nanos,
    ) -> Option<Outcome> {
        if self.board.is_some_and(|board| clock.is_readable(now().0, board.readable_until)) {
            return None;
        }
        let mut bytes = [0; BOARD_BYTES];
        if let Some(failed) = copy(&self.memories, self.grant.board, &mut bytes, &read) {
            return Some(failed);
        }
        if let Some(board) = Board::read(self.grant.nonce, &bytes) {
            self.board = Some(board);
        }
        let is_good = self.board.is_some_and(|board| clock.is_readable(now().0, board.readable_until));
        (!is_good).then_some(Outcome::TooOld)
    }
}

fn descriptors(grant: &Grant) -> Vec<ReadableDescriptor> {
    grant.memories.iter().map(|memory| ReadableDescriptor(memory.to_vec())).collect()
}

/// Copies what is at `place`; returns why not, if that fails.
fn copy(
    memories: &[ReadableDescriptor],
    place: BytesToRead,
    bytes: &mut [u8],
    read: &impl Fn(&ReadableDescriptor, u64, &mut [u8]) -> ReadNow,
) -> Option<Outcome> {
    let Some(memory) = memories.get(usize::from(place.memory)) else { return Some(Outcome::Refused) };
    match read(memory, place.offset, bytes) {
        ReadNow::Copied => None,
        ReadNow::Refused => Some(Outcome::Refused),
        ReadNow::NotMapped => Some(Outcome::NotMapped { memory: place.memory }),
    }
}
