//! Commands over ranges of keys: `KRANGE`, `KPREFIX`, `KEYS`, `SCAN`.
//!
//! A scan goes region by region: each operation answers up to the end of a region, or less, and says where to continue.
//! Where keys are partitioned by hash, a scan goes page by page. Each page is merged from the answers of all regions to
//! one operation. A region is seen at one instant; different regions and pages may be seen at different instants.

use super::session::Session;
use super::work::{Work, most_reply_bytes, too_long, unexpected};
use super::{Context, check_op, error_reply, glob};
use crate::resp::Reply;
use bytes::Bytes;
use leeward_format::cluster::GroupConfig;
use leeward_format::merge::{self, Page};
use leeward_format::op::{Op, OpError, OpResult, RangeOp, ScanRange, check_range};
use leeward_format::routing::{Routing, Spread};
use leeward_format::table::TableName;
use leeward_format::user::after_prefix;
use leeward_format::{MAX_KEY_BYTES, RegionId};
use std::sync::Arc;

/// Most entries asked for in one operation.
const STEP_ENTRIES: u64 = 1024;
/// Bytes of an entry besides those of its key and value.
const ENTRY_BYTES: usize = size_of::<(Bytes, Bytes)>();
/// The `COUNT` of a `SCAN` without one.
const DEFAULT_COUNT: u64 = 10;

/// A scan under way.
pub(super) struct ScanWork {
    start: Bytes,
    end: Option<Bytes>,
    reverse: bool,
    shape: Shape,
    /// Entries still wanted (before the pattern is applied).
    remaining: u64,
    pattern: Option<Bytes>,
    found: Vec<(Bytes, Bytes)>,
    bytes: usize,
    /// Entries of the page that are still to be matched against the pattern, and where the scan continues after them.
    unmatched: Option<Unmatched>,
    /// The regions that each page is merged from; none where an operation finds its region by its bound.
    regions: Vec<RegionId>,
    /// Only regions whose primary this node is: see [`Session::is_of_node`].
    of_node: bool,
    /// Operations of this page that were submitted, those that were answered, and the page so far.
    submitted: usize,
    answered: usize,
    page: Option<Page>,
}

/// The part of a page that is left.
struct Unmatched {
    entries: std::vec::IntoIter<(Bytes, Bytes)>,
    /// How far its first entry is matched.
    first: glob::Match,
    resume: Option<Bytes>,
}

/// The form of the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Entries,
    Keys,
    /// Keys, and the cursor to continue from in this table.
    Cursor(TableName),
}

impl ScanWork {
    fn start(mut self, session: &Session, context: &Context) -> Work {
        let mut is_empty = self.remaining == 0 || self.end.as_ref().is_some_and(|end| *end <= self.start);
        match context.routes.spread(&session.terms.table) {
            Spread::InOrder => {}
            Spread::All(mut regions) => {
                if self.of_node {
                    let is_of_node = session.is_of_node(context);
                    regions.retain(|id| context.routes.region(*id).is_some_and(|group| is_of_node(group)));
                }
                is_empty |= regions.is_empty();
                self.regions = regions;
            }
            Spread::Unknown => return Work::Ready(context.no_regions(&session.terms.table)),
        }
        match check_op(&self.op(0)) {
            Ok(()) if is_empty => Work::nothing(self.op(0), self.take_reply()),
            Ok(()) => Work::Scan(Box::new(self)),
            Err(error) => Work::Ready(error_reply(&error)),
        }
    }

    /// Most entries of this page.
    fn limit(&self) -> u32 {
        self.remaining.min(STEP_ENTRIES) as u32
    }

    /// The operation at this position among those of a page.
    fn op(&self, position: usize) -> Op {
        let scan = RangeOp::Scan(ScanRange {
            start: self.start.clone(),
            end: self.end.clone(),
            reverse: self.reverse,
            limit: merge::share(self.limit(), self.regions.len()),
            keys_only: self.shape != Shape::Entries,
        });
        match self.regions.get(position) {
            Some(region) => scan.within(*region),
            None => scan.into(),
        }
    }

    /// The operation that it begins with.
    pub(super) fn first_op(&self) -> Op {
        self.op(0)
    }

