//! Counters of direct reads. Plain data; any thread.

use super::index::{LookupEnd, Outcome};
use leeward_format::hash_index::Reason;

/// What a session's direct reads have come to so far: [`Session::direct_stats`](crate::Session::direct_stats).
///
/// A get that is not a hit goes the usual way. Gets of regions without an index are not counted, nor are gets that come
/// while the session has an unanswered write of the key, or that find memory that is not mapped yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Gets that were answered by one-sided reads alone.
    pub hits: u64,
    /// Further tries of gets that met a change of the index, hits or not.
    pub retries: u64,
    /// Gets of keys that are not in the index, or not of the region as the primary has granted it. The key may exist.
    pub absent: u64,
    /// Gets that found no consistent bucket and record in any try.
    pub changing: u64,
    /// Gets that found a value, but could not know that its primary was still the only one: its lease had run out, or
    /// the last answer about its clock was too long ago.
    pub too_old: u64,
    /// Gets that found the right to read too small, or gone: the index has grown, or its memory was revoked.
    pub refused: u64,
    /// Questions to primaries for the right to read. A session asks again every 250 ms while it reads.
    pub questions: u64,
}

impl DirectStats {
    /// Counts a look-up.
    pub(super) fn count(&mut self, found: &LookupEnd) {
        self.retries += u64::from(found.tries.saturating_sub(1));
        let counter = match &found.outcome {
            Outcome::Value { .. } => &mut self.hits,
            Outcome::Ask(Reason::Absent | Reason::OutOfBounds | Reason::LongChain) => &mut self.absent,
            Outcome::Ask(Reason::Changing) => &mut self.changing,
            Outcome::TooOld => &mut self.too_old,
            Outcome::Ask(Reason::NotGranted) | Outcome::Refused => &mut self.refused,
            Outcome::NotMapped { .. } => return,
        };
        *counter += 1;
    }
}

impl std::ops::AddAssign for DirectStats {
    fn add_assign(&mut self, other: DirectStats) {
        self.hits += other.hits;
        self.retries += other.retries;
        self.absent += other.absent;
        self.changing += other.changing;
        self.too_old += other.too_old;
        self.refused += other.refused;
        self.questions += other.questions;
    }
}
