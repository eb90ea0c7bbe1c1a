//! The policy, case by case: `testdata` has pictures of levels, and what is picked. A case is
//!
//! ```text
//!  # The rule that it shows.
//!  table l0=1M runs=1            a picture: see `Drawing::add`
//!  l0s 1M 1M
//!  L1 a-f:1M g-m:1M
//!  ----
//!  2 L0s into L1                 what is picked
//! ```
//! With `LEEWARD_GOLDEN` set, the test writes what is picked now into the files, to be read and committed.

use super::picture::{FooterRef, LevelPicture};
use super::*;
use crate::compaction::claims::{Claim, What};
use crate::compaction::sorted::Open;
use crate::compaction::sweep::Victim;
use crate::reads::ScanCosts;
use crate::volume::CompactionRoom;
use bytes::Bytes;
use leeward_format::leaf_segment::{Footer, Span};
use leeward_format::manifest::{MAX_LEVELS, PIECES};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::{env, fs};

/// Entries of every leaf segment.
const ENTRIES: u32 = 100;
/// Size of a segment, and of an L0 unless the table says otherwise.
const MIB: u64 = 1 << 20;

/// A level that was drawn.
#[derive(Default)]
struct DrawnLevel {
    segments: Vec<DrawnSegment>,
    ranged: Vec<usize>,
    overlap: f64,
}

struct DrawnSegment {
    fence: Vec<u8>,
    bytes: u64,
    /// `None` if its index is not in memory.
    footer: Option<Footer>,
}

impl LevelPicture for DrawnLevel {
    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    fn entries(&self) -> u64 {
        u64::from(ENTRIES) * self.segments.len() as u64
    }

    fn overlap(&self) -> f64 {
        self.overlap
    }

    fn leaf_segments(&self) -> usize {
        self.segments.len()
    }

    fn leaf_segment_bytes(&self, i: usize) -> u64 {
        self.segments[i].bytes
    }

    fn fence(&self, i: usize) -> &[u8] {
        &self.segments[i].fence
    }

    fn segment_of(&self, key: &[u8]) -> usize {
        self.segments.iter().rposition(|segment| &segment.fence[..] <= key).unwrap_or(0)
    }

    fn ranged(&self) -> &[usize] {
        &self.ranged
    }

    fn footer(&self, i: usize) -> Option<FooterRef<'_>> {
        self.segments[i].footer.as_ref().map(FooterRef::Resident)
    }
}

impl DrawnLevel {
    /// A leaf segment, as `first-last:bytes`, and behind another colon each: `25%` of its entries are tombstones; it is
    /// `ranged`, so it has range tombstones; it is `cold`, so its index is not in memory.
    fn add(&mut self, segment: &str) {
        let mut words = segment.split(':');
        let (first, last) = words.next().and_then(|keys| keys.split_once('-')).expect("first-last");
        let bytes = size(words.next().expect("bytes"));
        let mut footer = Some(footer(first, last));
        for word in words {
            match word {
                "cold" => footer = None,
                "ranged" => self.ranged.push(self.segments.len()),
                _ => {
                    let percent = word.strip_suffix('%').expect(word).parse().expect(word);
                    footer.as_mut().expect("it is not cold").tombstones = percent;
                }
            }
        }
        let fence = if self.segments.is_empty() { Vec::new() } else { first.into() };
        self.segments.push(DrawnSegment { fence, bytes, footer });
    }
}

fn footer(first: &str, last: &str) -> Footer {
    let key = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Footer {
        end: 0,
        tree_at: 0,
        root_at: 0,
        filter_at: 0,
        filter_bytes: 0,
        leaves: 1,
        entries: ENTRIES,
        tombstones: 0,
        ranges: 0,
        ranges_bytes: 0,
        min_lsn: Lsn(0),
        max_lsn: Lsn(0),
        payload_bytes: 0,
        log_bytes: 0,
        medium_bytes: 0,
        span: Span { first: key(first), last: key(last), is_open: false },
    }
}

