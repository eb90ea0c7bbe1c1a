//! Writes that have a request id, as a replay of the logs finds them: a server needs them to carry each request out once.

use leeward_format::Lsn;
use leeward_format::record::{Record, RecordKind};
use leeward_format::request::{Effect, RequestId};
use std::collections::VecDeque;

/// Most writes that are found: the newest.
pub const MOST_REQUESTS: usize = 64 << 10;

/// See the module. By default nothing is known of any write.
#[derive(Debug)]
pub struct Requests {
    /// Every write with a request id and a later LSN was found, and none that is in the region was carried out before that
    /// elsewhere.
    pub forgotten: Lsn,
    /// In the order of LSNs.
    pub found: VecDeque<(RequestId, Lsn, Effect)>,
}

impl Requests {
    /// Nothing is known of what was written up to `forgotten`, and nothing was written since.
    pub fn since(forgotten: Lsn) -> Requests {
        Requests { forgotten, found: VecDeque::new() }
    }

    /// The next record.
    pub(super) fn note(&mut self, record: &Record<'_>) {
        if record.kind == RecordKind::Ingest {
            // What follows may have been written elsewhere before, with requests that are not known here.
            self.forgotten = self.forgotten.max(record.last_lsn());
            return;
        }
        let Some(request) = record.request else { return };
        if self.found.len() >= MOST_REQUESTS
            && let Some((_, oldest, _)) = self.found.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.found.push_back((request, record.stamp.lsn, Effect::of(record.kind, record.value)));
    }
}

impl Default for Requests {
    fn default() -> Self {
        Requests::since(Lsn(u64::MAX))
    }
}