    pub(super) fn has_op(&self) -> bool {
        self.unmatched.is_none() && self.submitted < self.regions.len().max(1)
    }

    /// The next operation of this page, and its position.
    pub(super) fn take_op(&mut self) -> Option<(usize, Op)> {
        let position = self.submitted;
        self.has_op().then(|| {
            self.submitted += 1;
            (position, self.op(position))
        })
    }

    pub(super) fn answered(&mut self, result: OpResult, context: &mut Context) -> Option<Reply> {
        let part = match result {
            OpResult::Entries { entries, resume } => Page { entries, resume },
            other => return Some(unexpected(&other)),
        };
        self.answered += 1;
        let most = most_reply_bytes(context);
        // Of the answers of several regions, no more is kept than a page.
        let page = match std::mem::take(&mut self.page) {
            None => part,
            Some(page) => merge::page(vec![page, part], self.limit() as usize, self.reverse),
        };
        if self.answered < self.regions.len().max(1) {
            let bytes_of = |(key, value): &(Bytes, Bytes)| key.len() + value.len();
            let held = page.entries.iter().map(bytes_of).sum::<usize>();
            self.page = Some(page);
            return (held > most).then(|| too_long(most));
        }
        (self.submitted, self.answered) = (0, 0);
        let Page { entries, resume } = page;
        self.remaining = self.remaining.saturating_sub(entries.len() as u64);
        self.unmatched = Some(Unmatched { entries: entries.into_iter(), first: glob::Match::default(), resume });
        self.run_next(context)
    }

    /// Whether entries of the page are still to be matched.
    pub(super) fn is_unfinished(&self) -> bool {
        self.unmatched.is_some()
    }

    /// Matches entries as far as the quota goes. After the last of them, decides what comes next.
    pub(super) fn run_next(&mut self, context: &mut Context) -> Option<Reply> {
        let unmatched = self.unmatched.as_mut()?;
        while let Some((key, _)) = unmatched.entries.as_slice().first() {
            let is_wanted = match &self.pattern {
                None => true,
                Some(pattern) => unmatched.first.run(pattern, key, &mut context.quota)?,
            };
            unmatched.first = glob::Match::default();
            if let Some((key, value)) = unmatched.entries.next().filter(|_| is_wanted) {
                self.bytes += key.len() + value.len();
                // Small keys and values share memory with others: the few that match would keep all of it.
                self.found.push(match self.pattern {
                    Some(_) => (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)),
                    None => (key, value),
                });
            }
        }
        let resume = self.unmatched.take().and_then(|unmatched| unmatched.resume);
        let most = most_reply_bytes(context);
        if self.bytes > most || self.memory_bytes() > context.shared.memory.most_at_once() {
            return Some(too_long(most));
        }
        self.end_page(resume, context)
    }

    /// Ends a page that was matched: the scan continues at `resume`, or is answered.
    fn end_page(&mut self, resume: Option<Bytes>, context: &mut Context) -> Option<Reply> {
        let resume = match resume {
            Some(next) if self.reverse && next <= self.start => None,
            Some(next) if !self.reverse && self.end.as_ref().is_some_and(|end| next >= *end) => None,
            other => other,
        };
        let stuck = resume.as_ref().is_some_and(|next| match self.reverse {
            true => self.end.as_ref().is_some_and(|end| next >= end),
            false => *next <= self.start,
        });
        if stuck {
            let reason = "the primary's answer to a scan does not advance".into();
            return Some(error_reply(&OpError::Unavailable(reason)));
        }
        match (resume, &self.shape) {
            (Some(next), _) if self.remaining > 0 => {
                if self.reverse {
                    self.end = Some(next);
                } else {
                    self.start = next;
                }
                None
            }
            (Some(next), Shape::Cursor(table)) => {
                let cursor = context.shared.cursors.open(table, &next);
                Some(cursor_reply(cursor, std::mem::take(&mut self.found)))
            }
            _ => Some(self.take_reply()),
        }
    }

    /// Bytes of the entries that it holds.
    pub(super) fn memory_bytes(&self) -> usize {
        let page = self
            .page
            .as_ref()
            .map_or(0, |page| page.entries.iter().map(|(key, value)| key.len() + value.len() + ENTRY_BYTES).sum());
        let unmatched = self.unmatched.as_ref().map_or(0, |unmatched| {
            unmatched.entries.as_slice().iter().map(|(key, value)| key.len() + value.len() + ENTRY_BYTES).sum()
        });
        self.bytes + self.found.len() * ENTRY_BYTES + page + unmatched
    }

    fn take_reply(&mut self) -> Reply {
        let found = std::mem::take(&mut self.found);
        match self.shape {
            Shape::Entries => Reply::Entries(found),
            Shape::Keys => Reply::Keys(found.into_iter().map(|(key, _)| key).collect()),
            Shape::Cursor(_) => cursor_reply(0, found),
        }
    }
}

