//! A region's readable state without logs and manifest, and a model that keeps every version: what the tests of reads,
//! scans and compactions share.

use crate::compaction::{Compaction, CompactionDone, Lane, Logs, Picker, Step};
use crate::log::{Fetched, Values, WantedRecord};
use crate::reads::ValueLog;
use crate::version::*;
use crate::volume::{Accounts, Volume, VolumeOptions};
use leeward_format::cluster::{Addressing, CompactionMode, Placement, TableOptions};
use leeward_format::manifest::{LevelState, LogExtent, SegmentKind};
use leeward_format::packed::{Codec, Compression};
use leeward_format::range::RangeTombstone;
use leeward_format::record::{RecordSeed, read_record, record_bytes};
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_format::{LogKind, Pointer, RegionId, SegmentId, SegmentName, VolumeId};
use leeward_platform::{Disk, SimDisk};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const SEGMENT_BYTES: usize = 32 << 10;
pub(crate) const REGION: RegionId = RegionId(7);
/// Values from this length on go to the log.
const LARGE_BYTES: usize = 200;
/// Pairs from this length on, with smaller values, go to runs on their way down.
const MEDIUM_BYTES: u32 = 100;

/// A log in a map, and the runs that compactions wrote. Half of the log counts as being in memory.
#[derive(Default)]
pub(crate) struct ModelLog {
    values: Mutex<HashMap<Pointer, (Vec<u8>, Bytes)>>,
    runs: Mutex<HashMap<SegmentName, (SegmentId, Bytes)>>,
    pub(crate) device_reads: AtomicU64,
    /// Most bytes of values that were wanted at once.
    pub(crate) most_wanted: AtomicU64,
    /// Most bytes of these beyond what the budget had for reads.
    pub(crate) most_beyond: AtomicU64,
    volume: OnceLock<Arc<Volume>>,
}

impl ModelLog {
    fn append(&self, key: &[u8], value: &[u8]) -> Pointer {
        let mut values = self.values.lock();
        let pointer = Pointer::new(SegmentName(1000 + values.len() as u64), 64);
        values.insert(pointer, (key.to_vec(), Bytes::copy_from_slice(value)));
        pointer
    }

    fn run_value(&self, pointer: Pointer) -> Option<(Vec<u8>, Stamp, Bytes)> {
        let runs = self.runs.lock();
        let (id, bytes) = runs.get(&pointer.segment())?;
        let seed = RecordSeed::new(REGION, LogKind::Medium, *id);
        let record = read_record(seed, &bytes[pointer.offset() as usize..]).expect("a sound run").expect("a record");
        Some((record.key.to_vec(), record.stamp, Bytes::copy_from_slice(record.value)))
    }
}

impl ValueLog for ModelLog {
    fn value_in_memory(&self, pointer: Pointer, key: &[u8], value_bytes: u32) -> Option<Bytes> {
        if pointer.segment().0.is_multiple_of(2) || self.runs.lock().contains_key(&pointer.segment()) {
            return None;
        }
        let values = self.values.lock();
        let (of, value) = &values[&pointer];
        assert!(of == key && value.len() == value_bytes as usize);
        Some(value.clone())
    }
    fn values(&self, wanted: &[ValueAt<'_>]) -> Result<Values> {
        self.device_reads.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        let bytes = wanted.iter().map(|at| u64::from(at.value_bytes)).sum::<u64>();
        let reserved = self.volume.get().map_or(0, |volume| volume.memory().status().reads);
        self.most_wanted.fetch_max(bytes, Ordering::Relaxed);
        self.most_beyond.fetch_max(bytes.saturating_sub(reserved), Ordering::Relaxed);
        let values = self.values.lock();
        let value = |at: &ValueAt<'_>| {
            if let Some((of, stamp, value)) = self.run_value(at.pointer) {
                assert!(of == at.key && stamp.expires == at.expires && value.len() == at.value_bytes as usize);
                return value;
            }
            let (of, value) = &values[&at.pointer];
            assert!(of == at.key && value.len() == at.value_bytes as usize);
            value.clone()
        };
        Ok(Values { values: wanted.iter().map(value).collect(), scattered_bytes: 0 })
    }
    fn fetch(&self, wanted: &[WantedRecord]) -> Result<Fetched> {
        let fetch = |wanted: &WantedRecord| {
            let (key, stamp, value) = self.run_value(wanted.pointer).expect("only values in runs are moved");
            assert_eq!((wanted.stamp, wanted.key_bytes as usize), (stamp, key.len()));
            value
        };
        Ok(Fetched { values: wanted.iter().map(fetch).collect(), bytes_read: 0 })
    }
    fn segment_id(&self, no: SegmentName) -> Option<SegmentId> {
        Some(self.runs.lock().get(&no).map_or(SegmentId(u64::MAX), |(id, _)| *id))
    }
}

