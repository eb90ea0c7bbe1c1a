//! Every schedule of two readers and a writer, over tables of a single home bucket.
//!
//! The writer is a list of word writes. A reader reads the words of each read in any order, with any number of writes
//! between any two. Readers write nothing. So two readers do not act on each other, and the schedules of two are the
//! pairs of schedules of one. For each schedule of one reader, [`Schedules`] notes when it began, when it ended, and what
//! it returned, in numbers of writes done before. States that occur in several schedules are visited once.
//!
//! A register with a single writer is linearizable if no read returns what was never written, or was replaced before it
//! began by a write that ended before it began, and if of two reads, one after the other, the second does not return the
//! older value. These are compared for all pairs, which covers two reads of the same reader as well.

use super::*;
use crate::hash_index::{
    Content, Extent, GrantFields, LINE_BYTES, SlotPlace, WordWrite, clear, link, publish, record_lines,
};
use crate::partition::Partition;
use crate::{Epoch, RegionId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const NONCE: u64 = 0x0123_4567_89ab_cdef;
/// Lines of buckets, home bucket included.
const BUCKETS: u32 = 2;
/// Lines of records.
const RECORDS: u32 = 12;
const WORDS: usize = LINE_BYTES / WORD_BYTES;

fn grant() -> Grant {
    let extent = |first, lines, content| {
        let offset = u64::from(first) * LINE_BYTES as u64;
        Extent { first: Line(first), lines, content, memory: 0, offset }
    };
    let fields = GrantFields {
        region: RegionId(1),
        term: Epoch(1),
        nonce: NONCE,
        partition: Partition::Range,
        start: Bytes::new(),
        end: None,
        buckets: 1,
        memories: vec![Bytes::from_static(b"memory")],
        extents: vec![extent(0, BUCKETS, Content::Buckets), extent(BUCKETS, RECORDS, Content::Records { class: 1 })],
        board: BytesToRead { memory: 0, offset: 1 << 20, bytes: LINE_BYTES as u32 },
    };
    Grant::try_from(fields).expect("a grant")
}

/// A rule that the test's writer breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// The record is written before the slot leads to it.
    BytesBeforeSlot,
    /// A record is not poisoned before its space is used again.
    ReuseUnpoisoned,
    /// The slot of a deleted key stays, and so does its record.
    KeepDeletedSlots,
    /// The first word of a record is written before the others.
    FirstWordFirst,
    /// A record is poisoned before the slot of its version is cleared or changed: the table's order, reversed.
    PoisonFirst,
}

/// What the writer does, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// A put of key a or b, which have the same fingerprint.
    Put(usize),
    Delete(usize),
    /// The newest version of a key leaves the table.
    Evict(usize),
    /// It comes back.
    Fill(usize),
    /// A key that fills a slot of the home bucket is deleted.
    DeleteFiller,
}

/// A write of a key that the readers look for.
#[derive(Clone, Debug)]
struct Version {
    lsn: Lsn,
    /// `None`: a delete.
    value: Option<[u8; 8]>,
    /// Word writes after which it was acknowledged.
    acknowledged: usize,
}

/// The writer: what it knows of the table, and what it has written.
struct Writer {
    keys: [[u8; 8]; 2],
    broken: Option<Broken>,
    /// LSNs of two writes are that far apart. At 4,096 all tags are the same.
    stride: u64,
    lsn: Lsn,
    /// The slots in use: which key, and where its record is.
    slots: BTreeMap<SlotPlace, (usize, Line)>,
    chain: Vec<Line>,
    /// Space of records. The last that was freed is used first.
    free: Vec<Line>,
    writes: Vec<WordWrite>,
    versions: [Vec<Version>; 2],
}

/// The key of a slot that is neither a nor b.
const FILLER: usize = usize::MAX;

impl Writer {
    /// A table with `fillers` slots of the home bucket in use.
    fn new(fillers: u8, stride: u64, broken: Option<Broken>) -> Writer {
        let mut writer = Writer {
            keys: keys(),
            broken,
            stride,
            lsn: Lsn(1),
            slots: BTreeMap::new(),
            chain: vec![Line(0)],
            free: (BUCKETS..BUCKETS + RECORDS).rev().map(Line).collect(),
            writes: Vec::new(),
            versions: [Vec::new(), Vec::new()],
        };
        for index in 0..fillers {
            let line = writer.free.pop().expect("there is more space than slots");
            writer.slots.insert(SlotPlace { bucket: Line(0), index }, (FILLER, line));
        }
        writer
    }

