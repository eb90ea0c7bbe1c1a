//! The answers of one ring that its client does not have yet: those that are being written, those that wait for their place,
//! and those that are kept until they are fetched.
//!
//! No two writes in flight overlap, nor do two answers that wait. An answer whose place overlaps that of a waiting one
//! cannot come from a correct client: a client reuses a slot only after its answer has come. So each answer is found by
//! its place in logarithmic time, and a completed write is looked up only among those that overlap it.
//!
//! Pure; belongs to its [`Ring`](super::ring::Ring).

use leeward_format::frame::DecodeError;
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// The answers of one ring that its client does not have yet.
#[derive(Default)]
pub(super) struct Answers {
    /// Bytes of each message that is being written, by its offset.
    under_way: BTreeMap<u32, u32>,
    /// Messages that wait for their place, by offset.
    waiting: BTreeMap<u32, Vec<u8>>,
    /// Bytes of both.
    bytes: usize,
    /// Answers that were too large, by number of the request.
    kept: BTreeMap<u64, Vec<u8>>,
    kept_bytes: usize,
    completed: u64,
    progress: Progress,
}

/// Values that have not changed, and since when.
#[derive(Default)]
struct Progress {
    /// The number of completed writes.
    writes: Option<(u64, Nanos)>,
    /// The number of the oldest kept answer.
    kept: Option<(u64, Nanos)>,
}

impl Answers {
    /// Whether `message` may be written at `at` now. If not, it is taken, and [`Answers::complete`] returns it later.
    ///
    /// # Errors
    /// Its place belongs to an answer that waits.
    pub(super) fn place(&mut self, at: u32, message: &mut Vec<u8>) -> Result<bool, DecodeError> {
        let bytes = message.len() as u32;
        if overlapping(&self.waiting, at, bytes, |message| message.len() as u32).next().is_some() {
            let detail = format!("{bytes} bytes at {at} are the place of an answer that is not there yet");
            return Err(DecodeError::invalid("ring message", detail));
        }
        self.bytes += message.len();
        if overlapping(&self.under_way, at, bytes, |bytes| *bytes).next().is_some() {
            self.waiting.insert(at, std::mem::take(message));
            return Ok(false);
        }
        self.under_way.insert(at, bytes);
        Ok(true)
    }

    /// Ends the write at `at`. Returns the answers that are to be written now; they count as under way.
    pub(super) fn complete(&mut self, at: u32) -> Vec<(u32, Vec<u8>)> {
        let Some(bytes) = self.under_way.remove(&at) else { return Vec::new() };
        self.bytes -= bytes as usize;
        self.completed += 1;
        let may_go: Vec<u32> = overlapping(&self.waiting, at, bytes, |message| message.len() as u32).collect();
        let mut free = Vec::new();
        for at in may_go {
            let bytes = self.waiting[&at].len() as u32;
            if overlapping(&self.under_way, at, bytes, |bytes| *bytes).next().is_none() {
                self.under_way.insert(at, bytes);
                free.extend(self.waiting.remove(&at).map(|message| (at, message)));
            }
        }
        free
    }

    /// Keeps the answer to the request of this number.
    pub(super) fn keep(&mut self, sequence: u64, frames: Vec<u8>) {
        self.kept_bytes += frames.len();
        self.kept.insert(sequence, frames);
    }

    /// The answer that was kept for this number.
    pub(super) fn fetch(&mut self, sequence: u64) -> Option<Vec<u8>> {
        let kept = self.kept.remove(&sequence)?;
        self.kept_bytes -= kept.len();
        Some(kept)
    }

    /// Bytes of the answers that are being written or wait for it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the answers that are kept until they are fetched.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Whether no write was completed, or the oldest kept answer was not fetched, for `timeout`. Call it at intervals.
    pub(super) fn is_stalled(&mut self, now: Nanos, timeout: Nanos) -> bool {
        let since = |progress: &mut Option<(u64, Nanos)>, mark: Option<u64>| {
            *progress = mark.map(|mark| progress.filter(|(before, _)| *before == mark).unwrap_or((mark, now)));
            progress.map_or(Nanos::ZERO, |(_, since)| now - since)
        };
        let writes = since(&mut self.progress.writes, (self.bytes > 0).then_some(self.completed));
        let kept = since(&mut self.progress.kept, self.kept.keys().next().copied());
        writes.max(kept) > timeout
    }
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;

/// Offsets of the pieces that overlap `bytes` at `at`, in a map of pieces that do not overlap each other.
fn overlapping<V>(
    pieces: &BTreeMap<u32, V>,
    at: u32,
    bytes: u32,
    bytes_of: impl Fn(&V) -> u32,
) -> impl Iterator<Item = u32> {
    let before = pieces.range(..at + bytes).rev();
    before.take_while(move |(other, piece)| *other + bytes_of(piece) > at).map(|(other, _)| *other)
}