/// A run that leaves point to.
pub(crate) struct LiveRun {
    pub(crate) segment: Arc<Segment>,
    live_bytes: u32,
}

/// LSN, value and expiry; `None` is a tombstone.
type OneVersion = (u64, Option<Vec<u8>>, Option<Expiry>);

/// Versions of each key, oldest first, and deleted ranges.
#[derive(Clone, Default)]
pub(crate) struct Model {
    keys: BTreeMap<Vec<u8>, Vec<OneVersion>>,
    ranges: Vec<(u64, RangeTombstone)>,
}

impl Model {
    /// LSN and value of a live key.
    pub(crate) fn get(&self, key: &[u8], at: Lsn, now: UnixMs) -> Option<(u64, Vec<u8>)> {
        let (lsn, value, expires) = self.keys.get(key)?.iter().rev().find(|(lsn, ..)| *lsn <= at.0)?;
        if self.ranges.iter().any(|(of, range)| *of <= at.0 && of > lsn && range.covers(key)) {
            return None;
        }
        Some((*lsn, value.clone().filter(|_| expires.is_none_or(|expires| expires.ms() > now.0))?))
    }

    pub(crate) fn live(&self, of: &Snapshot) -> impl DoubleEndedIterator<Item = (Vec<u8>, u64, Vec<u8>)> + '_ {
        let (at, now) = (of.lsn(), of.now());
        self.keys.keys().filter_map(move |key| self.get(key, at, now).map(|(lsn, value)| (key.clone(), lsn, value)))
    }
}

pub(crate) fn any_codec() -> impl Strategy<Value = Codec> {
    prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)]
}

/// The region under test, and its model.
pub(crate) struct Store {
    pub(crate) disk: SimDisk,
    pub(crate) volume: Arc<Volume>,
    pub(crate) log: Arc<ModelLog>,
    pub(crate) version: Arc<Version>,
    pub(crate) model: Model,
    pub(crate) lsn: u64,
    pub(crate) now: u64,
    pub(crate) picker: Picker,
    pub(crate) live: BTreeMap<SegmentName, (SegmentId, Arc<Segment>)>,
    pub(crate) runs: BTreeMap<SegmentId, LiveRun>,
}

impl Store {
    /// L0s do not freeze by themselves; levels grow by a factor of 2 from `l0_bytes`.
    pub(crate) fn new(memory_budget: u64, l0_bytes: u64) -> Store {
        Store::with_segments(SEGMENT_BYTES, memory_budget, l0_bytes)
    }

    pub(crate) fn with_segments(segment_bytes: usize, memory_budget: u64, l0_bytes: u64) -> Store {
        let disk = SimDisk::new(1, u64::MAX);
        let file = disk.open("volume").expect("a simulated disk opens");
        let options = VolumeOptions { segment_bytes, memory_budget, ..VolumeOptions::default() };
        let (volume, _) = Volume::open(file, VolumeId(1), options).expect("a new volume opens");
        let log = Arc::new(ModelLog::default());
        log.volume.set(Arc::clone(&volume)).expect("a new log");
        let reads = Reads::new(Arc::clone(&volume), REGION, Addressing::Physical, Arc::clone(&log) as _);
        let version = Arc::new(Version::new(reads, Arc::new(MemTable::new()), Vec::new(), Vec::new()));
        let ids = AtomicU64::new(1);
        let ids = Arc::new(move || Ok(SegmentId(ids.fetch_add(1, Ordering::Relaxed))));
        let placement = Placement { medium_from: MEDIUM_BYTES, large_from: LARGE_BYTES as u32 };
        let table = TableOptions { l0_bytes: l0_bytes / 2, growth_factor: 2, placement, ..TableOptions::default() };
        let options = TableOptions { l1_runs: 1, ..table };
        let picker = Picker::new(&options, None, ids);
        let (live, runs) = (BTreeMap::new(), BTreeMap::new());
        Store { disk, volume, log, version, model: Model::default(), lsn: 0, now: 1, picker, live, runs }
    }

