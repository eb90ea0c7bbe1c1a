//! A few keys that many clients use at once, whose histories are checked for linearizability. Plain data.
//!
//! A range of several of them is read at once, too, by a scan: each key of which the answer tells something has that read in
//! its history.

use crate::history::{self, MAX_OPS, MAX_UNKNOWN};
use crate::places::Places;
use bytes::Bytes;
use leeward_format::Lsn;
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{Condition, Lifetime, Op, OpResult, RangeOp, ScanRange};
use leeward_format::partition::Partition;
use leeward_history::{Action, Operation};
use leeward_platform::{Nanos, Rng};
use std::collections::BTreeMap;

/// Shared keys in use at the same time.
const KEYS: usize = 6;

/// An operation of the history of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    key: usize,
    operation: usize,
}

/// Everything that was done to one shared key.
#[derive(Debug, Default)]
struct History {
    operations: Vec<Operation>,
    /// Operations whose outcome nobody knows.
    unknown: usize,
    /// The last put that was answered: its version, and its value, which no other put has.
    known: Option<(Lsn, i64)>,
    /// When its region became part of another last: versions from before are worth nothing.
    taken: Nanos,
    /// The power was lost at the second instant, and nothing is done to the key any more. Processes had died from the first on.
    lost: Option<(Nanos, Nanos)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    next_value: i64,
    /// The last [`KEYS`] are in use.
    histories: Vec<History>,
    partition: Partition,
    places: Places,
    window: Nanos,
}

fn key(number: usize) -> Bytes {
    // Half of the keys on either side of the split, so that two regions are used.
    let side = if number.is_multiple_of(2) { "k" } else { "q" };
    Bytes::from(format!("{side}{number:06}"))
}

fn after(key: &[u8]) -> Bytes {
    Bytes::from([key, &[0]].concat())
}

/// A value that reads as `number`; padded, some of them beyond what is kept in place.
fn value(number: i64, rng: &mut Rng) -> Bytes {
    let padding = if rng.one_in(3) { rng.between(200, 2_000) } else { rng.below(40) };
    Bytes::from(format!("{number}:{}", "x".repeat(padding as usize)))
}

fn number_of(value: &[u8]) -> i64 {
    let digits = value.split(|byte| *byte == b':').next().unwrap_or_default();
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(i64::MIN)
}

impl Shared {
    /// Keys of a table that is divided so. Writes that were acknowledged within the `window` before a loss may be gone.
    pub(crate) fn new(partition: Partition, window: Nanos) -> Shared {
        Shared {
            next_value: 1,
            histories: (0..KEYS).map(|_| History::default()).collect(),
            partition,
            places: Places::new(partition),
            window,
        }
    }

    /// The newest writes may be gone, those before the `deaths` of processes too: nothing more is done to the keys that were used.
    pub(crate) fn newest_lost(&mut self, now: Nanos, deaths: &[Nanos]) {
        for history in &mut self.histories {
            history.lost.get_or_insert((deaths.iter().copied().fold(now, Nanos::min), now));
        }
        self.histories.extend((0..KEYS).map(|_| History::default()));
    }

    /// A region has become part of another.
    pub(crate) fn taken(&mut self, now: Nanos, config: &GroupConfig) {
        for (number, history) in self.histories.iter_mut().enumerate() {
            if config.contains(&self.partition.place(&key(number))) {
                (history.taken, history.known) = (now, None);
            }
        }
    }

    // ---- operations ----------------------------------------------------------------------------------------------

    /// The next operation on one key.
    pub(crate) fn choose(&mut self, now: Nanos, reads_only: bool, rng: &mut Rng) -> (Op, Entry) {
        let mut key = self.histories.len() - KEYS + rng.index(KEYS);
        if self.histories[key].is_full() {
            self.histories.push(History::default());
            key = self.histories.len() - 1;
        }
        let roll = rng.below(if reads_only { 50 } else { 100 });
        let (op, action) = self.operation(key, roll, rng);
        let operations = &mut self.histories[key].operations;
        operations.push(Operation { called: now.0, answered: u64::MAX, action });
        (op, Entry { key, operation: operations.len() - 1 })
    }

