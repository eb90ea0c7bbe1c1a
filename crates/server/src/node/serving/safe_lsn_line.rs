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

use super::Serving;
use super::direct_reads::{REST, UNUSED, nonce};
use leeward_fabric::{Fabric, ReadableMemory};
use leeward_format::safe_lsn::{SAFE_LSN_LINE_BYTES, SAFE_LSN_LINE_WORDS, SafeLsnLine, SafeLsnLineGrant};
use leeward_format::{Epoch, Incarnation, Lsn, RegionId, UnixMs};
use leeward_platform::Nanos;
use parking_lot::Mutex;
use std::sync::Arc;

/// Most lines of a node. Backups ask about further regions.
const MOST_LINES: usize = 1024;
const WORD: usize = size_of::<u64>();

/// The lines of a node.
pub(crate) struct SafeLsnLines {
    fabric: Arc<dyn Fabric>,
    incarnation: Incarnation,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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
    pub(crate) fn new(fabric: Arc<dyn Fabric>, incarnation: Incarnation) -> SafeLsnLines {
        SafeLsnLines { fabric, incarnation, state: Mutex::default() }
    }

    /// Opens a line, unless there are too many, or there is no memory.
    fn open(self: &Arc<SafeLsnLines>, now: Nanos, (region, epoch): (RegionId, Epoch)) -> Option<OpenLine> {
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
pub(super) struct OpenLine {
    lines: Arc<SafeLsnLines>,
    memory: Arc<ReadableMemory>,
    index: usize,
    nonce: u64,
    epoch: Epoch,
    /// When a backup asked last.
    asked: Nanos,
    line: SafeLsnLine,
    /// Its words in the memory.
    stored: [u64; SAFE_LSN_LINE_WORDS],
}

impl OpenLine {
    /// Shows what is acknowledged and what time it is.
    fn show(&mut self, lsn: Lsn, wall: UnixMs) {
        (self.line.lsn, self.line.wall) = (lsn, wall);
        self.store(self.line.words(self.nonce));
    }

    /// Shows nothing until it is shown again.
    pub(super) fn hide(&mut self) {
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

    fn grant(&self, now: Nanos) -> SafeLsnLineGrant {
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

impl Serving {
    /// A backup asks for the right to read the region's line. It is the moment at which the answer leaves.
    pub(crate) fn grant_safe_lsn_line(&mut self, now: Nanos) -> Option<SafeLsnLineGrant> {
        let epoch = self.primary.config().epoch;
        let direct = &mut self.direct_reads;
        if direct.quiesced_in == Some(epoch) || direct.line.as_ref().is_some_and(|line| line.epoch != epoch) {
            return None;
        }
        if direct.line.is_none() {
            direct.line = direct.lines.open(now, (self.region.id(), epoch));
        }
        direct.line.as_mut()?.asked = now;
        self.extend_direct_reads(now);
        self.direct_reads.line.as_ref().map(|line| line.grant(now))
    }

    /// Shows what is acknowledged by now in the region's line.
    pub(super) fn show_safe_lsn(&mut self) {
        if let Some(line) = &mut self.direct_reads.line {
            line.show(self.answers.acknowledged(), self.wall.now());
        }
    }

    /// Extends the region's line to this instant of this node's clock.
    pub(super) fn extend_safe_lsn_line(&mut self, until: Nanos) {
        if let Some(line) = &mut self.direct_reads.line {
            line.line.readable_until = until.0;
            self.show_safe_lsn();
        }
    }

    /// Whether the region's line is open and not wanted, or not right, any more.
    pub(super) fn is_safe_lsn_line_over(&self, now: Nanos) -> bool {
        let epoch = self.primary.config().epoch;
        self.direct_reads.line.as_ref().is_some_and(|line| now - line.asked > UNUSED || line.epoch != epoch)
    }
}

#[cfg(test)]
#[path = "safe_lsn_line_tests.rs"]
mod tests;
