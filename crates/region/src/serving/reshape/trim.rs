//! A split leaves pairs in a region that are not its own. The region's primary deletes them, piece by piece, by ordinary
//! writes.
//!
//! ```text
//! Due --a look finds the first foreign pairs--> a range is deleted --> Collecting --compactions drop them--> Due ... --> Done
//! ```
//! Invariants:
//! - The primary deletes only what the configuration says is another region's. It checks that again when it appends the delete.
//! - Nothing is remembered. Deleted pairs cannot be seen, so the next primary finds by a look what is left.

use crate::job::{Outcome, UpkeepDone};
use crate::serving::Serving;
use bytes::Bytes;
use leeward_engine::region::Piece;
use leeward_engine::{Error, Region, Write};
use leeward_format::{Lsn, SegmentId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};

/// How long the trim waits until compactions have collected a piece.
const COLLECT_TIMEOUT: Nanos = Nanos::from_secs(10);
/// How long the trim backs off when something was in the way.
const BACKOFF: Nanos = Nanos::from_millis(500);

/// How far a region has come with its trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trim {
    /// There may be foreign pairs. A job looks for them from this time on.
    Due { from: Nanos },
    /// A job looks.
    Looking,
    /// Compactions are dropping what the record at `lsn` deletes.
    Collecting { lsn: Lsn, since: Nanos },
    /// All pairs that are left are the region's own.
    Done,
}

impl Trim {
    /// No job has looked yet.
    pub(crate) const FIRST: Trim = Trim::Due { from: Nanos::ZERO };

    /// L0s are to be compacted at once: what the last delete covers is to go, whether clients write more or not.
    pub(super) fn is_urgent(&self, region: &Region) -> bool {
        matches!(self, Trim::Collecting { lsn, .. } if !region.levels_hold(*lsn))
    }
}

/// First key, and key after the last.
type Bounds = (Bytes, Option<Bytes>);

/// The ranges of a region that are not its own: below its first key, and from its end on.
type Foreign = [Option<(Bytes, Option<Bytes>)>; 2];

fn foreign((first, end): &Bounds) -> Foreign {
    let below = Some((Bytes::new(), Some(first.clone()))).filter(|_| !first.is_empty());
    [below, end.clone().map(|end| (end, None))]
}

fn is_foreign((first, edge): &Bounds, (start, end): &Piece) -> bool {
    let is_above = edge.as_ref().is_some_and(|edge| start >= edge);
    is_above || end.as_ref().is_some_and(|end| end <= first)
}

impl Serving {
    /// The bounds to which the region is trimmed: those of its configuration.
    fn trimmed_to(&self) -> Bounds {
        let mut bounds = self.key_bounds();
        if planted(Bug::TrimBeforeSplit)
            && let Some(key) = self.reshape().split.key()
        {
            bounds.1 = Some(key.clone());
        }
        bounds
    }

    /// Advances the trim. To be called in every turn in which operations begin.
    pub(crate) fn trim(&mut self, now: Nanos) {
        match self.reshape().trim {
            Trim::Collecting { lsn, since } if self.region().has_collected(lsn) || now - since > COLLECT_TIMEOUT => {
                self.reshape_mut().trim = Trim::Due { from: now };
            }
            Trim::Due { from } if now >= from => {
                let is_whole = self.primary().config().inherited_below == SegmentId(0);
                if (is_whole && !planted(Bug::TrimBeforeSplit)) || !self.may_delete() {
                    return;
                }
                let bounds = self.trimmed_to();
                self.reshape_mut().trim = Trim::Looking;
                let (region, wall) = (self.region().clone(), self.wall_now());
                self.spawn_in_background(Activity::Compaction.of_primary(), move || {
                    let look = |(start, end): &(Bytes, Option<Bytes>)| {
                        region.first_piece(start, end.as_ref(), wall).transpose()
                    };
                    let found = foreign(&bounds).iter().flatten().find_map(look).transpose();
                    Outcome::Upkeep(UpkeepDone::LookedForForeign(found))
                });
            }
            _ => {}
        }
    }

    /// A look has found the first pairs that are not the region's own, or none.
    pub(crate) fn found_foreign(&mut self, now: Nanos, found: Result<Option<Piece>, Error>) -> Result<(), Error> {
        let later = Trim::Due { from: now + BACKOFF };
        self.reshape_mut().trim = match found {
            Err(error) => {
                self.reshape_mut().trim = later;
                return Err(error);
            }
            Ok(None) if planted(Bug::TrimBeforeSplit) => later,
            Ok(None) => Trim::Done,
            Ok(Some(piece)) => self.delete_foreign(now, &piece).unwrap_or(later),
        };
        Ok(())
    }

    /// The region has no pairs left that are another region's.
    pub fn is_trimmed(&self) -> bool {
        self.reshape().trim == Trim::Done || self.primary().config().inherited_below == SegmentId(0)
    }

    fn may_delete(&self) -> bool {
        let (in_sync, needed) = self.primary().in_sync();
        self.is_open()
            && self.is_active()
            && !self.reshape().is_merge_target()
            && in_sync >= needed
            && !self.region().volume().is_failed()
    }

    /// `None`: something is in the way.
    fn delete_foreign(&mut self, now: Nanos, piece: &Piece) -> Option<Trim> {
        if !self.may_delete() || !is_foreign(&self.trimmed_to(), piece) {
            return None;
        }
        let (start, end) = piece;
        let appended = self.region().append(&[Write::delete_range(start, end.as_deref())]).ok()?;
        self.counters_mut().trims += 1;
        Some(Trim::Collecting { lsn: appended.last, since: now })
    }

    /// Whether the region has pairs of other regions. Reads the device: for tests that check a node, not for the node itself.
    pub fn has_foreign(&self) -> bool {
        let find = |(start, end): Bounds| self.region().first_piece(&start, end.as_ref(), self.wall_now());
        foreign(&self.key_bounds()).into_iter().flatten().any(|range| !matches!(find(range), Ok(None)))
    }
}