    fn operation(&mut self, number: usize, roll: u64, rng: &mut Rng) -> (Op, Action) {
        let key = key(number);
        let is_counter = number.is_multiple_of(3);
        self.next_value += 1;
        let new = self.next_value;
        let known = self.histories[number].known;
        let mut put = |when, want_old| Op::Put {
            key: key.clone(),
            value: value(new, rng),
            when,
            want_old,
            lifetime: Lifetime::Forever,
        };
        match roll {
            0..40 => (Op::Get { key }, Action::Read(None)),
            40..50 => {
                let (start, end, reverse) = (key.clone(), Some(after(&key)), rng.one_in(2));
                let scan = RangeOp::Scan(ScanRange { start, end, reverse, limit: 5, keys_only: false });
                (self.places.ranged(&key, scan), Action::Read(None))
            }
            50..57 => (Op::Delete { key, when: Condition::Always }, Action::Delete(None)),
            57..60 => {
                let range = RangeOp::DeleteRange { start: key.clone(), end: Some(after(&key)) };
                (self.places.ranged(&key, range), Action::Delete(None))
            }
            60.. if is_counter => (Op::Add { key, delta: new }, Action::Add(new, None)),
            60..67 => (put(Condition::Absent, false), Action::WriteIfAbsent(new, None)),
            67..70 => (put(Condition::Present, false), Action::WriteIfPresent(new, None)),
            70..75 => (put(Condition::Always, true), Action::Swap(new, None)),
            75..85 if known.is_some() => {
                let (version, old) = known.expect("just seen");
                (put(Condition::Version(version), false), Action::WriteIfValue(new, old, None))
            }
            _ => (put(Condition::Always, false), Action::Write(new)),
        }
    }

    /// A scan of a range that has many of the keys in use, and perhaps a bound of regions: where keys lie in order.
    pub(crate) fn scan(&self, rng: &mut Rng) -> Option<Op> {
        let mut any = || key(self.histories.len() - KEYS + rng.index(KEYS));
        let (one, other) = (any(), any());
        let (start, end) = if rng.one_in(8) {
            (Bytes::new(), None)
        } else {
            (one.clone().min(other.clone()), Some(after(&one.max(other))))
        };
        let scan = ScanRange { start, end, reverse: rng.one_in(2), limit: rng.between(1, 60) as u32, keys_only: false };
        (!self.partition.is_hash()).then_some(Op::Scan(scan))
    }

    // ---- answers -------------------------------------------------------------------------------------------------

    /// A swap took place, and nobody knows any more what it found: that of a plain write.
    pub(crate) fn answer_gone(&mut self, now: Nanos, at: Entry) {
        let entry = &mut self.histories[at.key].operations[at.operation];
        let Action::Swap(value, None) = entry.action else { panic!("{entry} does not ask for a value before it") };
        (entry.answered, entry.action) = (now.0, Action::Write(value));
    }

    /// An operation took no effect: as if it had been a read that was never answered.
    pub(crate) fn not_done(&mut self, at: Entry) {
        self.histories[at.key].operations[at.operation].action = Action::Read(None);
    }

    /// Nobody will know what came of an operation.
    pub(crate) fn lost(&mut self, at: Entry) {
        self.histories[at.key].unknown += 1;
    }

    /// An operation was answered.
    pub(crate) fn done(&mut self, now: Nanos, at: Entry, result: &OpResult) {
        let history = &mut self.histories[at.key];
        let entry = &mut history.operations[at.operation];
        let was_taken = entry.called <= history.taken.0;
        let (result, age_ms) = &result.clone().fresh();
        if was_taken && let (Action::WriteIfValue(..), OpResult::Put { done: false, .. }) = (entry.action, &result) {
            // The value may be what it was, and its version another.
            entry.action = Action::Read(None);
            return;
        }
        // It was read as of some instant since then.
        entry.called = entry.called.saturating_sub(u64::from(*age_ms) * 1_000_000);
        (entry.answered, entry.action) = (now.0, answered_action(entry.action, result));
        if let (Some(value), OpResult::Put { done: true, version: Some(version), .. }) = (entry.action.put(), result)
            && !was_taken
        {
            history.known = Some((*version, value));
        }
    }