/// All that a case says before its line of dashes.
struct Drawing {
    options: TableOptions,
    ordering_degree: Option<u8>,
    l0s: Vec<L0Picture>,
    least_l0s: usize,
    levels: Vec<DrawnLevel>,
    room: CompactionRoom,
    reserve: u32,
    is_room_planned: bool,
    scan_costs: ScanCosts,
    accounts: Accounts,
    victims: u64,
    lane: Lane,
    claimed: What,
    /// Milliseconds.
    throttled: u64,
    ranged_bytes: u64,
    ingest: Option<Lsn>,
    kept: Option<usize>,
    picks: usize,
}

impl Drawing {
    fn new() -> Drawing {
        Drawing {
            options: TableOptions { l0_bytes: MIB, ..TableOptions::default() },
            ordering_degree: None,
            l0s: Vec::new(),
            least_l0s: 1,
            levels: std::iter::repeat_with(DrawnLevel::default).take(L1_RUNS).collect(),
            room: CompactionRoom { segments: u32::MAX, is_short: false, is_room_missed: false },
            reserve: u32::MAX,
            is_room_planned: false,
            scan_costs: ScanCosts::default(),
            accounts: Accounts::default(),
            victims: 0,
            lane: Lane::Any,
            claimed: What::default(),
            throttled: 0,
            ranged_bytes: 0,
            ingest: None,
            kept: None,
            picks: 1,
        }
    }