    /// Sets the runs of L1, before anything is compacted, and how levels are merged.
    pub(crate) fn merge_as(&mut self, (l1_runs, mode): (u32, CompactionMode)) {
        self.picker.merge_as(l1_runs, mode);
    }

    /// Sets the compression of later compactions.
    pub(crate) fn compress(&mut self, upper: Codec, last: Codec) {
        self.picker.compress(Compression { upper, last });
    }

    pub(crate) fn write(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.write_until(key, value, None);
    }

    pub(crate) fn write_until(&mut self, key: &[u8], value: Option<&[u8]>, expires: Option<Expiry>) {
        match value {
            Some(bytes) if bytes.len() >= LARGE_BYTES && bytes.len() < 2 * LARGE_BYTES => {
                let pointer = self.log.append(key, bytes);
                self.insert(key, value, expires, Entry::InLog { pointer, value_bytes: bytes.len() as u32 });
            }
            Some(bytes) => self.insert(key, value, expires, Entry::InPlace(bytes)),
            None => self.insert(key, value, expires, Entry::Tombstone),
        }
    }

    /// The log takes values of any size.
    pub(crate) fn write_to_log(&mut self, key: &[u8], value: &[u8]) {
        let pointer = self.log.append(key, value);
        self.insert(key, Some(value), None, Entry::InLog { pointer, value_bytes: value.len() as u32 });
    }

    fn insert(&mut self, key: &[u8], value: Option<&[u8]>, expires: Option<Expiry>, entry: Entry<'_>) {
        self.lsn += 1;
        self.version.active().insert(key, Stamp { lsn: Lsn(self.lsn), expires }, entry);
        self.model.keys.entry(key.to_vec()).or_default().push((self.lsn, value.map(<[u8]>::to_vec), expires));
    }

    /// Deletes the range between two keys, in either order; to the end if they are equal.
    pub(crate) fn delete_range(&mut self, a: &[u8], b: &[u8]) {
        self.lsn += 1;
        let end = if a == b { &[][..] } else { a.max(b) };
        let range = RangeTombstone::new(a.min(b), end, Lsn(self.lsn));
        self.version.active().insert_range(range.clone());
        self.model.ranges.push((self.lsn, range));
    }

    pub(crate) fn freeze(&mut self) {
        if !self.version.active().is_empty() {
            self.version = Arc::new(self.version.freeze(Arc::new(MemTable::new())));
        }
    }

    pub(crate) fn pick(&mut self) -> Option<Compaction> {
        self.pick_at(Lsn(self.lsn), &[])
    }

    pub(crate) fn pick_at(&mut self, commit: Lsn, extents: &[Vec<LogExtent>]) -> Option<Compaction> {
        let logs = Logs { accounts: Accounts::default(), choose: &|_, _| BTreeMap::new() };
        self.picker.pick(&self.version, commit, extents, &logs, (Lane::Any, 1, UnixMs(self.now)))
    }

    /// Runs a compaction to its end, and installs it.
    pub(crate) fn finish(&mut self, mut compaction: Compaction) -> CompactionDone {
        let mut built = Vec::new();
        let done = loop {
            match compaction.step().expect("a compaction on a sound disk") {
                Step::Segment(segment) => built.push(segment),
                Step::Finished(done) => break done,
            }
        };
        let added: Vec<_> = built.iter().map(|built| (built.id, built.kind)).collect();
        assert_eq!(added, done.edit.added, "every segment that is added was answered");
        assert_eq!(done.bytes_written, built.iter().map(|built| built.bytes.len() as u64).sum::<u64>());
        let removed = &done.edit.removed;
        let before = self.live.len();
        self.live.retain(|_, (id, _)| !removed.contains(id));
        assert_eq!(before - self.live.len(), removed.len(), "only live segments are removed, once");
        for (id, kind, segment, bytes) in &done.added {
            if *kind == SegmentKind::Log(LogKind::Medium) {
                let live_bytes = bytes - LOG_HEADER_BYTES as u32;
                self.runs.insert(*id, LiveRun { segment: Arc::clone(segment), live_bytes });
                continue;
            }
            assert!(
                self.live.insert(segment.no().name(), (*id, Arc::clone(segment))).is_none(),
                "a live segment was overwritten"
            );
        }
        let runs = built.iter().filter(|built| built.kind == SegmentKind::Log(LogKind::Medium));
        self.log.runs.lock().extend(runs.map(|run| (run.segment.no().name(), (run.id, run.bytes.clone()))));
        for (id, dead) in done.edit.dead.iter().filter(|(id, _)| *id != SegmentId(u64::MAX)) {
            self.runs.get_mut(id).expect("a live run").live_bytes -= dead;
        }
        let retired = self.runs.extract_if(.., |_, run| run.live_bytes == 0).map(|(_, run)| run.segment).collect();
        let renewed = self.version.renew(&done.change());
        self.version = Arc::new(self.version.install(&done.change(), renewed, retired));
        done.claim.release();
        self.check_levels();
        self.check_runs();
        *done
    }

