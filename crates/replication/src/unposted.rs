//! The records that a mirror has not posted yet, in LSN order over both logs (Anthus 3.1.2.1). Reads only the bytes of
//! the primary's own tails.

use crate::tail::TailView;
use leeward_format::record::{FLAG_BATCH_CONTINUES, read_record_unchecked};
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_format::{LogKind, Lsn};
use std::iter;

/// A record of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unposted {
    pub(crate) log: LogKind,
    /// Ordinal of its tail.
    pub(crate) index: u64,
    /// Where in the tail it ends.
    pub(crate) end: usize,
    /// First LSN that it covers.
    pub(crate) first: Lsn,
    /// Last LSN that it covers.
    pub(crate) last: Lsn,
    /// The next record was appended with it, as one: replay takes both or neither.
    pub(crate) continues: bool,
}

/// The records after the posted bytes of each tail. `tails` gives each tail with the number of its posted bytes, oldest
/// first within a log.
pub(crate) fn records<'a>(tails: &'a [(TailView<'a>, usize)]) -> impl Iterator<Item = Unposted> + 'a {
    let of = |log: LogKind| tails.iter().filter(move |(view, _)| view.log == log).flat_map(of_tail).peekable();
    let [mut one, mut other] = LogKind::APPENDED.map(of);
    iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if first.first < second.first => one.next(),
        (_, Some(_)) => other.next(),
        (_, None) => one.next(),
    })
}

fn of_tail<'a>((view, posted): &'a (TailView<'a>, usize)) -> impl Iterator<Item = Unposted> + 'a {
    let TailView { log, index, bytes, .. } = *view;
    // The header goes with the first record.
    let mut at = (*posted).max(LOG_HEADER_BYTES);
    iter::from_fn(move || {
        let rest = bytes.get(at..)?;
        let record = read_record_unchecked(rest).expect("a tail holds whole records")?;
        at += record.bytes();
        let continues = record.flags & FLAG_BATCH_CONTINUES != 0;
        Some(Unposted { log, index, end: at, first: record.stamp.lsn, last: record.last_lsn(), continues })
    })
}
