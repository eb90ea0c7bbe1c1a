//! The lines in which primaries show their safe LSNs ([`leeward_format::safe_lsn`]), as this node reads them as a backup.
//!
//! ```text
//!  answer to a question --> granted --read--> NotMapped: a read is posted, once, which maps the memory
//!                                     '-----> hidden, ended, or words of two instants: read again, then ask
//!                                     '-----> the line, which counts if it does at the end of the turn
//! ```
//! A grant is replaced by the next one, and ends with the link.
//!
//! Invariants:
//! - A line counts by this node's clock after the line was read, and by a clock sample of which `asked` was read before the
//!   question was sent.
//! - Samples from before this node's clock may have stopped count no more.
//!
//! Belongs to the node's thread.

use crate::node::links;
use leeward_fabric::{Fabric, ReadNow, ReadableDescriptor};
use leeward_format::hash_index::ClockSample;
use leeward_format::safe_lsn::{SAFE_LSN_LINE_BYTES, SafeLsnLine, SafeLsnLineGrant};
use leeward_format::{Epoch, RegionId, ServerId, UnixMs};
use leeward_platform::Nanos;
use leeward_replication::backup::PrimarySession;
use std::collections::BTreeMap;

/// How often a line is read in a row whose words are not of one instant.
const TRIES: usize = 3;
/// How long no line of a server is wanted after its memory could not be mapped.
const REST: Nanos = Nanos::from_secs(10);
/// A line whose wall time differs by more from this node's does not count: its primary was stopped, or its clock is another
/// one. Pairs expire by it.
const MOST_WALL_LAG_MS: u64 = 100;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) session: PrimarySession,
    pub(super) epoch: Epoch,
}

/// A line that this node may read.
struct Granted {
    subject: Subject,
    memory: ReadableDescriptor,
    offset: u64,
    nonce: u64,
    sample: ClockSample,
}

/// A line that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) subject: Subject,
    pub(super) line: SafeLsnLine,
    sample: ClockSample,
}

impl Shown {
    /// Whether it counts, now that this node's clocks show `now` and, in this turn, `wall`.
    pub(super) fn counts(self, now: Nanos, wall: UnixMs) -> bool {
        let is_recent = wall.0.abs_diff(self.line.wall.0) <= MOST_WALL_LAG_MS;
        is_recent && self.sample.is_readable(now.0, self.line.readable_until)
    }
}

/// The lines of all primaries that this backup reads.
#[derive(Default)]
pub(super) struct Lines {
    granted: BTreeMap<RegionId, Granted>,
    /// Memories for which a read was posted, of servers whose link has been up since.
    posted: BTreeMap<ServerId, ReadableDescriptor>,
    /// Servers that refused one, and when.
    refused: BTreeMap<ServerId, Nanos>,
}

impl Lines {
    /// A primary has answered a question with the right to read its line of a region.
    pub(super) fn granted(&mut self, region: RegionId, subject: Subject, asked: Nanos, grant: SafeLsnLineGrant) {
        let SafeLsnLineGrant { memory, offset, nonce, clock } = grant;
        let sample = ClockSample { asked: asked.0, answered: clock };
        let memory = ReadableDescriptor(memory.into());
        self.granted.insert(region, Granted { subject, memory, offset, nonce, sample });
    }

    /// The link to a server goes up or down. What it granted belongs to the process and the connection of before.
    pub(super) fn link_changed(&mut self, server: ServerId) {
        self.posted.remove(&server);
        self.refused.remove(&server);
        self.granted.retain(|_, granted| granted.subject.session.primary != server);
    }

    /// A server refuses that its memory is mapped.
    pub(super) fn refused(&mut self, now: Nanos, server: ServerId) {
        self.link_changed(server);
        self.refused.insert(server, now);
    }

    /// Whether to ask a server for the right to read a line.
    pub(super) fn are_wanted(&self, now: Nanos, server: ServerId) -> bool {
        self.refused.get(&server).is_none_or(|at| now - *at > REST)
    }

    /// This node does not follow the region.
    pub(super) fn forget(&mut self, region: RegionId) {
        self.granted.remove(&region);
    }

    /// This node's clock may have stopped.
    pub(super) fn doubt_clock(&mut self) {
        self.granted.clear();
    }

    /// Reads the line of a region.
    pub(super) fn read(&mut self, fabric: &dyn Fabric, region: RegionId) -> Option<Shown> {
        let granted = self.granted.get(&region)?;
        let &Granted { subject, ref memory, offset, nonce, sample } = granted;
        let (server, mut bytes) = (subject.session.primary, [0; SAFE_LSN_LINE_BYTES]);
        let peer = links::peer(server);
        for _ in 0..TRIES {
            match fabric.read_now(peer, memory, offset, &mut bytes) {
                ReadNow::Copied => {}
                ReadNow::Refused => return None,
                ReadNow::NotMapped => {
                    if self.posted.get(&server) != Some(memory) {
                        fabric.read(peer, memory, offset, bytes.len() as u32, links::MAP_OP);
                        self.posted.insert(server, memory.clone());
                    }
                    return None;
                }
            }
            if let Some(line) = SafeLsnLine::read(nonce, &bytes) {
                return Some(Shown { subject, line, sample });
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "safe_lsn_lines_tests.rs"]
mod tests;
