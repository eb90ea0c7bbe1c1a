//! Lines in this node's memory that show the safe LSNs of regions it serves. Backups read them instead of asking
//! ([`leeward_format::safe_lsn`]).
//!
//! ```text
//!  question of a backup --> open --> shown in each turn, before answers leave; extended with the lease
//!                     |       '----> closed: bounds or primary may change, another configuration, no question for a minute
//!                     '--hidden while the hash index gets what is acknowledged--> shown
//! ```
//! Invariants:
//! - What a line shows is never beyond what is acknowledged, and never behind what an answer of this node has shown.
//! - It is hidden while the hash index changes: a client that has read a version there, and a scan of a backup, are two reads of
//!   memory that does not change at once. Backups that look meanwhile ask.
//! - The instant is never beyond the lease ([`Primary::readable_until`]).
//! - A line belongs to one configuration of one region. It is closed before the region quiesces. Its nonce is of no other line.
//!
//! All lines of a node are in one memory. Belongs to the node's thread.
//!
//! [`Primary::readable_until`]: leeward_replication::primary::Primary::readable_until

use leeward_fabric::{Fabric, ReadableMemory};
use leeward_format::safe_lsn::{SAFE_LSN_LINE_BYTES, SAFE_LSN_LINE_WORDS, SafeLsnLine, SafeLsnLineGrant};
use leeward_format::{Epoch, Incarnation, Lsn, RegionId, UnixMs, filter};
use leeward_platform::Nanos;
use parking_lot::Mutex;
use std::sync::Arc;

/// How long no memory is asked for after there was none.
pub(crate) const REST: Nanos = Nanos::from_secs(1);
/// Most lines of a node. Backups ask about further regions.
const MOST_LINES: usize = 1024;
const WORD: usize = size_of::<u64>();

/// The lines of a node.
pub struct SafeLsnLines {
    fabric: Arc<dyn Fabric>,
    incarnation: Incarnation,
    state: Mutex<LineState>,
}

#[derive(Default)]
struct LineState {
    /// Allocated for the first line.
    memory: Option<Arc<ReadableMemory>>,
    /// Lines that are closed, of those that were ever open.
    closed: Vec<usize>,
    /// Lines that were ever open.
    used: usize,
    /// How often a line was opened.
    opened: u64,
    /// No memory is asked for before this.
    not_before: Nanos,
}

impl SafeLsnLines {
    /// No line is open yet.
    pub fn new(fabric: Arc<dyn Fabric>, incarnation: Incarnation) -> SafeLsnLines {
        SafeLsnLines { fabric, incarnation, state: Mutex::default() }
    }

    /// Opens a line, unless there are too many, or there is no memory.
    pub(crate) fn open(self: &Arc<SafeLsnLines>, now: Nanos, (region, epoch): (RegionId, Epoch)) -> Option<OpenLine> {
        let mut state = self.state.lock();
        let memory = match &state.memory {
            Some(memory) => Arc::clone(memory),
            None if now < state.not_before => return None,
            None => {
                state.not_before = now + REST;
                let allocated = self.fabric.allocate_readable(MOST_LINES * SAFE_LSN_LINE_BYTES);
                let refused = |error: &std::io::Error| tracing::warn!(%error, "no memory for lines of safe LSNs");
                let memory = Arc::new(allocated.inspect_err(refused).ok()?);
                state.memory = Some(Arc::clone(&memory));
                memory
            }
        };
        let never_used = || Some(state.used).filter(|used| *used < MOST_LINES);
        let index = state.closed.last().copied().or_else(never_used)?;
        if state.closed.pop().is_none() {
            state.used += 1;
        }
        state.opened += 1;
        // Indexes count upwards.
        let nonce = nonce(self.incarnation, u64::MAX - state.opened, region);
        let (lines, line, stored) = (Arc::clone(self), SafeLsnLine::default(), [0; SAFE_LSN_LINE_WORDS]);
        Some(OpenLine { lines, memory, index, nonce, epoch, asked: now, line, stored })
    }
}

/// A line that backups may read. It is closed when it is dropped.
pub struct OpenLine {
    lines: Arc<SafeLsnLines>,
    memory: Arc<ReadableMemory>,
    index: usize,
    nonce: u64,
    pub(crate) epoch: Epoch,
    /// When a backup asked last.
    pub(crate) asked: Nanos,
    line: SafeLsnLine,
    /// Its words in the memory.
    stored: [u64; SAFE_LSN_LINE_WORDS],
}

impl OpenLine {
    /// Shows what is acknowledged and what time it is.
    pub(crate) fn show(&mut self, lsn: Lsn, wall: UnixMs) {
        (self.line.lsn, self.line.wall) = (lsn, wall);
        self.store(self.line.words(self.nonce));
    }

    /// Extends it to this instant of this node's clock. It is to be shown after this.
    pub(crate) fn extend(&mut self, until: Nanos) {
        self.line.readable_until = until.0;
    }

    /// Shows nothing until it is shown again.
    pub(crate) fn hide(&mut self) {
        let [readable_until, lsn, wall, _] = self.stored;
        self.store([readable_until, lsn, wall, 0]);
    }

    fn store(&mut self, words: [u64; SAFE_LSN_LINE_WORDS]) {
        for (at, (word, stored)) in words.into_iter().zip(&mut self.stored).enumerate() {
            if *stored != word {
                *stored = word;
                self.memory.store_u64(self.index * SAFE_LSN_LINE_BYTES + at * WORD, word);
            }
        }
    }

    /// The right to read it, which begins now.
    pub(crate) fn grant(&self, now: Nanos) -> SafeLsnLineGrant {
        let offset = (self.index * SAFE_LSN_LINE_BYTES) as u64;
        SafeLsnLineGrant { memory: self.memory.descriptor().0.into(), offset, nonce: self.nonce, clock: now.0 }
    }
}

impl Drop for OpenLine {
    fn drop(&mut self) {
        self.store([0; SAFE_LSN_LINE_WORDS]);
        self.lines.state.lock().closed.push(self.index);
    }
}

/// Not 0, and another one for each region, number and process.
pub(crate) fn nonce(incarnation: Incarnation, number: u64, region: RegionId) -> u64 {
    let parts = [incarnation.0, number, region.0.into()].map(u64::to_le_bytes);
    filter::hash(parts.as_flattened()).max(1)
}

#[cfg(test)]
#[path = "safe_lsn_lines_tests.rs"]
mod tests;