    /// A [scan](Shared::scan) was answered.
    ///
    /// # Errors
    /// What it found is not of its range, or not in order.
    pub(crate) fn scanned(
        &mut self,
        called: Nanos,
        now: Nanos,
        scan: &ScanRange,
        result: &OpResult,
    ) -> Result<(), String> {
        let (result, age_ms) = result.clone().fresh();
        let called = called.0.saturating_sub(u64::from(age_ms) * 1_000_000);
        let OpResult::Entries { entries, resume } = result else { panic!("{scan:?} was answered by {result:?}") };
        // What it has told of.
        let (start, end) = match (resume, scan.reverse) {
            (None, _) => (scan.start.clone(), scan.end.clone()),
            (Some(resume), true) => (resume, scan.end.clone()),
            (Some(resume), false) => (scan.start.clone(), Some(resume)),
        };
        let is_in = |key: &Bytes| start <= *key && end.as_ref().is_none_or(|end| key < end);
        let is_next = |pair: &[(Bytes, Bytes)]| (pair[0].0 < pair[1].0) != scan.reverse && pair[0].0 != pair[1].0;
        if !entries.iter().all(|(key, _)| is_in(key)) || !entries.windows(2).all(is_next) {
            let keys: Vec<&Bytes> = entries.iter().map(|(key, _)| key).collect();
            return Err(format!("{scan:?} found {keys:?}, and tells of {start:?} to {end:?}"));
        }
        let found: BTreeMap<Bytes, Bytes> = entries.into_iter().collect();
        for (number, history) in self.histories.iter_mut().enumerate() {
            let key = key(number);
            if is_in(&key) && history.operations.len() < MAX_OPS && history.lost.is_none() {
                let action = Action::Read(found.get(&key).map(|value| number_of(value)));
                history.operations.push(Operation { called, answered: now.0, action });
            }
        }
        Ok(())
    }

    /// Judges all histories, and what is there of their keys in the store's `content`, which was read at `now`, after all else: that
    /// is taken out of it.
    ///
    /// # Errors
    /// No order explains the answers.
    pub(crate) fn check_content(&self, now: Nanos, content: &mut BTreeMap<Bytes, Bytes>) -> Result<(), String> {
        for (number, history) in self.histories.iter().enumerate() {
            let found = content.remove(&key(number)).map(|value| number_of(&value));
            let left = Operation { called: now.0, answered: now.0, action: Action::Read(found) };
            history.check(self.window, left).map_err(|failure| format!("key {:?}: {failure}", key(number)))?;
        }
        Ok(())
    }
}

impl History {
    /// Clients go on to another key.
    fn is_full(&self) -> bool {
        self.operations.len() >= MAX_OPS || self.unknown >= MAX_UNKNOWN
    }

    fn check(&self, window: Nanos, left: Operation) -> Result<(), String> {
        let says_nothing =
            |operation: &Operation| operation.answered == u64::MAX && matches!(operation.action, Action::Read(_));
        let operations = self.operations.iter().filter(|operation| !says_nothing(operation)).copied();
        match self.lost {
            None => history::check(&operations.chain([left]).collect::<Vec<_>>()),
            Some((since, lost)) => {
                let operations: Vec<Operation> = operations.collect();
                history::check_with_loss(&operations, ((since - window).0, lost.0), left)
            }
        }
    }
}

/// What was done, once it is known what came of it.
fn answered_action(action: Action, result: &OpResult) -> Action {
    match (action, result) {
        (Action::Read(_), OpResult::Value(value)) => Action::Read(value.as_deref().map(number_of)),
        (Action::Read(_), OpResult::Entries { entries, .. }) => {
            Action::Read(entries.first().map(|(_, value)| number_of(value)))
        }
        (Action::Write(value), OpResult::Put { done: true, .. }) => Action::Write(value),
        (Action::Swap(value, _), OpResult::Put { done: true, old, .. }) => {
            Action::Swap(value, Some(old.as_deref().map(number_of)))
        }
        (Action::WriteIfAbsent(value, _), OpResult::Put { done, .. }) => Action::WriteIfAbsent(value, Some(*done)),
        (Action::WriteIfPresent(value, _), OpResult::Put { done, .. }) => Action::WriteIfPresent(value, Some(*done)),
        (Action::WriteIfValue(value, old, _), OpResult::Put { done, .. }) => {
            Action::WriteIfValue(value, old, Some(*done))
        }
        (Action::Add(delta, _), OpResult::Integer(sum)) => Action::Add(delta, Some(*sum)),
        (Action::Delete(_), OpResult::Deleted { done, .. }) => Action::Delete(Some(*done)),
        (Action::Delete(_), OpResult::RangeDeleted { resume: None }) => Action::Delete(None),
        (action, result) => panic!("{action:?} was answered by {result:?}"),
    }
}
