//! What may be gone of a table that acknowledges at the last flush: of a region whose primary died its newest writes, no more
//! of them than the primary may acknowledge unconfirmed, and none that is older than one which is left. Any thread may call
//! any method.
//!
//! The [ledger](crate::ledger) drops what an acknowledged write has overwritten. For such a table it does so only when so much
//! came after that write that its primary's backups must have confirmed it; until then the write is among the *newest* of its
//! region. A kill turns those into a [`Loss`]: they, and what they had overwritten, stay possible.

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
    /// The clock at its last kill: an answer to what was sent before may be the killed primary's.
    killed: u64,
    losses: Vec<Loss>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Newest {
    /// First keys of the regions, ascending.
    starts: Vec<Bytes>,
    regions: Vec<Mutex<Region>>,
    mix: Mix,
    /// Bytes of a log that may be acknowledged and not confirmed.
    most_bytes: u64,
    /// Writes under way at a time: their answers come in any order.
    under_way: usize,
    /// What records held in the end, of those that could hold several things: the write, and when it was acknowledged, if it
    /// was.
    found: Mutex<HashMap<u64, (u64, Option<u64>)>>,
}

impl Newest {
    /// Of a table with regions that begin at `starts`, ascending.
    pub(crate) fn new(starts: Vec<Bytes>, mix: Mix, most_bytes: u64, under_way: usize) -> Newest {
        let regions = starts.iter().map(|_| Mutex::default()).collect();
        Newest { starts, regions, mix, most_bytes, under_way, found: Mutex::default() }
    }

    /// A write was acknowledged; answers those that are confirmed for certain because of it.
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

    /// The primary of the region that begins at `start` was killed, at this time of the clock.
    pub(crate) fn killed(&self, start: &[u8], clock: u64) {
        let mut region = self.regions[self.region(start)].lock();
        region.killed = clock;
        region.bytes = 0;
        let loss = region.newest.drain(..).collect();
        region.losses.push(loss);
    }

    /// No primary dies any more: answers what was not confirmed for certain before.
    pub(crate) fn settle(&self) -> Vec<Acknowledged> {
        let take = |region: &Mutex<Region>| {
            let mut region = region.lock();
            region.bytes = 0;
            region.newest.drain(..).collect::<Vec<_>>()
        };
        self.regions.iter().flat_map(take).collect()
    }

    /// A record that could hold several things holds the value of write `sequence`, with the time of its answer.
    pub(crate) fn found(&self, record: u64, sequence: u64, at: Option<u64>) {
        self.found.lock().insert(record, (sequence, at));
    }

    /// How many writes kills have taken as they may, and what was taken though a later write of its region was left.
    pub(crate) fn judge(&self) -> (u64, Vec<String>) {
        let found = self.found.lock();
        let (mut taken, mut gaps) = (0, Vec::new());
        for (start, region) in self.starts.iter().zip(&self.regions) {
            for loss in &region.lock().losses {
                let holds = |write: &Acknowledged| found.get(&write.record).copied();
                // Of two writes at the same time either may be the later.
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
