//! Which writes a table with `last-flush` may lose when a primary dies: the newest writes of a region, and no more
//! bytes than the primary may acknowledge before a backup has confirmed them. A write that is older than one that
//! survived may not be lost. Any thread may call any method.
//!
//! The [ledger](crate::ledger) drops what an acknowledged write has overwritten. For such a table it does so only once
//! so many bytes were written after that write that the backups must have confirmed it. Until then the write is among
//! the *newest* of its region. A kill turns those into a [`Loss`]: they, and the writes that they overwrote, stay
//! possible.

use crate::keys::{KEY_BYTES, LARGEST_PAIR_BYTES, Mix, key};
use bytes::Bytes;
use leeward_format::record::record_bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

#[cfg(test)]
#[path = "newest_tests.rs"]
mod tests;

/// The log record of the largest pair.
const LARGEST_RECORD_BYTES: u64 = record_bytes(KEY_BYTES, LARGEST_PAIR_BYTES - KEY_BYTES, None) as u64;

/// An acknowledged write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) record: u64,
    pub(crate) sequence: u64,
    /// The ledger's clock when the answer came.
    pub(crate) at: u64,
}

/// The newest writes of a region when its primary was killed.
type Loss = Vec<Acknowledged>;

#[derive(Debug, Default)]
struct Region {
    /// In the order of their answers.
    newest: VecDeque<Acknowledged>,
    /// Bytes of their records in a log.
    bytes: u64,
    /// The clock at its last kill. An answer to a write that was sent before may come from the killed primary.
    killed: u64,
    losses: Vec<Loss>,
}

/// The newest writes of all regions, and the losses of all kills.
#[derive(Debug)]
pub(crate) struct Newest {
    /// First keys of the regions, ascending.
    starts: Vec<Bytes>,
    regions: Vec<Mutex<Region>>,
    mix: Mix,
    /// Bytes of log records that a primary may acknowledge before a backup has confirmed them.
    most_bytes: u64,
    /// Most writes that are in flight at a time. Their answers come in any order.
    under_way: usize,
    /// For each record that could hold one of several values: the write whose value it held at the end, and when that
    /// write was acknowledged, if it was.
    found: Mutex<HashMap<u64, (u64, Option<u64>)>>,
}

impl Newest {
    /// For a table with regions that begin at `starts`, ascending.
    pub(crate) fn new(starts: Vec<Bytes>, mix: Mix, most_bytes: u64, under_way: usize) -> Newest {
        let regions = starts.iter().map(|_| Mutex::default()).collect();
        Newest { starts, regions, mix, most_bytes, under_way, found: Mutex::default() }
    }

    /// A write was acknowledged. Returns the writes that must be confirmed by now.
    pub(crate) fn push(&self, write: Acknowledged) -> Vec<Acknowledged> {
        let mut region = self.regions[self.region(&key(write.record))].lock();
        if write.sequence < region.killed {
            return Vec::new();
        }
        region.bytes += self.bytes(write);
        region.newest.push_back(write);
        let mut confirmed = Vec::new();
        while region.newest.len() > self.under_way {
            let oldest = region.newest[0];
            let left = region.bytes - self.bytes(oldest);
            if left < self.most_bytes + self.under_way as u64 * LARGEST_RECORD_BYTES {
                break;
            }
            region.newest.pop_front();
            region.bytes = left;
            confirmed.push(oldest);
        }
        confirmed
    }

    /// The primary of the region that begins at `start` was killed when the ledger's clock was at `clock`.
    pub(crate) fn killed(&self, start: &[u8], clock: u64) {
        let mut region = self.regions[self.region(start)].lock();
        region.killed = clock;
        region.bytes = 0;
        let loss = region.newest.drain(..).collect();
        region.losses.push(loss);
    }

    /// No primary dies any more. Returns the writes that were still among the newest.
    pub(crate) fn settle(&self) -> Vec<Acknowledged> {
        let take = |region: &Mutex<Region>| {
            let mut region = region.lock();
            region.bytes = 0;
            region.newest.drain(..).collect::<Vec<_>>()
        };
        self.regions.iter().flat_map(take).collect()
    }

    /// A record that could hold several values holds that of write `sequence`, which was acknowledged at `at`.
    pub(crate) fn found(&self, record: u64, sequence: u64, at: Option<u64>) {
        self.found.lock().insert(record, (sequence, at));
    }

    /// The number of writes that kills have lost, and descriptions of those that were lost although a later write of
    /// their region survived.
    pub(crate) fn judge(&self) -> (u64, Vec<String>) {
        let found = self.found.lock();
        let (mut taken, mut gaps) = (0, Vec::new());
        for (start, region) in self.starts.iter().zip(&self.regions) {
            for loss in &region.lock().losses {
                let holds = |write: &Acknowledged| found.get(&write.record).copied();
                // Of two concurrent writes either may be the later.
                let is_older = |write: &&Acknowledged| {
                    holds(write).is_some_and(|(_, at)| at.is_some_and(|at| at < write.sequence))
                };
                let lost = loss.iter().filter(is_older);
                taken += lost.clone().count() as u64;
                let first = lost.min_by_key(|write| write.at);
                let left = loss.iter().filter(|write| holds(write).is_some_and(|(held, _)| held == write.sequence));
                let last = left.max_by_key(|write| write.sequence);
                if let Some((lost, left)) = first.zip(last).filter(|(lost, left)| lost.at < left.sequence) {
                    gaps.push(format!(
                        "region {:?}: write {} of record {} is gone, and write {} of record {}, sent after its answer, is there",
                        start.escape_ascii().to_string(),
                        lost.sequence,
                        lost.record,
                        left.sequence,
                        left.record
                    ));
                }
            }
        }
        (taken, gaps)
    }

    fn region(&self, key: &[u8]) -> usize {
        self.starts.partition_point(|start| &start[..] <= key).saturating_sub(1)
    }

    fn bytes(&self, write: Acknowledged) -> u64 {
        record_bytes(KEY_BYTES, self.mix.value_bytes(write.record), None) as u64
    }
}
