//! A region's logs: tails in memory, records on the device, and the replay of both in LSN order.
//!
//! A log is a sequence of segments. The newest are *tails*: complete in memory, written to the device in the
//! background, and dropped from memory once they are durable on every member that must have them.

mod fetch;
mod reader;
mod replay;
mod tail;

pub(crate) use fetch::how_many;
pub(crate) use fetch::{Fetched, WantedRecord};
pub(crate) use reader::{LogReader, ValueAt, Values};
pub(crate) use reader::{LogSegment, LogSegments};
pub(crate) use replay::{Ends, Overlays, Prefix, Replay, Replayed, find_prefix, log_of, segment_end};
pub use tail::Tail;
pub(crate) use tail::{OpenTail, Prepared, Tails};

use leeward_format::record::{Record, RecordSeed, read_record, read_record_unchecked};
use leeward_format::segment::LogHeader;
use leeward_format::{DecodeError, LogKind, RegionId, SegmentId};
use leeward_platform::{Bug, planted};

/// The header at the start of a segment's `bytes`, which must be that of segment `id` of a log of `region`.
pub(crate) fn read_header(
    bytes: &[u8],
    region: RegionId,
    log: LogKind,
    id: SegmentId,
) -> Result<LogHeader, DecodeError> {
    let header = LogHeader::decode(bytes)?;
    if (header.region, header.log, header.id) != (region, log, id) {
        let detail = format!("holds segment {} of region {}, not {id}", header.id, header.region);
        return Err(DecodeError::invalid("log segment header", detail));
    }
    Ok(header)
}

/// The record at the start of `bytes`; `None` at the end of the records.
fn decode_record(seed: RecordSeed, bytes: &[u8]) -> Result<Option<Record<'_>>, DecodeError> {
    if planted(Bug::SkipChecksum) { read_record_unchecked(bytes) } else { read_record(seed, bytes) }
}