    /// The memory before the first write: records of fillers were never written, but their slots lead to them.
    fn memory(&self) -> Vec<u64> {
        let mut memory = vec![0; (BUCKETS + RECORDS) as usize * WORDS];
        for (place, (_, line)) in &self.slots {
            let filler = !fingerprint(filter::hash(&self.keys[0]));
            let slot = Slot { fingerprint: filler & 0xfff, tag: 1, lines: 1, line: *line };
            memory[usize::from(place.index)] = slot.word();
        }
        memory
    }

    fn slot_of(&self, key: usize) -> Option<(SlotPlace, Line)> {
        self.slots.iter().find(|(_, (owner, _))| *owner == key).map(|(place, (_, line))| (*place, *line))
    }

    /// The first free slot; a bucket is added to the chain if there is none.
    fn free_slot(&mut self) -> SlotPlace {
        let places = self.chain.iter().flat_map(|bucket| (0..7).map(|index| SlotPlace { bucket: *bucket, index }));
        let free = places.into_iter().find(|place| !self.slots.contains_key(place));
        free.unwrap_or_else(|| {
            let (last, next) = (*self.chain.last().expect("a home bucket"), Line(self.chain.len() as u32));
            assert!(next.0 < BUCKETS, "the table has that many buckets");
            self.writes.push(link(last, next));
            self.chain.push(next);
            SlotPlace { bucket: next, index: 0 }
        })
    }

    fn publish(&mut self, key: usize, lsn: Lsn, value: [u8; 8]) {
        let old = self.slot_of(key);
        let place = old.map_or_else(|| self.free_slot(), |(place, _)| place);
        let line = self.free.pop().expect("there is more space than versions");
        let (mut words, bytes) = (Vec::new(), self.keys[key]);
        Record { lsn, key: &bytes, value: &value }.append_to(RecordPlace { nonce: NONCE, line }, &mut words);
        let lines = record_lines(bytes.len(), value.len()).expect("it is short");
        let slot = Slot { fingerprint: fingerprint(filter::hash(&bytes)), tag: tag(lsn), lines, line };
        let old = old.map(|(_, line)| line);
        let mut writes: Vec<WordWrite> = publish(place, slot, &words, old).collect();
        let first_word = words.len() / WORD_BYTES;
        assert_eq!(writes.len(), first_word + 1 + usize::from(old.is_some()), "slot, words, poison");
        match self.broken {
            Some(Broken::BytesBeforeSlot) => writes[..=first_word].rotate_left(1),
            Some(Broken::FirstWordFirst) => writes[1..=first_word].rotate_right(1),
            Some(Broken::ReuseUnpoisoned) => writes.truncate(first_word + 1),
            Some(Broken::PoisonFirst) if old.is_some() => writes.rotate_right(1),
            _ => {}
        }
        self.writes.extend(writes);
        self.slots.insert(place, (key, line));
        self.free.extend(old);
    }

    fn clear(&mut self, key: usize) -> bool {
        let Some((place, line)) = self.slot_of(key) else { return false };
        let [mut first, mut second] = clear(place, line);
        if self.broken == Some(Broken::PoisonFirst) {
            (first, second) = (second, first);
        }
        self.writes.push(first);
        if self.broken != Some(Broken::ReuseUnpoisoned) {
            self.writes.push(second);
        }
        self.slots.remove(&place);
        self.free.push(line);
        true
    }

    /// Carries `op` out; `false` if it has nothing to do.
    fn run(&mut self, op: Op) -> bool {
        let is_new = match op {
            Op::Put(key) => {
                let value = std::array::from_fn(|i| b'0' + (7 * self.versions[key].len() + 3 * i + key) as u8);
                self.publish(key, self.lsn, value);
                Some((key, Some(value)))
            }
            Op::Delete(key) => {
                let has = self.versions[key].last().is_some_and(|version| version.value.is_some());
                if !has {
                    return false;
                }
                if self.broken != Some(Broken::KeepDeletedSlots) {
                    self.clear(key);
                }
                Some((key, None))
            }
            Op::Evict(key) => return self.clear(key),
            Op::Fill(key) => match self.versions[key].last() {
                Some(Version { lsn, value: Some(value), .. }) if self.slot_of(key).is_none() => {
                    let (lsn, value) = (*lsn, *value);
                    self.publish(key, lsn, value);
                    None
                }
                _ => return false,
            },
            Op::DeleteFiller => return self.clear(FILLER),
        };
        if let Some((key, value)) = is_new {
            self.versions[key].push(Version { lsn: self.lsn, value, acknowledged: self.writes.len() });
            self.lsn = Lsn(self.lsn.0 + self.stride);
        }
        true
    }
}

