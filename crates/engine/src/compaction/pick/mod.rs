//! The policy of compactions: which one is next. [`Picker::choose`] is the policy: it sees a [`Picture`] of the region, and
//! answers with a [`Source`]. [`Picker::pick`] draws the picture, and makes the compaction of the answer. `testdata` shows
//! the policy case by case.
//!
//! - `fill`: which levels are over their size, and by how much.
//! - `part`: how much of a level one compaction takes, and what fits into the room that there is.
//! - `ranged`: merges because of range tombstones.
//! - `ingest`: what goes on above and below an ingest.
//!
//! Memory only.

use super::claims::Claims;
use super::room::Shortage;
use super::runs::{self, NewRun};
use super::sweep::{Goal, Sweep, Victims};
use super::{Compaction, CompactionDone, Context, Source};
use crate::tree::Level;
use crate::version::Version;
use crate::volume::{Accounts, SegmentIds};
use leeward_format::cluster::{CompactionMode, Placement, TableOptions};
use leeward_format::manifest::{L1, L1_RUNS, LogExtent};
use leeward_format::packed::Compression;
use leeward_format::{Lsn, SegmentId, UnixMs};
use std::fmt;
use std::sync::Arc;

mod fill;
mod ingest;
mod part;
mod picture;
mod ranged;

#[cfg(test)]
mod tests;

pub(super) use picture::{LevelPicture, Levels};

use ingest::OpenIngest;
use part::Room;
use picture::{L0Picture, Picture, pictures};
use ranged::RangedRate;

/// Most L0s that one compaction takes. Each compaction rewrites what it overlaps of L1, for one L0 or many.
const MAX_INPUT_L0S: usize = 8;
/// A level goes before the frozen L0s, which writers may be waiting for, if its fill (1.0: it has its target size)
/// exceeds this times their number.
const L0_WEIGHT: f64 = 0.5;

/// While the large log is beyond its limit: parts of a sweep for each other compaction.
const TURNS_BEYOND_LIMIT: u32 = 2;
/// Garbage, in percent of `garbage_percent`, from which on a sweep is driven, and from which on every second compaction
/// is a part of it.
const DRIVEN_PERCENT: u32 = 150;
const EVERY_SECOND_PERCENT: u32 = 200;
/// Bytes that sweeps of the garbage of a split may read and write per second, if the table does not say. Such garbage
/// appears all at once, and no writer waits for its space.
const SPLIT_RATE: u64 = 16 << 20;
/// Part of the live values that a sweep brings into key order at least: it looks at all leaves.
const LEAST_ORDERED: u64 = 40;
/// Bytes of work that scans must have paid for at least before anything is done about it.
const LEAST_BY_SCANS: u64 = 8 << 20;

/// Decides what to compact next. One a region, used by one thread at a time.
pub(crate) struct Picker {
    claims: Arc<Claims>,
    l0_bytes: u64,
    growth_factor: u32,
    l1_runs: usize,
    /// Most sorted runs, if the region is a two-layer log: no level has a size then.
    ordering_degree: Option<usize>,
    mode: CompactionMode,
    placement: Placement,
    compression: Compression,
    ids: SegmentIds,
    progress: Progress,
    sweep: Sweep,
    garbage_percent: u32,
    /// Bytes that sweeps may read and write per second; 0: unlimited.
    sweep_rate: u64,
    /// A sweep is to begin once there are no pieces.
    sweep_waits: bool,
    /// Earliest time of the next part of a sweep.
    sweeps_from: UnixMs,
    max_space_percent: u32,
    /// Values are not brought into key order before scans have paid this many bytes.
    orders_from: u64,
    /// What merges because of range tombstones may cost.
    ranged: RangedRate,
    /// The last ingest that was begun, until it is installed.
    ingest: Option<OpenIngest>,
    room: Room,
    /// The last attempt without certain room: how much there was, and when.
    tried: Option<(u32, UnixMs)>,
}

