//! Writes with a request id that a replay of the logs found. A server needs them to execute each request once.

use leeward_format::Lsn;
use leeward_format::record::{Record, RecordKind};
use leeward_format::request::{Effect, RequestId};
use std::collections::VecDeque;

/// Most writes that are kept: the newest.
pub const MOST_REQUESTS: usize = 64 << 10;

/// The request ids of replayed writes. The default knows of no write.
#[derive(Debug)]
pub struct Requests {
    /// All writes with a request id and a higher LSN are in `found`. Moreover, none of the region's requests with a
    /// higher LSN was executed elsewhere before.
    pub forgotten: Lsn,
    /// In LSN order.
    pub found: VecDeque<(RequestId, Lsn, Effect)>,
}

impl Requests {
    /// No request up to `forgotten` is known, and nothing was written since.
    pub fn since(forgotten: Lsn) -> Requests {
        Requests { forgotten, found: VecDeque::new() }
    }

    /// Notes the next record.
    pub(super) fn note(&mut self, record: &Record<'_>) {
        if record.kind == RecordKind::Ingest {
            // Later records may have been written elsewhere before, with requests that are not known here.
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
