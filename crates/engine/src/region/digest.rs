//! Digests of ranges of keys, which prove that two copies hold the same pairs, however their levels came about: also an
//! index that a backup has built by itself.
//!
//! Every copy is read as of the same LSN and instant. A copy that has an LSN after it in its levels cannot be read so:
//! a compaction keeps the newest version of a key. The instant must lie ahead of the clocks by which compactions have
//! dropped expired pairs, at this copy and at those that its levels came from.
//!
//! Any thread; a digest reads the device.

use super::Region;
use crate::scan::ScanBounds;
use crate::version::Snapshot;
use bytes::Bytes;
use leeward_format::op::{MOST_RANGES, RangeAnswer, RangeDigest, RangeHasher};
use leeward_format::{Lsn, UnixMs};

/// Most bytes of the keys between ranges.
const MOST_BOUND_BYTES: usize = 1 << 20;

/// The state of a region at one LSN, if it can be shown.
#[derive(Debug)]
pub enum SnapshotAt {
    /// It shows exactly that LSN.
    Shown(Snapshot),
    /// The region does not have that LSN yet.
    NotYet,
    /// Its levels have writes after that LSN.
    TooLate,
}

impl Region {
    /// The region at exactly `lsn`, which must be committed, without the pairs that have expired by `now`.
    pub fn snapshot_at(&self, lsn: Lsn, now: UnixMs) -> SnapshotAt {
        // The view that is loaded afterwards has everything up to that LSN.
        if self.last_lsn() < lsn {
            return SnapshotAt::NotYet;
        }
        let snapshot = self.snapshot(lsn, now);
        if snapshot.lsn() == lsn { SnapshotAt::Shown(snapshot) } else { SnapshotAt::TooLate }
    }

    /// Keys that cut the region into ranges of about a leaf segment of its deepest level: ascending, at most
    /// [`MOST_RANGES`] less one, and of 1 MiB together. Where that would be more, neighbours are one range. Reads
    /// nothing from the device.
    pub fn range_bounds(&self) -> Vec<Bytes> {
        let version = self.view.load_full().version.clone();
        let Some(level) = version.levels().iter().rfind(|level| !level.is_empty()) else { return Vec::new() };
        let segments = level.segments().len();
        let mut every = segments.div_ceil(MOST_RANGES);
        loop {
            let fences = || (every..segments).step_by(every).map(|i| level.fence(i));
            if fences().map(<[u8]>::len).sum::<usize>() <= MOST_BOUND_BYTES {
                return fences().map(Bytes::copy_from_slice).collect();
            }
            every *= 2;
        }
    }
}

impl Snapshot {
    /// Digests of the consecutive ranges that begin at `start` and have these exclusive `ends`; the first of them goes on
    /// behind `so_far`. Stops after about `most` bytes of keys and values: between two ranges, or two pieces of one.
    /// What cannot be read is the damage of its range, which ends the answer.
    pub fn range_digests(&self, start: &Bytes, ends: &[Option<Bytes>], so_far: &RangeDigest, most: u64) -> RangeAnswer {
        let (mut whole, mut left) = (Vec::new(), most);
        let (mut start, mut so_far) = (start.clone(), so_far.clone());
        for end in ends {
            if left == 0 {
                break;
            }
            match self.range_digest((&start, end), so_far, &mut left) {
                Stopped::AtEnd(digest) => {
                    let is_damaged = digest.damage.is_some();
                    whole.push(digest);
                    if is_damaged {
                        break;
                    }
                }
                Stopped::Before(next, so_far) => return RangeAnswer::Digests { whole, begun: Some((next, so_far)) },
            }
            // Nothing follows a range without end.
            let Some(end) = end else { break };
            (start, so_far) = (end.clone(), RangeDigest::default());
        }
        RangeAnswer::Digests { whole, begun: None }
    }

    fn range_digest(&self, (start, end): (&Bytes, &Option<Bytes>), so_far: RangeDigest, left: &mut u64) -> Stopped {
        let bounds = ScanBounds { start: start.clone(), end: end.clone(), ..ScanBounds::default() };
        let mut cursor = self.cursor(bounds);
        let mut hasher = RangeHasher::new(so_far);
        loop {
            let pair = match cursor.next() {
                Ok(Some(pair)) => pair,
                Ok(None) => return Stopped::AtEnd(hasher.finish()),
                Err(error) => {
                    let damage = Some(error.to_string());
                    return Stopped::AtEnd(RangeDigest { damage, ..hasher.finish() });
                }
            };
            *left = left.saturating_sub((pair.key.len() + pair.value.len()) as u64 + 1);
            if hasher.add(&pair.key, pair.lsn, pair.expires, &pair.value) && *left == 0 {
                let next = [&pair.key[..], &[0]].concat();
                return Stopped::Before(next.into(), hasher.so_far().clone());
            }
        }
    }
}

/// Where the digest of a range has stopped.
enum Stopped {
    AtEnd(RangeDigest),
    /// Before this key.
    Before(Bytes, RangeDigest),
}