/// State that a pick changes before it is known whether the picked compaction will be done.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    /// Key at which the next compaction of each position starts, so that all of a level gets its turn. All runs of L1
    /// share the first one.
    resume: Vec<Vec<u8>>,
    /// Number of compactions in a row that were parts of a sweep.
    swept_last: u32,
    /// When L0s were compacted last.
    had_l0s_at: UnixMs,
    /// When the last part of a sweep began.
    swept_at: UnixMs,
    /// The only segment that came out of a cut: it cannot be cut.
    uncut: Option<SegmentId>,
}

/// Kind of compactions that a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The most urgent.
    Any,
    /// Of L0s, which writers may wait for.
    L0s,
    /// Of levels, and parts of a sweep.
    Levels,
}

impl Lane {
    /// The lane's bit in a set of lanes.
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Frozen L0s that may be compacted together, oldest first.
#[derive(Clone, Copy)]
struct L0s<'a> {
    all: &'a [L0Picture],
    /// Fewer L0s than this can wait.
    least: usize,
}

impl L0s<'_> {
    fn are_enough(&self) -> bool {
        !self.all.is_empty() && self.all.len() >= self.least
    }
}

/// State of the logs that leaves point to.
pub(crate) struct Logs<'a> {
    pub(crate) accounts: Accounts,
    /// See [`super::sweep::choose`].
    pub(crate) choose: &'a dyn Fn(Goal, u32) -> Victims,
}

impl Picker {
    /// For levels of a table with these options, or a two-layer log with at most so many sorted runs.
    pub(crate) fn new(options: &TableOptions, ordering_degree: Option<u8>, ids: SegmentIds) -> Picker {
        let &TableOptions {
            l0_bytes,
            growth_factor,
            l1_runs,
            compaction: mode,
            placement,
            compression,
            garbage_percent,
            garbage_mib_per_second,
            max_space_percent,
            ..
        } = options;
        Picker {
            claims: Arc::default(),
            l0_bytes: l0_bytes.max(1),
            growth_factor,
            l1_runs: l1_runs as usize,
            ordering_degree: ordering_degree.map(usize::from),
            mode,
            placement,
            compression,
            ids,
            progress: Progress::default(),
            sweep: Sweep::default(),
            garbage_percent,
            sweep_rate: u64::from(garbage_mib_per_second) << 20,
            sweep_waits: false,
            sweeps_from: UnixMs(0),
            max_space_percent,
            orders_from: 0,
            ranged: RangedRate::default(),
            ingest: None,
            room: Room::default(),
            tried: None,
        }
    }

    /// The most urgent compaction of `version`, if any. Only L0s are compacted that are committed up to `commit`. `extents`
    /// are the extents of the logs when each L0 froze, the oldest first; those of the compacted L0s go into the edit. Fewer
    /// than `least` L0s can wait. Pairs that have expired by `now` are dropped. Touches no device.
    pub(crate) fn pick(
        &mut self,
        version: &Version,
        commit: Lsn,
        extents: &[Vec<LogExtent>],
        logs: &Logs<'_>,
        (lane, least, now): (Lane, usize, UnixMs),
    ) -> Option<Compaction> {
        let committed = || version.committed(commit);
        let (reads, volume) = (version.reads(), &version.reads().volume);
        let picture = Picture {
            l0s: committed().map(|l0| L0Picture { bytes: l0.bytes(), last_lsn: l0.last_lsn() }).collect(),
            least_l0s: least,
            levels: pictures(version.levels()),
            segment_bytes: volume.segment_bytes() as u64,
            room: volume.room_for_compaction(reads.region),
            room_with_reserve: volume.room_with_reserve(),
            is_room_planned: volume.has_planned_room(),
            scan_costs: &reads.scan_costs,
            logs,
            lane,
            now,
        };
        let source = self.choose(&picture)?;
        let count = source.l0s();
        let (l0s, extents) =
            (committed().take(count).cloned().collect(), furthest(&extents[..extents.len().min(count)]));
        let planned = volume.plan_room(self.need(&picture, &source));
        let claim = self.claims.take(source.claims(), Some(planned));
        let context = Context { l0s, extents, ..self.context(version, &picture, source) };
        Some(Compaction::new(context, claim))
    }

