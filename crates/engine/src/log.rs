//! A region's logs: tails in memory, records on the device, and the replay of both in LSN order.
//!
//! A log is a sequence of segments. The newest are *tails*: complete in memory, written to the device behind the
//! writer's back, and dropped from memory once they are durable wherever they must be.

mod fetch;
mod reader;
mod replay;
mod tail;

pub use fetch::{Fetched, Wanted};
pub use reader::{LogReader, ValueAt};
pub(crate) use replay::{End, Prefix, Replay, Replayed, find_prefix, segment_end};
pub use tail::Tail;
pub(crate) use tail::{OpenTail, Tails};

use leeward_format::DecodeError;
use leeward_format::record::{Record, RecordSeed, read_record, read_record_unchecked};
use leeward_platform::{Bug, planted};

/// The record at the start of `bytes`; `None` at the end of the records.
fn decode_record(seed: RecordSeed, bytes: &[u8]) -> Result<Option<Record<'_>>, DecodeError> {
    if planted(Bug::SkipChecksum) { read_record_unchecked(bytes) } else { read_record(seed, bytes) }
}