/// Two keys with the same fingerprint.
fn keys() -> [[u8; 8]; 2] {
    let name = |i: usize| *format!("key{i:05}").as_bytes().first_chunk().expect("eight bytes");
    let wanted = fingerprint(filter::hash(&name(0)));
    let other = (1..).map(name).find(|key| fingerprint(filter::hash(key)) == wanted);
    [name(0), other.expect("one key in 4,096 has it")]
}

/// What a reader returned: it asks, it found what the key never had, or it found the version at this position, less
/// [`FOUND`].
type Outcome = usize;
const ASK: Outcome = 0;
const WRONG: Outcome = 1;
const FOUND: Outcome = 2;
const OUTCOMES: usize = 9;

/// A reader in the middle of a read, and how many words the writer has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    written: usize,
    progress: Progress,
    /// Words that it has read. Those that it has not are 0.
    words: [u64; WORDS],
    /// A bit for each word that it has read.
    has: u8,
}

/// How many schedules there are from a state on, and how they end.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    schedules: u128,
    /// For each outcome a bit for each number of writes after which some schedule ends with it.
    after: [u64; OUTCOMES],
}

impl Ends {
    fn one(written: usize, outcome: Outcome) -> Ends {
        let mut ends = Ends { schedules: 1, ..Ends::default() };
        ends.after[outcome] = 1 << written;
        ends
    }

    fn add(&mut self, other: Ends) {
        self.schedules = self.schedules.checked_add(other.schedules).expect("fewer than 2^128");
        self.after.iter_mut().zip(other.after).for_each(|(all, other)| *all |= other);
    }
}

/// All schedules of a reader of `key` and a writer.
struct Schedules<'a> {
    grant: &'a Grant,
    key: [u8; 8],
    versions: &'a [Version],
    /// The table after each number of writes.
    memory: Vec<Vec<u64>>,
    /// For each word the number of writes after which it does not change any more.
    last_change: Vec<usize>,
    known: HashMap<State, Ends>,
}

impl<'a> Schedules<'a> {
    fn new(grant: &'a Grant, start: Vec<u64>, writer: &'a Writer, key: usize) -> Schedules<'a> {
        assert!(writer.writes.len() < 64 && writer.versions[key].len() <= OUTCOMES - FOUND, "see `Ends`");
        let mut last_change = vec![0; start.len()];
        let mut memory = vec![start];
        for (i, write) in writer.writes.iter().enumerate() {
            let mut next = memory[i].clone();
            let at = write.at as usize / WORD_BYTES;
            if std::mem::replace(&mut next[at], write.word) != write.word {
                last_change[at] = i + 1;
            }
            memory.push(next);
        }
        let (key, versions) = (writer.keys[key], &writer.versions[key][..]);
        Schedules { grant, key, versions, memory, last_change, known: HashMap::new() }
    }

    /// All schedules of a reader that begins after `written` writes.
    fn from(&mut self, written: usize) -> Ends {
        self.run(self.begin(written))
    }

    fn begin(&self, written: usize) -> State {
        match Reader::begin(self.grant, self.key) {
            Step::Read(reader) => State { written, progress: reader.progress, words: [0; WORDS], has: 0 },
            other => panic!("the key is one of the table's: {other:?}"),
        }
    }

    fn run(&mut self, state: State) -> Ends {
        let state = match self.advance(state) {
            Ok(state) => state,
            Err(outcome) => return Ends::one(state.written, outcome),
        };
        if let Some(ends) = self.known.get(&state) {
            return *ends;
        }
        let mut all = self.run(State { written: state.written + 1, ..state });
        for word in unread(&state) {
            all.add(self.run(self.with(state, word)));
        }
        self.known.insert(state, all);
        all
    }

    /// Reads all words that do not change any more, since it does not matter when, and goes on after a read of which
    /// all words are read.
    fn advance(&self, mut state: State) -> Result<State, Outcome> {
        loop {
            for word in unread(&state) {
                if self.last_change[self.at(&state, word)] <= state.written {
                    state = self.with(state, word);
                }
            }
            if state.has != u8::MAX {
                return Ok(state);
            }
            state = self.feed(state)?;
        }
    }

    /// Position in the memory of a word of the present read.
    fn at(&self, state: &State, word: usize) -> usize {
        let place = state.progress.place;
        assert_eq!(place.bytes as usize, LINE_BYTES, "each read of this table is a line");
        place.offset as usize / WORD_BYTES + word
    }

    /// The state after the read of a word.
    fn with(&self, mut state: State, word: usize) -> State {
        state.words[word] = self.memory[state.written][self.at(&state, word)];
        state.has |= 1 << word;
        state
    }

    fn feed(&self, state: State) -> Result<State, Outcome> {
        let bytes: Vec<u8> = state.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let reader = Reader { grant: self.grant, key: self.key, progress: state.progress };
        match reader.feed(&bytes) {
            Step::Read(reader) => Ok(State { progress: reader.progress, words: [0; WORDS], has: 0, ..state }),
            Step::Ask(_) => Err(ASK),
            Step::Found { lsn, value } => {
                let is_it = |version: &Version| {
                    version.lsn == lsn && version.value.as_ref().is_some_and(|found| found[..] == *value)
                };
                Err(self.versions.iter().position(is_it).map_or(WRONG, |version| FOUND + version))
            }
        }
    }
}