    /// The policy: the most urgent compaction of what `picture` shows. Of its frozen L0s; of a level that is over its size;
    /// or a part of a sweep.
    ///
    /// A driven sweep uses the time that other compactions leave. With still more garbage every second compaction is a
    /// part of it, and two of three if the space is beyond its limit.
    fn choose(&mut self, picture: &Picture<'_>) -> Option<Source> {
        let all = self.beside_ingest(&picture.l0s[..picture.l0s.len().min(MAX_INPUT_L0S)]);
        let least = if self.ingest_waits_for(all) { 1 } else { picture.least_l0s };
        let l0s = L0s { all, least };
        self.look_at_room(picture);
        loop {
            let source = match picture.lane {
                Lane::L0s => self.pick_l0s(picture, l0s),
                Lane::Any | Lane::Levels => self.pick_any(picture, l0s),
            };
            if source.is_some() || !self.take_reserve(picture) {
                let source = source?;
                self.note(picture, &source);
                return Some(source);
            }
        }
    }

    /// The most urgent compaction, of `Lane::Levels` without L0s.
    fn pick_any(&mut self, picture: &Picture<'_>, l0s: L0s<'_>) -> Option<Source> {
        let accounts = &picture.logs.accounts;
        let is_beyond = accounts.is_beyond(self.max_space_percent);
        let turns = match is_beyond {
            true => TURNS_BEYOND_LIMIT,
            // What it has moved is garbage until it is done.
            false if self.sweep.is_ordering() => 0,
            false => u32::from(self.has_garbage(accounts, EVERY_SECOND_PERCENT)),
        };
        let must = is_beyond || self.room.is_short;
        let swept = if must || !self.sweep_is_throttled(picture.now) { self.next_of_sweep(picture) } else { None };
        let source = match swept {
            Some(swept) if self.progress.swept_last < turns => Some(swept),
            swept => {
                // Writers that wait for space do not fill a second L0.
                let least = if is_beyond { 1 } else { l0s.least };
                self.pick_merge(picture, L0s { least, ..l0s }).or(swept)
            }
        };
        let source = match source {
            Some(source) => source,
            None => self.pick_ranged(picture).filter(|source| self.fits(picture, source))?,
        };
        self.progress.swept_last = if source.sweeps() { self.progress.swept_last + 1 } else { 0 };
        Some(source)
    }

    /// Notes what was chosen, for the next choices.
    fn note(&mut self, picture: &Picture<'_>, source: &Source) {
        if let Source::L0s { run, .. } = source {
            self.progress.had_l0s_at = picture.now;
            self.keep_hole(&picture.l0s, run.target);
        }
        if source.sweeps() {
            self.progress.swept_at = picture.now;
        }
    }

    /// The inputs and settings of the compaction that was chosen.
    fn context(&self, version: &Version, picture: &Picture<'_>, source: Source) -> Context {
        let base = padded(version, source.target());
        let mut levels = base.clone();
        if let Some(run) = source.new_run() {
            run.make_room(&mut levels);
        }
        let (reads, ids) = (Arc::clone(version.reads()), Arc::clone(&self.ids));
        let way = (self.placement, self.compression, self.mode());
        let victims = Arc::clone(self.sweep.names());
        let output_bytes = output_bytes(picture, &source, &levels);
        let sweep = self.sweep.serial();
        let ends_run_merge = self.ends_run_merge(&source, &levels);
        let keeps_tombstones = self.is_ingesting();
        let bytes = u64::from(self.room.segments) * picture.segment_bytes;
        let shortage = self.room.is_short.then_some(Shortage { bytes, uncut: self.progress.uncut });
        let context = Context::new(reads, ids, way, source, base, picture.now);
        let context = Context { levels, victims, sweep, output_bytes, ends_run_merge, ..context };
        Context { keeps_tombstones, shortage, ..context }
    }

    /// Whether all runs of a two-layer log are one when this is done, as far as they were there when their merge began:
    /// its last part goes up to the last key. With an ordering degree of 1, each L0 is merged with the whole copy.
    fn ends_run_merge(&self, source: &Source, levels: &[Arc<Level>]) -> bool {
        match (self.ordering_degree, source) {
            (Some(1), Source::L0s { run, .. }) => !levels[run.target].is_empty(),
            (Some(_), Source::Segments { swept: None, .. }) => self.progress.resume.get(L1).is_some_and(Vec::is_empty),
            _ => false,
        }
    }