    /// The live bytes of each run are those of the records that leaves point to.
    fn check_runs(&self) {
        let mut live = HashMap::<SegmentName, u32>::new();
        for level in self.version.levels() {
            let mut cursor = crate::tree::LevelCursor::new(Arc::clone(self.version.reads()), Arc::clone(level));
            if level.is_empty() {
                continue;
            }
            cursor.seek(&[]).expect("a sound disk");
            while let Some((key, stamp, entry)) = cursor.current() {
                let window = level.window(self.version.reads(), key).expect("a sound disk");
                let is_hidden = window.lsn.is_some_and(|deleted| deleted > stamp.lsn);
                assert!(window.has(key) && !is_hidden, "a hidden entry is gone");
                if let Entry::InLog { pointer, value_bytes } = entry {
                    let bytes = record_bytes(key.len(), value_bytes as usize, stamp.expires);
                    *live.entry(pointer.segment()).or_default() += bytes as u32;
                }
                cursor.step().expect("a sound disk");
            }
        }
        for run in self.runs.values() {
            assert_eq!(Some(&run.live_bytes), live.get(&run.segment.no().name()));
        }
    }

    /// Checks the invariants of every level: see [`crate::tree`].
    fn check_levels(&self) {
        for level in self.version.levels() {
            let (mut entries, mut bytes) = (0, 0);
            for (i, leaf) in level.segments().iter().enumerate() {
                let index = leaf.index_from_device(self.version.reads()).expect("a sound disk");
                let footer = index.footer();
                let span = &footer.span;
                assert!(level.fence(i) <= &span.first[..] && span.first <= span.last);
                assert!(i > 0 || level.fence(0).is_empty());
                assert!(i + 1 == level.segments().len() || span.is_below(level.fence(i + 1)));
                assert_eq!(level.state().ranged.contains(&leaf.id()), footer.ranges > 0);
                assert_eq!(level.ranged().contains(&i), footer.ranges > 0);
                for range in index.ranges().as_slice() {
                    assert!(range.start >= span.first && range.end <= span.last || !span.is_open);
                }
                entries += u64::from(footer.entries);
                bytes += footer.payload_bytes + footer.medium_bytes;
            }
            let LevelState { root, index_segments, leaf_segments, .. } = level.state();
            assert_eq!((level.state().entries, level.state().bytes), (entries, bytes));
            assert_eq!(*leaf_segments as usize, level.segments().len());
            assert!(root.is_none() == level.is_empty() && index_segments.is_empty() == level.is_empty());
        }
    }

    /// Compacts until nothing is urgent.
    pub(crate) fn settle(&mut self) -> Vec<CompactionDone> {
        let mut all = Vec::new();
        while let Some(compaction) = self.pick() {
            all.push(self.finish(compaction));
        }
        all
    }

    /// Opens the levels anew, as after a restart.
    pub(crate) fn reopen(&mut self) {
        let open = |level: &Arc<Level>| {
            let level = Level::open(self.version.reads(), level.state(), &|no| self.live.get(&no).cloned());
            Arc::new(level.expect("the level opens"))
        };
        let levels = Levels::new(self.version.levels().iter().map(open).collect());
        // Readers of an older version keep it.
        self.version = Arc::new(Version { levels, ..Version::clone(&self.version) });
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.version), Lsn(self.lsn), UnixMs(self.now))
    }

    pub(crate) fn expected(&self, key: &[u8], of: &Snapshot) -> Option<(u64, Vec<u8>)> {
        self.model.get(key, of.lsn(), of.now())
    }
}

