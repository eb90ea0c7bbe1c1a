//! Which levels are over their size.

use super::picture::{LevelPicture, Levels, Picture};
use super::{LEAST_BY_SCANS, Picker};
use crate::compaction::runs;
use leeward_format::cluster::CompactionMode;
use leeward_format::manifest::{L1, L1_RUNS, MAX_LEVELS, PIECES};
use std::ops::Range;

/// Size of L1, in L0s, where it is one run: a compaction of L0s rewrites all of it. Measured against 8.
const L1_L0S: u64 = 4;
/// Size that each run of L1 should have, as a part of an L0's size. Three L0s make one run, about half of their bytes
/// are data, and some of what is in the runs was merged already. Measured against 0.75, which writes 5 % more in Load
/// of SD and 10 % more of S, and 1.
const RUN_SHARE: f64 = 1.25;
/// Number of runs of L1 from which on they are merged however small they are.
pub(super) const MOST_RUNS: usize = 7;
/// Part of a level that a merge because of scans takes, approximately.
const PART_BY_SCANS: u64 = 8;
/// Pieces of a two-layer log from which on they are merged into a run, as many as DEPART's global log has segments
/// before it is split. More can come meanwhile.
const MOST_PIECES: usize = 20;

/// One entry in this many is a tombstone: the level deletes much of what is below it.
const DELETES_SHARE: u64 = 4;

/// Whether the level deletes much of what is below it, as far as its indexes are in memory.
fn deletes_much(level: &dyn LevelPicture) -> bool {
    let (mut tombstones, mut entries) = (0, 0);
    for footer in (0..level.leaf_segments()).filter_map(|i| level.footer(i)) {
        tombstones += u64::from(footer.tombstones);
        entries += u64::from(footer.entries);
    }
    entries > 0 && tombstones * DELETES_SHARE >= entries
}

impl Picker {
    /// Positions of levels that are over their size, with their fill (1.0 or more); L1 stands for all of its runs.
    pub(super) fn full(&self, picture: &Picture<'_>) -> Vec<(usize, f64)> {
        let levels = &picture.levels[..];
        // Garbage that a level hides is unknown until it is merged: it may be all that there is to give back.
        let must_merge =
            |level: &dyn LevelPicture| self.room.is_short || self.room.is_room_missed && deletes_much(level);
        let last = picture.last();
        let pieces = Some((0, self.fill_of_pieces(picture))).filter(|(_, fill)| *fill >= 1.0);
        if let Some(most) = self.ordering_degree {
            let all = || runs::runs(levels, PIECES..levels.len());
            let count = all().count();
            let is_due = count > most || count > 1 && all().any(|(_, run)| must_merge(run));
            let runs = is_due.then(|| (L1, (count as f64 / most as f64).max(1.0)));
            return runs.into_iter().chain(pieces).collect();
        }
        let has_runs = self.has_runs(levels);
        // The level in the last position has none to be merged into.
        let below = levels.iter().enumerate().take(MAX_LEVELS - 1).skip(if has_runs { L1_RUNS } else { L1 });
        let fill = |(position, level): (usize, &&dyn LevelPicture)| {
            let own = level.bytes() as f64 / self.target_bytes(picture, position) as f64;
            let hides = f64::from(u8::from(position < last && !level.is_empty() && must_merge(*level)));
            (position, own.max(self.fill_by_scans(picture, position..position + 1)).max(hides))
        };
        let mut full: Vec<_> = below.map(fill).collect();
        if has_runs {
            // Runs of a table that has none are those of a two-layer log that the primary role came to.
            let must = runs::runs(levels, PIECES..L1_RUNS).any(|(_, run)| self.l1_runs == 1 || must_merge(run));
            let by_scans = self.fill_by_scans(picture, PIECES..L1_RUNS);
            full.push((L1, self.fill_of_runs(levels).max(by_scans).max(f64::from(u8::from(must)))));
        }
        full.retain(|(_, fill)| *fill >= 1.0);
        full.extend(pieces);
        full
    }

    /// Fill of the runs: by their bytes, by their number, and by how much of L2 they hide, which is unknown garbage.
    fn fill_of_runs(&self, levels: &Levels<'_>) -> f64 {
        let of_l1 = || levels.iter().take(L1_RUNS).skip(PIECES);
        let (bytes, count) = (of_l1().map(|run| run.bytes()).sum::<u64>() as f64, runs::count(levels));
        let room = self.l0_bytes as f64 * self.l1_runs as f64 * RUN_SHARE;
        let own = (bytes / room).max(count as f64 / MOST_RUNS as f64);
        match levels.get(L1_RUNS) {
            Some(l2) if l2.entries() > 0 && count > 1 => {
                // As merging goes round, the runs are half empty on average.
                let may_hide = self.space_share() as f64 / 200.0;
                let hidden = |of: fn(&dyn LevelPicture) -> u64| {
                    of_l1().map(|run| run.overlap() * of(*run) as f64).sum::<f64>() / of(*l2) as f64
                };
                own.max(hidden(|level| level.bytes()) / may_hide).max(hidden(|level| level.entries()) / may_hide)
            }
            _ => own,
        }
    }

    /// Fill of the level at these positions by what scans have read of it: 1 once they have paid for a merge of a part
    /// into the next level, which reads and writes both. Never more: nothing is late.
    fn fill_by_scans(&self, picture: &Picture<'_>, positions: Range<usize>) -> f64 {
        let (levels, below) = (&picture.levels, positions.end);
        let read = picture.scan_costs.level(below - 1);
        if read < LEAST_BY_SCANS || self.room.is_short {
            return 0.0;
        }
        let own: u64 = levels.iter().take(below).skip(positions.start).map(|level| level.bytes()).sum();
        let bytes = 2 * (own + levels.get(below).map_or(0, |below| below.bytes()));
        let parts = if self.mode == CompactionMode::Partial { PART_BY_SCANS } else { 1 };
        f64::from(u8::from(own > 0 && read >= bytes / parts))
    }

    /// Percent of a level that the one above may hide.
    fn space_share(&self) -> u64 {
        u64::from(self.max_space_percent.saturating_sub(100).max(100 / self.growth_factor.max(2)))
    }

    /// Most bytes that the level at a position should have: L1's size, grown by the factor. A level may hide entries of
    /// the level below, so it is also limited to the wasted part that the options allow of that level.
    fn target_bytes(&self, picture: &Picture<'_>, position: usize) -> u64 {
        let growth = u64::from(self.growth_factor.max(2)).saturating_pow((position - L1) as u32);
        let grown = self.l0_bytes.saturating_mul(L1_L0S).saturating_mul(growth);
        match picture.level(position + 1).bytes() {
            0 => grown,
            below => grown.min((below.saturating_mul(self.space_share()) / 100).max(self.l0_bytes)),
        }
    }

    /// How many pieces there are, in relation to how many there may be: 1 or more if they should become a run.
    fn fill_of_pieces(&self, picture: &Picture<'_>) -> f64 {
        let (count, bytes) =
            runs::pieces(&picture.levels).fold((0, 0), |(count, bytes), (_, piece)| (count + 1, bytes + piece.bytes()));
        if count == 0 {
            return 0.0;
        }
        let is_due = bytes >= picture.segment_bytes || self.room.is_short;
        let is_single_due = self.ordering_degree.is_none() || self.sweep_waits;
        let must = count > 1 && is_due || is_single_due;
        (count as f64 / MOST_PIECES as f64).max(f64::from(u8::from(must)))
    }
}