    /// `None` if another compaction has claimed something that this one would change.
    fn unless_claimed(&self, source: Source) -> Option<Source> {
        self.claims.is_free(source.claims()).then_some(source)
    }

    /// Whether compactions that give back more space than they take are under way or will be picked.
    fn can_make_room(&self, picture: &Picture<'_>) -> bool {
        self.sweep.place().is_some() || !self.full(picture).is_empty()
    }

    /// Whether there is more garbage than `percent` of `garbage_percent`.
    fn has_garbage(&self, accounts: &Accounts, percent: u32) -> bool {
        accounts.is_over(self.garbage_percent.saturating_mul(percent) / 100)
    }

    /// Whether sweeps have used their share of the device for now, as far as the clock can be trusted.
    pub(crate) fn sweep_is_throttled(&self, now: UnixMs) -> bool {
        (self.progress.swept_at.0..self.sweeps_from.0).contains(&now.0)
    }

    /// Whether range tombstones wait for the time of their next merge.
    pub(crate) fn ranges_wait(&self) -> bool {
        self.ranged.is_waiting()
    }

    /// Whether L0s were compacted within the last second, as far as the clock can be trusted.
    pub(crate) fn had_l0s_lately(&self, now: UnixMs) -> bool {
        now.0.wrapping_sub(self.progress.had_l0s_at.0) < 1000
    }

    /// Sets the compression of later compactions.
    #[cfg(test)]
    pub(crate) fn compress(&mut self, compression: Compression) {
        self.compression = compression;
    }

    /// Sets the runs of L1, and how levels are merged.
    #[cfg(test)]
    pub(crate) fn merge_as(&mut self, l1_runs: u32, mode: CompactionMode) {
        (self.l1_runs, self.mode) = (l1_runs as usize, mode);
    }

    /// State for [`Picker::reset`].
    pub(crate) fn mark(&self) -> Progress {
        self.progress.clone()
    }

    /// Undoes the picks since `mark`, which will not be done.
    pub(crate) fn reset(&mut self, mark: Progress) {
        self.progress = mark;
    }

    /// A compaction was installed; the segments `gone` were freed with it.
    pub(crate) fn installed(&mut self, done: &CompactionDone, gone: &[SegmentId]) {
        self.sweep.installed(done, gone);
        self.end_wait(done);
        if done.ingested.is_some() {
            self.ingest = None;
        }
        if done.is_ranged {
            self.ranged.spend(done.bytes_read + done.value_bytes_read + done.bytes_written);
        }
        let rate = if self.sweep_rate == 0 && self.sweep.is_of_split() { SPLIT_RATE } else { self.sweep_rate };
        if done.swept.is_some() && rate > 0 {
            let bytes = done.bytes_read + done.value_bytes_read + done.bytes_written;
            self.sweeps_from = UnixMs(self.progress.swept_at.0 + bytes * 1000 / rate);
        }
    }

