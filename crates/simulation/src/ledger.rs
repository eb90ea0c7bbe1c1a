//! Keys that are written once. They fill L0s and levels, and each must be there at the end, as it was written.
//!
//! Where a power loss may take writes, it may take only the newest ones. No write may be gone while a later write of its region
//! is there, since what is left of a log is a prefix of it.

use bytes::Bytes;
use leeward_format::op::{Condition, Lifetime, Op};
use leeward_format::partition::Partition;
use leeward_platform::{Nanos, Rng};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Acknowledged(Nanos),
    NotDone,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: usize,
    called: Nanos,
    outcome: Outcome,
}

/// A loss of power.
#[derive(Clone, Debug)]
struct Loss {
    at: Nanos,
    /// Earlier deaths of processes that had not been replaced for long. Their unsynced writes were still in page caches.
    deaths: Vec<Nanos>,
}

/// All keys that were written once.
#[derive(Debug)]
pub(crate) struct Ledger {
    entries: Vec<Entry>,
    /// Losses of power that may have taken writes.
    losses: Vec<Loss>,
    /// An acknowledged write that is older than this at a loss of power survives it.
    window: Nanos,
    /// How keys are assigned to regions, and the first keys or tokens of all regions but the first, ascending. Keys of one of
    /// these regions were always in the same region.
    partition: Partition,
    splits: Vec<Bytes>,
}

/// The key of entry `number`. Keys are not in order of time, so that compactions overlap.
fn key(number: usize) -> Bytes {
    let side = if number.is_multiple_of(3) { "z" } else { "b" };
    Bytes::from(format!("{side}{:08}", (number as u64).wrapping_mul(2_654_435_761) % 100_000_000))
}

fn value(number: usize, bytes: usize) -> Bytes {
    let mut value = format!("{number}:").into_bytes();
    value.resize(value.len() + bytes, b'a' + (number % 26) as u8);
    Bytes::from(value)
}

impl Ledger {
    pub(crate) fn new(window: Nanos) -> Ledger {
        Ledger { entries: Vec::new(), losses: Vec::new(), window, partition: Partition::Range, splits: Vec::new() }
    }

    /// Sets the first keys or tokens of all regions but the first, ascending.
    pub(crate) fn set_splits(&mut self, partition: Partition, splits: Vec<Bytes>) {
        (self.partition, self.splits) = (partition, splits);
    }

    /// The write of a new key with a value of about `bytes` bytes.
    pub(crate) fn write(&mut self, now: Nanos, bytes: usize) -> (Op, usize) {
        let number = self.entries.len();
        self.entries.push(Entry { bytes, called: now, outcome: Outcome::Unknown });
        let (key, value) = (key(number), value(number, bytes));
        (Op::Put { key, value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever }, number)
    }

    pub(crate) fn acknowledged(&mut self, now: Nanos, number: usize) {
        self.entries[number].outcome = Outcome::Acknowledged(now);
    }

    pub(crate) fn not_done(&mut self, number: usize) {
        self.entries[number].outcome = Outcome::NotDone;
    }

    /// The newest writes may be gone. So may writes that were the newest when one of these processes died.
    pub(crate) fn power_lost(&mut self, now: Nanos, deaths: &[Nanos]) {
        self.losses.push(Loss { at: now, deaths: deaths.to_vec() });
    }

    /// The read of some key, and whether its value must be found.
    pub(crate) fn read(&self, rng: &mut Rng) -> Option<(Op, usize, bool)> {
        if self.entries.is_empty() {
            return None;
        }
        let number = rng.index(self.entries.len());
        let must = matches!(self.entries[number].outcome, Outcome::Acknowledged(_)) && self.losses.is_empty();
        Some((Op::Get { key: key(number) }, number, must))
    }

