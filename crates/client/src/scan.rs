//! Scans over any number of regions, page by page: of one region after the other or, if keys are partitioned by hash,
//! merged from the answers of all regions. A scan belongs to the thread that consumes it.

use crate::client::{AT_ONCE, Client, mismatch};
use crate::options::ClientError;
use bytes::Bytes;
use leeward_format::merge::{self, Page};
use leeward_format::op::{OpError, OpResult, RangeOp, ScanRange};
use std::collections::VecDeque;
use std::time::Duration;

/// Most entries that one request asks for.
const PAGE_ENTRIES: u32 = 512;

/// Number of regions whose answers fit one message, however long keys and values are: each has about a MiB, plus one
/// value.
const WHOLE_ANSWERS: usize = 2;

/// The keys that a scan covers, and its options. The default is everything, in key order. A bound may be any bytes up
/// to the length of a key, and need not be a key that exists.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// First key, inclusive; empty for the first of all.
    pub start: Bytes,
    /// Key after the last, exclusive; `None` for no bound.
    pub end: Option<Bytes>,
    /// Descending, from the end to the start.
    pub reverse: bool,
    /// At most this many entries; `None` for all.
    pub limit: Option<u64>,
    /// Leave the values out: all are empty.
    pub keys_only: bool,
}

/// Iterator over the pairs of a [`Range`]: keys and values. It fetches 512 pairs, or about a MiB, at a time. After an
/// error it ends. A page shows one instant of its region; later pages see later writes.
#[derive(Debug)]
pub struct Scan {
    client: Client,
    /// The range that is left to fetch; `None` once the scan is complete.
    rest: Option<Range>,
    page: VecDeque<(Bytes, Bytes)>,
    age: Duration,
}

impl Client {
    /// The entries of `range` in order, fetched as they are consumed. Each page shows one instant of its region. If
    /// keys are partitioned by hash, each page asks all regions anew.
    pub fn scan(&self, range: Range) -> Scan {
        let empty = range.limit == Some(0) || range.end.as_ref().is_some_and(|end| *end <= range.start);
        Scan { client: self.clone(), rest: (!empty).then_some(range), page: VecDeque::new(), age: Duration::ZERO }
    }
}

impl Scan {
    /// How stale the pairs so far may be: see [`ClientOptions::at_most_stale`](crate::ClientOptions::at_most_stale).
    pub fn age(&self) -> Duration {
        self.age
    }

    fn fetch(&mut self, mut range: Range) -> Result<(), ClientError> {
        let limit = range.limit.map_or(PAGE_ENTRIES, |limit| limit.min(PAGE_ENTRIES.into()) as u32);
        let (Page { entries, resume }, age) = self.page(&range, limit)?;
        self.age = self.age.max(age);
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

    /// The next page of at most `limit` entries, and how stale they may be.
    fn page(&self, range: &Range, limit: u32) -> Result<(Page, Duration), ClientError> {
        let scan = |limit| {
            RangeOp::Scan(ScanRange {
                start: range.start.clone(),
                end: range.end.clone(),
                reverse: range.reverse,
                limit,
                keys_only: range.keys_only,
            })
        };
        for at_once in [AT_ONCE, WHOLE_ANSWERS] {
            let scan = |regions| scan(merge::share(limit, regions));
            let answers = match self.client.everywhere(at_once, scan) {
                // This many answers do not fit one message, even without entries.
                Err(ClientError::Op(OpError::Invalid(_))) if at_once != WHOLE_ANSWERS => continue,
                answers => answers?,
            };
            let Some(answers) = answers else { break };
            let (answers, ages): (Vec<OpResult>, Vec<u32>) = answers.into_iter().map(OpResult::fresh).unzip();
            let parts = answers.into_iter().map(part).collect::<Result<Vec<Page>, ClientError>>()?;
            let page = merge::page(parts, limit as usize, range.reverse);
            // The entries that did not fit may be the next ones: without any entry, ask fewer regions at a time.
            if page.resume.is_none() || !page.entries.is_empty() || at_once == WHOLE_ANSWERS {
                let age_ms = ages.into_iter().max().unwrap_or(0);
                return Ok((page, Duration::from_millis(age_ms.into())));
            }
        }
        let (answer, age) = self.client.aged(scan(limit).into())?;
        Ok((part(answer)?, age))
    }
}

fn part(answer: OpResult) -> Result<Page, ClientError> {
    match answer {
        OpResult::Entries { entries, resume } => Ok(Page { entries, resume }),
        other => Err(mismatch(other)),
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