/// Words that the present read has not read yet.
fn unread(state: &State) -> impl Iterator<Item = usize> + use<> {
    let has = state.has;
    (0..WORDS).filter(move |word| has & (1 << word) == 0)
}

/// What is wrong with some schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// A value that the key never had.
    NeverWritten,
    /// A version that was replaced by an acknowledged one before the reader began.
    Replaced,
    /// A version older than one that a reader had returned before this reader began.
    OlderThanReturned,
}

/// What the schedules of one reader of a key, and their pairs, have shown.
#[derive(Debug, Default)]
struct Verdict {
    schedules: u128,
    states: usize,
    outcomes: BTreeSet<Outcome>,
    faults: BTreeSet<Fault>,
    /// What a reader returns that begins after the last write.
    at_rest: BTreeSet<Outcome>,
}

/// Runs all schedules of a writer and of readers of `key`.
fn judge(grant: &Grant, start: &[u64], writer: &Writer, key: usize) -> Verdict {
    let mut schedules = Schedules::new(grant, start.to_vec(), writer, key);
    let mut verdict = Verdict::default();
    // The newest version that a reader has returned, by the number of writes after which it did.
    let mut returned: BTreeMap<usize, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for begin in 0..=writer.writes.len() {
        let ends = schedules.from(begin);
        verdict.schedules += ends.schedules;
        verdict.at_rest = (0..OUTCOMES).filter(|outcome| ends.after[*outcome] != 0).collect();
        verdict.outcomes.extend(&verdict.at_rest);
        for (version, after) in ends.after[FOUND..].iter().enumerate().filter(|(_, after)| **after != 0) {
            let newest = returned.entry(after.trailing_zeros() as usize).or_insert(version);
            *newest = version.max(*newest);
            found.push((begin, version));
        }
    }
    if verdict.outcomes.contains(&WRONG) {
        verdict.faults.insert(Fault::NeverWritten);
    }
    for (begin, version) in found {
        let newer = &writer.versions[key][version + 1..];
        if newer.iter().any(|newer| newer.acknowledged <= begin) {
            verdict.faults.insert(Fault::Replaced);
        }
        if returned.range(..=begin).any(|(_, newest)| *newest > version) {
            verdict.faults.insert(Fault::OlderThanReturned);
        }
    }
    verdict.states = schedules.known.len();
    verdict
}

/// What is found out about a script by all schedules of the readers of both keys.
fn run(script: &[Op], fillers: u8, stride: u64, broken: Option<Broken>) -> Option<[Verdict; 2]> {
    let mut writer = Writer::new(fillers, stride, broken);
    let start = writer.memory();
    if !script.iter().all(|op| writer.run(*op)) {
        return None;
    }
    let grant = grant();
    Some([0, 1].map(|key| judge(&grant, &start, &writer, key)))
}

/// All scripts of `length` operations of `alphabet`, the shorter ones included.
fn scripts(alphabet: &[Op], length: usize) -> Vec<Vec<Op>> {
    let mut all = vec![Vec::new()];
    let mut last = 0;
    for _ in 0..length {
        let (from, to) = (last, all.len());
        last = to;
        for i in from..to {
            for op in alphabet {
                let longer = all[i].iter().copied().chain([*op]).collect();
                all.push(longer);
            }
        }
    }
    all
}

const PUT: Op = Op::Put(0);
const DELETE: Op = Op::Delete(0);
const OTHER: Op = Op::Put(1);

/// The scripts that the rules are about, each with the fillers of the home bucket.
const SCENARIOS: [(&str, &[Op], u8); 6] = [
    ("update", &[PUT, PUT], 0),
    ("delete", &[PUT, DELETE, PUT], 0),
    ("update, then the space is another key's", &[PUT, PUT, OTHER], 0),
    ("update, then the space is the key's again", &[PUT, PUT, PUT, PUT], 0),
    ("overflow bucket", &[PUT, PUT, DELETE, OTHER], 7),
    ("from the overflow bucket to the home bucket", &[PUT, Op::DeleteFiller, DELETE, PUT, OTHER], 7),
];

