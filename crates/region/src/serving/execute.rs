//! Operations on a region that this node serves: from the operation to an answer that is held until it may leave.
//!
//! An operation that memory can answer is answered at once. A key that must be looked up on the device is locked
//! meanwhile, so that a conditional write decides on the value that its key has when it is written.

use super::Serving;
use super::decide::{Current, Decision, decide};
use super::for_memory::held;
use super::queues::MOST_WAITING;
use crate::client_memory::SMALL_BYTES;
use crate::dedup::Known;
use crate::job::{Lookups, OperationDone, Outcome};
use crate::request::{Pending, ReplyTo};
use bytes::Bytes;
use leeward_engine::{AppendError, Appended, Approximation, Error, Lookup, Reach, ScanBounds, Write};
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{Op, OpError, OpResult, ScanRange};
use leeward_format::partition::Partition;
use leeward_format::record::RecordKind;
use leeward_format::request::{Effect, RequestId};
use leeward_format::{Lsn, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::HashSet;
use std::sync::Arc;

/// Most entries, and most bytes of keys and values, that one scan operation answers with.
const SCAN_ENTRIES: u32 = 1_000;
const SCAN_BYTES: usize = 1 << 20;
/// Most keys that one job looks up.
const LOOKUPS: usize = 64;

/// Why a write was not appended.
enum NotAppended {
    /// There is no room yet. `l0_full`: L0 lacks it.
    NoRoom { l0_full: bool },
    /// Nothing was written, and waiting will not help.
    Refused(OpError),
}

/// A first key, and the one after the last.
pub type KeyBounds = (Bytes, Option<Bytes>);

impl Serving {
    /// The keys that may be its own: from the first up to the other. Where they are partitioned by hash, any key may be.
    pub fn key_bounds(&self) -> KeyBounds {
        key_bounds(self.primary.config(), self.primary.options().partition)
    }

    /// Executes an operation; its answer is held.
    pub(crate) fn execute(&mut self, now: Nanos, pending: Pending) {
        assert!(self.is_open(), "earlier operations wait elsewhere");
        let (to, is_write) = (pending.to, pending.op.is_write());
        *(if is_write { &mut self.counters.writes } else { &mut self.counters.reads }) += 1;
        self.reshape.note(&pending.op);
        if self.queues.behind.is_full() || is_write && self.queues.stalled.is_full() {
            let error = if is_write { self.why_no_room() } else { OpError::Overloaded(self.id()) };
            return self.refuse(to, error);
        }
        if !self.is_active() {
            return self.queues.behind.push(pending.since, pending);
        }
        if is_write {
            if let Some(failure) = self.region.volume().failure() {
                let error = OpError::Unavailable(failure.to_owned());
                return self.refuse(to, error);
            }
            if let Some(error) = self.lacks_members() {
                return self.refuse(to, error);
            }
        }
        if matches!(pending.op, Op::DeleteRange { .. }) {
            self.queues.behind.push(pending.since, pending);
            return self.run_next(now);
        }
        if !self.queues.behind.is_empty() && pending.op.key().is_some() {
            return self.queues.behind.push(pending.since, pending);
        }
        self.queue_or_start(now, pending);
    }

    /// Why no write begins or is acknowledged, where fewer members are in sync than the table asks for.
    pub(super) fn lacks_members(&self) -> Option<OpError> {
        let (in_sync, needed) = self.primary.in_sync();
        (in_sync < needed).then_some(OpError::NotEnoughReplicas { region: self.id(), in_sync, needed })
    }

    /// Appends the one write that an operation comes to. Checks here what may have changed while the operation waited.
    fn append(&mut self, write: Write<'_>) -> Result<Appended, NotAppended> {
        if let Some(error) = self.lacks_members().filter(|_| !planted(Bug::AcknowledgeBelowMinInSync)) {
            return Err(NotAppended::Refused(error));
        }
        let makes_room = write.makes_room();
        self.region.append(&[write]).map_err(|error| match error {
            AppendError::TailBusy(_) => NotAppended::NoRoom { l0_full: false },
            // Compactions give some back.
            AppendError::Engine(Error::NoSpace { .. }) if makes_room => NotAppended::NoRoom { l0_full: false },
            AppendError::L0Full => NotAppended::NoRoom { l0_full: true },
            AppendError::Engine(error @ Error::Invalid(_)) => NotAppended::Refused(OpError::Invalid(error.to_string())),
            AppendError::Engine(error) => NotAppended::Refused(OpError::Unavailable(error.to_string())),
        })
    }

    /// An operation on a key queues behind those on the same key.
    fn queue_or_start(&mut self, now: Nanos, pending: Pending) {
        match pending.op.key().and_then(|key| self.queues.locked.get_mut(key)) {
            Some(queue) if queue.is_full() => {
                let error = if pending.op.is_write() { self.why_no_room() } else { OpError::Overloaded(self.id()) };
                self.refuse(pending.to, error);
            }
            Some(queue) => queue.push(pending.since, pending),
            None => self.start(now, pending),
        }
    }

    /// Executes the deletes of ranges that wait, and the operations behind them, as far as nothing is in their way.
    pub(crate) fn run_next(&mut self, now: Nanos) {
        if !self.is_active() {
            return self.serve_reads_while_proposed(now);
        }
        while let Some(pending) = self.queues.behind.pop() {
            let Op::DeleteRange { start, end } = &pending.op else {
                self.queue_or_start(now, pending);
                continue;
            };
            let is_inside = |key: &Bytes| key >= start && end.as_ref().is_none_or(|end| key < end);
            if self.queues.locked.keys().any(is_inside) || !self.delete_range(now, &pending) {
                return self.queues.behind.put_back(pending.since, pending);
            }
        }
    }

    /// Executes reads that have queued, except those behind a write of their key: that write may still be executed. A
    /// read stays behind a delete of a range. A read of many keys stays behind any write.
    fn serve_reads_while_proposed(&mut self, now: Nanos) {
        if !self.reshape.is_alone() || !self.is_overdue(now) {
            return;
        }
        let (mut written, mut is_blocked) = (HashSet::new(), false);
        for pending in self.queues.behind.take() {
            let must_wait = match pending.op.key() {
                _ if pending.op.is_write() || is_blocked => true,
                Some(key) => written.contains(key),
                None => !written.is_empty(),
            };
            if !must_wait {
                self.start(now, pending);
                continue;
            }
            match pending.op.key() {
                Some(key) => drop(written.insert(key.clone())),
                None => is_blocked = true,
            }
            self.queues.behind.push(pending.since, pending);
        }
    }

    /// Deletes the part of a range that is the region's. `false`: there is no room for it yet.
    fn delete_range(&mut self, now: Nanos, pending: &Pending) -> bool {
        let Op::DeleteRange { start, end } = &pending.op else { unreachable!("the caller looked") };
        if self.was_asked_before(now, pending) {
            return true;
        }
        let (own, edge) = self.key_bounds();
        let first = start.max(&own).clone();
        let edge = edge.filter(|edge| end.as_ref().is_none_or(|end| edge < end));
        let last = edge.as_ref().or(end.as_ref());
        let user_bytes = first.len() + last.map_or(0, Bytes::len);
        let request = pending.once.map(|once| once.request);
        match self.append(Write { request, ..Write::delete_range(&first, last.map(|last| &last[..])) }) {
            Ok(appended) => {
                let end = last.map_or(&[][..], |last| &last[..]);
                self.remember(request, &appended, RecordKind::DeleteRange, end);
                if !planted(Bug::KeepDeletedSlots) {
                    self.close_hash_index();
                }
                self.appended(now, &appended, user_bytes);
                self.hold(now, appended.last, pending.to, true, OpResult::RangeDeleted { resume: edge });
            }
            Err(NotAppended::NoRoom { .. }) => return false,
            Err(NotAppended::Refused(error)) => self.refuse(pending.to, error),
        }
        true
    }

    /// Answers at once that nothing was done. That shows nothing of the region, so it waits for nothing.
    fn refuse(&mut self, to: ReplyTo, error: OpError) {
        self.answers.reply(to, OpResult::Error(error));
    }

    /// Answers a write that was executed before, or may have been.
    fn was_asked_before(&mut self, now: Nanos, pending: &Pending) -> bool {
        let Some(once) = pending.once else { return false };
        match self.requests.look_up(once, &pending.op, self.region.last_lsn()) {
            Known::New => return false,
            Known::Done(lsn, answer) => self.hold(now, lsn, pending.to, true, answer.unwrap_or_else(OpResult::Error)),
            Known::Forgotten => self.refuse(pending.to, OpError::Forgotten(self.id())),
        }
        true
    }

    /// A write was executed.
    fn remember(&mut self, request: Option<RequestId>, appended: &Appended, kind: RecordKind, value: &[u8]) {
        if let Some(request) = request {
            self.requests.remember(request, appended.last, Effect::of(kind, value));
        }
    }

    pub(crate) fn start(&mut self, now: Nanos, pending: Pending) {
        let to = pending.to;
        if self.was_asked_before(now, &pending) {
            return;
        }
        match &pending.op {
            Op::Scan(_) if self.queues.for_memory.must_scans_wait(&self.clients) => {
                self.queues.for_memory.push_scan(pending);
            }
            Op::Scan(_) => self.start_scan(pending),
            Op::Approximate { start, end } => {
                let (start, end) = (start.clone(), end.clone());
                self.start_approximation(pending, start, end);
            }
            Op::Checkpoint { name, .. } => self.checkpoint(now, to, name),
            Op::HashIndex(question) => self.answer_hash_index(now, to, question),
            // The region has pairs of another region, which a split has left.
            Op::Count { .. } if self.primary.config().inherited_below > SegmentId(0) => self.start_count(pending),
            Op::Count { .. } => {
                let count = i64::try_from(self.region.stats().estimated_keys).unwrap_or(i64::MAX);
                self.hold(now, Lsn(0), to, false, OpResult::Integer(count));
            }
            op if op.is_plain_put() => self.decided(now, pending, Current::default()),
            // Where the volume has failed, the newest value may not be the one to answer with.
            _ if self.region.volume().is_failed() => self.look_up(pending),
            op => {
                let key = op.key().expect("scans and counts are dealt with above");
                match self.region.get(key, Reach::Memory, &|| self.wall.now()) {
                    Ok(Lookup::NotInMemory) => self.look_up(pending),
                    // The read waits for memory. It sees the region as of this instant, and nothing waits behind it.
                    Ok(Lookup::Found { value, .. }) if value.len() > SMALL_BYTES && self.clients.is_full() => {
                        self.look_up(pending);
                    }
                    Ok(found) => self.decided(now, pending, current(held(found, &self.clients))),
                    Err(error) => self.failed_read(to, &error),
                }
            }
        }
    }

    /// The instant as of which a read sees the region: now. Where the volume has failed, it is that of the last acknowledged
    /// write: later writes may never be acknowledged, and earlier ones were seen.
    fn read_lsn(&self) -> Lsn {
        if self.region.volume().is_failed() { self.answers.acknowledged() } else { self.region.last_lsn() }
    }

    fn failed_read(&mut self, to: ReplyTo, error: &Error) {
        tracing::error!(region = %self.id(), %error, "a read failed");
        self.refuse(to, OpError::Unavailable(error.to_string()));
    }

    fn look_up(&mut self, mut pending: Pending) {
        if self.queues.at_device.len() >= MOST_WAITING && self.clients.is_full() {
            return self.refuse(pending.to, OpError::Overloaded(self.id()));
        }
        let key = pending.op.key().expect("only an operation on a key is looked up").clone();
        let snapshot = self.region.snapshot(self.read_lsn(), self.wall.now());
        // A read sees the instant at which it was submitted and may be overtaken; a conditional write may not.
        if pending.op.is_write() {
            self.queues.lock(&key);
        }
        // Also where no index is open: one may be by the time of the answer.
        pending.read_at = Some(self.region.moment());
        let ticket = self.queues.ticket(pending);
        // A version that is no longer current lacks what is written from now on.
        let is_current = |lookups: &Lookups| Arc::ptr_eq(&lookups.version, snapshot.version());
        if let Some(full) = self.queues.lookups.take_if(|lookups| !is_current(lookups) || lookups.keys.len() >= LOOKUPS)
        {
            self.spawn_lookups(full, false);
        }
        let new = || Lookups { version: snapshot.version().clone(), keys: Vec::new() };
        self.queues.lookups.get_or_insert_with(new).keys.push((ticket, key, snapshot.lsn()));
    }

    /// A job for operations ended.
    pub(crate) fn operation_done(&mut self, now: Nanos, done: OperationDone) {
        match done {
            OperationDone::LookedUp { answers, unread } => {
                self.queues.for_memory.push_lookups(unread);
                for (ticket, result) in answers {
                    self.looked_up(now, ticket, result);
                }
            }
            OperationDone::Exported(exported) => self.exported(now, exported),
            OperationDone::Scanned { ticket, at, result } => self.scanned(now, ticket, at, result),
        }
    }

    /// The device answered.
    fn looked_up(&mut self, now: Nanos, ticket: u64, result: Result<Lookup, Error>) {
        let Some(pending) = self.queues.at_device.remove(&ticket) else { return };
        let key = pending.op.key().expect("only an operation on a key is looked up").clone();
        let is_write = pending.op.is_write();
        match result {
            Ok(found) => self.decided(now, pending, current(found)),
            Err(error) => self.failed_read(pending.to, &error),
        }
        if is_write && !self.queues.stalled.iter().any(|stalled| stalled.op.key() == Some(&key)) {
            self.unlock(now, &key);
        }
    }

    /// The current value is known. Writes what there is to write, and holds the answer.
    fn decided(&mut self, now: Nanos, pending: Pending, current: Current) {
        let (to, op, read_lsn) = (pending.to, &pending.op, current.lsn);
        if let Op::Get { key } = op {
            self.fill_hash_index(key, &current, pending.read_at);
        }
        let (put, expires, mut answer) = match decide(op, current, self.wall.now()) {
            Decision::Answer(answer) => return self.decided_not(now, pending, read_lsn, answer),
            Decision::Put(value, expires, answer) => (Some(value), expires, answer),
            Decision::Delete(answer) => (None, None, answer),
        };
        let key = op.key().expect("a write has a key");
        let user_bytes = key.len() + put.as_ref().map_or(0, Bytes::len);
        let request = pending.once.map(|once| once.request);
        match self.append(Write { expires, request, ..Write::set(key, put.as_deref()) }) {
            Ok(appended) => {
                let kind = if put.is_some() { RecordKind::Put } else { RecordKind::Delete };
                self.remember(request, &appended, kind, put.as_deref().unwrap_or_default());
                self.direct_reads.wrote(appended.last, key, put.as_ref(), expires);
                self.appended(now, &appended, user_bytes);
                if let OpResult::Put { version, .. } = &mut answer {
                    *version = put.is_some().then_some(appended.last);
                }
                self.hold(now, appended.last, to, true, answer);
            }
            Err(NotAppended::NoRoom { l0_full }) => self.stall(now, pending, l0_full),
            Err(NotAppended::Refused(error)) => self.refuse(to, error),
        }
    }

    /// The operation is to write no pair. If another attempt at it may still come, that must get the same answer, whatever the
    /// key has by then and whichever node is primary. So the refusal is written as a record.
    fn decided_not(&mut self, now: Nanos, pending: Pending, read_lsn: Lsn, answer: OpResult) {
        let (OpResult::Put { version, .. } | OpResult::Deleted { version, .. }) = &answer else {
            return self.hold(now, read_lsn, pending.to, false, answer);
        };
        let Some(once) = pending.once.filter(|once| once.is_again) else {
            return self.hold(now, read_lsn, pending.to, false, answer);
        };
        let version = version.map(|version| version.0.to_le_bytes());
        let value = version.as_ref().map_or(&[][..], |bytes| bytes);
        match self.append(Write::refusal(once.request, value)) {
            Ok(appended) => {
                self.remember(Some(once.request), &appended, RecordKind::Refused, value);
                self.appended(now, &appended, 0);
                self.hold(now, appended.last, pending.to, true, answer);
            }
            Err(NotAppended::NoRoom { l0_full }) => self.stall(now, pending, l0_full),
            Err(NotAppended::Refused(error)) => self.refuse(pending.to, error),
        }
    }

    fn appended(&mut self, now: Nanos, appended: &Appended, user_bytes: usize) {
        self.counters.user_bytes += user_bytes as u64;
        if !appended.pause.is_zero() {
            self.slow_down(now, appended.pause);
        }
    }

    pub(super) fn start_scan(&mut self, pending: Pending) {
        let (at, op, bounds) = (self.read_lsn(), pending.op.clone(), self.key_bounds());
        let snapshot = self.region.snapshot(at, self.wall.now());
        let ticket = self.queues.ticket(pending);
        self.queues.for_memory.scan_began();
        let clients = self.clients.clone();
        self.spawn(move || {
            let Op::Scan(range) = &op else { unreachable!("only scans come here") };
            let result = match scan(&snapshot, scan_within(bounds.clone(), range), range.limit) {
                // The region is exhausted, as it was when the scan began. The keys that were asked for may go on in the next
                // region, or in what has been merged into this one since.
                OpResult::Entries { entries, resume: None } => {
                    OpResult::Entries { entries, resume: resume_within(bounds, &op) }
                }
                other => other,
            };
            Outcome::Operation(OperationDone::Scanned { ticket, at, result: clients.hold_result(result) })
        });
    }

    fn start_approximation(&mut self, pending: Pending, start: Bytes, end: Option<Bytes>) {
        let (at, region) = (self.read_lsn(), self.region.clone());
        let (first, edge) = self.key_bounds();
        let start = start.max(first);
        // Beyond the end of this region another one begins.
        let resume = edge.filter(|edge| end.as_ref().is_none_or(|end| edge < end));
        let ticket = self.queues.ticket(pending);
        self.spawn(move || {
            let last = resume.as_ref().or(end.as_ref());
            let result = match region.approximate(&start, last.map(|last| &last[..])) {
                Ok(Approximation { pairs, bytes }) => OpResult::Approximation { pairs, bytes, resume },
                Err(error) => OpResult::Error(OpError::Unavailable(error.to_string())),
            };
            Outcome::Operation(OperationDone::Scanned { ticket, at, result })
        });
    }

    /// About how many pairs the region has that are its own.
    fn start_count(&mut self, pending: Pending) {
        let (at, region) = (self.read_lsn(), self.region.clone());
        let (start, end) = self.key_bounds();
        let ticket = self.queues.ticket(pending);
        self.spawn(move || {
            let result = match region.approximate(&start, end.as_deref()) {
                Ok(found) => OpResult::Integer(i64::try_from(found.pairs).unwrap_or(i64::MAX)),
                Err(error) => OpResult::Error(OpError::Unavailable(error.to_string())),
            };
            Outcome::Operation(OperationDone::Scanned { ticket, at, result })
        });
    }

    /// A scan, or an approximation, ended.
    fn scanned(&mut self, now: Nanos, ticket: u64, at: Lsn, result: OpResult) {
        let Some(Pending { to, op, .. }) = self.queues.at_device.remove(&ticket) else { return };
        if matches!(op, Op::Scan(_)) {
            self.queues.for_memory.scan_ended();
        }
        self.hold(now, at, to, false, result);
    }
}

/// The keys that a region with this configuration may have: from the first up to the other.
pub fn key_bounds(config: &GroupConfig, partition: Partition) -> KeyBounds {
    match partition {
        Partition::Range => (config.start.clone(), config.end.clone()),
        Partition::Hash { .. } | Partition::Slots { .. } => (Bytes::new(), None),
    }
}

/// The part of a scan's range that is read of a region with these bounds of keys.
pub fn scan_within((first, edge): KeyBounds, range: &ScanRange) -> ScanBounds {
    let ScanRange { start, end, reverse, limit, keys_only } = range.clone();
    ScanBounds {
        start: start.max(first),
        end: match (end, edge) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        },
        reverse,
        keys_only,
        // One more: the entry at which the scan resumes.
        limit: Some(u64::from(limit.min(SCAN_ENTRIES)) + 1),
    }
}