    fn add(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let what = words.next().expect("a word");
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match what {
                // Options that differ from the default.
                "table" => self.option(name, value),
                // The most sorted runs of a two-layer log.
                "two-layer" => self.ordering_degree = Some(number(name)),
                // Frozen L0s, the oldest first; their last LSNs are 10, 20 and so on.
                "l0s" => {
                    let last_lsn = Lsn(10 * (self.l0s.len() as u64 + 1));
                    self.l0s.push(L0Picture { bytes: size(name), last_lsn });
                }
                // Fewer L0s than this can wait.
                "least" => self.least_l0s = number(name),
                // Only such compactions are wanted.
                "lane" => self.lane = if name == "l0s" { Lane::L0s } else { Lane::Levels },
                // What compactions under way have claimed.
                "claimed" => self.claimed = self.claimed.and(claim(name)),
                // Segments that are free, and whether they are those of the reserve.
                "room" => self.room(name, value),
                // The large log; victims are of 1 MiB, of which 256 KiB are live.
                "log" => match name {
                    "space" => self.accounts.space_bytes = size(value),
                    "live" => self.accounts.live_bytes = size(value),
                    "of-split" => self.accounts.inherited_garbage_bytes = size(value),
                    _ => self.victims = number(value),
                },
                // What scans have read of levels, or of scattered values.
                "scans" if name == "values" => self.scan_costs.read_values(size(value)),
                "scans" => self.scan_costs.read_leaf(position(name), size(value)),
                // For how long sweeps have used their share of the device.
                "throttled" => self.throttled = number(name),
                // What merges because of range tombstones have just read and written.
                "ranged" => self.ranged_bytes = size(name),
                // An ingest is open, which has taken this LSN; the position that is kept for it, once there is a newer run.
                "ingest" if self.ingest.is_some() => self.kept = Some(position(name)),
                "ingest" => self.ingest = Some(Lsn(number(name))),
                // How often it is picked, while nothing else changes.
                "picks" => self.picks = number(name),
                level => self.level(level, name, value),
            }
        }
    }

    fn option(&mut self, name: &str, value: &str) {
        let options = &mut self.options;
        match name {
            "l0" => options.l0_bytes = size(value),
            "growth" => options.growth_factor = number(value),
            "runs" => options.l1_runs = number(value),
            "whole-level" => options.compaction = CompactionMode::WholeLevel,
            "garbage" => options.garbage_percent = number(value),
            "space" => options.max_space_percent = number(value),
            _ => panic!("no option {name}"),
        }
    }

    fn room(&mut self, name: &str, value: &str) {
        match name {
            "short" => self.room.is_short = true,
            "missed" => self.room.is_room_missed = true,
            "planned" => self.is_room_planned = true,
            "reserve" => self.reserve = number(value),
            _ => self.room.segments = number(name),
        }
    }

    fn level(&mut self, level: &str, name: &str, value: &str) {
        let position = position(level);
        if self.levels.len() <= position {
            self.levels.resize_with(position + 1, DrawnLevel::default);
        }
        match name {
            "overlap" => self.levels[position].overlap = value.parse().expect(value),
            segment => self.levels[position].add(segment),
        }
    }

    fn victims(&self) -> Victims {
        (1..=self.victims).map(|id| (SegmentId(id), Victim::new(SegmentId(id), 256 << 10, 768 << 10))).collect()
    }

    fn picker(&self) -> (Picker, Claim, Open) {
        let (open, ids) = (Open::default(), Arc::new(|| unreachable!("nothing is written")));
        let mut picker = Picker::new(&self.options, self.ordering_degree, ids);
        let claim = picker.claims.take(self.claimed, None);
        if let Some(last) = self.ingest {
            picker.begin_ingest(last, &open);
            picker.ingest.as_mut().expect("just begun").hole = self.kept;
        }
        picker.ranged.spend(self.ranged_bytes);
        (picker.progress.swept_at, picker.sweeps_from) = (NOW, UnixMs(NOW.0 + self.throttled));
        (picker, claim, open)
    }

    /// What is picked, a line for each time.
    fn picked(&self) -> String {
        let (mut picker, _claim, _open) = self.picker();
        let choose = |_, _| self.victims();
        let logs = Logs { accounts: self.accounts, choose: &choose };
        let picture = Picture {
            l0s: self.l0s.clone(),
            least_l0s: self.least_l0s,
            levels: self.levels.iter().map(|level| level as &dyn LevelPicture).collect(),
            segment_bytes: MIB,
            room: self.room,
            room_with_reserve: CompactionRoom { segments: self.reserve, is_short: true, ..self.room },
            is_room_planned: self.is_room_planned,
            scan_costs: &self.scan_costs,
            logs: &logs,
            lane: self.lane,
            now: NOW,
        };
        let mut text = String::new();
        for _ in 0..self.picks {
            let source = picker.choose(&picture);
            let needs = source.as_ref().filter(|_| picker.room.segments < u32::MAX);
            let needs = needs.map(|source| (picker.need(&picture, source), picker.room.segments));
            match &source {
                Some(source) => show(&mut text, source),
                None if picker.waits_for_room() => text += "nothing: it waits for room",
                None if picker.ranges_wait() => text += "nothing: range tombstones wait for their time",
                None => text += "nothing",
            }
            if let Some((need, room)) = needs {
                write!(text, "; takes {need} of {room} segments").expect("memory");
            }
            text += "\n";
        }
        let mut full = picker.full(&picture);
        full.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        for (i, (position, fill)) in full.iter().enumerate() {
            let sign = if i == 0 { "full:" } else { "," };
            write!(text, "{sign} {} {fill:.2}", if *position == 0 { "pieces".into() } else { name(*position) })
                .expect("memory");
        }
        if full.is_empty() { text } else { text + "\n" }
    }
}

/// When cases are.
const NOW: UnixMs = UnixMs(1000);