    /// Judges the answer to a read. With `must`, the value had to be found when the read began.
    pub(crate) fn check_read(&self, number: usize, must: bool, found: Option<&Bytes>) -> Result<(), String> {
        let entry = self.entries[number];
        let right = match found {
            Some(found) => entry.outcome != Outcome::NotDone && *found == value(number, entry.bytes),
            None => !(must && self.losses.is_empty()),
        };
        if right { Ok(()) } else { Err(self.describe(number, found)) }
    }

    /// Every key.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Bytes> {
        (0..self.entries.len()).map(key)
    }

    /// Judges the content of the store, and removes the keys of the ledger from it.
    pub(crate) fn check(&self, content: &mut BTreeMap<Bytes, Bytes>) -> Result<(), String> {
        let found: Vec<Option<Bytes>> = self.keys().map(|key| content.remove(&key)).collect();
        for (number, found) in found.iter().enumerate() {
            let entry = self.entries[number];
            let right = match (found, entry.outcome) {
                (Some(_), Outcome::NotDone) => false,
                (Some(found), _) => *found == value(number, entry.bytes),
                (None, Outcome::Acknowledged(at)) => self.possible_losses(entry.called, at).next().is_some(),
                (None, _) => true,
            };
            if !right {
                return Err(self.describe(number, found.as_ref()));
            }
        }
        self.check_prefix(&found)
    }

    /// The losses of power that may have taken a write. Such a loss came while the answer was in flight, or up to a window after
    /// the acknowledgement. Or a process died in that time, without having synced the write, and the loss came later.
    fn possible_losses(&self, called: Nanos, acknowledged: Nanos) -> impl Iterator<Item = Nanos> + '_ {
        let is_newest = move |instant: &Nanos| called <= *instant && acknowledged + self.window > *instant;
        let takes = move |loss: &&Loss| is_newest(&loss.at) || loss.deaths.iter().any(is_newest);
        self.losses.iter().filter(takes).map(|loss| loss.at)
    }

    /// No write is gone while a later write of the same region is there that was made before the power loss.
    fn check_prefix(&self, found: &[Option<Bytes>]) -> Result<(), String> {
        for (lost, lost_at) in self.acknowledged_entries().filter(|(number, _)| found[*number].is_none()) {
            // The loss that took the write must have taken every later write too.
            let mut survivor = None;
            for loss in self.possible_losses(self.entries[lost].called, lost_at) {
                survivor = self.survivor(found, lost, lost_at, loss).map(|later| (later, loss));
                if survivor.is_none() {
                    break;
                }
            }
            if let Some(((later, at), loss)) = survivor {
                return Err(format!(
                    "{:?}, acknowledged at {}, is gone, and {:?}, called at {} and acknowledged at {}, is there: the power was lost at {}",
                    key(lost),
                    lost_at.0,
                    key(later),
                    self.entries[later].called.0,
                    at.0,
                    loss.0
                ));
            }
        }
        Ok(())
    }

    /// A write of the same region that was made between the lost one and `loss`, and is still there.
    fn survivor(&self, found: &[Option<Bytes>], lost: usize, lost_at: Nanos, loss: Nanos) -> Option<(usize, Nanos)> {
        self.acknowledged_entries().find(|(number, at)| {
            found[*number].is_some()
                && self.entries[*number].called > lost_at
                && *at < loss
                && self.side(*number) == self.side(lost)
        })
    }

    fn acknowledged_entries(&self) -> impl Iterator<Item = (usize, Nanos)> {
        self.entries.iter().enumerate().filter_map(|(number, entry)| match entry.outcome {
            Outcome::Acknowledged(at) => Some((number, at)),
            _ => None,
        })
    }

    /// The region of a key, as an index.
    fn side(&self, number: usize) -> usize {
        let key = key(number);
        let place = self.partition.place(&key);
        self.splits.partition_point(|split| split[..] <= place[..])
    }

    fn describe(&self, number: usize, found: Option<&Bytes>) -> String {
        let found = found.map(|value| String::from_utf8_lossy(&value[..value.len().min(20)]).into_owned());
        format!("{:?}, written once, {:?}, reads as {found:?}", key(number), self.entries[number])
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
