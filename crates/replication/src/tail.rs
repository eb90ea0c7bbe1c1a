//! A log tail of the primary, as mirroring reads it. Plain data.

use leeward_format::{LogKind, Lsn, SegmentId, SegmentNo};

/// What mirroring needs to know of a log tail of the primary.
#[derive(Clone, Copy, Debug)]
pub struct TailView<'a> {
    /// A log that is appended to: recovery or large.
    pub log: LogKind,
    /// Ordinal among the tails of its log in this term.
    pub index: u64,
    /// The same on every replica.
    pub id: SegmentId,
    /// Its number on the primary's volume.
    pub segment: SegmentNo,
    /// Its bytes so far, header included.
    pub bytes: &'a [u8],
    /// Last LSN in it, once nothing more will be appended.
    pub sealed: Option<Lsn>,
}