fn cursor_reply(cursor: u64, found: Vec<(Bytes, Bytes)>) -> Reply {
    let keys = found.into_iter().map(|(key, _)| key).collect();
    Reply::Array(vec![Reply::text(cursor.to_string()), Reply::Keys(keys)])
}

fn range(start: Bytes, end: Option<Bytes>, shape: Shape) -> ScanWork {
    ScanWork {
        start,
        end,
        reverse: false,
        shape,
        remaining: u64::MAX,
        pattern: None,
        found: Vec::new(),
        bytes: 0,
        unmatched: None,
        regions: Vec::new(),
        of_node: false,
        submitted: 0,
        answered: 0,
        page: None,
    }
}

/// The range of the keys that begin with `prefix`.
fn with_prefix(prefix: &[u8], shape: Shape) -> ScanWork {
    match prefix.get(..=MAX_KEY_BYTES) {
        // No key is that long: an empty range.
        Some(start) => range(Bytes::copy_from_slice(start), Some(Bytes::copy_from_slice(start)), shape),
        None => range(Bytes::copy_from_slice(prefix), after_prefix(prefix), shape),
    }
}

/// `KRANGE start end [REV] [LIMIT n] [KEYS]`
pub(super) fn krange(args: &[Bytes], session: &Session, context: &Context) -> Work {
    let (start, end) = bounds(args);
    options(range(start, end, Shape::Entries), &args[3..], session, context)
}

/// The bounds that `KRANGE` and `KDELRANGE` begin with.
fn bounds(args: &[Bytes]) -> (Bytes, Option<Bytes>) {
    let start = if &args[1][..] == b"-" { Bytes::new() } else { args[1].clone() };
    (start, Some(args[2].clone()).filter(|end| !end.is_empty() && &end[..] != b"+"))
}

/// `KDELRANGE start end`: an operation for each region that it touches.
pub(super) fn kdelrange(args: &[Bytes], session: &Session, context: &Context) -> Work {
    let (start, end) = bounds(args);
    if let Err(error) = check_range(&start, end.as_deref()) {
        return Work::Ready(error_reply(&error));
    }
    let is_touched = |group: &&Arc<GroupConfig>| {
        end.as_ref().is_none_or(|end| group.start < *end) && group.end.as_ref().is_none_or(|edge| start < *edge)
    };
    let part = |group: &Arc<GroupConfig>| {
        let edge = group.end.as_ref().filter(|edge| end.as_ref().is_none_or(|end| *edge < end));
        Op::DeleteRange { start: start.clone().max(group.start.clone()), end: edge.or(end.as_ref()).cloned() }
    };
    let ops: Vec<Op> = match context.routes.spread(&session.terms.table) {
        Spread::InOrder => context.routes.regions_of(&session.terms.table).filter(is_touched).map(part).collect(),
        Spread::All(regions) => {
            let all = RangeOp::DeleteRange { start: start.clone(), end: end.clone() };
            regions.into_iter().map(|region| all.clone().within(region)).collect()
        }
        Spread::Unknown => Vec::new(),
    };
    if ops.is_empty() {
        return Work::Ready(context.no_regions(&session.terms.table));
    }
    Work::many(ops, |results| {
        let is_complete = |result: &OpResult| matches!(result, OpResult::RangeDeleted { resume: None });
        match results.iter().find(|result| !is_complete(result)) {
            None => Reply::OK,
            Some(OpResult::RangeDeleted { .. }) => Reply::Error(
                "LOADING the regions of the table have changed; the range is deleted in part: try again".into(),
            ),
            Some(other) => unexpected(other),
        }
    })
}