fn show(text: &mut String, source: &Source) {
    let parts = |from: &[(usize, Range<usize>)]| {
        let part = |(at, range): &(usize, Range<usize>)| format!("{}[{}..{}]", name(*at), range.start, range.end);
        from.iter().map(part).collect::<Vec<_>>().join(" ")
    };
    let run = |run: &NewRun| {
        let guards: Vec<_> = run.ends.guards.iter().rev().map(|guard| guard.escape_ascii().to_string()).collect();
        let ends = if guards.is_empty() { String::new() } else { format!(", which ends at {}", guards.join(" ")) };
        let moved = if run.shift.is_empty() {
            String::new()
        } else {
            format!(", when the runs from {} to {} have moved down", name(run.shift.start), name(run.shift.end - 1))
        };
        format!("{}{ends}{moved}", name(run.target))
    };
    *text += &match source {
        Source::L0s { count: 1, run: into } => format!("1 L0 into {}", run(into)),
        Source::L0s { count, run: into } => format!("{count} L0s into {}", run(into)),
        Source::Pieces { from, run: into } => format!("{} into {}", parts(from), run(into)),
        Source::Segments { from, target, swept, is_ranged } => {
            let why = if swept.is_some() { ", as a sweep" } else { "" };
            let why = if *is_ranged { ", for range tombstones" } else { why };
            format!("{} into {}{why}", parts(from), name(*target))
        }
        Source::Rewrite { level, first, most } => format!("sweep {} from [{first}], at most {most}", name(*level)),
        Source::Cut { .. } | Source::Sorted { .. } => unreachable!("no pick asks for it"),
    };
}

/// `L1` is the last run, or the only one; `L1.1` is the one before it. `P` is the last piece, `P.1` the one before it.
fn name(position: usize) -> String {
    let (kind, last) = match position {
        0..PIECES => ("P", PIECES - 1),
        PIECES..L1_RUNS => ("L1", L1),
        _ => return format!("L{}", position - L1_RUNS + 2),
    };
    if position == last { kind.into() } else { format!("{kind}.{}", last - position) }
}

fn position(name: &str) -> usize {
    (0..MAX_LEVELS).find(|position| self::name(*position) == name).unwrap_or_else(|| panic!("no level {name}"))
}

fn claim(name: &str) -> What {
    match name {
        "l0s" => What::L0S,
        "sweep" => What::SWEEP,
        level => What::levels([position(level)]),
    }
}

fn number<T: std::str::FromStr<Err: fmt::Debug>>(text: &str) -> T {
    text.parse().expect(text)
}

/// Bytes: `3K`, `2M`.
fn size(text: &str) -> u64 {
    let (digits, unit) = text.split_at(text.len() - 1);
    let unit = match unit {
        "K" => 1 << 10,
        "M" => MIB,
        _ => panic!("{text}: a size ends in K or M"),
    };
    number::<u64>(digits) * unit
}

/// What is picked in a case, without its rule.
fn run(case: &str) -> String {
    let mut drawing = Drawing::new();
    case.lines().filter(|line| !line.starts_with('#')).for_each(|line| drawing.add(line));
    drawing.picked()
}

#[test]
fn each_picture_leads_to_its_compaction() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/compaction/pick/testdata");
    let mut wrong = String::new();
    for file in fs::read_dir(folder).expect("the folder is there") {
        let path = file.expect("the folder can be read").path();
        let text = fs::read_to_string(&path).expect("the file can be read");
        let mut now = Vec::new();
        for block in text.trim_end().split("\n\n") {
            let (case, expected) = block.split_once("\n----\n").unwrap_or((block, ""));
            assert!(case.starts_with("# "), "{}: a case begins with its rule: {case}", path.display());
            let picked = run(case);
            if picked.trim_end() != expected {
                writeln!(wrong, "{}:\n{case}\n----\n{expected}\nis now\n{picked}", path.display()).expect("memory");
            }
            now.push(format!("{case}\n----\n{picked}"));
        }
        if env::var_os("LEEWARD_GOLDEN").is_some() {
            fs::write(&path, now.join("\n")).expect("the file can be written");
        }
    }
    assert!(wrong.is_empty() || env::var_os("LEEWARD_GOLDEN").is_some(), "{wrong}");
}
