//! The clients: a few keys that many use at once, whose histories are checked for linearizability, and a stream of keys
//! that are written once, which fills L0s and levels and must all be there at the end.

use crate::history::{self, Action, MAX_OPS, Operation};
use crate::world::NodeId;
use bytes::Bytes;
use leeward_format::op::{Op, OpError, OpResult, PutIf};
use leeward_platform::{Nanos, Rng};
use leeward_server::node::Token;
use std::collections::{BTreeMap, VecDeque};

const CLIENTS: usize = 6;
/// Keys in use at the same time.
const KEYS: usize = 6;

/// What an operation is for.
#[derive(Clone, Debug)]
enum Purpose {
    /// Part of the history of a shared key.
    Shared { key: usize, operation: usize },
    /// Writes a key once.
    Fill { number: usize },
    /// Reads such a key at the end.
    CheckFill { number: usize },
}

struct Pending {
    token: Token,
    node: NodeId,
    op: Op,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Acknowledged,
    Unknown,
    NotDone,
}

pub(crate) struct Load {
    pending: Vec<Option<Pending>>,
    next_token: u64,
    next_value: i64,
    /// Histories of shared keys; the last [`KEYS`] are in use.
    histories: Vec<Vec<Operation>>,
    fills: Vec<(usize, Fill)>,
    writing: bool,
    /// What is still to be read at the end.
    to_read: VecDeque<Purpose>,
    failures: Vec<String>,
    gap_us: u64,
    big_fills: bool,
    pub(crate) answered: u64,
    pub(crate) unknown: u64,
}

fn key(number: usize) -> Bytes {
    // Half of the keys on either side of the split, so that two regions are used.
    let side = if number.is_multiple_of(2) { "k" } else { "q" };
    Bytes::from(format!("{side}{number:06}"))
}

fn fill_key(number: usize) -> Bytes {
    let side = if number.is_multiple_of(3) { "z" } else { "b" };
    // Not in order of time, so that compactions overlap.
    Bytes::from(format!("{side}{:08}", (number as u64).wrapping_mul(2_654_435_761) % 100_000_000))
}

