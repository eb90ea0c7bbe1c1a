//! The values that each record may hold at the end of a run, by the acknowledged writes and those with an unknown
//! outcome. Any thread may call any method.
//!
//! Every write takes a sequence number from one clock before it is sent, and reads the clock again when it is
//! acknowledged. Write A is certainly overwritten if it was acknowledged before write B was sent, and B was
//! acknowledged. The record may hold the value of any other write. Usually that is one write, so the ledger keeps one
//! number for a record. It keeps a set only for concurrent writes to one record, and for writes with an unknown
//! outcome.
//!
//! If a table may lose its [newest](crate::newest) writes with a primary, the ledger drops overwritten writes later.
//!
//! The clock starts at the time of day in nanoseconds, so a value of an earlier run is never taken for one of this run.

use crate::newest::{Acknowledged, Newest};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

/// Locks over which the records are spread.
const SHARDS: u64 = 64;
/// Stands for the value, or the absence, that a record had before this run.
const BEFORE: u64 = 0;

#[derive(Clone, Copy, Debug)]
struct Write {
    sequence: u64,
    /// The clock when it was acknowledged. `None`: the write is in flight, or its outcome is unknown.
    acknowledged: Option<u64>,
}

#[derive(Debug, Default)]
struct Shard {
    /// At index `n`, for record `n * SHARDS + shard`: the only write that its value can come from.
    settled: Vec<u64>,
    /// Records with more than one possibility, or with writes under way.
    open: HashMap<u64, Vec<Write>>,
}

/// Remembers the writes of a run, or only numbers them.
#[derive(Debug)]
pub(crate) struct Ledger {
    first: u64,
    clock: AtomicU64,
    shards: Option<Vec<Mutex<Shard>>>,
    newest: Option<Newest>,
}

impl Ledger {
    /// `remember`: keep what is needed to [`Ledger::check`] records later.
    pub(crate) fn new(remember: bool) -> Ledger {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
        let shards = remember.then(|| (0..SHARDS).map(|_| Mutex::default()).collect());
        Ledger { first: since, clock: AtomicU64::new(since), shards, newest: None }
    }

    /// For a table that may lose its newest writes with a primary.
    pub(crate) fn with_newest(self, newest: Newest) -> Ledger {
        Ledger { newest: Some(newest), ..self }
    }

    /// A write to `record` is about to be sent; answers its sequence number.
    pub(crate) fn begin(&self, record: u64) -> u64 {
        let Some(mut shard) = self.shard(record) else { return self.tick() };
        let sequence = self.tick();
        let at = (record / SHARDS) as usize;
        if shard.settled.len() <= at {
            shard.settled.resize(at + 1, BEFORE);
        }
        let settled = shard.settled[at];
        // The settled write was acknowledged before this one began, so its sequence number can stand for that time.
        let known = || vec![Write { sequence: settled, acknowledged: Some(settled) }];
        shard.open.entry(record).or_insert_with(known).push(Write { sequence, acknowledged: None });
        sequence
    }

    /// The write was acknowledged: it must not be lost.
    pub(crate) fn acknowledged(&self, record: u64, sequence: u64) {
        let Some(mut shard) = self.shard(record) else { return };
        let at = self.tick();
        let writes = shard.open.get_mut(&record).expect("the write was begun");
        let write = writes.iter_mut().find(|write| write.sequence == sequence).expect("the write was begun");
        write.acknowledged = Some(at);
        let Some(newest) = &self.newest else { return shard.overwritten(record, None) };
        drop(shard);
        self.confirm(newest.push(Acknowledged { record, sequence, at }));
    }

    /// The primary of the region that begins at `start` was killed, and its newest writes may be gone.
    pub(crate) fn newest_lost(&self, start: &[u8]) {
        if let Some(newest) = &self.newest {
            newest.killed(start, self.tick());
        }
    }

    /// No primary dies any more: records may be [checked](Ledger::check).
    pub(crate) fn settle(&self) {
        self.newest.iter().for_each(|newest| self.confirm(newest.settle()));
    }

    /// How many of the newest writes are lost as the table allows, and descriptions of losses that it does not allow.
    /// Call it after every record was checked.
    pub(crate) fn judge_newest(&self) -> Option<(u64, Vec<String>)> {
        self.newest.as_ref().map(Newest::judge)
    }

    /// These writes are confirmed: no death of a primary may lose them.
    fn confirm(&self, writes: Vec<Acknowledged>) {
        for Acknowledged { record, sequence, .. } in writes {
            self.shard(record).into_iter().for_each(|mut shard| shard.overwritten(record, Some(sequence)));
        }
    }

    /// The write was refused: it changed nothing.
    pub(crate) fn refused(&self, record: u64, sequence: u64) {
        let Some(mut shard) = self.shard(record) else { return };
        shard.open.get_mut(&record).expect("the write was begun").retain(|write| write.sequence != sequence);
        shard.settle(record);
    }

    /// Records that this run wrote to.
    pub(crate) fn records(&self) -> Vec<u64> {
        let mut records = Vec::new();
        for (index, shard) in self.shards.iter().flatten().enumerate() {
            let shard = shard.lock();
            let written = (0..).zip(&shard.settled).filter(|(_, sequence)| **sequence != BEFORE);
            records.extend(written.map(|(at, _): (u64, _)| at * SHARDS + index as u64));
            let place = |record: &u64| (*record / SHARDS) as usize;
            records.extend(shard.open.keys().filter(|record| shard.settled[place(record)] == BEFORE));
        }
        records.sort_unstable();
        records
    }

    /// Whether a record may hold the value of write `found`; `None`: it has no value.
    pub(crate) fn check(&self, record: u64, found: Option<u64>) -> bool {
        let before = found.is_none_or(|sequence| sequence < self.first);
        let found = found.filter(|_| !before).unwrap_or(BEFORE);
        if let Some((newest, shard)) = self.newest.as_ref().zip(self.shard(record)) {
            let write = shard.open.get(&record).and_then(|writes| writes.iter().find(|write| write.sequence == found));
            write.into_iter().for_each(|write| newest.found(record, found, write.acknowledged));
        }
        self.possible(record).contains(&found)
    }

    /// The writes whose value a record may hold.
    pub(crate) fn possible(&self, record: u64) -> Vec<u64> {
        let Some(shard) = self.shard(record) else { return Vec::new() };
        match shard.open.get(&record) {
            Some(writes) => writes.iter().map(|write| write.sequence).collect(),
            None => shard.settled.get((record / SHARDS) as usize).copied().into_iter().collect(),
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn shard(&self, record: u64) -> Option<parking_lot::MutexGuard<'_, Shard>> {
        Some(self.shards.as_ref()?[(record % SHARDS) as usize].lock())
    }
}

impl Shard {
    /// Forgets writes that were acknowledged before write `sequence` was sent; `None`: before the newest acknowledged
    /// one was.
    fn overwritten(&mut self, record: u64, sequence: Option<u64>) {
        let Some(writes) = self.open.get_mut(&record) else { return };
        let acknowledged = writes.iter().filter(|write| write.acknowledged.is_some());
        let Some(newest) = sequence.or_else(|| acknowledged.map(|write| write.sequence).max()) else { return };
        writes.retain(|write| write.acknowledged.is_none_or(|at| at >= newest));
        self.settle(record);
    }

    /// Replaces the set by one number if it has one acknowledged write.
    fn settle(&mut self, record: u64) {
        if let Some([Write { sequence, acknowledged: Some(_) }]) = self.open.get(&record).map(Vec::as_slice) {
            self.settled[(record / SHARDS) as usize] = *sequence;
            self.open.remove(&record);
        }
    }
}