    /// The next part of a sweep, if there is garbage to collect.
    fn next_of_sweep(&mut self, picture: &Picture<'_>) -> Option<Source> {
        let (segment_bytes, left) = (picture.segment_bytes, self.room.segments);
        let (levels, logs) = (&picture.levels[..], picture.logs);
        let accounts = &logs.accounts;
        let is_beyond = accounts.is_beyond(self.max_space_percent);
        let is_short = self.room.is_short;
        let is_driven = is_beyond || is_short || self.has_garbage(accounts, DRIVEN_PERCENT);
        self.sweep.end_if_complete(accounts, segment_bytes);
        if self.sweep.is_ordering() && (is_beyond || is_short) {
            // It gives space back only at its end. What it has made garbage is collected first.
            self.sweep.give_up();
        }
        let has_garbage = is_short || self.has_garbage(accounts, 100);
        let is_due = has_garbage && self.sweep.is_due(is_driven, accounts, segment_bytes);
        self.sweep_waits = is_due && runs::pieces(levels).next().is_some();
        if is_due && !self.sweep_waits {
            // A driven sweep reads all leaves, however much it empties.
            let goal = if is_driven { 0 } else { accounts.space_bytes * u64::from(self.garbage_percent) / 200 };
            let is_of_split = !self.has_garbage(&accounts.own(), 100);
            self.sweep.begin((logs.choose)(Goal::Garbage(goal), left), is_driven, is_of_split, accounts);
        } else if self.sweep.place().is_none() && self.may_order() && !is_short {
            self.begin_ordering(picture, left);
        }
        loop {
            let (position, resume) = self.sweep.place()?;
            let source = match levels.get(position) {
                _ if position == L1 && self.has_runs(levels) => {
                    // Values leave victims on their way into the level below, which is read only once.
                    let target = self.below_runs(picture);
                    let first = self.mergeable_runs();
                    let segments = levels.iter().take(target + 1).skip(first).map(|level| level.leaf_segments()).sum();
                    let least = self.sweep.part(segments, segment_bytes, left);
                    levels.iter().take(target).skip(first).any(|run| !run.is_empty()).then(|| {
                        let runs::Part { from, next } = runs::part(levels, first..target, resume, least);
                        Source::Segments { from, target, swept: Some(next), is_ranged: false }
                    })
                }
                Some(level) if !level.is_empty() => {
                    let most = self.sweep.part(level.leaf_segments(), segment_bytes, left);
                    Some(Source::Rewrite { level: position, first: level.segment_of(resume), most })
                }
                Some(_) => None,
                None => {
                    self.sweep.end(accounts, segment_bytes);
                    continue;
                }
            };
            match source {
                // If other compactions have moved segments down, the sweep meets them again below.
                // Runs without room are merged part by part first.
                Some(source) => return self.unless_claimed(source).filter(|source| self.fits(picture, source)),
                None => self.sweep.next_level(),
            }
        }
    }

    /// Whether values may be brought into key order. Where levels are merged as a whole, each part of a sweep would rewrite
    /// L2; a two-layer log sorts less on purpose.
    fn may_order(&self) -> bool {
        self.ordering_degree.is_none() && self.mode == CompactionMode::Partial
    }

    /// Begins to bring values into key order if scans have paid for it: for the bytes that are moved, and those of the
    /// leaves, all of which are read and written.
    fn begin_ordering(&mut self, picture: &Picture<'_>, left: u32) {
        let (costs, logs) = (picture.scan_costs, picture.logs);
        let paid = costs.values();
        if paid < self.orders_from.max(LEAST_BY_SCANS) || runs::pieces(&picture.levels).next().is_some() {
            return;
        }
        let victims = (logs.choose)(Goal::Order { max_space_percent: self.max_space_percent }, left);
        let (moved, live) = (Sweep::bytes_of(&victims), logs.accounts.live_bytes);
        let leaf_bytes: u64 = picture.levels.iter().map(|level| level.bytes()).sum();
        let cost = 2 * (moved + leaf_bytes);
        if victims.is_empty() {
            costs.forget_values();
        } else if moved < live / LEAST_ORDERED {
            self.orders_from = paid + LEAST_BY_SCANS;
        } else if paid < cost {
            self.orders_from = cost;
        } else {
            self.orders_from = 0;
            costs.order_values(cost);
            self.sweep.begin_ordering(victims, &logs.accounts);
        }
    }

    /// The next merge, of L0s too if the lane says so.
    fn pick_merge(&mut self, picture: &Picture<'_>, l0s: L0s<'_>) -> Option<Source> {
        let into = if picture.lane == Lane::Any { self.pick_l0s(picture, l0s) } else { None };
        let is_deferred = |position: usize| match picture.lane {
            // L0s must not wait for merges of the one run of L1 that they go into.
            Lane::Levels => position == L1 && !self.makes_runs(&picture.levels) && l0s.are_enough(),
            _ => into.is_some(),
        };
        let least_urgency = l0s.all.len() as f64 * L0_WEIGHT;
        let mut full = self.full(picture);
        if self.room.is_short {
            // Room is given back in the last level only.
            full.sort_by_key(|(position, _)| std::cmp::Reverse(*position));
        } else {
            full.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        }
        full.retain(|(position, fill)| !is_deferred(*position) || *fill > least_urgency);
        for (position, _) in full {
            let source = self.take(picture, position);
            if source.is_some() {
                return source;
            }
            self.room.leave_least();
        }
        into
    }