#[test]
fn every_schedule_of_the_scenarios_is_linearizable() {
    for (name, script, fillers) in SCENARIOS {
        for stride in [1, 1 << 12] {
            let verdicts = run(script, fillers, stride, None).expect("each operation has something to do");
            for (verdict, key) in verdicts.iter().zip(["a", "b"]) {
                println!(
                    "{name}, key {key}, LSNs {stride} apart: {} schedules of one reader, {:.1e} pairs, {} states",
                    verdict.schedules,
                    (verdict.schedules as f64).powi(2),
                    verdict.states
                );
                assert_eq!(verdict.faults, BTreeSet::new(), "{name}, key {key}");
            }
            let [a, _] = verdicts;
            let versions = script.iter().filter(|op| matches!(**op, PUT | DELETE)).count();
            let puts = script.iter().filter(|op| **op == PUT).count();
            let found = a.outcomes.iter().filter(|outcome| **outcome >= FOUND);
            assert_eq!(found.count(), puts, "{name}: some schedule returns each version");
            if script.iter().rev().find(|op| matches!(**op, PUT | DELETE)) == Some(&PUT) {
                assert_eq!(a.at_rest, BTreeSet::from([FOUND + versions - 1]), "{name}: at rest");
            }
        }
    }
}

/// Operations of the scripts that are made up. Keys a and b have the same fingerprint.
const ALPHABET: [Op; 6] = [PUT, DELETE, Op::Evict(0), Op::Fill(0), OTHER, Op::Delete(1)];

/// Scripts that are made up: operations, how many of them at most, fillers of the home bucket, and what the writer does
/// that changes nothing: slot or record may be the first to be cleared, and the CRC is enough where the first word of a
/// record is not the last.
const MADE_UP: [(&[Op], usize, u8, Option<Broken>); 4] = [
    (&ALPHABET, 5, 0, None),
    (&[PUT, DELETE, OTHER, Op::DeleteFiller], 4, 7, None),
    (&ALPHABET, 4, 0, Some(Broken::FirstWordFirst)),
    (&ALPHABET, 4, 0, Some(Broken::PoisonFirst)),
];

/// The tags of all versions are the same.
#[test]
fn every_schedule_of_every_short_script_is_linearizable() {
    for (alphabet, length, fillers, broken) in MADE_UP {
        let (mut ran, mut schedules) = (0, 0.0);
        for script in scripts(alphabet, length) {
            let Some(verdicts) = run(&script, fillers, 1 << 12, broken) else { continue };
            ran += 1;
            for verdict in verdicts {
                assert_eq!(verdict.faults, BTreeSet::new(), "{script:?}, {broken:?}");
                schedules += verdict.schedules as f64;
            }
        }
        println!("{ran} scripts, {fillers} fillers, {broken:?}: {schedules:.1e} schedules of one reader");
    }
}

/// A rule that a writer breaks, and a script that shows it.
struct Break {
    broken: Broken,
    script: &'static [Op],
    /// The faults of its schedules if all tags are the same.
    same_tags: &'static [Fault],
    /// And if they differ, which is a barrier of its own.
    other_tags: &'static [Fault],
}

const BREAKS: [Break; 3] = [
    Break {
        broken: Broken::BytesBeforeSlot,
        script: &[PUT, PUT, PUT],
        same_tags: &[Fault::OlderThanReturned],
        other_tags: &[],
    },
    Break {
        broken: Broken::ReuseUnpoisoned,
        script: &[PUT, PUT, PUT],
        same_tags: &[Fault::Replaced, Fault::OlderThanReturned],
        other_tags: &[],
    },
    Break {
        broken: Broken::KeepDeletedSlots,
        script: &[PUT, DELETE],
        same_tags: &[Fault::Replaced],
        other_tags: &[Fault::Replaced],
    },
];

#[test]
fn some_schedule_finds_a_writer_that_breaks_a_rule() {
    for Break { broken, script, same_tags, other_tags } in BREAKS {
        for (stride, expected) in [(1 << 12, same_tags), (1, other_tags)] {
            let verdicts = run(script, 0, stride, Some(broken)).expect("each operation has something to do");
            let faults: BTreeSet<Fault> = verdicts.into_iter().flat_map(|verdict| verdict.faults).collect();
            assert!(faults.iter().eq(expected), "{broken:?}, {script:?}, LSNs {stride} apart: {faults:?}");
        }
    }
}

#[path = "reader_pairs_tests.rs"]
mod pairs;
