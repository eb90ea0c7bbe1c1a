//! Keys that are written once, and expire. The wall clocks of machines differ by at most [`SKEW`]. So within this time of its
//! expiry a pair may or may not be there. Before, it must be there; after, it must not. That holds for every node that
//! answers, even after a failover of the primary that wrote the pair.

use bytes::Bytes;
use leeward_format::op::{Condition, Lifetime, Op};
use leeward_platform::{Nanos, Rng};
use std::collections::BTreeMap;

/// The most by which two wall clocks differ.
pub(crate) const SKEW: Nanos = Nanos::from_millis(400);

#[derive(Debug)]
struct Entry {
    called: Nanos,
    lifetime: Nanos,
    acknowledged: Option<Nanos>,
}

/// All keys that expire.
#[derive(Debug, Default)]
pub(crate) struct Expiring {
    entries: Vec<Entry>,
    /// A loss of power may have taken writes.
    may_lose: bool,
}

/// The key with this number. Half of the keys are on either side of the split.
fn key(number: usize) -> Bytes {
    let side = if number.is_multiple_of(2) { "e" } else { "x" };
    Bytes::from(format!("{side}{number:06}"))
}

/// Whether a key is one that expires. What a scan finds of these keys depends on its time.
pub(crate) fn is_one(key: &[u8]) -> bool {
    key.starts_with(b"e") || key.starts_with(b"x")
}

fn value(number: usize) -> Bytes {
    Bytes::from(format!("{number}:{}", "y".repeat(number * 37 % 500)))
}

impl Expiring {
    /// The write of a new key.
    pub(crate) fn write(&mut self, now: Nanos, rng: &mut Rng) -> (Op, usize) {
        let (number, ms) = (self.entries.len(), rng.between(1, 6_000));
        self.entries.push(Entry { called: now, lifetime: Nanos::from_millis(ms), acknowledged: None });
        let (key, value, lifetime) = (key(number), value(number), Lifetime::For(ms));
        (Op::Put { key, value, when: Condition::Always, want_old: false, lifetime }, number)
    }

    pub(crate) fn acknowledged(&mut self, now: Nanos, number: usize) {
        self.entries[number].acknowledged = Some(now);
    }

    /// The newest writes may be gone.
    pub(crate) fn power_lost(&mut self) {
        self.may_lose = true;
    }

    /// The read of some key.
    pub(crate) fn read(&self, rng: &mut Rng) -> Option<(Op, usize)> {
        // Mostly one that was written not long ago.
        let newest = self.entries.len().checked_sub(1)?;
        let number = newest - rng.index(self.entries.len().min(20));
        Some((Op::Get { key: key(number) }, number))
    }

    /// Judges the answer to a read that was called and answered at these times.
    pub(crate) fn check(
        &self,
        number: usize,
        (called, answered): (Nanos, Nanos),
        found: Option<&Bytes>,
    ) -> Result<(), String> {
        let Entry { called: put, lifetime, acknowledged } = self.entries[number];
        let was_there = acknowledged.is_some_and(|at| at < called);
        let right = match found {
            Some(found) => {
                let is_over = acknowledged.is_some_and(|at| called > at + lifetime + SKEW);
                *found == value(number) && !is_over
            }
            None => !was_there || self.may_lose || answered + SKEW >= put + lifetime,
        };
        let entry = &self.entries[number];
        let failure =
            || format!("{:?}, {entry:?}, read {called:?} to {answered:?}, is there: {}", key(number), found.is_some());
        right.then_some(()).ok_or_else(failure)
    }

    /// Judges what a scan that began at `now` found of these keys, and removes them from `content`.
    pub(crate) fn check_content(&self, now: Nanos, content: &mut BTreeMap<Bytes, Bytes>) -> Result<(), String> {
        for number in 0..self.entries.len() {
            if let Some(found) = content.remove(&key(number)) {
                self.check(number, (now, now), Some(&found))?;
            }
        }
        Ok(())
    }
}