/// `KPREFIX prefix [REV] [LIMIT n] [KEYS]`
pub(super) fn kprefix(args: &[Bytes], session: &Session, context: &Context) -> Work {
    options(with_prefix(&args[1], Shape::Entries), &args[2..], session, context)
}

fn options(mut scan: ScanWork, mut options: &[Bytes], session: &Session, context: &Context) -> Work {
    while let Some((option, rest)) = options.split_first() {
        options = rest;
        if option.eq_ignore_ascii_case(b"REV") {
            scan.reverse = true;
        } else if option.eq_ignore_ascii_case(b"KEYS") {
            scan.shape = Shape::Keys;
        } else if option.eq_ignore_ascii_case(b"LIMIT") && !rest.is_empty() {
            let Some(limit) = crate::resp::parse_integer(&rest[0]).and_then(|limit| u64::try_from(limit).ok()) else {
                return Work::Ready(Reply::err("LIMIT must be an integer of at least 0"));
            };
            scan.remaining = limit;
            options = &rest[1..];
        } else {
            return Work::Ready(Reply::err("syntax error"));
        }
    }
    scan.start(session, context)
}

/// `KEYS pattern`
pub(super) fn keys(args: &[Bytes], session: &Session, context: &Context) -> Work {
    if args[1].len() > glob::MAX_PATTERN_BYTES {
        return Work::Ready(Reply::err(glob::too_long()));
    }
    let mut scan = with_prefix(glob::literal_prefix(&args[1]), Shape::Keys);
    (scan.pattern, scan.of_node) = (Some(args[1].clone()), true);
    scan.start(session, context)
}

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`
pub(super) fn scan(args: &[Bytes], session: &Session, context: &mut Context) -> Work {
    let Some(cursor) = std::str::from_utf8(&args[1]).ok().and_then(|text| text.parse::<u64>().ok()) else {
        return Work::Ready(Reply::err("invalid cursor"));
    };
    let (mut pattern, mut count, mut has_type) = (None, DEFAULT_COUNT, true);
    for option in args[2..].chunks(2) {
        let [name, value] = option else { return Work::Ready(Reply::err("syntax error")) };
        if name.eq_ignore_ascii_case(b"MATCH") {
            if value.len() > glob::MAX_PATTERN_BYTES {
                return Work::Ready(Reply::err(glob::too_long()));
            }
            pattern = Some(value.clone());
        } else if name.eq_ignore_ascii_case(b"TYPE") {
            has_type = value.eq_ignore_ascii_case(b"string");
        } else if name.eq_ignore_ascii_case(b"COUNT") {
            match crate::resp::parse_integer(value) {
                None => return Work::Ready(Reply::err("value is not an integer or out of range")),
                Some(wanted) if wanted < 1 => return Work::Ready(Reply::err("syntax error")),
                Some(wanted) => count = wanted as u64,
            }
        } else {
            return Work::Ready(Reply::err("syntax error"));
        }
    }
    let shape = Shape::Cursor(session.terms.table.clone());
    let mut scan = with_prefix(pattern.as_ref().map_or(b"", |pattern| glob::literal_prefix(pattern)), shape);
    // A user that may not scan the range is told so, before anything depends on a cursor, which may be another user's.
    let first = scan.first_op();
    let is_permitted = session.identity.may(&session.terms.table, &first.need(), context.routes).is_ok();
    if cursor != 0 && is_permitted {
        match context.shared.cursors.key(&session.terms.table, cursor) {
            Some(key) => scan.start = scan.start.max(key),
            None => {
                return Work::Ready(Reply::err(
                    "this cursor is unknown to this node, or of another table (cursors end when the node restarts): start \
                     again at 0",
                ));
            }
        }
    }
    scan.remaining = if has_type { count } else { 0 };
    (scan.pattern, scan.of_node) = (pattern, true);
    scan.start(session, context)
}