/// A read's answer in the model's terms. Absent and deleted are the same: a tombstone may be gone.
pub(crate) fn answer(lookup: Lookup) -> Option<(u64, Vec<u8>)> {
    match lookup {
        Lookup::Found { lsn, value, .. } => Some((lsn.0, value.to_vec())),
        Lookup::Deleted { .. } | Lookup::Absent => None,
        Lookup::NotInMemory => panic!("the device reaches everything"),
    }
}

/// An operation on the store.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Put(u8, usize),
    /// A put that expires after so many milliseconds; at once, if 0.
    PutFor(u8, usize, u64),
    /// Time passes.
    Wait(u64),
    Delete(u8),
    DeleteRange(u8, u8),
    Freeze,
    /// Steps that the next compaction runs before it is dropped.
    Abandon(usize),
    Compact,
    CompactTwo,
    Settle,
    Reopen,
}

pub(crate) fn key(n: u8) -> Vec<u8> {
    // Neighbours with long and with short common prefixes, and some that are prefixes of each other.
    match n % 8 {
        0 => vec![n],
        1 => vec![n - 1, 0],
        2 => [b"user".as_slice(), &[n; 40]].concat(),
        3 => [vec![b'k'; 700 + usize::from(n)], vec![n]].concat(),
        _ => format!("user{:06}", u32::from(n) * 7919 % 1000).into_bytes(),
    }
}

pub(crate) fn value(lsn: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![lsn as u8; bytes];
    value.iter_mut().zip(lsn.to_le_bytes()).for_each(|(byte, lsn)| *byte ^= lsn);
    value
}

pub(crate) fn any_ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = prop_oneof![6 => 0usize..150, 2 => 150usize..700, 1 => 3000usize..7000];
    let op = prop_oneof![
        22 => (any::<u8>(), bytes.clone()).prop_map(|(key, bytes)| Op::Put(key, bytes)),
        8 => (any::<u8>(), bytes, 0u64..100).prop_map(|(key, bytes, ms)| Op::PutFor(key, bytes, ms)),
        2 => (1u64..40).prop_map(Op::Wait),
        5 => any::<u8>().prop_map(Op::Delete),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Op::DeleteRange(a, b)),
        2 => Just(Op::Freeze),
        1 => (0usize..4).prop_map(Op::Abandon),
        2 => Just(Op::Compact),
        2 => Just(Op::CompactTwo),
        1 => Just(Op::Settle),
        1 => Just(Op::Reopen),
    ];
    proptest::collection::vec(op, 1..400)
}

pub(crate) fn any_merging() -> impl Strategy<Value = (u32, CompactionMode)> {
    let mode = prop_oneof![3 => Just(CompactionMode::Partial), 1 => Just(CompactionMode::WholeLevel)];
    (1u32..=6, mode)
}

pub(crate) fn apply(store: &mut Store, op: &Op) {
    match op {
        Op::Put(n, bytes) => store.write(&key(*n), Some(&value(store.lsn + 1, *bytes))),
        Op::PutFor(n, bytes, ms) => {
            let (value, expires) = (value(store.lsn + 1, *bytes), Expiry::from_ms(store.now + ms));
            store.write_until(&key(*n), Some(&value), expires);
        }
        Op::Wait(ms) => store.now += ms,
        Op::Delete(n) => store.write(&key(*n), None),
        Op::DeleteRange(a, b) => store.delete_range(&key(*a), &key(*b)),
        Op::Freeze => store.freeze(),
        Op::Abandon(steps) => {
            if let Some(mut compaction) = store.pick() {
                for _ in 0..*steps {
                    if let Step::Finished(_) = compaction.step().expect("a compaction on a sound disk") {
                        break;
                    }
                }
            }
        }
        Op::Compact => {
            if let Some(compaction) = store.pick() {
                store.finish(compaction);
            }
        }
        Op::CompactTwo => {
            // The second is installed first.
            let both = [store.pick(), store.pick()];
            for compaction in both.into_iter().rev().flatten() {
                store.finish(compaction);
            }
        }
        Op::Settle => {
            store.settle();
        }
        Op::Reopen => store.reopen(),
    }
}