/// Where `op` resumes when the region is exhausted: in the next region, if it is a scan that reaches that.
pub fn resume_within((first, edge): KeyBounds, op: &Op) -> Option<Bytes> {
    match op {
        Op::Scan(ScanRange { end, reverse: false, .. }) => {
            edge.filter(|edge| end.as_ref().is_none_or(|end| edge < end))
        }
        Op::Scan(ScanRange { start, .. }) => Some(first).filter(|edge| !edge.is_empty() && edge > start),
        _ => None,
    }
}

pub(crate) fn current(found: Lookup) -> Current {
    match found {
        Lookup::Found { lsn, expires, value } => Current { lsn, pair: Some((value, expires)) },
        Lookup::Deleted { lsn } => Current { lsn, pair: None },
        Lookup::Absent => Current::default(),
        Lookup::NotInMemory => unreachable!("the device was asked"),
    }
}

pub(crate) fn scan(snapshot: &leeward_engine::Snapshot, bounds: ScanBounds, limit: u32) -> OpResult {
    let most = limit.min(SCAN_ENTRIES) as usize;
    let reverse = bounds.reverse;
    let mut cursor = snapshot.cursor(bounds);
    let (mut entries, mut bytes) = (Vec::new(), 0);
    loop {
        let entry = match cursor.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => return OpResult::Entries { entries, resume: None },
            Err(error) => return OpResult::Error(OpError::Unavailable(error.to_string())),
        };
        if entries.len() >= most || bytes >= SCAN_BYTES {
            let resume = resume_at(&entries, entry.key, reverse);
            return OpResult::Entries { entries, resume };
        }
        bytes += entry.key.len() + entry.value.len();
        entries.push((entry.key, entry.value));
    }
}

/// Where a scan that stopped before `next` resumes: a reverse scan takes an exclusive end.
fn resume_at(entries: &[(Bytes, Bytes)], next: Bytes, reverse: bool) -> Option<Bytes> {
    match reverse {
        false => Some(next),
        true => Some(entries.last().map_or(next, |(last, _)| last.clone())),
    }
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
