//! The clients. Each works on one region, one operation after the other, and notes each operation and its outcome.
//!
//! - [`native`]: the client library.
//! - [`resp`]: Redis commands to any server.
//!
//! Both execute an [`Action`] on a key, and answer the action with its result.
//!
//! All clients of a region use a few *shared* keys. After a number of operations another key replaces a shared key. Some
//! operations write a *filling* key instead, which is written only once, or read one. Clients of other regions continue while one
//! region is unavailable, so that each region has its own gaps.
//!
//! A client is a thread. This module has what clients share.

pub(crate) mod native;
pub(crate) mod resp;

use crate::workload::{self, SharedKey};
use bytes::Bytes;
use leeward_history::{Action, Operation, UNANSWERED};
use leeward_platform::Rng;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Shared keys of a region that are in use at the same time.
const SLOTS: usize = 2;
/// Most operations on one shared key. Then another key replaces it.
const LONGEST_HISTORY: u32 = 3_000;
/// How long a client waits for an answer.
pub(crate) const DEADLINE: Duration = Duration::from_millis(2_500);
/// Longest pause between two operations, in microseconds.
const PAUSE_US: u64 = 30_000;
/// The same, of a client that only reads.
const READER_PAUSE_US: u64 = 4_000;
/// Pause after an operation that was refused.
const REFUSED_BACKOFF: Duration = Duration::from_millis(20);

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The action, with its answer.
    Answered(Action),
    /// The store answered that it took no effect.
    NotDone,
    /// Not known.
    Unknown,
    /// The store gave an answer that no store may give.
    Wrong(String),
}

/// A way to reach the store.
pub(crate) trait Store {
    /// Executes an action that is not answered yet.
    fn execute(&mut self, key: &Bytes, action: Action) -> Outcome;

    /// Reads that it has answered from hash indexes.
    fn direct_reads(&self) -> u64 {
        0
    }
}

/// The state that all clients share.
#[derive(Debug)]
pub(crate) struct ClientRun {
    begun: Instant,
    is_over: AtomicBool,
    next_number: AtomicI64,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: AtomicU64,
    operations: AtomicU32,
}

/// A successful operation, for the gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Success {
    pub(crate) region: usize,
    pub(crate) at: u64,
    pub(crate) is_write: bool,
}

/// A key that was written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filling {
    pub(crate) region: usize,
    pub(crate) number: i64,
    /// `Answered`, `NotDone` or `Unknown`.
    pub(crate) outcome: Outcome,
}

/// The operations of clients. Times are microseconds since the run began.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) histories: HashMap<SharedKey, Vec<Operation>>,
    pub(crate) fillings: Vec<Filling>,
    pub(crate) successes: Vec<Success>,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    /// Reads that were answered from hash indexes.
    pub(crate) direct_reads: u64,
    /// Answers that no store may give.
    pub(crate) wrong: Vec<String>,
}

impl Log {
    /// Adds the log of another client.
    pub(crate) fn merge(&mut self, other: Log) {
        for (key, operations) in other.histories {
            self.histories.entry(key).or_default().extend(operations);
        }
        self.fillings.extend(other.fillings);
        self.successes.extend(other.successes);
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.direct_reads += other.direct_reads;
        self.wrong.extend(other.wrong);
    }
}

impl ClientRun {
    pub(crate) fn new() -> ClientRun {
        ClientRun {
            begun: Instant::now(),
            is_over: AtomicBool::new(false),
            next_number: AtomicI64::new(1),
            slots: (0..workload::regions() * SLOTS).map(|_| Slot::default()).collect(),
        }
    }

    /// Microseconds since the run began.
    pub(crate) fn now(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// Lets all clients end after their operation.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    fn number(&self) -> i64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// One of the keys in use of a region, for one operation.
    fn key(&self, region: usize, slot: usize) -> SharedKey {
        let Slot { generation, operations } = &self.slots[region * SLOTS + slot];
        if operations.fetch_add(1, Ordering::Relaxed) + 1 == LONGEST_HISTORY {
            operations.store(0, Ordering::Relaxed);
            generation.fetch_add(1, Ordering::Relaxed);
        }
        SharedKey { region, slot, generation: generation.load(Ordering::Relaxed) }
    }
}

/// A client of one region. It works until the run is over, and returns its log. A `reader` only reads shared keys, often.
pub(crate) fn work(shared: &ClientRun, region: usize, store: &mut dyn Store, reader: bool, mut rng: Rng) -> Log {
    let mut client = Client { shared, region, log: Log::default(), last_seen: None };
    while !shared.is_over.load(Ordering::SeqCst) {
        let (outcome, pause_us) = match reader {
            true => (client.read(store, &mut rng), READER_PAUSE_US),
            false if rng.one_in(8) => (client.fill(store, &mut rng), PAUSE_US),
            false => (client.share(store, &mut rng), PAUSE_US),
        };
        match outcome {
            Outcome::NotDone => thread::sleep(REFUSED_BACKOFF),
            _ => thread::sleep(Duration::from_micros(rng.below(pause_us))),
        }
    }
    client.log.direct_reads = store.direct_reads();
    client.log
}

struct Client<'a> {
    shared: &'a ClientRun,
    region: usize,
    log: Log,
    /// The last value that it has read or written, and where.
    last_seen: Option<(SharedKey, i64)>,
}

