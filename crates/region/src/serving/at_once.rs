//! Reads of a key that memory answers at once, past the queues and the held answers of the other operations.
//!
//! Such an answer may leave before the end of the turn, where the others check the lease last. It shows the key as of an
//! instant at which the request was here already, this node held the lease, and all that it shows was acknowledged. That
//! instant is between call and answer, however late the answer leaves. What the region has got since that reading of the clock
//! is above the acknowledged LSN, and is not shown: only the end of a turn raises that LSN, under the same reading by which
//! [`Serving::release`] checks the lease. Anything else that an operation may have to wait for sends the read the usual way.

use super::Serving;
use super::decide::{Decision, decide};
use super::execute::current;
use crate::client_memory::SMALL_BYTES;
use leeward_engine::{Lookup, Reach};
use leeward_format::op::{Op, OpResult};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};

impl Serving {
    /// The answer to a read of a key, if memory has it and nothing must be waited for. `heard` is a reading of the clock since the
    /// request came.
    pub fn read_at_once(&self, heard: Nanos, op: &Op) -> Option<OpResult> {
        let (Op::Get { key } | Op::GetPair { key, .. }) = op else { return None };
        // A read may fill the hash index. The line with the safe LSN must first show a wall time as late as the answer's:
        // otherwise a backup could still show a pair that this answer says has expired.
        let is_quiet = self.is_active() && !self.direct_reads.has_readers() && !self.region.volume().is_failed();
        let holds_lease = || self.primary.holds_lease(heard) || planted(Bug::SkipLeaseCheck);
        if !(op.check().is_ok() && self.is_open() && is_quiet && self.queues.has_none_before(key) && holds_lease()) {
            return None;
        }
        let found = self.region.get(key, Reach::Memory, &|| self.wall.now()).ok()?;
        let current = match found {
            Lookup::NotInMemory => return None,
            Lookup::Found { value, .. } if value.len() > SMALL_BYTES => return None,
            found => current(found),
        };
        if current.lsn > self.answers.acknowledged() && !planted(Bug::ServeUncommitted) {
            return None;
        }
        let Decision::Answer(answer) = decide(op, current, self.wall.now()) else { return None };
        self.reads_at_once.set(self.reads_at_once.get() + 1);
        self.reshape.note(op);
        Some(answer)
    }
}
