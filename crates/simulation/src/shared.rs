//! A few keys that many clients use at once, with histories that are checked for linearizability. Plain data.
//!
//! Clients also scan ranges of these keys. Each key that the answer covers gets a read in its history.

use crate::client_mix::ClientMix;
use crate::history::{self, MAX_OPS, MAX_UNKNOWN};
use crate::layout::Layout;
use bytes::Bytes;
use leeward_format::Lsn;
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{Condition, Lifetime, Op, OpResult, RangeOp, ScanRange};
use leeward_format::partition::Partition;
use leeward_history::{Action, Operation};
use leeward_platform::{Nanos, Rng};
use std::collections::BTreeMap;

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
    /// Those of direct readers.
    looked_up: usize,
    /// Operations whose outcome is unknown.
    unknown: usize,
    /// The last put that was answered: its version and its value, which is unique.
    known: Option<(Lsn, i64)>,
    /// When its region was last merged into another one. Earlier versions are invalid.
    merged: Nanos,
    /// The power was lost at the second instant, and the key is not used any more. Processes had died since the first instant.
    lost: Option<(Nanos, Nanos)>,
}

/// The shared keys, and their histories.
#[derive(Debug)]
pub(crate) struct SharedKeys {
    next_value: i64,
    /// The last `keys` are in use.
    histories: Vec<History>,
    partition: Partition,
    layout: Layout,
    window: Nanos,
    keys: usize,
    deletes_ranges: bool,
}

fn key(number: usize) -> Bytes {
    // Half of the keys on either side of the split, so that two regions are used.
    let side = if number.is_multiple_of(2) { "k" } else { "q" };
    Bytes::from(format!("{side}{number:06}"))
}

fn after(key: &[u8]) -> Bytes {
    Bytes::from([key, &[0]].concat())
}

/// A value with this number, padded. Some values are too large to be kept in place.
fn value(number: i64, rng: &mut Rng) -> Bytes {
    let padding = if rng.one_in(3) { rng.between(200, 2_000) } else { rng.below(40) };
    Bytes::from(format!("{number}:{}", "x".repeat(padding as usize)))
}

fn number_of(value: &[u8]) -> i64 {
    let digits = value.split(|byte| *byte == b':').next().unwrap_or_default();
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(i64::MIN)
}

impl SharedKeys {
    /// Keys of a table with this partition. Writes that were acknowledged within the `window` before a loss may be gone.
    pub(crate) fn new(partition: Partition, window: Nanos, mix: &ClientMix) -> SharedKeys {
        SharedKeys {
            next_value: 1,
            histories: (0..mix.shared_keys).map(|_| History::default()).collect(),
            partition,
            layout: Layout::new(partition),
            window,
            keys: mix.shared_keys,
            deletes_ranges: mix.deletes_ranges,
        }
    }

    /// The newest writes may be gone, also those just before the `deaths` of processes. The keys in use are not used any more.
    pub(crate) fn newest_lost(&mut self, now: Nanos, deaths: &[Nanos]) {
        for history in &mut self.histories {
            history.lost.get_or_insert((deaths.iter().copied().fold(now, Nanos::min), now));
        }
        self.histories.extend((0..self.keys).map(|_| History::default()));
    }

    /// The region of `config` was merged into another one.
    pub(crate) fn merged(&mut self, now: Nanos, config: &GroupConfig) {
        for (number, history) in self.histories.iter_mut().enumerate() {
            if config.contains(&self.partition.place(&key(number))) {
                (history.merged, history.known) = (now, None);
            }
        }
    }

    // ---- operations ----------------------------------------------------------------------------------------------

    /// The next operation on one key.
    pub(crate) fn choose(&mut self, now: Nanos, reads_only: bool, rng: &mut Rng) -> (Op, Entry) {
        let key = self.any_key(rng);
        let roll = rng.below(if reads_only { 50 } else { 100 });
        let (op, action) = self.operation(key, roll, rng);
        let operations = &mut self.histories[key].operations;
        operations.push(Operation { called: now.0, answered: u64::MAX, action });
        (op, Entry { key, operation: operations.len() - 1 })
    }

    /// A key that a direct reader looks up.
    pub(crate) fn look_up(&mut self, now: Nanos, rng: &mut Rng) -> (Bytes, Entry) {
        let number = self.any_key(rng);
        self.look_up_number(now, number)
    }