impl Client<'_> {
    /// An operation on a shared key.
    fn share(&mut self, store: &mut dyn Store, rng: &mut Rng) -> Outcome {
        let key = self.shared.key(self.region, rng.index(SLOTS));
        let number = self.shared.number();
        let seen = self.last_seen.filter(|(at, _)| *at == key).map(|(_, value)| value);
        let action = match rng.below(100) {
            0..38 => Action::Read(None),
            38..48 => Action::Take(None),
            48..56 => Action::WriteIfAbsent(number, None),
            56..62 => Action::WriteIfPresent(number, None),
            62..82 if seen.is_some() => Action::WriteIfValue(number, seen.expect("just seen"), None),
            82..90 => Action::Write(number),
            _ => Action::Swap(number, None),
        };
        self.execute(store, key, action)
    }

    /// A read of a shared key.
    fn read(&mut self, store: &mut dyn Store, rng: &mut Rng) -> Outcome {
        let key = self.shared.key(self.region, rng.index(SLOTS));
        self.execute(store, key, Action::Read(None))
    }

    fn execute(&mut self, store: &mut dyn Store, key: SharedKey, action: Action) -> Outcome {
        let called = self.shared.now();
        let outcome = store.execute(&key.bytes(), action);
        let now = self.shared.now();
        let history = self.log.histories.entry(key).or_default();
        match &outcome {
            Outcome::Answered(answered) => {
                history.push(Operation { called, answered: now, action: *answered });
                self.saw(key, *answered);
            }
            Outcome::Unknown if !matches!(action, Action::Read(_)) => {
                history.push(Operation { called, answered: UNANSWERED, action });
            }
            _ => {}
        }
        self.note(now, &outcome, !matches!(action, Action::Read(_)), || format!("{action:?} of {key:?}"));
        outcome
    }

    fn saw(&mut self, key: SharedKey, answered: Action) {
        let seen = match answered {
            Action::Read(value) => value,
            Action::WriteIfAbsent(new, Some(done)) | Action::WriteIfPresent(new, Some(done)) => done.then_some(new),
            Action::WriteIfValue(new, _, Some(done)) => done.then_some(new),
            other => other.put(),
        };
        self.last_seen = seen.map(|value| (key, value)).or(self.last_seen);
    }

    /// Writes a filling key, or reads one of its own that was acknowledged.
    fn fill(&mut self, store: &mut dyn Store, rng: &mut Rng) -> Outcome {
        let (region, count) = (self.region, self.log.fillings.len());
        let known = (count > 0 && rng.one_in(3)).then(|| self.log.fillings[rng.index(count)].clone());
        if let Some(Filling { number, outcome: Outcome::Answered(_), .. }) = known {
            let outcome = store.execute(&workload::filling_key(region, number), Action::Read(None));
            if let Outcome::Answered(found) = outcome
                && found != Action::Read(Some(number))
            {
                let at = self.shared.now();
                self.log.wrong.push(format!("write {number} was acknowledged, and at {at} us it reads as {found:?}"));
            }
            self.note(self.shared.now(), &outcome, false, || format!("a read of filling key {number}"));
            return outcome;
        }
        let number = -self.shared.number();
        let outcome = store.execute(&workload::filling_key(region, number), Action::Write(number));
        self.note(self.shared.now(), &outcome, true, || format!("the write of filling key {number}"));
        if !matches!(outcome, Outcome::Wrong(_)) {
            self.log.fillings.push(Filling { region, number, outcome: outcome.clone() });
        }
        outcome
    }

    fn note(&mut self, at: u64, outcome: &Outcome, is_write: bool, what: impl Fn() -> String) {
        match outcome {
            Outcome::Answered(_) => self.log.successes.push(Success { region: self.region, at, is_write }),
            Outcome::NotDone => self.log.refused += 1,
            Outcome::Unknown => self.log.unknown += 1,
            Outcome::Wrong(answer) => self.log.wrong.push(format!("{} was answered: {answer}", what())),
        }
    }
}

#[cfg(test)]
mod tests;
