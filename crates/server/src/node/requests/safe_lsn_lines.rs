//! The lines in which primaries show their safe LSNs ([`leeward_format::safe_lsn`]), as this node reads them as a backup.
//!
//! ```text
//!  answer to a question --> granted --read--> NotMapped: a read is posted, once, which maps the memory
//!                              |      '-----> words of two instants: read again
//!                              |      '-----> the line, which counts if it does at the end of the turn
//!                              '--- refused, or another line's by now, or the link goes down: the next read asks
//! ```
//! Invariants:
//! - A line counts by this node's clock after the line was read, and by a clock sample of which `asked` was read before the
//!   question was sent.
//! - Samples from before this node's clock may have stopped count no more.
//!
//! Belongs to the node's thread.

use crate::node::peers::link;
use leeward_fabric::{Fabric, ReadNow, ReadableDescriptor};
use leeward_format::hash_index::ClockSample;
use leeward_format::safe_lsn::{SAFE_LSN_LINE_BYTES, SafeLsnLine, SafeLsnLineGrant};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_replication::backup::PrimarySession;
use std::collections::BTreeMap;

/// How often a line is read in a row whose words are not of one instant.
const TRIES: usize = 3;

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
    /// Whether it counts, now that this node's clock shows `now`.
    pub(super) fn counts(self, now: Nanos) -> bool {
        self.line.counts(now.0, self.sample) || planted(Bug::ReadLineWithoutLease)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Lines {
    granted: BTreeMap<RegionId, Granted>,
    /// Memories for which a read was posted, of servers whose link has been up since.
    posted: BTreeMap<ServerId, ReadableDescriptor>,
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
        self.granted.retain(|_, granted| granted.subject.session.primary != server);
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
        let peer = link::peer(server);
        for _ in 0..TRIES {
            match fabric.read_now(peer, memory, offset, &mut bytes) {
                ReadNow::Copied => {}
                ReadNow::Refused => break,
                ReadNow::NotMapped => {
                    if self.posted.get(&server) != Some(memory) {
                        fabric.read(peer, memory, offset, bytes.len() as u32, link::MAP_OP);
                        self.posted.insert(server, memory.clone());
                    }
                    return None;
                }
            }
            if let Some(line) = SafeLsnLine::read(nonce, &bytes) {
                return Some(Shown { subject, line, sample });
            }
        }
        self.granted.remove(&region);
        None
    }
}