    /// The same key as before, if it is still in use.
    pub(crate) fn look_up_again(&mut self, now: Nanos, before: Entry) -> Option<(Bytes, Entry)> {
        let is_in_use = before.key + self.keys >= self.histories.len() && !self.histories[before.key].is_full();
        is_in_use.then(|| self.look_up_number(now, before.key))
    }

    fn look_up_number(&mut self, now: Nanos, number: usize) -> (Bytes, Entry) {
        let History { operations, looked_up, .. } = &mut self.histories[number];
        *looked_up += 1;
        operations.push(Operation { called: now.0, answered: u64::MAX, action: Action::Read(None) });
        (key(number), Entry { key: number, operation: operations.len() - 1 })
    }

    /// One of the keys in use. A new one takes the place of one that has been used enough.
    fn any_key(&mut self, rng: &mut Rng) -> usize {
        let key = self.histories.len() - self.keys + rng.index(self.keys);
        if !self.histories[key].is_full() {
            return key;
        }
        self.histories.push(History::default());
        self.histories.len() - 1
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
                (self.layout.ranged(&key, scan), Action::Read(None))
            }
            50..57 => (Op::Delete { key, when: Condition::Always }, Action::Delete(None)),
            57..60 if !self.deletes_ranges => (Op::Delete { key, when: Condition::Always }, Action::Delete(None)),
            57..60 => {
                let range = RangeOp::DeleteRange { start: key.clone(), end: Some(after(&key)) };
                (self.layout.ranged(&key, range), Action::Delete(None))
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

    /// A scan of a range with many of the keys in use, perhaps across regions. `None` where keys are partitioned by hash.
    pub(crate) fn scan(&self, rng: &mut Rng) -> Option<Op> {
        let mut any = || key(self.histories.len() - self.keys + rng.index(self.keys));
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

    /// A swap took effect, and the value that it found is not known any more. It counts as a plain write.
    pub(crate) fn answer_gone(&mut self, now: Nanos, at: Entry) {
        let entry = &mut self.histories[at.key].operations[at.operation];
        let Action::Swap(value, None) = entry.action else { panic!("{entry} does not ask for a value before it") };
        (entry.answered, entry.action) = (now.0, Action::Write(value));
    }

    /// An operation took no effect. It counts as a read that was never answered.
    pub(crate) fn not_done(&mut self, at: Entry) {
        self.histories[at.key].operations[at.operation].action = Action::Read(None);
    }

    /// The outcome of an operation stays unknown.
    pub(crate) fn lost(&mut self, at: Entry) {
        self.histories[at.key].unknown += 1;
    }

    /// An operation was answered.
    pub(crate) fn done(&mut self, now: Nanos, at: Entry, result: &OpResult) {
        let history = &mut self.histories[at.key];
        let entry = &mut history.operations[at.operation];
        let was_merged = entry.called <= history.merged.0;
        let (result, age_ms) = &result.clone().fresh();
        if was_merged && let (Action::WriteIfValue(..), OpResult::Put { done: false, .. }) = (entry.action, &result) {
            // The merge changes the version, and the value may still be the same.
            entry.action = Action::Read(None);
            return;
        }
        // A stale answer may show the state of any instant since then.
        entry.called = entry.called.saturating_sub(u64::from(*age_ms) * 1_000_000);
        (entry.answered, entry.action) = (now.0, answered_action(entry.action, result));
        if let (Some(value), OpResult::Put { done: true, version: Some(version), .. }) = (entry.action.put(), result)
            && !was_merged
        {
            history.known = Some((*version, value));
        }
    }

    /// A [scan](Shared::scan) was answered.
    ///
    /// # Errors
    /// A key that it found is not in its range, or not in order.
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
        // The range that the answer covers.
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
            if is_in(&key) && history.used() < MAX_OPS && history.lost.is_none() {
                let action = Action::Read(found.get(&key).map(|value| number_of(value)));
                history.operations.push(Operation { called, answered: now.0, action });
            }
        }
        Ok(())
    }

    /// Judges all histories together with the final values of their keys in `content`. The content was read at `now`, after all
    /// other operations. Removes the keys from it.
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
    /// Operations that count. Direct readers use the keys that others write, for as long as those do.
    fn used(&self) -> usize {
        self.operations.len() - self.looked_up
    }

    /// Clients use another key from now on.
    fn is_full(&self) -> bool {
        self.used() >= MAX_OPS || self.unknown >= MAX_UNKNOWN
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

/// The action with its answer.
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