fn fill_value(number: usize, bytes: usize) -> Bytes {
    let mut value = format!("{number}:").into_bytes();
    value.resize(value.len() + bytes, b'a' + (number % 26) as u8);
    Bytes::from(value)
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

impl Load {
    pub(crate) fn new(rng: &mut Rng) -> Load {
        Load {
            pending: (0..CLIENTS).map(|_| None).collect(),
            next_token: 0,
            next_value: 1,
            histories: vec![Vec::new(); KEYS],
            fills: Vec::new(),
            writing: true,
            to_read: VecDeque::new(),
            failures: Vec::new(),
            gap_us: rng.between(500, 12_000),
            big_fills: rng.one_in(2),
            answered: 0,
            unknown: 0,
        }
    }

    pub(crate) fn clients(&self) -> usize {
        self.pending.len()
    }

    /// From now on only reads of the end are made.
    pub(crate) fn stop_writing(&mut self) {
        self.writing = false;
    }

    /// Everything that was ever written is to be read.
    pub(crate) fn read_everything(&mut self) {
        self.to_read.extend((0..self.histories.len()).map(|key| Purpose::Shared { key, operation: 0 }));
        self.to_read.extend((0..self.fills.len()).map(|number| Purpose::CheckFill { number }));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.to_read.is_empty() && self.pending.iter().all(Option::is_none)
    }

    /// The next operation of a client, by way of `node`.
    pub(crate) fn next(&mut self, now: Nanos, client: usize, node: NodeId, rng: &mut Rng) -> Option<(Token, Op)> {
        if self.pending[client].is_some() {
            return None;
        }
        let (op, purpose) = match self.to_read.pop_front() {
            Some(Purpose::CheckFill { number }) => (Op::Get { key: fill_key(number) }, Purpose::CheckFill { number }),
            Some(Purpose::Shared { key, .. }) => self.shared(now, key, 30, rng),
            Some(Purpose::Fill { .. }) => unreachable!("fills are not read"),
            None if !self.writing => return None,
            None if rng.one_in(3) => self.fill(rng),
            None => self.shared_any(now, rng),
        };
        self.next_token += 1;
        let token = Token(self.next_token);
        self.pending[client] = Some(Pending { token, node, op: op.clone(), purpose });
        Some((token, op))
    }

    fn fill(&mut self, rng: &mut Rng) -> (Op, Purpose) {
        let number = self.fills.len();
        let bytes = if self.big_fills { rng.between(50, 3_000) } else { rng.between(10, 400) } as usize;
        self.fills.push((bytes, Fill::Unknown));
        let (key, value) = (fill_key(number), fill_value(number, bytes));
        (Op::Put { key, value, when: PutIf::Always, want_old: false }, Purpose::Fill { number })
    }

    fn shared_any(&mut self, now: Nanos, rng: &mut Rng) -> (Op, Purpose) {
        let first = self.histories.len() - KEYS;
        let mut key = first + rng.index(KEYS);
        if self.histories[key].len() >= MAX_OPS {
            self.histories.push(Vec::new());
            key = self.histories.len() - 1;
        }
        let roll = rng.below(100);
        self.shared(now, key, roll, rng)
    }

    fn shared(&mut self, now: Nanos, number: usize, roll: u64, rng: &mut Rng) -> (Op, Purpose) {
        let key = key(number);
        let counter = number % 3 == 0;
        self.next_value += 1;
        let new = self.next_value;
        let (op, action) = match roll {
            0..40 => (Op::Get { key }, Action::Read(None)),
            40..50 => {
                let end = Bytes::from([&key[..], &[0]].concat());
                let reverse = rng.one_in(2);
                (Op::Scan { start: key, end: Some(end), reverse, limit: 5, keys_only: false }, Action::Read(None))
            }
            50..60 => (Op::Delete { key }, Action::Delete(None)),
            60.. if counter => (Op::Add { key, delta: new }, Action::Add(new, None)),
            60..70 => {
                let value = value(new, rng);
                (Op::Put { key, value, when: PutIf::Absent, want_old: false }, Action::WriteIfAbsent(new, None))
            }
            _ => {
                let value = value(new, rng);
                (Op::Put { key, value, when: PutIf::Always, want_old: false }, Action::Write(new))
            }
        };
        let operation = self.histories[number].len();
        self.histories[number].push(Operation { called: now.0, answered: u64::MAX, action });
        (op, Purpose::Shared { key: number, operation })
    }

    /// An answer came. Answers the client that is free again, and how long it rests.
    pub(crate) fn answered(
        &mut self,
        now: Nanos,
        token: Token,
        result: OpResult,
        rng: &mut Rng,
    ) -> Option<(usize, Nanos)> {
        let client = self.pending.iter().position(|pending| pending.as_ref().is_some_and(|p| p.token == token))?;
        let pending = self.pending[client].take().expect("just seen");
        let not_done = matches!(&result, OpResult::Error(error) if !matches!(error, OpError::Unknown(_)));
        let unknown = matches!(result, OpResult::Error(OpError::Unknown(_)));
        self.answered += u64::from(!not_done && !unknown);
        self.unknown += u64::from(unknown);
        if let OpResult::Error(OpError::Invalid(message)) = &result {
            self.failures.push(format!("{:?} was refused: {message}", pending.op));
        }
        match pending.purpose {
            Purpose::Shared { key, operation } => self.note_shared(now, key, operation, &result, not_done, unknown),
            Purpose::Fill { number } if not_done => self.fills[number].1 = Fill::NotDone,
            Purpose::Fill { number } if !unknown => self.fills[number].1 = Fill::Acknowledged,
            Purpose::Fill { .. } => {}
            Purpose::CheckFill { number } if not_done => self.to_read.push_back(Purpose::CheckFill { number }),
            Purpose::CheckFill { number } => self.check_fill(number, &result),
        }
        let rest = if not_done { rng.between(10_000, 60_000) } else { rng.between(0, self.gap_us) };
        Some((client, Nanos::from_micros(if self.writing { rest } else { rest / 20 })))
    }

    fn note_shared(&mut self, now: Nanos, key: usize, index: usize, result: &OpResult, not_done: bool, unknown: bool) {
        let entry = &mut self.histories[key][index];
        if unknown {
            return;
        }
        if not_done {
            // It took no effect: as if a read had never been answered.
            entry.action = Action::Read(None);
            if !self.writing {
                self.to_read.push_back(Purpose::Shared { key, operation: 0 });
            }
            return;
        }
        entry.answered = now.0;
        entry.action = match (entry.action, result) {
            (Action::Read(_), OpResult::Value(value)) => Action::Read(value.as_deref().map(number_of)),
            (Action::Read(_), OpResult::Entries { entries, .. }) => {
                Action::Read(entries.first().map(|(_, value)| number_of(value)))
            }
            (Action::Write(value), OpResult::Put { done: true, .. }) => Action::Write(value),
            (Action::WriteIfAbsent(value, _), OpResult::Put { done, .. }) => Action::WriteIfAbsent(value, Some(*done)),
            (Action::Add(delta, _), OpResult::Integer(sum)) => Action::Add(delta, Some(*sum)),
            (Action::Delete(_), OpResult::Deleted { old }) => Action::Delete(Some(old.is_some())),
            (action, result) => panic!("{action:?} was answered by {result:?}"),
        };
    }

    fn check_fill(&mut self, number: usize, result: &OpResult) {
        let (bytes, fill) = self.fills[number];
        let OpResult::Value(found) = result else { panic!("a get was answered by {result:?}") };
        let right = match found {
            Some(value) => fill != Fill::NotDone && *value == fill_value(number, bytes),
            None => fill != Fill::Acknowledged,
        };
        if !right {
            let found = found.as_ref().map(|value| String::from_utf8_lossy(&value[..value.len().min(20)]).into_owned());
            let key = fill_key(number);
            self.failures.push(format!("{key:?}, written once ({fill:?}, {bytes} bytes), reads as {found:?}"));
        }
    }

    /// A client has waited long enough; answers whether it was still waiting.
    pub(crate) fn give_up(&mut self, client: usize, token: Token) -> bool {
        let waiting = self.pending[client].as_ref().is_some_and(|pending| pending.token == token);
        if waiting {
            let pending = self.pending[client].take().expect("just seen");
            self.lost(pending);
        }
        waiting
    }

    /// A process died; answers the clients that were waiting for it.
    pub(crate) fn node_died(&mut self, node: NodeId) -> Vec<usize> {
        let waiting = |client: &usize| self.pending[*client].as_ref().is_some_and(|pending| pending.node == node);
        let clients: Vec<usize> = (0..self.pending.len()).filter(waiting).collect();
        for client in &clients {
            let pending = self.pending[*client].take().expect("just seen");
            self.lost(pending);
        }
        clients
    }

    fn lost(&mut self, pending: Pending) {
        self.unknown += 1;
        match pending.purpose {
            Purpose::CheckFill { number } => self.to_read.push_back(Purpose::CheckFill { number }),
            Purpose::Shared { key, .. } if !self.writing => {
                self.to_read.push_back(Purpose::Shared { key, operation: 0 });
            }
            _ => {}
        }
    }

    /// Judges all that was seen.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(failure) = self.failures.first() {
            return Err(format!("{failure} (and {} more like it)", self.failures.len() - 1));
        }
        for (number, operations) in self.histories.iter().enumerate() {
            let unanswered = |operation: &&Operation| {
                operation.answered == u64::MAX && matches!(operation.action, Action::Read(_))
            };
            let operations: Vec<Operation> = operations.iter().filter(|op| !unanswered(op)).copied().collect();
            history::check(&operations).map_err(|failure| format!("key {:?}: {failure}", key(number)))?;
        }
        Ok(())
    }
}
