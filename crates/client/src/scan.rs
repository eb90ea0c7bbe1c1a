//! Scans over any number of regions, page by page. Belongs to the thread that consumes it.

use crate::client::{Client, mismatch};
use crate::options::ClientError;
use bytes::Bytes;
use leeward_format::op::{Op, OpResult};
use std::collections::VecDeque;
use std::time::Duration;

/// Entries asked for by one request.
const PAGE_ENTRIES: u32 = 512;

/// What to scan. The default is everything, in key order.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// First key, inclusive; empty for the first of all.
    pub start: Bytes,
    /// Key after the last, exclusive; `None` for no bound.
    pub end: Option<Bytes>,
    /// From the end down to the start.
    pub reverse: bool,
    /// At most this many entries; `None` for all.
    pub limit: Option<u64>,
    /// Leave the values out.
    pub keys_only: bool,
}

/// Iterator over the entries of a [`Range`]. After an error it ends.
#[derive(Debug)]
pub struct Scan {
    client: Client,
    /// What is left to be fetched; `None` once it is complete.
    rest: Option<Range>,
    page: VecDeque<(Bytes, Bytes)>,
    age: Duration,
}

impl Scan {
    pub(crate) fn new(client: Client, range: Range) -> Scan {
        let empty = range.limit == Some(0) || range.end.as_ref().is_some_and(|end| *end <= range.start);
        Scan { client, rest: (!empty).then_some(range), page: VecDeque::new(), age: Duration::ZERO }
    }

    /// How stale what has come so far may be: see [`ClientOptions::at_most_stale`](crate::ClientOptions::at_most_stale).
    pub fn age(&self) -> Duration {
        self.age
    }

    fn fetch(&mut self, mut range: Range) -> Result<(), ClientError> {
        let limit = range.limit.map_or(PAGE_ENTRIES, |limit| limit.min(PAGE_ENTRIES.into()) as u32);
        let op = Op::Scan {
            start: range.start.clone(),
            end: range.end.clone(),
            reverse: range.reverse,
            limit,
            keys_only: range.keys_only,
        };
        let (result, age) = self.client.aged(op)?;
        self.age = self.age.max(age);
        let (entries, resume) = match result {
            OpResult::Entries { entries, resume } => (entries, resume),
            other => return Err(mismatch(other)),
        };
        if let Some(left) = &mut range.limit {
            *left = left.saturating_sub(entries.len() as u64);
        }
        self.page.extend(entries);
        if let Some(resume) = resume.filter(|_| range.limit != Some(0)) {
            if range.reverse {
                range.end = Some(resume);
            } else {
                range.start = resume;
            }
            self.rest = Some(range);
        }
        Ok(())
    }
}

impl Iterator for Scan {
    type Item = Result<(Bytes, Bytes), ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.page.is_empty() {
            let range = self.rest.take()?;
            if let Err(error) = self.fetch(range) {
                return Some(Err(error));
            }
        }
        self.page.pop_front().map(Ok)
    }
}