    /// All these L0s into a new run of L1, or merged with its only run.
    fn all_l0s(&self, picture: &Picture<'_>, l0s: L0s<'_>) -> Option<Source> {
        if !l0s.are_enough() {
            return None;
        }
        // Half of an L0 is not data.
        let bytes = l0s.all.iter().map(|l0| l0.bytes).sum::<u64>() / 2;
        let run = match self.run_above_ingest(picture, l0s.all, bytes) {
            Some(run) => run?,
            None if self.makes_runs(&picture.levels) => self.new_run(picture, bytes)?,
            None => NewRun::SINGLE,
        };
        self.unless_claimed(Source::L0s { count: l0s.all.len(), run })
    }

    /// A new run of L0s of about `bytes`, or a piece.
    fn new_run(&self, picture: &Picture<'_>, bytes: u64) -> Option<NewRun> {
        let (levels, segment_bytes) = (&picture.levels, picture.segment_bytes);
        let makes_pieces = self.ordering_degree.is_some_and(|most| most > 1) && bytes < segment_bytes / 2;
        match makes_pieces || runs::pieces(levels).next().is_some() {
            true => NewRun::piece(levels),
            false => NewRun::run(levels, segment_bytes, bytes),
        }
    }

    /// Whether L1 is several runs, or was when its table's copies were two-layer logs.
    fn has_runs(&self, levels: &Levels<'_>) -> bool {
        self.l1_runs > 1 || self.ordering_degree.is_some() || runs::has_others(levels)
    }

    /// Whether L0s become another run of L1. With an ordering degree of 1 they are merged with the only run.
    fn makes_runs(&self, levels: &Levels<'_>) -> bool {
        match self.ordering_degree {
            _ if self.room.by_parts => true,
            Some(1) => runs::has_others(levels),
            _ => self.has_runs(levels),
        }
    }

    /// Position that runs are merged into: L2; in a two-layer log the last level, with all levels above it.
    fn below_runs(&self, picture: &Picture<'_>) -> usize {
        self.ordering_degree.map_or(L1_RUNS, |_| picture.last().max(L1_RUNS))
    }
}

/// The levels of a version, with empty ones up to position `least`.
pub(super) fn padded(version: &Version, least: usize) -> Vec<Arc<Level>> {
    let mut levels = version.levels().to_vec();
    let positions = levels.len().max(least + 1).max(L1_RUNS);
    // One object for all empty levels: most of a small region's are empty.
    levels.resize(positions, Arc::new(Level::empty()));
    levels
}

/// See [`Context::output_bytes`]: small regions have small segments.
fn output_bytes(picture: &Picture<'_>, source: &Source, levels: &[Arc<Level>]) -> usize {
    const INDEX_BYTES: u64 = 32 << 10;
    let most = picture.segment_bytes as usize;
    let input = match source {
        Source::L0s { count, .. } => picture.l0s[..*count].iter().map(|l0| l0.bytes).sum::<u64>(),
        Source::Segments { from, .. } | Source::Pieces { from, .. } => {
            from.iter().map(|(position, _)| levels[*position].bytes()).sum::<u64>()
        }
        Source::Cut { .. } | Source::Rewrite { .. } | Source::Sorted { .. } => return most,
    };
    let input = input + levels[source.target()].bytes();
    usize::try_from(input + input / 4 + INDEX_BYTES).unwrap_or(most).min(most)
}

/// The furthest extent of each log segment in `logs`.
fn furthest(logs: &[Vec<LogExtent>]) -> Vec<LogExtent> {
    let mut all: Vec<LogExtent> = Vec::new();
    for extent in logs.iter().flatten() {
        match all.iter_mut().find(|known| known.id == extent.id) {
            Some(known) => known.bytes = known.bytes.max(extent.bytes),
            None => all.push(*extent),
        }
    }
    all
}

impl fmt::Debug for Picker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picker({} runs, factor {})", self.l1_runs, self.growth_factor)
    }
}
